import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpsd
from jaxpsd._core import programs, scores
from jaxpsd._core.scores import check_input


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
    observations = jnp.linspace(-1, 1, 100_000)

    def posterior(theta):
        return -0.5 * jnp.sum((observations - theta[0]) ** 2 * jnp.exp(theta[1])) - 0.5 * theta @ theta

    given = check_input(posterior, jnp.zeros((10_000, 2)))
    memory = jax.jit(scores._scores).lower(given.data).compile().memory_analysis()
    # All draws at once would need 10⁴ · 10⁵ numbers, 4 GB, for each intermediate.
    assert memory.temp_size_in_bytes < 4 * programs._SCORING_BYTES
    jaxpsd.score(posterior, jnp.ones((10, 2)))


def test_blocks_of_draws_give_the_scores_of_all(monkeypatch):
    x = jax.random.normal(jax.random.key(1), (101, 2))
    monkeypatch.setattr(programs, "_SCORING_BYTES", 1000)
    np.testing.assert_allclose(jaxpsd.score(lambda x: logdensity(x), x), -(x**3), rtol=1e-6)


def test_a_jitted_log_density_is_a_log_density():
    x = jnp.ones((3, 2))
    np.testing.assert_allclose(jaxpsd.score(jax.jit(logdensity), x), -(x**3))


def test_only_functions_are_scored():
    with pytest.raises(TypeError, match="`logdensity_fn` must be a function of one position; got Array"):
        jaxpsd.score(jnp.ones((3, 2)), jnp.ones((3, 2)))


def test_draws_outside_the_support_are_noticed_by_the_value():
    x = jnp.array([[1.0], [2.0], [-1.0]])
    with pytest.raises(ValueError, match=r"score .* not finite at draw 2, coordinate 0"):
        jaxpsd.score(lambda x: jnp.sum(2 * jnp.log(x) - x), x)
    inside = lambda x: jnp.where(x[0] > 0, -jnp.sum(x), -jnp.inf)  # noqa: E731
    with pytest.raises(ValueError, match="draw 2"):
        jaxpsd.PSD(2)(inside, x)
    assert jnp.isnan(jax.jit(lambda x: jaxpsd.PSD(2)(inside, x))(x))


def test_what_cannot_be_differentiated_backwards_is_told_about_scores():
    def target(x):
        return jax.lax.while_loop(lambda c: c[1] < 3, lambda c: (c[0] * 0.5, c[1] + 1), (-x @ x, 0))[0]

    with pytest.raises(ValueError, match="everse-mode") as caught:
        jaxpsd.score(target, jnp.ones((3, 2)))
    assert "jax.jacfwd" in "".join(caught.value.__notes__)
