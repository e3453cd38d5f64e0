"""Pictures, with matplotlib: `pip install 'jaxpsd[plots]'`.

Each function draws on the axes `ax`, or on new ones, and returns them. Colours suit colour-blind readers too.
"""

import operator
from collections.abc import Mapping, Sequence
from itertools import cycle

import jax
import numpy as np

from jaxpsd._choose.ranking import Ranking
from jaxpsd._core.checks import as_real, check_choice, check_positive_integer, check_samples, check_weights
from jaxpsd._core.draws import evenly_spaced, ravel
from jaxpsd._core.functions import checked_logdensity
from jaxpsd._core.scores import check_input
from jaxpsd._core.types import LogDensityFn, PyTree, Target
from jaxpsd._discrepancies.base import Discrepancy
from jaxpsd._explain.moments import MomentTable
from jaxpsd._gof.result import GofResult
from jaxpsd._gof.settings import check_discrepancy
from jaxpsd._stein.coordinates import fit

# Before matplotlib itself, since it says what to do where that is missing.
from jaxpsd.plots._axes import COLOURS, Axes, MaxNLocator, check_made_by, get_axes
from jaxpsd.plots._tuning import tuning

__all__ = [
    "draws",
    "marginal_scores",
    "moment_errors",
    "null_distribution",
    "second_moments",
    "step_sizes",
    "trace",
    "tuning",
]

_BLUE, _RED, _GREEN, _PINK, _ORANGE, _SKY = COLOURS

# More points than this hide each other.
_MOST_POINTS = 2000


def null_distribution(result: GofResult, *, which: int | str = 0, ax: Axes | None = None) -> Axes:
    """The statistic of a test, and what it would be by chance.

    Parameters
    ----------
    result
        From `gof_test` or `adaptive_test`; or its `parts`.
    which
        Which statistic to show, by number or label, where several were tested.

    Examples
    --------
    >>> import jax
    >>> from jaxpsd import PSD, gof_test, plots
    >>> samples = 1.1 * jax.random.normal(jax.random.key(0), (500, 2))
    >>> result = gof_test(jax.random.key(1), PSD(2), lambda x: -0.5 * (x**2).sum(), samples)
    >>> plots.null_distribution(result).get_xlabel()
    'V'
    """
    check_made_by("`gof_test` or `adaptive_test`", result, GofResult, "result")
    if np.size(result.statistic) != len(result.labels):
        raise ValueError("`result` has tests of several sets; take one: `jax.tree.map(lambda x: x[0], result)`.")
    place = _find_place(which, result.labels, "which")
    replicates = np.asarray(result.replicates).reshape(-1, len(result.labels))[:, place]
    if not len(replicates):
        raise ValueError("A deterministic test has no replicates to show.")
    statistic, p, threshold = np.reshape([result.statistic, result.p_value, result.threshold], (3, -1))[:, place]
    ax = get_axes(ax)
    ax.hist(replicates, bins="auto", density=True, color=_SKY, alpha=0.7, label="by chance")
    ax.axvline(threshold, color="black", linestyle="--", label=f"threshold at level {result.alpha:g}")
    ax.axvline(statistic, color=_RED, linewidth=2, label=f"these draws, p = {p:.3g}")
    ax.set(xlabel=result.labels[place], ylabel="density")
    ax.legend()
    return ax


def moment_errors(table: MomentTable, *, most: int = 20, ax: Axes | None = None) -> Axes:
    """Mean Stein features with 95% intervals, those with the strongest evidence first; zero if the draws are right.

    Parameters
    ----------
    table
        From `moment_table`, or `diagnose(…).moments`.
    most
        How many monomials to show.

    Examples
    --------
    >>> import jax
    >>> from jaxpsd import moment_table, plots
    >>> samples = 1.1 * jax.random.normal(jax.random.key(0), (500, 2))
    >>> table = moment_table(jax.random.key(1), lambda x: -0.5 * (x**2).sum(), samples)
    >>> len(plots.moment_errors(table, most=3).get_yticks())
    3
    """
    check_made_by("`moment_table`", table, MomentTable, "table")
    count = min(check_positive_integer(most, "most"), len(table.labels))
    columns = table.mean, table.standard_error, table.adjusted_p_value
    mean, error, p = (np.asarray(column)[:count] for column in columns)
    clear, rows = p <= 0.05, np.arange(count)
    ax = get_axes(ax, height=max(2.5, 0.28 * count + 1))
    for chosen, colour, label in ((clear, _RED, "adjusted p ≤ 0.05"), (~clear, _BLUE, "may be chance")):
        if chosen.any():
            ax.barh(rows[chosen], mean[chosen], color=colour, alpha=0.6, label=label)
    ax.errorbar(mean, rows, xerr=1.96 * error, fmt="none", ecolor="black", capsize=2, linewidth=1)
    ax.axvline(0, color="black", linewidth=0.8)
    ax.set_yticks(rows, [_shorten(label) for label in table.labels[:count]])
    ax.invert_yaxis()
    ax.set_xlabel("mean Stein feature, with 95% interval")
    if count < len(table.labels):
        ax.set_title(f"{count} of {len(table.labels):,} monomials", fontsize="medium")
    ax.legend()
    return ax


def second_moments(table: MomentTable, *, ax: Axes | None = None) -> Axes:
    """Errors of standard deviations and correlations, a heat map.

    On the diagonal is the error of each standard deviation as a share of it; elsewhere, that of each correlation.

    Parameters
    ----------
    table
        From `moment_table` of order 2 or more, with interactions.

    Examples
    --------
    >>> import jax
    >>> from jaxpsd import moment_table, plots
    >>> samples = jax.random.normal(jax.random.key(0), (500, 2))
    >>> table = moment_table(jax.random.key(1), lambda x: -0.5 * (x**2).sum(), samples)
    >>> ax = plots.second_moments(table)
    """
    check_made_by("`moment_table`", table, MomentTable, "table")
    errors = table.errors
    if errors.sd_ratio is None or errors.correlation is None or errors.true_correlation is None:
        raise ValueError("Second moments need a moment table of order 2 or more, with interactions.")
    off = np.array(errors.correlation - errors.true_correlation)
    np.fill_diagonal(off, np.asarray(errors.sd_ratio) - 1)
    dim = len(off)
    # What is not known is left blank.
    known = np.isfinite(off)
    largest = float(np.abs(off[known]).max(initial=0.05))
    ax = get_axes(ax, height=5.4)
    image = ax.imshow(off, cmap="RdBu_r", vmin=-largest, vmax=largest)
    ax.figure.colorbar(image, ax=ax, label="error of correlation; diagonal: of sd, as a share")
    if dim <= 20:
        names = [_shorten(name) for name in table.names]
        ax.set_xticks(range(dim), names, rotation=90 if dim > 5 else 0)
        ax.set_yticks(range(dim), names)
    else:
        ax.set(xlabel="coordinate", ylabel="coordinate")
    if dim <= 6:
        for (i, j), error in np.ndenumerate(off):
            shade = "white" if abs(error) > 0.6 * largest else "black"
            text = f"{error:+.2f}" if known[i, j] else "?"
            ax.text(j, i, text, ha="center", va="center", color=shade, fontsize="small")
    return ax


def step_sizes(rankings: Ranking | Mapping[str, Ranking], *, ax: Axes | None = None) -> Axes:
    """Discrepancy against step size, for one way of ranking or several; each one's choice has a star.

    Parameters
    ----------
    rankings
        From `rank`, with step sizes as labels; a mapping from names where there are several, each of which is then
        shown in units of its largest value.

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
    if several:
        ax.set_ylabel("discrepancy / its maximum")
        ax.legend()
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
    ax.plot(total, np.asarray(values), color=_BLUE, marker="o", markersize=3, label=type(discrepancy).__name__)
    ax.plot(total, float(values[0]) * np.sqrt(counts[0] / counts), color="grey", linestyle=":", label="slope −½")
    ax.set(xscale="log", yscale="log", xlabel="draws", ylabel="discrepancy")
    ax.legend()
    return ax


def marginal_scores(
    target: Target,
    samples: PyTree,
    *,
    coordinate: int | str | None = None,
    chains: bool | None = None,
    ax: Axes | None = None,
) -> Axes:
    """The score of one coordinate against the coordinate: a straight line if the target is Gaussian there.

    Parameters
    ----------
    target, samples, chains
        As in `gof_test`.
    coordinate
        Its number or name; by default the one that is farthest from a straight line.

    Examples
    --------
    >>> import jax
    >>> from jaxpsd import plots
    >>> samples = {"mu": jax.random.normal(jax.random.key(0), (500,))}
    >>> plots.marginal_scores(lambda p: -0.5 * p["mu"] ** 2, samples).get_xlabel()
    'mu'
    """
    names = check_samples(samples, chains=chains).names
    chosen = None if coordinate is None else _find_place(coordinate, names, "coordinate")
    given = check_input(target, samples, None, chains).with_scores()
    given.check_finite()
    x, s = (np.asarray(ravel(part), np.float64) for part in (given.draws.positions, given.target))
    dx, ds = x - x.mean(axis=0), s - s.mean(axis=0)
    variances = (dx**2).sum(axis=0) * (ds**2).sum(axis=0)
    # What does not vary lies on a straight line.
    r_squared = np.divide((dx * ds).sum(axis=0) ** 2, variances, out=np.ones_like(variances), where=variances > 0)
    chosen = int(r_squared.argmin()) if chosen is None else chosen
    name, x, s = names[chosen], x[:, chosen], s[:, chosen]
    some = evenly_spaced(len(x), _MOST_POINTS)
    ax = get_axes(ax)
    ax.plot(x[some], s[some], ".", color=_BLUE, markersize=3, alpha=0.5, label="draws")
    slope, offset = np.polyfit(x, s, 1) if np.ptp(x) > 0 else (0.0, float(s.mean()))
    ends = np.array([x.min(), x.max()])
    ax.plot(ends, offset + slope * ends, color=_RED, label=f"line, R² = {r_squared[chosen]:.2f}")
    ax.set(xlabel=name, ylabel=f"∂ log p / ∂ {name}")
    ax.legend()
    return ax


def draws(
    logdensity_fn: LogDensityFn,
    samples: PyTree,
    *,
    chains: bool | None = None,
    label: str = "draws",
    limits: tuple[tuple[float, float], tuple[float, float]] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draws over contours of the density, in two dimensions.

    Contours enclose about 50, 80, 95 and 99% of the probability, as far as the picture shows it.

    Parameters
    ----------
    logdensity_fn
        The log-density of a position with two coordinates.
    samples, chains
        As in `gof_test`.
    label
        What to call the draws.
    limits
        What of each coordinate to show, as (lowest, highest); by default where the draws are.

    Examples
    --------
    >>> import jax
    >>> from jaxpsd import plots
    >>> samples = jax.random.normal(jax.random.key(0), (500, 2))
    >>> ax = plots.draws(lambda x: -0.5 * (x**2).sum(), samples)
    """
    if not callable(logdensity_fn):
        raise TypeError(f"`logdensity_fn` must be a function; got {type(logdensity_fn).__name__}.")
    given = check_samples(samples, chains=chains)
    if given.dim != 2:
        raise ValueError(f"`samples` must have two coordinates, to be shown over a density; got {given.dim}.")
    x = np.asarray(ravel(given.positions))
    if limits is None:
        low, high = np.quantile(x, [0.001, 0.999], axis=0)
        margin = 0.3 * np.where(high > low, high - low, 1)
        ends = np.stack([low - margin, high + margin], axis=1)
    else:
        ends = np.asarray(as_real(limits, "limits"), float)
        if ends.shape != (2, 2) or not np.isfinite(ends).all() or not (ends[:, 0] < ends[:, 1]).all():
            raise ValueError(f"`limits` must be (lowest, highest) of each of the two coordinates; got {limits!r:.100}.")
    sides = np.linspace(ends[:, 0], ends[:, 1], 120).T
    grid = np.stack(np.meshgrid(*sides), axis=-1).reshape(-1, 2).astype(x.dtype)
    density = jax.vmap(lambda position: checked_logdensity(logdensity_fn)(given.structure.unravel(position)))(grid)
    density = np.asarray(density, np.float64).reshape(120, 120)
    ax = get_axes(ax, width=5.5, height=5)
    some = evenly_spaced(len(x), _MOST_POINTS)
    ax.plot(*x[some].T, ".", color=_BLUE, markersize=3, alpha=0.4, label=label)
    ax.contour(*sides, density, levels=_find_levels(density), colors="black", linewidths=1, linestyles="solid")
    ax.set(xlim=ends[0], ylim=ends[1], xlabel=given.names[0], ylabel=given.names[1])
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.legend(loc="upper right")
    return ax


def _find_place(chosen: int | str, names: Sequence[str], argument: str) -> int:
    """The place of one of several, chosen by name or by number from 0."""
    if isinstance(chosen, str):
        return names.index(check_choice(chosen, names, argument))
    try:
        return range(len(names)).index(operator.index(chosen))
    except (TypeError, ValueError):
        raise ValueError(f"`{argument}` must be one of {len(names)}, by name or number; got {chosen!r:.100}.") from None


def _read_step_sizes(ranking: Ranking) -> np.ndarray:
    check_made_by("`rank`, or be a mapping of such", ranking, Ranking, "rankings")
    try:
        sizes = np.array([float(label) for label in ranking.labels])
    except (TypeError, ValueError):
        sizes = np.array([np.nan])
    if not (np.isfinite(sizes) & (sizes > 0)).all():
        raise ValueError(f"The labels of a ranking must be step sizes, positive numbers; got {ranking.labels!r:.100}.")
    return sizes


def _shorten(label: str, longest: int = 24) -> str:
    return label if len(label) <= longest else f"{label[: longest - 1]}…"


def _find_levels(log_density: np.ndarray) -> np.ndarray:
    """Levels of the log-density above which 99, 95, 80 and 50% of the probability on the grid lie."""
    finite = np.sort(log_density[np.isfinite(log_density)])[::-1]
    if not len(finite):
        raise ValueError("The log-density is not finite anywhere near the draws.")
    cumulative = np.cumsum(np.exp(finite - finite[0]))
    return np.unique(finite[np.searchsorted(cumulative / cumulative[-1], [0.99, 0.95, 0.8, 0.5])])
