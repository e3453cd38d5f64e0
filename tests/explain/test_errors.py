import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxpsd._core.scores import check_input
from jaxpsd._explain.errors import choose_features, implied_errors
from jaxpsd._stein.coordinates import Rule, canonical, fit


def errors_of(target, samples, **options):
    given = check_input(target, samples, options.get("weights"), options.get("chains")).with_scores()
    standardized = fit(Rule.STANDARDIZE, given)
    return implied_errors(given, canonical(given, standardized), standardized, float(given.draws.num_draws))


def gaussian(kind):
    """Mean and covariance of a target whose axes are far from the coordinates."""
    if kind == "condition 1e6":
        axes = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
        return np.array([100.0, -200, 0]), axes @ np.diag([1.0, 1e3, 1e6]) @ axes.T
    covariance = np.full((3, 3), float(kind))
    np.fill_diagonal(covariance, 1)
    return np.array([1.0, -2, 3]), covariance


def draws_of(kind, mean, covariance, n=2000):
    noise, sd = np.random.default_rng(0).normal(size=(n, 3)), np.sqrt(np.diag(covariance))
    if kind == "mean field":
        return mean + noise / np.sqrt(np.diag(np.linalg.inv(covariance)))
    return mean + 0.3 * sd + noise @ np.linalg.cholesky(covariance).T


def check_exact(kind, draws, dtype, tolerance, *, may_be_unknown=False):
    mean, covariance = gaussian(kind)
    x = np.asarray(draws_of(draws, mean, covariance), dtype).astype(np.float64)
    scores = -(x - mean) @ np.linalg.inv(covariance)
    errors = errors_of(jnp.asarray(scores, dtype), jnp.asarray(x, dtype))
    sd = np.sqrt(np.diag(covariance))
    found = (errors.mean_off, np.log(errors.sd_ratio), errors.true_correlation)
    right = ((x.mean(axis=0) - mean) / sd, np.log(x.std(axis=0) / sd), covariance / np.outer(sd, sd))
    unseen = (errors.mean_off_unseen, errors.sd_ratio_unseen, errors.correlation_unseen)
    for one, other, may_be in zip(found, right, unseen, strict=True):
        if may_be_unknown:
            # Right, but for what is said, wherever a number is stated.
            known = ~np.isnan(one)
            np.testing.assert_array_less(np.abs(one - other)[known], (np.asarray(may_be) + tolerance)[known])
        else:
            np.testing.assert_allclose(one, other, atol=tolerance)


@pytest.mark.parametrize("draws", ["mean field", "shifted"])
@pytest.mark.parametrize("kind", ["0.999", "0.9998"])
def test_they_are_exact_for_strongly_correlated_targets_in_single_precision(kind, draws):
    check_exact(kind, draws, np.float32, 1e-3)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("draws", ["mean field", "shifted"])
def test_they_are_exact_for_ill_conditioned_targets_in_double_precision(draws):
    check_exact("condition 1e6", draws, np.float64, 1e-3)


@pytest.mark.parametrize("draws", ["mean field", "shifted"])
def test_they_are_right_or_not_known_for_ill_conditioned_targets_in_single_precision(draws):
    check_exact("condition 1e6", draws, np.float32, 0.01, may_be_unknown=True)


@pytest.mark.parametrize("unit", [1e-15, 1.0, 1e15])
def test_units_do_not_matter(unit):
    x = 0.3 + 1.3 * jax.random.normal(jax.random.key(0), (1000, 2))
    errors = errors_of(-x / unit, x * unit)
    np.testing.assert_allclose(errors.mean_off, x.mean(axis=0), rtol=1e-3)
    np.testing.assert_allclose(errors.sd_ratio, x.std(axis=0), rtol=1e-3)


# --- targets that are not Gaussian ------------------------------------------------------------------------


def funnel(x):
    return -0.5 * (x[0] / 1.5) ** 2 - 0.5 * jnp.sum(x[1:] ** 2) * jnp.exp(-x[0]) - 0.5 * (len(x) - 1) * x[0]


def test_nothing_wrong_is_said_of_a_funnel_by_mean_field_draws():
    # The optimum of the ELBO over independent normal distributions.
    x = jax.random.normal(jax.random.key(1), (2000, 4)) * jnp.array([[0.717, 0.879, 0.879, 0.879]])
    errors = errors_of(funnel, x)
    assert np.isnan(errors.sd_ratio).all()
    assert np.isnan(errors.mean_off[1:]).all()
    # The mean along the funnel is right, and said to be.
    low, high = errors.mean_off_interval()[:, 0]
    assert low < float(x[:, 0].mean()) / 1.5 < high < 0.1


TARGETS = {
    "t5": (
        lambda x: -3 * jnp.sum(jnp.log1p(x**2 / 5)),
        lambda key: jax.random.t(key, 5.0, (1000, 2)),
        (0.0, (5 / 3) ** 0.5),
        0.1,
    ),
    "log-gamma": (
        lambda x: jnp.sum(2 * x - jnp.exp(x)),
        lambda key: jnp.log(jax.random.gamma(key, 2.0, (1000, 2))),
        (float(scipy.special.digamma(2)), float(scipy.special.polygamma(1, 2)) ** 0.5),
        0.4,
    ),
}


@pytest.mark.parametrize("name", TARGETS)
def test_intervals_of_exact_draws_cover(name):
    target, draw, (mean, sd), often = TARGETS[name]
    covered, stated, repeats = np.zeros(2), np.zeros(2), 20
    for key in jax.random.split(jax.random.key(2), repeats):
        x = draw(key)
        errors = errors_of(target, x)
        right = np.stack([(x.mean(axis=0) - mean) / sd, x.std(axis=0) / sd])
        for k, (low, high) in enumerate((errors.mean_off_interval(), errors.sd_ratio_interval())):
            stated[k] += np.isfinite(low).sum()
            covered[k] += ((low <= right[k]) & (right[k] <= high)).sum()
    # Means nearly always; scales of heavy tails seldom, since polynomials explain little of them.
    assert (stated >= [0.9 * 2 * repeats, often * 2 * repeats]).all()
    # Intervals of 90% or more fail this once in 10³ runs.
    assert (covered >= scipy.stats.binom.ppf(1e-3, stated, 0.9)).all()


# --- what draws come as -----------------------------------------------------------------------------------


def test_chains_and_pytrees_have_the_errors_of_plain_draws():
    x = 0.2 + 1.2 * jax.random.normal(jax.random.key(3), (400, 3))
    target = lambda p: -0.5 * (p["a"] ** 2 + jnp.sum(p["b"] ** 2))  # noqa: E731
    tree = {"a": x[:, 0].reshape(4, 100), "b": x[:, 1:].reshape(4, 100, 2)}
    plain = errors_of(-x, x)
    for other in (errors_of(-x.reshape(4, 100, 3), x.reshape(4, 100, 3)), errors_of(target, tree, chains=True)):
        for field in ("mean_off", "sd_ratio", "true_correlation", "mean_explained", "sd_explained"):
            np.testing.assert_allclose(getattr(other, field), getattr(plain, field), atol=1e-5)


@pytest.mark.usefixtures("x64")
def test_weights_are_repetitions():
    target, draw, *_ = TARGETS["log-gamma"]
    x, times = draw(jax.random.key(4)), np.arange(1000) % 3 + 1
    weighted, repeated = errors_of(target, x, weights=times), errors_of(target, jnp.repeat(x, times, axis=0))
    np.testing.assert_allclose(weighted.mean_off, repeated.mean_off, atol=2e-3)
    np.testing.assert_allclose(weighted.sd_ratio, repeated.sd_ratio, atol=5e-3)


def test_coordinates_that_are_too_many_for_scales_have_errors_of_means():
    # Draws with weights cannot be regressed by a Gram matrix.
    x = 0.2 + jax.random.normal(jax.random.key(5), (100, 30))
    errors = errors_of(-x, x, weights=np.ones(100))
    assert errors.sd_ratio is errors.sd_ratio_interval() is errors.correlation is None
    np.testing.assert_allclose(errors.mean_off, x.mean(axis=0), atol=0.02)
    assert np.isfinite(errors.explained)


def test_nothing_is_known_from_fewer_draws_than_coordinates():
    x = jax.random.normal(jax.random.key(7), (20, 30))
    errors = errors_of(-x, x)
    assert np.isnan(errors.mean_off).all()
    assert np.isnan(errors.sd_ratio).all()


def test_nor_from_chains_that_stand_still():
    # Four points look linear in any score.
    x = jnp.repeat(jax.random.normal(jax.random.key(8), (4, 1, 30)), 100, axis=1)
    errors = errors_of(-x, x)
    assert np.isnan(errors.mean_off).all()
    assert np.isnan(errors.sd_ratio).all()


def test_the_unit_of_a_gaussian_target_is_exact_where_features_do_not_tell_it():
    # Draws that are far too narrow along most axes, in single precision.
    rng = np.random.default_rng(10)
    axes = np.linalg.qr(rng.normal(size=(40, 40)))[0]
    precision = (axes * np.geomspace(1e-4, 1, 40)) @ axes.T
    x = rng.normal(size=(500, 40)) / np.sqrt(np.diag(precision))
    errors = errors_of(jnp.asarray(-x @ precision, jnp.float32), jnp.asarray(x, jnp.float32))
    right = x.mean(axis=0) / np.sqrt(np.diag(np.linalg.inv(precision)))
    low, high = errors.mean_off_interval()
    is_stated = ~np.isnan(low)
    assert is_stated.any()
    assert ((low <= right) & (right <= high))[is_stated].all()


@pytest.mark.parametrize("n", [500, 2000])
def test_errors_in_many_dimensions_take_no_products(n):
    """Draws of a mean field, and 1.2 times too wide, of a Gaussian with strong correlations, in single precision."""
    rng, dim = np.random.default_rng(11), 100
    axes = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    values = np.geomspace(1, 1e4, dim)
    covariance, precision = (axes * values) @ axes.T, (axes / values) @ axes.T
    sd, noise = np.sqrt(np.diag(covariance)), rng.normal(size=(n, dim))
    for x in (noise / np.sqrt(np.diag(precision)), 1.2 * noise @ np.linalg.cholesky(covariance).T):
        x = np.asarray(x, np.float32)
        errors = errors_of(jnp.asarray(-x @ precision, jnp.float32), jnp.asarray(x))
        x = x.astype(np.float64)
        for right, (low, high) in (
            (x.mean(axis=0) / sd, errors.mean_off_interval()),
            (x.std(axis=0) / sd, errors.sd_ratio_interval()),
        ):
            assert ((low - 2e-3 <= right) & (right <= high + 2e-3)).all()
            assert (high - low).max() < 0.05


def test_as_few_features_as_a_gaussian_target_takes():
    x = jax.random.normal(jax.random.key(6), (1000, 2))
    for target, orders in ((-x, [2]), (-(x**3), [4, 4])):
        given = check_input(target, x).with_scores()
        assert [psd.order for psd in choose_features(given, canonical(given), 1000.0).psds] == orders
    without = choose_features(given, canonical(given), 1000.0, interactions=False).psds
    assert [psd.interactions for psd in without] == [False]


def test_draws_of_a_gaussian_fit_are_not_taken_for_right_because_degree_two_sees_nothing():
    # The best Gaussian for a heavy-tailed target: its features of degree 2 have mean zero, however wrong it is.
    def score(x):
        return -6 * x / (5 + x**2)

    grid = np.linspace(-12, 12, 40001)
    scales = np.linspace(0.8, 1.6, 4001)
    density = np.exp(-0.5 * grid**2) / np.sqrt(2 * np.pi) * (grid[1] - grid[0])
    moment = [(density * grid * h * score(h * grid)).sum() for h in scales]
    scale = scales[np.argmin(np.abs(np.array(moment) + 1))]
    x = scale * jax.random.normal(jax.random.key(9), (4000, 3))
    errors = errors_of(score(x), x)
    right = np.asarray(x).std(axis=0) / (5 / 3) ** 0.5
    low, high = errors.sd_ratio_interval()
    is_stated = ~np.isnan(low)
    assert (right < 0.95).all()
    assert ((low <= right) & (right <= high))[is_stated].all()


def test_draws_that_are_far_too_narrow_are_judged_by_the_degree_that_can_tell():
    # A regression whose coefficients are strongly correlated, and its noise, by a mean field: degree 4 is all noise.
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(100, 3)) @ np.linalg.cholesky(0.02 * np.eye(3) + 0.98).T
    y = rows.sum(axis=1) + rng.normal(size=100)
    best = np.linalg.lstsq(rows, y, rcond=None)[0]
    squares = ((y - rows @ best) ** 2).sum()
    precision = rows.T @ rows

    def logdensity(position):
        beta, log_sd = position[:3], position[3]
        off = beta - jnp.asarray(best, jnp.float32)
        return -97 * log_sd - 0.5 * jnp.exp(-2 * log_sd) * (squares + off @ jnp.asarray(precision, jnp.float32) @ off)

    # Given their noise the coefficients are normal, and the noise has the law of a scaled inverse χ².
    variance = squares / rng.chisquare(94, size=400_000)
    covariance = np.linalg.inv(precision) * variance.mean()
    middle = 0.5 * np.log(variance).mean()
    narrow = np.append(np.diag(precision / np.exp(2 * middle)) ** -0.5, 0.9 * (0.5 * np.log(variance)).std())
    x = np.append(best, middle) + narrow * rng.normal(size=(2000, 4))
    right = x.std(axis=0) / np.append(np.diag(covariance) ** 0.5, (0.5 * np.log(variance)).std())
    errors = errors_of(logdensity, jnp.asarray(x, jnp.float32))
    assert (right[:3] < 0.2).all()
    low, high = errors.sd_ratio_interval()
    # That of the noise may be known or not.
    assert ((low <= right) & (right <= high) | np.isnan(low)).all()
    assert (high[:3] < 0.25).all()
