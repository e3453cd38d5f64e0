"""What is seen on the way through the draws of a test, and the doubts that it gives rise to."""

from math import ceil
from statistics import NormalDist
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxpsd._core.blocks import weighted
from jaxpsd._core.checks import is_concrete
from jaxpsd._core.doubts import DependentDrawsWarning, Doubt, ScalesWarning
from jaxpsd._core.draws import Draws
from jaxpsd._core.types import Block, PyTree, Scalar, Weights
from jaxpsd._discrepancies.base import find_heavy_tails
from jaxpsd._discrepancies.plans import Plan, share_of_few

# Where standard deviations differ more than this, raw monomials look at some coordinates only.
_LARGEST_SCALE_RATIO = 10

# How often independent draws may raise a doubt; and a correlation of successive draws that does no harm.
_FALSE_ALARM, _HARMLESS = 1e-4, 0.05

# Scales and correlations are an alarm, not a result: of more draws than this, some are looked at.
_DRAWS_LOOKED_AT = 2**14

# Fewer effective draws than this are too few for a bootstrap of dependent draws; and of features beyond degree 2,
# whose heavy tails they have not seen.
ENOUGH_EFFECTIVE, _ENOUGH_FOR_TAILS = 20, 100


class Symptoms(NamedTuple):
    """What was seen of the draws.

    few_share
        About what share of Σ‖τ‖² a few draws have.
    scales
        Standard deviation of each coordinate.
    lag_one
        Correlation of successive draws: of each score s_i and of each x_i s_i.
    """

    few_share: Scalar
    scales: Float[Array, " dim"]
    lag_one: Float[Array, " twice_dim"]


def observe(plan: Plan, x: Block, s: Block, weights: Weights, num_draws: int) -> tuple[PyTree, Float[Array, " few"]]:
    """What a block adds to the sums, and its most extreme draws, which are stacked."""
    extremeness, largest = plan.extremes(x, s, weights, num_draws)
    # Successive draws, so the first ones of each block where there are many; but those without weight.
    some = ceil(len(x) * min(1, _DRAWS_LOOKED_AT / num_draws))
    x, s = x[:some], s[:some]
    seen = None if weights is None else (weights[:some] > 0).astype(x.dtype)
    count = jnp.asarray(len(x), x.dtype) if seen is None else seen.sum()
    # Within blocks: an offset that all draws share then costs no digits, and a drift shows all the same.
    u = jnp.concatenate([x, s, x * s], axis=1)
    mean = weighted(u, seen).sum(axis=0, keepdims=True) / jnp.maximum(count, 1)
    u = weighted(u - mean, seen)
    return (extremeness, (u**2).sum(axis=0), (u[1:] * u[:-1]).sum(axis=0), count), largest


def symptoms_from(sums: PyTree, largest: Array) -> Symptoms:
    """From the sums over all blocks to what is to be judged."""
    # Blocks may overlap, so that the draws counted are more than there are.
    extremeness, squares, products, count = sums
    dim = len(squares) // 3
    lag_one = jnp.where(squares > 0, products / jnp.where(squares > 0, squares, 1), 0)
    return Symptoms(share_of_few(largest, extremeness), jnp.sqrt(squares[:dim] / count), lag_one[dim:])


def find_doubts(seen: Symptoms, draws: Draws, plan: Plan, method: str, *, independent: bool) -> tuple[Doubt, ...]:
    """What makes a test doubtful whose method takes draws as independent, or does not."""
    if not is_concrete(seen):
        return ()
    seen = jax.tree.map(np.asarray, seen)
    doubts = [*find_heavy_tails(seen.few_share, draws)]
    largest, count = float(seen.lag_one.max()), min(draws.num_draws, _DRAWS_LOOKED_AT)
    by_chance = NormalDist().inv_cdf(1 - _FALSE_ALARM / len(seen.lag_one)) / count**0.5
    if independent and largest > max(by_chance, _HARMLESS):
        message = (
            f"Successive draws are correlated (up to {largest:.2f}), but method={method!r} takes them as independent "
            "and will reject correct draws too often. Use method='auto' or 'markov', and pass chains as "
            "(chains, draws, dim)."
        )
        doubts.append(Doubt(DependentDrawsWarning, message))
    if (
        plan.depends_on_scales
        and plan.transform is None
        and seen.scales.max() > _LARGEST_SCALE_RATIO * seen.scales.min()
    ):
        narrow, wide = (draws.coordinate(int(index)) for index in (seen.scales.argmin(), seen.scales.argmax()))
        message = (
            f"The scales of coordinates differ: {wide} has standard deviation {seen.scales.max():.3g}, {narrow} has "
            f"{seen.scales.min():.3g}. Errors of some coordinates hardly count then; use transform='standardize'."
        )
        doubts.append(Doubt(ScalesWarning, message))
    return tuple(doubts)


def find_too_few(floor: float, alpha: float, effective: float | None, degree: int | None = None) -> tuple[Doubt, ...]:
    """Doubt that a p-value can be small enough, or that one of features up to this degree is to be trusted."""
    if floor > alpha:
        message = (
            f"All signs of a replicate agree with probability {floor:.2g}: no p-value is smaller, and nothing can be "
            f"rejected at {alpha:g}. Draw longer chains, or more of them."
        )
    elif effective is not None and effective < ENOUGH_EFFECTIVE:
        message = (
            f"These chains are worth about {effective:.0f} independent draws, too few for p-values to be right: "
            "correct draws may be rejected too often. Draw longer chains, or more of them."
        )
    elif effective is not None and effective < _ENOUGH_FOR_TAILS and degree is not None and degree > 2:
        message = (
            f"These chains are worth about {effective:.0f} independent draws, too few for order {degree}: correct "
            "draws may be rejected too often. Use order 2, or draw longer chains, or more of them."
        )
    else:
        return ()
    return (Doubt(DependentDrawsWarning, message),)
