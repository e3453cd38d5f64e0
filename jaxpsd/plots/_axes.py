"""What all pictures share: axes, colours, names that fit, and what was passed."""

import operator
from collections.abc import Sequence

from jaxpsd._core.checks import check_choice

try:
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter
except ImportError as error:
    error.add_note("`jaxpsd.plots` needs matplotlib: pip install 'jaxpsd[plots]'.")
    raise

__all__ = [
    "BLUE", "COLOURS", "DOT", "MOST_POINTS", "RED", "SKY", "Axes", "Figure", "MaxNLocator", "check_made_by",
    "find_place", "get_axes", "label_decades", "plt", "shorten",
]  # fmt: skip

# Okabe and Ito's colours.
COLOURS = BLUE, RED, _, _, _, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"

# More points than this hide each other.
MOST_POINTS = 2000

# How much larger the dots of draws are in a legend, where they have to be seen one by one.
DOT = 3

# Within two decades and margins, powers of ten are too few labels, and all multiples too many.
_DECADES = 200


def get_axes(ax: Axes | None, *, width: float = 6.4, height: float = 4.0) -> Axes:
    """Those given, or new ones."""
    if ax is None:
        _, ax = plt.subplots(figsize=(width, height), layout="constrained")
    if not isinstance(ax, Axes):
        raise TypeError(f"`ax` must be matplotlib axes; got {type(ax).__name__}.")
    return ax


def label_decades(axis: Axis) -> None:
    """Numbers as people write them, along a logarithmic axis on which all is drawn."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < _DECADES * low else (1,)))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(NullFormatter())


def check_made_by(function: str, value: object, kind: type, name: str) -> None:
    """Refuse what another function has made."""
    if not isinstance(value, kind):
        raise TypeError(f"`{name}` must come from {function}; got {type(value).__name__}.")


def find_place(chosen: int | str, names: Sequence[str], argument: str) -> int:
    """The place of one of several, chosen by name or by number from 0."""
    if isinstance(chosen, str):
        return names.index(check_choice(chosen, names, argument))
    try:
        return range(len(names)).index(operator.index(chosen))
    except (TypeError, ValueError):
        raise ValueError(f"`{argument}` must be one of {len(names)}, by name or number; got {chosen!r:.100}.") from None


def shorten(label: str, longest: int = 24) -> str:
    """A name that leaves room for the picture."""
    return label if len(label) <= longest else f"{label[: longest - 1]}…"
