"""How many independent draws a sample set is worth, and whether that is enough to compare it with others."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from jaxpsd._core.compiling import compile_by_work
from jaxpsd._core.draws import Draws
from jaxpsd._core.types import PyTree
from jaxpsd._gof.scheme import Scheme, effective_draws
from jaxpsd._gof.symptoms import ENOUGH_EFFECTIVE


class Worth(NamedTuple):
    """What a set is worth.

    effective
        How many independent draws.
    moved
        Whether any draw differs from another.
    enough
        Whether both are enough for replicates to tell what other runs would be.
    """

    effective: float
    moved: bool
    enough: bool


def has_moved(draws: Draws) -> bool:
    """Whether any draw differs from another."""
    return bool(_has_moved(draws.positions))


@compile_by_work
def _has_moved(positions: PyTree) -> Bool[Array, ""]:
    return jnp.stack([(leaf != leaf[:1]).any() for leaf in jax.tree.leaves(positions)]).any()


def worth_of(draws: Draws, scheme: Scheme, alpha: float) -> Worth:
    """What draws are worth by a bootstrap of their own."""
    moved = has_moved(draws)
    effective = effective_draws(scheme, draws) if moved else 1.0
    return Worth(effective, moved, effective >= ENOUGH_EFFECTIVE and scheme.floor <= alpha)


def remarks_on(worth: Worth, per_chain: bool, alpha: float) -> tuple[str, ...]:
    """Why a set cannot be compared, where that is so."""
    if not worth.moved:
        return (
            "All draws are the same, so that nothing is known of other runs: unless it is worse, the set cannot be "
            "compared.",
        )
    if worth.enough or per_chain:
        return ()
    return (
        f"Worth about {max(worth.effective, 1):.0f} independent draws, too few to compare at level {alpha:g} unless "
        "clearly worse, and for the p-value to be right. Draw longer chains, or more of them.",
    )
