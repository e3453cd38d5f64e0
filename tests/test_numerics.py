"""Digits: against exact arithmetic, far from zero, on tiny scales, with heavy tails and wild weights."""

from fractions import Fraction
from itertools import combinations_with_replacement
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpsd


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def exact_statistics(x, s, order, weights=None):
    """V and U of the PSD in rational arithmetic, straight from the Stein operator on monomials."""
    n, dim = x.shape
    x, s = [[[Fraction(float(value)) for value in row] for row in array] for array in (x, s)]
    weights = [Fraction(1, n)] * n if weights is None else [Fraction(float(w)) for w in weights]
    total = sum(weights)
    v = u = Fraction(0)
    for degree in range(1, order + 1):
        for chosen in combinations_with_replacement(range(dim), degree):
            alpha = [chosen.count(k) for k in range(dim)]

            def monomial(row, k, drop, alpha=alpha):
                return prod(row[j] ** (a - drop * (j == k)) for j, a in enumerate(alpha))

            tau = [
                sum(
                    (a * monomial(row, k, 1) * score[k] if a > 0 else 0)
                    + (a * (a - 1) * monomial(row, k, 2) if a > 1 else 0)
                    for k, a in enumerate(alpha)
                )
                for row, score in zip(x, s, strict=True)
            ]
            v += (sum(w * t for w, t in zip(weights, tau, strict=True)) / total) ** 2
            u += (sum(tau) ** 2 - sum(t**2 for t in tau)) / (n * (n - 1))
    return float(v), float(u)


@pytest.mark.parametrize("form", ["primal", "dual"])
@pytest.mark.parametrize("order", [2, 6, *(pytest.param(order, marks=pytest.mark.slow) for order in (1, 3, 4, 5))])
def test_statistics_are_those_of_exact_arithmetic(rng, order, form):
    x = rng.normal(size=(7, 2)).astype(np.float32)
    s = (-x + 0.3 * rng.normal(size=(7, 2))).astype(np.float32)
    v, u = exact_statistics(x, s, order)
    psd = jaxpsd.PSD(order, form=form)
    # U is a difference of terms of the size of V.
    np.testing.assert_allclose(psd.v_statistic(s, x), v, rtol=1e-5)
    np.testing.assert_allclose(psd.u_statistic(s, x), u, atol=1e-5 * v)
    with jax.enable_x64(True):
        np.testing.assert_allclose(psd.v_statistic(s.astype(float), x.astype(float)), v, rtol=1e-13)
        np.testing.assert_allclose(psd.u_statistic(s.astype(float), x.astype(float)), u, atol=1e-13 * v)


@pytest.mark.parametrize("form", ["primal", "dual"])
def test_weights_that_span_twelve_decades(rng, form):
    x = rng.normal(size=(9, 2)).astype(np.float32)
    weights = 10.0 ** rng.uniform(-12, 0, size=9)
    v, _ = exact_statistics(x, -x, 3, weights)
    np.testing.assert_allclose(jaxpsd.PSD(3, form=form).v_statistic(-x, x, weights), v, rtol=1e-5)


SETS = {
    "far from zero": (1e3, 1.0),
    "very far from zero": (1e6, 1.0),
    "tiny": (0.0, 1e-8),
    "tiny and not at zero": (1e-6, 1e-8),
    "huge": (0.0, 1e8),
}


@pytest.mark.filterwarnings("ignore::jaxpsd.PrecisionWarning")
@pytest.mark.parametrize(
    ("name", "transform"),
    [
        ("far from zero", None),
        ("very far from zero", "standardize"),
        ("tiny", "whiten"),
        *(
            pytest.param(name, transform, marks=pytest.mark.slow)
            for name in SETS
            for transform in (None, "standardize", "whiten")
        ),
    ],
)
def test_single_precision_is_right_for_the_draws_it_is_given(rng, name, transform):
    loc, scale = SETS[name]
    # The same numbers in both precisions.
    x = (loc + scale * rng.normal(size=(4000, 3))).astype(np.float32).astype(np.float64)
    s = ((loc - x) / scale**2).astype(np.float32).astype(np.float64)
    psd = jaxpsd.PSD(2, transform=transform)
    single = psd(s.astype(np.float32), x.astype(np.float32))
    p_value = jaxpsd.gof_test(jax.random.key(0), psd, s.astype(np.float32), x.astype(np.float32)).p_value
    # At 10⁶ the mean that is subtracted is itself rounded, to a sixteenth.
    rtol = 1e-2 if transform and loc == 1e6 else 1e-3
    with jax.enable_x64(True):
        np.testing.assert_allclose(single, psd(s, x), rtol=rtol)
        assert abs(p_value - jaxpsd.gof_test(jax.random.key(0), psd, s, x).p_value) < 0.01


def test_heavy_tails_keep_their_digits(rng):
    x = rng.standard_t(3, size=(20_000, 2)).astype(np.float32)
    s = (-4 * x / (3 + x**2)).astype(np.float32)
    for order in (1, 2):
        single = jaxpsd.PSD(order)(s, x)
        with jax.enable_x64(True):
            np.testing.assert_allclose(single, jaxpsd.PSD(order)(s.astype(float), x.astype(float)), rtol=1e-4)


def test_draws_that_rounding_has_made_coarse_are_named(rng):
    x = {"a": rng.normal(size=300), "b": 1e6 + rng.normal(size=(300, 2))}
    x["b"][:, 0] -= 1e6

    def logdensity(position):
        return -0.5 * position["a"] ** 2 - 0.5 * position["b"][0] ** 2 - 0.5 * (position["b"][1] - 1e6) ** 2

    for call in (
        lambda: jaxpsd.PSD(1)(logdensity, x),
        lambda: jaxpsd.KSD().u_statistic(logdensity, x),
        lambda: jaxpsd.gof_test(jax.random.key(0), jaxpsd.PSD(1), logdensity, x, num_replicates=50),
    ):
        with pytest.warns(
            jaxpsd.PrecisionWarning, match=r"`b\[1\]` of the draws .* float32 has about 1[5-7] "
        ) as caught:
            call()
        assert caught[0].filename == __file__
    with jax.enable_x64(True):
        jaxpsd.PSD(1)(logdensity, x)


def test_rounding_that_does_no_harm_is_not_mentioned(rng):
    for x in (1e4 + rng.normal(size=(300, 2)), np.full((50, 2), 1e6), 1e-20 * rng.normal(size=(300, 2))):
        jaxpsd.PSD(1)(np.ones_like(x, np.float32), x.astype(np.float32))


@pytest.mark.slow
def test_the_report_says_what_rounding_does(rng):
    x = (1e6 + rng.normal(size=(300, 1))).astype(np.float32)
    report = jaxpsd.diagnose(jax.random.key(0), lambda x: -0.5 * jnp.sum((x - 1e6) ** 2), x, num_replicates=99)
    assert any("digits of the draws are lost" in caveat for caveat in report.caveats)


@pytest.mark.parametrize("form", ["primal", "dual"])
def test_underflow_is_not_taken_for_a_perfect_fit(rng, form):
    x = (1e25 * rng.normal(size=(50, 2))).astype(np.float32)
    with pytest.raises(FloatingPointError, match=r"scores are at most .* too small for float32"):
        jaxpsd.PSD(1, form=form)((-x / 1e25 / 1e25).astype(np.float32), x)


def test_zero_is_zero_where_it_should_be():
    x = np.array([[1.0], [-1.0]])
    assert jaxpsd.PSD(2)(-x, x) == 0
    assert jaxpsd.PSD(2)(np.zeros((5, 2)), np.zeros((5, 2))) > 0
    assert jaxpsd.PSD(1)(np.zeros((5, 2)), np.ones((5, 2))) == 0


@pytest.mark.parametrize("transform", [None, "center"])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_draws_that_are_all_alike_have_the_discrepancy_of_one(n, transform):
    x = np.full((n, 2), 0.7, np.float32)
    v, _ = exact_statistics(np.full((2, 2), 0.7 if transform is None else 0.0, np.float32), -x[[0, 0]], 3)
    np.testing.assert_allclose(jaxpsd.PSD(3, transform=transform).v_statistic(-x, x), v, rtol=1e-6)


@pytest.mark.parametrize("transform", ["standardize", "whiten"])
def test_draws_that_are_all_alike_cannot_be_standardised(transform):
    with pytest.raises(ValueError, match="coordinate 0"):
        jaxpsd.PSD(2, transform=transform)(-np.ones((5, 2)), np.ones((5, 2)))


@pytest.mark.slow
def test_ten_million_draws_keep_four_digits():
    x = jax.random.normal(jax.random.key(0), (10**7, 2))
    for order in (2, 4):
        single = jaxpsd.PSD(order)(-x, x)
        with jax.enable_x64(True):
            wide = np.asarray(x, np.float64)
            np.testing.assert_allclose(single, jaxpsd.PSD(order)(-wide, wide), rtol=2e-4)
