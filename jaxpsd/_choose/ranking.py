"""From the discrepancies of sample sets, and how they vary, to a ranking."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jaxpsd._core.tables import html_lines, html_table, number, plain, text_table
from jaxpsd._discrepancies.psd import name_of_degree


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
        (labels, 2), where the root mean square of the discrepancies of many runs lies, with probability 1 − alpha. NaN
        where replicates do not differ, as those of draws that are all the same, and nothing is known of other runs.
    p_value
        Of the goodness-of-fit test: how often draws of the target would have so large a discrepancy.
    autocorrelation_time
        Of the Stein features, in draws.
    num_draws
        How many draws each set has.
    adjusted_p_value
        (labels, labels), of the difference between any two sets, adjusted for the number of pairs: of all sets, or,
        where both can be compared, of those that can.
    parts
        (labels, degrees), √V of each degree, whose squares sum to V, of all chains together; None where the discrepancy
        is not a PSD of Hermite polynomials.
    replicates
        (labels, num_replicates), V as it might be in other runs.
    comparable
        Whether each set is worth enough draws to be compared with others. Of one that is not, no more can be said than
        that it is worse.
    remarks
        For each set what makes its results doubtful, or why it has none.
    alpha
        The level of intervals and comparisons.
    good_enough
        Whether all means and standard deviations of each set are within the tolerance: True or False, with simultaneous
        intervals of 95%, None where it cannot be told. None for all where no tolerance was given.
    tolerance
        Standard deviations by which means, and shares by which standard deviations, may be off; None where none was
        given.
    pareto_k
        The shape of the tail of importance weights, NaN where the density of an approximation is not known; None where
        none was asked for. See `compare_approximations`.
    """

    labels: tuple[Any, ...]
    discrepancy: np.ndarray
    interval: np.ndarray
    p_value: np.ndarray
    autocorrelation_time: np.ndarray
    num_draws: np.ndarray
    adjusted_p_value: np.ndarray
    parts: np.ndarray | None
    replicates: np.ndarray
    comparable: np.ndarray
    remarks: tuple[tuple[str, ...], ...]
    alpha: float
    good_enough: tuple[bool | None, ...] | None = None
    tolerance: float | None = None
    pareto_k: np.ndarray | None = None

    @property
    def best(self) -> Any:
        """The label with the smallest discrepancy, of the sets that can be compared; of all if none can."""
        return self.labels[self._first]

    @property
    def as_good(self) -> tuple[Any, ...]:
        """The labels whose difference to the best may be due to chance; the best is one of them, and comes first."""
        return (self.best, *(label for label in self._labels_that_are(True) if label != self.best))

    @property
    def undecided(self) -> tuple[Any, ...]:
        """The labels of sets that may be as good as the best, or better, or worse: they are worth too few draws."""
        return self._labels_that_are(None)

    @property
    def _first(self) -> int:
        """Where the best is; argmax finds the first that is true, or the first of all."""
        return int(np.argmax(self.comparable))

    def _labels_that_are(self, as_good: bool | None) -> tuple[Any, ...]:
        return tuple(label for label, each in zip(self.labels, self._verdicts(), strict=True) if each is as_good)

    def _verdicts(self) -> list[bool | None]:
        """Whether each set is as good as the best; None where that cannot be told."""
        first, told = self._first, self.adjusted_p_value[self._first] <= self.alpha
        larger = self.discrepancy > self.discrepancy[first]

        def verdict(k: int) -> bool | None:
            if k == first:
                return True
            if np.isnan(self.discrepancy[k]) or (told[k] and larger[k]):
                return False
            return True if self.comparable[[k, first]].all() else None

        return [verdict(k) for k in range(len(self.labels))]

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
        """Everything but the replicates as plain numbers, for JSON; None for what is not known."""
        fields = ("discrepancy", "interval", "p_value", "autocorrelation_time", "num_draws")
        rows = [
            {
                "label": label if isinstance(label, str | int | float | bool) else str(label),
                **{field: plain(getattr(self, field)[k]) for field in fields},
                "parts": None if self.parts is None else plain(self.parts[k]),
                "as_good_as_best": verdict,
                **({} if self.good_enough is None else {"good_enough": self.good_enough[k]}),
                **({} if self.pareto_k is None else {"pareto_k": plain(self.pareto_k[k])}),
                "adjusted_p_values": plain(self.adjusted_p_value[k]),
                "remarks": list(self.remarks[k]),
            }
            for k, (label, verdict) in enumerate(zip(self.labels, self._verdicts(), strict=True))
        ]
        asked = {} if self.tolerance is None else {"tolerance": self.tolerance}
        return {"ranking": rows, "alpha": self.alpha, **asked}

    def __repr__(self) -> str:
        return "\n".join([text_table(self._columns()), "", *self._remarks()])

    def _repr_html_(self) -> str:
        return html_table(self._columns()) + html_lines(self._remarks())

    def _columns(self) -> dict[str, list[str]]:
        def show(*arrays: np.ndarray) -> list[str]:
            rows = np.stack(arrays, axis=1)
            return ["–" if np.isnan(row).any() else " … ".join(map(number, row)) for row in rows]

        def say(verdicts: Iterable[bool | None]) -> list[str]:
            return [{True: "yes", False: "no", None: "unknown"}[each] for each in verdicts]

        judged = {} if self.good_enough is None else {"good enough": say(self.good_enough)}
        tails = {} if self.pareto_k is None else {"Pareto k̂": show(self.pareto_k)}
        by_degree = {} if self.parts is None else {"by degree": [say_parts(parts) for parts in self.parts]}
        return {
            "label": [str(label) for label in self.labels],
            "discrepancy": show(self.discrepancy),
            **by_degree,
            f"{1 - self.alpha:.0%} interval": show(*self.interval.T),
            "as good as best": say(self._verdicts()),
            **judged,
            **tails,
            "p": show(self.p_value),
            "autocorrelation time": show(self.autocorrelation_time),
            "draws": [f"{count:,}" for count in self.num_draws],
        }

    def _remarks(self) -> list[str]:
        remarks = [f"{label}: {note}" for label, notes in zip(self.labels, self.remarks, strict=True) for note in notes]
        return [self._summary(), *remarks]

    def _summary(self) -> str:
        if np.isfinite(self.discrepancy).sum() == 1:
            return f"{self.best} is the only set with a discrepancy."
        others, unknown = (", ".join(map(str, some)) for some in (self.as_good[1:], self.undecided))
        summary = f"{self.best} has the smallest discrepancy"
        if self._first > 0:
            summary += " of the sets that can be compared"
        if others:
            summary += f"; chance alone may explain the difference to {others}"
        elif False in self._verdicts():
            summary += ", beyond chance"
        return f"{summary}. It cannot be told whether {unknown} is as good." if unknown else f"{summary}."


def say_parts(parts: np.ndarray) -> str:
    """What each degree has: means 0.02, scales 0.31; a dash where that is not known."""
    said = (f"{name_of_degree(degree)} {number(part)}" for degree, part in enumerate(parts, 1))
    return "–" if np.isnan(parts).any() else ", ".join(said)


class Outcome(NamedTuple):
    """What is known of one set: V, and fields as in `Ranking`."""

    v: float
    parts: np.ndarray
    p_value: float
    autocorrelation_time: float
    replicates: np.ndarray
    comparable: bool
    remarks: tuple[str, ...]

    @classmethod
    def nothing(cls, num_replicates: int) -> "Outcome":
        """Of a set that has no result."""
        return cls(np.nan, np.zeros(0), np.nan, np.nan, np.full(num_replicates, np.nan), False, ())


def ranking_of(
    outcomes: Mapping[Any, Outcome],
    num_draws: Mapping[Any, int],
    alpha: float,
    good_enough: Mapping[Any, bool | None] | None = None,
    tolerance: float | None = None,
) -> Ranking:
    """A ranking of sets by V, those without one last; outcomes and what else is given are by label."""
    labels = sorted(outcomes, key=lambda label: (np.isnan(outcomes[label].v), outcomes[label].v))
    columns = zip(*(outcomes[label] for label in labels), strict=True)
    v, parts, p_value, autocorrelation_time, replicates, comparable, remarks = columns
    discrepancy, replicates, comparable = np.sqrt(v), np.stack(replicates), np.array(comparable)
    deviations = _log_deviations(replicates)
    ends = np.quantile(deviations, [1 - alpha / 2, alpha / 2], axis=1).T
    ends[np.ptp(replicates, axis=1) == 0] = np.nan
    return Ranking(
        labels=tuple(labels),
        discrepancy=discrepancy,
        interval=discrepancy[:, None] * np.exp(-ends),
        p_value=np.array(p_value),
        autocorrelation_time=np.array(autocorrelation_time),
        num_draws=np.array([num_draws[label] for label in labels]),
        adjusted_p_value=_adjust_p_values(discrepancy, deviations, comparable),
        parts=_stack_parts(parts),
        replicates=replicates,
        comparable=comparable,
        remarks=remarks,
        alpha=alpha,
        good_enough=None if good_enough is None else tuple(good_enough[label] for label in labels),
        tolerance=tolerance,
    )


def _stack_parts(parts: Sequence[np.ndarray]) -> np.ndarray | None:
    """A row for each set, NaN for those without a value; None if there are no parts."""
    count = max(map(len, parts))
    return np.stack([each if len(each) else np.full(count, np.nan) for each in parts]) if count else None


# What is zero has no logarithm.
_SMALLEST = 1e-6


def _log_deviations(replicates: np.ndarray) -> np.ndarray:
    """How far the logarithm of the discrepancy is off in each replicate.

    A discrepancy that is all noise is a random multiple of its scale, and one that has hardly any is about normal: the
    logarithm suits both, as neither V nor its root does.
    """
    mean = replicates.mean(axis=-1, keepdims=True)
    return 0.5 * np.log(np.maximum(replicates / np.where(mean > 0, mean, 1), _SMALLEST))


def _adjust_p_values(discrepancy: np.ndarray, deviations: np.ndarray, comparable: np.ndarray) -> np.ndarray:
    """For each pair, how often the largest standardised log ratio of any pair is as large by chance.

    Sets that can be compared are adjusted for pairs of their own: they are not to suffer from others, whose replicates
    are not to be relied on.
    """
    count, m = deviations.shape
    unknown = np.isnan(discrepancy)
    both = comparable[:, None] & comparable[None]
    # Of pairs of sets that can be compared, and of all.
    largest, observed = {True: np.zeros(m), False: np.zeros(m)}, np.zeros((count, count))
    for k, j in itertools.combinations(np.flatnonzero(~unknown), 2):
        between = deviations[k] - deviations[j]
        mean, sd = between.mean(), between.std()
        differs = discrepancy[k] != discrepancy[j]
        if sd > 0:
            size = np.abs(between - mean) / sd
            for family in {bool(both[k, j]), False}:
                largest[family] = np.maximum(largest[family], size)
            off = abs(np.log(discrepancy[k] / discrepancy[j]) - mean) / sd if differs else 0
        else:
            # Chains that do not move at all differ for certain, or not at all.
            off = np.inf if differs else 0
        observed[k, j] = observed[j, k] = off
    among, overall = (1 + m - np.searchsorted(np.sort(largest[family]), observed) for family in (True, False))
    adjusted = np.where(both, among, overall) / (1 + m)
    np.fill_diagonal(adjusted, 1)
    adjusted[unknown], adjusted[:, unknown] = np.nan, np.nan
    return adjusted
