"""A report on a set of draws: what was found, for people and programs."""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from math import prod
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxpsd._core.tables import html_table, number, plain, text_table
from jaxpsd._explain.moments import MomentTable
from jaxpsd._gof.result import GofResult


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
    quantity
        "mean", "standard deviation" or "correlation".
    error
        How far off it is: a mean in standard deviations of the target, a standard deviation as a share of the
        target's, a correlation as it is.
    """

    text: str
    score: float
    quantity: str
    error: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Report:
    """What can be said about a set of draws.

    verdict
        One sentence.
    test
        The adaptive goodness-of-fit test.
    discrepancy
        Test of the standardised PSD, of order 2 where there are draws enough: its `statistic` is the square of the
        discrepancy.
    moments
        Evidence against each moment, and what the errors amount to.
    findings
        The worst errors of means, standard deviations and correlations, the largest first.
    autocorrelation_time
        Of the Stein features, for each chain.
    effective_draws
        How many independent draws each chain is worth.
    r_hat
        Rank-normalised split R-hat of each coordinate: one where chains, and their halves, agree.
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
    r_hat: Float[np.ndarray, " dim"]
    detectable: DetectableErrors
    caveats: tuple[str, ...]
    advice: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def disagreement(self) -> Float[np.ndarray, " dim"]:
        """The name of `r_hat` in version 0.1."""
        return self.r_hat

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
            "r_hat": plain(self.r_hat),
            "detectable": self.detectable._asdict(),
            "caveats": list(self.caveats),
            "advice": list(self.advice),
        }

    def to_arviz(self) -> Any:
        """An xarray `Dataset` like that of `arviz.summary(…, fmt="xarray")`: variables with a dimension `metric`.

        The metrics are the error of the mean in standard deviations, the ratio of the standard deviation to the right
        one, both with standard errors, how linear the score is, and rank-normalised split R-hat.
        """
        try:
            import xarray
        except ImportError as error:
            error.add_note("`to_arviz` needs xarray: pip install 'jaxpsd[arviz]'.")
            raise
        errors = self.moments.errors
        unknown = np.full(len(self.r_hat), np.nan)
        metrics = {
            "mean_off": errors.mean_off,
            "mean_off_se": errors.mean_off_se,
            "sd_ratio": unknown if errors.sd_ratio is None else errors.sd_ratio,
            "sd_ratio_se": unknown if errors.sd_ratio_se is None else errors.sd_ratio_se,
            "score_linearity": self.moments.linearity,
            "r_hat": self.r_hat,
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
        labels = [
            "adaptive test",
            *(f"  {label}" for label in parts.labels),
            f"PSD{psd.labels[0].removeprefix('V')}, standardised",
        ]
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
        return columns | {"R-hat": [f"{self.r_hat[k]:.2f}" for k in rows]}

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
