"""The aggregated test: its calibration on common replicates, and what it takes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpsd

KEY = jax.random.key(0)
SEVERAL = [jaxpsd.PSD(1), jaxpsd.PSD(2, basis="hermite"), jaxpsd.KSD(jaxpsd.Gaussian(2.0)), jaxpsd.KSD()]


def logdensity(x):
    return -0.5 * jnp.sum(x**2)


@pytest.fixture(scope="module")
def good():
    return jax.random.normal(jax.random.key(1), (300, 3))


def test_the_p_value_is_that_of_the_smallest_among_replicates(good):
    result = jaxpsd.aggregate_test(KEY, SEVERAL, logdensity, good.at[:, 0].add(0.05), num_replicates=199)
    values = np.concatenate([np.asarray(result.parts.statistic)[None], np.asarray(result.parts.replicates)])
    p = (values[None] >= values[:, None]).mean(axis=1)
    np.testing.assert_allclose(result.parts.p_value, p[0], rtol=1e-5)
    logs = -np.log10(p)
    # Ties of the smallest are broken by the others.
    combined = logs.max(axis=1) + 1e-3 * logs.mean(axis=1)
    assert float(result.p_value) == pytest.approx((combined >= combined[0] - 1e-5).mean(), abs=1e-6)
    assert float(result.statistic) == pytest.approx(combined[0], rel=1e-4)
    assert result.labels == ("−log₁₀ of the smallest p",)


@pytest.mark.parametrize(
    "options",
    [{"method": "rademacher"}, {"method": "multinomial"}, {"method": "markov", "flip_probability": 0.1}],
    ids=lambda options: options["method"],
)
def test_parts_are_the_tests_of_the_discrepancies_alone(good, options):
    result = jaxpsd.aggregate_test(KEY, SEVERAL, logdensity, good, num_replicates=99, **options)
    for k, discrepancy in enumerate(SEVERAL):
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
