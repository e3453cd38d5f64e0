"""Discrepancies of several sets of draws: against step size, or against the number of draws."""

from collections.abc import Mapping
from itertools import cycle

import numpy as np

from jaxpsd._choose.ranking import Ranking
from jaxpsd._core.checks import check_positive_integer, check_weights
from jaxpsd._core.scores import check_input
from jaxpsd._core.types import PyTree, Target
from jaxpsd._discrepancies.base import Discrepancy
from jaxpsd._gof.settings import check_discrepancy
from jaxpsd._stein.coordinates import fit
from jaxpsd.plots._axes import BLUE, COLOURS, Axes, check_made_by, get_axes, label_decades


def step_sizes(rankings: Ranking | Mapping[str, Ranking], *, ax: Axes | None = None) -> Axes:
    """Discrepancy against step size, for one way of ranking or several; each one's choice has a star.

    Parameters
    ----------
    rankings
        From `rank`, with step sizes as labels; a mapping from names where there are several, each of which is then
        shown in units of its largest value.
    ax
        Axes to draw on; new ones by default.

    Examples
    --------
    >>> import jax
    >>> from jaxpsd import PSD, plots, rank
    >>> draws = {size: jax.random.normal(jax.random.key(0), (500, 2)) * (1 + size) for size in (0.1, 0.01)}
    >>> ranking = rank(jax.random.key(1), PSD(2), lambda x: -0.5 * (x**2).sum(), draws)
    >>> ax = plots.step_sizes({"PSD of order 2": ranking})
    """
    named = rankings if isinstance(rankings, Mapping) else {"": rankings}
    if not named:
        raise ValueError("`rankings` is empty; pass at least one ranking.")
    several = named is rankings
    all_sizes = [_read_step_sizes(ranking) for ranking in named.values()]
    ax = get_axes(ax)
    styles = cycle(zip(COLOURS, "osD^vX", strict=True))
    for (name, ranking), sizes, (colour, marker) in zip(named.items(), all_sizes, styles, strict=False):
        order = np.argsort(sizes)
        unit = np.nanmax(ranking.discrepancy) if several else 1.0
        values, intervals = ranking.discrepancy / unit, ranking.interval / unit
        ax.plot(sizes[order], values[order], color=colour, marker=marker, markersize=5, label=name)
        ax.fill_between(sizes[order], *intervals[order].T, color=colour, alpha=0.15)
        best = ranking.labels.index(ranking.best)
        ax.plot(sizes[best], values[best], marker="*", markersize=18, color=colour, markeredgecolor="black")
    ax.set(xscale="log", yscale="log", xlabel="step size", ylabel="discrepancy")
    label_decades(ax.yaxis)
    if several:
        ax.set_ylabel("discrepancy / its maximum")
        # Above the lines, which it would hide.
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, fontsize="small")
    return ax


def trace(
    discrepancy: Discrepancy,
    target: Target,
    samples: PyTree,
    *,
    num_points: int = 30,
    chains: bool | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Discrepancy of the first n draws of each chain, against n, in coordinates that all draws set.

    Parameters
    ----------
    discrepancy, target, samples, chains
        As in a call of the discrepancy.
    num_points
        At how many n.
    ax
        Axes to draw on; new ones by default.

    Examples
    --------
    >>> import jax
    >>> from jaxpsd import PSD, plots
    >>> samples = jax.random.normal(jax.random.key(0), (500, 2))
    >>> ax = plots.trace(PSD(2), lambda x: -0.5 * (x**2).sum(), samples)
    """
    check_discrepancy(discrepancy)
    given = check_input(target, samples, None, chains).with_scores()
    given.check_finite()
    all_draws = given.draws
    length = all_draws.num_draws // all_draws.num_chains
    points = check_positive_integer(num_points, "num_points")
    counts = np.unique(np.geomspace(min(10, length), length, points).round().astype(int))
    place = np.tile(np.arange(length), all_draws.num_chains)
    discrepancy = discrepancy._with_rule_fitted(lambda rule: fit(rule, given))
    # All draws, of which only the first have weight: sets of one shape are compiled once.
    weights = (check_weights((place < count).astype(float), all_draws) for count in counts)
    values = [discrepancy._value(given._replace(weights=each)) for each in weights]
    ax = get_axes(ax)
    total = counts * all_draws.num_chains
    ax.plot(total, np.asarray(values), color=BLUE, marker="o", markersize=3, label=type(discrepancy).__name__)
    ax.plot(total, float(values[0]) * np.sqrt(counts[0] / counts), color="grey", linestyle=":", label="slope −½")
    ax.set(xscale="log", yscale="log", xlabel="draws", ylabel="discrepancy")
    label_decades(ax.yaxis)
    ax.legend()
    return ax


def _read_step_sizes(ranking: Ranking) -> np.ndarray:
    check_made_by("`rank`, or be a mapping of such", ranking, Ranking, "rankings")
    try:
        sizes = np.array([float(label) for label in ranking.labels])
    except (TypeError, ValueError):
        sizes = np.array([np.nan])
    if not (np.isfinite(sizes) & (sizes > 0)).all():
        raise ValueError(f"The labels of a ranking must be step sizes, positive numbers; got {ranking.labels!r:.100}.")
    return sizes
