import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray

import jaxpsd
from jaxpsd._core.checks import check_samples
from jaxpsd._core.dimensions import Dimensions
from jaxpsd._core.draws import ravel

X = np.arange(24.0, dtype=np.float32).reshape(12, 2)
SCHOOLS = Dimensions.of({"beta": ("school",)}, {"school": ["Choate", "Deerfield"], "unused": [1]})


def draws(**options):
    return jaxpsd.Draws({"mu": jnp.asarray(X[:, 0]), "beta": jnp.asarray(X)}, num_chains=3, **options)


def test_draws_are_a_mapping_from_variables_to_chains():
    found = draws()
    assert list(found) == ["beta", "mu"]
    assert len(found) == 2
    assert "mu" in found
    assert "tau" not in found
    np.testing.assert_array_equal(found["beta"], X.reshape(3, 4, 2))
    assert {name: values.shape for name, values in found.items()} == {"beta": (3, 4, 2), "mu": (3, 4)}
    with pytest.raises(KeyError, match="no variable 'tau'; there are 'beta', 'mu'"):
        found["tau"]


def test_an_array_has_one_variable_and_a_nested_one_has_paths():
    assert jaxpsd.Draws(jnp.asarray(X), 2)["x"].shape == (2, 6, 2)
    assert list(jaxpsd.Draws({"a": {"b": jnp.asarray(X)}})) == ["a.b"]


def test_rows_get_the_structure_of_one_position_each():
    found = draws()
    structure, rows = found.structure, np.asarray(ravel(found.positions), np.float64)
    together = structure.unravel_rows(rows)
    one_by_one = [structure.unravel(jnp.asarray(row)) for row in rows]
    assert {name: leaf.dtype for name, leaf in together.items()} == {"mu": np.float32, "beta": np.float32}
    for name, leaf in together.items():
        np.testing.assert_array_equal(leaf, np.stack([each[name] for each in one_by_one]))
        np.testing.assert_array_equal(leaf, found.positions[name])


def test_a_mapping_from_variables_is_none_from_labels():
    with pytest.raises(TypeError, match="from labels to draws"):
        jaxpsd.rank(jax.random.key(0), None, lambda p: -jnp.sum(p["beta"] ** 2), draws())


def test_origin_and_dimensions_stay_with_the_draws():
    found = draws(origin=jaxpsd.Origin("sg-mcmc"), dimensions=SCHOOLS)
    assert found.origin == jaxpsd.Origin("sg-mcmc")
    for kept in (found.between(0, 2), jax.tree.map(jnp.sin, found), check_samples(found)):
        assert (kept.origin, kept.dimensions) == (found.origin, SCHOOLS)
    on_the_host = jaxpsd.Draws(X, 3, origin=jaxpsd.Origin("laplace"))
    assert check_samples(on_the_host).origin.kind == "laplace"


def test_unknown_origins_are_named():
    with pytest.raises(ValueError, match=r"`kind` must be one of 'mcmc', .*; got 'guess'"):
        jaxpsd.Origin("guess")


def test_labels_along_axes_are_in_names():
    assert draws(dimensions=SCHOOLS).names == ("beta[Choate]", "beta[Deerfield]", "mu")


def test_draws_go_to_arviz_with_dimensions():
    dataset = draws(dimensions=SCHOOLS).to_arviz()
    assert isinstance(dataset, xarray.Dataset)
    assert dataset["beta"].dims == ("chain", "draw", "school")
    np.testing.assert_array_equal(dataset["beta"].sel(school="Deerfield"), X[:, 1].reshape(3, 4))
    assert "unused" not in dataset.coords
    assert draws().to_arviz()["beta"].dims == ("chain", "draw", "beta_dim_0")


def test_dimensions_that_do_not_fit_are_not_used():
    wrong = Dimensions.of({"beta": ("school",), "mu": ("school",)}, {"school": ["a", "b", "c"]})
    assert draws(dimensions=wrong).names == ("beta[0]", "beta[1]", "mu")
    assert draws(dimensions=wrong).to_arviz()["beta"].dims == ("chain", "draw", "beta_dim_0")


def test_labels_and_names_of_axes_can_be_given():
    labelled = draws().with_coords({"school": ["Choate", "Deerfield"]}, dims={"beta": ["school"]})
    assert labelled.names == ("beta[Choate]", "beta[Deerfield]", "mu")
    xarray.testing.assert_equal(labelled.to_arviz(), draws(dimensions=SCHOOLS).to_arviz())
    again = labelled.with_coords({"school": ["a", "b"]})
    assert again.names == ("beta[a]", "beta[b]", "mu")
    assert draws().with_coords({"beta_dim_0": [1, 2]}).names == ("beta[1]", "beta[2]", "mu")


def test_labels_keep_what_goes_before_the_entry():
    given = draws(labels=("log beta[0]", "log beta[1]", "logit mu"))
    labelled = given.with_coords({"k": ["a", "b"]}, dims={"beta": ["k"]})
    assert labelled.names == ("log beta[a]", "log beta[b]", "logit mu")
    own = draws(labels=("slope", "offset", "centre")).with_coords({"beta_dim_0": ["a", "b"]})
    assert own.names == ("slope", "offset", "centre")


@pytest.mark.parametrize(
    ("coords", "dims", "message"),
    [
        ({"school": ["a", "b"]}, None, r"`coords` must be of axes that variables have, beta_dim_0; got 'school'"),
        ({"k": ["a"]}, {"beta": ["k"]}, r"each of the 2 entries along 'k'; got 1 labels"),
        ({}, {"gamma": ["k"]}, r"got \['k'\] of 'gamma': there are beta, mu"),
        ({}, {"mu": ["k"]}, r"got \['k'\] of 'mu': it has 0"),
        ({}, {"beta": ["draw"]}, r"chains and draws aside; got \['draw'\]"),
    ],
)
def test_labels_that_do_not_fit_are_refused(coords, dims, message):
    with pytest.raises(ValueError, match=message):
        draws().with_coords(coords, dims=dims)


def test_axes_of_one_name_have_one_length():
    given = jaxpsd.Draws({"a": jnp.zeros((5, 2)), "b": jnp.zeros((5, 3))})
    with pytest.raises(ValueError, match="'k' has 2 and 3"):
        given.with_coords({}, dims={"a": ["k"], "b": ["k"]})
