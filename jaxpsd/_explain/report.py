"""A report on a set of draws: what was found, for people and programs."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxpsd._core.dimensions import NO_DIMENSIONS, Dimensions
from jaxpsd._core.origins import UNKNOWN, Origin
from jaxpsd._core.tables import html_badge, html_lines, html_table, number, plain, text_table
from jaxpsd._explain.findings import Finding
from jaxpsd._explain.moments import MomentTable
from jaxpsd._explain.relaxation import Relaxation
from jaxpsd._explain.tolerance import BSquared
from jaxpsd._gof.result import GofResult

# On which white is legible.
_GREEN, _RED, _GREY = "#1a7f37", "#b42318", "#5f6b7a"
_BADGES = {
    True: ("good enough", _GREEN),
    False: ("not good enough", _RED),
    None: ("cannot tell whether good enough", _GREY),
}


class DetectableErrors(NamedTuple):
    """The smallest errors that the test would have shown with probability 80%, in whatever direction they lie.

    It is said of near-Gaussian targets only; NaN of others.

    mean
        Of the mean of any linear combination of coordinates, in its standard deviations.
    scale
        Of the standard deviation of any of them, as a share of it.
    """

    mean: float
    scale: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Report:
    """What can be said about a set of draws.

    verdict
        Whether the draws are from the target, as far as can be told; and whether they are good enough.
    good_enough
        Whether all means and standard deviations are within the tolerance: True or False, with simultaneous intervals
        of 95%; None where it cannot be told.
    tolerance
        Standard deviations by which means, and shares by which standard deviations, may be off.
    test
        The adaptive goodness-of-fit test.
    discrepancy
        Test of the orthonormal PSD in the coordinates of the target, of order 2 where there are draws enough: its
        `statistic` is the square of the discrepancy.
    moments
        Evidence against each moment, and what the errors amount to.
    findings
        The worst errors of means, standard deviations and correlations, the largest first; where the test rejects and
        no coordinate stands out, of linear combinations of them.
    b_squared
        Squared errors of means and second moments in units of the target's variances, for each coordinate.
    relaxation
        What became of some draws that followed the target for a while; None where none did.
    autocorrelation_time
        Of the Stein features, for each chain.
    effective_draws
        How many independent draws each chain is worth by itself.
    total_effective
        How many all of them are worth together: fewer than the sum where chains disagree, or stand still.
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
    origin
        Where the draws came from.
    dimensions
        What the axes of variables, and entries along them, are called.
    """

    verdict: str
    good_enough: bool | None
    tolerance: float
    test: GofResult
    discrepancy: GofResult
    moments: MomentTable
    findings: tuple[Finding, ...]
    b_squared: BSquared
    relaxation: Relaxation | None
    autocorrelation_time: Float[np.ndarray, " chains"]
    effective_draws: Float[np.ndarray, " chains"]
    total_effective: float
    r_hat: Float[np.ndarray, " dim"]
    detectable: DetectableErrors
    caveats: tuple[str, ...]
    advice: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]]
    origin: Origin = UNKNOWN
    dimensions: Dimensions = NO_DIMENSIONS

    @property
    def disagreement(self) -> Float[np.ndarray, " dim"]:
        """The name of `r_hat` in version 0.1."""
        return self.r_hat

    @property
    def reject(self) -> bool:
        """Whether the adaptive test rejects the draws, or what became of those that were moved does."""
        return bool(self.test.reject) or (self.relaxation is not None and self.relaxation.reject)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and text, for JSON."""
        return {
            "verdict": self.verdict,
            "good_enough": self.good_enough,
            "tolerance": self.tolerance,
            "test": self.test.to_dict(),
            "discrepancy": self.discrepancy.to_dict(),
            "moments": self.moments.to_dict(),
            "findings": [finding._asdict() for finding in self.findings],
            "b_squared": {name: plain(values) for name, values in self.b_squared._asdict().items()},
            "relaxation": None if self.relaxation is None else self.relaxation.to_dict(),
            "autocorrelation_time": plain(self.autocorrelation_time),
            "effective_draws": plain(self.effective_draws),
            "total_effective": self.total_effective,
            "r_hat": plain(self.r_hat),
            "detectable": {name: plain(value) for name, value in self.detectable._asdict().items()},
            "caveats": list(self.caveats),
            "advice": list(self.advice),
            "origin": asdict(self.origin),
        }

    def to_arviz(self, dim: str = "metric") -> Any:
        """An xarray `Dataset` like that of `arviz.summary(…, fmt="xarray")`, with the dimensions of the draws.

        The metrics are the error of the mean in standard deviations, the ratio of the standard deviation to the right
        one, both with standard errors and with how far off they may be for what features do not see, how linear the
        score is, and rank-normalised split R-hat. The attribute `names` of a variable has the names of its coordinates,
        such as log tau of tau.

        Parameters
        ----------
        dim
            What to call the dimension of metrics: "summary" for ArviZ 1.x. `xarray.concat([summary, this], dim)` has
            both side by side.
        """
        errors = self.moments.errors
        unknown = np.full(len(self.r_hat), np.nan)
        metrics = {
            "mean_off": errors.mean_off,
            "mean_off_se": errors.mean_off_se,
            "mean_off_unseen": errors.mean_off_unseen,
            "sd_ratio": unknown if errors.sd_ratio is None else errors.sd_ratio,
            "sd_ratio_se": unknown if errors.sd_ratio_se is None else errors.sd_ratio_se,
            "sd_ratio_unseen": unknown if errors.sd_ratio_unseen is None else errors.sd_ratio_unseen,
            "score_linearity": self.moments.linearity,
            "r_hat": self.r_hat,
        }
        table = np.stack([np.asarray(values, np.float64) for values in metrics.values()])
        ends = np.cumsum([0, *(prod(shape) for shape in self.shapes.values())])
        places = {name: slice(*ends[k : k + 2]) for k, name in enumerate(self.shapes)}
        variables = {name: table[:, places[name]].reshape(-1, *shape) for name, shape in self.shapes.items()}
        dataset = self.dimensions.to_dataset(variables, {dim: list(metrics)})
        for name, place in places.items():
            dataset[name].attrs["names"] = list(self.moments.names[place])
        return dataset

    def __repr__(self) -> str:
        parts = [self.verdict]
        for title, body in self._sections():
            lines = text_table(body).splitlines() if isinstance(body, dict) else [f"- {line}" for line in body]
            parts += ["", title, *(f"  {line}" for line in lines)]
        return "\n".join(parts)

    def _repr_html_(self) -> str:
        found, colour = _BADGES[self.good_enough]
        badges = html_badge(found, colour) + (" " + html_badge("not from the target", _RED) if self.reject else "")
        parts = [f"<p>{badges}</p>", html_lines([self.verdict])]
        for title, body in self._sections():
            shown = html_table(body) if isinstance(body, dict) else f"<ul>{html_lines(body, 'li')}</ul>"
            parts.append(f"<h4>{title}</h4>{shown}")
        return "".join(parts)

    def _sections(self) -> list[tuple[str, Any]]:
        """Titles, each with a table or with lines."""
        sections = [
            ("Tests", self._tests()),
            ("Worst moments", [finding.text for finding in self.findings]),
            ("Coordinates", self._coordinates()),
            ("Squared errors (b²)", self._b_squared()),
            ("Draws that followed the target", self._moved()),
            ("Chains", self._chains()),
            ("To be aware of", self.caveats),
            ("What to do next", self.advice),
        ]
        return [(title, body) for title, body in sections if body]

    def _tests(self) -> dict[str, list[str]]:
        test, psd = self.test, self.discrepancy
        parts = test.parts
        assert parts is not None  # An adaptive test has parts.
        blank = [""] * (1 + len(parts.labels))
        return {
            "test": [
                "adaptive test",
                *(f"  {label}" for label in parts.labels),
                f"PSD{psd.labels[0].removeprefix('V')}, orthonormal",
            ],
            "p": [number(p) for p in (test.p_value, *np.asarray(parts.p_value), psd.p_value)],
            "value": [*blank, number(np.sqrt(psd.statistic))],
            f"by chance up to ({1 - psd.alpha:.0%})": [*blank, number(np.sqrt(psd.threshold))],
        }

    def _coordinates(self) -> dict[str, list[str]]:
        columns, names = self.moments.coordinate_table(), self.moments.names
        places = [names.index(name) if name in names else None for name in columns["coordinate"]]
        return columns | {"R-hat": ["" if k is None else f"{self.r_hat[k]:.2f}" for k in places]}

    def _b_squared(self) -> dict[str, list[str]]:
        """Largest and average over coordinates, where all are known, with intervals."""

        def cells(values: Float[np.ndarray, " dim"], ends: Float[np.ndarray, "2 dim"]) -> list[str]:
            if np.isnan(values).any():
                return ["not known"] * 2
            return [f"{number(of(values))} ({number(of(ends[0]))} … {number(of(ends[1]))})" for of in (np.max, np.mean)]

        b = self.b_squared
        return {"": ["largest", "average"], "means": cells(b.means, b.means_interval),
                "second moments": cells(b.second_moments, b.second_moments_interval)}  # fmt: skip

    def _moved(self) -> list[str]:
        moved = self.relaxation
        if moved is None:
            return []
        said = moved.statements or ("nothing moved beyond chance, which proves nothing about slow directions",)
        how = f"{moved.num_draws} draws, {moved.num_transitions} transitions of HMC, {moved.acceptance:.0%} accepted"
        return [*said[:5], f"{how}; p = {number(moved.p_value)}"]

    def _chains(self) -> dict[str, list[str]]:
        """Each chain, or where there are many the quickest, the median and the slowest; and all together."""
        times, effective = self.autocorrelation_time, self.effective_draws
        count, order = len(times), np.argsort(times, kind="stable")
        some = range(count) if count <= 8 else order[[0, count // 2, -1]]
        rows = [(str(k), times[k], effective[k]) for k in some]
        if count > 1:
            rows.append((f"all {count}", (times * effective).sum() / self.total_effective, self.total_effective))
        return {
            "chain": [name for name, _, _ in rows],
            "autocorrelation time": [number(time) for _, time, _ in rows],
            "effective draws": [f"{draws:,.0f}" for _, _, draws in rows],
        }
