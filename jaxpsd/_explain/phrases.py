"""Errors of moments in words, with their intervals: one wording wherever they are stated."""

from collections.abc import Sequence
from math import ceil

import numpy as np

Ends = Sequence[float] | np.ndarray
"""Lower and upper end of an interval."""

# Nobody counts beyond.
_MOST_TIMES = 10_000


def mean_error(name: str, off: float, ends: Ends) -> str:
    """How far a mean is off, in standard deviations of the target."""
    way, sign = ("high", 1) if off > 0 else ("low", -1)
    low, high = sorted(sign * end for end in ends)
    return f"the mean of {name} is {abs(off):.2f} ({low:.2f} … {high:.2f}) standard deviations too {way}"


def sd_error(name: str, ratio: float, ends: Ends) -> str:
    """How far a standard deviation is off, as a multiple of the target's."""
    return f"the standard deviation of {name} is {ratio:.2f} ({ends[0]:.2f} … {ends[1]:.2f}) times the target's"


def correlation_error(names: tuple[str, str], drawn: float, right: float, half: float) -> str:
    """A correlation of the draws beside the right one."""
    low, high = max(right - half, -1), min(right + half, 1)
    should = f"should be {right:.2f} ({low:.2f} … {high:.2f})"
    return f"the correlation of {names[0]} and {names[1]} is {drawn:.2f} and {should}"


def times_as_many(times: float) -> str:
    """About how many times as many draws, at least two."""
    how_many = f"more than {_MOST_TIMES:,}" if times > _MOST_TIMES else f"about {ceil(max(times, 1.1))}"
    return f"{how_many} times as many draws"
