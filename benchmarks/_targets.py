"""Targets of which exact draws are known: maps of standard normal variables, in as many dimensions as one likes."""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats


class Target(NamedTuple):
    """A density and how to draw from it.

    logdensity
        Of one position.
    draws
        From standard normal variables (…, dim) to draws; those of a correlated chain make a chain with exact margins.
    fewest
        The smallest dimension in which it is itself.
    """

    logdensity: Callable[[jax.Array], jax.Array]
    draws: Callable[[jax.Array], jax.Array]
    fewest: int = 1


GRID = np.linspace(-7, 7, 28_001)


def tabulated(quantile: Callable[[np.ndarray], np.ndarray]) -> Callable[[jax.Array], jax.Array]:
    """A quantile function of Φ(z), by interpolation."""
    values = quantile(GRID).astype(np.float32)
    return lambda z: jnp.interp(z, jnp.asarray(GRID, z.dtype), jnp.asarray(values))


def mixture_quantile(z: np.ndarray) -> np.ndarray:
    """Of ½N(−2, 1) + ½N(2, 1), by inverting its distribution function on a grid."""
    x = np.linspace(-10, 10, 200_001)
    below = 0.5 * (scipy.stats.norm.cdf(x + 2) + scipy.stats.norm.cdf(x - 2))
    above = 0.5 * (scipy.stats.norm.sf(x + 2) + scipy.stats.norm.sf(x - 2))
    score = np.where(below < 0.5, scipy.stats.norm.ppf(below), scipy.stats.norm.isf(above))
    return np.interp(z, score, x)


def gamma_quantile(z: np.ndarray) -> np.ndarray:
    """Of the logarithm of a Gamma(2) variable; from the nearer end, where digits are left."""
    gamma = scipy.stats.gamma(2)
    low = gamma.ppf(scipy.stats.norm.cdf(np.minimum(z, 0)))
    high = gamma.isf(scipy.stats.norm.sf(np.maximum(z, 0)))
    return np.log(np.where(z < 0, low, high))


def student_quantile(z: np.ndarray) -> np.ndarray:
    return np.sign(z) * scipy.stats.t(5).isf(scipy.stats.norm.sf(np.abs(z)))


def logistic_quantile(z: jax.Array) -> jax.Array:
    """Log Φ(z) − log Φ(−z)."""
    return jax.scipy.stats.norm.logcdf(z) - jax.scipy.stats.norm.logcdf(-z)


MIXING = np.linalg.cholesky(np.array([[1, 0.8, 0.5], [0.8, 1, 0.6], [0.5, 0.6, 1]]))
UNMIXING = np.linalg.inv(MIXING)
FUNNEL = 1.5


def gaussian(x):
    return -0.5 * jnp.sum(x**2)


def correlated(x):
    return -0.5 * jnp.sum((jnp.asarray(UNMIXING, x.dtype) @ x) ** 2)


def skewed(x):
    return jnp.sum(2 * x - jnp.exp(x))


def heavy_tailed(x):
    return -3 * jnp.sum(jnp.log1p(x**2 / 5))


def logistic(x):
    return jnp.sum(jax.nn.log_sigmoid(x) + jax.nn.log_sigmoid(-x))


def bimodal(x):
    return jnp.sum(jnp.logaddexp(-0.5 * (x - 2) ** 2, -0.5 * (x + 2) ** 2))


def banana(x):
    """x₂ is normal around x₁² − 1; all others are standard normal."""
    return gaussian(x.at[1].add(1 - x[0] ** 2))


def bent(z: jax.Array) -> jax.Array:
    return z.at[..., 1].add(z[..., 0] ** 2 - 1)


def funnel(x):
    """Neal's: v is normal, all others have the variance exp(v)."""
    v, rest = x[0], x[1:]
    return -0.5 * (v / FUNNEL) ** 2 - 0.5 * rest.size * v - 0.5 * jnp.exp(-v) * jnp.sum(rest**2)


def narrowing(z: jax.Array) -> jax.Array:
    v = FUNNEL * z[..., :1]
    return jnp.concatenate([v, jnp.exp(0.5 * v) * z[..., 1:]], axis=-1)


@lru_cache(maxsize=1)
def targets() -> dict[str, Target]:
    return {
        "Gaussian": Target(gaussian, lambda z: z),
        "correlated": Target(correlated, lambda z: z @ jnp.asarray(MIXING.T, z.dtype), 3),
        "skewed": Target(skewed, tabulated(gamma_quantile)),
        "heavy tails": Target(heavy_tailed, tabulated(student_quantile)),
        "logistic": Target(logistic, logistic_quantile),
        "bimodal": Target(bimodal, tabulated(mixture_quantile)),
        "banana": Target(banana, bent, 2),
        "funnel": Target(funnel, narrowing, 2),
    }


def autoregressive(key: jax.Array, rho: float, chains: int, n: int, dim: int) -> jax.Array:
    """Standard normal variables (chains, n, dim), those of a chain correlated."""
    noise = jax.random.normal(key, (n, chains, dim))
    path = jax.lax.scan(lambda x, e: (rho * x + (1 - rho**2) ** 0.5 * e,) * 2, noise[0], noise)[1]
    return jnp.swapaxes(path, 0, 1)
