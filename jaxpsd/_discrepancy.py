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

from jaxpsd._blocks import block_length, map_over_blocks, num_draws, sum_draws, sum_over_blocks
from jaxpsd._checks import check_fits, check_samples, check_weights, is_concrete
from jaxpsd._draws import Draws
from jaxpsd._score import Kernel, Scorer, check_target, raise_for_value, run
from jaxpsd._transform import Affine
from jaxpsd._types import Block, PyTree, Scalar, Target

# A few draws with most of Σ‖τ‖² bring a warning, unless there are not many more of them.
_FEW, _MOST, _ENOUGH_DRAWS = 5, 0.8, 500

# The share is an alarm, not a result: where Σ‖τ‖² is not needed itself, so many draws are enough.
_DRAWS_WATCHED = 1024


class HeavyTailsWarning(UserWarning):
    """A few draws decide the discrepancy: its variance may be infinite, and a test of it wrong."""


class Diagonal(NamedTuple):
    """Sums of a_i = w_i Δ(x_i, x_i) over draws: all of them, or a part where only the shares matter.

    total
        Σ_i a_i.
    largest
        The largest a_i.
    """

    total: Scalar
    largest: Float[Array, " few"]

    @classmethod
    def of_block(cls, delta: Float[Array, " block"], block_weights: Float[Array, " block"] | None) -> "Diagonal":
        """From Δ(x, x) of the first draws of a block; `merged` puts blocks together."""
        if block_weights is not None:
            delta = delta * block_weights[: len(delta)]
        # The largest are watched, not differentiated through.
        largest, _ = jax.lax.top_k(jax.lax.stop_gradient(delta), min(_FEW, len(delta)))
        return cls(delta.sum(), largest)


class PairSums(NamedTuple):
    """Sums over pairs of draws, all that V and U need; the weights sum to one.

    total
        Σ_ij w_i w_j Δ(x_i, x_j); for the L1 norm, its counterpart.
    diagonal
        Σ_i w_i Δ(x_i, x_i), over all draws if it was asked for.
    few_share
        The share of the diagonal that a few draws have.
    """

    total: Scalar
    diagonal: Scalar
    few_share: Scalar


class Form(ABC):
    """How a discrepancy computes, once the draws are known; a pytree.

    transform
        The coordinates to compute in, or None for those of the draws.
    """

    transform: Affine | None

    @abstractmethod
    def pair_sums(
        self, scorer: Scorer, arrays: PyTree, weights: Float[Array, " draws"] | None, *, diagonal: bool
    ) -> PairSums:
        """Sums over all pairs of draws, for weights that sum to one; the diagonal only on request."""

    @abstractmethod
    def features(self, x: Block, s: Block) -> Float[Array, "block features"]:
        """Stein features of a block of draws."""

    @abstractmethod
    def kernel(self, x: Block, s: Block, y: Block, u: Block) -> Float[Array, "rows columns"]:
        """Stein kernel between two blocks of draws, with scores s and u."""

    @property
    def may_ignore_positions(self) -> bool:
        """Whether features may be finite although a position is not."""
        return True


class Discrepancy(ABC):
    """The interface of every discrepancy: call it, or ask for V, U, features or the Gram matrix."""

    @abstractmethod
    def _form(self, draws: Draws, weights: Float[Array, " draws"] | None) -> Form:
        """Check the settings against the draws, and settle what was left to be chosen by them."""

    @abstractmethod
    def _num_features(self, draws: Draws) -> int:
        """How many Stein features a draw has."""

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
        draws = check_samples(samples, chains=chains)
        if draws.num_draws < 2:
            raise ValueError("The U-statistic is a mean over pairs of different draws; got a single draw.")
        return self._statistic(_u_kernel, target, samples, None, chains)

    def features(
        self, target: Target, samples: PyTree, *, chains: bool | None = None
    ) -> Float[Array, "draws features"]:
        """Stein features τ of each draw, chains one after the other. Parameters as in a call."""
        target, draws, _, form = self._prepare(target, samples, None, chains)
        shape = (draws.num_draws, self._num_features(draws))
        check_fits(shape, draws.dtype, "The feature matrix", "`v_statistic` and `u_statistic` do without it.")
        return _finite(
            run(_features_kernel, target, draws, form, function=self._function), target, draws, "A Stein feature"
        )

    def gram(self, target: Target, samples: PyTree, *, chains: bool | None = None) -> Float[Array, "draws draws"]:
        """Stein kernel Δ(x_i, x_j) of each pair of draws. Parameters as in a call."""
        self._check_pairs("Gram matrix")
        target, draws, _, form = self._prepare(target, samples, None, chains)
        shape = (draws.num_draws, draws.num_draws)
        check_fits(shape, draws.dtype, "The Gram matrix", "`v_statistic` and `u_statistic` do without it.")
        return _finite(
            run(_gram_kernel, target, draws, form, function=self._function), target, draws, "The Stein kernel"
        )

    def _prepare(
        self, target: Target, samples: PyTree, weights: ArrayLike | None, chains: bool | None
    ) -> tuple[PyTree, Draws, Float[Array, " draws"] | None, Form]:
        draws = check_samples(samples, chains=chains)
        target = check_target(target, samples, draws, chains=chains)
        weights = check_weights(weights, draws)
        return target, draws, weights, self._form(draws, weights)

    def _statistic(
        self, kernel: Kernel, target: Target, samples: PyTree, weights: ArrayLike | None, chains: bool | None
    ) -> Scalar:
        target, draws, weights, form = self._prepare(target, samples, weights, chains)
        statistic, few_share = run(kernel, target, draws, form, weights, function=self._function)
        _finite(statistic, target, draws, "The statistic")
        if is_concrete(few_share) and draws.num_draws >= _ENOUGH_DRAWS and float(few_share) > _MOST:
            warnings.warn(
                f"{_FEW} of {min(draws.num_draws, _DRAWS_WATCHED):,} draws looked at carry {few_share:.0%} of Σ‖τ‖²: "
                "heavy tails, or draws far from all others, decide this discrepancy, and p-values from it are "
                "not to be trusted. Look at the extreme draws, lower the order, or choose a parameterisation "
                "with lighter tails.",
                HeavyTailsWarning,
                stacklevel=3,
            )
        return statistic


def _finite(values: Array, target: PyTree, draws: Draws, what: str) -> Array:
    if is_concrete(values) and not np.isfinite(values).all():
        raise_for_value(target, draws, what)
    return values


# --- pieces from which forms are made ---------------------------------------------------------------------


def sum_with_diagonal(
    linear: Callable[[Block, Block, Float[Array, " block"] | None], PyTree],
    delta: Callable[[Block, Block], Float[Array, " block"]],
    scorer: Scorer,
    arrays: PyTree,
    weights: Float[Array, " draws"] | None,
    *,
    length: int,
    diagonal: bool,
) -> tuple[PyTree, Diagonal]:
    """Σ_i w_i f(x_i) and the sums of w_i Δ(x_i, x_i), the weights summing to one, in one pass.

    `linear(x, s, weights)` gives the former for a block, `delta(x, s)` the Δ(x, x) of its draws.
    """
    n = num_draws(arrays)
    watched = length if diagonal else ceil(_DRAWS_WATCHED * length / n)

    def on_block(block: PyTree, block_weights: Float[Array, " block"] | None) -> tuple[PyTree, Array]:
        x, s = scorer(block)
        on_diagonal = Diagonal.of_block(delta(x[:watched], s[:watched]), block_weights)
        return (linear(x, s, block_weights), on_diagonal.total), on_diagonal.largest

    (summed, total), largest = sum_over_blocks(on_block, arrays, weights, length)
    if weights is None:
        summed, total, largest = jax.tree.map(lambda leaf: leaf / n, (summed, total, largest))
    return summed, Diagonal(total, largest.ravel())


def feature_pair_sums(
    form: Form,
    norm: Callable[[Float[Array, " features"]], Scalar],
    scorer: Scorer,
    arrays: PyTree,
    weights: Float[Array, " draws"] | None,
    *,
    block_size: int | None,
    diagonal: bool,
) -> PairSums:
    """Pair sums from explicit features, a block at a time, where those are few; `norm` is squared."""
    tau = jax.eval_shape(lambda block: form.features(*scorer(block)), arrays)
    length = block_length(len(tau), 4 * tau.shape[1] * tau.dtype.itemsize, given=block_size)

    def linear(x: Block, s: Block, block_weights: Float[Array, " block"] | None) -> Array:
        tau = form.features(x, s)
        return sum_draws(tau if block_weights is None else tau * block_weights[:, None])

    def delta(x: Block, s: Block) -> Float[Array, " block"]:
        return (form.features(x, s) ** 2).sum(axis=1)

    z, on_diagonal = sum_with_diagonal(linear, delta, scorer, arrays, weights, length=length, diagonal=diagonal)
    return PairSums(norm(z), on_diagonal.total, few_share(on_diagonal))


def few_share(diagonal: Diagonal) -> Scalar:
    """Share of the diagonal that the few largest draws have."""
    largest, _ = jax.lax.top_k(diagonal.largest, min(_FEW, len(diagonal.largest)))
    return largest.sum() / diagonal.total


def all_scored(scorer: Scorer, arrays: PyTree) -> tuple[Block, Block]:
    """Positions and scores of all draws, for what needs them more than once."""
    x, _ = jax.eval_shape(scorer, arrays)
    return map_over_blocks(scorer, arrays, block_length(x.shape[0], 4 * x.shape[1] * x.dtype.itemsize))


# --- kernels: compiled once for each form, log-density and shape ------------------------------------------


def _pair_sums(
    scorer: Scorer, arrays: PyTree, form: Form, weights: Float[Array, " draws"] | None, *, diagonal: bool
) -> PairSums:
    if weights is not None:
        weights = weights / weights.sum()
    return form.pair_sums(_in_coordinates_of(form, scorer), arrays, weights, diagonal=diagonal)


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
    moved = _in_coordinates_of(form, scorer)

    def features(block: PyTree) -> Float[Array, "block features"]:
        return form.features(*moved(block))

    # A few arrays of the block's size are alive while it is computed.
    output = jax.eval_shape(features, arrays)
    length = block_length(output.shape[0], 4 * output.shape[1] * output.dtype.itemsize)
    return map_over_blocks(features, arrays, length)


def _gram_kernel(scorer: Scorer, arrays: PyTree, form: Form) -> Float[Array, "draws draws"]:
    x, s = all_scored(_in_coordinates_of(form, scorer), arrays)
    length = block_length(len(x), 32 * len(x) * x.dtype.itemsize)
    return map_over_blocks(lambda rows: form.kernel(rows[0], rows[1], x, s), (x, s), length)


def _in_coordinates_of(form: Form, scorer: Scorer) -> Scorer:
    """Score in the coordinates in which the discrepancy is computed."""
    mapping = form.transform.mapping() if form.transform is not None else None

    def moved(block: PyTree) -> tuple[Block, Block]:
        x, s = scorer(block)
        if form.may_ignore_positions:
            # A position that is not finite shall show, in the score if nowhere else.
            s = s + 0 * x
        return mapping(x, s) if mapping is not None else (x, s)

    return moved
