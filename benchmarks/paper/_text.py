"""Tables, shares and curves as the report shows them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from benchmarks._harness import table

# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999", "#F0E442")
MARKERS = "osD^vXP*<"


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with the same keys as a table."""
    return table({title: title for title in rows[0]}, rows)


def verdict(holds: bool) -> str:
    return "holds" if holds else "**does not hold**"


def plot_medians(ax: Axes, points: Mapping[float, Sequence[float]], k: int, label: str, **style: Any) -> np.ndarray:
    """A line of medians over repeats in the k-th colour, and a band from the first quartile to the third."""
    low, middle, high = np.array([np.quantile(repeats, [0.25, 0.5, 0.75]) for repeats in points.values()]).T
    ax.plot(list(points), middle, color=COLOURS[k], marker=MARKERS[k], markersize=4, label=label, **style)
    ax.fill_between(list(points), low, high, color=COLOURS[k], alpha=0.15, linewidth=0)
    return middle
