import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import jaxpsd

MEAN = np.array([1.0, -2.0, 3.0])
COVARIANCE = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, -0.3], [0.0, -0.3, 0.5]])


def gaussian(x):
    apart = x - MEAN
    return -0.5 * apart @ np.linalg.inv(COVARIANCE) @ apart


def logdensity(x):
    return -0.5 * jnp.sum(x**2)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("transform", [None, "standardize", "whiten"])
def test_moments_of_a_gaussian_are_exact_whatever_the_draws(transform):
    wrong = 2 + 1.5 * jax.random.laplace(jax.random.key(0), (300, 3))
    moments = lambda x: {"mean": x, "square": jnp.outer(x, x)}  # noqa: E731
    result = jaxpsd.corrected_expectation(moments, gaussian, wrong, transform=transform)
    np.testing.assert_allclose(result.value["mean"], MEAN, rtol=1e-4)
    np.testing.assert_allclose(result.value["square"], COVARIANCE + np.outer(MEAN, MEAN), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(result.explained["mean"], 1, atol=1e-6)
    np.testing.assert_allclose(result.sample_mean["mean"], wrong.mean(axis=0), rtol=1e-10)
    assert result.num_features == 9


# Of so few draws little is known.
@pytest.mark.filterwarnings("ignore::jaxpsd.CorrectionWarning")
@pytest.mark.usefixtures("x64")
def test_weights_are_repetitions():
    x = 1.3 * jax.random.normal(jax.random.key(2), (60, 2))
    times = np.arange(60) % 3 + 1
    fn = lambda x: jnp.sin(x)  # noqa: E731
    weighted = jaxpsd.corrected_expectation(fn, logdensity, x, weights=times, transform=None)
    repeated = jaxpsd.corrected_expectation(fn, logdensity, jnp.repeat(x, times, axis=0), transform=None)
    np.testing.assert_allclose(weighted.value, repeated.value, rtol=1e-3, atol=1e-5)


# Of so few draws little is known.
@pytest.mark.filterwarnings("ignore::jaxpsd.CorrectionWarning")
def test_more_features_than_draws_are_regularised():
    x = 1.1 * jax.random.normal(jax.random.key(4), (100, 10))
    result = jaxpsd.corrected_expectation(lambda x: x[0] ** 2, logdensity, x, order=3)
    assert result.num_features == 285
    assert abs(float(result.value) - 1) < 0.3


@pytest.mark.slow
@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_intervals_hold_what_they_promise(chain, rho):
    repeats, truth = 40, float(np.exp(0.3**2 / 2))
    fn = lambda x: jnp.sin(x[0]) + jnp.exp(0.3 * x[1])  # noqa: E731
    covered = 0
    for seed in range(repeats):
        x = chain(rho, (2, 750, 2), seed=seed)
        result = jaxpsd.corrected_expectation(fn, -x, x)
        covered += abs(result.value - truth) < 1.96 * result.standard_error
    # An interval of 90% or more fails this once in 10⁴ runs.
    assert covered >= scipy.stats.binom.ppf(1e-4, repeats, 0.9)


def test_functions_see_structured_positions_and_give_theirs():
    x = jax.random.normal(jax.random.key(5), (4, 100, 3))
    tree = {"a": x[..., 0], "b": x[..., 1:]}
    target = lambda p: -0.5 * (p["a"] ** 2 + jnp.sum(p["b"] ** 2))  # noqa: E731
    fn = lambda p: (p["a"] > -9, {"sum": p["b"].sum(), "both": p["b"]})  # noqa: E731
    result = jaxpsd.corrected_expectation(fn, target, tree, chains=True)
    assert result.value[1]["both"].shape == (2,)
    # What is the same for every draw needs no correction.
    np.testing.assert_allclose(result.value[0], 1)
    np.testing.assert_allclose(result.value[1]["sum"], 0, atol=1e-4)


def test_a_function_that_features_do_not_explain_brings_a_warning():
    x = jax.random.normal(jax.random.key(6), (500, 2))
    with pytest.warns(jaxpsd.CorrectionWarning, match="not to be trusted"):
        jaxpsd.corrected_expectation(lambda x: jnp.sin(20 * x[0]), logdensity, x)


def banana(x):
    """x₁ is normal about x₀²."""
    return -0.5 * x[0] ** 2 - 2 * (x[1] - x[0] ** 2) ** 2


def test_corrections_of_narrow_draws_of_a_curved_target_are_not_trusted():
    narrow = jax.random.normal(jax.random.key(0), (1000, 2)) * jnp.array([[0.3, 0.5]])
    with pytest.warns(jaxpsd.CorrectionWarning, match="Draws that followed the target show more"):
        result = jaxpsd.corrected_expectation(lambda x: x, banana, narrow)
    assert np.isinf(result.interval).all()
    # Without, there is a number; that it may be far off is in its interval, which has the mean of x₁.
    with pytest.warns(jaxpsd.CorrectionWarning, match="do not see may put"):
        result = jaxpsd.corrected_expectation(lambda x: x[1], banana, narrow, second_opinion=False)
    assert result.unseen > 0.2 * narrow[:, 1].std()


def test_corrections_of_right_draws_of_a_curved_target_are_not_refuted():
    z = jax.random.normal(jax.random.key(1), (1000, 2))
    exact = jnp.stack([z[:, 0], z[:, 0] ** 2 + 0.5 * z[:, 1]], axis=1)
    result = jaxpsd.corrected_expectation(lambda x: x[1] - x[0] ** 2, banana, exact)
    assert np.isfinite(result.unseen)
    assert abs(result.value) < 1.96 * float(result.standard_error) + float(result.unseen)


def test_a_second_opinion_looks_at_values(normal_draws):
    x, s = normal_draws
    with pytest.raises(ValueError, match="`second_opinion` must be True, False or 'auto'"):
        jaxpsd.corrected_expectation(lambda x: x, logdensity, x, second_opinion="yes")
    with pytest.raises(ValueError, match="got scores"):
        jaxpsd.corrected_expectation(lambda x: x, s, x, second_opinion=True)
    with pytest.raises(ValueError, match="cannot be traced"):
        jax.jit(lambda x: jaxpsd.corrected_expectation(lambda x: x, logdensity, x, second_opinion=True).value)(x)


def test_what_makes_no_sense_is_refused():
    x = jax.random.normal(jax.random.key(7), (50, 2))
    with pytest.raises(TypeError, match="`fn` must be a function"):
        jaxpsd.corrected_expectation(3, logdensity, x)
    with pytest.raises(TypeError, match="must return real numbers"):
        jaxpsd.corrected_expectation(lambda x: None, logdensity, x)
    with pytest.raises(ValueError, match="at least four draws"):
        jaxpsd.corrected_expectation(lambda x: x, logdensity, x[:3])
    with pytest.raises(ValueError, match="lower order or"):
        jaxpsd.corrected_expectation(lambda x: x, logdensity, x, order=20, weights=jnp.ones(50))
    with pytest.raises(FloatingPointError, match="Is `fn` finite"):
        jaxpsd.corrected_expectation(lambda x: jnp.log(x), logdensity, x)


@pytest.mark.parametrize(
    "fn", [lambda x: "a", lambda x: 1j * x, lambda x: None], ids=["a string", "complex", "nothing"]
)
def test_functions_of_anything_but_real_numbers_are_refused(fn, normal_draws):
    x, s = normal_draws
    with pytest.raises(TypeError, match="`fn` must return real numbers or arrays; it returned"):
        jaxpsd.corrected_expectation(fn, s, x)


def test_functions_of_no_numbers_at_all_are_refused(normal_draws):
    x, s = normal_draws
    with pytest.raises(ValueError, match="`fn` must return at least one number"):
        jaxpsd.corrected_expectation(lambda x: x[:0], s, x)


def test_functions_may_be_differentiated_and_compiled():
    x = 1.2 * jax.random.normal(jax.random.key(8), (200, 2))

    def estimate(power):
        return jaxpsd.corrected_expectation(lambda x: power * x[0] ** 2 + power**2, logdensity, x).value

    # E_P[c x² + c²] = c + c², whose derivative is 1 + 2c.
    value, slope = jax.jit(jax.value_and_grad(estimate))(3.0)
    np.testing.assert_allclose([value, slope], [12, 7], rtol=1e-4)


def test_traced_draws_give_what_others_do():
    x = 1.2 * jax.random.normal(jax.random.key(9), (200, 2))
    correct = lambda x: jaxpsd.corrected_expectation(lambda x: x**2, logdensity, x)  # noqa: E731
    plain, traced = correct(x), jax.jit(correct)(x)
    np.testing.assert_allclose(traced.value, plain.value, atol=1e-4)
    np.testing.assert_array_less(np.abs(np.asarray(traced.interval[0]) - 1), 1e-3)


def test_features_without_products_keep_to_the_coordinates():
    precision = jnp.asarray(np.linalg.inv(COVARIANCE), jnp.float32)
    x = 1.5 * jax.random.normal(jax.random.key(10), (500, 3)) + MEAN[None]
    target = lambda x: -0.5 * (x - MEAN) @ precision @ (x - MEAN)  # noqa: E731
    for order in (None, 1, 2):
        result = jaxpsd.corrected_expectation(lambda x: x, target, x, order=order, interactions=False)
        np.testing.assert_allclose(result.value, MEAN, rtol=1e-3)


def test_intervals_are_of_what_is_random_and_what_is_unseen():
    x = 0.3 + jax.random.t(jax.random.key(11), 5.0, (1000, 1))
    t5 = lambda x: -3 * jnp.log1p(x[0] ** 2 / 5)  # noqa: E731
    result = jaxpsd.corrected_expectation(lambda x: {"mean": x[0]}, t5, x)
    error, unseen = result.standard_error["mean"], result.unseen["mean"]
    assert unseen > error > 0
    low, high = result.interval["mean"]
    np.testing.assert_allclose(
        [low, high], result.value["mean"] + np.hypot(1.96 * error, unseen) * np.array([-1, 1]), rtol=1e-4
    )
    assert low < 0 < high < 0.3
