"""How a discrepancy computes, once it has settled on how: from Stein features, or from a Stein kernel.

The square of a discrepancy is V = Σ_ij w_i w_j Δ(x_i, x_j), with a Stein kernel Δ and weights w_i = 1/n unless given.
Where Δ(x, y) = τ(x)ᵀτ(y) with Stein features τ, it is also the squared norm of their mean. A `Form` offers the one or
the other, and here is how V and its diagonal come from either.
"""

from abc import ABC
from collections.abc import Callable
from math import ceil
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxpsd._core.blocks import (
    WORKING_SET,
    Side,
    block_length,
    corresponding,
    einsum,
    map_over_blocks,
    num_draws,
    sum_draws,
    sum_over_blocks,
    sum_over_tile_pairs,
    weighted,
)
from jaxpsd._core.draws import apart, joined
from jaxpsd._core.scores import Scorer
from jaxpsd._core.sharding import gathered, sum_of_shares
from jaxpsd._core.types import Block, PyTree, Scalar
from jaxpsd._stein.coordinates import Affine

# Of how many draws the share of Σ‖τ‖² is watched; it is an alarm, not a result: of more draws than
# `_DRAWS_WATCHED`, an even selection is looked at.
FEW, _DRAWS_WATCHED = 5, 2**16

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


class Form(ABC):
    """How a discrepancy computes, once the draws are known; a pytree.

    transform
        The coordinates to compute in, or None for those of the draws.
    block_size
        How many draws to work on at a time, where the user has chosen it.
    """

    transform: Affine | None
    block_size: int | None

    def pair_sums(
        self, scorer: Scorer, arrays: PyTree, weights: Float[Array, " draws"] | None, *, diagonal: bool
    ) -> PairSums:
        """Sums over all pairs of draws, for weights that sum to one; the diagonal only on request."""
        sums = tile_pair_sums if self.is_pairwise else feature_pair_sums
        return sums(self, scorer, arrays, weights, diagonal=diagonal)

    def features(self, x: Block, s: Block) -> Float[Array, "block features"]:
        """Stein features of a block of draws, where there are some."""
        raise NotImplementedError(f"{type(self).__name__} has a Stein kernel but no features.")

    def kernel(self, x: Block, s: Block, y: Block, u: Block) -> Float[Array, "rows columns"]:
        """Stein kernel between two blocks of draws, with scores s and u."""
        return einsum("ik,jk->ij", self.features(x, s), self.features(y, u))

    def diagonal(self, x: Block, s: Block) -> Float[Array, " block"]:
        """Δ(x, x) = ‖τ(x)‖² of each draw of a block."""
        return (self.features(x, s) ** 2).sum(axis=1)

    def squared_norm(self, z: Float[Array, "features columns"]) -> Float[Array, " columns"]:
        """The squared discrepancy, from the mean features of each column."""
        return (z**2).sum(axis=0)

    def up_to(self, order: int, dim: int) -> "Form":
        """The same discrepancy with the features of degrees 1 … `order` only, which come first."""
        raise NotImplementedError(f"The features of {type(self).__name__} have no degrees.")

    def leading_features(self, x: Block, s: Block) -> Float[Array, "block features"]:
        """The features that are looked at to see how dependent draws are: those of low degree where there are many.

        High degrees decorrelate fast, and are the wrong ones to go by.
        """
        return self.features(x, s)

    def extremeness(self, x: Block, s: Block) -> Float[Array, " block"]:
        """‖τ(x)‖² of each draw, or what is cheaper and grows alike."""
        return self.diagonal(x, s)

    @property
    def is_pairwise(self) -> bool:
        """Whether replicates should be summed over pairs of draws, and not over features."""
        return False

    @property
    def is_quadratic(self) -> bool:
        """Whether the squared norm is a sum of squares, so that it is a sum over pairs of draws too."""
        return True

    def is_cheaper_from_features(self, order: int | None, num_draws: int, dim: int, num_replicates: int) -> bool:
        """Whether replicates up to this order are cheaper from features, although those of all are not."""
        return False

    def tile_length(self, num_draws: int, dim: int, itemsize: int) -> int:
        """Draws on each side of a tile of pairs."""
        raise NotImplementedError(f"{type(self).__name__} does not sum over pairs.")

    @property
    def depends_on_scales(self) -> bool:
        """Whether a coordinate with a larger scale counts for more."""
        return False

    @property
    def highest_degree(self) -> int | None:
        """Of the features, where they have degrees."""
        return None

    @property
    def has_closed_form(self) -> bool:
        """Whether the kernel does without the features."""
        return self.is_pairwise

    @property
    def may_ignore_positions(self) -> bool:
        """Whether features may be finite although a position is not."""
        return True

    def working_bytes(self, x: jax.ShapeDtypeStruct) -> int:
        """Memory that the features of one draw take while they are computed."""
        tau = jax.eval_shape(self.features, x, x)
        return 4 * tau.shape[1] * tau.dtype.itemsize

    def bound_to(self, function: Callable[..., Any]) -> Self:
        """The form with the user's function that it needs, inside the compiled program."""
        raise NotImplementedError(f"{type(self).__name__} needs no function.")


def in_coordinates_of(form: Form, scorer: Scorer) -> Scorer:
    """Score in the coordinates in which the discrepancy is computed."""
    mapping = form.transform.mapping() if form.transform is not None else None

    def moved(block: PyTree) -> tuple[Block, Block]:
        x, s = scorer(block)
        if mapping is not None:
            x, s = mapping(x, s)
        # A position that is not finite shall show, in the score if nowhere else.
        return x, s + 0 * x if form.may_ignore_positions else s

    return moved


# --- pieces from which forms are made ---------------------------------------------------------------------


def pair_sums(
    linear: Callable[[Block, Block, Float[Array, " block"] | None], PyTree],
    norm: Callable[[PyTree], Scalar],
    form: Form,
    scorer: Scorer,
    arrays: PyTree,
    weights: Float[Array, " draws"] | None,
    *,
    length: int,
    diagonal: bool,
) -> PairSums:
    """Pair sums in one pass over the draws, where V is a function of a mean.

    `linear(x, s, weights)` is the sum over a block whose mean over all draws gives V = `norm(mean)`.
    """
    n = num_draws(arrays)

    def on_block(block: PyTree, block_weights: Float[Array, " block"] | None) -> tuple[PyTree, Array]:
        x, s = scorer(block)
        delta = sum_draws(weighted(form.diagonal(x, s), block_weights)) if diagonal else jnp.zeros((), x.dtype)
        extremeness, largest = extremes(form, x, s, block_weights, n)
        return (linear(x, s, block_weights), delta, extremeness), largest

    (summed, delta, extremeness), largest = sum_over_blocks(on_block, arrays, weights, length)
    if weights is None:
        summed, delta = jax.tree.map(lambda leaf: leaf / n, (summed, delta))
    return PairSums(norm(summed), delta, share_of_few(largest, extremeness))


def feature_pair_sums(
    form: Form, scorer: Scorer, arrays: PyTree, weights: Float[Array, " draws"] | None, *, diagonal: bool
) -> PairSums:
    """Pair sums from explicit features, a block at a time, where those are few."""
    x, _ = jax.eval_shape(scorer, arrays)

    def linear(x: Block, s: Block, block_weights: Float[Array, " block"] | None) -> Array:
        return sum_draws(weighted(form.features(x, s), block_weights))

    def norm(z: Float[Array, " features"]) -> Scalar:
        return form.squared_norm(z[:, None])[0]

    length = block_length(len(x), form.working_bytes(x), given=form.block_size)
    return pair_sums(linear, norm, form, scorer, arrays, weights, length=length, diagonal=diagonal)


def score_features(s: Block) -> Float[Array, "block features"]:
    """Scores and their squares: functions of the draws that tell how dependent those are, where features would not."""
    return jnp.concatenate([s, s**2], axis=1)


def tile_pair_sums(
    form: Form, scorer: Scorer, arrays: PyTree, weights: Float[Array, " draws"] | None, *, diagonal: bool
) -> PairSums:
    """Pair sums from the Stein kernel, a tile of pairs at a time."""
    x, s = all_scored(scorer, arrays)
    n, w = num_draws(x), equal_weights(x) if weights is None else weights
    tile = form.tile_length(len(x), x.shape[1], x.dtype.itemsize)

    def tile_sum(left: Side, right: Side) -> Scalar:
        return einsum("i,ij,j->", left.weights, form.kernel(*left.arrays, *right.arrays), right.weights)

    total = sum_over_tile_pairs(tile_sum, (x, s), w, tile)
    delta = jnp.zeros((), x.dtype)
    if diagonal:
        delta = sum_of_shares(sum_draws(w * map_over_blocks(lambda block: form.diagonal(*block), (x, s), tile)))
    extremeness, largest = extremes(form, x, s, w, n)
    extremeness = sum_of_shares(extremeness)
    return PairSums(not_negative(total, extremeness), delta, share_of_few(largest, extremeness))


def not_negative(total: Float[Array, "..."], diagonal: Scalar) -> Float[Array, "..."]:
    """Sums over pairs, without what rounding takes below zero; NaN where a kernel is not positive definite.

    The sum over the diagonal says what rounding may do.
    """
    return jnp.where(total < -_NOT_ROUNDING * jnp.abs(diagonal), jnp.nan, jnp.maximum(total, 0))


def safe_root(v: Scalar) -> Scalar:
    """√v, with a derivative of zero at zero."""
    is_zero = v <= 0
    return jnp.where(is_zero, 0, jnp.sqrt(jnp.where(is_zero, 1, v)))


def equal_weights(x: Block) -> Float[Array, " draws"]:
    """1/n for every draw."""
    return jnp.full(len(x), 1 / num_draws(x), x.dtype)


def mean_over_pairs(scorer: Scorer, arrays: PyTree, form: Form) -> tuple[Scalar, Scalar]:
    """Mean of Δ(x₁, x₂), Δ(x₃, x₄), …, a last draw without a partner left out; and its standard error."""
    scorer = in_coordinates_of(form, scorer)
    count = num_draws(arrays) // 2
    paired = apart(jax.tree.map(lambda leaf: leaf[: 2 * count], arrays), count)

    def on_block(block: PyTree, fresh: Float[Array, " block"] | None) -> tuple[tuple[Array, Array], None]:
        x, s = scorer(joined(block))
        terms = corresponding(form.kernel, x[::2], s[::2], x[1::2], s[1::2])
        return (sum_draws(weighted(terms, fresh)), sum_draws(weighted(terms**2, fresh))), None

    x, _ = jax.eval_shape(scorer, arrays)
    length = block_length(count, 32 * x.shape[1] * x.dtype.itemsize, given=form.block_size)
    (total, squares), _ = sum_over_blocks(on_block, paired, None, length)
    mean = total / count
    variance = jnp.maximum(squares - count * mean**2, 0) / max(count - 1, 1)
    return mean, jnp.sqrt(variance / count)


def tile_side(num_draws: int, dim: int, itemsize: int, *, matrices: int, given: int | None) -> int:
    """Draws on each side of a tile that takes so many matrices of its size while it is computed."""
    longest = min(
        int((WORKING_SET / (matrices * itemsize)) ** 0.5),
        # Of its rows, positions and scores, moved and multiplied: some twelve arrays.
        max(1, WORKING_SET // (12 * dim * itemsize)),
    )
    return block_length(num_draws, 1, longest, given=given)


def extremes(
    form: Form, x: Block, s: Block, weights: Float[Array, " block"] | None, num_draws: int
) -> tuple[Scalar, Float[Array, " few"]]:
    """About Σ‖τ‖² over a block, and its largest terms, from an even selection where draws are many."""
    stride = ceil(num_draws / _DRAWS_WATCHED)
    seen = None if weights is None else weights[::stride]
    # They are looked at, not differentiated through.
    extremeness = jax.lax.stop_gradient(weighted(form.extremeness(x[::stride], s[::stride]), seen))
    return extremeness.sum(), _largest(extremeness)


def _largest(values: Float[Array, " draws"]) -> Float[Array, " few"]:
    return jax.lax.top_k(values, min(FEW, len(values)))[0]


def share_of_few(largest: Float[Array, "..."], total: Scalar) -> Scalar:
    """Share of the total that the largest terms of all blocks have."""
    largest = _largest(gathered(_largest(largest.ravel())).ravel())
    return jnp.where(total > 0, largest.sum() / jnp.where(total > 0, total, 1), 0)


def all_scored(scorer: Scorer, arrays: PyTree) -> tuple[Block, Block]:
    """Positions and scores of all draws, for what needs them more than once."""
    x, _ = jax.eval_shape(scorer, arrays)
    return map_over_blocks(scorer, arrays, block_length(x.shape[0], 4 * x.shape[1] * x.dtype.itemsize))


def gram_of(form: Form, x: Block, s: Block) -> Float[Array, "draws draws"]:
    """Δ(x_i, x_j) of all pairs."""
    if not form.has_closed_form:
        length = block_length(len(x), form.working_bytes(jax.ShapeDtypeStruct(x.shape, x.dtype)))
        tau = map_over_blocks(lambda block: form.features(*block), (x, s), length)
        return einsum("ik,jk->ij", tau, tau)
    length = block_length(len(x), 32 * len(x) * x.dtype.itemsize)
    return map_over_blocks(lambda rows: form.kernel(rows[0], rows[1], x, s), (x, s), length)
