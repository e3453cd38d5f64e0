"""From the discrepancies of sample sets, and how they vary, to a ranking."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

import numpy as np

from jaxpsd._core.tables import html_table, number, plain, text_table


class Comparison(NamedTuple):
    """Two sample sets, compared.

    ratio
        The discrepancy of the first in units of that of the second.
    interval
        Where that lies with probability 1 − alpha, were both samplers run again.
    p_value
        How often two runs of equally good samplers have discrepancies that differ so much, by chance alone.
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
        """The labels whose difference to the best may be due to chance; the best is one of them."""
        rest = zip(self.labels[1:], self.adjusted_p_value[0, 1:], strict=True)
        return (self.best, *(label for label, p in rest if p > self.alpha))

    def compare(self, first: Any, second: Any) -> Comparison:
        """Compare two of the sample sets, by themselves: the p-value is not adjusted for other pairs."""
        for label in (first, second):
            if label not in self.labels:
                raise KeyError(f"There is no sample set {label!r:.100}; the labels are {self.labels!r:.100}.")
        k, j = map(self.labels.index, (first, second))
        if np.isnan(self.discrepancy[[k, j]]).any():
            raise ValueError(
                f"{first!r} or {second!r} has no discrepancy: {'; '.join(self.remarks[k] + self.remarks[j])}"
            )
        between = _log_deviations(self.replicates[k]) - _log_deviations(self.replicates[j])
        ratio = float(np.log(self.discrepancy[k] / self.discrepancy[j]))
        extreme = (np.abs(between - between.mean()) >= abs(ratio - between.mean())).sum()
        low, high = np.quantile(between, [self.alpha / 2, 1 - self.alpha / 2])
        ends = float(np.exp(ratio - high)), float(np.exp(ratio - low))
        return Comparison(float(np.exp(ratio)), ends, float((1 + extreme) / (1 + len(between))))

    def to_dict(self) -> dict[str, Any]:
        """Everything but the replicates as plain numbers, for JSON."""
        fields = ("discrepancy", "interval", "p_value", "autocorrelation_time", "num_draws")
        rows = [
            {
                "label": label if isinstance(label, str | int | float | bool) else str(label),
                **{field: plain(getattr(self, field)[k]) for field in fields},
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
        def show(*arrays: np.ndarray) -> list[str]:
            rows = np.stack(arrays, axis=1)
            return ["–" if np.isnan(row).any() else " … ".join(map(number, row)) for row in rows]

        return {
            "label": [str(label) for label in self.labels],
            "discrepancy": show(self.discrepancy),
            f"{1 - self.alpha:.0%} interval": show(*self.interval.T),
            "as good as best": ["yes" if label in self.as_good else "no" for label in self.labels],
            "p": show(self.p_value),
            "autocorrelation time": show(self.autocorrelation_time),
            "draws": [f"{count:,}" for count in self.num_draws],
        }

    def _remarks(self) -> list[str]:
        others = ", ".join(map(str, self.as_good[1:]))
        chance = f"; chance alone may explain the difference to {others}." if others else ", beyond chance."
        remarks = [f"{label}: {note}" for label, notes in zip(self.labels, self.remarks, strict=True) for note in notes]
        return [f"{self.best} has the smallest discrepancy{chance}", *remarks]


class Outcome(NamedTuple):
    v: float
    p_value: float
    autocorrelation_time: float
    replicates: np.ndarray
    remarks: tuple[str, ...]

    @classmethod
    def nothing(cls, num_replicates: int) -> "Outcome":
        return cls(np.nan, np.nan, np.nan, np.full(num_replicates, np.nan), ())


def ranking_of(outcomes: Mapping[Any, Outcome], num_draws: Mapping[Any, int], alpha: float) -> Ranking:
    # Those without a value last.
    labels = sorted(outcomes, key=lambda label: (np.isnan(outcomes[label].v), outcomes[label].v))
    v, p_value, autocorrelation_time, replicates, remarks = zip(*(outcomes[label] for label in labels), strict=True)
    discrepancy, replicates = np.sqrt(v), np.stack(replicates)
    deviations = _log_deviations(replicates)
    ends = np.quantile(deviations, [1 - alpha / 2, alpha / 2], axis=1).T
    return Ranking(
        labels=tuple(labels),
        discrepancy=discrepancy,
        interval=discrepancy[:, None] * np.exp(-ends),
        p_value=np.array(p_value),
        autocorrelation_time=np.array(autocorrelation_time),
        num_draws=np.array([num_draws[label] for label in labels]),
        adjusted_p_value=_adjust_p_values(discrepancy, deviations),
        replicates=replicates,
        remarks=remarks,
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


def _adjust_p_values(discrepancy: np.ndarray, deviations: np.ndarray) -> np.ndarray:
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
