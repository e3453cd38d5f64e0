"""A statistic and all of its bootstrap replicates, in one pass over the draws (paper, section 3.2).

A replicate multiplies each draw's features by a random number v_i: z* = Σ_i v_i w_i τ(x_i), and V* = ‖z*‖².
All replicates together are the product of the features with a matrix of multipliers, whose first column is
one: the draws as they are. In dual form they are Σ_ij v_i v_j Δ(x_i, x_j), over tiles of pairs.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax.numpy as jnp
from jax.tree_util import register_static
from jaxtyping import Array, Float

from jaxpsd._core.blocks import (
    WORKING_SET,
    Side,
    Span,
    block_length,
    einsum,
    scan_over_blocks,
    sum_over_blocks,
    sum_over_tile_pairs,
    weighted,
)
from jaxpsd._core.programs import Data
from jaxpsd._core.sharding import num_shares, sum_of_shares
from jaxpsd._core.types import Block, PyTree, Weights
from jaxpsd._discrepancies.plans import FeaturePlan, PairPlan, Part, Plan, not_negative, weights_of
from jaxpsd._gof.multipliers import Counts, Multinomial, Multipliers, Parity, Signs, unpacked
from jaxpsd._gof.normal import Normal
from jaxpsd._gof.pvalues import Values
from jaxpsd._gof.symptoms import Symptoms, observe, symptoms_from

# The multipliers of a block: more than this does not stay in cache until it is used.
_MULTIPLIER_BYTES = 2**21

# Draws in a product of features with themselves: sums over more lose digits.
_PRODUCT_DRAWS = 2**11


@register_static
@dataclass(frozen=True)
class Wanted:
    """Which statistics to compute.

    parts
        Parts of the discrepancy, or all of it.
    unbiased
        U-statistics instead of V-statistics, where they are sums over pairs of draws.
    """

    parts: tuple[Part, ...] = (Part(),)
    unbiased: bool = False


class Sums(NamedTuple):
    """Sums over draws from which all statistics follow; a column for the draws, and one a replicate.

    z
        Σ_i v_i w_i τ(x_i).
    diagonals
        Σ_i v_i² ‖τ(x_i)‖² for each part, where U-statistics are wanted.
    """

    z: Float[Array, "features columns"]
    diagonals: Float[Array, "parts columns"] | None

    def continuing(self, before: Parity) -> "Sums":
        """The sums of draws that follow others, where they were made as if the signs before them were +1."""
        return self._replace(z=self.z * unpacked(before[None], 1, self.z.dtype))


def bootstrap(
    data: Data, plan: Plan, multipliers: Signs | Multinomial | Normal, wanted: Wanted
) -> tuple[Values, Symptoms]:
    """All statistics wanted, and their replicates."""
    data, of_share = plan.prepare(data), multipliers.of_share(data.positions)
    if isinstance(plan, FeaturePlan):
        return _from_features(data, plan, of_share, wanted)
    assert isinstance(plan, PairPlan)
    assert not isinstance(of_share, Normal)
    data = data.scored()
    x, s = data.rows
    sums, largest = observe(plan, x, s, data.weights, data.num_draws)
    return _from_pairs_or_features(data, plan, of_share, wanted), symptoms_from(sum_of_shares(sums), largest)


def _from_pairs_or_features(data: Data, plan: PairPlan, multipliers: Signs | Counts, wanted: Wanted) -> Values:
    """Each statistic in the way that is cheaper for it."""
    n, dim, count = data.num_draws, data.x.shape[1], multipliers.num_replicates
    of_features = [part for part in wanted.parts if plan.needs_features(part, n, dim, count)]
    of_pairs = [part for part in wanted.parts if part not in of_features]
    rows = []
    if of_pairs:
        rows += [*_from_pairs(data, plan, multipliers, replace(wanted, parts=tuple(of_pairs)))]
    if of_features:
        highest = max(max(part.degrees or ()) for part in of_features)
        some = plan.restricted(Part.up_to(highest)).as_features()
        rows += [*_from_features(data, some, multipliers, replace(wanted, parts=tuple(of_features)))[0]]
    places = [[*of_pairs, *of_features].index(part) for part in wanted.parts]
    return jnp.stack([rows[place] for place in places])


# --- from features ----------------------------------------------------------------------------------------


def _from_features(
    data: Data, plan: FeaturePlan, multipliers: Signs | Counts | Normal, wanted: Wanted
) -> tuple[Values, Symptoms]:
    sums, seen = accumulate_all(data, plan, multipliers, wanted)
    num_draws = None if data.weights is not None else data.num_draws
    return statistics(plan, wanted, sums, num_draws, data.x.shape[1]), seen


def accumulate_all(
    data: Data, plan: FeaturePlan, multipliers: Signs | Counts | Normal, wanted: Wanted
) -> tuple[Sums, Symptoms]:
    """Sums over all draws, those of other devices too."""
    if isinstance(multipliers, Normal):
        return _normal_sums(data, plan, multipliers)
    sums, seen, last = accumulate(data, plan, multipliers, wanted, multipliers.start())
    if isinstance(multipliers, Signs) and num_shares() > 1:
        sums = sums.continuing(multipliers.before_share(last))
    return sum_of_shares(sums), seen


def accumulate(
    data: Data, plan: FeaturePlan, multipliers: Signs | Counts, wanted: Wanted, carry: PyTree
) -> tuple[Sums, Symptoms, PyTree]:
    """Sums over the draws of this device; and what the multipliers hand on to the draws that follow."""
    n, scorer = data.num_draws, data.scorer()

    def on_block(span: Span, carry: PyTree, rows: PyTree, weights: Weights) -> tuple[PyTree, PyTree, Array]:
        x, s = scorer(rows)
        v, carry = multipliers.of_block(span, len(x), carry, x.dtype)
        seen, largest = observe(plan, x, s, weights, n)
        return carry, (_block_sums(plan, wanted, x, s, weights, v), seen), largest

    row_bytes = (1 + multipliers.num_replicates) * data.x.dtype.itemsize
    longest = max(1, min(WORKING_SET // plan.working_bytes(data.x), _MULTIPLIER_BYTES // row_bytes))
    length = block_length(len(data.x), 1, longest, given=plan.block_size)
    carry, (sums, seen), largest = scan_over_blocks(on_block, carry, data.rows, data.weights, length)
    return sums, symptoms_from(sum_of_shares(seen), largest), carry


def _normal_sums(data: Data, plan: FeaturePlan, normal: Normal) -> tuple[Sums, Symptoms]:
    """As from signs, with replicates from the covariance of such sums."""
    n, scorer = data.num_draws, data.scorer()
    # Divided by √n before they are squared: squares of mean features then leave the range of numbers no later.
    root = float(n) ** 0.5
    of_draws, of_sums = (1 / root, root) if data.weights is None else (root, 1 / root)

    def on_block(rows: PyTree, weights: Weights) -> tuple[PyTree, Array]:
        x, s = scorer(rows)
        tau = weighted(plan.features(x, s), weights)
        # With a row of ones the same product has the sums of the draws as they are.
        extended = jnp.concatenate([(tau * of_draws).T, jnp.ones_like(tau[:, :1]).T])
        seen, largest = observe(plan, x, s, weights, n)
        return (einsum("jn,kn->jk", extended, extended), seen), largest

    longest = max(1, min(WORKING_SET // plan.working_bytes(data.x), _PRODUCT_DRAWS))
    length = block_length(len(data.x), 1, longest, given=plan.block_size)
    (products, seen), largest = sum_over_blocks(on_block, data.rows, data.weights, length)
    columns = jnp.concatenate([products[:-1, -1:], normal.columns(products[:-1, :-1])], axis=1)
    return Sums(of_sums * columns, None), symptoms_from(seen, largest)


def _block_sums(plan: FeaturePlan, wanted: Wanted, x: Block, s: Block, weights: Weights, v: Multipliers) -> Sums:
    """What a block of draws adds to the sums."""
    tau = weighted(plan.features(x, s), weights).T
    diagonals = None
    if wanted.unbiased and wanted.parts:
        lengths = [_squared_lengths(plan, tau, part, x.shape[1]) for part in wanted.parts]
        diagonals = einsum("kn,nm->km", jnp.stack(lengths), v**2)
    return Sums(einsum("jn,nm->jm", tau, v), diagonals)


def _squared_lengths(plan: FeaturePlan, tau: Float[Array, "features draws"], part: Part, dim: int) -> Array:
    """‖τ(x)‖² of each draw, over the features of a part; a maximum has no diagonal to be rid of."""
    if part.measure == "largest":
        return jnp.zeros_like(tau[0])
    some = tau if part.is_all else tau[plan.places(part, dim)]
    return (some**2).sum(axis=0) if part.measure == "squares" else some.sum(axis=0) ** 2 / len(some)


def statistics(plan: FeaturePlan, wanted: Wanted, sums: Sums, num_draws: Array | int | None, dim: int) -> Values:
    """All statistics wanted, from the sums over all draws; their number is None where they have weights."""
    z = sums.z if num_draws is None else sums.z / num_draws
    values = jnp.stack([plan.statistic(z, part, dim) for part in wanted.parts])
    if sums.diagonals is None or num_draws is None:
        return values
    return _unbiased(values, sums.diagonals, num_draws)


def _unbiased(v: Values, diagonals: Values, num_draws: Array | int) -> Values:
    """V without its diagonal: Σ_{i≠j} v_i v_j Δ_ij / n²; for the draws as they are, / n(n − 1)."""
    u = v - diagonals / num_draws / num_draws
    return u.at[:, 0].multiply(num_draws / (num_draws - 1))


# --- from pairs of draws ----------------------------------------------------------------------------------


def _from_pairs(data: Data, plan: PairPlan, multipliers: Signs | Counts, wanted: Wanted) -> Values:
    (x, s), n, w = data.rows, data.num_draws, weights_of(data)
    ready = multipliers if isinstance(multipliers, Counts) else multipliers.prepared(len(x))
    plans = [plan if part.is_all else plan.restricted(part) for part in wanted.parts]
    length = plan.tile_length(data.x)

    def tile_sum(left: Side, right: Side) -> Float[Array, "parts columns"]:
        (one, left_v), (other, right_v) = left.arrays, right.arrays
        kernels = [each.kernel(*one, *other) for each in plans]
        left_v, right_v = left.weights[:, None] * left_v, right.weights[:, None] * right_v
        return jnp.stack([(left_v * einsum("ij,jm->im", kernel, right_v)).sum(axis=0) for kernel in kernels])

    extremeness, _ = plan.extremes(x, s, w, n)
    v = not_negative(sum_over_tile_pairs(tile_sum, ((x, s), ready), w, length), sum_of_shares(extremeness))
    if not wanted.unbiased:
        return v

    def diagonal(span: Span, carry: None, block: tuple[Block, Block], fresh: Weights) -> tuple[None, Array, None]:
        deltas = jnp.stack([weighted(each.diagonal(*block), fresh) for each in plans])
        return carry, einsum("kn,nm->km", deltas, ready.rows(span.start, length).astype(x.dtype) ** 2), None

    _, delta, _ = scan_over_blocks(diagonal, None, (x, s), None, length)
    return _unbiased(v, sum_of_shares(delta), n)
