"""What all discrepancies share: how they are called, and how V and U come from sums over pairs.

A discrepancy is defined by a Stein kernel Δ(x, y), here Δ(x, y) = τ(x)ᵀτ(y) with Stein features τ. Its
square is estimated by V = Σ_ij w_i w_j Δ(x_i, x_j), with weights w_i = 1/n unless given, or without bias by
U = Σ_{i≠j} Δ(x_i, x_j) / (n(n − 1)) (paper, section 3.1).

A `Discrepancy` is what the user sets up. Given draws it settles on a `Form`: the arrays and choices with
which a compiled program computes.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from math import ceil
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from jaxpsd._blocks import block_length, einsum, map_over_blocks, num_draws, sum_draws, sum_over_blocks, weighted
from jaxpsd._checks import check_fits, check_samples, check_weights, is_concrete
from jaxpsd._draws import Draws
from jaxpsd._score import Kernel, Scorer, check_target, raise_for_value, run
from jaxpsd._transform import Affine
from jaxpsd._types import Block, PyTree, Scalar, Target

# A few draws with most of Σ‖τ‖² bring a warning, unless there are not many more of them.
_FEW, _MOST, _ENOUGH_DRAWS = 5, 0.8, 500

# The shares are an alarm, not a result: of more draws than this, an even selection is looked at.
_DRAWS_WATCHED = 2**16


class HeavyTailsWarning(UserWarning):
    """A few draws decide the discrepancy: its variance may be infinite, and a test of it wrong."""


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

    @abstractmethod
    def pair_sums(
        self, scorer: Scorer, arrays: PyTree, weights: Float[Array, " draws"] | None, *, diagonal: bool
    ) -> PairSums:
        """Sums over all pairs of draws, for weights that sum to one; the diagonal only on request."""

    @abstractmethod
    def features(self, x: Block, s: Block) -> Float[Array, "block features"]:
        """Stein features of a block of draws."""

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

    def tile_length(self, num_draws: int, dim: int, itemsize: int) -> int:
        """Draws on each side of a tile of pairs."""
        raise NotImplementedError(f"{type(self).__name__} does not sum over pairs.")

    @property
    def depends_on_scales(self) -> bool:
        """Whether a coordinate with a larger scale counts for more."""
        return False

    @property
    def has_closed_form(self) -> bool:
        """Whether the kernel does without the features."""
        return False

    @property
    def may_ignore_positions(self) -> bool:
        """Whether features may be finite although a position is not."""
        return True

    def working_bytes(self, x: jax.ShapeDtypeStruct) -> int:
        """Memory that the features of one draw take while they are computed."""
        tau = jax.eval_shape(self.features, x, x)
        return 4 * tau.shape[1] * tau.dtype.itemsize

    def bound_to(self, function: Callable[..., Any]) -> "Form":
        """The form with the user's function that it needs, inside the compiled program."""
        raise NotImplementedError(f"{type(self).__name__} needs no function.")


class Discrepancy(ABC):
    """The interface of every discrepancy: call it, or ask for V, U, features or the Gram matrix."""

    @abstractmethod
    def _form(self, draws: Draws, weights: Float[Array, " draws"] | None) -> Form:
        """Check the settings against the draws, and settle what was left to be chosen by them."""

    @abstractmethod
    def _num_features(self, draws: Draws) -> int:
        """How many Stein features a draw has."""

    def _test_form(
        self, draws: Draws, weights: Float[Array, " draws"] | None, num_replicates: int, num_statistics: int = 1
    ) -> Form:
        """As `_form`, for a test that needs so many replicates, each of so many statistics, as well."""
        return self._form(draws, weights)

    def _stream_form(self, draws: Draws, num_replicates: int) -> Form:
        """As `_test_form`, before any draw is known but the structure of them all: from features."""
        form = self._test_form(draws, None, num_replicates)
        if form.is_pairwise:
            raise ValueError(f"{type(self).__name__} sums over pairs of draws, which cannot be streamed.")
        return form

    @property
    def _highest_order(self) -> int | None:
        """The degree of the features that come last, where they have degrees."""
        return None

    @property
    @abstractmethod
    def _remedy(self) -> str:
        """What to do when a result is not finite although samples and scores are."""

    @property
    def _function(self) -> Callable[..., Any] | None:
        """A function of the user's that the form needs, kept apart from what may be cached by value."""
        return None

    def _check_pairs(self, what: str) -> None:  # noqa: B027
        """Refuse what is a sum over pairs of draws, where the discrepancy is not."""

    def __call__(
        self, target: Target, samples: PyTree, weights: ArrayLike | None = None, *, chains: bool | None = None
    ) -> Scalar:
        """Discrepancy between the draws and the target, √V.

        Parameters
        ----------
        target
            The log-density, a function of one position, or the scores ∇log p at the samples.
        samples
            An array (draws, dim) or (chains, draws, dim), or a pytree of arrays with those leading axes.
        weights
            Weights of the draws, one each, normalised here. Equal by default.
        chains
            Whether the leaves of a pytree have a chain axis before the draws.
        """
        return self._statistic(_root_kernel, target, samples, weights, chains)

    def v_statistic(
        self, target: Target, samples: PyTree, weights: ArrayLike | None = None, *, chains: bool | None = None
    ) -> Scalar:
        """Squared discrepancy V, never negative. Parameters as in a call."""
        return self._statistic(_v_kernel, target, samples, weights, chains)

    def u_statistic(self, target: Target, samples: PyTree, *, chains: bool | None = None) -> Scalar:
        """Squared discrepancy without bias, U, which may be negative. Parameters as in a call."""
        self._check_pairs("U-statistic")
        return self._statistic(_u_kernel, target, samples, None, chains, fewest_draws=2)

    def features(
        self, target: Target, samples: PyTree, *, chains: bool | None = None
    ) -> Float[Array, "draws features"]:
        """Stein features τ of each draw, chains one after the other. Parameters as in a call."""
        target, draws, _, form = self._prepare(target, samples, None, chains)
        shape = (draws.num_draws, self._num_features(draws))
        check_fits(shape, draws.dtype, "The feature matrix", "`v_statistic` and `u_statistic` do without it.")
        result = run(_features_kernel, target, draws, form, function=self._function)
        return self._finite(result, target, draws, "A Stein feature")

    def gram(self, target: Target, samples: PyTree, *, chains: bool | None = None) -> Float[Array, "draws draws"]:
        """Stein kernel Δ(x_i, x_j) of each pair of draws. Parameters as in a call."""
        self._check_pairs("Gram matrix")
        target, draws, _, form = self._prepare(target, samples, None, chains)
        shape = (draws.num_draws, draws.num_draws)
        check_fits(shape, draws.dtype, "The Gram matrix", "`v_statistic` and `u_statistic` do without it.")
        result = run(_gram_kernel, target, draws, form, function=self._function)
        return self._finite(result, target, draws, "The Stein kernel")

    def _finite(self, values: Array, target: PyTree, draws: Draws, what: str) -> Array:
        if is_concrete(values) and not np.isfinite(values).all():
            raise_for_value(target, draws, what, self._remedy)
        return values

    def _prepare(
        self, target: Target, samples: PyTree, weights: ArrayLike | None, chains: bool | None
    ) -> tuple[PyTree, Draws, Float[Array, " draws"] | None, Form]:
        target, draws, weights = check_input(target, samples, weights, chains)
        return target, draws, weights, self._form(draws, weights)

    def _statistic(
        self,
        kernel: Kernel,
        target: Target,
        samples: PyTree,
        weights: ArrayLike | None,
        chains: bool | None,
        *,
        fewest_draws: int = 1,
    ) -> Scalar:
        target, draws, weights, form = self._prepare(target, samples, weights, chains)
        if draws.num_draws < fewest_draws:
            raise ValueError("The U-statistic is a mean over pairs of different draws; got a single draw.")
        statistic, few_share = run(kernel, target, draws, form, weights, function=self._function)
        self._finite(statistic, target, draws, "The statistic")
        warn_of_heavy_tails(few_share, draws, stacklevel=4)
        return statistic


def warn_of_heavy_tails(few_share: Scalar, draws: Draws, stacklevel: int) -> None:
    """Warn where a few draws have most of Σ‖τ‖²."""
    if is_concrete(few_share) and draws.num_draws >= _ENOUGH_DRAWS and float(few_share) > _MOST:
        warnings.warn(
            f"{_FEW} of {draws.num_draws:,} draws carry about {few_share:.0%} of Σ‖τ‖²: "
            "heavy tails, or draws far from all others, decide this discrepancy, and p-values from it are "
            "not to be trusted. Look at the extreme draws, lower the order, or choose a parameterisation "
            "with lighter tails.",
            HeavyTailsWarning,
            stacklevel=stacklevel,
        )


def check_input(
    target: Target, samples: PyTree, weights: ArrayLike | None, chains: bool | None
) -> tuple[PyTree, Draws, Float[Array, " draws"] | None]:
    """What every call is given, checked."""
    draws = check_samples(samples, chains=chains)
    return check_target(target, samples, draws, chains=chains), draws, check_weights(weights, draws)


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
    form: Form,
    scorer: Scorer,
    arrays: PyTree,
    weights: Float[Array, " draws"] | None,
    *,
    block_size: int | None,
    diagonal: bool,
) -> PairSums:
    """Pair sums from explicit features, a block at a time, where those are few."""
    x, _ = jax.eval_shape(scorer, arrays)

    def linear(x: Block, s: Block, block_weights: Float[Array, " block"] | None) -> Array:
        return sum_draws(weighted(form.features(x, s), block_weights))

    def norm(z: Float[Array, " features"]) -> Scalar:
        return form.squared_norm(z[:, None])[0]

    length = block_length(len(x), form.working_bytes(x), given=block_size)
    return pair_sums(linear, norm, form, scorer, arrays, weights, length=length, diagonal=diagonal)


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
    return jax.lax.top_k(values, min(_FEW, len(values)))[0]


def share_of_few(largest: Float[Array, "..."], total: Scalar) -> Scalar:
    """Share of the total that the largest terms of all blocks have."""
    return jnp.where(total > 0, _largest(largest.ravel()).sum() / jnp.where(total > 0, total, 1), 0)


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


# --- kernels: compiled once for each form, log-density and shape ------------------------------------------


def _pair_sums(
    scorer: Scorer, arrays: PyTree, form: Form, weights: Float[Array, " draws"] | None, *, diagonal: bool
) -> PairSums:
    return form.pair_sums(in_coordinates_of(form, scorer), arrays, weights, diagonal=diagonal)


def _v_kernel(
    scorer: Scorer, arrays: PyTree, form: Form, weights: Float[Array, " draws"] | None
) -> tuple[Scalar, Scalar]:
    sums = _pair_sums(scorer, arrays, form, weights, diagonal=False)
    return sums.total, sums.few_share


def _root_kernel(
    scorer: Scorer, arrays: PyTree, form: Form, weights: Float[Array, " draws"] | None
) -> tuple[Scalar, Scalar]:
    v, share = _v_kernel(scorer, arrays, form, weights)
    # The square root has no derivative at zero; its value there is fine.
    is_zero = v == 0
    return jnp.where(is_zero, 0, jnp.sqrt(jnp.where(is_zero, 1, v))), share


def _u_kernel(scorer: Scorer, arrays: PyTree, form: Form, weights: None) -> tuple[Scalar, Scalar]:
    n = num_draws(arrays)
    sums = _pair_sums(scorer, arrays, form, weights, diagonal=True)
    # Σ_{i≠j} Δ_ij / (n(n − 1)), where `total` is the sum over all pairs / n² and `diagonal` the trace / n.
    return (n * sums.total - sums.diagonal) / (n - 1), sums.few_share


def _features_kernel(scorer: Scorer, arrays: PyTree, form: Form) -> Float[Array, "draws features"]:
    moved = in_coordinates_of(form, scorer)

    def features(block: PyTree) -> Float[Array, "block features"]:
        return form.features(*moved(block))

    x, _ = jax.eval_shape(moved, arrays)
    return map_over_blocks(features, arrays, block_length(len(x), form.working_bytes(x)))


def _gram_kernel(scorer: Scorer, arrays: PyTree, form: Form) -> Float[Array, "draws draws"]:
    return gram_of(form, *all_scored(in_coordinates_of(form, scorer), arrays))


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
