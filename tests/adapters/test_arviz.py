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
    return int(arviz.__version__.partition(".")[0]) >= 1


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
    assert found.samples.num_chains == 3
    np.testing.assert_array_equal(found.samples["mu"], MU)
    np.testing.assert_array_equal(found.scores["mu"], -MU)


def labelled():
    """With names of an axis and of its entries, and what a sampler says of itself."""
    data = (
        dataset().rename(beta_dim="school").assign_coords(chain=range(3), draw=range(200), school=["Choate", "Exeter"])
    )
    diverging = np.zeros((3, 200), bool)
    diverging[1, :7] = True
    stats = xarray.Dataset({
        "diverging": (("chain", "draw"), diverging),
        "acceptance_rate": (("chain", "draw"), np.full((3, 200), 0.8)),
    })  # fmt: skip
    data.attrs["inference_library"] = "pymc"
    return xarray.DataTree.from_dict({"posterior": data, "sample_stats": stats})


def test_coordinates_come_in_and_go_out():
    tree = labelled()
    _, samples = jaxpsd.from_arviz(tree, logdensity)
    assert samples.names == ("beta[Choate]", "beta[Exeter]", "mu")
    xarray.testing.assert_equal(samples.to_arviz(), tree["posterior"].dataset.transpose("chain", "draw", ...))


def test_divergences_come_with_the_draws():
    _, samples = jaxpsd.from_arviz(labelled(), logdensity)
    assert samples.origin == jaxpsd.Origin("mcmc", "PyMC", 7, pytest.approx(0.8))
    assert jaxpsd.from_arviz(dataset(), logdensity)[1].origin == jaxpsd.Origin()
    tree = xarray.DataTree.from_dict({"posterior": dataset(), "sample_stats": dataset()[["mu"]].rename(mu="lp")})
    assert jaxpsd.from_arviz(tree, logdensity)[1].origin == jaxpsd.Origin()


@pytest.mark.filterwarnings("default")
def test_a_report_goes_beside_a_summary_row_by_row():
    arviz = pytest.importorskip("arviz")
    _, samples = jaxpsd.from_arviz(labelled(), logdensity)
    report = jaxpsd.diagnose(KEY, logdensity, samples, num_replicates=100)
    assert report.verdict.startswith("7 transitions of 600 diverged")
    dim = "summary" if _is_new(arviz) else "metric"
    summary = arviz.summary(samples.to_arviz(), fmt="xarray", round_to="none")
    both = xarray.concat([summary, report.to_arviz(dim)], dim, join="exact")
    assert set(both.data_vars) == set(summary.data_vars) == {"beta", "mu"}
    ratio = both["beta"].sel({dim: "sd_ratio"})
    np.testing.assert_allclose(ratio, np.asarray(report.moments.errors.scale)[:2], rtol=1e-5)
    # R-hat is there twice, and the same.
    np.testing.assert_allclose(*both["beta"].sel({dim: "r_hat", "school": "Exeter"}), atol=0.01)
    assert tuple(arviz.summary(samples.to_arviz()).index) == report.moments.names == samples.names
    assert report.to_arviz()["mu"].attrs["names"] == ["mu"]
    np.testing.assert_allclose(both["mu"].sel({dim: "mean_off"}), report.moments.errors.mean_off[2])
    np.testing.assert_allclose(both["mu"].sel({dim: "mean_off_se"}), report.moments.errors.mean_off_se[2])


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
