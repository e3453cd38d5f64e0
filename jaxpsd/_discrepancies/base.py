"""What all discrepancies share: how they are called, and how V and U come from sums over pairs.

A discrepancy is defined by a Stein kernel Δ(x, y), such as Δ(x, y) = τ(x)ᵀτ(y) with Stein features τ. Its
square is estimated by V = Σ_ij w_i w_j Δ(x_i, x_j), with weights w_i = 1/n unless given, or without bias by
U = Σ_{i≠j} Δ(x_i, x_j) / (n(n − 1)) (paper, section 3.1).

A `Discrepancy` is what the user sets up. Given draws it settles on a `Form`: the arrays and choices with
which a compiled program computes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from jaxpsd._core.blocks import block_length, map_over_blocks, num_draws
from jaxpsd._core.checks import (
    check_fits,
    check_positive_integer,
    check_samples,
    check_weights,
    is_concrete,
    warn_of_coarse_draws,
)
from jaxpsd._core.doubts import HeavyTailsWarning, warn_user
from jaxpsd._core.draws import Draws, ravel
from jaxpsd._core.scores import Kernel, Scorer, check_target, raise_for_value, run, run_on_shares, scores_of
from jaxpsd._core.sharding import at_hand
from jaxpsd._core.types import PyTree, Scalar, Target
from jaxpsd._discrepancies.plans import FEW, Form, PairSums, all_scored, gram_of, in_coordinates_of, safe_root
from jaxpsd._stein.coordinates import Affine, Rule, check_transform

# A few draws with most of Σ‖τ‖² bring a warning, unless there are not many more of them.
_MOST, _ENOUGH_DRAWS = 0.8, 500


class Discrepancy(ABC):
    """The interface of every discrepancy: call it, or ask for V, U, features or the Gram matrix."""

    @abstractmethod
    def _form(self, draws: Draws, weights: Float[Array, " draws"] | None) -> Form:
        """Check the settings against the draws, and settle what was left to be chosen by them."""

    @abstractmethod
    def _num_features(self, draws: Draws) -> int | None:
        """How many Stein features a draw has; None for a kernel that is not made of finitely many."""

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
    def _only_asymptotic(self) -> bool:
        """Whether no bootstrap suits the statistic."""
        return False

    @property
    def _chooses_by_all_draws(self) -> bool:
        """Whether something is chosen by all draws alike, also by those of weight zero."""
        return False

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

    def _check_common(self) -> None:
        """The settings that many discrepancies have: how many draws to work on at a time, and in which coordinates."""
        settings = vars(self)
        if settings.get("block_size") is not None:
            object.__setattr__(self, "block_size", check_positive_integer(settings["block_size"], "block_size"))
        if "transform" in settings:
            object.__setattr__(self, "transform", check_transform(settings["transform"]))

    def _with_rule_fitted(self, fit: Callable[[Rule], Affine]) -> "Discrepancy":
        """With coordinates chosen by `fit`, where they were to be chosen by the draws; else as it is."""
        rule = vars(self).get("transform")
        return replace(self, transform=fit(rule)) if isinstance(rule, Rule) else self  # pyright: ignore

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
        count = self._num_features(draws)
        if count is None:
            raise ValueError(f"{type(self).__name__} has a Stein kernel and no features; use `gram`.")
        shape = (draws.num_draws, count)
        check_fits(shape, draws.dtype, "The feature matrix", "`v_statistic` and `u_statistic` do without it.")
        result = run_on_shares(_features_kernel, target, draws, form, function=self._function, per_draw=True)
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

    def _check_underflow(self, statistic: Scalar, target: PyTree, draws: Draws) -> None:
        """Zero shall mean that nothing is wrong, and not that all numbers were too small."""
        tiny = float(jnp.finfo(draws.dtype).tiny)
        if not is_concrete(statistic) or abs(float(statistic)) > tiny**0.5:
            return
        largest = float(at_hand(jnp.abs(ravel(scores_of(target, draws))).max()))
        if 0 < largest**2 < tiny / float(jnp.finfo(draws.dtype).eps):
            raise FloatingPointError(
                f"The scores are at most {largest:.2g}, and their squares too small for {draws.dtype}: a statistic of "
                f"{float(statistic):.2g} has no meaning. Use `transform='standardize'` or other units."
            )

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
        statistic, few_share = run_on_shares(kernel, target, draws, form, weights, function=self._function)
        self._finite(statistic, target, draws, "The statistic")
        if form.transform is None:
            self._check_underflow(statistic, target, draws)
        warn_of_heavy_tails(few_share, draws)
        return statistic


def warn_of_heavy_tails(few_share: Scalar, draws: Draws) -> None:
    """Warn where a few draws have most of Σ‖τ‖²."""
    if is_concrete(few_share) and draws.num_draws >= _ENOUGH_DRAWS and float(few_share) > _MOST:
        warn_user(
            f"{FEW} of {draws.num_draws:,} draws carry about {few_share:.0%} of Σ‖τ‖²: "
            "heavy tails, or draws far from all others, decide this discrepancy, and p-values from it are "
            "not to be trusted. Look at the extreme draws, lower the order, or choose a parameterisation "
            "with lighter tails.",
            HeavyTailsWarning,
        )


def check_input(
    target: Target, samples: PyTree, weights: ArrayLike | None, chains: bool | None
) -> tuple[PyTree, Draws, Float[Array, " draws"] | None]:
    """What every call is given, checked."""
    draws = check_samples(samples, chains=chains)
    warn_of_coarse_draws(draws)
    return check_target(target, samples, draws, chains=chains), draws, check_weights(weights, draws)


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
    return safe_root(v), share


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
