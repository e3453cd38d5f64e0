"""What nutpie stores, from a file that it wrote; and nutpie itself, where it is installed."""

from pathlib import Path

import jax
import numpy as np
import pytest
import xarray
from eight_schools import NAMES, SCHOOLS, logdensity, pymc_model

import jaxpsd

KEY = jax.random.key(0)
FILE = Path(__file__).parents[1] / "data" / "nutpie.nc"


@pytest.fixture(scope="module")
def recorded():
    with xarray.open_datatree(FILE, engine="h5netcdf") as tree:
        yield tree.load()


def test_draws_come_with_names_chains_coordinates_and_divergences(recorded):
    _, samples = jaxpsd.from_nutpie(recorded)
    assert samples.names == NAMES
    assert samples.num_chains == 2
    assert samples.dimensions.dims == {"z": ("school",)}
    assert tuple(samples.dimensions.coords["school"]) == SCHOOLS
    assert (samples.origin.kind, samples.origin.library, samples.origin.divergences) == ("mcmc", "nutpie", 0)
    assert 0.5 < samples.origin.acceptance < 1
    posterior = recorded["posterior"]
    np.testing.assert_allclose(samples["tau"], np.log(posterior["tau"]), rtol=1e-6)
    np.testing.assert_array_equal(samples["z"], posterior["z"])


@pytest.mark.usefixtures("x64")
def test_stored_gradients_are_the_scores(recorded):
    scores, samples = jaxpsd.from_nutpie(recorded)
    expected = jaxpsd.score(logdensity, samples)
    for name in expected:
        np.testing.assert_allclose(scores[name], expected[name], rtol=1e-5, atol=1e-5)


def stats(names, dim, **variables):
    dims = ("chain", "draw", "unconstrained_parameter")
    x = np.arange(2 * 5 * dim, dtype=float).reshape(2, 5, dim)
    found = xarray.Dataset({"unconstrained_draw": (dims, x), "gradient": (dims, -x), **variables})
    return found if names is None else found.assign_coords(unconstrained_parameter=names)


def test_arrays_of_several_axes_are_put_together():
    names = ["w_0.0", "w_0.1", "w_1.0", "w_1.1", "share_logodds__", "x_0"]
    scores, samples = jaxpsd.from_nutpie({"sample_stats": stats(names, 6)})
    assert samples["w"].shape == (2, 5, 2, 2)
    assert samples["x"].shape == (2, 5, 1)
    assert samples.names == ("logit share", "w[0, 0]", "w[0, 1]", "w[1, 0]", "w[1, 1]", "x[0]")
    np.testing.assert_array_equal(scores["share"], -samples["share"])


def test_names_that_only_look_like_entries_stay_as_they_are():
    _, samples = jaxpsd.from_nutpie({"sample_stats": stats(["x_1", "x_3", "mu"], 3)})
    assert samples.names == ("mu", "x_1", "x_3")
    posterior = xarray.Dataset({"x_0": (("chain", "draw"), np.zeros((2, 5)))})
    _, samples = jaxpsd.from_nutpie({"sample_stats": stats(["x_0", "mu"], 2), "posterior": posterior})
    assert samples.names == ("mu", "x_0")


def test_parameters_without_names_are_an_array():
    scores, samples = jaxpsd.from_nutpie({"sample_stats": stats(None, 3)})
    assert samples.names == ("x[0]", "x[1]", "x[2]")
    np.testing.assert_array_equal(scores["x"], -samples["x"])


@pytest.mark.parametrize("missing", ["gradient", "unconstrained_draw"])
def test_what_was_not_stored_is_asked_for(missing):
    with pytest.raises(ValueError, match=rf"no {missing}.*store_unconstrained=True, store_gradient=True"):
        jaxpsd.from_nutpie({"sample_stats": stats(None, 3).drop_vars(missing)})
    with pytest.raises(ValueError, match="no group 'sample_stats'"):
        jaxpsd.from_nutpie({"posterior": stats(None, 3)})


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("x64")
def test_nutpie_itself():
    nutpie = pytest.importorskip("nutpie")
    pytest.importorskip("pymc")
    compiled = nutpie.compile_pymc_model(pymc_model())
    options = {"store_unconstrained": True, "store_gradient": True, "progress_bar": False, "seed": 1, "cores": 1}
    trace = nutpie.sample(compiled, draws=2000, tune=1000, chains=2, target_accept=0.95, **options)
    scores, samples = jaxpsd.from_nutpie(trace)
    assert samples.names == NAMES
    expected = jaxpsd.score(logdensity, samples)
    for name in expected:
        np.testing.assert_allclose(scores[name], expected[name], rtol=1e-5, atol=1e-5)
    assert not jaxpsd.diagnose(KEY, scores, samples).reject
    # Sampled without, it says what to do.
    with pytest.raises(ValueError, match="Sample again"):
        jaxpsd.from_nutpie(nutpie.sample(compiled, draws=50, tune=50, chains=2, progress_bar=False, cores=1))
