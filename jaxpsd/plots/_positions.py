"""Draws where they lie: over the density, and scores against coordinates."""

from functools import partial

import jax
import numpy as np
from jaxtyping import Array, Float

from jaxpsd._core.checks import as_real, check_samples
from jaxpsd._core.compiling import compile_by_work
from jaxpsd._core.draws import Draws, Structure, evenly_spaced, one_position, ravel
from jaxpsd._core.functions import checked_logdensity
from jaxpsd._core.scores import check_input
from jaxpsd._core.tracing import Traced, trace
from jaxpsd._core.types import LogDensityFn, PyTree, Target
from jaxpsd.plots._axes import BLUE, DOT, MOST_POINTS, RED, Axes, MaxNLocator, find_place, get_axes


def marginal_scores(
    target: Target,
    samples: PyTree,
    *,
    coordinate: int | str | None = None,
    chains: bool | None = None,
    ax: Axes | None = None,
) -> Axes:
    """The score of one coordinate against the coordinate, less what is linear in the others.

    A straight line if the target is Gaussian, whatever its correlations are: the less straight, the less do polynomials
    tell of errors. How straight is what reports call the linear score: the share of its variance that is linear in all
    coordinates.

    Parameters
    ----------
    target, samples, chains
        As in `gof_test`.
    coordinate
        Its number or name; by default the one with the least linear score.
    ax
        Axes to draw on; new ones by default.

    Examples
    --------
    >>> import jax
    >>> from jaxpsd import plots
    >>> samples = {"mu": jax.random.normal(jax.random.key(0), (500,))}
    >>> plots.marginal_scores(lambda p: -0.5 * p["mu"] ** 2, samples).get_xlabel()
    'mu'
    """
    names = check_samples(samples, chains=chains).names
    chosen = None if coordinate is None else find_place(coordinate, names, "coordinate")
    given = check_input(target, samples, None, chains).with_scores()
    given.check_finite()
    x, s = (np.asarray(ravel(part), np.float64) for part in (given.draws.positions, given.target))
    if len(x) <= x.shape[1] + 1:
        raise ValueError(f"`samples` must be more draws than coordinates, {x.shape[1]:,} and one; got {len(x):,}.")
    centre, middle = x.mean(axis=0), s.mean(axis=0)
    slopes, linearity = _linear_part(x - centre, s - middle)
    chosen = int(linearity.argmin()) if chosen is None else chosen
    slope = slopes[chosen, chosen]
    # What is linear in the others says nothing of this one.
    others = (x - centre) @ slopes[:, chosen] - (x[:, chosen] - centre[chosen]) * slope
    name, s, x = names[chosen], s[:, chosen] - others, x[:, chosen]
    some = evenly_spaced(len(x), MOST_POINTS)
    ax = get_axes(ax)
    ax.plot(x[some], s[some], ".", color=BLUE, markersize=3, alpha=0.5, label="draws")
    ends = np.array([x.min(), x.max()])
    line = middle[chosen] + slope * (ends - centre[chosen])
    ax.plot(ends, line, color=RED, label=f"line, linear score {linearity[chosen]:.0%}")
    is_alone = len(names) == 1
    ax.set(xlabel=name, ylabel=f"∂ log p / ∂ {name}" + ("" if is_alone else ",\nless what is linear in the others"))
    ax.legend(markerscale=DOT)
    return ax


def _linear_part(
    dx: Float[np.ndarray, "draws dim"], ds: Float[np.ndarray, "draws dim"]
) -> tuple[Float[np.ndarray, "dim dim"], Float[np.ndarray, " dim"]]:
    """Slopes of scores, a column each, on centred draws; and the share of each score's variance that they explain."""
    own, cross, total = dx.T @ dx, dx.T @ ds, (ds**2).sum(axis=0)
    # A little ridge, as where reports measure it; and coordinates that do not vary have no slope.
    own[np.diag_indices_from(own)] += 1e-5 * np.diag(own) + (np.diag(own) == 0)
    slopes = np.linalg.solve(own, cross)
    explained = np.divide((cross * slopes).sum(axis=0), total, out=np.ones_like(total), where=total > 0)
    return slopes, np.clip(explained, 0, 1)


def draws(
    logdensity_fn: LogDensityFn,
    samples: PyTree,
    *,
    coordinates: tuple[int | str, int | str] | None = None,
    chains: bool | None = None,
    label: str = "draws",
    limits: tuple[tuple[float, float], tuple[float, float]] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draws over contours of the density, in two dimensions.

    Contours enclose about 50, 80, 95 and 99% of the probability, as far as the picture shows it. Of more than two
    dimensions, they are of a slice: the density where all other coordinates are at their medians, which is dashed. Its
    shape is that of the joint distribution only where the others do not matter: where they are correlated with these
    two, right draws reach beyond it.

    Parameters
    ----------
    logdensity_fn
        The log-density of one position.
    samples, chains
        As in `gof_test`.
    coordinates
        Which two to show, by number or name, where there are more.
    label
        What to call the draws.
    limits
        What of each coordinate to show, as (lowest, highest); by default where the draws are.
    ax
        Axes to draw on; new ones by default.

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
    pair = _find_pair(coordinates, given)
    positions = np.asarray(ravel(given.positions))
    centre, x = np.median(positions, axis=0), positions[:, pair]
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

    slices = np.tile(centre, (len(grid), 1))
    slices[:, pair] = grid
    traced = trace(checked_logdensity(logdensity_fn), one_position(given.positions))
    density = np.asarray(_densities(traced, given.structure, slices), np.float64).reshape(120, 120)
    ax = get_axes(ax, width=5.5, height=5)
    some = evenly_spaced(len(x), MOST_POINTS)
    ax.plot(*x[some].T, ".", color=BLUE, markersize=3, alpha=0.4, label=label)
    style = "solid" if given.dim == 2 else "dashed"
    ax.contour(*sides, density, levels=_find_levels(density), colors="black", linewidths=1, linestyles=style)
    if given.dim > 2:
        ax.plot(
            [], [], color="black", linewidth=1, linestyle=style, label="slice of the density,\nothers at their medians"
        )
    ax.set(xlim=ends[0], ylim=ends[1], xlabel=given.names[pair[0]], ylabel=given.names[pair[1]])
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.legend(loc="upper right", markerscale=DOT)
    return ax


@partial(compile_by_work, seldom=True, static_argnums=1)
def _densities(logdensity: Traced, structure: Structure, positions: Float[Array, "rows dim"]) -> Float[Array, " rows"]:
    return jax.vmap(lambda position: logdensity(structure.unravel(position)))(positions)


def _find_pair(chosen: object, given: Draws) -> list[int]:
    """The places of two coordinates."""
    if chosen is None and given.dim == 2:
        return [0, 1]
    if not isinstance(chosen, tuple | list) or len(chosen) != 2:
        raise ValueError(
            f"`coordinates` must be two, by name or number, of draws with {given.dim}; got {chosen!r:.100}."
        )
    pair = [find_place(each, given.names, "coordinates") for each in chosen]
    if pair[0] == pair[1]:
        raise ValueError(f"`coordinates` must be two different ones; got {chosen!r:.100}.")
    return pair


def _find_levels(log_density: np.ndarray) -> np.ndarray:
    """Levels of the log-density above which 99, 95, 80 and 50% of the probability on the grid lie."""
    finite = np.sort(log_density[np.isfinite(log_density)])[::-1]
    if not len(finite):
        raise ValueError("The log-density is not finite anywhere near the draws.")
    cumulative = np.cumsum(np.exp(finite - finite[0]))
    return np.unique(finite[np.searchsorted(cumulative / cumulative[-1], [0.99, 0.95, 0.8, 0.5])])
