"""What a report states, in numbers and in words.

`stated` has the numbers with their intervals, `understand` what a sentence claims, `understand_move` what a sentence
says of moved draws. Where a library's fields or wording change, this is what to adapt.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxpsd import Report


class Stated(NamedTuple):
    """Errors of a quantity, one for each coordinate, and ends (2, dim) of 95% intervals; NaN is "not known"."""

    value: np.ndarray
    ends: np.ndarray


def stated(report: Report) -> dict[str, Stated]:
    """Errors of means in standard deviations, and logarithms of ratios of standard deviations."""
    errors = report.moments.errors
    found = {"mean": Stated(np.asarray(errors.mean_off, np.float64), errors.mean_off_interval())}
    unknown = np.full_like(found["mean"].ends, np.nan)
    ends, ratio = errors.sd_ratio_interval(), errors.sd_ratio
    found["sd"] = (
        Stated(unknown[0], unknown)
        if ends is None or ratio is None
        else Stated(np.log(np.asarray(ratio, np.float64)), np.log(ends))
    )
    return found


_VERDICTS = {
    "These draws are not from the target": "not from the target",
    "Too few effective draws": "too few",
    "No moment is clearly wrong": "chains disagree",
    "Nothing wrong was found": "nothing wrong",
}
NOT_KNOWN = "what it amounts to is not known"
NOTHING_STANDS_OUT = "in no mean, standard deviation or correlation by more than chance would"


class Verdict(NamedTuple):
    """A verdict taken apart.

    kind
        "not from the target", "too few", "chains disagree" or "nothing wrong".
    named
        What is said to be wrong, or to show it.
    judgement
        Whether the draws are good enough, and why.
    """

    kind: str
    named: str
    judgement: str


def understand_verdict(text: str) -> Verdict:
    kind = next((kind for start, kind in _VERDICTS.items() if text.startswith(start)), "not understood")
    found = re.fullmatch(r"(.+?)\. ((?:They are|Whether they are) .+)", text)
    first, judgement = found.groups() if found else (text, "")
    named = first.split("): ", 1)[1] if kind == "not from the target" and "): " in first else ""
    return Verdict(kind, named, judgement)


class Claim(NamedTuple):
    """An error, as words say it.

    quantity
        "mean", "standard deviation" or "correlation".
    of
        Coefficients of a linear combination; for a correlation, the two coordinates.
    value
        Error of a mean in standard deviations, log ratio of standard deviations, or what the correlation should be.
    ends
        The interval as printed, and what its digits leave open.
    """

    quantity: str
    of: np.ndarray
    value: float
    ends: tuple[float, float]

    @property
    def about(self) -> str:
        is_combination = self.quantity != "correlation" and int(np.count_nonzero(self.of)) > 1
        return self.quantity + " of a combination" * is_combination


# What two decimals leave open.
_DIGITS = 0.005
_NUMBER = r"(-?\d+\.\d+|inf)"
_WITH_INTERVAL = rf"{_NUMBER} \({_NUMBER} … {_NUMBER}\)"


def understand(text: str, names: Sequence[str]) -> Claim | None:
    """The error that a sentence states; None for one that states none, or is not understood."""
    if found := re.search(rf"correlation of (\S+) and (\S+) is {_NUMBER} and should be {_WITH_INTERVAL}", text):
        one, other, _, right, low, high = found.groups()
        pair = np.array([names.index(one), names.index(other)])
        return Claim("correlation", pair, float(right), (float(low) - _DIGITS, float(high) + _DIGITS))
    if found := re.search(rf"mean of (.+?) is {_WITH_INTERVAL} standard deviations too (high|low)", text):
        value, low, high = map(float, found.groups()[1:4])
        low, high = low - _DIGITS, high + _DIGITS
        of = _combination(found[1], names)
        return Claim("mean", of, value, (low, high)) if found[5] == "high" else Claim("mean", of, -value, (-high, -low))
    if found := re.search(rf"standard deviation of (.+?) is {_WITH_INTERVAL} times the target's", text):
        value, low, high = map(float, found.groups()[1:4])
        ends = (np.log(max(low - _DIGITS, 1e-9)), np.log(high + _DIGITS))
        return Claim("standard deviation", _combination(found[1], names), np.log(max(value, _DIGITS)), ends)
    return None


class Move(NamedTuple):
    """What became of draws that were moved, as words say it: no claim of an error.

    quantity
        "mean" or "standard deviation".
    of
        The coordinate.
    change
        Of the mean, in standard deviations, or of the logarithm of the standard deviation.
    """

    quantity: str
    of: int
    change: float


def understand_move(text: str, names: Sequence[str]) -> Move | None:
    """What a sentence says of moved draws; None for any other."""
    if found := re.search(rf"mean of (\S+) moves (up|down) by {_NUMBER} \(± ", text):
        return Move("mean", names.index(found[1]), float(found[3]) * (1 if found[2] == "up" else -1))
    if found := re.search(r"standard deviation of (\S+) (grows|shrinks) by (\d+)% \(± ", text):
        share = float(found[3]) / 100 * (1 if found[2] == "grows" else -1)
        return Move("standard deviation", names.index(found[1]), float(np.log1p(max(share, -0.995))))
    return None


def would_have_shown(caveats: Sequence[str]) -> tuple[float, float] | None:
    """Errors of the mean and of the standard deviation of any combination that would have shown; None if not said."""
    for text in caveats:
        if found := re.search(
            r"any linear combination of coordinates, a mean off by (\S+) .+? by (\d+)%, would have shown", text
        ):
            return float(found[1]), float(found[2]) / 100
    return None


def _combination(text: str, names: Sequence[str]) -> np.ndarray:
    """A coordinate, or a sum such as 0.71·a − 0.7·b, by its coefficients as printed."""
    coefficients = np.zeros(len(names))
    if text in names:
        coefficients[names.index(text)] = 1
        return coefficients
    for sign, size, name in re.findall(r"([+−]?) ?([\d.e+-]+)·(\S+)", text):
        coefficients[names.index(name)] = -float(size) if sign == "−" else float(size)
    return coefficients
