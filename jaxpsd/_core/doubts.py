"""What may make a result doubtful: found inside, handed on as data, and told to users at the border.

Functions inside the library return doubts with their results. Only those that users call turn them into warnings.
"""

import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_PACKAGE = str(Path(__file__).parents[1])


class HeavyTailsWarning(UserWarning):
    """A few draws decide the discrepancy: its variance may be infinite, and a test of it wrong."""


class DependentDrawsWarning(UserWarning):
    """Draws are too dependent for the test that was made of them."""


class ChainsWarning(UserWarning):
    """There are more chains than draws in each: the axes may be the other way round."""


class CoordinatesWarning(UserWarning):
    """Coordinates that were to be the target's are partly the draws' own."""


class ScalesWarning(UserWarning):
    """Coordinates have such different scales that some hardly count."""


class PrecisionWarning(UserWarning):
    """Draws have lost so many digits to rounding that digits of the result are lost too."""


class CorrectionWarning(UserWarning):
    """Stein features explain too little of a function for its corrected expectation to be trusted."""


class Doubt(NamedTuple):
    """A reason to doubt a result: the kind of warning that tells users; what was seen, what it means, what to do."""

    category: type[Warning]
    message: str


def warn_of(doubts: Iterable[Doubt]) -> None:
    """Warn of each doubt, pointing to the line outside this package that led here."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    for category, message in doubts:
        warnings.warn(message, category, stacklevel=level)
