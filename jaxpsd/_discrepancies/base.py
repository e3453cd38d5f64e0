"""What all discrepancies share: how they are called, and how V and U come from sums over pairs.

A discrepancy is defined by a Stein kernel Δ(x, y), such as Δ(x, y) = τ(x)ᵀτ(y) with Stein features τ. Its
square is estimated by V = Σ_ij w_i w_j Δ(x_i, x_j), with weights w_i = 1/n unless given, or without bias by
U = Σ_{i≠j} Δ(x_i, x_j) / (n(n − 1)) (paper, section 3.1).

A `Discrepancy` is what the user sets up. Given draws it makes a `Plan`, with which programs compute.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Any, ClassVar, Self

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from jaxpsd._core.blocks import block_length, map_over_blocks
from jaxpsd._core.checks import check_fits, check_positive_integer, check_underflow, is_concrete
from jaxpsd._core.doubts import Doubt, HeavyTailsWarning, warn_of
from jaxpsd._core.draws import Draws, ravel
from jaxpsd._core.programs import Data, run
from jaxpsd._core.scores import Given, check_input
from jaxpsd._core.sharding import as_local
from jaxpsd._core.tracing import Traced
from jaxpsd._core.types import PyTree, Scalar, Target
from jaxpsd._discrepancies.plans import FEW, FeaturePlan, Plan, safe_root
from jaxpsd._stein.coordinates import Affine, Apart, Rule, check_transform, find_fallback

# A few draws with most of Σ‖τ‖² are a reason for doubt, unless there are not many more of them.
_MOST, _ENOUGH_DRAWS = 0.8, 500

Program = Callable[[Data, Plan], tuple[Scalar, Scalar]]
"""From draws to a statistic, and about what share of Σ‖τ‖² a few draws have."""


class Discrepancy(ABC):
    """The interface of every discrepancy: call it, or ask for V, U, features or the Gram matrix."""

    _remedy: ClassVar[str]
    """What to do when a result is not finite although samples and scores are."""

    @abstractmethod
    def _plan(self, given: Given, num_replicates: int | None = None, num_statistics: int = 1) -> Plan:
        """Check the settings against the draws, and choose what was left to be chosen by them.

        For a test that needs so many replicates, each of so many statistics, as well; None for the value alone.
        """

    @abstractmethod
    def __call__(
        self, target: Target, samples: PyTree, weights: ArrayLike | None = None, *, chains: bool | None = None
    ) -> Scalar:
        """Discrepancy between the draws and the target.

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

    @abstractmethod
    def u_statistic(self, target: Target, samples: PyTree, *, chains: bool | None = None) -> Scalar:
        """Squared discrepancy without bias, U, which may be negative. Parameters as in a call."""

    def v_statistic(
        self, target: Target, samples: PyTree, weights: ArrayLike | None = None, *, chains: bool | None = None
    ) -> Scalar:
        """Squared discrepancy V, never negative, where there is one. Parameters as in a call."""
        raise ValueError(f"{type(self).__name__} has no V-statistic; use `u_statistic`.")

    def features(
        self, target: Target, samples: PyTree, *, chains: bool | None = None
    ) -> Float[Array, "draws features"]:
        """Stein features τ of each draw, chains one after the other. Parameters as in a call."""
        given = check_input(target, samples, None, chains)
        plan, count = self._plan(given), self._num_features(given.draws)
        if count is None:
            raise ValueError(f"{type(self).__name__} has a Stein kernel and no features; use `gram`.")
        shape = (given.draws.num_draws, count)
        check_fits(shape, given.draws.dtype, "The feature matrix", "`v_statistic` and `u_statistic` do without it.")
        features = run(_features, given, plan.as_features(), result="draws")
        return self._returned(features, given, plan, "A Stein feature")

    def gram(self, target: Target, samples: PyTree, *, chains: bool | None = None) -> Float[Array, "draws draws"]:
        """Stein kernel Δ(x_i, x_j) of each pair of draws. Parameters as in a call."""
        self._check_pairs("Gram matrix")
        given = check_input(target, samples, None, chains)
        plan, shape = self._plan(given), (given.draws.num_draws,) * 2
        check_fits(shape, given.draws.dtype, "The Gram matrix", "`v_statistic` and `u_statistic` do without it.")
        return self._returned(run(_gram, given, plan, result="gathered"), given, plan, "The Stein kernel")

    # --- what tests, streams and rankings ask -----------------------------------------------------------------

    def _num_features(self, draws: Draws) -> int | None:
        """How many Stein features a draw has; None for a kernel that is not made of finitely many."""
        return None

    def _stream_plan(self, draws: Draws, num_replicates: int) -> FeaturePlan:
        """As `_plan`, before any draw is known but the structure of them all: from features."""
        plan = self._plan(Given(draws), num_replicates)
        if not isinstance(plan, FeaturePlan):
            raise ValueError(f"{type(self).__name__} sums over pairs of draws, which cannot be streamed.")
        return plan

    @property
    def _chooses_by_all_draws(self) -> bool:
        """Whether something is chosen by all draws alike, also by those of weight zero."""
        return False

    def _check_pairs(self, what: str) -> None:  # noqa: B027
        """Refuse what is a sum over pairs of draws, where the discrepancy is not."""

    def _traced_function(self, draws: Draws) -> Traced | None:
        """A function of the user's that the discrepancy is made of, traced."""
        return None

    def _with_function(self, function: Callable[..., Any]) -> Self:
        """The same with another such function."""
        raise NotImplementedError(f"{type(self).__name__} is not made of a function.")

    def _with_rule_fitted(self, fit: Callable[[Rule], Affine]) -> Self:
        """With coordinates chosen by `fit`, where they were to be chosen by the draws; else as it is."""
        rule = vars(self).get("transform")
        return replace(self, transform=fit(rule)) if isinstance(rule, Rule) else self  # pyright: ignore

    def _check_common(self) -> None:
        """The settings that many discrepancies have: block size, coordinates, and locations in those."""
        settings = vars(self)
        if settings.get("block_size") is not None:
            object.__setattr__(self, "block_size", check_positive_integer(settings["block_size"], "block_size"))
        if "transform" in settings and not isinstance(settings["transform"], Apart):
            object.__setattr__(self, "transform", check_transform(settings["transform"]))
        if isinstance(locations := settings.get("locations"), list | tuple):
            object.__setattr__(self, "locations", np.asarray(locations))

    def _check_value(self, values: Array | np.ndarray, given: Given, what: str) -> None:
        """Refuse what is not finite, and say why it is not."""
        if is_concrete(values) and not np.isfinite(values).all():
            given.raise_for_value(what, self._remedy)

    def _returned(self, values: Array, given: Given, plan: Plan, what: str) -> Array:
        """Values on their way to the user."""
        self._check_value(values, given, what)
        warn_of((*given.doubts, *find_fallback(plan.transform, given.draws)))
        return values

    @abstractmethod
    def _value(self, given: Given) -> Scalar:
        """The discrepancy, whatever makes it doubtful."""


class QuadraticDiscrepancy(Discrepancy):
    """A discrepancy that is the root of V, a sum over all pairs of draws or a norm of mean features."""

    def __call__(
        self, target: Target, samples: PyTree, weights: ArrayLike | None = None, *, chains: bool | None = None
    ) -> Scalar:
        return self._warned(_root, check_input(target, samples, weights, chains))

    __call__.__doc__ = Discrepancy.__call__.__doc__

    def v_statistic(
        self, target: Target, samples: PyTree, weights: ArrayLike | None = None, *, chains: bool | None = None
    ) -> Scalar:
        """Squared discrepancy V, never negative. Parameters as in a call."""
        return self._warned(_v, check_input(target, samples, weights, chains))

    def u_statistic(self, target: Target, samples: PyTree, *, chains: bool | None = None) -> Scalar:
        """Squared discrepancy without bias, U, which may be negative. Parameters as in a call."""
        self._check_pairs("U-statistic")
        given = check_input(target, samples, None, chains)
        if given.draws.num_draws < 2:
            raise ValueError("The U-statistic is a mean over pairs of different draws; got a single draw.")
        return self._warned(_u, given)

    def _value(self, given: Given) -> Scalar:
        return self._statistic(_root, given)[0]

    def _warned(self, program: Program, given: Given) -> Scalar:
        statistic, doubts = self._statistic(program, given)
        warn_of(doubts)
        return statistic

    def _statistic(self, program: Program, given: Given) -> tuple[Scalar, tuple[Doubt, ...]]:
        """A statistic, and what makes it doubtful."""
        plan = self._plan(given)
        statistic, few_share = run(program, given, plan)
        self._check_value(statistic, given, "The statistic")
        if plan.transform is None:
            check_underflow(statistic, lambda: largest_score(given), "The scores")
        doubts = find_fallback(plan.transform, given.draws), find_heavy_tails(few_share, given.draws)
        return statistic, (*given.doubts, *chain(*doubts))


def largest_score(given: Given) -> float:
    """The largest |s_i| of any draw."""
    return float(as_local(jnp.abs(ravel(given.scores)).max()))


def find_heavy_tails(few_share: Scalar, draws: Draws) -> tuple[Doubt, ...]:
    """Doubt a discrepancy of which a few draws have most of Σ‖τ‖²."""
    if not is_concrete(few_share) or draws.num_draws < _ENOUGH_DRAWS or float(few_share) <= _MOST:
        return ()
    message = (
        f"{FEW} of {draws.num_draws:,} draws carry about {few_share:.0%} of Σ‖τ‖²: "
        "heavy tails, or draws far from all others, decide this discrepancy, and p-values from it are "
        "not to be trusted. Look at the extreme draws, lower the order, or choose a parameterisation "
        "with lighter tails."
    )
    return (Doubt(HeavyTailsWarning, message),)


# --- programs ---------------------------------------------------------------------------------------------


def _v(data: Data, plan: Plan) -> tuple[Scalar, Scalar]:
    sums = plan.pair_sums(plan.prepare(data), diagonal=False)
    return sums.total, sums.few_share


def _root(data: Data, plan: Plan) -> tuple[Scalar, Scalar]:
    v, few_share = _v(data, plan)
    return safe_root(v), few_share


def _u(data: Data, plan: Plan) -> tuple[Scalar, Scalar]:
    n, sums = data.num_draws, plan.pair_sums(plan.prepare(data), diagonal=True)
    # Σ_{i≠j} Δ_ij / (n(n − 1)), where `total` is the sum over all pairs / n² and `diagonal` the trace / n.
    return (n * sums.total - sums.diagonal) / (n - 1), sums.few_share


def _features(data: Data, plan: FeaturePlan) -> Float[Array, "draws features"]:
    scorer = plan.prepare(data).scorer()
    length = block_length(len(data.x), plan.working_bytes(data.x))
    return map_over_blocks(lambda rows: plan.features(*scorer(rows)), data.rows, length)


def _gram(data: Data, plan: Plan) -> Float[Array, "draws draws"]:
    return plan.gram(*plan.prepare(data).scored().rows)
