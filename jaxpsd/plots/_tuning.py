"""How a setting was chosen, round by round."""

from itertools import cycle

import numpy as np

from jaxpsd._choose.arms import numbers_of
from jaxpsd._choose.tuning import Tuning
from jaxpsd.plots._axes import COLOURS, Axes, check_made_by, get_axes, label_decades

# Labels of more settings than this hide each other.
_MOST_LABELS = 30


def tuning(tuning: Tuning, *, ax: Axes | None = None) -> Axes:
    """What settings were judged by, a line a round with intervals; crosses are dropped, the star is chosen.

    Parameters
    ----------
    tuning
        From `tune`. Settings that are positive numbers, or differ in one, are along its axis; others have labels.
    ax
        Axes to draw on; new ones by default.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> from jaxpsd import plots, tune
    >>> def logdensity(x):
    ...     return -0.5 * jnp.sum(x**2)
    >>> def langevin(key, x, step_size):
    ...     noise = jax.random.normal(key, x.shape)
    ...     x = x + 0.5 * step_size * jax.grad(logdensity)(x) + jnp.sqrt(step_size) * noise
    ...     return x, x
    >>> sizes, starts = [2.0, 0.5, 0.1, 0.02, 0.0001], jnp.zeros((4, 2))
    >>> found = tune(jax.random.key(0), logdensity, langevin, sizes, positions=starts, num_steps=10_000)
    >>> plots.tuning(found).get_ylabel()
    'error'
    """
    check_made_by("`tune`", tuning, Tuning, "tuning")
    name, x = _along(tuning)
    ax = get_axes(ax)
    styles = cycle(zip(COLOURS, "osD^vX", strict=True))
    for number, (each, (colour, marker)) in enumerate(zip(tuning.rounds, styles, strict=False), start=1):
        places = sorted(each.places, key=x.__getitem__)
        rows = [each.places.index(place) for place in places]
        values, ends = np.array(each.values)[rows], np.array(each.intervals)[rows]
        label = f"round {number}: {each.steps:,} steps"
        ax.plot(x[places], values, color=colour, marker=marker, markersize=5, label=label)
        ax.fill_between(x[places], *ends.T, color=colour, alpha=0.15)
        is_out = np.isin(places, each.dropped)
        ax.plot(x[places][is_out], values[is_out], linestyle="", marker="x", markersize=10, color=colour)
    last = tuning.rounds[-1]
    value = last.values[last.places.index(tuning.best_place)]
    ax.plot(x[tuning.best_place], value, marker="*", markersize=18, color=ax.lines[-1].get_color(), markeredgecolor="k")
    ax.set(yscale="log", xlabel=name, ylabel="discrepancy of a full run" if tuning.objective == "bias" else "error")
    label_decades(ax.yaxis)
    if name == "setting":
        shown = range(len(x)) if len(x) <= _MOST_LABELS else [tuning.best_place]
        ax.set_xticks(x[list(shown)], [tuning.labels[place] for place in shown], rotation=90, fontsize="small")
    else:
        ax.set_xscale("log")
    ax.legend()
    return ax


def _along(tuning: Tuning) -> tuple[str, np.ndarray]:
    """The one number in which settings differ, if there is one, or else their places."""
    columns = {name: column for name, column in numbers_of(tuning.settings).items() if len(set(column)) > 1}
    if len(columns) == 1:
        ((name, column),) = columns.items()
        if len(set(column)) == len(column) and (column > 0).all():
            return name.replace("_", " ") or "step size", column
    return "setting", np.arange(len(tuning.settings), dtype=float)
