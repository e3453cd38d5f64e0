"""Everything at a glance: a report on a set of draws."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float, PRNGKeyArray

from jaxpsd._core.blocks import MEMORY_BUDGET
from jaxpsd._core.checks import check_concrete, check_key
from jaxpsd._core.compiling import for_a_report, split_key
from jaxpsd._core.draws import Draws, ravel
from jaxpsd._core.progress import showing
from jaxpsd._core.scores import Given, check_input
from jaxpsd._core.types import PyTree, Target
from jaxpsd._discrepancies.psd import PSD
from jaxpsd._discrepancies.psd_plans import replicate_bytes
from jaxpsd._explain.advice import Facts, advice, caveats, verdict, without_agreement
from jaxpsd._explain.directions import worst_directions
from jaxpsd._explain.errors import most_effective
from jaxpsd._explain.findings import find_errors
from jaxpsd._explain.moments import check_names, make_table
from jaxpsd._explain.regression import REGRESSION_TAKES, can_regress
from jaxpsd._explain.report import DetectableErrors, Report
from jaxpsd._explain.second_opinion import (
    NEARLY_GAUSSIAN,
    ask,
    check_second_opinion,
    is_refuted,
    with_moves,
)
from jaxpsd._explain.tolerance import Chance, b_squared, check_tolerance, judge
from jaxpsd._gof.adaptive import run_adaptive_test, share_of_level
from jaxpsd._gof.dependence import measure_dependence, times_by_chain
from jaxpsd._gof.result import GofResult
from jaxpsd._gof.settings import Settings, check_several
from jaxpsd._stein.coordinates import Rule, canonical, fit
from jaxpsd._stein.polynomials import num_monomials

Chains = Float[np.ndarray, "chains draws dim"]

# The first tenth of a chain is burn-in if its mean is off by more than so many standard errors.
_BURN_IN = 5

# Probability with which the smallest detectable error would have been detected.
_POWER = 0.8


def diagnose(
    rng_key: PRNGKeyArray,
    target: Target,
    samples: PyTree,
    *,
    tolerance: float = 0.1,
    second_opinion: bool | str = "auto",
    names: Sequence[str] | None = None,
    alpha: float = 0.05,
    num_replicates: int = 1000,
    weights: ArrayLike | None = None,
    chains: bool | None = None,
    progress: bool = True,
) -> Report:
    """Say how good a set of draws is, whether that is good enough, what is wrong with it, and what to do.

    Parameters
    ----------
    rng_key
        A key of `jax.random`.
    target
        The log-density, a function of one position, or the scores ∇log p at the samples. With the function a report can
        say more, since draws can be moved.
    samples
        An array (draws, dim) or (chains, draws, dim), a pytree of arrays with those leading axes, or `Draws` of another
        library.
    tolerance
        What is good enough: by how many of the target's standard deviations means may be off, and by which share
        standard deviations.
    second_opinion
        Whether to let some draws follow the target and see what changes, as `relax` does: True, False, or "auto", where
        polynomials explain little, the target is a function, and BlackJAX is installed.
    names
        Names of the coordinates; taken from the structure of the samples by default.
    alpha
        The level of the test: how often correct draws may be rejected.
    num_replicates
        How many bootstrap replicates the test has.
    weights
        Weights of the draws, one each.
    chains
        Whether the leaves of a pytree have a chain axis before the draws.
    progress
        Whether a call that takes longer says what it is doing, on a terminal or in a notebook.

    Returns
    -------
    Report
        A verdict, and what it rests on. It prints as text, shows as tables in a notebook, and goes to JSON by
        `to_dict`.

    Notes
    -----
    The test is at level `alpha`, and that of draws that followed the target at a fifth of it. All is seen from where
    draws are: a mode that none of them has visited cannot be seen. "Not rejected" is not "good enough": few draws may
    show nothing. `caveats` say what limits a report.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> def logdensity(x):
    ...     return -0.5 * jnp.sum(x**2)
    >>> key = jax.random.key(0)
    >>> samples = jax.random.normal(key, (4, 500, 2)) * jnp.array([1.0, 0.6])
    >>> report = jaxpsd.diagnose(key, logdensity, samples, names=("mu", "tau"))
    >>> print(report.verdict)
    These draws are not from the target (p = 0.00...): the standard deviation of tau is 0.60 (0.60 … 0.60) times the
    target's. They are not good enough (tolerance 0.1).
    >>> report.good_enough
    False
    """
    check_key(rng_key)
    check_concrete("diagnose", rng_key, tolerance)
    settings = Settings.checked("auto", num_replicates, alpha, None, None)
    settings.check_attainable()
    tolerance = check_tolerance(tolerance)
    check_second_opinion(second_opinion, target)
    unscored = check_input(target, samples, weights, chains)
    draws = unscored.draws
    check_several(draws)
    names = check_names(names, draws)
    check_concrete("diagnose", unscored.data)
    with showing("diagnose", progress=progress) as show, for_a_report():
        return _report(rng_key, target, unscored, settings, tolerance, second_opinion, names, show)


def _report(
    rng_key: PRNGKeyArray,
    target: Target,
    unscored: Given,
    settings: Settings,
    tolerance: float,
    second_opinion: bool | str,
    names: tuple[str, ...],
    show: Callable[[str], None],
) -> Report:
    """The report on what has been checked; `show` is told what is being done."""
    draws, num_replicates = unscored.draws, settings.num_replicates
    show("scores and coordinates of the target")
    given = unscored.filled_up().with_scores()
    given.check_finite()
    order, interactions = features_for(draws, num_replicates, weighted=given.weights is not None)
    # Coordinates, and how dependent the draws are, serve the test, the table and the moves.
    standardized = fit(Rule.STANDARDIZE, given)
    coordinates = canonical(given, standardized)
    psd = PSD(order, interactions=interactions, basis="hermite", transform="target", form="primal")
    in_coordinates = replace(psd, transform=coordinates.for_tests)
    plan = in_coordinates._plan(given, num_replicates)
    dependence = measure_dependence(given, plan) if draws.num_draws > draws.num_chains else None
    test_key, table_key, move_key = split_key(rng_key, 3)
    show("testing")
    test = run_adaptive_test(test_key, given, settings, transform=coordinates.for_tests, dependence=dependence)
    show("regressing moments")
    table, discrepancy = make_table(table_key, psd, given, settings, names, standardized, dependence, coordinates)
    # Draws of unequal weights are worth fewer (Kish).
    worth = draws.num_draws if given.weights is None else 1 / float((given.weights**2).sum())
    times, together = np.ones(draws.num_chains), float(worth)
    if dependence is not None and dependence.is_clear:
        times, together = times_by_chain(given, plan), worth / dependence.time
    effective = worth / draws.num_chains / times
    # Chains that disagree are worth less together than each of them seems to be by itself.
    total = most_effective(min(together, float(effective.sum())), coordinates)
    x = np.asarray(ravel(draws.positions), np.float64).reshape(draws.num_chains, -1, draws.dim)
    chance = Chance.of_draws(x, total, table.errors)
    show("letting draws follow the target")
    relaxation, remedy = ask(
        second_opinion, move_key, target, unscored, settings, names, table.errors, coordinates, dependence
    )
    show("finding what is wrong")
    refuted = is_refuted(table.errors, relaxation)
    if refuted:
        table = replace(table, errors=table.errors.not_known())
    findings = find_errors(table.errors, chance, names)
    if test.reject and not findings and not refuted:
        findings = worst_directions(in_coordinates, given, table, total)
    r_hat = _rank_normalized_r_hat(x)
    judgement = with_moves(judge(table.errors, chance, tolerance, names), table.errors, relaxation, tolerance)
    mean, sd = (np.asarray(part, np.float64) for part in (standardized.loc, standardized.scale))
    facts = Facts(
        draws=draws,
        names=names,
        test=test,
        table=table,
        findings=findings,
        judgement=without_agreement(judgement, r_hat, names),
        tolerance=tolerance,
        relaxation=relaxation,
        refuted=refuted,
        remedy=remedy,
        times=times,
        effective=total,
        r_hat=r_hat,
        burn_in=_burn_in(x, times),
        detectable=_detectable(total, test, float(coordinates.linearity), draws.dim),
    )
    return Report(
        verdict=verdict(facts),
        good_enough=facts.judgement.good_enough,
        tolerance=tolerance,
        test=test,
        discrepancy=discrepancy,
        moments=table,
        findings=findings,
        b_squared=b_squared(table.errors, mean, sd),
        relaxation=relaxation,
        autocorrelation_time=times,
        effective_draws=effective,
        total_effective=total,
        r_hat=facts.r_hat,
        detectable=facts.detectable,
        caveats=caveats(facts),
        advice=advice(facts),
        shapes=draws.shapes,
        origin=draws.origin,
        dimensions=draws.dimensions,
    )


def features_for(draws: Draws, num_replicates: int, *, weighted: bool) -> tuple[int, bool]:
    """Order and interactions of the moments to look at: as many as can be regressed on, and replicated."""
    for order, interactions in ((2, True), (2, False), (1, False)):
        count = num_monomials(draws.dim, order, interactions=interactions)
        fits = replicate_bytes(count, num_replicates, draws.dtype) <= MEMORY_BUDGET
        if fits and can_regress(count, draws.num_draws, weighted=weighted):
            return order, interactions
    raise ValueError(
        f"`diagnose` cannot look at {draws.dim:,} coordinates of {draws.num_draws:,} draws with {num_replicates:,} "
        f"replicates: {REGRESSION_TAKES}. Thin the draws, take fewer replicates, or use `adaptive_test`."
    )


# --- what is looked at beside tests and moments -----------------------------------------------------------


def _rank_normalized_r_hat(x: Chains) -> Float[np.ndarray, " dim"]:
    """The larger of split R-hat of the ranks, and of the ranks of distances from the median (Vehtari et al., 2021).

    Ranks are taken to be those of normal variables, so that heavy tails do no harm; and distances show where chains
    agree about the location but not about the scale.
    """
    if x.shape[1] < 4:
        return np.ones(x.shape[2])
    # Not `scipy.stats`, which has ranks too: importing it takes many times as long as ranking.
    from scipy.special import ndtri

    def ranks(column: np.ndarray) -> np.ndarray:
        """Equal values, as chains with rejections have, share the mean of their ranks."""
        _, place, counts = np.unique(column, return_inverse=True, return_counts=True)
        return (np.cumsum(counts) - (counts - 1) / 2)[place]

    def r_hat(values: Chains) -> Float[np.ndarray, " dim"]:
        ranked = np.apply_along_axis(ranks, 0, values.reshape(-1, x.shape[2])).reshape(x.shape)
        return _split_r_hat(ndtri((ranked - 3 / 8) / (x.shape[0] * x.shape[1] + 1 / 4)))

    return np.maximum(r_hat(x), r_hat(np.abs(x - np.median(x, axis=(0, 1)))))


def _split_r_hat(x: Chains) -> Float[np.ndarray, " dim"]:
    """Variance of all draws over that within halves of chains, as a ratio of standard deviations (Gelman et al.)."""
    half = x.shape[1] // 2
    halves = np.concatenate([x[:, :half], x[:, -half:]])
    within = halves.var(axis=1, ddof=1).mean(axis=0)
    between = halves.mean(axis=1).var(axis=0, ddof=1)
    # A coordinate that does not move agrees with itself, unless it stands still in different places.
    ratio = np.where(within > 0, between / np.where(within > 0, within, 1), np.where(between > 0, np.inf, 1 / half))
    return np.sqrt((half - 1) / half + ratio)


def _burn_in(x: Chains, times: Float[np.ndarray, " chains"]) -> int | None:
    """The coordinate whose first tenth is farthest from the rest, if it is too far."""
    start = x.shape[1] // 10
    if start < 10:
        return None
    first, rest = x[:, :start], x[:, start:]
    error = rest.std(axis=(0, 1)) * np.sqrt(times.max() / (first.shape[0] * start))
    off = np.abs(first.mean(axis=(0, 1)) - rest.mean(axis=(0, 1))) / np.where(error > 0, error, np.inf)
    return int(off.argmax()) if off.max() > _BURN_IN else None


def _detectable(effective: float, test: GofResult, linearity: float, dim: int) -> DetectableErrors:
    """By the normal limit of the parts that look in all directions alike, each with its share of the level."""
    # Not `scipy.stats`, which takes long to import.
    from scipy.special import chdtri, chndtrinc

    parts = test.parts
    assert parts is not None  # An adaptive test has parts.
    if linearity < NEARLY_GAUSSIAN:
        return DetectableErrors(np.nan, np.nan)

    def least_squared_norm(label: str, freedom: float) -> float:
        if label not in parts.labels:
            return np.nan
        threshold = chdtri(freedom, test.alpha * share_of_level(label))
        return float(chndtrinc(threshold, freedom, 1 - _POWER)) / effective

    mean = least_squared_norm("means", dim) ** 0.5
    # ½(r² − 1)² for a ratio r of standard deviations in one direction.
    second = least_squared_norm("scales and correlations" if dim > 1 else "scales", dim * (dim + 1) / 2)
    return DetectableErrors(mean, (1 + (2 * second) ** 0.5) ** 0.5 - 1)
