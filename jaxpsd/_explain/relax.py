"""A second opinion: let draws follow the target for a while, and see what changes.

A Markov kernel K that leaves the target alone is a Stein operator: E_P[Kf − f] = 0 for every f. Here K is a few
transitions of Hamiltonian Monte Carlo. Their trajectories have random lengths, the same for all draws and in an order
that reads the same forwards and backwards: such a sequence of reversible transitions is reversible as a whole, and has
no negative eigenvalues, so that motion to and fro is not taken for a change.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxpsd._core.blocks import einsum
from jaxpsd._core.checks import check_key, check_positive_integer
from jaxpsd._core.doubts import warn_of
from jaxpsd._core.draws import Draws, Structure, evenly_spaced, names_of, one_position, ravel
from jaxpsd._core.functions import check_function, checked_logdensity, returning_numbers
from jaxpsd._core.programs import Data, run
from jaxpsd._core.scores import Given, Score, check_input
from jaxpsd._core.tracing import Traced, trace
from jaxpsd._core.types import LogDensityFn, PyTree, Vector
from jaxpsd._discrepancies.psd import PSD
from jaxpsd._explain.moments import check_names
from jaxpsd._explain.paired import Blocks, changes_of, moment_differences, sign_flip_test
from jaxpsd._explain.relaxation import FunctionChange, Relaxation
from jaxpsd._gof.dependence import Dependence, measure_dependence
from jaxpsd._gof.settings import Settings, check_several
from jaxpsd._stein.coordinates import Affine, canonical

# Draws that are worth fewer independent ones than this are started from at shorter distances, in blocks.
_FEWEST = 100

# Step sizes to try, in coordinates in which a Gaussian target has unit scale: with one, six steps are a full turn.
_STEP_SIZES = 2.0 ** (-np.arange(16) / 2)


def relax(
    rng_key: PRNGKeyArray,
    logdensity_fn: LogDensityFn,
    samples: PyTree,
    *,
    fn: Callable[[PyTree], Any] | None = None,
    num_draws: int = 500,
    num_transitions: int = 10,
    num_steps: int = 8,
    target_acceptance: float = 0.8,
    names: Sequence[str] | None = None,
    alpha: float = 0.05,
    num_replicates: int = 1000,
    weights: ArrayLike | None = None,
    chains: bool | None = None,
) -> Relaxation:
    """Let draws follow the target for a while, and see which means and standard deviations change.

    Draws of the target stay draws of it, so that a change that chance does not explain proves them wrong, whatever the
    target is like. Its size is that of what some transitions can repair: usually in the direction of the error and
    smaller, but it may go too far. No change proves nothing about directions in which the chain is slow, nor about
    modes that no draw is near. It needs BlackJAX.

    Parameters
    ----------
    rng_key, weights, chains
        As in `gof_test`; with weights, draws to start from are chosen by them.
    logdensity_fn
        The log of the unnormalised target density, a function of one position.
    samples
        An array (draws, dim) or (chains, draws, dim), or a pytree of arrays with those leading axes.
    fn
        A function of one position, to numbers whose means are compared too.
    num_draws
        From how many draws to start at most. They lie evenly over all chains, and an autocorrelation time apart unless
        fewer than a hundred would.
    num_transitions
        Transitions of Hamiltonian Monte Carlo that each draw makes: an even number.
    num_steps
        Leapfrog steps of a transition, on average.
    target_acceptance
        The acceptance for which the step size is chosen, in trial transitions that are then forgotten.
    names
        Names of the coordinates; taken from the structure of the samples by default.
    alpha, num_replicates
        Level of the test, and the random signs that it takes.

    Returns
    -------
    Relaxation
        Changes of means and standard deviations with their errors and p-values, in words as `statements`; and the moved
        draws.

    Notes
    -----
    The test is exact for independent draws, but for the scale and the step size of the moves, which are chosen by all
    draws together. Dependent draws share signs, in blocks of three autocorrelation times.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> def logdensity(x):
    ...     return -0.5 * jnp.sum(x**2)
    >>> key = jax.random.key(0)
    >>> samples = jax.random.normal(key, (4, 500, 2)) * jnp.array([1.0, 0.6])
    >>> result = jaxpsd.relax(key, logdensity, samples, names=("mu", "tau"))
    >>> print(result.statements[0])
    the standard deviation of tau grows by ...% (± ...%) when the draws follow the target for 10 transitions
    """
    require_blackjax()
    check_key(rng_key)
    if not callable(logdensity_fn):
        raise TypeError(
            "`logdensity_fn` must be the log-density, a function of one position: draws cannot be moved by scores that "
            f"are known at the draws alone; got {type(logdensity_fn).__name__}. `diagnose` takes scores."
        )
    if fn is not None:
        check_function(fn, "fn", "one position")
    settings = Settings.checked("auto", num_replicates, alpha, None, None)
    settings.check_attainable()
    moves = Moves(num_draws, num_transitions, num_steps, target_acceptance)
    moves.check()
    given = check_input(logdensity_fn, samples, weights, chains)
    check_several(given.draws)
    if not given.is_concrete:
        raise ValueError("`relax` looks at values and cannot be traced; call it outside `jit` and `vmap`.")
    if given.target.is_gradient:
        # A log-density whose derivatives cannot be compared is known by its gradient alone, and here its value counts.
        traced = trace(checked_logdensity(logdensity_fn), one_position(given.draws.positions))
        given = given._replace(target=Score(traced, False))
    result = relax_draws(rng_key, given, settings, check_names(names, given.draws), moves=moves, fn=fn)
    warn_of(given.doubts)
    return result


@dataclass(frozen=True)
class Moves:
    """How draws are to be moved, as in `relax`."""

    num_draws: int = 500
    num_transitions: int = 10
    num_steps: int = 8
    target_acceptance: float = 0.8

    def check(self) -> None:
        """Refuse what makes no sense."""
        check_positive_integer(self.num_steps, "num_steps")
        for name in ("num_draws", "num_transitions"):
            if check_positive_integer(getattr(self, name), name) < 2:
                raise ValueError(f"`{name}` must be at least 2; got {getattr(self, name)}.")
        if self.num_transitions % 2:
            raise ValueError(
                "`num_transitions` must be even, so that motion to and fro is not taken for a change; got "
                f"{self.num_transitions}."
            )
        acceptance: Any = self.target_acceptance
        if not isinstance(acceptance, float | np.floating) or not 0 < acceptance < 1:
            raise ValueError(f"`target_acceptance` must be a float between 0 and 1; got {acceptance!r}.")


def require_blackjax() -> None:
    """Say how to install what moves the draws, where it is missing."""
    try:
        import blackjax  # noqa: F401
    except ImportError as error:
        error.add_note("`relax` needs BlackJAX: pip install 'jaxpsd[blackjax]'.")
        raise


def relax_draws(
    rng_key: PRNGKeyArray,
    given: Given,
    settings: Settings,
    names: tuple[str, ...],
    *,
    moves: Moves = Moves(),
    fn: Callable[[PyTree], Any] | None = None,
    coordinates: Affine | None = None,
    dependence: Dependence | None = None,
) -> Relaxation:
    """The same for draws that are checked; coordinates of the target and dependence are found out unless known."""
    draws, function = given.draws, None
    if fn is not None:
        function = trace(returning_numbers(fn, "fn", floating=False), one_position(draws.positions))
    if coordinates is None or (dependence is None and draws.num_draws > draws.num_chains):
        scored = given.with_scores()
        scored.check_finite()
        coordinates = coordinates or canonical(scored)
        if dependence is None and draws.num_draws > draws.num_chains:
            psd = PSD(2, interactions=False, basis="hermite", transform=coordinates, form="primal")
            dependence = measure_dependence(scored, psd._plan(scored, 0))
    # Small random choices are made on the host, where nothing has to be compiled for them.
    rng = np.random.default_rng(np.asarray(jax.random.key_data(rng_key)))
    time = dependence.time if dependence is not None and dependence.is_clear else None
    places = _choose_starts(rng, given, moves.num_draws, time)
    blocks = Blocks.of_draws(places, draws.num_draws // draws.num_chains, time, settings.alpha)
    step_size = _choose_step_size(rng, given, coordinates, places, moves)
    before, after, acceptance = _moved(rng, given, coordinates, places, moves, np.full(len(places), step_size))
    changes = changes_of(before, after, blocks)
    differences = moment_differences(before, after)
    started, moved = (_in_structure(x, draws.structure) for x in (before, after))
    values = None if function is None else _Values.of(function, started, moved)
    if values is not None:
        differences = np.concatenate([differences, values.before - values.after], axis=1)
    p = sign_flip_test(rng, differences, blocks, settings.num_replicates)
    # Not `scipy.stats`, whose import takes long.
    from scipy.special import stdtrit

    return Relaxation(
        p_value=float(p.min()),
        **changes._asdict(),
        mean_p_value=p[: draws.dim],
        sd_p_value=p[draws.dim : 2 * draws.dim],
        fn=None if values is None else values.change(blocks, p[2 * draws.dim :]),
        acceptance=float(acceptance.mean()),
        stuck=float((before == after).all(axis=1).mean()),
        step_size=step_size,
        num_draws=len(places),
        num_transitions=moves.num_transitions,
        num_blocks=blocks.number,
        quantile=float(stdtrit(max(blocks.number - 1, 1), 1 - settings.alpha / 2)),
        started=started,
        moved=moved,
        names=names,
        alpha=settings.alpha,
    )


# --- choices ----------------------------------------------------------------------------------------------


def _choose_starts(rng: np.random.Generator, given: Given, most: int, time: float | None) -> Int[np.ndarray, " starts"]:
    """Places among all draws to start from, in order: evenly spaced, or by systematic resampling of weighted draws."""
    n = given.draws.num_draws
    count = min(n, most, n if time is None else max(_FEWEST, int(n / time)))
    if given.weights is None:
        return evenly_spaced(n, count)
    cumulated = np.cumsum(np.asarray(given.weights, np.float64))
    levels = (rng.random() + np.arange(count)) / count * cumulated[-1]
    return np.minimum(np.searchsorted(cumulated, levels, side="right"), n - 1)


def _choose_step_size(
    rng: np.random.Generator, given: Given, coordinates: Affine, places: Int[np.ndarray, " starts"], moves: Moves
) -> float:
    """The largest step size up to which trial transitions are accepted as often as they should be."""
    # Every draw tries another step size in every transition.
    tried = np.add.outer(np.arange(moves.num_transitions), np.arange(len(places))) % len(_STEP_SIZES)
    acceptance = _moved(rng, given, coordinates, places, moves, _STEP_SIZES[tried])[2]
    counts = np.bincount(tried.ravel(), minlength=len(_STEP_SIZES))
    sums = np.bincount(tried.ravel(), acceptance.ravel(), minlength=len(_STEP_SIZES))
    seen = np.flatnonzero(counts)
    rates, sizes = (sums[seen] / counts[seen])[::-1], _STEP_SIZES[seen][::-1]
    too_low = np.flatnonzero(rates < moves.target_acceptance)
    if len(too_low) == 0:
        return float(sizes[-1])
    if (first := too_low[0]) == 0:
        return float(sizes[0])
    # Between the last that will do and the first that will not.
    share = (rates[first - 1] - moves.target_acceptance) / (rates[first - 1] - rates[first])
    return float(sizes[first - 1] * (sizes[first] / sizes[first - 1]) ** share)


def _choose_lengths(rng: np.random.Generator, num_transitions: int, num_steps: int) -> Int[np.ndarray, " transitions"]:
    """Leapfrog steps of each transition, 1 … 2·num_steps − 1, short ones and long ones, the same read backwards."""
    half = num_transitions // 2
    longest = 2 * num_steps - 1
    lengths = 1 + ((np.arange(half) + rng.random(half)) / half * longest).astype(np.int32)
    lengths = np.minimum(lengths, longest)
    return np.concatenate([lengths, lengths[::-1]])


# --- moves ------------------------------------------------------------------------------------------------


def _moved(
    rng: np.random.Generator,
    given: Given,
    coordinates: Affine,
    places: Int[np.ndarray, " starts"],
    moves: Moves,
    step_sizes: Float[np.ndarray, "*transitions starts"],
) -> tuple[Float[np.ndarray, "starts dim"], Float[np.ndarray, "starts dim"], Float[np.ndarray, "transitions starts"]]:
    """Draws before and after all transitions, and how likely each proposal was to be accepted."""
    lengths = _choose_lengths(rng, moves.num_transitions, moves.num_steps)
    step_sizes = np.broadcast_to(step_sizes, (moves.num_transitions, len(places))).astype(given.draws.dtype)
    bits = rng.integers(2**32, size=4, dtype=np.uint32)
    plan = _MovePlan(bits, coordinates.scale, places.astype(np.int32), step_sizes, lengths)
    before, after, acceptance = run(_move, given, plan, result="gathered")
    return np.asarray(before, np.float64), np.asarray(after, np.float64), np.asarray(acceptance, np.float64)


@register_dataclass
@dataclass(frozen=True)
class _MovePlan:
    """What moves draws.

    bits
        Of a random key.
    scale
        M, so that log p(x + Mz) has about unit scale in z.
    places
        The draws to start from.
    step_sizes
        Of each transition of each.
    lengths
        Leapfrog steps of each transition.
    """

    bits: Any
    scale: Any
    places: Any
    step_sizes: Any
    lengths: Any


def _move(data: Data, plan: _MovePlan) -> tuple[Array, Array, Array]:
    """Transitions of Hamiltonian Monte Carlo from each start x, in z with positions x + Mz.

    Displacements, and not coordinates of the whole: draws that never move stay what they are to the last digit.
    """
    from blackjax.mcmc import hmc

    assert data.score is not None
    logdensity, structure = data.score.function, Draws(data.positions).structure
    x = ravel(data.positions)[plan.places]
    (count, dim), kernel = x.shape, hmc.build_kernel()

    def displaced(z: Vector) -> Vector:
        return plan.scale * z if plan.scale.ndim == 1 else einsum("ij,j->i", plan.scale, z)

    def density_about(start: Vector) -> Callable[[Vector], Array]:
        return lambda z: logdensity(structure.unravel(start + displaced(z)))

    def transition(states: Any, inputs: tuple[Array, Array, Any]) -> tuple[Any, Array]:
        keys, step_sizes, length = inputs

        def of_one(state: Any, start: Vector, key: Array, step_size: Any) -> tuple[Any, Any]:
            ones = jnp.ones(dim, x.dtype)
            state, info = kernel(key, state, density_about(start), step_size, ones, length)
            return state, info.acceptance_rate

        return jax.vmap(of_one)(states, x, keys, step_sizes)

    states: Any = jax.vmap(lambda start: hmc.init(jnp.zeros(dim, x.dtype), density_about(start)))(x)
    # Of the kinds of random numbers, the one for which programs compile in a third of the time.
    key = jax.random.wrap_key_data(plan.bits, impl="unsafe_rbg")
    keys = jax.random.split(key, (len(plan.lengths), count))
    states, acceptance = jax.lax.scan(transition, states, (keys, plan.step_sizes, plan.lengths))
    return x, x + jax.vmap(displaced)(states.position), acceptance


# --- functions of the user's ------------------------------------------------------------------------------


class _Values(NamedTuple):
    """Numbers that a function of the user's returned, before and after, a column each."""

    before: Float[np.ndarray, "starts numbers"]
    after: Float[np.ndarray, "starts numbers"]
    names: tuple[str, ...]

    @classmethod
    def of(cls, function: Traced, started: PyTree, moved: PyTree) -> "_Values":
        """Evaluate it."""
        before, after = (_evaluate(function, positions) for positions in (started, moved))
        return cls(_side_by_side(before), _side_by_side(after), names_of(before, {"x": "fn"}))

    def change(self, blocks: Blocks, p_value: Float[np.ndarray, " numbers"]) -> FunctionChange:
        """How their means changed."""
        change = self.after - self.before
        return FunctionChange(
            before=self.before.mean(axis=0),
            after=self.after.mean(axis=0),
            change=change.mean(axis=0),
            change_se=blocks.standard_errors(change),
            sd=self.after.std(axis=0),
            p_value=p_value,
            names=self.names,
        )


@jax.jit
def _evaluate(function: Traced, positions: PyTree) -> PyTree:
    return jax.vmap(function)(positions)


def _side_by_side(values: PyTree) -> Float[np.ndarray, "starts numbers"]:
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(values)]
    columns = np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)
    if not np.isfinite(columns).all():
        raise FloatingPointError("`fn` is not finite at a draw, before or after it was moved.")
    return columns


def _in_structure(x: Float[np.ndarray, "starts dim"], structure: Structure) -> PyTree:
    """Positions laid side by side, in the structure of the samples."""
    sizes = [int(np.prod(shape)) for shape in structure.shapes]
    parts = zip(np.split(x, np.cumsum(sizes)[:-1], axis=1), structure.shapes, structure.dtypes, strict=True)
    return jax.tree.unflatten(
        structure.treedef, [part.reshape(len(x), *shape).astype(dtype) for part, shape, dtype in parts]
    )
