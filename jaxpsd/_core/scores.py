"""From what the user passes, a target and samples, to what is given: checked draws, and how to score them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn, cast
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass
from jax.typing import ArrayLike

from jaxpsd._core.checks import check_finite, check_samples, check_scores, check_weights, is_concrete
from jaxpsd._core.compiling import as_arrays_together
from jaxpsd._core.digits import find_coarse_draws
from jaxpsd._core.doubts import Doubt
from jaxpsd._core.draws import Draws, Structure, one_position, ravel
from jaxpsd._core.filling import common_size, fill_chains, shorten_chains
from jaxpsd._core.functions import check_function, checked_logdensity
from jaxpsd._core.programs import Data, block_scores, run
from jaxpsd._core.sharding import shards_of
from jaxpsd._core.states import doubt_layout
from jaxpsd._core.tracing import Traced, trace
from jaxpsd._core.types import LogDensityFn, PyTree, Target, Weights, static

_JITTED = type(jax.jit(lambda: None))

# With more draws, programs run for about as long as it takes to compile them.
_MOST_FILLED = 2**14 - 1

_kept: WeakKeyDictionary[Any, dict[Structure, "Score"]] = WeakKeyDictionary()


@register_dataclass
@dataclass(frozen=True)
class Score:
    """∇log p of one position, from a traced log-density; or, where `is_gradient`, from the traced gradient itself."""

    function: Traced
    is_gradient: bool = static()

    @classmethod
    def of(cls, logdensity: LogDensityFn, draws: Draws) -> "Score":
        """Trace a log-density at such positions; one under `jax.jit`, which says that it will not change, only once."""
        if not isinstance(logdensity, _JITTED):
            return cls._traced(logdensity, draws)
        kept = _kept.setdefault(logdensity, {})
        score = kept.get(draws.structure) or cls._traced(logdensity, draws)
        if draws.structure not in kept and is_concrete(score):
            # Its data goes to the device once; also inside `jit`, where operations on known values would be traced.
            with jax.ensure_compile_time_eval():
                score = kept[draws.structure] = jax.tree.map(jnp.asarray, score)
        return score

    @classmethod
    def _traced(cls, logdensity: LogDensityFn, draws: Draws) -> "Score":
        checked, position = checked_logdensity(logdensity), one_position(draws.positions)
        traced = trace(checked, position)
        if not traced.expression.has_rules or traced.expression == trace(checked, position).expression:
            return cls(traced, False)
        # Derivatives of the user's own making, which differ from trace to trace, are followed to their results.
        return cls(trace(guarded_score(checked), position, is_gradient=True), True)

    def __call__(self, position: PyTree) -> PyTree:
        return self.function(position) if self.is_gradient else guarded_score(self.function)(position)


def guarded_score(logdensity: Callable[..., Any]) -> Callable[..., PyTree]:
    """∇log p; NaN outside the support, where a gradient may well be finite."""

    def score(position: PyTree) -> PyTree:
        value, scores = jax.value_and_grad(logdensity)(position)
        return jax.tree.map(lambda leaf: jnp.where(jnp.isfinite(value), leaf, jnp.nan), scores)

    return score


class Given(NamedTuple):
    """What the user has given, checked; `target` is how to score the draws, or their scores, or None if nobody asks.

    Programs may be shown the same draws `filled` up to a common number.
    """

    draws: Draws
    target: Score | PyTree = None
    weights: Weights = None
    doubts: tuple[Doubt, ...] = ()
    filled: Data | None = None

    @property
    def data(self) -> Data:
        """What programs see."""
        if self.filled is not None:
            return self.filled if self.target is not None else replace(self.filled, scores=None, score=None)
        scores, score = (None, self.target) if isinstance(self.target, Score) else (self.target, None)
        return Data(self.draws.positions, scores, self.weights, score)

    @property
    def chain_length(self) -> int:
        """Draws of each chain, as programs see them."""
        return self.data.num_draws // self.draws.num_chains

    def filled_up(self) -> "Given":
        """The same with chains filled up to a common length, so that programs compiled for other draws serve.

        Few draws of equal weight on one device: those that fill up have weight zero.
        """
        draws, chains = self.draws, self.draws.num_chains
        is_one_piece = self.is_concrete and shards_of(draws.positions) is None
        if not is_one_piece or self.weights is not None or draws.num_draws > _MOST_FILLED:
            return self
        own = draws.num_draws // chains
        length = common_size(own)
        data = self.data
        positions, scores = fill_chains((data.positions, data.scores), chains, length)
        weights = np.tile(np.arange(length) < own, chains).astype(draws.dtype) / draws.num_draws
        parts = {"positions": positions, "scores": scores, "weights": weights, "count": np.asarray(draws.num_draws)}
        return self._replace(filled=replace(data, **as_arrays_together(parts)))

    @property
    def is_concrete(self) -> bool:
        """Whether values can be looked at."""
        return is_concrete(self.data)

    def with_scores(self) -> "Given":
        """The same with scores that are evaluated, once, unless they are given."""
        if not isinstance(self.target, Score):
            return self
        scores = run(_scores, self, result="draws")
        if self.filled is None:
            return self._replace(target=scores)
        chains = self.draws.num_chains
        own = as_arrays_together(shorten_chains(scores, chains, self.draws.num_draws // chains))
        return self._replace(target=own, filled=replace(self.filled, scores=scores, score=None))

    @property
    def scores(self) -> PyTree:
        """Scores of all draws."""
        return self.with_scores().target

    def check_finite(self) -> None:
        """Name the first draw that is not finite, or whose score is not."""
        check_finite(ravel(self.draws.positions), self.draws, "`samples`", "A sampler that diverged has no moments.")
        remedy = "Is the draw outside the support, or does the log-density overflow?"
        check_finite(ravel(self.scores), self.draws, "The score ∇log p", remedy)

    def raise_for_value(self, what: str, remedy: str) -> NoReturn:
        """Find out why `what` is not finite, and say so."""
        self.check_finite()
        where = f"in {self.draws.dtype}, although samples and scores are"
        raise FloatingPointError(f"{what} is not finite {where}. {remedy}")


def check_input(target: Target, samples: PyTree, weights: ArrayLike | None = None, chains: bool | None = None) -> Given:
    """What every call is given, checked."""
    draws = check_samples(samples, chains=chains)
    target = check_target(target, samples, draws, chains=chains)
    doubts = find_coarse_draws(draws)
    if not isinstance(samples, Draws):
        # Draws have said what their chains are.
        doubts += doubt_layout(draws.num_chains, draws.num_draws // draws.num_chains)
    return Given(draws, target, check_weights(weights, draws), doubts)


def check_target(target: Target, samples: PyTree, draws: Draws, *, chains: bool | None = None) -> Score | PyTree:
    """Tell a log-density, which is traced here, from scores, which are held against the samples."""
    if isinstance(target, Score):
        return target
    if callable(target):
        return Score.of(cast(LogDensityFn, target), draws)
    return check_scores(target, samples, draws, chains=chains)


def score(logdensity_fn: LogDensityFn, samples: PyTree, *, chains: bool | None = None) -> PyTree:
    """Evaluate the score s(x) = ∇log p(x) at every draw, by automatic differentiation.

    Draws are scored in blocks, so that memory does not grow with the number of draws times the size
    of the data that the log-density looks at.

    Parameters
    ----------
    logdensity_fn
        The log of the unnormalised target density: one unbatched position to a scalar.
    samples
        An array (draws, dim) or (chains, draws, dim), or a pytree of arrays with those leading axes.
    chains
        Whether the leaves of a pytree have a chain axis before the draws; for an array the number of
        axes tells.

    Returns
    -------
    PyTree
        The scores, in the structure and shape of `samples`.

    Notes
    -----
    A function is traced at every call, so that whatever it refers to may change, and compiled only where it computes
    something else than before; arrays that it refers to are passed, and may have other values. `jax.jit` around a
    function that takes long to trace saves that time, and says that it will not change.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> jaxpsd.score(lambda x: -0.5 * jnp.sum(x**2), jnp.array([[1.0, -2.0], [0.5, 0.0]]))
    Array([[-1. ,  2. ],
           [-0.5, -0. ]], dtype=float32)
    """
    check_function(logdensity_fn, "logdensity_fn", "one position")
    draws = check_samples(samples, chains=chains)
    given = Given(draws, Score.of(logdensity_fn, draws)).with_scores()
    given.check_finite()
    return replace(draws, positions=given.target).like(samples)


def _scores(data: Data) -> PyTree:
    assert data.score is not None
    return block_scores(data.score, data.positions)(data.positions)
