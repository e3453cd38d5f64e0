"""Weights of draws that keep a few extreme ones from ruling a regression.

Whatever the weights, they make another law of draws, and the regression on Stein features is right for any.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxpsd._core.blocks import einsum, map_over_blocks, sum_over_blocks, weighted
from jaxpsd._core.types import Block, PyTree, Weights

# A draw whose features are M times as far out as usual, squared, has weight 1 / (1 + M / 3), after three rounds.
_USUAL_DISTANCE, _ROUNDS = 3, 3


def mean_over_draws(
    fn: Callable[[PyTree], Block], rows: PyTree, weights: Float[Array, " draws"], length: int
) -> Float[Array, " columns"]:
    """The mean of a function of rows, whose deviations from the first keep their digits."""
    first = fn(jax.tree.map(lambda leaf: leaf[:1], rows))

    def on_block(block: PyTree, block_weights: Weights) -> tuple[Array, None]:
        return weighted(fn(block) - first, block_weights).sum(axis=0), None

    return first[0] + sum_over_blocks(on_block, rows, weights, length)[0]


def weights_without_extremes(
    features: Callable[[PyTree], Block], rows: PyTree, given: Float[Array, " draws"], length: int
) -> tuple[Float[Array, " draws"], Float[Array, " features"]]:
    """Weights of draws, less than given to those whose features are far from the others'; and the centre of these."""

    def again(_: int, state: tuple[Array, Array]) -> tuple[Array, Array]:
        weights, about = state

        def moments(block: PyTree, block_weights: Weights) -> tuple[PyTree, None]:
            tau = features(block) - about[None]
            counted = weighted(tau, block_weights)
            return (counted.sum(axis=0), einsum("ni,nj->ij", counted, tau)), None

        (shift, squares), _ = sum_over_blocks(moments, rows, weights, length)
        centre, covariance = about + shift, squares - jnp.outer(shift, shift)
        inverse = inverse_scale(covariance)
        # A little ridge: features that move together do no harm, and need no digits.
        ridge = jnp.eye(len(centre), dtype=centre.dtype) * 100 * jnp.finfo(centre.dtype).eps * len(centre)
        factor = jnp.linalg.cholesky(covariance * jnp.outer(inverse, inverse) + ridge)

        def distance(block: PyTree) -> Float[Array, " block"]:
            centred = (features(block) - centre[None]) * inverse[None]
            return (jax.scipy.linalg.solve_triangular(factor, centred.T, lower=True) ** 2).mean(axis=0)

        # In units of what is usual, which is one.
        weights = given / (1 + map_over_blocks(distance, rows, length) / _USUAL_DISTANCE)
        return weights / weights.sum(), centre

    return jax.lax.fori_loop(0, _ROUNDS, again, (given, mean_over_draws(features, rows, given, length)))


def inverse_scale(covariance: Float[Array, "features features"]) -> Float[Array, " features"]:
    """One over the features' standard deviations; zero where a feature is constant."""
    variance = jnp.diag(covariance)
    return jnp.where(variance > 0, 1 / jnp.sqrt(jnp.where(variance > 0, variance, 1)), 0)
