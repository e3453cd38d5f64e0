"""What a discrepancy computes with, once the draws are known: a plan, from Stein features or from a Stein kernel.

The square of a discrepancy is V = Σ_ij w_i w_j Δ(x_i, x_j), with a Stein kernel Δ and weights w_i = 1/n unless given.
Where Δ(x, y) = τ(x)ᵀτ(y) with Stein features τ, it is also the squared norm of their mean. A `FeaturePlan` has
features, and is summed over draws; a `PairPlan` has a kernel alone, and is summed over pairs. Both are pytrees, which
programs are given beside the data.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_static
from jaxtyping import Array, Float, Int

from jaxpsd._core.blocks import (
    WORKING_SET,
    Side,
    block_length,
    einsum,
    map_over_blocks,
    sum_draws,
    sum_over_blocks,
    sum_over_tile_pairs,
    weighted,
)
from jaxpsd._core.programs import Data
from jaxpsd._core.sharding import gather_shares, sum_of_shares
from jaxpsd._core.types import Block, PyTree, Scalar, Weights
from jaxpsd._stein.coordinates import Affine

# Of how many draws the share of Σ‖τ‖² is looked at; it is an alarm, not a result: of more draws than
# `_DRAWS_LOOKED_AT`, an even selection.
FEW, _DRAWS_LOOKED_AT = 5, 2**16

# A sum over pairs that is below zero by more than this share of its diagonal is not so by rounding.
_NOT_ROUNDING = 1e-3


class PairSums(NamedTuple):
    """Sums over pairs of draws, all that V and U need; the weights sum to one.

    total
        Σ_ij w_i w_j Δ(x_i, x_j); for the L1 norm, its counterpart.
    diagonal
        Σ_i w_i Δ(x_i, x_i); zero if it was not asked for.
    few_share
        About what share of the diagonal a few draws have.
    """

    total: Scalar
    diagonal: Scalar
    few_share: Scalar


@register_static
@dataclass(frozen=True)
class Part:
    """Some of the features of a discrepancy, and what is made of them.

    degrees
        The degrees of the features; None for all features, whether they have degrees or not.
    powers
        Only powers of single coordinates, without products of different ones.
    measure
        What is made of their means: the sum of "squares"; the "largest" square; or the square of their "sum", divided
        by their number.
    """

    degrees: tuple[int, ...] | None = None
    powers: bool = False
    measure: Literal["squares", "largest", "sum"] = "squares"

    @property
    def is_all(self) -> bool:
        """Whether it is the discrepancy itself."""
        return self == Part()

    @classmethod
    def up_to(cls, order: int | None) -> "Part":
        """All degrees up to an order; None stands for all features."""
        return cls() if order is None else cls(tuple(range(1, order + 1)))


class Plan(ABC):
    """How a discrepancy computes.

    transform
        The coordinates to compute in, or None for those of the draws.
    block_size
        How many draws to work on at a time, where the user has chosen it.
    depends_on_scales
        Whether a coordinate with a larger scale counts for more.
    """

    transform: Affine | None
    block_size: int | None
    depends_on_scales: ClassVar[bool] = True

    def prepare(self, data: Data) -> Data:
        """The data in the coordinates of the plan."""
        return replace(data, transform=self.transform, shows_positions=self.ignores_positions)

    @property
    def ignores_positions(self) -> bool:
        """Whether features may be finite although a position is not."""
        return True

    def as_features(self) -> "FeaturePlan":
        """The same discrepancy by a plan that has features."""
        raise NotImplementedError(f"{type(self).__name__} has a Stein kernel but no features.")

    @property
    def highest_degree(self) -> int | None:
        """Of the features, where they have degrees."""
        return None

    def restricted(self, part: Part) -> Self:
        """A plan with a kernel, or whatever else, of the features of this part only."""
        raise NotImplementedError(f"The features of {type(self).__name__} have no degrees.")

    @abstractmethod
    def pair_sums(self, data: Data, *, diagonal: bool) -> PairSums:
        """Sums over all pairs of draws of prepared data; the diagonal only on request."""

    @abstractmethod
    def part_values(self, data: Data, parts: Sequence[Part]) -> Float[Array, " parts"]:
        """V of each part, for prepared data."""

    @abstractmethod
    def kernel(self, x: Block, s: Block, y: Block, u: Block) -> Float[Array, "rows columns"]:
        """Stein kernel between two blocks of draws, with scores s and u."""

    @abstractmethod
    def diagonal(self, x: Block, s: Block) -> Float[Array, " block"]:
        """Δ(x, x) = ‖τ(x)‖² of each draw of a block."""

    def gram(self, x: Block, s: Block) -> Float[Array, "draws draws"]:
        """Δ(x_i, x_j) of all pairs of draws."""
        length = block_length(len(x), 32 * len(x) * x.dtype.itemsize)
        return map_over_blocks(lambda rows: self.kernel(rows[0], rows[1], x, s), (x, s), length)

    def leading_features(self, x: Block, s: Block) -> Float[Array, "block features"]:
        """The functions of draws that are looked at to see how dependent those are: scores and their squares."""
        return jnp.concatenate([s, s**2], axis=1)

    def extremeness(self, x: Block, s: Block) -> Float[Array, " block"]:
        """‖τ(x)‖² of each draw, or what is cheaper and grows alike."""
        return self.diagonal(x, s)

    def extremes(self, x: Block, s: Block, weights: Weights, num_draws: int) -> tuple[Scalar, Float[Array, " few"]]:
        """About Σ‖τ‖² over a block, and its largest terms, from an even selection where draws are many."""
        stride = ceil(num_draws / _DRAWS_LOOKED_AT)
        seen = None if weights is None else weights[::stride]
        # They are looked at, not differentiated through.
        extremeness = jax.lax.stop_gradient(weighted(self.extremeness(x[::stride], s[::stride]), seen))
        return extremeness.sum(), _largest(extremeness)


def _largest(values: Float[Array, " draws"]) -> Float[Array, " few"]:
    return jax.lax.top_k(values, min(FEW, len(values)))[0]


def share_of_few(largest: Float[Array, "..."], total: Scalar) -> Scalar:
    """Share of the total that the largest terms of all blocks have."""
    largest = _largest(gather_shares(_largest(largest.ravel())).ravel())
    return jnp.where(total > 0, largest.sum() / jnp.where(total > 0, total, 1), 0)


class FeaturePlan(Plan):
    """A plan with Stein features τ(x), few enough to be summed over draws."""

    @abstractmethod
    def features(self, x: Block, s: Block) -> Float[Array, "block features"]:
        """Stein features of a block of draws."""

    def as_features(self) -> "FeaturePlan":
        return self

    def squared_norm(self, z: Float[Array, "features columns"]) -> Float[Array, " columns"]:
        """The squared discrepancy, from the mean features of each column."""
        return (z**2).sum(axis=0)

    def places(self, part: Part, dim: int) -> Int[np.ndarray, " some"]:
        """Which features belong to a part."""
        raise NotImplementedError(f"The features of {type(self).__name__} have no degrees.")

    def statistic(self, z: Float[Array, "features columns"], part: Part, dim: int) -> Float[Array, " columns"]:
        """What a part amounts to, from the mean features of each column."""
        some = z if part.is_all else z[self.places(part, dim)]
        if part.measure == "squares":
            return self.squared_norm(some)
        return jnp.max(some**2, axis=0) if part.measure == "largest" else some.sum(axis=0) ** 2 / len(some)

    @property
    def is_quadratic(self) -> bool:
        """Whether the squared norm is a sum of squares, so that it is a sum over pairs of draws too."""
        return True

    def num_features(self, dim: int) -> int:
        """How many features a draw has."""
        one = jax.ShapeDtypeStruct((1, dim), jnp.float32)
        return jax.eval_shape(self.features, one, one).shape[1]

    def working_bytes(self, x: jax.ShapeDtypeStruct) -> int:
        """Memory that the features of one draw take while they are computed."""
        tau = jax.eval_shape(self.features, x, x)
        return 4 * tau.shape[1] * tau.dtype.itemsize

    def kernel(self, x: Block, s: Block, y: Block, u: Block) -> Float[Array, "rows columns"]:
        return einsum("ik,jk->ij", self.features(x, s), self.features(y, u))

    def diagonal(self, x: Block, s: Block) -> Float[Array, " block"]:
        return (self.features(x, s) ** 2).sum(axis=1)

    def gram(self, x: Block, s: Block) -> Float[Array, "draws draws"]:
        length = block_length(len(x), self.working_bytes(jax.ShapeDtypeStruct(x.shape, x.dtype)))
        tau = map_over_blocks(lambda block: self.features(*block), (x, s), length)
        return einsum("ik,jk->ij", tau, tau)

    def leading_features(self, x: Block, s: Block) -> Float[Array, "block features"]:
        return self.features(x, s)

    def moments(self, x: Block, s: Block, weights: Weights) -> Array:
        """Sums over a block of draws, from whose means over all draws the mean features follow."""
        return sum_draws(weighted(self.features(x, s), weights))

    def moment_bytes(self, x: jax.ShapeDtypeStruct, *, diagonal: bool) -> int:
        """Memory that one draw takes while moments are computed, and the diagonal too."""
        return self.working_bytes(x)

    def mean_features(self, moments: Array, dim: int) -> Float[Array, " features"]:
        """The mean features z̄, from means over all draws."""
        return moments

    def pair_sums(self, data: Data, *, diagonal: bool) -> PairSums:
        # One pass over the draws: V = ‖z̄‖².
        z, delta, few_share = self._sum_draws(data, diagonal=diagonal)
        return PairSums(self.squared_norm(z[:, None])[0], delta, few_share)

    def part_values(self, data: Data, parts: Sequence[Part]) -> Float[Array, " parts"]:
        z, _, _ = self._sum_draws(data, diagonal=False)
        return jnp.stack([self.statistic(z[:, None], part, data.x.shape[1])[0] for part in parts])

    def _sum_draws(self, data: Data, *, diagonal: bool) -> tuple[Float[Array, " features"], Scalar, Scalar]:
        """Mean features, the mean of the diagonal, and the share of it that a few draws have."""
        n, scorer = data.num_draws, data.scorer()

        def on_block(rows: PyTree, weights: Weights) -> tuple[PyTree, Array]:
            x, s = scorer(rows)
            delta = sum_draws(weighted(self.diagonal(x, s), weights)) if diagonal else jnp.zeros((), x.dtype)
            extremeness, largest = self.extremes(x, s, weights, n)
            return (self.moments(x, s, weights), delta, extremeness), largest

        length = block_length(len(data.x), self.moment_bytes(data.x, diagonal=diagonal), given=self.block_size)
        (mean, delta, extremeness), largest = sum_over_blocks(on_block, data.rows, data.weights, length)
        if data.weights is None:
            mean, delta = mean / n, delta / n
        return self.mean_features(mean, data.x.shape[1]), delta, share_of_few(largest, extremeness)


class PairPlan(Plan):
    """A plan with a Stein kernel, summed over tiles of pairs of draws."""

    @property
    @abstractmethod
    def matrices(self) -> int:
        """How many matrices of a tile's size there are while it is computed."""

    def tile_length(self, x: jax.ShapeDtypeStruct) -> int:
        """Draws on each side of a tile of pairs."""
        (num_draws, dim), itemsize = x.shape, x.dtype.itemsize
        longest = min(
            int((WORKING_SET / (self.matrices * itemsize)) ** 0.5),
            # Of its rows, positions and scores, moved and multiplied: some twelve arrays.
            max(1, WORKING_SET // (12 * dim * itemsize)),
        )
        return block_length(num_draws, 1, longest, given=self.block_size)

    def needs_features(self, part: Part, num_draws: int, dim: int, num_replicates: int) -> bool:
        """Whether replicates of a part need features, or are cheaper from them, although those of all are not."""
        return False

    def pair_sums(self, data: Data, *, diagonal: bool) -> PairSums:
        data = data.scored()
        (x, s), w = data.rows, weights_of(data)
        tile = self.tile_length(data.x)

        def tile_sum(left: Side, right: Side) -> Scalar:
            return einsum("i,ij,j->", left.weights, self.kernel(*left.arrays, *right.arrays), right.weights)

        total = sum_over_tile_pairs(tile_sum, (x, s), w, tile)
        delta = jnp.zeros((), x.dtype)
        if diagonal:
            delta = sum_of_shares(sum_draws(w * map_over_blocks(lambda block: self.diagonal(*block), (x, s), tile)))
        extremeness, largest = self.extremes(x, s, w, data.num_draws)
        extremeness = sum_of_shares(extremeness)
        return PairSums(not_negative(total, extremeness), delta, share_of_few(largest, extremeness))

    def part_values(self, data: Data, parts: Sequence[Part]) -> Float[Array, " parts"]:
        data, plans = data.scored(), [self.restricted(part) for part in parts]

        def tile_sum(left: Side, right: Side) -> Float[Array, " parts"]:
            kernels = jnp.stack([plan.kernel(*left.arrays, *right.arrays) for plan in plans])
            return einsum("i,kij,j->k", left.weights, kernels, right.weights)

        return jnp.maximum(sum_over_tile_pairs(tile_sum, data.rows, weights_of(data), self.tile_length(data.x)), 0)


def not_negative(total: Float[Array, "..."], diagonal: Scalar) -> Float[Array, "..."]:
    """Sums over pairs, without what rounding takes below zero; NaN where a kernel is not positive definite.

    The sum over the diagonal says what rounding may do.
    """
    return jnp.where(total < -_NOT_ROUNDING * jnp.abs(diagonal), jnp.nan, jnp.maximum(total, 0))


def safe_root(v: Scalar) -> Scalar:
    """√v, with a derivative of zero at zero."""
    is_zero = v <= 0
    return jnp.where(is_zero, 0, jnp.sqrt(jnp.where(is_zero, 1, v)))


def weights_of(data: Data) -> Float[Array, " draws"]:
    """Those that are given, or 1/n for every draw."""
    return jnp.full(len(data.x), 1 / data.num_draws, data.x.dtype) if data.weights is None else data.weights
