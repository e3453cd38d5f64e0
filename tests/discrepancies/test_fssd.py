import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpsd


def logdensity(x):
    return -0.5 * jnp.sum(x**2)


@pytest.mark.usefixtures("x64")
def test_values_are_those_of_the_published_code(reference):
    fssd = jaxpsd.FSSD(reference["fssd_locations"], reference["fssd_sigma2"] ** 0.5, block_size=37)
    x, s = reference["samples"], reference["scores"]
    np.testing.assert_allclose(len(x) * fssd.u_statistic(s, x), reference["fssd_n_u"], rtol=1e-10)
    np.testing.assert_allclose(fssd.power_criterion(s, x), reference["fssd_power_criterion"], rtol=1e-10)


@pytest.mark.usefixtures("x64")
def test_features_are_the_first_order_operator_on_the_kernel_at_each_location():
    x = jax.random.normal(jax.random.key(0), (9, 2))
    locations, sigma = jax.random.normal(jax.random.key(1), (3, 2)), 1.4
    kernel = jaxpsd.Gaussian(sigma)

    def by_autodiff(x, v, axis):
        field = lambda x: jnp.zeros(2).at[axis].set(kernel(x, v))  # noqa: E731
        return jaxpsd.stein_operator(field, logdensity, order=1)(x)

    expected = [[by_autodiff(row, v, axis) for v in locations for axis in range(2)] for row in x]
    features = jaxpsd.FSSD(locations, sigma).features(logdensity, x)
    np.testing.assert_allclose(features, np.array(expected) / 6**0.5, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_random_locations_look_like_the_draws():
    mean, root = jnp.array([[3.0, -2.0]]), jnp.array([[2.0, 0.0], [1.5, 0.5]])
    x = mean + jax.random.normal(jax.random.key(2), (4000, 2)) @ root.T
    fssd = jaxpsd.FSSD.random(jax.random.key(3), x, num_locations=4000)
    np.testing.assert_allclose(fssd.locations.mean(axis=0), mean[0], atol=0.15)
    np.testing.assert_allclose(jnp.cov(fssd.locations.T), root @ root.T, rtol=0.1, atol=0.1)
    assert jaxpsd.FSSD.random(jax.random.key(3), x, transform="standardize").transform is not None


@pytest.mark.slow
def test_the_optimised_criterion_is_higher_and_the_rest_is_held_out():
    x = jax.random.normal(jax.random.key(4), (1000, 3)) * jnp.array([[1.7**0.5, 1.0, 1.0]])
    chains = {"a": x[:, 0].reshape(4, 250), "b": x[:, 1:].reshape(4, 250, 2)}
    target = lambda p: -0.5 * (p["a"] ** 2 + jnp.sum(p["b"] ** 2))  # noqa: E731
    key = jax.random.key(5)
    start, _, _ = jaxpsd.FSSD.optimized(key, target, chains, num_steps=1, learning_rate=1e-6, chains=True)
    fssd, scores, rest = jaxpsd.FSSD.optimized(key, target, chains, num_steps=50, chains=True)
    np.testing.assert_array_equal(rest["b"], chains["b"][:, 50:])
    np.testing.assert_allclose(scores["a"], -chains["a"][:, 50:], rtol=1e-6)
    training = jax.tree.map(lambda leaf: leaf[:, :50], chains)
    before, after = (one.power_criterion(target, training, chains=True) for one in (start, fssd))
    assert after > 1.2 * before
    result = jaxpsd.gof_test(key, fssd, scores, rest, method="asymptotic", chains=True)
    assert result.labels == ("U",)


@pytest.mark.slow
def test_optimisation_shows_its_progress_on_request_and_can_be_traced(capsys):
    x = jax.random.normal(jax.random.key(6), (100, 2))
    fssd, _, _ = jaxpsd.FSSD.optimized(jax.random.key(7), -x, x, progress=True)
    assert "step 10/10, criterion" in capsys.readouterr().err
    traced = jax.jit(lambda x: jaxpsd.FSSD.optimized(jax.random.key(7), -x, x)[0].locations)(x)
    np.testing.assert_allclose(traced, fssd.locations, rtol=1e-4, atol=1e-5)
    assert capsys.readouterr().err == ""


def test_optimisation_does_not_depend_on_units():
    x = jax.random.normal(jax.random.key(8), (200, 2))
    small = 2.0**-20
    one, _, _ = jaxpsd.FSSD.optimized(jax.random.key(9), -x, x, regularization=1e-6)
    # Features grow with scores, and the variance of U with their fourth power.
    other, _, _ = jaxpsd.FSSD.optimized(jax.random.key(9), -x / small, x * small, regularization=1e-6 / small**4)
    np.testing.assert_allclose(other.bandwidth / small, one.bandwidth, rtol=1e-2)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: jaxpsd.FSSD(jnp.zeros((3, 5)), 1.0)(-x, x), ValueError, r"`locations` must be \(locations, 3\)"),
        (lambda x: jaxpsd.FSSD(jnp.full((3, 3), jnp.nan), 1.0)(-x, x), ValueError, "`locations` must be finite"),
        (lambda x: jaxpsd.FSSD(jnp.zeros((3, 3)), -1.0), ValueError, "`bandwidth` must be a positive number"),
        (lambda x: jaxpsd.FSSD.random(0, x), TypeError, "`rng_key` must be one key"),
        (lambda x: jaxpsd.FSSD.random(jax.random.key(0), x, bandwidth="mean"), ValueError, "one of 'median'"),
        (lambda x: jaxpsd.FSSD.optimized(jax.random.key(0), -x, x, train_fraction=1.0), ValueError, "between 0 and 1"),
        (lambda x: jaxpsd.FSSD.optimized(jax.random.key(0), -x[:5], x[:5]), ValueError, "Draw more"),
        (lambda x: jaxpsd.FSSD.optimized(jax.random.key(0), -x, x, num_steps=0), ValueError, "`num_steps`"),
    ],
)
def test_it_refuses_what_makes_no_sense(call, error, message, normal_draws):
    with pytest.raises(error, match=message):
        call(normal_draws[0])


def test_a_stream_gives_the_value_of_all_draws(normal_draws):
    x, s = normal_draws
    fssd = jaxpsd.FSSD.random(jax.random.key(0), x)
    init, update, _, result = jaxpsd.stream(fssd)
    state = init(jax.random.key(1), x[0])
    for part in range(4):
        state = update(state, s[50 * part : 50 * part + 50], x[50 * part : 50 * part + 50])
    np.testing.assert_allclose(result(state), fssd(s, x), rtol=1e-5)
    with pytest.raises(ValueError, match="is chosen by all draws"):
        jaxpsd.stream(jaxpsd.FSSD(fssd.locations, 1.0, transform="whiten"))[0](jax.random.key(1), x[0])
