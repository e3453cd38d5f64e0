import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import jaxpsd
from jaxpsd._explain.tolerance import b_squared

KEY = jax.random.key(0)


def logdensity(x):
    return -0.5 * jnp.sum(x**2)


def normal(n, seed=1, dim=2):
    return jax.random.normal(jax.random.key(seed), (n, dim))


def diagnose(x, target=logdensity, **options):
    return jaxpsd.diagnose(KEY, target, x, names=("a", "b"), num_replicates=199, **options)


def test_many_exact_draws_are_good_enough():
    report = diagnose(normal(5000))
    assert report.good_enough is True
    assert report.tolerance == 0.1
    assert "They are good enough (tolerance 0.1): every mean is within 0.1 standard deviations" in report.verdict


def test_biased_draws_are_not_and_the_worst_is_named():
    x = normal(5000)
    report = diagnose(x.at[:, 1].add(0.3 - x[:, 1].mean()))
    assert report.good_enough is False
    assert "They are not good enough (tolerance 0.1)" in report.verdict
    assert "the mean of b is 0.30 (0.30 … 0.30) standard deviations too high" in report.verdict
    # Said once.
    assert report.verdict.count("the mean of b") == 1
    assert diagnose(normal(5000).at[:, 1].add(0.3), tolerance=0.5).good_enough is True


def test_few_exact_draws_are_too_few():
    report = diagnose(normal(40, seed=4))
    assert report.good_enough is False
    assert "effective draws, and about" in report.verdict
    assert "times as many draws would tell" in report.verdict


def test_where_errors_are_not_known_it_cannot_be_told():
    def mixture(x):
        return jnp.logaddexp(-0.5 * jnp.sum((x - 2) ** 2), -0.5 * jnp.sum((x + 2) ** 2))

    x = normal(2000) + 2 * jax.random.rademacher(KEY, (2000, 1), jnp.float32)
    report = diagnose(x, mixture, second_opinion=False)
    assert report.good_enough is None
    assert "Whether they are good enough cannot be told (tolerance 0.1): the error of" in report.verdict
    assert "is not known" in report.verdict


@pytest.mark.parametrize("tolerance", [0, -0.1, np.nan, np.inf, "much", None, True])
def test_tolerances_that_make_no_sense_are_refused(tolerance):
    with pytest.raises((ValueError, TypeError), match="`tolerance` must be"):
        diagnose(normal(50), tolerance=tolerance)


def test_a_tolerance_of_one_says_nothing():
    with pytest.raises(ValueError, match="`tolerance` must be below 1: by how many standard deviations"):
        diagnose(normal(50), tolerance=1)


def test_squared_errors_are_those_of_the_moments():
    x = 0.3 + 1.2 * normal(4000)
    report = diagnose(x)
    np.testing.assert_allclose(report.b_squared.means, x.mean(axis=0) ** 2, rtol=1e-3)
    # Under N(0, 1), E x² = 1 and Var x² = 2.
    np.testing.assert_allclose(report.b_squared.second_moments, ((x**2).mean(axis=0) - 1) ** 2 / 2, rtol=1e-3)
    unknown = b_squared(report.moments.errors._replace(sd_ratio=None), np.zeros(2), np.ones(2))
    assert np.isnan(unknown.second_moments).all()
    assert np.isnan(unknown.second_moments_interval).all()
    assert np.isfinite(unknown.means_interval).all()


@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_intervals_of_squared_errors_hold_what_those_of_errors_allow(shift):
    draws = shift + 0.85 * normal(500)
    table = jaxpsd.moment_table(KEY, lambda x: -0.5 * jnp.sum(x**2 + 0.1 * x**4), draws, progress=False)
    mean, sd, dim = np.array([0.5, -2.0]), np.array([1.0, 2.0]), 2
    b = b_squared(table.errors, mean, sd)
    # Intervals of four errors that hold at once.
    quantile, rng = scipy.stats.norm.ppf(1 - 0.05 / 8), np.random.default_rng(0)
    off_ends, ratio_ends = table.errors.mean_off_interval(quantile), table.errors.sd_ratio_interval(quantile)
    off = off_ends[0] + rng.random((20_000, dim)) * (off_ends[1] - off_ends[0])
    right_sd = sd / np.exp(np.log(ratio_ends[0]) + rng.random((20_000, dim)) * np.log(ratio_ends[1] / ratio_ends[0]))
    right_mean = mean - off * right_sd
    error = mean**2 + sd**2 - right_mean**2 - right_sd**2
    second = error**2 / (2 * right_sd**4 + 4 * right_mean**2 * right_sd**2)
    for values, (low, high) in ((off**2, b.means_interval), (second, b.second_moments_interval)):
        slack = 0.02 * (high - low) + 1e-6
        assert (values >= low - slack).all()
        assert (values <= high + slack).all()
        np.testing.assert_allclose(values.min(axis=0), low, atol=float(5 * slack.max()))
        np.testing.assert_allclose(values.max(axis=0), high, atol=float(5 * slack.max()))
        # Or else a report has −0.
        assert not np.signbit(low).any()
