"""What all pictures share: axes, colours, names that fit, and what was passed."""

import operator
from collections.abc import Sequence

from jaxpsd._core.checks import check_choice

try:
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
except ImportError as error:
    error.add_note("`jaxpsd.plots` needs matplotlib: pip install 'jaxpsd[plots]'.")
    raise

__all__ = [
    "BLUE", "COLOURS", "MOST_POINTS", "RED", "SKY", "Axes", "Figure", "MaxNLocator", "check_made_by", "find_place",
    "get_axes", "plt", "shorten",
]  # fmt: skip

# Okabe and Ito's colours.
COLOURS = BLUE, RED, _, _, _, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"

# More points than this hide each other.
MOST_POINTS = 2000


def get_axes(ax: Axes | None, *, width: float = 6.4, height: float = 4.0) -> Axes:
    """Those given, or new ones."""
    if ax is None:
        _, ax = plt.subplots(figsize=(width, height), layout="constrained")
    if not isinstance(ax, Axes):
        raise TypeError(f"`ax` must be matplotlib axes; got {type(ax).__name__}.")
    return ax


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
