"""Which moments are wrong, and by how much.

The mean z̄_α of each Stein feature is zero if the draws are right. Bootstrap replicates of all of them, from one pass,
give standard errors, p-values, and p-values adjusted for their number by the largest standardised mean of each
replicate. What the errors amount to in units of the target's own means, standard deviations and correlations comes
from the regression on Stein features.
"""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.tree_util import register_dataclass
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxpsd._core.checks import check_key, check_positive_integer, is_concrete
from jaxpsd._core.compiling import for_a_report
from jaxpsd._core.doubts import warn_of
from jaxpsd._core.draws import Draws
from jaxpsd._core.programs import Data, run
from jaxpsd._core.progress import showing
from jaxpsd._core.scores import Given, check_input
from jaxpsd._core.tables import html_lines, html_table, number, plain, text_table
from jaxpsd._core.types import PyTree, Target, static
from jaxpsd._discrepancies.plans import FeaturePlan
from jaxpsd._discrepancies.psd import PSD
from jaxpsd._explain.errors import ImpliedErrors, implied_errors
from jaxpsd._gof import pvalues
from jaxpsd._gof.bootstrap import Wanted, accumulate_all
from jaxpsd._gof.dependence import Dependence
from jaxpsd._gof.gof_test import check_values, doubts_of
from jaxpsd._gof.multipliers import Signs
from jaxpsd._gof.normal import Normal
from jaxpsd._gof.result import GofResult, result_of
from jaxpsd._gof.scheme import choose_bootstrap, effective_draws
from jaxpsd._gof.settings import Settings, check_several, check_weights_suit
from jaxpsd._gof.symptoms import Symptoms
from jaxpsd._stein.coordinates import Affine, Canonical, Rule, Transform, canonical, check_transform, fit, resolve
from jaxpsd._stein.fitting import score_linearity


@register_dataclass
@dataclass(frozen=True, kw_only=True, eq=False)
class MomentTable:
    """Mean Stein features and their evidence, one row for each polynomial, the strongest evidence first.

    mean
        z̄_α, zero if the draws are right; features have a variance of about one.
    standard_error
        Its standard error, autocorrelation included.
    score
        z̄_α in units of it.
    p_value
        How often chance alone gives so large a mean of this feature.
    adjusted_p_value
        How often chance alone gives so large a mean of any feature.
    errors
        What they amount to for means, standard deviations and correlations.
    linearity
        For each coordinate, the share of its score's variance that is linear in the draws: one for a Gaussian target.
    autocorrelation_time
        Of the features, in draws; None where it was not measured.
    labels
        The polynomials by their leading term, such as `beta[3]²`.
    names
        The coordinates.
    exponents
        Exponents of the leading terms, one tuple each.
    method
        The bootstrap used.
    transform_rule
        The coordinates in which polynomials were formed.
    """

    mean: Float[Array, " polynomials"]
    standard_error: Float[Array, " polynomials"]
    score: Float[Array, " polynomials"]
    p_value: Float[Array, " polynomials"]
    adjusted_p_value: Float[Array, " polynomials"]
    errors: ImpliedErrors
    linearity: Float[Array, " dim"]
    autocorrelation_time: Any
    labels: tuple[str, ...] = static()
    names: tuple[str, ...] = static()
    exponents: tuple[tuple[int, ...], ...] = static()
    method: str = static()
    transform_rule: str = static()

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, for JSON."""
        fields = ("mean", "standard_error", "score", "p_value", "adjusted_p_value")
        rows = [
            {"monomial": label, **{field: plain(getattr(self, field)[k]) for field in fields}}
            for k, label in enumerate(self.labels)
        ]
        return {
            "moments": rows,
            "errors": {field: plain(value) for field, value in self.errors._asdict().items()},
            "linearity": plain(self.linearity),
            "names": list(self.names),
            "method": self.method,
            "transform": self.transform_rule,
            "autocorrelation_time": plain(self.autocorrelation_time),
        }

    def __repr__(self) -> str:
        if not is_concrete(self.mean) or not isinstance(self.mean, jax.Array | np.ndarray) or self.mean.ndim != 1:
            return f"MomentTable({len(self.labels)} polynomials, {self.method})"
        more = [f"… and {len(self.labels) - _ROWS} more polynomials"] if len(self.labels) > _ROWS else []
        tables = [text_table(self._columns()), *more, "", text_table(self.coordinate_table())]
        return "\n".join([*tables, "", *self._remarks()])

    def _repr_html_(self) -> str:
        return html_table(self._columns()) + html_table(self.coordinate_table()) + html_lines(self._remarks())

    def _columns(self) -> dict[str, list[str]]:
        numbers = (self.mean, self.standard_error, self.p_value, self.adjusted_p_value)
        mean, error, p, adjusted = ([number(value) for value in np.asarray(values)[:_ROWS]] for values in numbers)
        return {
            "leading term": list(self.labels[:_ROWS]),
            "mean feature": mean,
            "standard error": error,
            "score": [f"{score:.1f}" for score in np.asarray(self.score)[:_ROWS]],
            "p": p,
            "adjusted p": adjusted,
        }

    def coordinate_table(self) -> dict[str, list[str]]:
        """Errors of the coordinates that are worst off: titles, and the cells below each."""
        errors, linearity = self.errors, np.asarray(self.linearity)
        off, ends = np.asarray(errors.mean_off), errors.mean_off_interval()
        cells = {"mean off by (sd)": [_with_interval(off[k], ends[:, k]) for k in range(len(off))]}
        if errors.sd_ratio is not None and (ends := errors.sd_ratio_interval()) is not None:
            ratio = np.asarray(errors.sd_ratio)
            cells["sd / true sd"] = [_with_interval(ratio[k], ends[:, k]) for k in range(len(ratio))]
        rows = self.worst_coordinates()[:_ROWS]
        columns = {
            "coordinate": [self.names[k] for k in rows],
            **{title: [column[k] for k in rows] for title, column in cells.items()},
            "linear score": [f"{float(linearity[k]):.0%}" for k in rows],
        }
        if (more := len(self.names) - len(rows)) > 0:
            for title, column in columns.items():
                column.append(f"+ {more} more" if title == "coordinate" else "")
        return columns

    def worst_coordinates(self) -> Int[np.ndarray, " dim"]:
        """Places of the coordinates by their errors, the largest first; before all, those with unknown ones."""
        found = [np.abs(np.asarray(self.errors.mean_off))]
        if self.errors.sd_ratio is not None:
            found.append(np.abs(np.log(np.asarray(self.errors.sd_ratio))))
        # Below the lowest that an error can be, where none is known.
        known = np.nan_to_num(np.stack(found), nan=-1.0).max(axis=0)
        return np.lexsort((-known, ~np.isnan(found).any(axis=0)))

    def _remarks(self) -> list[str]:
        time = "" if self.autocorrelation_time is None else f", autocorrelation time {self.autocorrelation_time:.3g}"
        remarks = [f"{len(self.labels)} Hermite polynomials, transform {self.transform_rule}; {self.method}{time}."]
        if self.transform_rule == Rule.TARGET:
            remarks.append("In the coordinates of the target, a name stands for the direction nearest to it.")
        found, right = self.errors.correlation, self.errors.true_correlation
        if found is not None and right is not None and len(found) > 1:
            # Those below the diagonal, and what is unknown, count as right.
            found, right = np.asarray(found), np.asarray(right)
            off = np.nan_to_num(np.abs(np.triu(found - right, 1)))
            if off.max() > 0:
                i, j = np.unravel_index(off.argmax(), off.shape)
                values = f"{found[i, j]:z.2f} in the draws, {right[i, j]:z.2f} by the target"
                remarks.append(f"Worst correlation: {self.names[i]} and {self.names[j]}, {values}.")
        if (unknown := self.unknown()) and (count := len(unknown)):
            some = ", ".join(unknown[:3]) + (f" and {count - 3} more" if count > 3 else "")
            remarks.append(
                f"Not known, because polynomials tell too little of such a target, from so many draws: the {some}."
            )
        return remarks

    def unknown(self) -> list[str]:
        """Means and standard deviations of which no error can be stated, in words."""
        quantities = {"mean": self.errors.mean_off, "standard deviation": self.errors.sd_ratio}
        return [
            f"{quantity} of {self.names[k]}"
            for quantity, values in quantities.items()
            if values is not None
            for k in np.flatnonzero(np.isnan(np.asarray(values)))
        ]


def _with_interval(value: float, ends: Float[np.ndarray, " 2"]) -> str:
    return "not known" if np.isnan(value) else f"{value:z.3f} ({ends[0]:z.3f} … {ends[1]:z.3f})"


# Rows to show.
_ROWS = 10


def moment_table(
    rng_key: PRNGKeyArray,
    target: Target,
    samples: PyTree,
    *,
    order: int = 2,
    interactions: bool = True,
    transform: Transform | str = "target",
    names: Sequence[str] | None = None,
    method: str = "auto",
    num_replicates: int = 1000,
    weights: ArrayLike | None = None,
    flip_probability: float | None = None,
    block_length: int | None = None,
    chains: bool | None = None,
    progress: bool = True,
) -> MomentTable:
    """Say which moments of the draws are wrong, and by how much.

    Parameters
    ----------
    rng_key, target, samples, num_replicates, weights, flip_probability, block_length, chains
        As in `gof_test`.
    order, interactions, transform
        Which polynomials to look at, and in which coordinates, as for `PSD`: Hermite polynomials, in the coordinates of
        the target unless told otherwise. Each of those is the direction that is nearest to one of the samples'.
    names
        Names of the coordinates; taken from the structure of the samples by default.
    method
        One of the bootstraps of `gof_test` by signs, "gaussian" or "auto".
    progress
        Whether a call that takes longer says what it is doing, on a terminal or in a notebook.

    Returns
    -------
    MomentTable
        Evidence against each moment, sorted; and errors of means, standard deviations and correlations.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> def logdensity(x):
    ...     return -0.5 * jnp.sum(x**2)
    >>> samples = jax.random.normal(jax.random.key(0), (2000, 2)) * jnp.array([[1.5, 1.0]])
    >>> table = jaxpsd.moment_table(jax.random.key(1), logdensity, samples, names=("mu", "tau"))
    >>> table.labels[0]
    'mu²'
    >>> print(table.errors.sd_ratio.round(1))
    [1.5 1. ]
    """
    check_key(rng_key)
    settings = Settings.checked(method, num_replicates, 0.05, flip_probability, block_length)
    settings.check_signs("moment_table", or_normal=True)
    check_weights_suit(method, weights)
    order = check_positive_integer(order, "order")
    psd = PSD(order, interactions=interactions, basis="hermite", transform=transform, form="primal")
    given = check_input(target, samples, weights, chains)
    check_several(given.draws)
    names = check_names(names, given.draws)
    with showing("moment_table", progress=progress) as show, for_a_report():
        show("regressing moments")
        table, test = make_table(rng_key, psd, given.filled_up().with_scores(), settings, names)
    warn_of(test.doubts)
    return table


def make_table(
    rng_key: PRNGKeyArray,
    psd: PSD,
    given: Given,
    settings: Settings,
    names: tuple[str, ...],
    standardized: Affine | None = None,
    dependence: Dependence | None = None,
    coordinates: Canonical | None = None,
) -> tuple[MomentTable, GofResult]:
    """The table of moments, and the test of the PSD that consists of them, on the same replicates.

    Standardised coordinates, those of the target, and how dependent the draws are, are found out unless they are known.
    """
    draws, transform = given.draws, check_transform(psd.transform)
    standardized = standardized or fit(Rule.STANDARDIZE, given)
    coordinates = coordinates or canonical(given, standardized)
    psd = replace(psd, transform=coordinates.for_tests if transform is Rule.TARGET else resolve(transform, given))
    plan = psd._plan(given, settings.num_replicates)
    scheme = choose_bootstrap(rng_key, settings, given, plan, dependence)
    columns, linearity, seen = run(_mean_features, given, plan, scheme.multipliers, standardized, seldom=True)
    psd._check_value(columns, given, "A mean Stein feature")
    evidence, values = _evidence(pvalues.on_host(columns))
    check_values(values, psd, given, "The statistic")
    doubts = (*given.doubts, *doubts_of(seen, scheme, given, plan, settings))
    effective = effective_draws(scheme, draws)
    errors = implied_errors(given, coordinates, standardized, effective, interactions=psd.interactions is not False)
    exponents = psd.exponents(draws.dim)
    if is_concrete(evidence):
        order = np.argsort(-np.abs(evidence["score"]), kind="stable")
        evidence, exponents = jax.tree.map(lambda values: np.asarray(values)[order], (evidence, exponents))
    table = MomentTable(
        **evidence,
        errors=errors,
        linearity=linearity,
        autocorrelation_time=scheme.autocorrelation_time,
        labels=tuple(_label(alpha, names) for alpha in exponents),
        names=names,
        exponents=tuple(tuple(map(int, alpha)) for alpha in exponents),
        method=scheme.method,
        transform_rule="Affine" if isinstance(transform, Affine) else str(transform),
    )
    label = f"V of order {psd.order}" + ("" if psd.interactions else ", no interactions")
    return table, result_of(values, scheme, settings, (label,)).doubted(doubts)


def check_names(names: Sequence[str] | None, draws: Draws) -> tuple[str, ...]:
    """Names of the coordinates, the user's or those of the samples' structure."""
    if names is None:
        return draws.names
    is_sequence = isinstance(names, Iterable) and not isinstance(names, Set | str)
    found = tuple(names) if is_sequence else ()
    if len(found) != draws.dim or not all(isinstance(name, str) for name in found) or len(set(found)) < len(found):
        raise ValueError(
            f"`names` must be strings in order, a different one for each of {draws.dim} coordinates; got "
            f"{found if is_sequence else names!r:.100}."
        )
    return found


def _label(exponents: Int[np.ndarray, " dim"], names: Sequence[str]) -> str:
    """A monomial as people write it: mu·tau²."""
    superscript = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
    powers = ("" if power == 1 else str(power).translate(superscript) for power in exponents)
    return "·".join(name + power for name, power, e in zip(names, powers, exponents, strict=True) if e)


# --- evidence ---------------------------------------------------------------------------------------------


def _evidence(columns: pvalues.AnyValues) -> tuple[dict[str, Any], pvalues.AnyValues]:
    """Fields of a table, from mean features and their replicates, a column each; and the squared norm of each."""
    error = (columns[:, 1:] ** 2).mean(axis=1) ** 0.5
    # A feature that is zero for every draw is no evidence.
    score = columns * (error > 0)[:, None] / (error + (error == 0))[:, None]
    extremeness = abs(score)
    evidence = {
        "mean": columns[:, 0],
        "standard_error": error,
        "score": score[:, 0],
        "p_value": pvalues.p_values(extremeness)[:, 0],
        "adjusted_p_value": pvalues.step_down(-pvalues.with_ties(extremeness)),
    }
    return evidence, (columns**2).sum(axis=0)[None]


def _mean_features(
    data: Data, plan: FeaturePlan, multipliers: Signs | Normal, standardized: Affine
) -> tuple[Float[Array, "polynomials columns"], Float[Array, " dim"], Symptoms]:
    """Mean features, observed and in each replicate; how linear each score is in the draws; and what was seen."""
    sums, seen = accumulate_all(plan.prepare(data), plan, multipliers.of_share(data.positions), Wanted(()))
    # Of the coordinates that have names, standardised for the sake of digits.
    linearity = score_linearity(replace(data, transform=standardized))
    return (sums.z if data.weights is not None else sums.z / data.num_draws), linearity, seen
