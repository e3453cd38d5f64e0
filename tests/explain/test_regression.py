import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpsd
from jaxpsd._core.programs import run
from jaxpsd._core.scores import check_input
from jaxpsd._core.tracing import trace
from jaxpsd._explain import expectations, least_squares
from jaxpsd._explain.regression import regress


def logdensity(x):
    return -0.5 * jnp.sum(x**2)


def user_function(fn, given):
    return expectations._UserFunction(trace(fn, jnp.zeros(given.draws.dim)), given.draws.structure)


def robust_weights(tau, given):
    """By the formula: 1 / (1 + M / 3), where M is the squared distance of Mahalanobis over the number of features."""
    weights = given
    for _ in range(3):
        centre = weights @ tau
        covariance = (tau - centre).T @ ((tau - centre) * weights[:, None])
        distance = np.einsum("ni,ij,nj->n", tau - centre, np.linalg.inv(covariance), tau - centre) / tau.shape[1]
        weights = given / (1 + distance / 3)
        weights = weights / weights.sum()
    return weights


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("is_weighted", [False, True])
def test_it_is_the_intercept_of_a_weighted_least_squares_fit(is_weighted):
    x = jax.random.normal(jax.random.key(1), (200, 2)) * 1.2
    given = np.where(np.arange(200) % 5 == 0, 0, 1.0 + np.arange(200) % 3) if is_weighted else np.ones(200)
    given = given / given.sum()
    fn = lambda x: jnp.stack([jnp.exp(0.5 * x[0]) + 1e6, x[0] + 0.1 * x[0] ** 3])  # noqa: E731
    result = jaxpsd.corrected_expectation(
        fn, logdensity, x, order=2, transform=None, weights=given if is_weighted else None
    )
    tau, f = np.asarray(jaxpsd.PSD(2).features(logdensity, x)), np.asarray(jax.vmap(fn)(x)) - [1e6, 0]
    weights = robust_weights(tau, given)
    root = np.sqrt(weights)[:, None]
    design = np.column_stack([np.ones(200), tau])
    solution = np.linalg.lstsq(root * design, root * f, rcond=None)[0]
    np.testing.assert_allclose(result.value - np.array([1e6, 0]), solution[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(result.sample_mean - np.array([1e6, 0]), given @ f, rtol=1e-6)
    # Residuals of fits to all other draws, up to the ridge.
    projection = root * design @ np.linalg.pinv(root * design)
    left_out = (f - design @ solution) / (1 - np.diag(projection))[:, None]
    centred = tau - weights @ tau
    g = 1 - centred @ np.linalg.solve(centred.T @ (centred * weights[:, None]), weights @ tau)
    influence = 200 * weights[:, None] * g[:, None] * left_out
    # Independent draws: the standard deviation over the root of their number, unless they are correlated by chance.
    plain = influence.std(axis=0) / 200**0.5
    assert (result.standard_error > 0.99 * plain).all()
    assert (result.standard_error < 1.4 * plain).all()


@pytest.mark.usefixtures("x64")
def test_features_and_gram_matrix_give_the_same_fit(monkeypatch):
    monkeypatch.setattr(least_squares, "weights_without_extremes", equal_weights)
    x = 0.2 + 1.2 * jax.random.normal(jax.random.key(3), (80, 2))
    given = check_input(-x, x)
    fn = lambda x: jnp.stack([jnp.sin(x[0]), x[0] * x[1]])  # noqa: E731
    fits = []
    # With features of one scale, both penalise alike; their ridges are in units of a mean and of a total variance.
    for program, form in ((least_squares.from_features, "primal"), (least_squares.from_gram, "dual")):
        plan = jaxpsd.PSD(1, form=form)._plan(given, 0)
        problem = least_squares.Problem((plan,), user_function(fn, given), np.ones((1, 2), bool), jnp.asarray(80.0))
        fits.append(run(program, given, problem))
    for one, other in zip(*(fit[:6] for fit in fits), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def equal_weights(features, rows, given, length):
    return given, least_squares.mean_over_draws(features, rows, given, length)


@pytest.mark.usefixtures("x64")
def test_a_fit_up_to_a_degree_is_that_of_the_lower_order(monkeypatch):
    monkeypatch.setattr(least_squares, "weights_without_extremes", equal_weights)
    x = 0.1 + 1.1 * jax.random.normal(jax.random.key(3), (300, 2))
    given = check_input(-(x**3), x)
    functions = user_function(lambda x: jnp.stack([jnp.sin(x[0]), x[0] * x[1]]), given)
    high = jaxpsd.PSD(4, basis="hermite", interactions=3)
    powers = jaxpsd.PSD(3, basis="hermite", interactions=False)
    together = regress(functions, [high, powers], given, 300.0, by_degree=True)
    alone = [(2, True), (3, True), (4, 3), (2, False), (3, False)]
    for k, (order, interactions) in enumerate(alone):
        fit = regress(functions, [jaxpsd.PSD(order, basis="hermite", interactions=interactions)], given, 300.0)
        for name in ("value", "influence", "residual", "ridge", "seen"):
            one, other = getattr(together, name)[k], getattr(fit, name)[0]
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9, err_msg=f"{name}, {order}")


@pytest.mark.usefixtures("x64")
def test_what_the_gram_matrix_sees_is_its_formula(monkeypatch):
    # With a ridge at which the formula keeps its digits.
    monkeypatch.setattr(least_squares, "_TINY_RIDGES", ())
    x = 0.3 + jax.random.normal(jax.random.key(4), (40, 3))
    given = check_input(-x, x)
    plan = jaxpsd.PSD(4, form="dual")._plan(given, 0)
    problem = least_squares.Problem(
        (plan,), user_function(lambda x: jnp.sin(x), given), np.ones((1, 1), bool), jnp.asarray(40.0)
    )
    *_, (seen,), (ridge,) = run(least_squares.from_gram, given, problem)
    tau = np.asarray(jaxpsd.PSD(4).features(-x, x))
    mean = tau.mean(axis=0)
    covariance = np.cov(tau.T, ddof=0) + float(ridge) * tau.var(axis=0).sum() * np.eye(tau.shape[1])
    kernel = (tau - mean) @ (tau - mean).T / (40 * tau.var(axis=0).sum())
    freedom = 1 + np.trace(np.linalg.solve(kernel + float(ridge) * np.eye(40), kernel))
    expected = mean @ np.linalg.solve(covariance, mean) - freedom / 40
    # And a standard deviation of χ² more.
    np.testing.assert_allclose(seen, max(expected, 0) + (2 * freedom) ** 0.5 / 40, rtol=1e-6)


@pytest.mark.parametrize("place", [0, 77])
def test_one_extreme_draw_costs_no_digits_wherever_it_is(place):
    x = 1.1 * jax.random.normal(jax.random.key(5), (1000, 2))
    x = x.at[place, 0].set(1e3)
    result = jaxpsd.corrected_expectation(lambda x: x**2, logdensity, x)
    np.testing.assert_allclose(result.value, 1, atol=1e-4)


@pytest.mark.parametrize("n", [4, 5, 8, 10])
def test_as_few_draws_as_are_allowed_give_numbers(n):
    x = jax.random.normal(jax.random.key(6), (n, 1))
    result = jaxpsd.corrected_expectation(lambda x: x, logdensity, x, order=1)
    np.testing.assert_allclose(result.value, 0, atol=1e-3)
    assert np.isfinite(result.standard_error).all()


def test_constant_functions_and_offsets_need_no_correction():
    x = 1e6 + 1.5 * jax.random.normal(jax.random.key(7), (500, 2))
    fn = lambda x: (jnp.ones(()), x - 1e6, x)  # noqa: E731
    with pytest.warns(jaxpsd.PrecisionWarning, match="24 numbers within a standard deviation"):
        constant, deviation, position = jaxpsd.corrected_expectation(fn, 1e6 - x, x).value
    assert constant == 1
    # Positions near a million are multiples of a sixteenth.
    np.testing.assert_allclose(deviation, 0, atol=1e-3)
    np.testing.assert_allclose(position, 1e6, atol=0.1)


# Of so few draws little is known.
@pytest.mark.filterwarnings("ignore::jaxpsd.CorrectionWarning")
def test_draws_without_weight_do_not_count():
    x = 1.3 * jax.random.normal(jax.random.key(8), (300, 2))
    # One after the other, lest they look like a chain that moves slowly.
    far = jnp.stack([x, 1e4 + x], axis=1).reshape(600, 2)
    weights = jnp.tile(jnp.array([1.0, 0.0]), 300)
    fn = lambda x: jnp.sin(x)  # noqa: E731
    alone = jaxpsd.corrected_expectation(fn, logdensity, x, order=2)
    result = jaxpsd.corrected_expectation(fn, logdensity, far, weights=weights, order=2)
    np.testing.assert_allclose(result.value, alone.value, atol=1e-3)
    np.testing.assert_allclose(result.sample_mean, alone.sample_mean, atol=1e-5)
