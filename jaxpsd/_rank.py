"""Which sampler, or which setting of one, to use.

Sample sets are scored by one discrepancy in one set of coordinates, so that none is judged by its own standards. V, the
squared discrepancy, measures the bias of a sampler and the noise of the draws together, as a user meets them. How much
it would change if the sampler were run again comes from replicates V* = ‖a τ̄ + Σ_i w_i (v_i − v̄)(τ_i − τ̄)‖², where v
are the signs of the goodness-of-fit test and a² = max(0, 1 − E‖Σ w v τ‖² / V) is the part of V that is not noise.
Intervals and comparisons are of log V.
"""

import itertools
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_static
from jaxtyping import Array, Float, PRNGKeyArray

from jaxpsd import _pvalues as pvalues
from jaxpsd._blocks import sets_at_once
from jaxpsd._bootstrap import Wanted, bootstrap
from jaxpsd._checks import check_key, check_samples
from jaxpsd._discrepancy import Discrepancy
from jaxpsd._draws import Draws, evenly_spaced
from jaxpsd._form import Form, in_coordinates_of
from jaxpsd._gof import check_varies
from jaxpsd._resampling import Scheme, effective_draws, settle
from jaxpsd._score import Scorer, check_finite_draws, check_target, run, scores_of
from jaxpsd._settings import INDEPENDENT, Settings, check_discrepancy, check_several
from jaxpsd._signs import Shifted, Signs
from jaxpsd._tables import html_table, number, plain, text_table
from jaxpsd._transform import common_transform
from jaxpsd._types import PyTree, Target
from jaxpsd._watch import Watched, warn, warn_of_few

Samples = Mapping[Any, PyTree]


class Comparison(NamedTuple):
    """Two sample sets, compared.

    ratio
        The discrepancy of the first in units of that of the second.
    interval
        Where that lies with probability 1 − alpha, were both samplers run again.
    p_value
        How often chance alone gives so different discrepancies to two runs of equally good samplers.
    """

    ratio: float
    interval: tuple[float, float]
    p_value: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranking:
    """Sample sets from the best to the worst; arrays have an entry for each, NaN where there is no result.

    labels
        The labels, as the user gave them.
    discrepancy
        √V of each set.
    interval
        (labels, 2), where the discrepancy of another run would be expected to lie, with probability 1 − alpha.
    p_value
        Of the goodness-of-fit test: how often draws of the target would have so large a discrepancy.
    autocorrelation_time
        Of the Stein features, in draws.
    num_draws
        How many draws each set has.
    adjusted_p_value
        (labels, labels), of the difference between any two sets, adjusted for the number of pairs.
    replicates
        (labels, num_replicates), V as it might be in other runs.
    remarks
        For each set what makes its results doubtful, or why it has none.
    alpha
        The level of intervals and comparisons.
    """

    labels: tuple[Any, ...]
    discrepancy: np.ndarray
    interval: np.ndarray
    p_value: np.ndarray
    autocorrelation_time: np.ndarray
    num_draws: np.ndarray
    adjusted_p_value: np.ndarray
    replicates: np.ndarray
    remarks: tuple[tuple[str, ...], ...]
    alpha: float

    @property
    def best(self) -> Any:
        """The label with the smallest discrepancy."""
        return self.labels[0]

    @property
    def as_good(self) -> tuple[Any, ...]:
        """The labels that differ from the best by no more than chance would have it; the best is one of them."""
        rest = zip(self.labels[1:], self.adjusted_p_value[0, 1:], strict=True)
        return (self.best, *(label for label, p in rest if p > self.alpha))

    def compare(self, first: Any, second: Any) -> Comparison:
        """Compare two of the sample sets, by themselves: the p-value is not adjusted for other pairs."""
        for label in (first, second):
            if label not in self.labels:
                raise KeyError(f"There is no sample set {label!r}; there are {', '.join(map(repr, self.labels))}.")
        k, j = map(self.labels.index, (first, second))
        if np.isnan(self.discrepancy[[k, j]]).any():
            why = "; ".join(self.remarks[k] + self.remarks[j])
            raise ValueError(f"{first!r} or {second!r} has no discrepancy: {why}")
        between = _log_deviations(self.replicates[k]) - _log_deviations(self.replicates[j])
        ratio = float(np.log(self.discrepancy[k] / self.discrepancy[j]))
        extreme = (np.abs(between - between.mean()) >= abs(ratio - between.mean())).sum()
        low, high = np.quantile(between, [self.alpha / 2, 1 - self.alpha / 2])
        ends = float(np.exp(ratio - high)), float(np.exp(ratio - low))
        return Comparison(float(np.exp(ratio)), ends, float((1 + extreme) / (1 + len(between))))

    def to_dict(self) -> dict[str, Any]:
        """Everything but the replicates as plain numbers, for JSON."""
        rows = [
            {
                "label": label if isinstance(label, str | int | float | bool) else str(label),
                "discrepancy": plain(self.discrepancy[k]),
                "interval": plain(self.interval[k]),
                "p_value": plain(self.p_value[k]),
                "autocorrelation_time": plain(self.autocorrelation_time[k]),
                "num_draws": int(self.num_draws[k]),
                "as_good_as_best": label in self.as_good,
                "adjusted_p_values": plain(self.adjusted_p_value[k]),
                "remarks": list(self.remarks[k]),
            }
            for k, label in enumerate(self.labels)
        ]
        return {"ranking": rows, "alpha": self.alpha}

    def __repr__(self) -> str:
        return "\n".join([text_table(self._columns()), "", *self._remarks()])

    def _repr_html_(self) -> str:
        return html_table(self._columns()) + "".join(f"<p>{escape(remark)}</p>" for remark in self._remarks())

    def _columns(self) -> dict[str, list[str]]:
        known = lambda values, form: ["–" if np.isnan(value) else form(value) for value in values]  # noqa: E731
        return {
            "label": [str(label) for label in self.labels],
            "discrepancy": known(self.discrepancy, number),
            f"{1 - self.alpha:.0%} interval": [
                "–" if np.isnan(ends).any() else f"{number(ends[0])} … {number(ends[1])}" for ends in self.interval
            ],
            "as good as best": ["yes" if label in self.as_good else "no" for label in self.labels],
            "p": known(self.p_value, number),
            "autocorrelation time": known(self.autocorrelation_time, number),
            "draws": [f"{count:,}" for count in self.num_draws],
        }

    def _remarks(self) -> list[str]:
        others = [str(label) for label in self.as_good[1:]]
        verdict = f"The smallest discrepancy has {self.best}"
        verdict += f"; chance alone may make the difference to {', '.join(others)}." if others else ", beyond chance."
        remarks = zip(self.labels, self.remarks, strict=True)
        return [verdict, *(f"{label}: {note}" for label, several in remarks for note in several)]


def rank(
    rng_key: PRNGKeyArray,
    discrepancy: Discrepancy,
    target: Target | Mapping[Any, PyTree],
    samples: Samples,
    *,
    method: str = "auto",
    num_replicates: int = 500,
    alpha: float = 0.05,
    paired: bool = False,
    per_chain: bool = False,
    chains: bool | None = None,
) -> Ranking:
    """Rank samplers, or settings of one such as step sizes, by the discrepancy of their draws.

    Parameters
    ----------
    rng_key, method, num_replicates, chains
        As in `gof_test`; the sign bootstraps.
    discrepancy
        What to rank by, such as `PSD(2, transform="standardize")`. Coordinates, and what else it takes from the draws,
        are chosen once for all sets: locations and scales are medians over them, so that a set that is too wide is not
        shrunk to look right, and one that has gone astray does not set the scale.
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

    Returns
    -------
    Ranking
        The sets from the best to the worst, with intervals, p-values, and which differences are more than chance. A set
        that is not finite comes last, with the reason.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> def logdensity(x):
    ...     return -0.5 * jnp.sum(x**2)
    >>> x = jax.random.normal(jax.random.key(0), (3, 1000, 2))
    >>> sets = {"wide": 1.3 * x[0], "right": x[1], "right again": x[2]}
    >>> ranking = jaxpsd.rank(jax.random.key(1), jaxpsd.PSD(2), logdensity, sets)
    >>> ranking.labels[-1], sorted(ranking.as_good)
    ('wide', ['right', 'right again'])
    >>> bool(ranking.compare("wide", "right").p_value < 0.01)
    True
    """
    check_discrepancy(discrepancy)
    if discrepancy._only_asymptotic:
        raise ValueError(
            f"`rank` takes a discrepancy with a bootstrap; {type(discrepancy).__name__} has none. Use KSD."
        )
    check_key(rng_key)
    settings = Settings.checked(method, num_replicates, alpha, None, None)
    settings.check_signs("rank")
    settings.check_attainable()
    candidates = _checked_candidates(target, samples, chains, paired=paired)
    if per_chain:
        _check_chains(candidates)
    sound = [candidate for candidate in candidates if candidate.reason is None]
    if not sound:
        raise ValueError(f"No sample set can be ranked. {candidates[0].label!r}: {candidates[0].reason}")
    discrepancy, form = _common_form(discrepancy, [candidate.draws for candidate in sound], num_replicates)
    sign_key, chain_key = jax.random.split(rng_key)
    schemes = _settled(sign_key, settings, sound, form, discrepancy._function, paired=paired)
    found = _all_replicates(sound, schemes, form, discrepancy._function, reruns=not per_chain)
    nothing = _Outcome.nothing(num_replicates)
    outcomes = {each.label: nothing._replace(remarks=(str(each.reason),)) for each in candidates} | {
        each.label: _outcome(each, scheme, form, discrepancy, settings, values)
        for each, scheme, values in zip(sound, schemes, found, strict=True)
    }
    if per_chain:
        keys = [chain_key] * len(candidates) if paired else jax.random.split(chain_key, len(candidates))
        outcomes = {
            each.label: _median_of_chains(key, outcomes[each.label], _chain_values(each, form, discrepancy._function))
            for key, each in zip(keys, candidates, strict=True)
        }
    return _ranking(outcomes, {each.label: each.draws.num_draws for each in candidates}, settings.alpha)


def sample_grid(
    rng_key: PRNGKeyArray,
    sampler: Callable[[PRNGKeyArray, Any], PyTree],
    grid: Iterable[Any],
    *,
    done: dict[Any, PyTree] | None = None,
    progress: bool = True,
) -> dict[Any, PyTree]:
    """Run a sampler at each step size, or each value of any other setting, for `rank` to choose from.

    Parameters
    ----------
    rng_key
        A key of `jax.random`, split for the runs.
    sampler
        `sampler(rng_key, step_size)` returns draws.
    grid
        The step sizes.
    done
        Draws of an earlier call that was interrupted, by step size. New ones are put there as they come, so that
        calling again with the same dictionary goes on where the last call stopped, and gives the same draws.
    progress
        Whether to show a progress bar.

    Returns
    -------
    dict
        The draws for each step size.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> def logdensity(x):
    ...     return -0.5 * jnp.sum(x**2)
    >>> def unadjusted_langevin(rng_key, step_size):
    ...     def step(x, key):
    ...         noise = jnp.sqrt(step_size) * jax.random.normal(key, x.shape)
    ...         x = x + 0.5 * step_size * jax.grad(logdensity)(x) + noise
    ...         return x, x
    ...     return jax.lax.scan(step, jnp.zeros(2), jax.random.split(rng_key, 5000))[1]
    >>> key = jax.random.key(0)
    >>> draws = jaxpsd.sample_grid(key, jax.jit(unadjusted_langevin), [1.0, 0.2, 0.0001], progress=False)
    >>> jaxpsd.rank(key, jaxpsd.PSD(2), logdensity, draws).best
    0.2
    """
    check_key(rng_key)
    if not callable(sampler):
        raise TypeError(f"`sampler` must be a function of a key and a step size; got {type(sampler).__name__}.")
    if done is not None and not isinstance(done, dict):
        raise TypeError(f"`done` must be a dictionary of draws by step size; got {type(done).__name__}.")
    values = list(grid)
    if not values or len(set(values)) < len(values):
        raise ValueError(f"`grid` must be values that differ from each other, and at least one; got {values!r}.")
    from tqdm import tqdm  # Not needed by most, and slow to import.

    draws = {} if done is None else done
    bar = tqdm(values, disable=not progress, desc="sampling")
    for value, key in zip(bar, jax.random.split(rng_key, len(values)), strict=False):
        if value in draws:
            continue
        bar.set_postfix_str(str(value))
        try:
            # Work that JAX has only promised would be counted as done.
            draws[value] = jax.block_until_ready(sampler(key, value))
        except Exception as error:
            error.add_note(f"jaxpsd: the sampler was run at {value!r}.")
            raise
    return {value: draws[value] for value in values}


# --- candidates -------------------------------------------------------------------------------------------


class _Candidate(NamedTuple):
    """A sample set; the reason why it cannot be ranked, if there is one."""

    label: Any
    draws: Draws
    scores: PyTree
    reason: str | None


def _checked_candidates(
    target: Target | Mapping[Any, PyTree], samples: Samples, chains: bool | None, *, paired: bool
) -> list[_Candidate]:
    if not isinstance(samples, Mapping) or not samples:
        raise TypeError(f"`samples` must be a mapping from labels to draws, at least one; got {samples!r:.100}.")
    if not callable(target) and (not isinstance(target, Mapping) or set(target) != set(samples)):
        raise TypeError(
            "`target` must be the log-density, or a mapping from each label of `samples` to the scores at its draws."
        )
    candidates = []
    for label, given in samples.items():
        try:
            draws = check_samples(given, chains=chains)
            check_several(draws)
            own = target[label] if isinstance(target, Mapping) else target
            scores = scores_of(check_target(own, given, draws, chains=chains), draws)
        except (TypeError, ValueError) as error:
            error.add_note(f"jaxpsd: this is about the sample set {label!r}.")
            raise
        candidates.append(_checked(label, draws, scores))
    first = candidates[0]
    for other in candidates[1:]:
        if other.draws.structure != first.draws.structure:
            raise ValueError(
                f"All sample sets must have positions of one structure, shape and dtype; {other.label!r} and "
                f"{first.label!r} differ."
            )
        if paired and _shape(other.draws) != _shape(first.draws):
            raise ValueError(
                f"Paired sets must have as many draws and chains; {other.label!r} and {first.label!r} differ."
            )
    return candidates


def _checked(label: Any, draws: Draws, scores: PyTree) -> _Candidate:
    """With the reason why it cannot be ranked, if there is one."""
    try:
        check_finite_draws(draws, scores)
    except ValueError as error:
        return _Candidate(label, draws, scores, str(error))
    return _Candidate(label, draws, scores, None)


def _check_chains(candidates: Sequence[_Candidate]) -> None:
    for label, draws, *_ in candidates:
        if draws.num_chains < _FEWEST_CHAINS:
            raise ValueError(
                f"`per_chain` compares chains with each other, and takes at least {_FEWEST_CHAINS}; {label!r} has "
                f"{draws.num_chains}."
            )


# Fewer chains than this say little of how much others would differ.
_FEWEST_CHAINS = 5


def _shape(draws: Draws) -> tuple[int, int]:
    return draws.num_draws, draws.num_chains


def _common_form(discrepancy: Discrepancy, sets: Sequence[Draws], num_replicates: int) -> tuple[Discrepancy, Form]:
    """The form that all sets are scored with, and the discrepancy it comes from, in coordinates common to all."""
    discrepancy = discrepancy._with_rule_fitted(lambda rule: common_transform(rule, sets))
    # As many draws as the largest set has, and the same number from each: for what else depends on draws.
    count = max(draws.num_draws for draws in sets) // len(sets)
    chosen = [evenly_spaced(draws.num_draws, max(2, count)) for draws in sets]
    some = [
        jax.tree.map(lambda leaf, places=places: leaf[places], draws.positions)
        for draws, places in zip(sets, chosen, strict=True)
    ]
    pooled = Draws(jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *some))
    return discrepancy, discrepancy._test_form(pooled, None, num_replicates)


def _settled(
    rng_key: PRNGKeyArray,
    settings: Settings,
    candidates: Sequence[_Candidate],
    form: Form,
    function: Callable[..., Any] | None,
    *,
    paired: bool,
) -> list[Scheme]:
    """The bootstrap of each set: with its own signs, or those of the most dependent one for all."""
    keys = [rng_key] * len(candidates) if paired else jax.random.split(rng_key, len(candidates))
    schemes = [
        settle(key, settings, each.scores, each.draws, form, function)
        for key, each in zip(keys, candidates, strict=True)
    ]
    if not paired:
        return schemes
    slowest = max(schemes, key=lambda scheme: scheme.autocorrelation_time or 0)
    return [slowest._replace(autocorrelation_time=scheme.autocorrelation_time) for scheme in schemes]


# --- replicates -------------------------------------------------------------------------------------------


class _Replicates(NamedTuple):
    """V and its replicates, of draws that were right and, where wanted, of other runs; what was seen of the draws."""

    under_null: Float[Array, " columns"]
    of_reruns: Float[Array, " columns"] | None
    seen: Watched


@register_static
class _Sets(NamedTuple):
    """How many sets lie one after the other, and whether to replicate other runs of them."""

    num_sets: int
    reruns: bool


def _all_replicates(
    candidates: Sequence[_Candidate],
    schemes: Sequence[Scheme],
    form: Form,
    function: Callable[..., Any] | None,
    *,
    reruns: bool,
) -> list[_Replicates]:
    """Replicates of all sets, those of equal shape in one program."""
    found: dict[int, _Replicates] = {}
    groups: dict[Hashable, list[int]] = {}
    for k, (candidate, scheme) in enumerate(zip(candidates, schemes, strict=True)):
        groups.setdefault((_shape(candidate.draws), scheme.method), []).append(k)
    for members in groups.values():
        positions, scores, signs = (
            jax.tree.map(lambda *leaves, join=join: join(leaves), *parts)
            for join, parts in (
                (jnp.concatenate, [candidates[k].draws.positions for k in members]),
                (jnp.concatenate, [candidates[k].scores for k in members]),
                (jnp.stack, [schemes[k].multipliers for k in members]),
            )
        )
        sets = _Sets(len(members), reruns)
        together = run(_replicates_of_sets, scores, Draws(positions), form, signs, sets, function=function)
        for place, k in enumerate(members):
            found[k] = jax.tree.map(lambda leaf, place=place: leaf[place], together)
    return [found[k] for k in range(len(candidates))]


def _replicates_of_sets(scorer: Scorer, arrays: PyTree, form: Form, signs: Signs, sets: _Sets) -> _Replicates:
    return jax.lax.map(
        lambda each: _replicates(scorer, each[0], form, each[1], reruns=sets.reruns),
        (_apart(arrays, sets.num_sets), signs),
        batch_size=_together(scorer, arrays, sets),
    )


def _chain_values(
    candidate: _Candidate, form: Form, function: Callable[..., Any] | None
) -> Float[np.ndarray, " chains"]:
    """V of every chain by itself."""
    draws = candidate.draws
    sets = _Sets(draws.num_chains, False)
    return np.asarray(run(_values_of_sets, candidate.scores, draws, form, sets, function=function), np.float64)


def _values_of_sets(scorer: Scorer, arrays: PyTree, form: Form, sets: _Sets) -> Float[Array, " sets"]:
    moved = in_coordinates_of(form, scorer)

    def value(arrays: PyTree) -> Array:
        return form.pair_sums(moved, arrays, None, diagonal=False).total

    return jax.lax.map(value, _apart(arrays, sets.num_sets), batch_size=_together(scorer, arrays, sets))


def _together(scorer: Scorer, arrays: PyTree, sets: _Sets) -> int | None:
    x, _ = jax.eval_shape(scorer, arrays)
    return sets_at_once(len(x) // sets.num_sets * 16 * x.shape[1] * x.dtype.itemsize)


def _apart(arrays: PyTree, count: int) -> PyTree:
    """Sets that lie one after the other, along an axis of their own."""
    return jax.tree.map(lambda leaf: leaf.reshape(count, -1, *leaf.shape[1:]), arrays)


def _replicates(scorer: Scorer, arrays: PyTree, form: Form, signs: Signs, *, reruns: bool) -> _Replicates:
    (under_null,), seen = bootstrap(scorer, arrays, form, None, signs, Wanted())
    if not reruns:
        return _Replicates(under_null, None, seen)
    v, noise = under_null[0], under_null[1:].mean()
    part = jnp.sqrt(jnp.maximum(1 - noise / jnp.where(v > 0, v, 1), 0))
    about = Shifted.about(part, signs, len(jax.tree.leaves(arrays)[0]))
    (of_reruns,), _ = bootstrap(scorer, arrays, form, None, about, Wanted())
    return _Replicates(under_null, of_reruns, seen)


# --- results ----------------------------------------------------------------------------------------------


class _Outcome(NamedTuple):
    v: float
    p_value: float
    autocorrelation_time: float
    replicates: np.ndarray
    remarks: tuple[str, ...]

    @classmethod
    def nothing(cls, num_replicates: int) -> "_Outcome":
        return cls(np.nan, np.nan, np.nan, np.full(num_replicates, np.nan), ())


def _outcome(
    candidate: _Candidate,
    scheme: Scheme,
    form: Form,
    discrepancy: Discrepancy,
    settings: Settings,
    found: _Replicates,
) -> _Outcome:
    """From replicates to numbers; what would be a warning or an error in a test is a remark here."""
    draws, (under_null, of_reruns, seen) = candidate.draws, found
    nothing = _Outcome.nothing(settings.num_replicates)
    values = under_null if of_reruns is None else jnp.concatenate([under_null, of_reruns])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            discrepancy._finite(values, candidate.scores, draws, "The discrepancy")
            check_varies(values[None], draws, discrepancy)
        except (ValueError, FloatingPointError) as error:
            return nothing._replace(remarks=(str(error),))
        independent = scheme.method in INDEPENDENT
        warn(seen, draws, form, method=scheme.method, assumes_independence=independent)
        warn_of_few(scheme.floor, settings.alpha, None if independent else effective_draws(scheme, draws))
    time = scheme.autocorrelation_time
    return _Outcome(
        float(under_null[0]),
        float(pvalues.p_values(under_null[None])[0, 0]),
        np.nan if time is None else time,
        nothing.replicates if of_reruns is None else np.asarray(of_reruns[1:], np.float64),
        tuple(str(warning.message) for warning in caught),
    )


def _median_of_chains(rng_key: PRNGKeyArray, outcome: _Outcome, v: Float[np.ndarray, " chains"]) -> _Outcome:
    """The median chain instead of all of them; replicates from chains drawn again, with replacement."""
    # A chain that went astray is worse than any other.
    v = np.where(np.isfinite(v), v, np.inf)
    if not np.isfinite(np.median(v)):
        return outcome._replace(v=np.nan)
    again = jax.random.choice(rng_key, len(v), (len(outcome.replicates), len(v)))
    replicates = np.median(v[np.asarray(again)], axis=1)
    return outcome._replace(v=float(np.median(v)), replicates=np.minimum(replicates, v[np.isfinite(v)].max()))


def _ranking(outcomes: Mapping[Any, _Outcome], num_draws: Mapping[Any, int], alpha: float) -> Ranking:
    # Those without a value last.
    labels = sorted(outcomes, key=lambda label: (np.isnan(outcomes[label].v), outcomes[label].v))
    found = [outcomes[label] for label in labels]
    discrepancy = np.sqrt([outcome.v for outcome in found])
    replicates = np.stack([outcome.replicates for outcome in found])
    deviations = _log_deviations(replicates)
    ends = np.quantile(deviations, [1 - alpha / 2, alpha / 2], axis=1).T
    return Ranking(
        labels=tuple(labels),
        discrepancy=discrepancy,
        interval=discrepancy[:, None] * np.exp(-ends),
        p_value=np.array([outcome.p_value for outcome in found]),
        autocorrelation_time=np.array([outcome.autocorrelation_time for outcome in found]),
        num_draws=np.array([num_draws[label] for label in labels]),
        adjusted_p_value=_adjusted_p_values(discrepancy, deviations),
        replicates=replicates,
        remarks=tuple(outcome.remarks for outcome in found),
        alpha=alpha,
    )


# Replicates whose signs all agree are zero, and have no logarithm.
_SMALLEST = 1e-6


def _log_deviations(replicates: np.ndarray) -> np.ndarray:
    """How far the logarithm of the discrepancy is off in each replicate.

    A discrepancy that is all noise is a random multiple of its scale, and one that has hardly any is about normal: the
    logarithm suits both, as neither V nor its root does.
    """
    mean = replicates.mean(axis=-1, keepdims=True)
    return 0.5 * np.log(np.maximum(replicates / np.where(mean > 0, mean, 1), _SMALLEST))


def _adjusted_p_values(discrepancy: np.ndarray, deviations: np.ndarray) -> np.ndarray:
    """For each pair, how often the largest standardised log ratio of any pair is as large by chance."""
    count, m = deviations.shape
    unknown = np.isnan(discrepancy)
    largest, observed = np.zeros(m), np.zeros((count, count))
    for k, j in itertools.combinations(np.flatnonzero(~unknown), 2):
        between = deviations[k] - deviations[j]
        mean, sd = between.mean(), between.std()
        differs = discrepancy[k] != discrepancy[j]
        if sd > 0:
            largest = np.maximum(largest, np.abs(between - mean) / sd)
            off = abs(np.log(discrepancy[k] / discrepancy[j]) - mean) / sd if differs else 0
        else:
            # Chains that do not move at all differ for certain, or not at all.
            off = np.inf if differs else 0
        observed[k, j] = observed[j, k] = off
    adjusted = (1 + m - np.searchsorted(np.sort(largest), observed)) / (1 + m)
    np.fill_diagonal(adjusted, 1)
    adjusted[unknown], adjusted[:, unknown] = np.nan, np.nan
    return adjusted
