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
    assert "of shape (2,)" in "".join(caught.value.__notes__)


def test_mistakes_are_explained():
    with pytest.raises(TypeError, match="`functions` must be a function of one position; got int"):
        jaxpsd.SteinDiscrepancy(3)
    with pytest.raises(ValueError, match="`block_size` must be an integer"):
        jaxpsd.SteinDiscrepancy(jnp.sin, block_size=-1)


# --- features and kernels of one's own ----------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
def test_features_given_by_hand_are_those_of_the_operator():
    x = jax.random.normal(jax.random.key(5), (40, 2))
    own = jaxpsd.FeatureDiscrepancy(lambda x, s: (s, 2 + 2 * x * s), block_size=7)
    expected = jaxpsd.PSD(2, interactions=False)
    for method in ("__call__", "u_statistic", "features"):
        np.testing.assert_allclose(
            getattr(own, method)(logdensity, x), getattr(expected, method)(logdensity, x), rtol=1e-10
        )


@pytest.mark.usefixtures("x64")
def test_a_stein_kernel_given_by_hand_is_that_of_its_features():
    x = jax.random.normal(jax.random.key(6), (30, 2))
    tree = {"a": x[:, 0], "b": x[:, 1:]}
    target = lambda p: logdensity(jnp.append(p["a"], p["b"]))  # noqa: E731
    own = jaxpsd.KernelDiscrepancy(lambda x, s, y, u: s["a"] * u["a"] + s["b"] @ u["b"], block_size=7)
    for method in ("__call__", "u_statistic", "gram"):
        np.testing.assert_allclose(
            getattr(own, method)(target, tree), getattr(jaxpsd.PSD(1), method)(logdensity, x), rtol=1e-10
        )
    key = jax.random.key(0)
    tests = [
        jaxpsd.gof_test(key, *pair, method="rademacher", num_replicates=99)
        for pair in ((own, target, tree), (jaxpsd.PSD(1), logdensity, x))
    ]
    np.testing.assert_allclose(tests[0].replicates, tests[1].replicates, rtol=1e-8)


def test_what_is_wrong_with_them_is_said(normal_draws):
    x, s = normal_draws
    with pytest.raises(TypeError, match="`stein_kernel` must be a function of two draws"):
        jaxpsd.KernelDiscrepancy(3)
    with pytest.raises(TypeError, match="`features_of` must be a function of one position and its score"):
        jaxpsd.FeatureDiscrepancy("tau")
    with pytest.raises(TypeError, match=r"must return one floating-point number .* returned float32 of shape \(3,\)"):
        jaxpsd.KernelDiscrepancy(lambda x, s, y, u: s)(s, x)
    with pytest.raises(TypeError, match="`features_of` must return floating-point"):
        jaxpsd.FeatureDiscrepancy(lambda x, s: 1)(s, x)


@pytest.mark.parametrize(("value", "found"), [("a", "str"), (object(), "object"), (None, ""), (1j, "complex64")])
@pytest.mark.parametrize(
    "kind",
    [jaxpsd.SteinDiscrepancy, jaxpsd.FeatureDiscrepancy, jaxpsd.KernelDiscrepancy],
    ids=lambda kind: kind.__name__,
)
def test_what_is_no_number_is_refused(kind, value, found, normal_draws):
    x, s = normal_draws
    with pytest.raises(TypeError, match=f"must return .*floating-point number.* it returned {found}"):
        kind(lambda *draws: value)(s, x)
