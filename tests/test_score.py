import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

import jaxpsd
from jaxpsd import _score


def logdensity(x):
    return -0.25 * jnp.sum(x**4)


def test_scores_are_gradients_for_every_layout():
    x = jax.random.normal(jax.random.key(0), (2, 5, 3))
    np.testing.assert_allclose(jaxpsd.score(logdensity, x), -(x**3), rtol=1e-6)
    np.testing.assert_allclose(jaxpsd.score(logdensity, x[0]), -(x[0] ** 3), rtol=1e-6)
    tree = {"a": x[..., 0], "b": (x[..., 1:],)}
    scores = jaxpsd.score(lambda p: -0.25 * (p["a"] ** 4 + jnp.sum(p["b"][0] ** 4)), tree, chains=True)
    jax.tree.map(lambda s, x: np.testing.assert_allclose(s, -(x**3), rtol=1e-6), scores, tree)


def test_memory_does_not_grow_with_draws_times_data():
    data = jnp.linspace(-1, 1, 100_000)

    def posterior(theta):
        return -0.5 * jnp.sum((data - theta[0]) ** 2 * jnp.exp(theta[1])) - 0.5 * theta @ theta

    draws = jax.ShapeDtypeStruct((10_000, 2), jnp.float32)
    kernel = _score._compile(_score._scores, posterior, None)
    memory = kernel.lower(((), {}), draws).compile().memory_analysis()
    # All draws at once would need 10⁴ · 10⁵ numbers, 4 GB, for each intermediate.
    assert memory.temp_size_in_bytes < 4 * _score._SCORING_BYTES
    jaxpsd.score(posterior, jnp.ones((10, 2)))


def test_blocks_of_draws_give_the_scores_of_all(monkeypatch):
    x = jax.random.normal(jax.random.key(1), (101, 2))
    monkeypatch.setattr(_score, "_SCORING_BYTES", 1000)
    np.testing.assert_allclose(jaxpsd.score(lambda x: logdensity(x), x), -(x**3), rtol=1e-6)


def test_a_global_that_is_bound_anew_is_seen():
    namespace = {"jnp": jnp, "scale": 1.0}
    exec("def target(x):\n    return -0.5 * jnp.sum(x**2) / scale", namespace)
    x = jnp.ones((3, 2))
    assert jaxpsd.score(namespace["target"], x)[0, 0] == -1
    namespace["scale"] = 4.0
    assert jaxpsd.score(namespace["target"], x)[0, 0] == -0.25


def test_closures_and_defaults_that_change_are_seen():
    scale = 1.0

    def target(x, *, power=2):
        return -jnp.sum(x**power) / scale

    x = jnp.ones((3, 2))
    assert jaxpsd.score(target, x)[0, 0] == -2
    scale = 2.0
    assert jaxpsd.score(target, x)[0, 0] == -1
    target.__kwdefaults__ = {"power": 4}
    assert jaxpsd.score(target, x)[0, 0] == -2


def test_methods_and_callables_are_traced_anew():
    class Model:
        scale = 1.0

        def logdensity(self, x):
            return -0.5 * jnp.sum(x**2) / self.scale

        __call__ = logdensity

    model, x = Model(), jnp.ones((3, 2))
    for target in (lambda: model.logdensity, lambda: model):
        model.scale = 1.0
        assert jaxpsd.score(target(), x)[0, 0] == -1
        model.scale = 4.0
        assert jaxpsd.score(target(), x)[0, 0] == -0.25


def test_parameters_of_a_partial_may_change_without_tracing():
    traces = []

    def target(scale, x, power=2):
        traces.append(1)
        return -jnp.sum(x**power) / scale

    x = jnp.ones((3, 2))
    assert jaxpsd.score(Partial(target, jnp.float32(1.0)), x)[0, 0] == -2
    assert jaxpsd.score(Partial(target, jnp.float32(4.0)), x)[0, 0] == -0.5
    assert len(traces) == 1


def test_a_jitted_log_density_is_a_log_density():
    x = jnp.ones((3, 2))
    np.testing.assert_allclose(jaxpsd.score(jax.jit(logdensity), x), -(x**3))


def test_only_functions_are_scored():
    with pytest.raises(TypeError, match="`logdensity_fn` must be a function; got Array"):
        jaxpsd.score(jnp.ones((3, 2)), jnp.ones((3, 2)))


def test_compiled_programs_are_not_kept_for_ever():
    size = _score._compiled.cache_info().maxsize
    for shift in range(3):
        jaxpsd.score(lambda x, shift=shift: logdensity(x - shift), jnp.ones((2, 1)))
    assert _score._compiled.cache_info().currsize <= size
