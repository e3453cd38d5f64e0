"""What is seen on the way through the draws of a test, and may be worth a warning."""

from math import ceil
from statistics import NormalDist
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxpsd._core.checks import is_concrete
from jaxpsd._core.doubts import DependentDrawsWarning, ScalesWarning, warn_user
from jaxpsd._core.draws import Draws
from jaxpsd._core.types import Block, PyTree, Scalar
from jaxpsd._discrepancies.base import warn_of_heavy_tails
from jaxpsd._discrepancies.plans import Form, extremes, share_of_few

# Where standard deviations differ more than this, raw monomials look at some coordinates only.
_LARGEST_SCALE_RATIO = 10

# How often independent draws shall bring a warning; and a correlation of successive draws that does no harm.
_FALSE_ALARM, _HARMLESS = 1e-4, 0.05

# Scales and correlations are an alarm, not a result: of more draws than this, some are looked at.
_DRAWS_WATCHED = 2**14

# Fewer effective draws than this are too few for a bootstrap of dependent draws; and of features beyond degree 2,
# whose heavy tails they have not seen.
_ENOUGH_EFFECTIVE, _ENOUGH_FOR_TAILS = 20, 100


class Watched(NamedTuple):
    """What was seen.

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


def watch(
    form: Form, x: Block, s: Block, weights: Float[Array, " block"] | None, num_draws: int
) -> tuple[PyTree, Float[Array, " few"]]:
    """What a block adds to the sums, and its most extreme draws, which are stacked."""
    extremeness, largest = extremes(form, x, s, weights, num_draws)
    # Successive draws, so the first ones of each block where there are many.
    some = ceil(len(x) * min(1, _DRAWS_WATCHED / num_draws))
    x, s = x[:some], s[:some]
    # Within blocks: an offset that all draws share then costs no digits, and a drift shows all the same.
    u = jnp.concatenate([x, s, x * s], axis=1)
    u = u - u.mean(axis=0, keepdims=True)
    count = jnp.asarray(len(x), x.dtype)
    return (extremeness, (u**2).sum(axis=0), (u[1:] * u[:-1]).sum(axis=0), count), largest


def watched(sums: PyTree, largest: Array) -> Watched:
    """From the sums over all blocks to what is to be judged."""
    # Blocks may overlap, so that the draws counted are more than there are.
    extremeness, squares, products, count = sums
    dim = len(squares) // 3
    lag_one = jnp.where(squares > 0, products / jnp.where(squares > 0, squares, 1), 0)
    return Watched(share_of_few(largest, extremeness), jnp.sqrt(squares[:dim] / count), lag_one[dim:])


def warn(seen: Watched, draws: Draws, form: Form, *, method: str, assumes_independence: bool) -> None:
    """Say what makes a test doubtful."""
    if not is_concrete(seen):
        return
    warn_of_heavy_tails(seen.few_share, draws)
    if assumes_independence:
        _warn_of_dependence(seen, draws, method)
    if form.depends_on_scales and form.transform is None:
        _warn_of_scales(seen, draws)


def _warn_of_dependence(seen: Watched, draws: Draws, method: str) -> None:
    largest = float(seen.lag_one.max())
    by_chance = NormalDist().inv_cdf(1 - _FALSE_ALARM / len(seen.lag_one)) / min(draws.num_draws, _DRAWS_WATCHED) ** 0.5
    if largest > max(by_chance, _HARMLESS):
        warn_user(
            f"Successive draws are correlated (up to {largest:.2f}), but method={method!r} takes them as independent "
            "and will reject correct draws too often. Use method='auto' or 'markov', and pass chains as "
            "(chains, draws, dim).",
            DependentDrawsWarning,
        )


def _warn_of_scales(seen: Watched, draws: Draws) -> None:
    scales = np.asarray(seen.scales)
    if scales.max() > _LARGEST_SCALE_RATIO * scales.min():
        narrow, wide = (draws.coordinate(int(index)) for index in (scales.argmin(), scales.argmax()))
        warn_user(
            f"The scales of coordinates differ: {wide} has standard deviation {scales.max():.3g}, {narrow} has "
            f"{scales.min():.3g}. Errors of some coordinates hardly count then; use "
            "transform='standardize'.",
            ScalesWarning,
        )


def warn_of_few(floor: float, alpha: float, effective: float | None, degree: int | None = None) -> None:
    """Say that no p-value can be small enough, or that none of features up to this degree is to be trusted."""
    if floor > alpha:
        warn_user(
            f"All signs of a replicate agree with probability {floor:.2g}: no p-value is smaller, and nothing can be "
            f"rejected at {alpha:g}. Draw longer chains, or more of them.",
            DependentDrawsWarning,
        )
    elif effective is not None and effective < _ENOUGH_EFFECTIVE:
        warn_user(
            f"These chains are worth about {effective:.0f} independent draws, too few for p-values to be right: "
            "correct draws may be rejected too often. Draw longer chains, or more of them.",
            DependentDrawsWarning,
        )
    elif effective is not None and effective < _ENOUGH_FOR_TAILS and degree is not None and degree > 2:
        warn_user(
            f"These chains are worth about {effective:.0f} independent draws, too few for order {degree}: correct "
            "draws may be rejected two to four times as often as they should be. Use order 2, or draw longer chains, "
            "or more of them.",
            DependentDrawsWarning,
        )
