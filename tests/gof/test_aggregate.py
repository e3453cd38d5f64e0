"""The aggregated test: its calibration on common replicates, and what it takes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpsd
from jaxpsd._gof.pvalues import combine

KEY = jax.random.key(0)
SEVERAL = [jaxpsd.PSD(1), jaxpsd.PSD(2, basis="hermite"), jaxpsd.KSD(jaxpsd.Gaussian(2.0)), jaxpsd.KSD()]


def logdensity(x):
    return -0.5 * jnp.sum(x**2)


@pytest.fixture(scope="module")
def good():
    return jax.random.normal(jax.random.key(1), (300, 3))


def test_the_p_value_is_that_of_the_harmonic_mean_among_replicates(good):
    result = jaxpsd.aggregate_test(KEY, SEVERAL, logdensity, good.at[:, 0].add(0.05), num_replicates=199)
    values = np.concatenate([np.asarray(result.parts.statistic)[None], np.asarray(result.parts.replicates)])
    p = (values[None] >= values[:, None]).mean(axis=1)
    np.testing.assert_allclose(result.parts.p_value, p[0], rtol=1e-5)
    # Beyond the 95% quantile the tail goes on as it falls from the 80% quantile on.
    body, tail = (np.sort(values, axis=0)[int(share * 200)] for share in (0.8, 0.95))
    extrapolated = 0.05 * 4 ** -((values - tail) / (tail - body))
    p = np.where(values > tail, extrapolated, p)
    combined = np.log10((1 / p).mean(axis=1))
    assert float(result.p_value) == pytest.approx((combined >= combined[0] - 1e-5).mean(), abs=1e-6)
    assert float(result.statistic) == pytest.approx(combined[0], rel=1e-3)
    assert result.labels == ("−log₁₀ of the mean p",)


def test_no_p_value_is_smaller_than_one_over_all_columns(good):
    result = jaxpsd.aggregate_test(KEY, SEVERAL, logdensity, 3 * good, num_replicates=199)
    assert float(result.p_value) == pytest.approx(1 / 200)


def test_statistics_without_spread_do_no_harm():
    constant = np.full((2, 40), 3.0)
    assert np.isfinite(combine(jnp.asarray(constant), jnp.ones(2))).all()


# A sum of features and a sum over pairs with each kind of signs, and all discrepancies with one.
@pytest.mark.parametrize(
    ("several", "options"),
    [
        (SEVERAL, {"method": "rademacher"}),
        (SEVERAL[1:3], {"method": "multinomial"}),
        (SEVERAL[1:3], {"method": "markov", "flip_probability": 0.1}),
        pytest.param(SEVERAL, {"method": "multinomial"}, marks=pytest.mark.slow),
        pytest.param(SEVERAL, {"method": "markov", "flip_probability": 0.1}, marks=pytest.mark.slow),
        pytest.param(SEVERAL, {"method": "block", "block_length": 7}, marks=pytest.mark.slow),
    ],
    ids=lambda given: given["method"] if isinstance(given, dict) else str(len(given)),
)
def test_parts_are_the_tests_of_the_discrepancies_alone(good, several, options):
    result = jaxpsd.aggregate_test(KEY, several, logdensity, good, num_replicates=99, **options)
    for k, discrepancy in enumerate(several):
        alone = jaxpsd.gof_test(KEY, discrepancy, logdensity, good, num_replicates=99, **options)
        np.testing.assert_allclose(result.parts.statistic[k], alone.statistic, rtol=1e-5)
        np.testing.assert_allclose(result.parts.replicates[:, k], alone.replicates, rtol=1e-3, atol=1e-6)


def test_dependent_draws_take_common_persistent_signs(chain):
    result = jaxpsd.aggregate_test(KEY, SEVERAL[:2], logdensity, chain(0.9, (2, 2000, 3)), num_replicates=99)
    assert result.method == "markov"
    assert not result.reject
    assert result.parts.autocorrelation_time == result.autocorrelation_time


def test_it_can_be_traced(good):
    def test(x):
        return jaxpsd.aggregate_test(KEY, SEVERAL[:2], logdensity, x, method="rademacher", num_replicates=99)

    assert jax.jit(test)(1.5 * good).reject
    assert not jax.jit(test)(good).reject


def test_what_the_parts_are_called(good):
    several = [jaxpsd.PSD(2), jaxpsd.PSD(4, basis="hermite"), jaxpsd.KSD(jaxpsd.Gaussian(2.0)), jaxpsd.PSD(2)]
    result = jaxpsd.aggregate_test(KEY, several, logdensity, good, method="rademacher", num_replicates=19)
    assert result.parts.labels == (
        "PSD(2), number 1", "PSD(4, basis='hermite')", "KSD(Gaussian(2.0))", "PSD(2), number 4",
    )  # fmt: skip


def test_labels_that_read_alike_drop_nothing(good):
    several = {1: SEVERAL[0], "1": SEVERAL[1]}
    result = jaxpsd.aggregate_test(KEY, several, logdensity, good, method="rademacher", num_replicates=19)
    assert result.parts.labels == ("1", "1")


@pytest.mark.parametrize(
    ("several", "message"),
    [
        ([], "at least one"),
        (jaxpsd.PSD(2), "several"),
        ("PSD", "several"),
        ([jaxpsd.PSD], "the class PSD"),
        ([jaxpsd.LinearKSD()], "use KSD"),
    ],
)
def test_what_is_not_several_discrepancies(good, several, message):
    with pytest.raises((TypeError, ValueError), match=message):
        jaxpsd.aggregate_test(KEY, several, logdensity, good)
