"""What users are told: each mistake has a message that says what to do."""

from typing import Any, NamedTuple

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxpsd
from jaxpsd._core.checks import check_fits, check_samples, readable_bytes


def logdensity(x):
    return -0.5 * jnp.sum(x**2)


PSD = jaxpsd.PSD(2)
METHODS = ["__call__", "v_statistic", "u_statistic", "features", "gram"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("samples", "error", "message"),
    [
        (np.zeros(5), ValueError, r"must be \(draws, dim\) or .* got shape \(5,\).*`samples\[\.\.\., None\]`"),
        (np.float64(1.0), ValueError, r"got shape \(\)"),
        (np.zeros((2, 3, 4, 5)), ValueError, r"got shape \(2, 3, 4, 5\)"),
        (np.zeros((0, 3)), ValueError, "holds no draws"),
        (np.zeros((4, 0)), ValueError, "without coordinates"),
        ({}, ValueError, "holds no arrays"),
        (np.zeros((4, 2), int), TypeError, r"must be floating point; got int32.*astype\(float\)"),
        (np.zeros((4, 2), bool), TypeError, "got bool"),
        (np.zeros((4, 2), complex), TypeError, "got complex64"),
        (np.array([["a", "b"]]), TypeError, "must be an array of floats"),
        ("samples", TypeError, "got str"),
        ([[1.0, 2.0], [3.0, 4.0]], ValueError, r"`samples\[0\]\[0\]` must be \(draws, …\).*jnp.asarray"),
        ({"a": np.zeros(4), "b": np.zeros((5, 2))}, ValueError, r"share their leading axes.*\['a'\]: \(4,\)"),
    ],
)
def test_samples_of_the_wrong_kind(method, samples, error, message):
    with pytest.raises(error, match=message):
        getattr(PSD, method)(logdensity, samples)


def test_the_chain_axis_can_be_insisted_on():
    with pytest.raises(ValueError, match=r"must be \(chains, draws, dim\); got shape \(4, 2\)"):
        PSD(logdensity, np.zeros((4, 2)), chains=True)
    with pytest.raises(ValueError, match=r"must be \(draws, dim\); got shape \(3, 4, 2\)"):
        PSD(logdensity, np.zeros((3, 4, 2)), chains=False)
    with pytest.raises(ValueError, match=r"`samples\['a'\]` must be \(chains, draws, …\)"):
        PSD(logdensity, {"a": np.zeros(4)}, chains=True)


def test_chains_are_a_matter_of_yes_or_no():
    with pytest.raises(ValueError, match="`chains` must be True, False or None"):
        PSD(logdensity, np.zeros((4, 5, 2)), chains=4)


class Unreadable:
    """An array of another library, that cannot be had as it is."""

    shape, dtype, ndim = (4, 2), np.dtype(float), 2

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("call detach() first")


def test_arrays_that_cannot_be_read():
    with pytest.raises(TypeError, match=r"`samples` must be an array of floats; got Unreadable: call detach\(\) first"):
        PSD(logdensity, Unreadable())
    with pytest.raises(TypeError, match=r"`weights` must be real numbers; got Unreadable: call detach\(\) first"):
        PSD(logdensity, np.ones((4, 2)), Unreadable())
    x = jnp.ones((4, 2)) + 1
    x.delete()
    with pytest.raises(ValueError, match="`samples` has been deleted"):
        PSD(logdensity, x)
    with pytest.raises(ValueError, match="`target` has been deleted"):
        PSD(x, np.ones((4, 2)))


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (np.ma.masked_array([1.0, 2.0], [True, False]), TypeError, "`c` is a masked array"),
        (np.array("a"), TypeError, "`c` must be real numbers; got an array of <U1"),
        (np.array([object()]), TypeError, "`c` must be real numbers"),
        (jax.random.key(0), TypeError, "`c` must be real numbers; got an array of key"),
        (np.bool_(True), ValueError, "`c` must be a positive number"),
        ({1.0}, ValueError, "`c` must be a positive number"),
    ],
)
def test_parameters_that_are_no_positive_numbers(value, error, message):
    with pytest.raises(error, match=message):
        jaxpsd.IMQ(value)


@pytest.mark.parametrize(
    ("field", "value", "error", "message"),
    [
        ("labels", 3, TypeError, "`labels` must be strings, one for each coordinate, or None; got 3"),
        ("labels", (1, 2), TypeError, "`labels` must be strings"),
        ("labels", "ab", TypeError, "`labels` must be strings"),
        ("labels", ("a",), ValueError, "2 coordinates and 1 labels"),
        ("num_chains", True, ValueError, "`num_chains` must be an integer of at least 1; got True"),
        ("num_chains", (2,), ValueError, "`num_chains` must be an integer of at least 1"),
        ("num_chains", 3, ValueError, "4 draws, which are not 3 chains"),
    ],
)
def test_draws_of_the_wrong_kind(field, value, error, message):
    draws = jaxpsd.Draws(np.ones((4, 2)))
    # The types of fields are checked when they are made, but in the tests only.
    object.__setattr__(draws, field, value)
    with pytest.raises(error, match=message):
        PSD(logdensity, draws)


def test_leaves_without_coordinates_change_nothing():
    x = np.random.default_rng(0).normal(size=(2, 20, 2)).astype(np.float32)
    tree = {"a": np.ones((2, 20, 0)), "b": x}
    target = lambda p: logdensity(p["b"])  # noqa: E731
    np.testing.assert_allclose(PSD(target, tree, chains=True), PSD(logdensity, x), rtol=1e-6)
    scores = jaxpsd.score(target, tree, chains=True)
    assert jax.tree.map(jnp.shape, scores) == {"a": (2, 20, 0), "b": (2, 20, 2)}
    assert check_samples(tree, chains=True).between(0, 5).num_draws == 10


def test_foreign_byte_order_is_read():
    x = np.random.default_rng(0).normal(size=(20, 2))
    np.testing.assert_allclose(PSD(logdensity, x.astype(">f8")), PSD(logdensity, x), rtol=1e-6)


def test_the_dtype_is_that_of_the_samples():
    with jax.enable_x64(True):
        x = np.ones((100, 2), np.float32)
        for size in (50, 33):
            assert jaxpsd.PSD(2, block_size=size)(-x.astype(float), x).dtype == jnp.float32


def test_the_u_statistic_needs_two_draws():
    assert np.isfinite(PSD(logdensity, np.ones((1, 2))))
    with pytest.raises(ValueError, match="pairs of different draws; got a single draw"):
        PSD.u_statistic(logdensity, np.ones((1, 2)))


@pytest.mark.parametrize("order", [0, -1, 1.5, 2.0, "2", None, True])
def test_orders_that_are_not_positive_integers(order):
    with pytest.raises(ValueError, match="`order` must be an integer of at least 1"):
        jaxpsd.PSD(order)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"transform": "standardise"}, ValueError, "must be one of 'center', 'standardize', 'whiten'"),
        ({"transform": 3}, ValueError, "jaxpsd.Affine; got 3"),
        ({"form": "fast"}, ValueError, "`form` must be one of 'auto', 'primal', 'dual'; got 'fast'"),
        ({"form": None}, ValueError, "`form` must be one of"),
        ({"norm": "l3"}, ValueError, "`norm` must be one of 'l2', 'l1'"),
        ({"block_size": 0}, ValueError, "`block_size` must be an integer of at least 1"),
        ({"interactions": "no"}, TypeError, "`interactions` must be True or False"),
        ({"norm": "l1", "form": "dual"}, ValueError, "use form='primal'"),
    ],
)
def test_settings_that_do_not_exist(settings, error, message):
    with pytest.raises(error, match=message):
        jaxpsd.PSD(2, **settings)


def test_numpy_integers_are_integers():
    assert jaxpsd.PSD(np.int64(3)) == jaxpsd.PSD(3)


@pytest.mark.parametrize(
    ("penalty", "message"),
    [
        (np.ones(4), r"one entry for each degree, \(2,\), or for each monomial, \(5,\); got shape \(4,\)"),
        (np.array([1.0, -1.0]), "finite and positive"),
        (np.array([1.0, np.nan]), "finite and positive"),
    ],
)
def test_penalties_that_do_not_fit(penalty, message, normal_draws):
    x, s = normal_draws
    with pytest.raises(ValueError, match=message):
        jaxpsd.PSD(2, penalty=penalty)(s[:, :2], x[:, :2])


def test_a_penalty_for_each_monomial_needs_the_primal_form(normal_draws):
    x, s = normal_draws
    with pytest.raises(ValueError, match="one weight a degree and none a monomial"):
        jaxpsd.PSD(2, penalty=np.ones(9), form="dual")(s, x)


def test_the_l1_norm_has_no_pairs(normal_draws):
    x, s = normal_draws
    psd = jaxpsd.PSD(2, norm="l1")
    with pytest.raises(ValueError, match="no U-statistic for the L1 norm"):
        psd.u_statistic(s, x)
    with pytest.raises(ValueError, match="no Gram matrix for the L1 norm"):
        psd.gram(s, x)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(3), r"must have shape \(4,\), one for each draw; got \(3,\)"),
        (np.array([1.0, -1.0, 1.0, 1.0]), r"not negative; draw 1 has -1"),
        (np.array([1.0, 1.0, np.nan, 1.0]), "draw 2 has nan"),
        (np.zeros(4), "sum to zero"),
    ],
)
def test_weights_that_are_none(weights, message):
    with pytest.raises(ValueError, match=message):
        PSD(logdensity, np.ones((4, 2)), weights)


@pytest.mark.parametrize("scale", [1e-50, 1e-40, 1e37, 1e39])
def test_weights_of_any_size_are_normalised(scale, normal_draws):
    x, s = normal_draws
    np.testing.assert_allclose(PSD(s, x, np.full(200, scale)), PSD(s, x), rtol=1e-5)
    np.testing.assert_allclose(PSD(s, x, [3] * 200), PSD(s, x), rtol=1e-5)


def test_traced_weights_do_not_overflow(normal_draws):
    x, s = normal_draws
    np.testing.assert_allclose(jax.jit(PSD)(s, x, jnp.full(200, 1e37)), PSD(s, x), rtol=1e-5)


def test_weights_of_chains_are_counted_by_chain():
    with pytest.raises(ValueError, match=r"must have shape \(6,\) or \(2, 3\)"):
        PSD(logdensity, np.ones((2, 3, 1)), np.ones((3, 2)))
    with pytest.raises(ValueError, match="draw 1 of chain 1 has -2"):
        PSD(logdensity, np.ones((2, 3, 1)), np.array([[1.0, 1, 1], [1, -2, 1]]))


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (np.zeros((4, 3)), r"got \(4, 3\) for samples of shape \(4, 2\)"),
        (np.zeros((2, 2, 2)), r"got \(2, 2, 2\) for samples"),
        ({"a": np.zeros((4, 2))}, "scores in the structure of `samples`"),
        (None, "scores in the structure of `samples`"),
    ],
)
def test_scores_of_another_structure(scores, message):
    with pytest.raises(ValueError, match=message):
        PSD(scores, np.ones((4, 2)))


def test_integer_scores():
    with pytest.raises(TypeError, match="`target` must be floating point; got int32"):
        PSD(np.zeros((4, 2), int), np.ones((4, 2)))


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda x: -(x**2), TypeError, r"must return a scalar .* returned shape \(2,\)"),
        (lambda x: None, TypeError, "returned NoneType"),
        (lambda x: "a", TypeError, "returned str"),
        (lambda x: object(), TypeError, "returned object"),
        (lambda x: (part for part in x), TypeError, "returned generator"),
        (lambda x: np.array(["a"]), TypeError, "returned ndarray"),
        (lambda x: (jnp.sum(x), {}), TypeError, "returned tuple"),
        (lambda x: jnp.argmax(x), TypeError, "must return a floating-point number; it returned int32"),
    ],
)
def test_functions_that_are_no_log_density(function, error, message):
    for call in (lambda: PSD(function, np.ones((4, 2))), lambda: jaxpsd.score(function, np.ones((4, 2)))):
        with pytest.raises(error, match=message):
            call()


def test_a_log_density_that_cannot_be_traced_is_told_about_scores():
    with pytest.raises(jax.errors.TracerArrayConversionError) as caught:
        PSD(lambda x: float(np.sum(np.asarray(x))), np.ones((4, 2)))
    assert "pass the scores at the draws" in "".join(caught.value.__notes__)


def test_a_log_density_that_fails_is_told_what_it_was_called_with():
    with pytest.raises(KeyError) as caught:
        PSD(lambda x: {}["missing"], np.ones((4, 2)))
    assert "one position, of shape (2,)" in "".join(caught.value.__notes__)


def test_a_constant_log_density_has_score_zero():
    assert (jaxpsd.score(lambda x: 1.5, np.ones((4, 2))) == 0).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("order", "form", "bad"), [(1, "primal", np.nan), (2, "dual", np.inf), (3, "primal", -np.inf)])
def test_values_that_are_not_finite_are_named(method, order, form, bad):
    x = np.ones((2, 5, 3))
    x[1, 2, 1] = bad
    psd = jaxpsd.PSD(order, form=form)
    with pytest.raises(ValueError, match=rf"`samples` is not finite at draw 2 of chain 1, coordinate 1: {bad}"):
        getattr(psd, method)(np.zeros_like(x), x)
    with pytest.raises(ValueError, match=rf"score ∇log p is not finite at draw 2 of chain 1, coordinate 1: {bad}"):
        getattr(psd, method)(x, np.ones_like(x))


def test_coordinates_of_a_pytree_are_named_by_their_path():
    x = {"mu": np.ones(5), "theta": {"beta": np.ones((5, 2, 3))}}
    x["theta"]["beta"][3, 1, 2] = np.nan
    with pytest.raises(ValueError, match=r"draw 3, `theta\.beta\[1, 2\]`: nan"):
        PSD(lambda p: -(p["mu"] ** 2) - jnp.sum(p["theta"]["beta"] ** 2), x)


def test_scores_outside_the_support_are_named():
    with pytest.raises(ValueError, match=r"score .* not finite at draw 1, coordinate 0.*outside the support"):
        jaxpsd.score(lambda x: jnp.sum(jnp.sqrt(x)), np.array([[1.0], [0.0]]))
    with pytest.raises(ValueError, match="not finite at draw 1, coordinate 0"):
        PSD(lambda x: jnp.sum(jnp.sqrt(x)), np.array([[1.0], [0.0]]))


def test_overflow_is_told_from_bad_input():
    x = np.full((5, 2), 1e15, np.float32)
    with pytest.raises(FloatingPointError, match=r"not finite in float32.*transform='standardize'"):
        jaxpsd.PSD(4)(logdensity, x)


def test_traced_calls_return_nan_where_they_cannot_raise():
    x = jnp.ones((5, 2)).at[3, 0].set(jnp.nan)
    for order in (1, 2):
        psd = jaxpsd.PSD(order)
        assert jnp.isnan(jax.jit(psd)(-jnp.ones((5, 2)), x))
        assert jnp.isnan(jax.jit(psd.u_statistic)(-jnp.ones((5, 2)), x))


def test_heavy_tails_are_noticed():
    student = jax.random.t(jax.random.key(0), 2.0, (1000, 5))
    outlier = jax.random.normal(jax.random.key(0), (1000, 5)).at[500, 2].set(40.0)
    for call, x, scores in (
        (jaxpsd.PSD(4), student, -3 * student / (2 + student**2)),
        (jaxpsd.PSD(2), outlier, -outlier),
        (jaxpsd.PSD(2, form="dual"), outlier, -outlier),
        (jaxpsd.PSD(2, interactions=False), outlier, -outlier),
        (jaxpsd.PSD(2).u_statistic, outlier, -outlier),
        (jaxpsd.PSD(2).v_statistic, outlier, -outlier),
    ):
        with pytest.warns(jaxpsd.HeavyTailsWarning, match=r"5 of 1,000 draws carry about \d+% of Σ‖τ‖²") as caught:
            call(scores, x)
        assert caught[0].filename == __file__


def test_an_outlier_is_noticed_wherever_it_stands():
    x = np.random.default_rng(0).normal(size=(4, 5000, 2)).astype(np.float32)
    x[3, 1234] = 1e4
    for size in (None, 700):
        with pytest.warns(jaxpsd.HeavyTailsWarning):
            jaxpsd.PSD(2, block_size=size)(logdensity, x)


def test_the_warning_of_heavy_tails_is_rare_for_a_gaussian():
    for seed in range(20):
        x = jax.random.normal(jax.random.key(seed), (1000, 3))
        for order in (1, 2, 3, 4):
            jaxpsd.PSD(order)(-x, x)


def test_sixteen_bits_are_widened():
    x = jax.random.normal(jax.random.key(0), (50, 2)).astype(jnp.bfloat16)
    value = PSD(logdensity, x)
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, PSD(logdensity, x.astype(jnp.float32)))


def test_arrays_that_would_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"A thing would be 1,000,000 × 1,000,000, 3,725\.3 GiB in float32"):
        check_fits((10**6, 10**6), jnp.float32, "A thing", "Do without.")
    assert readable_bytes(3 * 2**20) == "3.0 MiB"


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 6), st.integers(1, 3)),
        elements=st.floats(-3, 3, width=32) | st.sampled_from([np.nan, np.inf]),
    ),
    st.integers(1, 4),
)
def test_any_array_gives_a_finite_number_or_a_clear_error(x, order):
    psd = jaxpsd.PSD(order)
    if np.isfinite(x).all():
        assert np.isfinite(psd(-x, x))
        assert psd(-x, x) >= 0
    else:
        with pytest.raises(ValueError, match="not finite at draw"):
            psd(np.zeros_like(x), x)


def test_draws_take_the_shape_of_positions_in_a_state():
    class State(NamedTuple):
        position: Any
        step: Any

    state = State({"a": np.ones((2, 3))}, np.zeros(2))
    assert check_samples(state, chains=True).like(state)["a"].shape == (2, 3)


def test_draws_know_their_chains_and_coordinates():
    draws = check_samples({"a": np.ones((2, 3)), "b": np.ones((2, 3, 2))}, chains=True)
    assert (draws.num_draws, draws.num_chains, draws.dim) == (6, 2, 3)
    assert [draws.coordinate(i) for i in range(3)] == ["`a`", "`b[0]`", "`b[1]`"]
    assert check_samples(draws) is draws
