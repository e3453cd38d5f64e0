import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray

import jaxpsd
from jaxpsd.adapters.files import read

KEY = jax.random.key(0)
MU = np.random.default_rng(0).normal(size=(3, 200)).astype(np.float32)
BETA = np.random.default_rng(1).normal(size=(3, 200, 2)).astype(np.float32)


def logdensity(p):
    return -0.5 * (p["mu"] ** 2 + jnp.sum(p["beta"] ** 2))


def dataset(sign=1):
    return xarray.Dataset({
        "mu": (("chain", "draw"), sign * MU),
        # Dimensions in another order, as some tools leave them.
        "beta": (("beta_dim", "chain", "draw"), sign * np.moveaxis(BETA, 2, 0)),
    })  # fmt: skip


def inference_data():
    """ArviZ's own container, whichever version is installed."""
    arviz = pytest.importorskip("arviz")
    return arviz.from_dict({"posterior": {"mu": MU, "beta": BETA}}) if _is_new(arviz) else arviz.from_dict(
        posterior={"mu": MU, "beta": BETA}
    )  # fmt: skip


def _is_new(arviz):
    return not hasattr(arviz, "InferenceData")


CONTAINERS = {
    "arviz": inference_data,
    "tree": lambda: xarray.DataTree.from_dict({"posterior": dataset()}),
    "mapping": lambda: {"posterior": dataset()},
    "dataset": dataset,
}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", CONTAINERS)
def test_draws_come_with_chains_and_names(kind):
    target, samples = jaxpsd.from_arviz(CONTAINERS[kind](), logdensity)
    assert target is logdensity
    assert samples.num_chains == 3
    assert samples.names == ("beta[0]", "beta[1]", "mu")
    np.testing.assert_array_equal(samples.positions["beta"], BETA.reshape(-1, 2))
    np.testing.assert_array_equal(samples.positions["mu"], MU.reshape(-1))


def test_scores_come_from_a_group_of_their_own():
    tree = xarray.DataTree.from_dict({"posterior": dataset(), "scores": dataset(-1)})
    scores, samples = jaxpsd.from_arviz(tree)
    psd = jaxpsd.PSD(2)
    np.testing.assert_allclose(psd(scores, samples), psd(logdensity, samples), rtol=1e-5)


def test_variables_can_be_chosen():
    _, samples = jaxpsd.from_arviz(dataset(), lambda p: -0.5 * p["mu"] ** 2, var_names=["mu"])
    assert samples.names == ("mu",)


def test_files_of_arviz_are_read(tmp_path):
    pytest.importorskip("h5netcdf")
    tree = xarray.DataTree.from_dict({"posterior": dataset(), "scores": dataset(-1)})
    tree.to_netcdf(tmp_path / "x.nc", engine="h5netcdf")
    found = read(tmp_path / "x.nc")
    assert found.chains
    np.testing.assert_array_equal(found.samples["mu"], MU)
    np.testing.assert_array_equal(found.scores["mu"], -MU)


@pytest.mark.slow
def test_a_report_goes_beside_a_summary():
    _, samples = jaxpsd.from_arviz(dataset(), logdensity)
    report = jaxpsd.diagnose(KEY, logdensity, samples, num_replicates=100)
    summary = report.to_arviz()
    assert summary["beta"].dims == ("metric", "beta_dim_0")
    ratio = summary["beta"].sel(metric="sd_ratio")
    np.testing.assert_allclose(ratio, np.asarray(report.moments.errors.scale)[:2], rtol=1e-5)
    np.testing.assert_allclose(summary["mu"].sel(metric="r_hat"), report.r_hat[2])
    np.testing.assert_allclose(summary["mu"].sel(metric="mean_off"), report.moments.errors.mean_off[2])
    np.testing.assert_allclose(summary["mu"].sel(metric="mean_off_se"), report.moments.errors.mean_off_se[2])


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ({"prior": dataset()}, {}, "no group 'posterior'"),
        ({"posterior": dataset()}, {}, "log-density"),
        (dataset(), {}, "log-density"),
        ({"posterior": dataset()}, {"target": logdensity, "var_names": ["tau"]}, "no variable 'tau'"),
        ({"posterior": dataset(), "scores": dataset()[["mu"]]}, {}, "'scores' has no variable 'beta'"),
        ({"posterior": dataset().isel(chain=0)}, {"target": logdensity}, "chain and draw"),
        ({"posterior": dataset()[[]]}, {"target": logdensity}, "chain"),
        (3, {"target": logdensity}, "no group"),
        (MU, {"target": logdensity}, "no group 'posterior' in ndarray; `data` must be an InferenceData"),
        (jnp.asarray(MU), {"target": logdensity}, "`data` must be an InferenceData"),
        ({"posterior": {"mu": MU}}, {"target": logdensity}, "must be a Dataset; got dict"),
    ],
)
def test_mistakes_are_named(data, options, message):
    with pytest.raises(ValueError, match=message):
        jaxpsd.from_arviz(data, **options)


def test_discrete_variables_have_no_score():
    data = {"posterior": xarray.Dataset({"k": (("chain", "draw"), np.ones((2, 5), int))})}
    with pytest.raises(TypeError, match="floating point"):
        jaxpsd.from_arviz(data, logdensity)
