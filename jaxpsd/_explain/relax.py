"""A second opinion: let draws follow the target for a while, and see what changes.

A Markov kernel K that leaves the target alone is a Stein operator: E_P[Kf − f] = 0 for every f, so that no mean over
draws of the target changes but by chance.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float, PRNGKeyArray

from jaxpsd._core.checks import check_concrete, check_key
from jaxpsd._core.doubts import warn_of
from jaxpsd._core.draws import names_of, one_position
from jaxpsd._core.functions import check_function, checked_logdensity, returning_numbers
from jaxpsd._core.scores import Given, Score, check_input
from jaxpsd._core.tracing import Traced, trace
from jaxpsd._core.types import LogDensityFn, PyTree
from jaxpsd._discrepancies.psd import PSD
from jaxpsd._explain.moments import check_names
from jaxpsd._explain.moves import Moves, choose_starts, choose_step_size, moved_draws, require_blackjax
from jaxpsd._explain.paired import Blocks, changes_of, moment_differences, sign_flip_test
from jaxpsd._explain.relaxation import FunctionChange, Relaxation
from jaxpsd._gof.dependence import Dependence, measure_dependence
from jaxpsd._gof.settings import Settings, check_several
from jaxpsd._stein.coordinates import Affine, canonical


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
        From how many draws to start at most. They lie evenly over all chains, and an autocorrelation time apart.
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
    draws together. Dependent draws share signs, in blocks of two autocorrelation times.

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
    check_concrete("relax", rng_key)
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
    check_concrete("relax", given.data)
    given = with_values(given, logdensity_fn)
    result = relax_draws(rng_key, given, settings, check_names(names, given.draws), moves=moves, fn=fn)
    warn_of(given.doubts)
    return result


def with_values(given: Given, logdensity_fn: LogDensityFn) -> Given:
    """The same, where a log-density whose derivatives cannot be compared is known by more than its gradient."""
    if not isinstance(given.target, Score) or not given.target.is_gradient:
        return given
    traced = trace(checked_logdensity(logdensity_fn), one_position(given.draws.positions))
    return given._replace(target=Score(traced, False))


def relax_draws(
    rng_key: PRNGKeyArray,
    given: Given,
    settings: Settings,
    names: tuple[str, ...],
    *,
    moves: Moves,
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
        coordinates = coordinates or canonical(scored).for_tests
        if dependence is None and draws.num_draws > draws.num_chains:
            psd = PSD(2, interactions=False, basis="hermite", transform=coordinates, form="primal")
            dependence = measure_dependence(scored, psd._plan(scored, 0))
    # Small random choices are made on the host, where nothing has to be compiled for them.
    rng = np.random.default_rng(np.asarray(jax.random.key_data(rng_key)))
    time = dependence.time if dependence is not None and dependence.is_clear else None
    places = choose_starts(rng, given, moves.num_draws, time)
    blocks = Blocks.of_draws(places, draws.num_draws // draws.num_chains, time, settings.alpha)
    step_size = choose_step_size(rng, given, coordinates, places, moves)
    before, after, acceptance = moved_draws(rng, given, coordinates, places, moves, step_size)
    changes = changes_of(before, after, blocks)
    differences = moment_differences(before, after)
    started, moved = (draws.structure.unravel_rows(x) for x in (before, after))
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
