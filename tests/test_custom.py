import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpsd


def logdensity(x):
    return -0.25 * jnp.sum(x**4)


@pytest.mark.usefixtures("x64")
def test_monomials_given_as_functions_are_the_psd():
    x = jax.random.normal(jax.random.key(0), (40, 2))
    own = jaxpsd.SteinDiscrepancy(lambda x: (x, x[0] ** 2, x[0] * x[1], x[1] ** 2), block_size=7)
    psd = jaxpsd.PSD(2)
    for method in ("__call__", "v_statistic", "u_statistic", "features", "gram"):
        np.testing.assert_allclose(getattr(own, method)(logdensity, x), getattr(psd, method)(logdensity, x), rtol=1e-10)
    weights = jnp.arange(40.0)
    np.testing.assert_allclose(own(logdensity, x, weights), psd(logdensity, x, weights), rtol=1e-10)


def test_functions_see_the_structure_of_the_draws():
    x = jax.random.normal(jax.random.key(1), (30, 3))
    tree = {"a": x[:, 0], "b": x[:, 1:]}
    own = jaxpsd.SteinDiscrepancy(lambda p: p["a"] * p["b"])
    target = lambda p: -0.5 * (p["a"] ** 2 + jnp.sum(p["b"] ** 2))  # noqa: E731
    expected = jaxpsd.PSD(2).features(-x, x)[:, [4, 6]]
    np.testing.assert_allclose(own.features(target, tree), expected, rtol=1e-5, atol=1e-5)


def test_methods_that_change_are_traced_anew():
    class Basis:
        power = 1

        def functions(self, x):
            return x**self.power

    basis, x = Basis(), jax.random.normal(jax.random.key(2), (30, 2))
    first = jaxpsd.SteinDiscrepancy(basis.functions)(-x, x)
    basis.power = 2
    assert jaxpsd.SteinDiscrepancy(basis.functions)(-x, x) != first


def test_it_traces_and_differentiates():
    x = jax.random.normal(jax.random.key(3), (30, 2))
    own = jaxpsd.SteinDiscrepancy(jnp.sin)
    np.testing.assert_allclose(jax.jit(own)(-x, x), own(-x, x), rtol=1e-5)
    assert jnp.isfinite(jax.grad(lambda x: own(-x, x))(x)).all()


def test_positions_that_are_not_finite_are_noticed():
    x = jnp.ones((5, 2)).at[2, 1].set(jnp.nan)
    with pytest.raises(ValueError, match="draw 2, coordinate 1"):
        jaxpsd.SteinDiscrepancy(lambda x: x)(jnp.ones((5, 2)), x)


def test_memory_is_bounded_by_what_the_functions_compute():
    wide = np.random.default_rng(0).normal(size=(10, 5000)).astype(np.float32)
    own = jaxpsd.SteinDiscrepancy(lambda x: jnp.sum(jnp.tanh(x @ wide)))
    x = jax.ShapeDtypeStruct((20_000, 10), jnp.float32)
    memory = jax.jit(lambda x: own(-x, x)).lower(x).compile().memory_analysis()
    # All draws at once would need 20,000 × 10 × 5,000 numbers, 4 GB, for each intermediate.
    assert memory.temp_size_in_bytes < 2**28


def test_functions_that_are_none():
    x = jnp.ones((5, 2))
    with pytest.raises(TypeError, match="it returned nothing"):
        jaxpsd.SteinDiscrepancy(lambda x: None)(-x, x)
    with pytest.raises(TypeError, match="floating-point numbers or arrays; it returned int32"):
        jaxpsd.SteinDiscrepancy(jnp.argmax)(-x, x)
    with pytest.raises(FloatingPointError, match="A function or one of its first two derivatives"):
        jaxpsd.SteinDiscrepancy(jnp.sqrt)(x, -x)
    with pytest.raises(KeyError) as caught:
        jaxpsd.SteinDiscrepancy(lambda x: {}["missing"])(-x, x)
    assert "one position, of shape (2,)" in "".join(caught.value.__notes__)


def test_mistakes_are_explained():
    with pytest.raises(TypeError, match="`functions` must be a function of one position; got int"):
        jaxpsd.SteinDiscrepancy(3)
    with pytest.raises(ValueError, match="`block_size` must be an integer"):
        jaxpsd.SteinDiscrepancy(jnp.sin, block_size=-1)
