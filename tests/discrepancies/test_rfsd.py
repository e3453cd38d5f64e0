import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import jaxpsd
from jaxpsd._discrepancies import rfsd as _rfsd


def logdensity(x):
    return -0.5 * jnp.sum(x**2)


@pytest.mark.usefixtures("x64")
def test_values_are_those_of_the_published_code(reference):
    rfsd = jaxpsd.RFSD(locations=reference["rfsd_locations"], c=1.0, gamma=0.25, df=0.5, block_size=19)
    x, s = reference["samples"], reference["scores"]
    log_value = rfsd.log_value(s, x)
    np.testing.assert_allclose(log_value, reference["rfsd_log"], rtol=1e-10)
    np.testing.assert_allclose(rfsd(s, x), np.exp(log_value), rtol=1e-10)
    np.testing.assert_allclose(rfsd.v_statistic(s, x), np.exp(2 * log_value), rtol=1e-10)


def test_the_logarithm_holds_in_single_precision(reference):
    rfsd = jaxpsd.RFSD(locations=reference["rfsd_locations"], c=1.0, gamma=0.25, df=0.5)
    x, s = reference["samples"].astype(np.float32), reference["scores"].astype(np.float32)
    np.testing.assert_allclose(rfsd.log_value(s, x), reference["rfsd_log"], atol=1e-3)


def test_a_value_that_is_not_representable_is_an_error_and_its_logarithm_is_not():
    x = jax.random.normal(jax.random.key(0), (200, 30))
    rfsd = jaxpsd.RFSD(c=50.0)
    log_value = rfsd.log_value(logdensity, x)
    assert abs(float(log_value)) > 90
    with pytest.raises(FloatingPointError, match=r"use `log_value`"):
        rfsd(logdensity, x)


@pytest.mark.usefixtures("x64")
def test_the_density_of_locations_is_a_multivariate_t():
    apart, length, df = jax.random.normal(jax.random.key(1), (5, 3)), 0.7, 1.5
    expected = scipy.stats.multivariate_t(np.zeros(3), length**2 / df * np.eye(3), df=df).logpdf(apart)
    np.testing.assert_allclose(_rfsd._log_student(apart, jnp.asarray(length), df), expected, rtol=1e-10)


def test_locations_are_drawn_from_that_density():
    t = _rfsd._student(jax.random.key(2), (4000, 2), 3.0, jnp.float32)
    # ‖t‖² / 2 has the F distribution; a right sampler fails this once in 10⁴ runs.
    assert scipy.stats.kstest((t**2).sum(axis=1) / 2, scipy.stats.f(2, 3).cdf).pvalue > 1e-4


@pytest.mark.usefixtures("x64")
def test_weights_of_draws_are_repetitions():
    x = jax.random.normal(jax.random.key(3), (20, 2))
    locations = jax.random.normal(jax.random.key(4), (5, 2))
    repeated = jnp.repeat(x, jnp.arange(20) % 3 + 1, axis=0)
    rfsd = jaxpsd.RFSD(locations=locations)
    np.testing.assert_allclose(
        rfsd.log_value(logdensity, x, jnp.arange(20) % 3 + 1.0), rfsd.log_value(logdensity, repeated), rtol=1e-10
    )


def test_the_key_decides_on_the_locations(normal_draws):
    x, s = normal_draws
    one, same, other = (jaxpsd.RFSD(rng_key=jax.random.key(seed)).log_value(s, x) for seed in (0, 0, 1))
    assert one == same == jaxpsd.RFSD().log_value(s, x)
    assert one != other


def test_a_test_takes_the_lengths_of_the_draws(normal_draws):
    """Scale-free: the features of a test are in units of the median distance, unless given."""
    x, s = normal_draws
    rfsd = jaxpsd.RFSD(location_scale="matched")
    results = [
        jaxpsd.gof_test(jax.random.key(0), rfsd, s / scale, x * scale, method="rademacher") for scale in (1.0, 64.0)
    ]
    np.testing.assert_allclose(results[0].p_value, results[1].p_value, atol=0.003)


def test_it_can_be_traced_and_differentiated(normal_draws):
    x, _ = normal_draws
    sets = x.reshape(2, 100, 3)
    rfsd = jaxpsd.RFSD()
    together = jax.jit(jax.vmap(lambda x: rfsd.log_value(logdensity, x)))(sets)
    np.testing.assert_allclose(together, [rfsd.log_value(logdensity, one) for one in sets], rtol=1e-4)
    gradient = jax.grad(lambda scale: rfsd.log_value(logdensity, scale * x))(1.0)
    assert np.isfinite(gradient)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: jaxpsd.RFSD(gamma=1.5), "`gamma` must be a float between 0 and 1"),
        (lambda x: jaxpsd.RFSD(0), "`num_features` must be an integer"),
        (lambda x: jaxpsd.RFSD(c=-1.0), "`c` must be a positive number"),
        (lambda x: jaxpsd.RFSD(location_scale="unit"), "`location_scale` must be one of"),
        (lambda x: jaxpsd.RFSD(locations=jnp.zeros((2, 2)))(-x, x), r"`locations` must be \(locations, 3\)"),
        (lambda x: jaxpsd.RFSD().u_statistic(-x, x), "no U-statistic for the RFSD"),
        (lambda x: jaxpsd.RFSD().gram(-x, x), "no Gram matrix for the RFSD"),
        (lambda x: jaxpsd.stream(jaxpsd.RFSD())[0](jax.random.key(0), x[0]), "looks at all draws"),
    ],
)
def test_it_refuses_what_makes_no_sense(call, message, normal_draws):
    with pytest.raises(ValueError, match=message):
        call(normal_draws[0])
