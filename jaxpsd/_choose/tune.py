"""Which setting of a sampler to use, by successive halving: for a fraction of what the whole grid would cost.

All settings run for a while, the worse ones are dropped, and those that are left run on from where they stand, until
one is left or the budget is spent (after Coullon, South and Nemeth, 2023, who judge by kernel discrepancies). Settings
are judged by what a full run of theirs would have: its bias, and the noise that its length would leave (`evidence`).
"""

import math
import os
from collections.abc import Callable
from typing import Any, cast

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxpsd._choose.arms import check_settings
from jaxpsd._choose.budget import costs_of, make_budget
from jaxpsd._choose.checkpoint import Checkpoint, fingerprint
from jaxpsd._choose.race import Asked, Race
from jaxpsd._choose.runner import Runner, ScoreFn
from jaxpsd._choose.transitions import STRETCHES_AT_ONCE, Minibatched
from jaxpsd._choose.tuning import Tuning
from jaxpsd._core.checks import (
    check_choice,
    check_concrete,
    check_finite,
    check_fits,
    check_key,
    check_positive_integer,
    check_samples,
    flatten,
)
from jaxpsd._core.compiling import for_a_report, split_key
from jaxpsd._core.draws import Draws, ravel
from jaxpsd._core.minibatch import Minibatches, check_data
from jaxpsd._core.progress import showing
from jaxpsd._core.saving import check_writable
from jaxpsd._core.scores import Given, Score
from jaxpsd._core.types import LogDensityFn, PyTree
from jaxpsd._discrepancies.psd import check_order
from jaxpsd._explain.tolerance import check_tolerance

# Steps are counted by integers of 32 bits.
_MOST_STEPS = 2**31 - 1


def tune(
    rng_key: PRNGKeyArray,
    target: LogDensityFn | Minibatches,
    kernel: Callable[..., Any],
    settings: Any,
    *,
    positions: PyTree,
    num_steps: int,
    num_chains: int | None = None,
    init: Callable[[PyTree], PyTree] | None = None,
    objective: str = "error",
    gradients: float | Callable[[Any], float] = 1.0,
    score_gradients: float = 1.0,
    budget: float | None = None,
    keep: float = 1 / 3,
    burn_in: float = 0.25,
    thin: int | None = None,
    order: int = 2,
    alpha: float = 0.05,
    tolerance: float | None = None,
    data: PyTree = None,
    batch_size: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Tuning:
    """Choose the step size of a sampler, or any setting, for a third of what it costs to run them all.

    In each round the settings that are still in run on from where they stand, all at once. Then those are dropped that
    are not among the best third and whose interval does not reach that of the best. At the end the chosen setting
    makes new draws with new keys, since what it was chosen by is optimistic.

    Parameters
    ----------
    rng_key
        A key of `jax.random`: the same key, the same result.
    target
        The log-density of the target; or `Minibatches`, where data are too many for that.
    kernel
        `kernel(rng_key, state, setting)` returns the next state and its position. Or, of one argument, an algorithm of
        BlackJAX built from a setting, `lambda step_size: blackjax.mala(logdensity, step_size)`.
    settings
        A list of settings: numbers, or dictionaries such as {"step_size": 0.1, "batch_size": 10}. Floats and arrays
        are data, of which one program runs all; integers, truth values and words belong to the program, and it is
        compiled for each of them. Or a pytree of arrays whose first axis is that of the settings: all of it data.
    positions
        Where to start: an array (chains, dim), or a pytree of arrays with that leading axis.
    num_steps
        Steps of each chain in a full run, as it is meant to be made with the setting that is chosen.
    num_chains
        How many chains each setting runs; None for one from each of the positions, which are otherwise taken in turn.
    init
        `init(position)` makes a state; without it, the position is the state. Algorithms have their own.
    objective
        "error" for the smallest mean squared error of means and standard deviations, bias² + variance in units of the
        target, for a given number of gradients: those of `num_steps` steps at the mean price of a step. Where
        polynomials do not tell the moments of the target, its units are those that scores imply, and that bias is the
        mean of Stein features. "bias" for the smallest discrepancy after `num_steps` steps.
    gradients
        What a step costs, in gradient evaluations: a number, or a function of the setting, such as the number of
        leapfrog steps. Any unit will do, if it is that of `score_gradients` and `budget` too.
    score_gradients
        What it costs to score a draw.
    budget
        Gradient evaluations that may be spent in all, those of scores and of the new draws at the end included. None
        for a third of the grid's: of a full run of each setting, scored likewise. Making first states is not counted.
    keep
        The share of settings that stays in each round, and more where intervals reach that of the best.
    burn_in
        The share of each setting's steps, from the start, that is not looked at.
    thin
        Every how many-th draw is scored; None for so many that there are some hundreds of each chain in each round.
        Means and standard deviations are of all draws.
    order
        Of the PSD, at least 2.
    alpha
        Intervals have probability 1 − alpha.
    tolerance
        Whether the chosen setting is good enough, as `diagnose` judges its new draws; None: not asked.
    data, batch_size
        For algorithms whose step takes a mini-batch (`blackjax.sgld`, `sghmc`): all data, of which each step gets a
        batch, drawn with replacement. `batch_size` and `step_size` are entries of the setting, or `batch_size` is given
        here and a setting that is a number is the step size.
    checkpoint
        A file to write progress to. If it is there, of the same call, the run goes on where it stopped, with the same
        result; it is removed at the end.
    progress
        Whether a call that takes longer says what it is doing, on a terminal or in a notebook.

    Returns
    -------
    Tuning
        The setting, `best`, with a table of all of them; and the new draws.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> def logdensity(x):
    ...     return -0.5 * jnp.sum(x**2)
    >>> def langevin(rng_key, x, step_size):
    ...     noise = jax.random.normal(rng_key, x.shape)
    ...     x = x + 0.5 * step_size * jax.grad(logdensity)(x) + jnp.sqrt(step_size) * noise
    ...     return x, x
    >>> tuning = jaxpsd.tune(
    ...     jax.random.key(0), logdensity, langevin, [2.0, 0.5, 0.1, 0.02, 0.0001],
    ...     positions=jnp.zeros((4, 2)), num_steps=10_000,
    ... )
    >>> tuning.best
    0.1
    >>> tuning.spent <= tuning.grid_price / 3
    True
    """
    check_key(rng_key)
    check_concrete("tune", rng_key, flatten(settings, "settings")[0], tolerance)
    draws = _check_positions(positions)
    num_chains = draws.num_draws if num_chains is None else check_positive_integer(num_chains, "num_chains")
    found = check_settings(settings, draws.dtype)
    num_steps = check_positive_integer(num_steps, "num_steps")
    if num_steps > _MOST_STEPS:
        raise ValueError(f"`num_steps` must be at most {_MOST_STEPS:,}; got {num_steps:,}.")
    check_choice(objective, ("bias", "error"), "objective")
    order = check_order(order)
    if order == 1:
        raise ValueError("`order` must be at least 2: features of order 1 know nothing of standard deviations.")
    burn_in = _check_share(burn_in, "burn_in", 0, 0.75)
    keep = _check_share(keep, "keep", 0.01, 0.9)
    alpha = _check_share(alpha, "alpha", 1e-4, 0.5)
    tolerance = None if tolerance is None else check_tolerance(tolerance)
    thin = None if thin is None else check_positive_integer(thin, "thin")
    batch_size = None if batch_size is None else check_positive_integer(batch_size, "batch_size")
    if budget is not None and not (_is_number(budget) and budget > 0 and math.isfinite(budget)):
        raise ValueError(f"`budget` must be a positive number of gradient evaluations, or None; got {budget!r}.")
    path = None if checkpoint is None else check_writable(checkpoint, "checkpoint")
    costs = costs_of(gradients, score_gradients, found)
    limits = make_budget(budget, costs, num_chains, num_steps, burn_in, keep, thin)
    seen = (STRETCHES_AT_ONCE, len(found.values), num_chains, limits.lengths.draws, draws.dim)
    check_fits(seen, draws.dtype, "The positions that a call of the program returns", "Take fewer chains or settings.")
    starts = _starts(draws, num_chains)
    run_key, rest_key, fresh_key = split_key(rng_key, 3)
    minibatched = _minibatched(target, data, batch_size)
    score = _score_function(target, starts)
    first_scores = ravel(score(rest_key, starts))
    if not np.isfinite(first_scores).all():
        check_finite(first_scores, starts, "The score ∇log p", "Start where the target has a density.")
    runner = Runner(run_key, kernel, init, found, starts, score, limits.lengths, costs, minibatched)
    asked = Asked(objective, order, burn_in, keep, alpha, num_steps, limits)
    kept = None
    if path is not None:
        first = first_scores, runner.first_steps(rest_key)
        about = fingerprint(rng_key, found.labels, found.values, asked, costs, starts.positions, first)
        kept = Checkpoint(path, about)
    race = Race(runner, asked, rest_key, kept)
    with showing("tune", progress=progress) as show, for_a_report():
        race.run(show)
        show("new draws of the best")
        tuning = race.result(fresh_key, tolerance)
    if kept is not None:
        kept.remove()
    return tuning


# --- what is asked ----------------------------------------------------------------------------------------


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _check_share(value: float, name: str, low: float, high: float) -> float:
    if not _is_number(value) or not low <= value <= high:
        raise ValueError(f"`{name}` must be a number from {low:g} to {high:g}; got {value!r:.100}.")
    return float(value)


def _check_positions(positions: PyTree) -> Draws:
    draws = check_samples(positions, chains=False, name="positions")
    check_concrete("tune", draws.positions)
    check_finite(ravel(draws.positions), draws, "`positions`")
    return draws


def _starts(draws: Draws, num_chains: int) -> Draws:
    """A position for each chain, in turn."""
    if num_chains == draws.num_draws:
        return Draws(draws.positions, labels=draws.labels, dimensions=draws.dimensions)
    places = np.arange(num_chains) % draws.num_draws
    chosen = jax.tree.map(lambda leaf: leaf[places], draws.positions)
    return Draws(chosen, labels=draws.labels, dimensions=draws.dimensions)


def _minibatched(target: Any, data: PyTree, batch_size: int | None) -> Minibatched | None:
    if data is None:
        if batch_size is not None and not isinstance(target, Minibatches):
            raise ValueError("`batch_size` is that of batches of `data`, which are not given.")
        return None if batch_size is None else Minibatched(target.data, batch_size)
    return Minibatched(check_data(data), batch_size)


def _score_function(target: Any, starts: Draws) -> ScoreFn:
    """From draws to scores; whatever the target is, it is looked at once."""
    if isinstance(target, Minibatches):
        return target.scores
    if not callable(target):
        raise TypeError(
            "`target` must be the log-density, a function of one position, or `Minibatches`; got "
            f"{type(target).__name__}. Draws that are there with their scores can be ranked by `rank`."
        )
    score = Score.of(cast(LogDensityFn, target), starts)
    return lambda _, draws: Given(draws, score).scores
