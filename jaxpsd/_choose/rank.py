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

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_static
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxpsd._choose.candidates import Candidate, Samples, check_candidates, shape_of
from jaxpsd._choose.judged import judge_candidates
from jaxpsd._choose.ranking import Outcome, Ranking, ranking_of
from jaxpsd._choose.worth import Worth, has_moved, remarks_on, worth_of
from jaxpsd._core.blocks import sets_at_once
from jaxpsd._core.checks import check_fits, check_key
from jaxpsd._core.compiling import compile_by_work, split_key
from jaxpsd._core.draws import Draws, evenly_spaced, split_draws
from jaxpsd._core.programs import Data, run
from jaxpsd._core.scores import Given
from jaxpsd._core.sharding import move_to_devices_of
from jaxpsd._core.types import PyTree, Target
from jaxpsd._discrepancies.base import Discrepancy
from jaxpsd._discrepancies.ksd import LinearKSD
from jaxpsd._discrepancies.plans import Plan
from jaxpsd._discrepancies.psd import PSD
from jaxpsd._explain.tolerance import check_tolerance
from jaxpsd._gof import pvalues
from jaxpsd._gof.bootstrap import Wanted, bootstrap
from jaxpsd._gof.gof_test import check_values, doubts_of
from jaxpsd._gof.multipliers import Signs
from jaxpsd._gof.scheme import Scheme, choose_bootstrap
from jaxpsd._gof.settings import INDEPENDENT, Settings, check_discrepancy
from jaxpsd._gof.symptoms import Symptoms, find_doubts
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
) -> Ranking:
    """Rank samplers, or settings of one such as step sizes, by the discrepancy of their draws.

    Parameters
    ----------
    rng_key, method, num_replicates, chains
        As in `gof_test`; the sign bootstraps.
    discrepancy
        What to rank by; None for `PSD(2, basis="hermite", transform="target")`, which has no units, and whose parts by
        degree are shown. Coordinates, and what else it takes from the draws, are chosen once for all sets: locations
        and scales are medians over them, so that a set that is too wide is not shrunk to look right, and one that has
        gone astray does not set the scale.
    target
        The log-density, or a mapping from each label to the scores at its draws.
    samples
        A mapping from labels to draws, each as everywhere in the library; they may differ in number.
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
    check_discrepancy(discrepancy)
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
    discrepancy, plan = _common_plan(discrepancy, [each.given for each in sound], num_replicates)
    sign_key, chain_key = split_key(rng_key)
    schemes, worths = _choose_bootstraps(sign_key, settings, sound, plan, paired=paired)
    found = _replicate_all(sound, schemes, worths, plan, not per_chain)
    nothing = Outcome.nothing(num_replicates)
    outcomes = {each.label: nothing._replace(remarks=(str(each.reason),)) for each in candidates} | {
        each.label: _outcome(each.given, scheme, worth, plan, discrepancy, settings, values)
        for each, scheme, worth, values in zip(sound, schemes, worths, found, strict=True)
    }
    if per_chain:
        keys = [chain_key] * len(candidates) if paired else split_key(chain_key, len(candidates))
        outcomes = {
            each.label: _median_of_chains(
                key, outcomes[each.label], _chain_values(each.given, plan), moved=has_moved(each.given.draws)
            )
            for key, each in zip(keys, candidates, strict=True)
        }
    num_draws = {each.label: each.given.draws.num_draws for each in candidates}
    good_enough = None if tolerance is None else judge_candidates(candidates, tolerance)
    return ranking_of(outcomes, num_draws, settings.alpha, good_enough, tolerance)


# --- what is common to all sets ---------------------------------------------------------------------------


@partial(compile_by_work, static_argnums=0)
def _joined(join: Callable[..., Array], parts: Sequence[PyTree]) -> PyTree:
    return jax.tree.map(lambda *leaves: join(leaves), *parts)


def _join(join: Callable[..., Array], parts: Iterable[PyTree]) -> PyTree:
    """Parts joined leaf by leaf, where the first of them is."""
    parts = list(parts)
    return _joined(join, move_to_devices_of(parts[0], parts))


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
    schemes = [choose_bootstrap(key, settings, each.given, plan) for key, each in zip(keys, candidates, strict=True)]
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


# --- replicates -------------------------------------------------------------------------------------------


class _Replicates(NamedTuple):
    """V and its replicates, of draws that were right and, where wanted, of other runs; what was seen of the draws."""

    under_null: Float[Array, " columns"]
    of_reruns: Float[Array, " columns"] | None
    seen: Symptoms


@register_static
class _Sets(NamedTuple):
    """How many sets lie one after the other, and whether to replicate other runs of them."""

    num_sets: int
    reruns: bool


def _replicate_all(
    candidates: Sequence[Candidate], schemes: Sequence[Scheme], worths: Sequence[Worth], plan: Plan, reruns: bool
) -> list[_Replicates]:
    """Replicates of all sets, those of equal shape in one program."""
    found: dict[int, _Replicates] = {}
    groups = defaultdict(list)
    for k, (candidate, scheme) in enumerate(zip(candidates, schemes, strict=True)):
        groups[shape_of(candidate.given.draws), scheme.method].append(k)
    for members in groups.values():
        given = [candidates[k].given for k in members]
        draws = Draws(_join(jnp.concatenate, (each.draws.positions for each in given)))
        scores = _join(jnp.concatenate, (each.target for each in given))
        signs = _join(jnp.stack, (schemes[k].multipliers for k in members))
        # Of draws that are all the same only the bias is left.
        all_noise = np.array([worths[k].moved and not worths[k].enough for k in members])
        sets = _Sets(len(members), reruns)
        together = run(_replicates_of_sets, Given(draws, scores), plan, signs, all_noise, sets, result="gathered")
        for place, k in enumerate(members):
            found[k] = jax.tree.map(lambda leaf, place=place: np.asarray(leaf)[place], together)
    return [found[k] for k in range(len(candidates))]


def _map_sets(fn: Callable[..., Any], data: Data, count: int, *others: PyTree) -> Any:
    """A function of the data of each set, and of others with an axis of sets; of many at once where there is room."""
    positions, scores = split_draws(data.rows, count)
    num_draws, dim = data.x.shape
    together = sets_at_once(num_draws // count * 16 * dim * data.x.dtype.itemsize)
    split = replace(data, positions=positions, scores=scores)
    return jax.lax.map(lambda each: fn(*each), (split, *others), batch_size=together)


def _replicates_of_sets(
    data: Data, plan: Plan, signs: Signs, all_noise: Bool[Array, " sets"], sets: _Sets
) -> _Replicates:
    return _map_sets(lambda *each: _replicates(plan, sets.reruns, *each), data, sets.num_sets, signs, all_noise)


def _chain_values(given: Given, plan: Plan) -> Float[np.ndarray, " chains"]:
    """V of every chain by itself."""
    sets = _Sets(given.draws.num_chains, reruns=False)
    return np.asarray(run(_values_of_sets, given, plan, sets, result="gathered"), np.float64)


def _values_of_sets(data: Data, plan: Plan, sets: _Sets) -> Float[Array, " sets"]:
    return _map_sets(lambda each: plan.pair_sums(plan.prepare(each), diagonal=False).total, data, sets.num_sets)


def _replicates(plan: Plan, reruns: bool, data: Data, signs: Signs, all_noise: Bool[Array, ""]) -> _Replicates:
    (under_null,), seen = bootstrap(data, plan, signs, Wanted())
    if not reruns:
        return _Replicates(under_null, None, seen)
    v, noise = under_null[0], under_null[1:].mean()
    part = jnp.where(all_noise, 0, jnp.sqrt(jnp.maximum(1 - noise / jnp.where(v > 0, v, 1), 0)))
    multipliers, variance = signs.about(part, data.num_draws)
    (of_reruns,), _ = bootstrap(data, plan, multipliers, Wanted())
    differ = variance > 0
    return _Replicates(under_null, _filled(of_reruns / jnp.where(differ, variance, 1), differ), seen)


def _filled(values: Float[Array, " columns"], usable: Bool[Array, " columns"]) -> Float[Array, " columns"]:
    """With the last usable value before it in the place of each that is not; the first is that of the draws."""
    places = jnp.where(usable, jnp.arange(len(values)), 0)
    # Before the first usable one, the last of all: in a circle.
    last = jax.lax.cummax(places)
    return values[jnp.where(last > 0, last, last[-1])].at[0].set(values[0])


# --- results ----------------------------------------------------------------------------------------------


def _outcome(
    given: Given,
    scheme: Scheme,
    worth: Worth,
    plan: Plan,
    discrepancy: Discrepancy,
    settings: Settings,
    found: _Replicates,
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
        doubts = doubts_of(seen, scheme, given, plan, settings)
    else:
        # What is said of its worth says it of the p-value too.
        independent = scheme.method in INDEPENDENT
        doubts = find_doubts(seen, given.draws, plan, scheme.method, independent=independent)
    return Outcome(
        v=v,
        parts=_parts(given, plan, discrepancy),
        p_value=float(pvalues.p_values(under_null[None])[0, 0]),
        autocorrelation_time=np.nan if time is None else time,
        # Rounding aside, draws that are all the same have replicates that are.
        replicates=replicates if worth.moved else np.full_like(replicates, v),
        comparable=worth.enough,
        remarks=(*remarks_on(worth, of_reruns is None, settings.alpha), *(doubt.message for doubt in doubts)),
    )


def _parts(given: Given, plan: Plan, discrepancy: Discrepancy) -> Float[np.ndarray, " degrees"]:
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
    again = jax.random.choice(rng_key, len(v), (len(outcome.replicates), len(v)))
    replicates = np.median(v[np.asarray(again)], axis=1)
    return outcome._replace(
        v=float(np.median(v)),
        replicates=np.minimum(replicates, v[np.isfinite(v)].max()),
        comparable=moved,
    )
