"""What is wrong, and by how much: means, standard deviations and correlations."""

import numpy as np

from jaxpsd._core.checks import check_positive_integer
from jaxpsd._explain.moments import MomentTable
from jaxpsd._explain.report import Report
from jaxpsd._explain.tolerance import check_tolerance
from jaxpsd.plots._axes import BLUE, RED, Axes, MaxNLocator, check_made_by, get_axes, shorten

# Beyond so many tolerances, the axis of errors is logarithmic.
_FAR = 10

# More than so many letters do not fit below a map.
_LETTERS = 24


def errors(
    report: Report | MomentTable, *, tolerance: float | None = None, most: int = 12, ax: Axes | None = None
) -> Axes:
    """How far means and standard deviations are off, with 95% intervals and what is tolerated; the worst first.

    What is to the right of zero is too large, and draws are too wide where a standard deviation is. Means are off by
    standard deviations of the target, standard deviations by shares of it. Each interval holds by itself; "good
    enough" asks all to hold at once, and is stricter.

    Parameters
    ----------
    report
        From `diagnose`, or from `moment_table`.
    tolerance
        How far errors may be off; by default that of the report, or a tenth.
    most
        How many coordinates to show.
    ax
        Axes to draw on; new ones by default.

    Examples
    --------
    >>> import jax
    >>> from jaxpsd import diagnose, plots
    >>> samples = jax.random.normal(jax.random.key(0), (1000, 2)) * jax.numpy.array([1.2, 1.0])
    >>> report = diagnose(jax.random.key(1), lambda x: -0.5 * (x**2).sum(), samples, names=("mu", "tau"))
    >>> [label.get_text() for label in plots.errors(report).get_yticklabels()]
    ['mu', 'tau']
    """
    if not isinstance(report, Report):
        check_made_by("`diagnose` or `moment_table`", report, MomentTable, "report")
    table = report.moments if isinstance(report, Report) else report
    known = report.tolerance if isinstance(report, Report) else 0.1
    tolerance = known if tolerance is None else check_tolerance(tolerance)
    places = table.worst_coordinates()[: check_positive_integer(most, "most")]
    count, more = len(places), len(table.names) - len(places)
    ratio, ratio_ends = table.errors.sd_ratio, table.errors.sd_ratio_interval()
    off = np.asarray(table.errors.mean_off)
    shown = [("mean, in standard deviations", BLUE, "o", off, table.errors.mean_off_interval())]
    if ratio is not None and ratio_ends is not None:
        shown.append(("standard deviation, as a share", RED, "D", np.asarray(ratio) - 1, ratio_ends - 1))
    ax = get_axes(ax, height=max(2.6, 0.38 * (count + (more > 0)) + 1.7))
    ax.axvspan(-tolerance, tolerance, color="grey", alpha=0.18, linewidth=0, label=f"tolerance {tolerance:g}")
    ax.axvline(0, color="black", linewidth=0.8)
    largest = 2 * tolerance
    for k, (label, colour, marker, values, ends) in enumerate(shown):
        values, ends = np.asarray(values, float)[places], np.asarray(ends, float)[:, places]
        # Means above standard deviations, in one row.
        rows = np.arange(count) + (0.32 * k - 0.16 if len(shown) > 1 else 0)
        unknown = np.isnan(values)
        bars = np.abs(ends - values)
        ax.errorbar(
            values, rows, xerr=bars, fmt=marker, color=colour, markersize=5, capsize=2, linewidth=1.2, label=label
        )
        for row in rows[unknown]:
            ax.annotate("not known", (0, row), (4, 0), textcoords="offset points", va="center", fontsize="x-small",
                        color=colour)  # fmt: skip
        largest = float(np.nanmax(np.abs(ends), initial=largest))
    if largest > _FAR * tolerance:
        ax.set_xscale("symlog", linthresh=2 * tolerance)
        ax.xaxis.set_major_formatter(lambda error, _: f"{error:g}")
        largest *= 1.5
    else:
        ax.xaxis.set_major_locator(MaxNLocator(6, steps=(1, 2, 5, 10)))
    ax.set_xlim(-1.1 * largest, 1.1 * largest)
    names = [shorten(table.names[k]) for k in places]
    ax.set_yticks(range(count + (more > 0)), [*names, f"+ {more:,} more"] if more > 0 else names)
    ax.set_ylim(count + (more > 0) - 0.5, -0.5)
    ax.set_xlabel("too small  ←  error  →  too large")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), frameon=False, fontsize="small")
    return ax


def second_moments(table: MomentTable, *, most: int = 20, ax: Axes | None = None) -> Axes:
    """Errors of standard deviations and correlations, a heat map.

    On the diagonal is the error of each standard deviation as a share of it; elsewhere, that of each correlation.

    Parameters
    ----------
    table
        From `moment_table` of order 2 or more, with interactions; or `diagnose(…).moments`.
    most
        How many coordinates to show, in their order: those with the largest errors.
    ax
        Axes to draw on; new ones by default.

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
        raise ValueError(
            "This table has no errors of correlations. They take a table of order 2 or more, with interactions, of no "
            "more coordinates than all products can be regressed of; `plots.errors` shows errors of means and standard "
            "deviations."
        )
    off = np.array(errors.correlation - errors.true_correlation)
    np.fill_diagonal(off, np.asarray(errors.sd_ratio) - 1)
    # The largest error that a coordinate has a part in; what is not known is no error, and left blank.
    worst = np.argsort(-np.nan_to_num(np.abs(off)).max(axis=0), kind="stable")
    places = np.sort(worst[: check_positive_integer(most, "most")])
    dim, off = len(places), off[np.ix_(places, places)]
    known = np.isfinite(off)
    largest = float(np.abs(off[known]).max(initial=0.05))
    ax = get_axes(ax, height=5.4)
    image = ax.imshow(off, cmap="RdBu_r", vmin=-largest, vmax=largest)
    # Beside the map, whatever room there is.
    bar = ax.figure.colorbar(image, cax=ax.inset_axes((1.03, 0, 0.04, 1)))
    bar.set_label("error of correlation;\ndiagonal: of sd, as a share", fontsize="small")
    names = [shorten(table.names[k]) for k in places]
    size = "small" if dim > 10 else "medium"
    is_wide = dim * max(map(len, names)) > _LETTERS
    ax.set_xticks(range(dim), names, rotation=90 if is_wide else 0, fontsize=size)
    ax.set_yticks(range(dim), names, fontsize=size)
    if dim < len(table.names):
        ax.set_title(f"the {dim} of {len(table.names):,} coordinates with the largest errors", fontsize="medium")
    if dim <= 6:
        for (i, j), error in np.ndenumerate(off):
            shade = "white" if abs(error) > 0.6 * largest else "black"
            text = f"{error:+z.2f}" if known[i, j] else "?"
            ax.text(j, i, text, ha="center", va="center", color=shade, fontsize="small")
    elif not known.any():
        ax.text(0.5, 0.5, "not known", transform=ax.transAxes, ha="center", va="center")
    return ax
