"""Real inference, small: right draws pass and wrong ones fail, in unconstrained space."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoLaplaceApproximation, AutoMultivariateNormal, AutoNormal
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import initialize_model

import jaxpsd

KEY = jax.random.key(0)
EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], np.float32)
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], np.float32)


def constrained(y=None):
    """Positive, bounded, simplex, ordered and correlation parameters."""
    scale = numpyro.sample("scale", dist.LogNormal(0, 0.5))
    numpyro.sample("share", dist.Beta(4, 4))
    numpyro.sample("simplex", dist.Dirichlet(jnp.full(3, 8.0)))
    numpyro.sample("corr", dist.LKJCholesky(2, 8.0))
    numpyro.sample("cuts", dist.TransformedDistribution(
        dist.Normal(0, 1).expand([2]).to_event(1), dist.transforms.OrderedTransform()))  # fmt: skip
    numpyro.deterministic("double", 2 * scale)
    numpyro.sample("y", dist.Normal(0, scale), obs=y)


def eight_schools(y=None):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfNormal(5))
    with numpyro.plate("schools", 8), numpyro.handlers.reparam(config={"theta": LocScaleReparam(0)}):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, ERRORS), obs=y)


def regression(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0, 10).expand([x.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    numpyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)


@pytest.fixture(scope="module")
def data():
    """Covariates with correlation 0.98."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 3)) @ np.linalg.cholesky(0.02 * np.eye(3) + 0.98).T
    return jnp.asarray(x, jnp.float32), jnp.asarray(x.sum(axis=1) + rng.normal(size=100), jnp.float32)


def run(model, *args, num_samples=1000, num_chains=2, **options):
    mcmc = MCMC(
        NUTS(model, **options), num_warmup=500, num_samples=num_samples, num_chains=num_chains,
        chain_method="sequential", progress_bar=False,
    )  # fmt: skip
    mcmc.run(KEY, *args)
    return mcmc


@pytest.fixture(scope="module")
def constrained_run():
    return run(constrained, 0.7)


def test_the_log_density_is_numpyros_potential(constrained_run):
    logdensity, samples = jaxpsd.from_numpyro(constrained_run)
    potential = jax.jit(initialize_model(KEY, constrained, model_args=(0.7,)).potential_fn)
    for k in (0, 700):
        position = jax.tree.map(lambda leaf, k=k: leaf[k], samples.positions)
        assert float(logdensity(position)) == pytest.approx(-float(potential(position)), rel=1e-5)


def test_constrained_parameters_are_mapped_and_named(constrained_run):
    _, samples = jaxpsd.from_numpyro(constrained_run)
    assert samples.num_chains == 2
    assert "double" not in samples.positions
    assert {"log scale", "logit share"} <= set(samples.names)
    drawn = constrained_run.get_samples(group_by_chain=True)
    expected = np.log(drawn["scale"]).reshape(-1)
    np.testing.assert_allclose(samples.positions["scale"], expected, rtol=1e-4, atol=1e-5)
    assert samples.positions["simplex"].shape == (2000, 2)
    assert samples.positions["corr"].shape == (2000, 1)


@pytest.mark.slow
def test_right_draws_pass_and_wrong_ones_fail(constrained_run):
    logdensity, samples = jaxpsd.from_numpyro(constrained_run)
    assert not jaxpsd.adaptive_test(KEY, logdensity, samples).reject
    wrong = jaxpsd.Draws(samples.positions | {"scale": 1.3 * samples.positions["scale"]}, 2, samples.labels)
    table = jaxpsd.moment_table(KEY, logdensity, wrong)
    assert table.labels[0] == "log scale²"


@pytest.mark.slow
def test_eight_schools_by_nuts_pass_and_by_a_mean_field_fail():
    logdensity, samples = jaxpsd.from_numpyro(run(eight_schools, EFFECTS, target_accept_prob=0.95))
    assert "theta" not in samples.positions
    assert "theta_decentered" in samples.positions
    assert not jaxpsd.diagnose(KEY, logdensity, samples).reject
    svi = SVI(eight_schools, AutoNormal(eight_schools), numpyro.optim.Adam(0.01), Trace_ELBO(num_particles=10))
    fit = svi.run(KEY, 4000, EFFECTS, progress_bar=False)
    logdensity, samples = jaxpsd.from_numpyro_svi(KEY, svi, fit, EFFECTS, num_samples=4000)
    report = jaxpsd.diagnose(KEY, logdensity, samples)
    assert report.reject
    assert any(word in report.verdict for word in ("standard deviation of", "correlation of"))


@pytest.mark.slow
@pytest.mark.parametrize("guide_of", [AutoNormal, AutoMultivariateNormal, AutoLaplaceApproximation])
def test_a_correlated_regression_is_told_from_its_mean_field(guide_of, data):
    svi = SVI(regression, guide_of(regression), numpyro.optim.Adam(0.02), Trace_ELBO(num_particles=10))
    fit = svi.run(KEY, 3000, *data, progress_bar=False)
    logdensity, samples = jaxpsd.from_numpyro_svi(KEY, svi, fit, *data, num_samples=2000)
    report = jaxpsd.diagnose(KEY, logdensity, samples)
    ratio = np.asarray(report.moments.errors.scale)[:3]
    if guide_of is AutoNormal:
        assert report.reject
        assert any(word in report.verdict for word in ("standard deviation", "correlation"))
        assert (ratio < 0.5).all()
    else:
        np.testing.assert_allclose(ratio, 1, atol=0.15)


@pytest.mark.slow
def test_mean_field_draws_are_corrected_to_those_of_nuts(data):
    svi = SVI(regression, AutoNormal(regression), numpyro.optim.Adam(0.02), Trace_ELBO(num_particles=10))
    fit = svi.run(KEY, 3000, *data, progress_bar=False)
    logdensity, samples = jaxpsd.from_numpyro_svi(KEY, svi, fit, *data, num_samples=4000)
    mean = jaxpsd.corrected_expectation(lambda p: p["beta"], logdensity, samples).value
    square = jaxpsd.corrected_expectation(lambda p: (p["beta"] - mean) ** 2, logdensity, samples).value
    _, right = jaxpsd.from_numpyro(run(regression, *data, num_samples=5000))
    truth = np.std(right.positions["beta"], axis=0)
    uncorrected = np.std(samples.positions["beta"], axis=0)
    assert (uncorrected < 0.5 * truth).all()
    np.testing.assert_allclose(np.sqrt(square), truth, rtol=0.05)


def test_a_guide_written_by_hand_and_params_will_do():
    def model():
        numpyro.sample("mu", dist.Normal(0, 1))

    def guide():
        scale = numpyro.param("scale", 1.0, constraint=dist.constraints.positive)
        numpyro.sample("mu", dist.Normal(0, scale))

    svi = SVI(model, guide, numpyro.optim.Adam(0.1), Trace_ELBO())
    for params, wrong in (({"scale": jnp.asarray(1.0)}, False), ({"scale": jnp.asarray(1.5)}, True)):
        logdensity, samples = jaxpsd.from_numpyro_svi(KEY, svi, params, num_samples=1000)
        assert bool(jaxpsd.adaptive_test(KEY, logdensity, samples).reject) == wrong
    state = svi.init(KEY)
    assert jaxpsd.from_numpyro_svi(KEY, svi, state, num_samples=10)[1].num_draws == 10
    with pytest.raises(TypeError, match="svi_state_or_params"):
        jaxpsd.from_numpyro_svi(KEY, svi, 3)


def test_what_has_no_score_is_refused():
    def discrete():
        numpyro.sample("mu", dist.Normal(0, 1))
        numpyro.sample("z", dist.Bernoulli(0.5))

    def subsampled(y):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("n", 8, subsample_size=2) as chosen:
            numpyro.sample("y", dist.Normal(mu, 1), obs=y[chosen])

    from numpyro.infer import Predictive

    class _Fake(MCMC):
        def get_samples(self, group_by_chain=False):
            return {"mu": jnp.zeros((1, 5)), "z": jnp.zeros((1, 5), int)}

        def get_extra_fields(self, group_by_chain=False):
            return {}

    fake = _Fake(NUTS(discrete), num_warmup=1, num_samples=1)
    with pytest.raises(ValueError, match="'z' is discrete"):
        jaxpsd.from_numpyro(fake)
    fake = _Fake(NUTS(subsampled), num_warmup=1, num_samples=1)
    with pytest.raises(ValueError, match="takes 2 of 8"):
        jaxpsd.from_numpyro(fake, EFFECTS)
    with pytest.raises(ValueError, match="potential"):
        jaxpsd.from_numpyro(_Fake(NUTS(potential_fn=lambda z: 0.0), num_warmup=1, num_samples=1))
    with pytest.raises(TypeError, match="MCMC"):
        jaxpsd.from_numpyro(Predictive)
    with pytest.raises(TypeError, match="SVI"):
        jaxpsd.from_numpyro_svi(KEY, fake, {})


def test_divergences_and_kinds_are_known(constrained_run):
    _, samples = jaxpsd.from_numpyro(constrained_run)
    diverging = int(constrained_run.get_extra_fields()["diverging"].sum())
    assert (samples.origin.kind, samples.origin.library, samples.origin.divergences) == ("mcmc", "NumPyro", diverging)


@pytest.mark.parametrize(
    ("guide_of", "kind"), [(AutoNormal, "variational"), (AutoLaplaceApproximation, "laplace"), (None, "variational")]
)
def test_the_density_of_a_guide_is_that_of_its_unconstrained_draws(guide_of, kind):
    def model():
        numpyro.sample("mu", dist.Normal(0, 1))
        numpyro.sample("tau", dist.HalfNormal(1))

    def by_hand():
        numpyro.sample("mu", dist.Normal(0.1, 2))
        numpyro.sample("tau", dist.LogNormal(0.2, 0.5))

    guide = by_hand if guide_of is None else guide_of(model)
    svi = SVI(model, guide, numpyro.optim.Adam(0.01), Trace_ELBO())
    fit = svi.run(KEY, 20, progress_bar=False)
    _, (samples, log_q) = jaxpsd.from_numpyro_svi(KEY, svi, fit, num_samples=50, return_log_q=True)
    assert samples.origin.kind == kind
    x = np.stack([samples.positions["mu"], samples.positions["tau"]], axis=1)
    # All are normal in unconstrained space.
    if guide_of is None:
        q = dist.Normal(jnp.array([0.1, 0.2]), jnp.array([2.0, 0.5])).to_event(1)
    elif guide_of is AutoNormal:
        loc, scale = ([fit.params[f"{name}_auto_{what}"] for name in ("mu", "tau")] for what in ("loc", "scale"))
        q = dist.Normal(jnp.stack(loc), jnp.stack(scale)).to_event(1)
    else:
        q = guide.get_posterior(fit.params)
    np.testing.assert_allclose(log_q, jax.jit(q.log_prob)(x), rtol=1e-3, atol=1e-3)


def plates():
    with numpyro.plate("school", 3):
        numpyro.sample("tau", dist.HalfNormal(1))
        numpyro.sample("share", dist.Dirichlet(jnp.ones(4)))
        with numpyro.plate("year", 2, dim=-2):
            numpyro.sample("effect", dist.Normal(0, 1))


@pytest.fixture(scope="module")
def plates_run():
    return run(plates, num_samples=20)


@pytest.mark.filterwarnings("default")
def test_plates_are_axes_as_in_arviz(plates_run):
    arviz = pytest.importorskip("arviz")
    posterior = arviz.from_numpyro(plates_run)["posterior"]
    for name, values in jaxpsd.from_numpyro(plates_run)[1].to_arviz().items():
        assert values.dims == posterior[name].dims


def test_a_plate_is_not_taken_for_the_axis_of_draws():
    def model():
        with numpyro.plate("draw", 2):
            numpyro.sample("x", dist.Normal(0, 1))

    svi = SVI(model, AutoNormal(model), numpyro.optim.Adam(0.1), Trace_ELBO())
    _, samples = jaxpsd.from_numpyro_svi(KEY, svi, svi.init(KEY), num_samples=5)
    assert samples.to_arviz()["x"].dims == ("chain", "draw", "x_dim_0")


def test_coordinates_of_plates_can_be_added(plates_run):
    _, samples = jaxpsd.from_numpyro(plates_run)
    labelled = samples.with_coords({"school": ["a", "b", "c"], "year": [2001, 2002]})
    assert labelled.names[:2] == ("effect[2001, a]", "effect[2001, b]")
    assert "log tau[c]" in labelled.names
    assert "unconstrained share[b, 2]" in labelled.names
    assert labelled.to_arviz()["effect"].sel(school="b", year=2002).shape == (2, 20)
