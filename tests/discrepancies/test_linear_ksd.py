import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import jaxpsd


def logdensity(x):
    return -0.5 * jnp.sum(x**2)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("kernel", "n"), [(jaxpsd.IMQ(), 40), (lambda x, y: jnp.exp(-jnp.sum((x - y) ** 2)), 41)], ids=["even", "odd"]
)
def test_it_is_a_mean_over_successive_pairs_with_a_z_test(kernel, n):
    x = 1.2 * jax.random.normal(jax.random.key(0), (n, 2))
    linear = jaxpsd.LinearKSD(kernel, block_size=7)
    gram = np.asarray(jaxpsd.KSD(kernel).gram(logdensity, x))
    terms = gram[np.arange(0, 39, 2), np.arange(1, 40, 2)]
    np.testing.assert_allclose(linear.u_statistic(logdensity, x), terms.mean(), rtol=1e-10)
    np.testing.assert_allclose(linear(logdensity, x), max(terms.mean(), 0) ** 0.5, rtol=1e-10)
    result = jaxpsd.gof_test(jax.random.key(1), linear, logdensity, x)
    error = terms.std(ddof=1) / 20**0.5
    np.testing.assert_allclose(result.p_value, scipy.stats.norm.sf(terms.mean() / error), rtol=1e-6)
    np.testing.assert_allclose(result.threshold, error * scipy.stats.norm.isf(0.05), rtol=1e-6)
    assert "deterministic" in repr(result)


def test_the_derivative_is_zero_where_the_mean_is_negative(normal_draws):
    x, _ = normal_draws
    linear = jaxpsd.LinearKSD(lambda x, y: -(jnp.sum(x * y) ** 2))
    value, gradient = jax.value_and_grad(lambda scale: linear(-scale * x, x))(1.0)
    assert value == gradient == 0


def test_dependent_chains_are_refused(chain):
    x = chain(0.8, (2, 300, 2))
    with pytest.raises(ValueError, match="takes pairs of successive draws as independent"):
        jaxpsd.gof_test(jax.random.key(0), jaxpsd.LinearKSD(), logdensity, x)


def test_what_it_has_not_is_said(normal_draws):
    x, s = normal_draws
    linear = jaxpsd.LinearKSD()
    with pytest.raises(ValueError, match="no V-statistic"):
        linear.v_statistic(s, x)
    with pytest.raises(ValueError, match="no weights"):
        linear(s, x, jnp.ones(200))
    with pytest.raises(ValueError, match="tested by method='asymptotic'"):
        jaxpsd.gof_test(jax.random.key(0), linear, s, x, method="markov")
    with pytest.raises(ValueError, match="z-test"):
        jaxpsd.gof_test(jax.random.key(0), linear, s, x, method="asymptotic", deterministic=True)
    with pytest.raises(ValueError, match="at least two pairs"):
        jaxpsd.gof_test(jax.random.key(0), linear, s[:3], x[:3])
    with pytest.raises(ValueError, match="got a single draw"):
        linear(s[:1], x[:1])


def test_it_is_no_quadratic_discrepancy():
    assert not isinstance(jaxpsd.LinearKSD(), jaxpsd.KSD)
    assert isinstance(jaxpsd.LinearKSD(), jaxpsd.Discrepancy)
