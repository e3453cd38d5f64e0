"""Which sampler, or which setting of one, to use.

Sample sets are scored by one discrepancy in one set of coordinates, so that none is judged by its own standards. V, the
squared discrepancy, measures the bias of a sampler and the noise of the draws together, as a user meets them. How much
it would change if the sampler were run again comes from replicates V* = ‖a τ̄ + Σ_i w_i (v_i − v̄)(τ_i − τ̄) / σ‖²,
where v are the signs of the goodness-of-fit test, σ² = 1 − v̄² is their variance over draws, and
a² = max(0, 1 − E‖Σ w v τ‖² / V) is the part of V that is not noise. Intervals and comparisons are of log V.

Signs that keep their value for long may all agree. Such a replicate has no noise, and is zero where a is: it says
nothing of other runs, and another takes its place. Sets worth too few draws are compared apart from all others, and
with a = 0: their bias cannot be told from noise, and V varies most where it is all noise.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxpsd._choose.candidates import Candidate, Samples, check_candidates
from jaxpsd._choose.judged import judge_candidates
from jaxpsd._choose.ranking import Outcome, Ranking, ranking_of
from jaxpsd._choose.replicates import Replicates, chain_values, replicate_all
from jaxpsd._choose.worth import Worth, has_moved, remarks_on, worth_of
from jaxpsd._core.checks import check_concrete, check_fits, check_key
from jaxpsd._core.compiling import compile_by_work, for_a_report, split_key
from jaxpsd._core.draws import Draws, evenly_spaced
from jaxpsd._core.progress import showing
from jaxpsd._core.scores import Given
from jaxpsd._core.sharding import move_to_devices_of
from jaxpsd._core.types import PyTree, Target
from jaxpsd._discrepancies.base import Discrepancy
from jaxpsd._discrepancies.ksd import LinearKSD
from jaxpsd._discrepancies.plans import Plan
from jaxpsd._discrepancies.psd import PSD
from jaxpsd._explain.tolerance import check_tolerance
from jaxpsd._gof import pvalues
from jaxpsd._gof.gof_test import check_values, doubts_of
from jaxpsd._gof.scheme import Scheme, choose_bootstrap
from jaxpsd._gof.settings import INDEPENDENT, Settings, check_discrepancy, check_orders, wanted_of
from jaxpsd._gof.symptoms import find_doubts
from jaxpsd._stein.coordinates import common_transform

# Fewer chains than this say little of how much others would differ.
_FEWEST_CHAINS = 5


def rank(
    rng_key: PRNGKeyArray,
    discrepancy: Discrepancy | None,
    target: Target | Mapping[Any, PyTree],
    samples: Samples,
    *,
    method: str = "auto",
    num_replicates: int = 500,
    alpha: float = 0.05,
    paired: bool = False,
    per_chain: bool = False,
    tolerance: float | None = None,
    chains: bool | None = None,
    progress: bool = True,
) -> Ranking:
    """Rank samplers, or settings of one such as step sizes, by the discrepancy of their draws.

    Parameters
    ----------
    rng_key, num_replicates, chains
        As in `gof_test`.
    discrepancy
        What to rank by; None for `PSD(2, basis="hermite", transform="target")`, which has no units, and whose parts by
        degree are shown. Coordinates, and what else it takes from the draws, are chosen once for all sets: locations
        and scales are medians over them, so that a set that is too wide is not shrunk to look right, and one that has
        gone astray does not set the scale.
    target
        The log-density, or a mapping from each label to the scores at its draws.
    samples
        A mapping from labels to draws, each as everywhere in the library; they may differ in number.
    method
        One of the bootstraps of `gof_test` by signs, or "auto".
    alpha
        Intervals have probability 1 − alpha, and differences are told from chance at this level.
    paired
        Whether draw i of one set belongs to draw i of every other, as when samplers share their random numbers; what
        they have in common then cancels from comparisons.
    per_chain
        Whether to score every chain by itself and take the median: what one run of that length is worth, and how much
        runs differ. For samplers that may not get around, of which several runs are at hand. P-values and
        autocorrelation times are those of all chains together.
    tolerance
        Whether each set is good enough, as `diagnose` judges its draws, all chains together: by how many of the
        target's standard deviations means may be off, and by which share standard deviations. None: not asked.
    progress
        Whether a call that takes longer says what it is doing, on a terminal or in a notebook.

    Returns
    -------
    Ranking
        The sets from the best to the worst, with intervals, p-values, and which differences are more than chance. A set
        that is not finite comes last, with the reason. Of a set worth fewer than twenty independent draws, or whose
        draws are all the same, no more is said than that it is worse than the best, where it clearly is; it changes
        nothing in how others compare.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> def logdensity(x):
    ...     return -0.5 * jnp.sum(x**2)
    >>> x = jax.random.normal(jax.random.key(0), (3, 1000, 2))
    >>> sets = {"wide": 1.3 * x[0], "right": x[1], "right again": x[2]}
    >>> ranking = jaxpsd.rank(jax.random.key(1), None, logdensity, sets)
    >>> ranking.labels[-1], sorted(ranking.as_good)
    ('wide', ['right', 'right again'])
    >>> bool(ranking.compare("wide", "right").p_value < 0.01)
    True
    """
    discrepancy = PSD(2, basis="hermite", transform="target") if discrepancy is None else discrepancy
    (ranking,) = rank_orders(
        rng_key, discrepancy, target, samples, None, method=method, num_replicates=num_replicates, alpha=alpha,
        paired=paired, per_chain=per_chain, tolerance=tolerance, chains=chains, progress=progress,
    )  # fmt: skip
    return ranking


@for_a_report()
def rank_orders(
    rng_key: PRNGKeyArray,
    discrepancy: Discrepancy,
    target: Target | Mapping[Any, PyTree],
    samples: Samples,
    orders: Sequence[int] | None,
    *,
    method: str = "auto",
    num_replicates: int = 500,
    alpha: float = 0.05,
    paired: bool = False,
    per_chain: bool = False,
    tolerance: float | None = None,
    chains: bool | None = None,
    progress: bool = True,
) -> list[Ranking]:
    """Rankings by the discrepancy at each of these orders, up to its own, from the same pass; by itself for None."""
    check_discrepancy(discrepancy)
    wanted = wanted_of(check_orders(orders, discrepancy))
    if isinstance(discrepancy, LinearKSD):
        raise ValueError(
            f"`rank` takes a discrepancy with a bootstrap; {type(discrepancy).__name__} has none. Use KSD."
        )
    check_key(rng_key)
    settings = Settings.checked(method, num_replicates, alpha, None, None)
    settings.check_signs("rank")
    settings.check_attainable()
    tolerance = None if tolerance is None else check_tolerance(tolerance)
    candidates = check_candidates(target, samples, chains, paired=paired)
    check_concrete("rank", rng_key, [each.given.data for each in candidates])
    # In double precision, where results are compared.
    check_fits((len(candidates), num_replicates), np.dtype(np.float64), "The replicates", "Take fewer of them.")
    for label, (draws, *_), _ in candidates:
        if per_chain and draws.num_chains < _FEWEST_CHAINS:
            raise ValueError(
                f"`per_chain` compares chains with each other, and takes at least {_FEWEST_CHAINS}; {label!r} has "
                f"{draws.num_chains}."
            )
    sound = [candidate for candidate in candidates if candidate.reason is None]
    if not sound:
        raise ValueError(f"No sample set can be ranked. {candidates[0].label!r}: {candidates[0].reason}")
    with showing("rank", progress=progress) as show:
        show("coordinates of the target")
        discrepancy, plan = _common_plan(discrepancy, [each.given for each in sound], num_replicates)
        sign_key, chain_key = split_key(rng_key)
        show("autocorrelation times")
        schemes, worths = _choose_bootstraps(sign_key, settings, sound, plan, paired=paired)
        show(f"replicates of {len(sound)} sets")
        found = replicate_all(sound, schemes, worths, plan, wanted, not per_chain)
        degrees = [_by_degree(each.given, plan, discrepancy) for each in sound]
        show("how much chains differ" if per_chain else "what is good enough")
        of_chains = [chain_values(each.given, plan, wanted) for each in candidates] if per_chain else []
        keys = [chain_key] * len(candidates) if paired or not per_chain else split_key(chain_key, len(candidates))
        good_enough = None if tolerance is None else judge_candidates(candidates, tolerance)
    nothing = Outcome.nothing(num_replicates)
    num_draws = {each.label: each.given.draws.num_draws for each in candidates}
    rankings = []
    for place, part in enumerate(wanted.parts):
        highest = None if part.degrees is None else max(part.degrees)
        outcomes = {each.label: nothing._replace(remarks=(str(each.reason),)) for each in candidates} | {
            each.label: _outcome(
                each.given, scheme, worth, plan, discrepancy, settings, values.of(place), parts[:highest], highest
            )
            for each, scheme, worth, values, parts in zip(sound, schemes, worths, found, degrees, strict=True)
        }
        for key, each, values in zip(keys, candidates, of_chains, strict=False):
            outcomes[each.label] = _median_of_chains(
                key, outcomes[each.label], values[:, place], moved=has_moved(each.given.draws)
            )
        rankings.append(ranking_of(outcomes, num_draws, settings.alpha, good_enough, tolerance))
    return rankings


# --- what is common to all sets ---------------------------------------------------------------------------


@compile_by_work
def _pooled(parts: Sequence[PyTree], chosen: Sequence[Int[np.ndarray, " rows"]]) -> PyTree:
    some = [jax.tree.map(lambda leaf, rows=rows: leaf[rows], part) for part, rows in zip(parts, chosen, strict=True)]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *some)


def _common_plan(discrepancy: Discrepancy, sets: Sequence[Given], num_replicates: int) -> tuple[Discrepancy, Plan]:
    """The plan that all sets are scored with, and the discrepancy it comes from, in coordinates common to all."""
    discrepancy = discrepancy._with_rule_fitted(lambda rule: common_transform(rule, sets))
    # As many draws as the largest set has, and the same number from each: for what else depends on draws.
    count = max(given.draws.num_draws for given in sets) // len(sets)
    chosen = [evenly_spaced(given.draws.num_draws, max(2, count)) for given in sets]
    positions = [given.draws.positions for given in sets]
    pooled = Draws(_pooled(move_to_devices_of(positions[0], positions), chosen))
    return discrepancy, discrepancy._plan(Given(pooled), num_replicates)


def _choose_bootstraps(
    rng_key: PRNGKeyArray, settings: Settings, candidates: Sequence[Candidate], plan: Plan, *, paired: bool
) -> tuple[list[Scheme], list[Worth]]:
    """The bootstrap of each set, with its own signs or those of the most dependent one; and what the set is worth."""
    keys = split_key(rng_key, len(candidates))
    schemes = [
        choose_bootstrap(key, settings, each.given, plan, by_signs=True)
        for key, each in zip(keys, candidates, strict=True)
    ]
    worths = [
        worth_of(each.given.draws, scheme, settings.alpha) for each, scheme in zip(candidates, schemes, strict=True)
    ]
    if paired:
        # Signs that suit a set of few effective draws would make few of all others.
        enough = [worth.enough or not any(other.enough for other in worths) for worth in worths]
        sharing = [scheme for scheme, shares in zip(schemes, enough, strict=True) if shares]
        slowest = max(sharing, key=lambda scheme: scheme.autocorrelation_time or 0)
        schemes = [
            slowest._replace(autocorrelation_time=scheme.autocorrelation_time) if shares else scheme
            for scheme, shares in zip(schemes, enough, strict=True)
        ]
    return schemes, worths


# --- results ----------------------------------------------------------------------------------------------


def _outcome(
    given: Given,
    scheme: Scheme,
    worth: Worth,
    plan: Plan,
    discrepancy: Discrepancy,
    settings: Settings,
    found: Replicates,
    parts: Float[np.ndarray, " degrees"],
    degree: int | None,
) -> Outcome:
    """From replicates to numbers; what would be a warning or an error in a test is a remark here."""
    under_null, of_reruns, seen = found
    nothing, time = Outcome.nothing(settings.num_replicates), scheme.autocorrelation_time
    values = under_null if of_reruns is None else np.concatenate([under_null, of_reruns])
    try:
        check_values(values, discrepancy, given, "The discrepancy")
    except (ValueError, FloatingPointError) as error:
        return nothing._replace(remarks=(str(error),))
    v = float(under_null[0])
    replicates = nothing.replicates if of_reruns is None else np.asarray(of_reruns[1:], np.float64)
    if worth.enough or (of_reruns is None and worth.moved):
        doubts = doubts_of(seen, scheme, given, plan, settings, degree)
    else:
        # What is said of its worth says it of the p-value too.
        independent = scheme.method in INDEPENDENT
        doubts = find_doubts(seen, given.draws, plan, scheme.method, independent=independent)
    return Outcome(
        v=v,
        parts=parts,
        p_value=float(pvalues.p_values(under_null[None])[0, 0]),
        autocorrelation_time=np.nan if time is None else time,
        # Rounding aside, draws that are all the same have replicates that are.
        replicates=replicates if worth.moved else np.full_like(replicates, v),
        comparable=worth.enough,
        remarks=(*remarks_on(worth, of_reruns is None, settings.alpha), *(doubt.message for doubt in doubts)),
    )


def _by_degree(given: Given, plan: Plan, discrepancy: Discrepancy) -> Float[np.ndarray, " degrees"]:
    """√V by degree, where that has a meaning."""
    if not isinstance(discrepancy, PSD) or discrepancy.basis != "hermite" or discrepancy.norm != "l2":
        return np.zeros(0)
    return np.sqrt(np.asarray(discrepancy._parts(given, plan), np.float64))


def _median_of_chains(
    rng_key: PRNGKeyArray, outcome: Outcome, v: Float[np.ndarray, " chains"], *, moved: bool
) -> Outcome:
    """The median chain instead of all of them; replicates from chains drawn again, with replacement.

    However few draws a chain is worth, several of them tell how much chains differ; unless none has moved at all.
    """
    # A chain that went astray is worse than any other.
    v = np.where(np.isfinite(v), v, np.inf)
    if not np.isfinite(np.median(v)):
        return outcome._replace(v=np.nan, comparable=False)
    again = np.asarray(_drawn_again(rng_key, len(v), len(outcome.replicates)))
    replicates = np.median(v[again], axis=1)
    return outcome._replace(
        v=float(np.median(v)),
        replicates=np.minimum(replicates, v[np.isfinite(v)].max()),
        comparable=moved,
    )


@partial(compile_by_work, static_argnums=(1, 2))
def _drawn_again(rng_key: PRNGKeyArray, count: int, times: int) -> Int[Array, "times count"]:
    return jax.random.choice(rng_key, count, (times, count))
