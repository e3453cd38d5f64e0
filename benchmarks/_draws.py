"""Right and wrong draws of Gaussian targets: functions of a key, the number of draws and the dimension."""

from collections.abc import Callable

import jax

Draw = Callable[[jax.Array, int, int], jax.Array]


def normal(key: jax.Array, n: int, dim: int) -> jax.Array:
    return jax.random.normal(key, (n, dim))


def shifted(by: float) -> Draw:
    """One mean is off."""
    return lambda key, n, dim: normal(key, n, dim).at[:, 0].add(by)


def widened(variance: float) -> Draw:
    """One variance is not one."""
    return lambda key, n, dim: normal(key, n, dim).at[:, 0].multiply(variance**0.5)


def scaled(by: float) -> Draw:
    """All standard deviations are off by a factor."""
    return lambda key, n, dim: by * normal(key, n, dim)


def correlated(by: float) -> Draw:
    """One correlation is not zero."""

    def draw(key: jax.Array, n: int, dim: int) -> jax.Array:
        x = normal(key, n, dim)
        return x.at[:, 1].set(by * x[:, 0] + (1 - by**2) ** 0.5 * x[:, 1])

    return draw


def equicorrelated(correlation: float, scale: float = 1.0) -> Draw:
    """All correlations are the same: a common part beside each coordinate's own."""

    def draw(key: jax.Array, n: int, dim: int) -> jax.Array:
        common, own = jax.random.split(key)
        shared = correlation**0.5 * normal(common, n, 1)
        return scale * (shared + (1 - correlation) ** 0.5 * normal(own, n, dim))

    return draw


def skewed(shape: float) -> Draw:
    """One coordinate is a standardised gamma variable."""

    def draw(key: jax.Array, n: int, dim: int) -> jax.Array:
        others, own = jax.random.split(key)
        gamma = jax.random.gamma(own, shape, (n,))
        return normal(others, n, dim).at[:, 0].set((gamma - shape) / shape**0.5)

    return draw


def student(key: jax.Array, n: int, dim: int) -> jax.Array:
    return jax.random.t(key, 5.0, (n, dim))


def laplace(key: jax.Array, n: int, dim: int) -> jax.Array:
    return jax.random.laplace(key, (n, dim)) / 2**0.5
