"""PyMC itself, where it is installed; and its names, which need nothing."""

from pathlib import Path

import jax
import numpy as np
import pytest
import xarray
from eight_schools import NAMES, SCHOOLS, logdensity, pymc_model

import jaxpsd
from jaxpsd.adapters.value_names import keeps_axes, label_of, split_value_name

KEY = jax.random.key(0)
FILE = Path(__file__).parents[1] / "data" / "pymc.nc"


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ("mu", ("mu", "mu")),
        ("my_tau_log__", ("my_tau", "log my_tau")),
        ("p_logodds__", ("p", "logit p")),
        ("p_interval__", ("p", "unconstrained p")),
        ("s_log_exp_m1__", ("s", "unconstrained s")),
        ("chol_cholesky-cov-packed__", ("chol", "unconstrained chol")),
        ("own_transform__", ("own_transform__", "own_transform__")),
        ("_log__", ("_log__", "_log__")),
    ],
)
def test_names_of_value_variables_are_understood(stored, expected):
    assert split_value_name(stored) == expected


def test_transforms_are_named_and_may_change_axes():
    assert [label_of("p", kind) for kind in ("", "log", "simplex")] == ["p", "log p", "unconstrained p"]
    assert keeps_axes("")
    assert not keeps_axes("simplex")


@pytest.fixture(scope="module")
def pymc():
    return pytest.importorskip("pymc")


@pytest.fixture(scope="module")
def recorded():
    with xarray.open_datatree(FILE, engine="h5netcdf") as tree:
        yield tree.load()


foreign = pytest.mark.filterwarnings("default")


@pytest.mark.slow
@foreign
@pytest.mark.usefixtures("pymc", "x64")
def test_the_log_density_is_that_of_the_posterior(recorded):
    found, samples = jaxpsd.from_pymc(pymc_model(), recorded)
    ours, theirs = (jax.vmap(fn)(dict(samples.positions)) for fn in (logdensity, found))
    assert np.std(ours - theirs) < 1e-5
    expected, scores = jaxpsd.score(logdensity, samples), jaxpsd.score(found, samples)
    for name in expected:
        np.testing.assert_allclose(scores[name], expected[name], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@foreign
@pytest.mark.usefixtures("pymc")
def test_draws_come_with_everything_and_precision_stays_as_it_was(recorded):
    found, samples = jaxpsd.from_pymc(pymc_model(), recorded)
    assert not jax.config.jax_enable_x64
    assert samples.names == NAMES
    assert samples.num_chains == 2
    assert samples.dimensions.dims == {"z": ("school",)}
    assert tuple(samples.dimensions.coords["school"]) == SCHOOLS
    assert (samples.origin.kind, samples.origin.library) == ("mcmc", "PyMC")
    assert samples.origin.divergences == int(recorded["sample_stats"]["diverging"].sum())
    mapped = {"posterior": recorded["posterior"].dataset.drop_vars("tau_log__")}
    np.testing.assert_allclose(jaxpsd.from_pymc(pymc_model(), mapped)[1]["tau"], samples["tau"], rtol=1e-6)
    alone, none = jaxpsd.from_pymc(pymc_model())
    assert none is None
    position = jax.tree.map(lambda leaf: leaf[0], samples.positions)
    assert float(alone(position)) == pytest.approx(float(found(position)), rel=1e-5)


@pytest.mark.slow
@foreign
@pytest.mark.usefixtures("x64")
def test_transforms_that_depend_on_parameters_or_change_axes(pymc):
    with pymc.Model(coords={"k": ["a", "b", "c"]}) as model:
        low = pymc.Normal("low", 0, 1)
        pymc.Uniform("u", lower=low, upper=low + 2)
        pymc.Dirichlet("share", np.full(3, 5.0), dims="k")
        pymc.ZeroSumNormal("zero", dims="k")
        ordered = pymc.distributions.transforms.ordered
        pymc.Normal("cuts", 0, 1, shape=2, transform=ordered, initval=[-1.0, 1.0])
        options = {"progressbar": False, "random_seed": 1, "cores": 1, "chains": 2}
        idata = pymc.sample(1000, tune=500, idata_kwargs={"include_transformed": True}, **options)
    logdensity, stored = jaxpsd.from_pymc(model, idata)
    untransformed = [name for name in idata.posterior.data_vars if not str(name).endswith("__")]
    _, mapped = jaxpsd.from_pymc(model, {"posterior": idata.posterior[untransformed]})
    assert list(stored) == list(mapped) == ["cuts", "low", "share", "u", "zero"]
    for name in stored:
        # Logarithms of small shares lose digits.
        np.testing.assert_allclose(mapped[name], stored[name], rtol=1e-5, atol=1e-5)
    assert stored["share"].shape == (2, 1000, 2)
    assert "unconstrained share[0]" in stored.names
    assert not jaxpsd.adaptive_test(KEY, logdensity, stored, num_replicates=200).reject


@pytest.mark.slow
@foreign
def test_nuts_passes_and_advi_fails(pymc):
    options = {"progressbar": False, "random_seed": 1}
    with pymc_model() as model:
        idata = pymc.sample(2000, tune=1000, chains=2, cores=1, target_accept=0.95, **options)
        approx = pymc.fit(10_000, **options)
    assert not jaxpsd.diagnose(KEY, *jaxpsd.from_pymc(model, idata)).reject
    logdensity, samples = jaxpsd.from_pymc_vi(KEY, approx, num_samples=4000)
    assert (samples.origin.kind, samples.num_draws, samples.names) == ("variational", 4000, NAMES)
    report = jaxpsd.diagnose(KEY, logdensity, samples)
    assert report.reject
    assert not any("step size" in line for line in report.advice)


@pytest.mark.slow
@foreign
def test_what_has_no_score_is_refused(pymc):
    with pymc.Model() as model:
        pymc.Normal("mu", 0, 1)
        pymc.Bernoulli("b", 0.5)
    with pytest.raises(ValueError, match="'b' is discrete"):
        jaxpsd.from_pymc(model)
    with pytest.raises(ValueError, match="no parameters"):
        jaxpsd.from_pymc(pymc.Model())
    with pytest.raises(TypeError, match=r"pymc\.Model; got dict"):
        jaxpsd.from_pymc({})
    with pytest.raises(TypeError, match=r"what pymc\.fit returned"):
        jaxpsd.from_pymc_vi(KEY, model)
    with pytest.raises(ValueError, match="no draws of 'mu', which the model samples"):
        jaxpsd.from_pymc(pymc_model(), {"posterior": xarray.Dataset({"x": (("chain", "draw"), np.zeros((2, 5)))})})
