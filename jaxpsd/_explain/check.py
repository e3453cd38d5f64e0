"""For test suites of samplers: is a sampler right, within a tolerance? As many draws are made as it takes to tell."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, log2

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from jaxpsd._core.checks import check_concrete, check_key, check_positive_integer, check_samples
from jaxpsd._core.compiling import split_key
from jaxpsd._core.draws import Draws, join_draws, split_draws
from jaxpsd._core.functions import check_function
from jaxpsd._core.scores import Given, check_input
from jaxpsd._core.types import PyTree, Target
from jaxpsd._explain.diagnose import diagnose
from jaxpsd._explain.errors import ImpliedErrors
from jaxpsd._explain.measured import measure_errors
from jaxpsd._explain.moments import check_names
from jaxpsd._explain.phrases import times_as_many
from jaxpsd._explain.report import Report
from jaxpsd._explain.second_opinion import with_moves
from jaxpsd._explain.tolerance import Judgement, check_tolerance, judge_sampler
from jaxpsd._gof.settings import Settings, check_several
from jaxpsd._gof.symptoms import ENOUGH_EFFECTIVE

SampleFn = Callable[[PRNGKeyArray, int], PyTree]
"""A key, and how many draws each chain is to have, to so many draws."""


class CannotTell(AssertionError):
    """Draws were too few to tell whether a sampler is right, or polynomials do not tell it of such a target.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> few = jax.random.normal(jax.random.key(0), (500, 2))
    >>> try:
    ...     jaxpsd.check(jax.random.key(1), lambda x: -0.5 * jnp.sum(x**2), few)
    ... except jaxpsd.CannotTell as error:
    ...     print(error)
    It cannot be told whether the sampler is right within tolerance 0.1: ...
    """


def check(
    rng_key: PRNGKeyArray,
    target: Target,
    samples: PyTree | None = None,
    *,
    tolerance: float = 0.1,
    sample: SampleFn | None = None,
    num_draws: int = 1000,
    budget: int = 100_000,
    alpha: float = 0.01,
    names: Sequence[str] | None = None,
    chains: bool | None = None,
) -> Report:
    """Assert that the means and standard deviations of a sampler are right, within a tolerance.

    It is the sampler that is judged, not how far off chance has left its draws: what is wrong with it shows the more
    clearly the more draws there are. Where there are too few to tell, `sample` is asked for as many again.

    Parameters
    ----------
    rng_key, chains
        As in `gof_test`.
    target
        The log-density; or, where there is no `sample`, the scores at the samples.
    samples
        Draws of the sampler, after its warm-up; made by `sample` if there are none.
    tolerance
        By how many of the target's standard deviations means may be off, and by which share standard deviations.
    sample
        The sampler: a function of a key and a number n, to n draws as an array (n, dim), or to n of each chain as an
        array (chains, n, dim), or a pytree of such arrays. It is called with another key each time, and its draws are
        put after those that are there, chain by chain. None where `samples` are all that there is.
    num_draws
        How many draws, of each chain, to ask for first.
    budget
        How many draws to make at most, in all chains together.
    alpha
        How often, at most, a sampler within the tolerance may be called wrong.
    names
        Names of the coordinates; taken from the structure of the samples by default.

    Returns
    -------
    Report
        On all draws, as by `diagnose`, if the sampler is right within the tolerance.

    Raises
    ------
    AssertionError
        If it is not; with the error that is farthest beyond the tolerance, and the report as a note.
    CannotTell
        If that cannot be told within the budget, or from these samples: an `AssertionError` too, so that no test passes
        unless the sampler was found right. A test that may leave it open can catch it, and skip.

    Notes
    -----
    A sampler within the tolerance is called wrong with probability `alpha` at most, and one beyond it is called right
    with no more, over all looks at its draws: of k possible looks, as often as draws can be doubled within the budget,
    each has intervals of all means and standard deviations that hold at once with probability 1 − alpha / k. That is
    for draws after warm-up, of chains that have got around. Where the target is not Gaussian, intervals allow for what
    polynomials do not see, by what was found on other targets. Only means and standard deviations are held to the
    tolerance.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> def logdensity(x):
    ...     return -0.5 * jnp.sum(x**2)
    >>> def sample(rng_key, n):
    ...     return jax.random.normal(rng_key, (n, 2))
    >>> report = jaxpsd.check(jax.random.key(0), logdensity, sample=sample, num_draws=2000)
    >>> report.good_enough
    True
    >>> try:
    ...     jaxpsd.check(jax.random.key(0), logdensity, 1.3 * sample(jax.random.key(1), 2000))
    ... except AssertionError as error:
    ...     print(error)
    The sampler is not right within tolerance 0.1: the standard deviation of x[...] is 1.3... times the target's (2,000
    draws, worth 2,000 independent ones).
    """
    check_key(rng_key)
    check_concrete("check", rng_key, tolerance)
    tolerance = check_tolerance(tolerance)
    alpha = Settings.checked("auto", 1000, alpha, None, None).alpha
    num_draws, budget = check_positive_integer(num_draws, "num_draws"), check_positive_integer(budget, "budget")
    _check_source(target, samples, sample, num_draws, budget)
    sample_key, report_key = split_key(rng_key)
    if samples is None:
        assert sample is not None
        samples = _ask(sample, jax.random.fold_in(sample_key, 0), num_draws, chains)
    given = check_input(target, samples, None, chains)
    check_several(given.draws)
    names = check_names(names, given.draws)
    check_concrete("check", given.data)
    doublings = 0 if sample is None else max(0, ceil(log2(budget / given.draws.num_draws)))
    confidence = 1 - alpha / (1 + doublings)
    judgement, errors, worth = _judge(given, tolerance, names, confidence)
    for doubling in range(1, doublings + 1):
        draws = given.draws
        more = min(draws.num_draws, budget - draws.num_draws) // draws.num_chains
        if judgement.good_enough is not None or more == 0:
            break
        assert sample is not None
        samples = _join(draws, _ask(sample, jax.random.fold_in(sample_key, doubling), more, chains))
        given = check_input(target, samples)
        judgement, errors, worth = _judge(given, tolerance, names, confidence)
    report = diagnose(report_key, target, samples, tolerance=tolerance, names=names, chains=chains)
    judgement = with_moves(judgement, errors, report.relaxation, tolerance)
    if not judgement.good_enough:
        raise _error(judgement, tolerance, worth, report)
    return report


def _check_source(target: Target, samples: PyTree | None, sample: SampleFn | None, num_draws: int, budget: int) -> None:
    if sample is None:
        if samples is None:
            raise ValueError("`check` takes draws, `samples`, or a function that makes them, `sample`; got neither.")
        return
    check_function(sample, "sample", "a key and a number of draws")
    if not callable(target):
        raise TypeError(
            "With `sample`, `target` must be the log-density, a function of one position: scores are known at the "
            f"samples alone; got {type(target).__name__}."
        )
    if samples is None and num_draws > budget:
        raise ValueError(f"`num_draws` must not be more than `budget`, {budget:,}; got {num_draws:,}.")


def _judge(
    given: Given, tolerance: float, names: tuple[str, ...], confidence: float
) -> tuple[Judgement, ImpliedErrors, str]:
    """What is to be said of the sampler, by which errors, and of how many draws."""
    given = given.with_scores()
    given.check_finite()
    errors, chance, effective, _ = measure_errors(given)
    worth = f"{given.draws.num_draws:,} draws, worth {effective:,.0f} independent ones"
    if effective < ENOUGH_EFFECTIVE:
        # What chance does is not known either.
        few = f"draws must be worth at least {ENOUGH_EFFECTIVE} independent ones"
        return Judgement(None, few), errors, worth
    return judge_sampler(errors, chance, tolerance, names, confidence), errors, worth


def _error(judgement: Judgement, tolerance: float, worth: str, report: Report) -> AssertionError:
    if judgement.good_enough is None:
        times = judgement.times
        more = "" if times is None else f"; {times_as_many(times)} would probably tell"
        asked = f"It cannot be told whether the sampler is right within tolerance {tolerance:g}"
        error = CannotTell(f"{asked}: {judgement.reason} ({worth}){more}.")
    else:
        error = AssertionError(
            f"The sampler is not right within tolerance {tolerance:g}: {judgement.reason} ({worth})."
        )
    error.add_note(f"\n{report}")
    return error


# --- draws ------------------------------------------------------------------------------------------------


def _ask(sample: SampleFn, rng_key: PRNGKeyArray, num_draws: int, chains: bool | None) -> Draws:
    """So many draws of each chain."""
    draws = check_samples(sample(rng_key, num_draws), chains=chains, name="sample(rng_key, n)")
    if draws.num_draws != num_draws * draws.num_chains:
        raise ValueError(
            f"`sample` was asked for {num_draws:,} draws of each chain, by its second argument; it returned "
            f"{draws.num_draws // draws.num_chains:,} draws, of chains: {draws.num_chains:,}."
        )
    return draws


def _join(draws: Draws, more: Draws) -> Draws:
    """More draws of the same chains, after those that are there."""
    kinds = [(each.num_chains, *each.structure[:2]) for each in (draws, more)]
    if kinds[0] != kinds[1]:
        raise ValueError(
            f"`sample` must return draws like those before, {_describe(draws)}; it returned {_describe(more)}."
        )
    parts = [split_draws(each.positions, each.num_chains) for each in (draws, more)]
    if all(jnp.array_equal(old[:, : new.shape[1]], new) for old, new in zip(*map(jax.tree.leaves, parts), strict=True)):
        raise ValueError("`sample` returned the same draws for another key: it must use the key that it is given.")
    joined = jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=1), *parts)
    return replace(draws, positions=join_draws(joined))


def _describe(draws: Draws) -> str:
    shapes = ", ".join(f"{name} of shape {shape}" for name, shape in draws.shapes.items())
    return f"chains: {draws.num_chains:,}, one draw: {shapes:.100}"
