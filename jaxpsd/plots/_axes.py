"""What all pictures share: matplotlib, colours, and axes to draw on."""

try:
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes
    from matplotlib.ticker import MaxNLocator
except ImportError as error:
    error.add_note("`jaxpsd.plots` needs matplotlib: pip install 'jaxpsd[plots]'.")
    raise

__all__ = ["COLOURS", "Axes", "MaxNLocator", "check_made_by", "get_axes"]

COLOURS = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
"""Okabe and Ito's."""


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
