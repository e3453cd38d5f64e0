"""Pictures, with matplotlib: `pip install 'jaxpsd[plots]'`.

Each function draws on `ax`, or on new axes, and returns the axes. Colours are told apart by colour-blind readers too.
"""

import operator
import warnings
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jaxpsd._choose.ranking import Ranking
from jaxpsd._core.checks import as_real, check_choice, check_positive_integer, check_samples
from jaxpsd._core.doubts import HeavyTailsWarning
from jaxpsd._core.draws import Draws, evenly_spaced, ravel
from jaxpsd._core.scores import as_logdensity, check_finite_draws, scores_of
from jaxpsd._core.types import LogDensityFn, PyTree, Target
from jaxpsd._discrepancies.base import Discrepancy, check_input
from jaxpsd._explain.moments import MomentTable
from jaxpsd._gof.result import GofResult
from jaxpsd._gof.settings import check_discrepancy
from jaxpsd._stein.coordinates import fit

try:
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes
    from matplotlib.ticker import MaxNLocator
except ImportError as error:
    error.add_note("`jaxpsd.plots` needs matplotlib: pip install 'jaxpsd[plots]'.")
    raise

__all__ = ["draws", "marginal_scores", "moment_errors", "null_distribution", "second_moments", "step_sizes", "trace"]

# Okabe and Ito's colours.
_BLUE, _RED, _GREEN, _PINK, _ORANGE, _SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
_COLOURS, _MARKERS = (_BLUE, _RED, _GREEN, _PINK, _ORANGE, _SKY), "osD^vX"

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
    ax
        Axes to draw on.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> from jaxpsd import plots
    >>> samples = 1.1 * jax.random.normal(jax.random.key(0), (500, 2))
    >>> result = jaxpsd.gof_test(jax.random.key(1), jaxpsd.PSD(2), lambda x: -0.5 * jnp.sum(x**2), samples)
    >>> plots.null_distribution(result).get_xlabel()
    'V'
    """
    _check_made(result, GofResult, "result", "`gof_test` or `adaptive_test`")
    if np.size(result.statistic) != len(result.labels):
        raise ValueError(
            "`result` has tests of several sets; take one of them, `jax.tree.map(lambda x: x[0], result)`."
        )
    which = _place_of(which, result.labels, "which")
    replicates = np.asarray(result.replicates)
    if not len(replicates):
        raise ValueError("A deterministic test has no replicates to show.")
    columns = replicates.reshape(len(replicates), -1)
    statistic, p, threshold = (
        float(np.ravel(values)[which]) for values in (result.statistic, result.p_value, result.threshold)
    )
    ax = _axes(ax)
    ax.hist(columns[:, which], bins="auto", density=True, color=_SKY, alpha=0.7, label="by chance")
    ax.axvline(threshold, color="black", linestyle="--", label=f"threshold at level {result.alpha:g}")
    ax.axvline(statistic, color=_RED, linewidth=2, label=f"these draws, p = {p:.3g}")
    ax.set_xlabel(result.labels[which])
    ax.set_ylabel("density")
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
    ax
        Axes to draw on.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> from jaxpsd import plots
    >>> samples = 1.1 * jax.random.normal(jax.random.key(0), (500, 2))
    >>> table = jaxpsd.moment_table(jax.random.key(1), lambda x: -0.5 * jnp.sum(x**2), samples)
    >>> len(plots.moment_errors(table, most=3).get_yticks())
    3
    """
    _check_made(table, MomentTable, "table", "`moment_table`")
    count = min(check_positive_integer(most, "most"), len(table.labels))
    mean, error, adjusted = (
        np.asarray(values)[:count] for values in (table.mean, table.standard_error, table.adjusted_p_value)
    )
    clear, rows = adjusted <= 0.05, np.arange(count)
    ax = _axes(ax, height=max(2.5, 0.28 * count + 1))
    for chosen, colour, label in ((clear, _RED, "adjusted p ≤ 0.05"), (~clear, _BLUE, "may be chance")):
        if chosen.any():
            ax.barh(rows[chosen], mean[chosen], color=colour, alpha=0.6, label=label)
    ax.errorbar(mean, rows, xerr=1.96 * error, fmt="none", ecolor="black", capsize=2, linewidth=1)
    ax.axvline(0, color="black", linewidth=0.8)
    ax.set_yticks(rows, [_shortened(label) for label in table.labels[:count]])
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
    ax
        Axes to draw on.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> from jaxpsd import plots
    >>> samples = jax.random.normal(jax.random.key(0), (500, 2))
    >>> table = jaxpsd.moment_table(jax.random.key(1), lambda x: -0.5 * jnp.sum(x**2), samples)
    >>> ax = plots.second_moments(table)
    """
    _check_made(table, MomentTable, "table", "`moment_table`")
    errors = table.errors
    if errors.scale is None or errors.correlation is None or errors.true_correlation is None:
        raise ValueError("Errors of second moments take a moment table of order 2 or more, with interactions.")
    off = np.array(errors.correlation - errors.true_correlation)
    np.fill_diagonal(off, np.asarray(errors.scale) - 1)
    dim = len(off)
    # Where the draws imply no scale of the target, its error is not known.
    known = np.isfinite(off)
    largest = float(np.abs(off[known]).max(initial=0.05))
    ax = _axes(ax, width=6.4, height=5.4)
    image = ax.imshow(off, cmap="RdBu_r", vmin=-largest, vmax=largest)
    colours = ax.figure.colorbar(image, ax=ax)
    colours.set_label("error of correlation; diagonal: of sd, as a share")
    if dim <= 20:
        names = [_shortened(name) for name in table.names]
        ax.set_xticks(range(dim), names, rotation=90 if dim > 5 else 0)
        ax.set_yticks(range(dim), names)
    else:
        ax.set_xlabel("coordinate")
        ax.set_ylabel("coordinate")
    if dim <= 6:
        for i, j in np.ndindex(dim, dim):
            shade = "white" if abs(off[i, j]) > 0.6 * largest else "black"
            text = f"{off[i, j]:+.2f}" if known[i, j] else "?"
            ax.text(j, i, text, ha="center", va="center", color=shade, fontsize="small")
    return ax


def step_sizes(rankings: Ranking | Mapping[str, Ranking], *, ax: Axes | None = None) -> Axes:
    """Discrepancy against step size, for one way of ranking or several; each one's choice has a star.

    Parameters
    ----------
    rankings
        From `rank`, with step sizes as labels; a mapping from names where there are several, each of which is then
        shown in units of its largest value.
    ax
        Axes to draw on.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> from jaxpsd import plots
    >>> draws = {size: jax.random.normal(jax.random.key(0), (500, 2)) * (1 + size) for size in (0.1, 0.01)}
    >>> ranking = jaxpsd.rank(jax.random.key(1), jaxpsd.PSD(2), lambda x: -0.5 * jnp.sum(x**2), draws)
    >>> ax = plots.step_sizes({"PSD of order 2": ranking})
    """
    several = isinstance(rankings, Mapping)
    named = dict(rankings) if isinstance(rankings, Mapping) else {"": rankings}
    if not named:
        raise ValueError("`rankings` holds none.")
    all_sizes = [_step_sizes(ranking) for ranking in named.values()]
    ax = _axes(ax)
    for k, ((name, ranking), sizes) in enumerate(zip(named.items(), all_sizes, strict=True)):
        order = np.argsort(sizes)
        values, intervals = ranking.discrepancy[order], ranking.interval[order]
        unit = np.nanmax(values) if several else 1.0
        colour = _COLOURS[k % len(_COLOURS)]
        ax.plot(sizes[order], values / unit, color=colour, marker=_MARKERS[k % len(_MARKERS)], markersize=5, label=name)
        ax.fill_between(sizes[order], intervals[:, 0] / unit, intervals[:, 1] / unit, color=colour, alpha=0.15)
        ax.plot(
            sizes[0], ranking.discrepancy[0] / unit, marker="*", markersize=18, color=colour, markeredgecolor="black"
        )
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("step size")
    ax.set_ylabel("discrepancy / its maximum" if several else "discrepancy")
    if several:
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
    ax
        Axes to draw on.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> from jaxpsd import plots
    >>> samples = jax.random.normal(jax.random.key(0), (500, 2))
    >>> ax = plots.trace(jaxpsd.PSD(2), lambda x: -0.5 * jnp.sum(x**2), samples)
    """
    check_discrepancy(discrepancy)
    target, all_draws, _ = check_input(target, samples, None, chains)
    scores = scores_of(target, all_draws)
    check_finite_draws(all_draws, scores)
    length = all_draws.num_draws // all_draws.num_chains
    points = check_positive_integer(num_points, "num_points")
    counts = np.unique(np.geomspace(min(10, length), length, points).round().astype(int))
    place = np.tile(np.arange(length), all_draws.num_chains)
    discrepancy = discrepancy._with_rule_fitted(lambda rule: fit(rule, all_draws, None))
    with warnings.catch_warnings():
        # A few draws always have most of what the first few have.
        warnings.simplefilter("ignore", HeavyTailsWarning)
        values = [
            # A set of one shape, of which only the first draws count: compiled once.
            discrepancy(Draws(scores, all_draws.num_chains), all_draws, (place < count).astype(float))
            for count in counts
        ]
    ax = _axes(ax)
    total = counts * all_draws.num_chains
    ax.plot(total, np.asarray(values), color=_BLUE, marker="o", markersize=3, label=type(discrepancy).__name__)
    ax.plot(total, float(values[0]) * np.sqrt(counts[0] / counts), color="grey", linestyle=":", label="slope −½")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("draws")
    ax.set_ylabel("discrepancy")
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
    ax
        Axes to draw on.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> from jaxpsd import plots
    >>> samples = {"mu": jax.random.normal(jax.random.key(0), (500,))}
    >>> plots.marginal_scores(lambda p: -0.5 * p["mu"] ** 2, samples).get_xlabel()
    'mu'
    """
    target, given, _ = check_input(target, samples, None, chains)
    chosen = None if coordinate is None else _place_of(coordinate, given.names, "coordinate")
    scores = scores_of(target, given)
    check_finite_draws(given, scores)
    x, s = (np.asarray(ravel(part), np.float64) for part in (given.positions, scores))
    straightness = _squared_correlation(x, s)
    if chosen is None:
        chosen = int(straightness.argmin())
    x, s = x[:, chosen], s[:, chosen]
    some = evenly_spaced(len(x), _MOST_POINTS)
    ax = _axes(ax)
    ax.plot(x[some], s[some], ".", color=_BLUE, markersize=3, alpha=0.5, label="draws")
    slope, offset = np.polyfit(x, s, 1) if np.ptp(x) > 0 else (0.0, float(s.mean()))
    ends = np.array([x.min(), x.max()])
    ax.plot(ends, offset + slope * ends, color=_RED, label=f"line, R² = {straightness[chosen]:.2f}")
    ax.set_xlabel(given.names[chosen])
    ax.set_ylabel(f"∂ log p / ∂ {given.names[chosen]}")
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
    ax
        Axes to draw on.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> from jaxpsd import plots
    >>> samples = jax.random.normal(jax.random.key(0), (500, 2))
    >>> ax = plots.draws(lambda x: -0.5 * jnp.sum(x**2), samples)
    """
    if not callable(logdensity_fn):
        raise TypeError(f"`logdensity_fn` must be a function; got {type(logdensity_fn).__name__}.")
    given = check_samples(samples, chains=chains)
    if given.dim != 2:
        raise ValueError(f"Draws over a density take two coordinates; got {given.dim}.")
    x = np.asarray(ravel(given.positions))
    if limits is None:
        low, high = np.quantile(x, [0.001, 0.999], axis=0)
        margin = 0.3 * np.where(high > low, high - low, 1)
        (left, bottom), (right, top) = low - margin, high + margin
        limits = (left, right), (bottom, top)
    else:
        ends = np.asarray(as_real(limits, "limits"), float)
        if ends.shape != (2, 2) or not np.isfinite(ends).all() or not (ends[:, 0] < ends[:, 1]).all():
            raise ValueError(f"`limits` must be (lowest, highest) of each of the two coordinates; got {limits!r}.")
    sides = [np.linspace(*ends, 120) for ends in limits]
    grid = np.stack(np.meshgrid(*sides), axis=-1).reshape(-1, 2).astype(x.dtype)
    logdensity = as_logdensity(logdensity_fn)
    density = jax.vmap(lambda position: logdensity(given.structure.unravel(position)))(jnp.asarray(grid))
    density = np.asarray(density, np.float64).reshape(120, 120)
    ax = _axes(ax, width=5.5, height=5)
    some = evenly_spaced(len(x), _MOST_POINTS)
    ax.plot(x[some, 0], x[some, 1], ".", color=_BLUE, markersize=3, alpha=0.4, label=label)
    levels = _levels(density, (0.99, 0.95, 0.8, 0.5))
    ax.contour(*sides, density, levels=levels, colors="black", linewidths=1, linestyles="solid")
    ax.set(xlim=limits[0], ylim=limits[1], xlabel=given.names[0], ylabel=given.names[1])
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.legend(loc="upper right")
    return ax


# --- pieces -----------------------------------------------------------------------------------------------


def _axes(ax: Axes | None, *, width: float = 6.4, height: float = 4.0) -> Axes:
    if ax is None:
        _, ax = plt.subplots(figsize=(width, height), layout="constrained")
    if not isinstance(ax, Axes):
        raise TypeError(f"`ax` must be matplotlib axes; got {type(ax).__name__}.")
    return ax


def _check_made(value: object, kind: type, name: str, by: str) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"`{name}` must come from {by}; got {type(value).__name__}.")


def _place_of(chosen: int | str, names: Sequence[str], name: str) -> int:
    """The place of one of several, chosen by number or by name."""
    if isinstance(chosen, str):
        return names.index(check_choice(chosen, names, name))
    try:
        place = operator.index(chosen)
    except TypeError:
        place = -1
    if not 0 <= place < len(names):
        raise ValueError(f"`{name}` must be one of {len(names)}, by number from 0 or by name; got {chosen!r}.")
    return place


def _step_sizes(ranking: Ranking) -> np.ndarray:
    _check_made(ranking, Ranking, "rankings", "`rank`, or be a mapping of such")
    try:
        sizes = np.array([float(label) for label in ranking.labels])
    except (TypeError, ValueError):
        sizes = np.array([np.nan])
    if not (np.isfinite(sizes) & (sizes > 0)).all():
        raise ValueError(f"The labels of the ranking must be step sizes: positive numbers; got {ranking.labels}.")
    return sizes


def _shortened(label: str, longest: int = 24) -> str:
    return label if len(label) <= longest else f"{label[: longest - 1]}…"


def _squared_correlation(x: Float[np.ndarray, "draws dim"], s: Float[np.ndarray, "draws dim"]) -> np.ndarray:
    x, s = x - x.mean(axis=0), s - s.mean(axis=0)
    variances = (x**2).sum(axis=0) * (s**2).sum(axis=0)
    return np.where(variances > 0, (x * s).sum(axis=0) ** 2 / np.where(variances > 0, variances, 1), 1.0)


def _levels(log_density: Float[np.ndarray, "rows columns"], shares: tuple[float, ...]) -> list[float]:
    """Levels of the log-density above which these shares of the probability on the grid lie."""
    finite = np.sort(log_density[np.isfinite(log_density)])[::-1]
    if not len(finite):
        raise ValueError("The log-density is not finite anywhere near the draws.")
    cumulative = np.cumsum(np.exp(finite - finite[0]))
    places = np.searchsorted(cumulative / cumulative[-1], shares)
    # Contours need levels that increase.
    return sorted({float(finite[min(place, len(finite) - 1)]) for place in places})
