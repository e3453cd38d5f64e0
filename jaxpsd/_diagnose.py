"""Everything at a glance: a report on a set of draws."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import prod
from statistics import NormalDist
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float, PRNGKeyArray

from jaxpsd._adaptive import adaptive_test
from jaxpsd._autocorrelation import times_by_chain
from jaxpsd._checks import check_key, is_concrete
from jaxpsd._correction import can_regress
from jaxpsd._discrepancy import check_input
from jaxpsd._draws import Draws, ravel
from jaxpsd._gof import GofResult
from jaxpsd._moments import TRUSTED, MomentTable, checked_names, tabulated
from jaxpsd._monomials import num_monomials
from jaxpsd._psd import PSD
from jaxpsd._score import check_finite_draws, scores_of
from jaxpsd._settings import Settings, check_several
from jaxpsd._tables import html_table, number, plain, text_table
from jaxpsd._types import PyTree, Target
from jaxpsd._warnings import PrecisionWarning

# An error of a moment stands out where it is more than so many times what chance makes of it.
_STANDS_OUT = 3.5

# Fewer effective draws than this tell next to nothing.
_FEWEST = 20

# Split R-hat above this means that chains, or their halves, disagree.
_AGREEMENT = 1.05

# The first tenth of a chain is burn-in if its mean is off by more than so many standard errors.
_BURN_IN = 5

# Probability with which the smallest detectable error would have been detected.
_POWER = 0.8

_BLIND = (
    "A mode that no draw has visited cannot be seen by any method that knows the target through its score: start "
    "chains far apart."
)


class DetectableErrors(NamedTuple):
    """The smallest errors that would have been detected with probability 80%, about.

    mean
        Of a mean, in standard deviations.
    scale
        Of a standard deviation, as a share of it.
    """

    mean: float
    scale: float


class Finding(NamedTuple):
    """An error of a moment.

    text
        What is wrong, in words.
    score
        How large it is in units of what chance makes of it.
    """

    text: str
    score: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Report:
    """What can be said about a set of draws.

    verdict
        One sentence.
    test
        The adaptive goodness-of-fit test.
    discrepancy
        Test of the standardised PSD of order 2: its `statistic` is the square of the discrepancy.
    moments
        Evidence against each moment, and what the errors amount to.
    findings
        The worst errors of means, standard deviations and correlations, the largest first.
    autocorrelation_time
        Of the Stein features, for each chain.
    effective_draws
        How many independent draws each chain is worth.
    disagreement
        Split R-hat of each coordinate: one where chains, and their halves, agree.
    detectable
        The smallest errors that these draws could have shown.
    caveats
        What makes these results doubtful.
    advice
        What to do next.
    shapes
        The variables of a draw, and their shapes.
    """

    verdict: str
    test: GofResult
    discrepancy: GofResult
    moments: MomentTable
    findings: tuple[Finding, ...]
    autocorrelation_time: Float[np.ndarray, " chains"]
    effective_draws: Float[np.ndarray, " chains"]
    disagreement: Float[np.ndarray, " dim"]
    detectable: DetectableErrors
    caveats: tuple[str, ...]
    advice: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def reject(self) -> bool:
        """Whether the adaptive test rejects the draws."""
        return bool(self.test.reject)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and text, for JSON."""
        return {
            "verdict": self.verdict,
            "test": self.test.to_dict(),
            "discrepancy": self.discrepancy.to_dict(),
            "moments": self.moments.to_dict(),
            "findings": [finding._asdict() for finding in self.findings],
            "autocorrelation_time": plain(self.autocorrelation_time),
            "effective_draws": plain(self.effective_draws),
            "disagreement": plain(self.disagreement),
            "detectable": self.detectable._asdict(),
            "caveats": list(self.caveats),
            "advice": list(self.advice),
        }

    def to_arviz(self) -> Any:
        """An xarray `Dataset` like that of `arviz.summary(…, fmt="xarray")`: variables with a dimension `metric`.

        The metrics are the error of the mean in standard deviations, the ratio of the standard deviation to the right
        one, both with standard errors, how linear the score is, and split R-hat.
        """
        try:
            import xarray
        except ImportError as error:
            error.add_note("`to_arviz` needs xarray: pip install 'jaxpsd[arviz]'.")
            raise
        errors = self.moments.errors
        unknown = np.full(len(self.disagreement), np.nan)
        metrics = {
            "mean_error": errors.mean,
            "mean_error_se": errors.mean_error,
            "sd_ratio": unknown if errors.scale is None else errors.scale,
            "sd_ratio_se": unknown if errors.scale_error is None else errors.scale_error,
            "score_linearity": self.moments.linearity,
            "r_hat_split": self.disagreement,
        }
        table = np.stack([np.asarray(values, np.float64) for values in metrics.values()])
        variables, start = {}, 0
        for name, shape in self.shapes.items():
            size = prod(shape)
            dims = ["metric", *(f"{name}_dim_{k}" for k in range(len(shape)))]
            variables[name] = (dims, table[:, start : start + size].reshape(-1, *shape))
            start += size
        return xarray.Dataset(variables, {"metric": list(metrics)})

    def __repr__(self) -> str:
        parts = [self.verdict]
        for title, body in self._sections():
            lines = text_table(body).splitlines() if isinstance(body, dict) else [f"- {line}" for line in body]
            parts += ["", title, *(f"  {line}" for line in lines)]
        return "\n".join(parts)

    def _repr_html_(self) -> str:
        parts = [f"<p><b>{escape(self.verdict)}</b></p>"]
        for title, body in self._sections():
            lines = () if isinstance(body, dict) else body
            items = "".join(f"<li>{escape(line)}</li>" for line in lines)
            parts.append(f"<h4>{title}</h4>" + (html_table(body) if isinstance(body, dict) else f"<ul>{items}</ul>"))
        return "".join(parts)

    def _sections(self) -> list[tuple[str, Any]]:
        """Titles, each with a table or with lines."""
        return [
            (title, body)
            for title, body in (
                ("Tests", self._tests()),
                ("Worst moments", [finding.text for finding in self.findings]),
                ("Coordinates", self._coordinates()),
                ("Chains", self._chains()),
                ("To be aware of", self.caveats),
                ("What to do next", self.advice),
            )
            if body
        ]

    def _tests(self) -> dict[str, list[str]]:
        test, psd = self.test, self.discrepancy
        parts = test.parts
        assert parts is not None  # An adaptive test has parts.
        labels = ["adaptive test", *(f"  {label}" for label in parts.labels), "PSD of order 2, standardised"]
        p_values = [float(test.p_value), *map(float, parts.p_value), float(psd.p_value)]
        value, chance = np.sqrt(float(psd.statistic)), np.sqrt(float(psd.threshold))
        blank = [""] * (1 + len(parts.labels))
        return {
            "test": labels,
            "p": [number(p) for p in p_values],
            "value": [*blank, number(value)],
            f"by chance up to ({1 - psd.alpha:.0%})": [*blank, number(chance)],
        }

    def _coordinates(self) -> dict[str, list[str]]:
        columns = self.moments.coordinate_table()
        position = {name: k for k, name in enumerate(self.moments.names)}
        rows = [position[name] for name in columns["coordinate"]]
        return columns | {"split R-hat": [f"{self.disagreement[k]:.2f}" for k in rows]}

    def _chains(self) -> dict[str, list[str]]:
        """Each chain, or where there are many the quickest, the median and the slowest."""
        order = np.argsort(self.autocorrelation_time, kind="stable")
        some = np.arange(len(order)) if len(order) <= 8 else order[[0, len(order) // 2, -1]]
        names = [str(k) for k in some]
        columns = {
            "chain": names,
            "autocorrelation time": [number(self.autocorrelation_time[k]) for k in some],
            "effective draws": [f"{self.effective_draws[k]:,.0f}" for k in some],
        }
        if len(order) > 1:
            total = {
                "chain": f"all {len(order)}",
                "autocorrelation time": number(self.autocorrelation_time.max()),
                "effective draws": f"{self.effective_draws.sum():,.0f}",
            }
            columns = {title: [*cells, total[title]] for title, cells in columns.items()}
        return columns


def diagnose(
    rng_key: PRNGKeyArray,
    target: Target,
    samples: PyTree,
    *,
    names: Sequence[str] | None = None,
    alpha: float = 0.05,
    num_replicates: int = 1000,
    weights: ArrayLike | None = None,
    chains: bool | None = None,
) -> Report:
    """Say how good a set of draws is, what is wrong with it, and what to do.

    Parameters
    ----------
    rng_key, target, samples, alpha, num_replicates, weights, chains
        As in `gof_test`.
    names
        Names of the coordinates; taken from the structure of the samples by default.

    Returns
    -------
    Report
        A verdict in one sentence, and what it rests on. It prints as text, shows as tables in a notebook, and goes to
        JSON by `to_dict`.

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
    These draws are not from the target (p = 0.00...): the standard deviation of tau is 0.60 times the target's.
    """
    check_key(rng_key)
    settings = Settings.checked("auto", num_replicates, alpha, None, None)
    with warnings.catch_warnings():
        # The test below says it again, into the report.
        warnings.simplefilter("ignore", PrecisionWarning)
        target, draws, weights = check_input(target, samples, weights, chains)
    check_several(draws)
    names = checked_names(names, draws)
    if not is_concrete(draws, target, weights):
        raise ValueError("`diagnose` looks at values and cannot be traced; call it outside `jit` and `vmap`.")
    target = scores_of(target, draws)
    check_finite_draws(draws, target)
    scores = Draws(target, draws.num_chains)
    order, interactions = _features(draws, weighted=weights is not None)
    psd = PSD(order, interactions=interactions, transform="standardize", form="primal")
    test_key, table_key = jax.random.split(rng_key)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        test = adaptive_test(test_key, scores, draws, alpha=alpha, weights=weights, num_replicates=num_replicates)
        table, discrepancy = tabulated(table_key, psd, target, draws, weights, settings, names)
    times = _times(target, draws, psd)
    effective = draws.num_draws / draws.num_chains / times
    x = np.asarray(ravel(draws.positions), np.float64).reshape(draws.num_chains, -1, draws.dim)
    disagreement = _split_r_hat(x)
    total = float(effective.sum())
    detectable = _detectable(total, num_monomials(draws.dim, order, interactions=interactions), alpha)
    findings = _findings(table, total)
    facts = _Facts(
        draws, names, test, table, findings, times, total, disagreement, _burn_in(x, times), detectable,
        tuple(dict.fromkeys(str(warning.message) for warning in caught)),
    )  # fmt: skip
    return Report(
        verdict=_verdict(facts),
        test=test,
        discrepancy=discrepancy,
        moments=table,
        findings=findings,
        autocorrelation_time=times,
        effective_draws=effective,
        disagreement=disagreement,
        detectable=detectable,
        caveats=_caveats(facts),
        advice=_advice(facts),
        shapes=draws.shapes,
    )


def _features(draws: Draws, *, weighted: bool) -> tuple[int, bool]:
    """Order and interactions of the moments to look at: as many as can be regressed on."""
    for order, interactions in ((2, True), (2, False)):
        count = num_monomials(draws.dim, order, interactions=interactions)
        if can_regress(count, draws.num_draws, weighted=weighted):
            return order, interactions
    return 1, False


# --- what is looked at beside tests and moments -----------------------------------------------------------


def _times(scores: PyTree, draws: Draws, psd: PSD) -> Float[np.ndarray, " chains"]:
    if draws.num_draws == draws.num_chains:
        return np.ones(draws.num_chains)
    return times_by_chain(scores, draws, psd._form(draws, None))


def _split_r_hat(x: Float[np.ndarray, "chains draws dim"]) -> Float[np.ndarray, " dim"]:
    """Variance of all draws over that within halves of chains, as a ratio of standard deviations (Gelman et al.)."""
    half = x.shape[1] // 2
    if half < 2:
        return np.ones(x.shape[2])
    halves = np.concatenate([x[:, :half], x[:, -half:]])
    within = halves.var(axis=1, ddof=1).mean(axis=0)
    between = halves.mean(axis=1).var(axis=0, ddof=1)
    # A coordinate that does not move agrees with itself, unless it stands still in different places.
    ratio = np.where(within > 0, between / np.where(within > 0, within, 1), np.where(between > 0, np.inf, 1 / half))
    return np.sqrt((half - 1) / half + ratio)


def _burn_in(x: Float[np.ndarray, "chains draws dim"], times: Float[np.ndarray, " chains"]) -> int | None:
    """The coordinate whose first tenth is farthest from the rest, if it is too far."""
    start = x.shape[1] // 10
    if start < 10:
        return None
    first, rest = x[:, :start], x[:, start:]
    sd = rest.std(axis=(0, 1))
    error = sd * np.sqrt(times.max() / (first.shape[0] * start))
    off = np.abs(first.mean(axis=(0, 1)) - rest.mean(axis=(0, 1))) / np.where(error > 0, error, np.inf)
    return int(off.argmax()) if off.max() > _BURN_IN else None


def _detectable(effective: float, num_features: int, alpha: float) -> DetectableErrors:
    """From the normal limit: mean features whose number tells how large the largest of them is by chance."""
    normal = NormalDist()
    times_error = normal.inv_cdf(1 - alpha / (2 * num_features)) + normal.inv_cdf(_POWER)
    # The variance of n independent standard normal draws' mean is 1/n; that of the log of their sd, 1/(2n).
    return DetectableErrors(times_error / effective**0.5, times_error / (2 * effective) ** 0.5)


def _findings(table: MomentTable, effective: float, most: int = 5) -> tuple[Finding, ...]:
    """Errors of means, standard deviations and correlations that chance does not explain, the largest first."""
    errors, names = table.errors, table.names

    def score(off: np.ndarray, by_chance: float, error: Any) -> np.ndarray:
        """In units of what chance and the uncertainty of the correction make of it; zero where it is not known."""
        scores = np.abs(off) / np.hypot(by_chance, np.asarray(error, np.float64))
        return np.where(np.isfinite(scores), scores, 0)

    off = np.asarray(errors.mean, np.float64)
    by_size = score(off, effective**-0.5, errors.mean_error)
    found = [
        Finding(
            f"the mean of {name} is {abs(off[k]):.2f} standard deviations too {'high' if off[k] > 0 else 'low'}",
            float(by_size[k]),
        )
        for k, name in enumerate(names)
    ]
    if errors.scale is not None:
        ratio = np.asarray(errors.scale, np.float64)
        by_size = score(np.log(ratio), (2 * effective) ** -0.5, np.asarray(errors.scale_error) / ratio)
        found += [
            Finding(f"the standard deviation of {name} is {ratio[k]:.2f} times the target's", float(by_size[k]))
            for k, name in enumerate(names)
        ]
    if errors.correlation is not None and errors.true_correlation is not None:
        drawn, right = (
            np.clip(np.asarray(matrix, np.float64), -0.999, 0.999)
            for matrix in (errors.correlation, errors.true_correlation)
        )
        # Fisher's transform, whose variance does not depend on the correlation.
        off = np.triu(np.arctanh(drawn) - np.arctanh(right), 1)
        by_size = score(off, effective**-0.5, np.asarray(errors.correlation_error) / (1 - right**2))
        for flat in np.argsort(-by_size, axis=None)[:most]:
            i, j = np.unravel_index(flat, off.shape)
            if i < j:
                text = (
                    f"the correlation of {names[i]} and {names[j]} is {drawn[i, j]:.2f} and should be {right[i, j]:.2f}"
                )
                found.append(Finding(text, float(by_size[i, j])))
    found = [finding for finding in found if finding.score > _STANDS_OUT]
    return tuple(sorted(found, key=lambda finding: -finding.score)[:most])


# --- words ------------------------------------------------------------------------------------------------


class _Facts(NamedTuple):
    """What the words are made of."""

    draws: Draws
    names: tuple[str, ...]
    test: GofResult
    table: MomentTable
    findings: tuple[Finding, ...]
    times: Float[np.ndarray, " chains"]
    effective: float
    disagreement: Float[np.ndarray, " dim"]
    burn_in: int | None
    detectable: DetectableErrors
    warnings: tuple[str, ...]

    @property
    def disagrees(self) -> bool:
        return bool(self.disagreement.max() > _AGREEMENT)

    @property
    def least_linear(self) -> float:
        return float(np.min(self.table.linearity))

    @property
    def too_few(self) -> bool:
        return self.effective < _FEWEST or float(self.test.p_value_floor) > self.test.alpha


def _verdict(facts: _Facts) -> str:
    p = f"p = {number(float(facts.test.p_value))}"
    if bool(facts.test.reject):
        if facts.findings:
            return f"These draws are not from the target ({p}): {facts.findings[0].text}."
        return (
            f"These draws are not from the target ({p}), although no mean, standard deviation or correlation stands "
            "out: look at skewness and tails."
        )
    if facts.too_few:
        return f"Too few effective draws (about {facts.effective:.0f}) to say whether they are from the target ({p})."
    if facts.disagrees:
        worst = facts.names[int(facts.disagreement.argmax())]
        return (
            f"No moment is clearly wrong ({p}), but chains or their halves disagree about {worst} (split R-hat "
            f"{facts.disagreement.max():.2f})."
        )
    return f"Nothing wrong was found ({p}). {_would_have_shown(facts.detectable)}"


def _would_have_shown(detectable: DetectableErrors) -> str:
    return (
        f"A mean off by {detectable.mean:.2g} standard deviations, or a standard deviation off by "
        f"{detectable.scale:.0%}, would probably have shown."
    )


def _caveats(facts: _Facts) -> tuple[str, ...]:
    caveats = list(facts.warnings)
    if facts.least_linear < TRUSTED:
        worst = facts.names[int(np.argmin(facts.table.linearity))]
        caveats.append(
            f"The target is far from Gaussian: only {facts.least_linear:.0%} of the score of {worst} is linear in the "
            "draws. The test holds, but errors of moments are rough, and some errors may not show."
        )
    if bool(facts.test.reject):
        caveats.append(f"{_would_have_shown(facts.detectable)} Smaller errors may be there too.")
    return (*caveats, _BLIND)


def _advice(facts: _Facts) -> tuple[str, ...]:
    advice = []
    if facts.burn_in is not None:
        advice.append(
            f"Discard more of the beginning: the first tenth differs from the rest, most clearly in "
            f"{facts.names[facts.burn_in]}."
        )
    if facts.disagrees:
        advice.append("Run chains longer, from starts far apart, until they agree.")
    if facts.too_few:
        advice.append(f"Draw at least {max(2, np.ceil(100 / max(facts.effective, 1))):.0f} times as many draws.")
    elif not bool(facts.test.reject) and facts.detectable.mean > 0.1:
        times = (facts.detectable.mean / 0.1) ** 2
        advice.append(f"To see a mean off by 0.1 standard deviations takes about {times:.1f} times as many draws.")
    if bool(facts.test.reject):
        advice.append(_remedy(facts))
    if facts.times.min() > 10 and facts.draws.num_draws > 10_000:
        advice.append(f"Keeping every {facts.times.min() / 2:.0f}th draw would lose little.")
    if facts.least_linear < TRUSTED:
        advice.append("Plot marginal scores against draws (`jaxpsd.plots.marginal_scores`), or reparameterise.")
    return tuple(advice)


def _remedy(facts: _Facts) -> str:
    scale = facts.table.errors.scale
    trust = "" if float(facts.table.errors.explained) < TRUSTED else (
        " `corrected_expectation` estimates expectations under the target from these draws meanwhile."
    )  # fmt: skip
    if scale is not None and any("deviation of" in finding.text for finding in facts.findings):
        if float(np.nanmean(np.log(np.asarray(scale)))) < 0:
            return f"Draws are too narrow: a richer approximation, or chains that move farther.{trust}"
        return f"Draws are too wide: a smaller step size, larger mini-batches, or an accept step.{trust}"
    return f"Use a sampler without bias, or less of it, such as a smaller step size.{trust}"
