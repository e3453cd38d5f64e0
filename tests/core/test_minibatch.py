import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import jaxpsd

KEY = jax.random.key(0)
DATA = jax.random.normal(jax.random.key(1), (1000, 2)) + 0.5


def log_prior(mu):
    return -0.5 * jnp.sum(mu**2) / 100


def log_likelihood(mu, batch):
    return -0.5 * jnp.sum((batch - mu[None]) ** 2)


def posterior(key, n, wrong=1.0):
    precision = 1 / 100 + len(DATA)
    mean = DATA.sum(axis=0) / precision
    return mean[None] + wrong * jax.random.normal(key, (n, 2)) / jnp.sqrt(precision)


def scores(key, samples, batch_size=50):
    return jaxpsd.minibatch_score(key, log_prior, log_likelihood, DATA, samples, batch_size=batch_size)


def test_estimates_have_the_mean_of_the_score():
    position = jnp.array([0.3, 0.7])
    many = scores(KEY, jnp.tile(position, (20_000, 1)))
    exact = jax.grad(lambda mu: log_prior(mu) + log_likelihood(mu, DATA))(position)
    error = np.std(many, axis=0) / len(many) ** 0.5
    # A correct estimate fails this once in 10⁴ runs.
    assert (np.abs(np.mean(many, axis=0) - exact) < scipy.stats.norm.isf(1e-4 / 4) * error).all()


def test_noise_is_fresh_for_every_draw():
    many = np.asarray(scores(KEY, jnp.tile(jnp.array([0.3, 0.7]), (5000, 1))))
    successive = np.corrcoef(many[1:, 0], many[:-1, 0])[0, 1]
    assert abs(successive) < scipy.stats.norm.isf(1e-4) / 5000**0.5


def test_structure_and_chains_are_kept():
    draws = {"mu": posterior(KEY, 12).reshape(3, 4, 2)}
    found = jaxpsd.minibatch_score(
        KEY, lambda p: log_prior(p["mu"]), lambda p, batch: log_likelihood(p["mu"], batch), DATA, draws,
        batch_size=10, chains=True,
    )  # fmt: skip
    assert found["mu"].shape == (3, 4, 2)


def test_the_squared_discrepancy_stays_without_bias():
    """U from noisy scores has the mean of U from exact ones."""
    psd = jaxpsd.PSD(2, transform=jaxpsd.Affine(DATA.mean(axis=0), jnp.full(2, len(DATA) ** -0.5)))
    samples = posterior(KEY, 200, wrong=1.2)
    exact = float(psd.u_statistic(lambda mu: log_prior(mu) + log_likelihood(mu, DATA), samples))
    keys = jax.random.split(KEY, 100)
    noisy = np.array([float(psd.u_statistic(scores(key, samples, 200), samples)) for key in keys])
    assert abs(noisy.mean() - exact) < scipy.stats.norm.isf(1e-4) * noisy.std() / 10


@pytest.mark.slow
def test_the_test_keeps_its_level_and_finds_errors():
    trials, rejected = 100, 0
    psd = jaxpsd.PSD(2, transform=jaxpsd.Affine(DATA.mean(axis=0), jnp.full(2, len(DATA) ** -0.5)))
    for key in jax.random.split(jax.random.key(5), trials):
        draw, batch, test = jax.random.split(key, 3)
        samples = posterior(draw, 300)
        rejected += bool(jaxpsd.gof_test(test, psd, scores(batch, samples), samples, method="rademacher").reject)
    low, high = scipy.stats.binom.interval(1 - 1e-4, trials, 0.05)
    assert low <= rejected <= high
    wrong = posterior(KEY, 5000, wrong=1.4)
    assert bool(jaxpsd.gof_test(KEY, psd, scores(KEY, wrong), wrong).reject)


def test_everything_may_lie_on_a_device_of_its_own():
    samples = posterior(KEY, 5)
    key, data, x = (jax.device_put(each, jax.devices()[k]) for k, each in enumerate((KEY, DATA, samples), 1))
    found = jaxpsd.minibatch_score(key, log_prior, log_likelihood, data, x, batch_size=50)
    np.testing.assert_allclose(found, scores(KEY, samples), rtol=1e-6)
    assert found.devices() == x.devices()


def test_draws_outside_the_support_are_noticed_by_the_value():
    inside = lambda mu: jnp.where(mu[0] > 0, -jnp.sum(mu), -jnp.inf)  # noqa: E731
    samples = jnp.array([[1.0, 1.0], [-1.0, 1.0]])
    with pytest.raises(ValueError, match=r"score .* not finite at draw 1, coordinate 0"):
        jaxpsd.minibatch_score(KEY, inside, log_likelihood, DATA, samples, batch_size=2)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (lambda mu: None, "NoneType"),
        (lambda mu: "a", "str"),
        (lambda mu: (mu[0], mu[1]), "tuple"),
        (lambda mu: mu, r"float32 of shape \(2,\)"),
        (lambda mu: mu[0] * 1j, "complex64"),
        (lambda mu: 1, "int32"),
    ],
)
def test_what_functions_must_return_is_said(value, found):
    samples = posterior(KEY, 5)
    expected = f"must return one floating-point number for one draw or pair of draws; it returned {found}"
    with pytest.raises(TypeError, match=f"`log_prior` {expected}"):
        jaxpsd.minibatch_score(KEY, value, log_likelihood, DATA, samples, batch_size=2)
    with pytest.raises(TypeError, match=f"`log_likelihood` {expected}"):
        jaxpsd.minibatch_score(KEY, log_prior, lambda mu, batch: value(mu), DATA, samples, batch_size=2)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (np.ones((0, 2)), ValueError, "`data` holds no observations"),
        ({}, ValueError, "first axis is that of the observations"),
        ({"y": np.array(["a", "b"])}, TypeError, r"`data\['y'\]` must be an array of numbers; got an array of <U1"),
        (np.array([object()]), TypeError, "got an array of object"),
        (np.ma.masked_array(np.ones(3), [0, 1, 0]), TypeError, "`data` is a masked array"),
    ],
)
def test_data_that_are_none(data, error, message):
    with pytest.raises(error, match=message):
        jaxpsd.minibatch_score(KEY, log_prior, log_likelihood, data, posterior(KEY, 5), batch_size=2)


def test_mistakes_are_named():
    samples = posterior(KEY, 5)
    with pytest.raises(ValueError, match="batch_size"):
        scores(KEY, samples, 0)
    with pytest.raises(ValueError, match=r"mini-batch, and what is computed from it, would be .* Lower `batch_size`"):
        scores(KEY, samples, 10**12)
    with pytest.raises(TypeError, match="`log_prior` must be a function of one position; got ndarray"):
        jaxpsd.minibatch_score(KEY, np.ones(2), log_likelihood, DATA, samples, batch_size=2)
    with pytest.raises(TypeError, match="`log_likelihood` must be a function of one position and a batch"):
        jaxpsd.minibatch_score(KEY, log_prior, None, DATA, samples, batch_size=2)
    with pytest.raises(ValueError, match="data"):
        jaxpsd.minibatch_score(KEY, log_prior, log_likelihood, jnp.float32(1), samples, batch_size=2)
    with pytest.raises(ValueError, match="data"):
        jaxpsd.minibatch_score(KEY, log_prior, log_likelihood, (DATA, DATA[1:]), samples, batch_size=2)
    with pytest.raises(ValueError, match="not finite"):
        jaxpsd.minibatch_score(KEY, lambda mu: jnp.sqrt(-jnp.sum(mu**2)), log_likelihood, DATA, samples, batch_size=2)


def test_a_control_variate_keeps_the_mean_and_cuts_the_noise():
    """Of a likelihood that is not Gaussian: for that there would be no noise at all."""

    def log_likelihood(mu, batch):
        return -jnp.sum(jnp.log1p((batch - mu[None]) ** 2))

    mode, position = DATA.mean(axis=0), DATA.mean(axis=0) + 0.02
    positions = jnp.tile(position, (20_000, 1))
    exact = jax.grad(lambda mu: log_prior(mu) + log_likelihood(mu, DATA))(position)
    plain, controlled = (
        np.asarray(
            jaxpsd.minibatch_score(
                KEY, log_prior, log_likelihood, DATA, positions, batch_size=20, control_variate=variate
            ),
            np.float64,
        )
        for variate in (None, mode)
    )
    error = controlled.std(axis=0) / len(positions) ** 0.5
    # A correct estimate fails this once in 10⁴ runs.
    assert (np.abs(controlled.mean(axis=0) - exact) < scipy.stats.norm.isf(1e-4 / 4) * error).all()
    assert (controlled.std(axis=0) < 0.1 * plain.std(axis=0)).all()


def test_a_control_variate_is_one_position():
    with pytest.raises(ValueError, match="`control_variate` must be one position"):
        jaxpsd.minibatch_score(
            KEY, log_prior, lambda mu, batch: jnp.sum(batch) * mu.sum(), DATA, DATA, batch_size=2,
            control_variate=jnp.zeros(3),
        )  # fmt: skip
