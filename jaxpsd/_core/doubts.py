"""What may make a result doubtful, and how users are told."""

import sys
import warnings
from pathlib import Path

_PACKAGE = str(Path(__file__).parents[1])


class HeavyTailsWarning(UserWarning):
    """A few draws decide the discrepancy: its variance may be infinite, and a test of it wrong."""


class DependentDrawsWarning(UserWarning):
    """Draws are too dependent for the test that was made of them."""


class ScalesWarning(UserWarning):
    """Coordinates have such different scales that some hardly count."""


class PrecisionWarning(UserWarning):
    """Draws have lost so many digits to rounding that digits of the result are lost too."""


class CorrectionWarning(UserWarning):
    """Stein features explain too little of a function for its corrected expectation to be trusted."""


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn, pointing to the line outside this package that led here."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
