"""Passes over many draws, a block at a time, in memory that does not grow with their number.

This module knows no statistics. Arrays come as pytrees whose leaves share a leading axis of draws: of all, or of the
share that a device has. Sums are over all draws.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from jaxpsd._core.sharding import from_share_ahead, num_shares, sum_of_shares
from jaxpsd._core.types import PyTree, Weights

MEMORY_BUDGET = 2**30
"""Bytes of temporaries that the library allows itself when the user does not choose a block size."""

WORKING_SET = 2**24
"""Bytes that one block should occupy: large enough to keep all cores busy, small enough for cache."""

# Blocks of more draws than this, however small each of them is, would gain nothing and lose digits.
_MOST_DRAWS = 2**15

# Accelerators round the factors of a product to fewer bits unless told not to.
einsum = partial(jnp.einsum, precision=lax.Precision.HIGHEST)


def block_length(
    num_draws: int, bytes_per_draw: int, working_set: int = WORKING_SET, *, given: int | None = None
) -> int:
    """Draws in a block that fills the working set.

    Where it can be, it divides their number, which saves masking, and is a multiple of a good chunk for `sum_draws`.
    """
    if given is not None:
        return min(given, num_draws)
    working_set = min(working_set, _MOST_DRAWS * bytes_per_draw)
    fewest_blocks = ceil(num_draws * bytes_per_draw / working_set)
    for count in range(fewest_blocks, 2 * fewest_blocks + 1):
        if num_draws % count == 0 and _chunk_length(num_draws // count) <= _LONGEST_CHUNK:
            return num_draws // count
    longest = max(1, working_set // bytes_per_draw)
    return min(num_draws, max(longest - longest % _CHUNK, min(longest, _CHUNK)))


def sets_at_once(bytes_per_set: int) -> int | None:
    """Sample sets to work on together. One keeps a processor busy, and its cache; accelerators have room for more."""
    return None if jax.default_backend() == "cpu" else max(1, MEMORY_BUDGET // 4 // bytes_per_set)


# Partial sums of so many draws lose little to rounding, and are long enough to be computed fast.
_SHORTEST_CHUNK, _CHUNK, _LONGEST_CHUNK = 256, 512, 768


def _chunk_length(length: int) -> int:
    """The divisor of a block's length that is nearest to the best chunk, or all of it if there is none."""
    divisors = (c for c in range(_SHORTEST_CHUNK, _LONGEST_CHUNK + 1) if length % c == 0)
    return min(divisors, key=lambda c: abs(c - _CHUNK), default=length)


def sum_draws(values: Float[Array, "draws ..."]) -> Float[Array, "..."]:
    """Sum over the first axis, in chunks.

    In single precision, a running sum of numbers of one sign loses digits in proportion to its length, and the moments
    that cancel in a discrepancy have none to lose.
    """
    chunk = _chunk_length(len(values))
    return _sum_in_pairs(values.reshape(-1, chunk, *values.shape[1:]).sum(axis=1))


def product_over_draws(left: Float[Array, "draws rows"], right: Float[Array, "draws columns"]) -> Array:
    """The product leftᵀ · right of thin matrices, in chunks like `sum_draws`."""
    # Products of thin matrices are slow in batches, so there must not be many of them. Among many entries
    # the rounding errors of one-signed sums do not count, and one product will do.
    few = left.shape[1] * right.shape[1] < 100
    step = max(4 * _CHUNK, ceil(len(right) / 16)) if few else len(right)
    chunks = [slice(start, start + step) for start in range(0, len(right), step)]
    return _sum_in_pairs(jnp.stack([einsum("ni,nj->ij", left[chunk], right[chunk]) for chunk in chunks]))


def wide_product_over_draws(left: Float[Array, "rows draws"], right: Float[Array, "draws columns"]) -> Array:
    """The product left · right where there may be many rows, in chunks like `sum_draws` where there are not."""
    chunk = _chunk_length(len(right))
    if len(left) * right.shape[1] > 500 or chunk == len(right):
        return einsum("in,nj->ij", left, right)
    left, right = left.reshape(len(left), -1, chunk), right.reshape(-1, chunk, right.shape[1])
    return _sum_in_pairs(einsum("ibn,bnj->bij", left, right))


def _sum_in_pairs(terms: Float[Array, "terms ..."]) -> Float[Array, "..."]:
    while len(terms) > 1:
        half = len(terms) // 2
        paired = terms[:half] + terms[half : 2 * half]
        terms = jnp.concatenate([paired, terms[2 * half :]]) if len(terms) % 2 else paired
    return terms[0]


def weighted(values: Float[Array, "draws ..."], weights: Weights) -> Float[Array, "draws ..."]:
    """Each draw's values times its weight; None stands for weights of one."""
    return values if weights is None else values * weights.reshape(-1, *(1,) * (values.ndim - 1))


def num_draws(arrays: PyTree) -> int:
    """How many draws there are, on all devices."""
    return num_shares() * num_local_draws(arrays)


def num_local_draws(arrays: PyTree) -> int:
    """Length of the leading axis that all leaves share."""
    return jax.tree.leaves(arrays)[0].shape[0]


class Span(NamedTuple):
    """Which draws a block holds: `length` of them from `start`; those before `fresh` were in an earlier block."""

    start: Int[Array, "..."]
    fresh: Int[Array, "..."]

    def take(self, arrays: PyTree, length: int) -> PyTree:
        """These draws of all; parts that have a method `rows(start, length)` are cut by it."""

        def cut(part: Any) -> Any:
            has_rows = hasattr(part, "rows")
            return part.rows(self.start, length) if has_rows else lax.dynamic_slice_in_dim(part, self.start, length)

        return jax.tree.map(cut, arrays, is_leaf=lambda part: hasattr(part, "rows"))

    def is_fresh(self, length: int, dtype: np.dtype) -> Float[Array, " block"]:
        """One for each draw that no earlier block has had, and zero for the others."""
        return (self.start + jnp.arange(length) >= self.fresh).astype(dtype)


def _spans(total: int, length: int) -> Span:
    """All blocks. The last is pulled back to end with the last draw, so that nothing has to be padded or copied."""
    fresh = jnp.arange(0, total, length)
    return Span(jnp.minimum(fresh, total - length), fresh)


def sum_over_blocks(
    fn: Callable[[PyTree, Weights], tuple[PyTree, PyTree]], arrays: PyTree, weights: Weights, length: int
) -> tuple[PyTree, PyTree]:
    """Sum what `fn(block, weights of the block)` returns first, and stack what it returns second, of this share.

    The sum is compensated for rounding. Draws that an earlier block has seen already come with weight zero; where there
    are none, and no weights, these are None, so that the common case pays nothing for them.
    """

    # Differentiating must not keep every block's intermediates: they are computed again instead.
    @jax.checkpoint
    def on_block(span: Span, carry: None, block: PyTree, weights: Weights) -> tuple[None, PyTree, PyTree]:
        return carry, *fn(block, weights)

    _, summed, stacked = scan_over_blocks(on_block, None, arrays, weights, length)
    return sum_of_shares(summed), stacked


def scan_over_blocks(
    fn: Callable[..., tuple[PyTree, PyTree, PyTree]], carry: PyTree, arrays: PyTree, weights: Weights, length: int
) -> tuple[PyTree, PyTree, PyTree]:
    """As `sum_over_blocks`, of this share alone and with something handed on from block to block.

    `fn(span, carry, block, weights)` returns the new carry, what is summed and what is stacked.
    """
    total = num_local_draws(arrays)
    if length >= total:
        beginning = jnp.asarray(0)
        carry, summed, stacked = fn(Span(beginning, beginning), carry, arrays, weights)
        return carry, summed, jax.tree.map(lambda leaf: leaf[None], stacked)
    overlaps = total % length != 0
    dtype = jnp.result_type(*jax.tree.leaves(arrays))

    def on_block(span: Span, carry: PyTree) -> tuple[PyTree, PyTree, PyTree]:
        block, block_weights = span.take((arrays, weights), length)
        if overlaps:
            fresh = span.is_fresh(length, dtype)
            block_weights = fresh if block_weights is None else block_weights * fresh
        return fn(span, carry, block, block_weights)

    def step(state: tuple[PyTree, PyTree], span: Span) -> tuple[PyTree, PyTree]:
        carry, sums = state
        carry, summed, stacked = on_block(span, carry)
        return (carry, compensated_add(sums, summed)), stacked

    spans = _spans(total, length)
    zeros = jax.tree.map(jnp.zeros_like, jax.eval_shape(on_block, Span(*(part[0] for part in spans)), carry)[1])
    (carry, (summed, _)), stacked = lax.scan(step, (carry, (zeros, zeros)), spans)
    return carry, summed, stacked


def compensated_add(carry: tuple[PyTree, PyTree], term: PyTree) -> tuple[PyTree, PyTree]:
    """Kahan's summation: the second part of the carry is what rounding has added too much."""
    total, excess = carry
    corrected = jax.tree.map(jnp.subtract, term, excess)
    new_total = jax.tree.map(jnp.add, total, corrected)
    new_excess = jax.tree.map(lambda new, old, added: (new - old) - added, new_total, total, corrected)
    return new_total, new_excess


def map_over_blocks(fn: Callable[[PyTree], PyTree], arrays: PyTree, length: int) -> PyTree:
    """Apply `fn`, which keeps the axis of draws, to each block and put the results together."""
    total = num_local_draws(arrays)
    if length >= total:
        return fn(arrays)

    # Differentiating computes a block's intermediates again instead of keeping them.
    on_block = jax.checkpoint(lambda span: fn(span.take(arrays, length)))

    def step(output: PyTree, span: Span) -> tuple[PyTree, None]:
        # Where blocks overlap, the same rows are written twice.
        write = partial(lax.dynamic_update_slice_in_dim, start_index=span.start, axis=0)
        return jax.tree.map(write, output, on_block(span)), None

    spans = _spans(total, length)
    shapes = jax.eval_shape(on_block, Span(*(part[0] for part in spans)))
    empty = jax.tree.map(lambda leaf: jnp.zeros((total, *leaf.shape[1:]), leaf.dtype), shapes)
    return lax.scan(step, empty, spans)[0]


def corresponding(fn: Callable[..., Array], *blocks: Float[Array, "draws ..."]) -> Float[Array, " draws"]:
    """A function of all pairs of two sets of draws, for the pairs of corresponding draws only."""
    return jax.vmap(lambda *pair: fn(*(part[None] for part in pair))[0, 0])(*blocks)


class Side(NamedTuple):
    """One side of a tile: some draws, with weights, zero for those that belong to another tile."""

    arrays: PyTree
    weights: Float[Array, " side"]


def sum_over_tile_pairs(
    fn: Callable[[Side, Side], Array], arrays: PyTree, weights: Float[Array, " draws"], length: int
) -> Array:
    """Sum a symmetric function over all pairs of draws, computed for about half of them.

    `fn(left, right)` is the sum over one tile, in which the weights of both sides are factors. Shares travel round in a
    ring: after half a turn each device has met those that it sums its own with.
    """
    spans, own, count = _spans(num_local_draws(weights), length), (arrays, weights), num_shares()
    num_tiles = len(spans.start)

    def side(share: PyTree, k: Array) -> Side:
        span = Span(*(part[k] for part in spans))
        arrays, weights = span.take(share, length)
        return Side(arrays, weights * span.is_fresh(length, weights.dtype))

    def sum_over_tiles(visitor: PyTree, places: Sequence[np.ndarray], factors: np.ndarray) -> Array:
        # Differentiating computes a tile again instead of keeping it.
        tile_sum = jax.checkpoint(lambda i, j: fn(side(own, i), side(visitor, j)))

        def step(carry: PyTree, tile: PyTree) -> tuple[PyTree, None]:
            i, j, factor = tile
            return compensated_add(carry, factor * tile_sum(i, j)), None

        zeros = jnp.zeros_like(jax.eval_shape(tile_sum, 0, 0))
        tiles = *map(jnp.asarray, places), jnp.asarray(factors, zeros.dtype)
        return lax.scan(step, (zeros, zeros), tiles)[0][0]

    # Tiles above the diagonal stand for those below it.
    rows, columns = np.triu_indices(num_tiles)
    total = sum_over_tiles(own, (rows, columns), np.where(rows == columns, 1, 2))
    if count == 1:
        return total
    everywhere = np.indices((num_tiles, num_tiles)).reshape(2, -1)

    def meet(carry: tuple[PyTree, PyTree], factor: Array) -> tuple[PyTree, None]:
        sums, visitor = carry
        visitor = from_share_ahead(visitor, 1)
        met = sum_over_tiles(visitor, list(everywhere), np.ones(num_tiles**2))
        return (compensated_add(sums, factor * met), visitor), None

    # Each pair of shares meets once on the way; but those at opposite places of the ring meet twice.
    factors = np.full(count // 2, 2.0)
    if count % 2 == 0:
        factors[-1] = 1.0
    start = ((total, jnp.zeros_like(total)), own)
    ((total, _), _), _ = lax.scan(meet, start, jnp.asarray(factors, total.dtype))
    return sum_of_shares(total)
