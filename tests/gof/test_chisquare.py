"""Weighted sums of χ² variables against closed forms."""

import numpy as np
import pytest
import scipy.stats

from jaxpsd._gof.chisquare import critical_value, survival


@pytest.mark.parametrize("terms", [1, 2, 3, 10, 1000])
@pytest.mark.parametrize("p", [0.999, 0.9, 0.5, 0.05, 1e-6, 1e-10, 1e-100])
def test_equal_weights_give_a_chi_square_distribution(terms, p):
    q = scipy.stats.chi2.isf(p, terms)
    assert survival(3.5 * q, np.full(terms, 3.5)) == pytest.approx(p, rel=1e-9)


@pytest.mark.parametrize("q", [0.01, 1.0, 5.0, 50.0, 100.0])
def test_pairs_of_weights_give_sums_of_exponential_variables(q):
    scales = np.array([1.0, 0.3, 0.1])
    expected = sum(np.prod([a / (a - b) for b in scales if b != a]) * np.exp(-q / (2 * a)) for a in scales)
    assert survival(q, np.repeat(scales, 2)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("weights", [[1.0, 1e-3] + [1e-5] * 500, 1 / np.arange(1, 200) ** 2, np.exp(-np.arange(60.0))])
def test_weights_of_very_different_size(weights):
    weights = np.asarray(weights)
    draws = scipy.stats.gamma.rvs(0.5, scale=2, size=(20_000, len(weights)), random_state=1) @ weights
    for level in (0.05, 0.5, 0.95, 0.999):
        q = np.quantile(draws, level)
        # Four standard errors of the simulated share.
        assert survival(q, weights) == pytest.approx(1 - level, abs=4 * (level * (1 - level) / len(draws)) ** 0.5)


def test_it_falls_and_stays_a_probability():
    weights = 1 / np.arange(1, 30)
    p = [survival(q, weights) for q in np.linspace(-1, 60, 200)]
    assert p[0] == 1
    assert (np.diff(p) <= 0).all()
    assert 0 < p[-1] < 1e-9


def test_no_weight_at_all():
    assert survival(1.0, np.zeros(3)) == 0
    assert survival(-1.0, np.zeros(0)) == 1


@pytest.mark.parametrize("alpha", [0.5, 0.05, 1e-8])
def test_critical_values(alpha):
    assert critical_value(alpha, np.full(7, 2.0)) == pytest.approx(2 * scipy.stats.chi2.isf(alpha, 7), rel=1e-8)
