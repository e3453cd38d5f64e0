"""A statistic and all of its bootstrap replicates, in one pass over the draws (paper, section 3.2).

A replicate multiplies each draw's features by a random number v_i: z* = Σ_i v_i w_i τ(x_i), and V* = ‖z*‖².
All replicates together are the product of the features with a matrix of multipliers, whose first column is
one: the draws as they are. In dual form they are Σ_ij v_i v_j Δ(x_i, x_j), over tiles of pairs.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import register_static
from jaxtyping import Array, Float

from jaxpsd._core.blocks import (
    WORKING_SET,
    Side,
    Span,
    block_length,
    einsum,
    num_draws,
    scan_over_blocks,
    sum_over_tile_pairs,
    weighted,
)
from jaxpsd._core.scores import Scorer
from jaxpsd._core.sharding import num_shares, sum_of_shares
from jaxpsd._core.types import Block, PyTree
from jaxpsd._discrepancies.plans import Form, all_scored, equal_weights, extremes, in_coordinates_of, not_negative
from jaxpsd._gof.multipliers import Counts, Multinomial, Multipliers, Parity, Shifted, Signs, as_numbers
from jaxpsd._gof.symptoms import Watched, watch, watched

Weights = Float[Array, " draws"] | None

# The multipliers of a block: more than this does not stay in cache until it is used.
_MULTIPLIER_BYTES = 2**21


@register_static
@dataclass(frozen=True)
class Wanted:
    """Which statistics to compute.

    orders
        The discrepancy with features up to each of these degrees; None stands for all features.
    unbiased
        U-statistics instead of V-statistics.
    maximum
        Also the largest |z̄_k| in units of its standard error, over features up to this degree.
    """

    orders: tuple[int | None, ...] = (None,)
    unbiased: bool = False
    maximum: int | None = None


class Sums(NamedTuple):
    """Sums over draws from which all statistics follow; a column for the draws, and one a replicate.

    z
        Σ_i v_i w_i τ(x_i).
    squares
        Σ_i (w_i τ(x_i))², where a maximum is wanted.
    diagonals
        Σ_i v_i² ‖τ(x_i)‖² for each order, where U-statistics are wanted.
    """

    z: Float[Array, "features columns"]
    squares: Float[Array, " features"] | None
    diagonals: Float[Array, "orders columns"] | None

    def continuing(self, before: Parity) -> "Sums":
        """The sums of draws that follow others, where they were made as if the signs before them were +1."""
        return self._replace(z=self.z * as_numbers(before, self.z.dtype)[None])


def bootstrap(
    scorer: Scorer,
    arrays: PyTree,
    form: Form,
    weights: Weights,
    multipliers: Signs | Shifted | Multinomial,
    wanted: Wanted,
) -> tuple[Float[Array, "statistics columns"], Watched]:
    """All statistics wanted, a row each: the observed value first, then its replicates."""
    scorer = in_coordinates_of(form, scorer)
    ready = multipliers if isinstance(multipliers, Shifted) else multipliers.of_share(arrays)
    if not form.is_pairwise:
        return _from_features(scorer, arrays, form, weights, ready, wanted)
    scored = all_scored(scorer, arrays)
    sums, largest = watch(form, *scored, weights, num_draws(scored))
    values = _from_pairs_or_features(scored, form, weights, ready, wanted)
    return values, watched(sum_of_shares(sums), largest)


def _from_pairs_or_features(
    scored: tuple[Block, Block], form: Form, weights: Weights, multipliers: Signs | Shifted | Counts, wanted: Wanted
) -> Float[Array, "statistics columns"]:
    """Each statistic in the way that is cheaper for it; a maximum needs the features, but those of low degree only."""
    n, dim = num_draws(scored), scored[0].shape[1]
    low = [order for order in wanted.orders if form.is_cheaper_from_features(order, n, dim, multipliers.num_replicates)]
    high = [order for order in wanted.orders if order not in low]
    rows = []
    if high:
        rows += [*_from_pairs(scored, form, weights, multipliers, replace(wanted, orders=tuple(high)))]
    if low or wanted.maximum is not None:
        some = form.up_to(max(filter(None, [*low, wanted.maximum])), dim)
        only = replace(wanted, orders=tuple(low))
        rows += [*_from_features(lambda block: block, scored, some, weights, multipliers, only)[0]]
    # Those over pairs came first; a maximum stays last.
    place = {order: row for row, order in enumerate([*high, *low])}
    return jnp.stack([*(rows[place[order]] for order in wanted.orders), *rows[len(place) :]])


# --- from features ----------------------------------------------------------------------------------------


def _from_features(
    scorer: Scorer, arrays: PyTree, form: Form, weights: Weights, multipliers: Signs | Shifted | Counts, wanted: Wanted
) -> tuple[Float[Array, "statistics columns"], Watched]:
    x, _ = jax.eval_shape(scorer, arrays)
    sums, seen = accumulate_all(scorer, arrays, form, weights, multipliers, wanted)
    return statistics(form, wanted, sums, num_draws(arrays), x.shape[1], weighted=weights is not None), seen


def accumulate_all(
    scorer: Scorer, arrays: PyTree, form: Form, weights: Weights, multipliers: Signs | Shifted | Counts, wanted: Wanted
) -> tuple[Sums, Watched]:
    """Sums over all draws, those of other devices too."""
    sums, seen, last = accumulate(scorer, arrays, form, weights, multipliers, wanted, multipliers.start())
    if isinstance(multipliers, Signs) and num_shares() > 1:
        sums = sums.continuing(multipliers.before_share(last))
    return sum_of_shares(sums), seen


def accumulate(
    scorer: Scorer,
    arrays: PyTree,
    form: Form,
    weights: Weights,
    multipliers: Signs | Shifted | Counts,
    wanted: Wanted,
    carry: PyTree,
) -> tuple[Sums, Watched, PyTree]:
    """Sums over the draws of this device; and what the multipliers hand on to the draws that follow."""
    n = num_draws(arrays)

    def on_block(
        span: Span, carry: PyTree, block: PyTree, block_weights: Float[Array, " block"] | None
    ) -> tuple[PyTree, PyTree, Array]:
        x, s = scorer(block)
        v, carry = multipliers.of_block(span, len(x), carry, x.dtype)
        seen, largest = watch(form, x, s, block_weights, n)
        return carry, (_block_sums(form, wanted, x, s, block_weights, v), seen), largest

    x, _ = jax.eval_shape(scorer, arrays)
    length = _block_length(form, x, multipliers.num_replicates)
    carry, (sums, seen), largest = scan_over_blocks(on_block, carry, arrays, weights, length)
    return sums, watched(sum_of_shares(seen), largest), carry


def _block_length(form: Form, x: jax.ShapeDtypeStruct, num_replicates: int) -> int:
    """Draws to work on at a time."""
    row_bytes = (1 + num_replicates) * x.dtype.itemsize
    longest = max(1, min(WORKING_SET // form.working_bytes(x), _MULTIPLIER_BYTES // row_bytes))
    return block_length(len(x), 1, longest, given=form.block_size)


def _block_sums(
    form: Form, wanted: Wanted, x: Block, s: Block, weights: Float[Array, " block"] | None, multipliers: Multipliers
) -> Sums:
    """What a block of draws adds to the sums."""
    tau = weighted(form.features(x, s), weights).T
    squares = diagonals = None
    if wanted.maximum is not None:
        squares = (tau**2).sum(axis=1)
    if wanted.unbiased and wanted.orders:
        square_norms = [(tau[:count] ** 2).sum(axis=0) for count in _counts(form, wanted, x.shape[1])]
        diagonals = einsum("kn,nm->km", jnp.stack(square_norms), multipliers**2)
    return Sums(einsum("jn,nm->jm", tau, multipliers), squares, diagonals)


def statistics(
    form: Form, wanted: Wanted, sums: Sums, num_draws: Array | int, dim: int, *, weighted: bool = False
) -> Float[Array, "statistics columns"]:
    """All statistics wanted, from the sums over all draws."""
    z = sums.z if weighted else sums.z / num_draws
    rows = [
        (form if order is None else form.up_to(order, dim)).squared_norm(z[:count])
        for order, count in zip(wanted.orders, _counts(form, wanted, dim), strict=True)
    ]
    if sums.diagonals is not None:
        rows = [_unbiased(v, delta, num_draws) for v, delta in zip(rows, sums.diagonals, strict=True)]
    if sums.squares is not None and wanted.maximum is not None:
        count = _count(form, wanted.maximum, dim)
        # A feature that is zero for every draw is not an extreme one.
        error = jnp.where(sums.squares > 0, jnp.sqrt(sums.squares), jnp.inf)[:count, None]
        rows.append(jnp.max(jnp.abs(sums.z[:count]) / error, axis=0))
    return jnp.stack(rows)


def _unbiased(
    v: Float[Array, " columns"], diagonal: Float[Array, " columns"], num_draws: Array | int
) -> Float[Array, " columns"]:
    """V without its diagonal: Σ_{i≠j} v_i v_j Δ_ij / n²; for the draws as they are, / n(n − 1)."""
    u = v - diagonal / num_draws / num_draws
    return u.at[0].multiply(num_draws / (num_draws - 1))


def _counts(form: Form, wanted: Wanted, dim: int) -> list[int | None]:
    return [None if order is None else _count(form, order, dim) for order in wanted.orders]


def _count(form: Form, order: int, dim: int) -> int:
    """How many features have degrees up to this order."""
    one = jax.ShapeDtypeStruct((1, dim), jnp.float32)
    return jax.eval_shape(form.up_to(order, dim).features, one, one).shape[1]


# --- from pairs of draws ----------------------------------------------------------------------------------


def _from_pairs(
    scored: tuple[Block, Block], form: Form, weights: Weights, multipliers: Signs | Shifted | Counts, wanted: Wanted
) -> Float[Array, "orders columns"]:
    (x, _), n, dim = scored, num_draws(scored), scored[0].shape[1]
    ready = multipliers if isinstance(multipliers, Counts) else multipliers.prepared(len(x))
    w = equal_weights(x) if weights is None else weights
    forms = [form if order is None else form.up_to(order, dim) for order in wanted.orders]
    length = form.tile_length(len(x), dim, x.dtype.itemsize)

    def tile_sum(left: Side, right: Side) -> Float[Array, "orders columns"]:
        (one, left_v), (other, right_v) = left.arrays, right.arrays
        kernels = [each.kernel(*one, *other) for each in forms]
        left_v, right_v = left.weights[:, None] * left_v, right.weights[:, None] * right_v
        return jnp.stack([(left_v * einsum("ij,jm->im", kernel, right_v)).sum(axis=0) for kernel in kernels])

    extremeness, _ = extremes(form, *scored, w, n)
    v = not_negative(sum_over_tile_pairs(tile_sum, (scored, ready), w, length), sum_of_shares(extremeness))
    if not wanted.unbiased:
        return v

    def diagonal(span: Span, carry: None, block: tuple[Block, Block], fresh: Weights) -> tuple[None, Array, None]:
        deltas = jnp.stack([weighted(each.diagonal(*block), fresh) for each in forms])
        return carry, einsum("kn,nm->km", deltas, ready.rows(span.start, length).astype(x.dtype) ** 2), None

    _, delta, _ = scan_over_blocks(diagonal, None, scored, None, length)
    delta = sum_of_shares(delta)
    return jnp.stack([_unbiased(*row, n) for row in zip(v, delta, strict=True)])
