"""Whether it is more than chance: a statistic beside its replicates, and moments in the order of evidence."""

import numpy as np

from jaxpsd._core.checks import check_positive_integer
from jaxpsd._explain.errors import NORMAL_95
from jaxpsd._explain.moments import MomentTable
from jaxpsd._gof.result import GofResult
from jaxpsd.plots._axes import BLUE, RED, SKY, Axes, check_made_by, find_place, get_axes, label_decades, shorten

# A statistic so many times the largest replicate is shown on a logarithmic axis.
_FAR = 4


def null_distribution(result: GofResult, *, which: int | str = 0, ax: Axes | None = None) -> Axes:
    """The statistic of a test, and what it would be by chance.

    Parameters
    ----------
    result
        From `gof_test` or `adaptive_test`; or its `parts`.
    which
        Which statistic to show, by number or label, where several were tested.
    ax
        Axes to draw on; new ones by default.

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
    place = find_place(which, result.labels, "which")
    replicates = np.asarray(result.replicates).reshape(-1, len(result.labels))[:, place]
    if not len(replicates):
        raise ValueError("A deterministic test has no replicates to show.")
    statistic, p, threshold = np.reshape([result.statistic, result.p_value, result.threshold], (3, -1))[:, place]
    ax = get_axes(ax)
    # Far from them, the bars would be a line.
    is_far = replicates.min() > 0 and statistic > _FAR * replicates.max()
    bins = np.geomspace(replicates.min(), replicates.max(), 31) if is_far and np.ptp(replicates) > 0 else "auto"
    ax.hist(replicates, bins=bins, color=SKY, alpha=0.7, label="by chance")
    ax.axvline(threshold, color="black", linestyle="--", label=f"threshold\nat level {result.alpha:g}")
    ax.axvline(statistic, color=RED, linewidth=2, label=f"these draws,\np = {p:.3g}")
    ax.set(xlabel=result.labels[place], ylabel="replicates")
    if is_far:
        ax.set_xscale("log")
        label_decades(ax.xaxis)
    # Beside the bars, which it would hide.
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize="small")
    return ax


def moment_errors(table: MomentTable, *, most: int = 20, ax: Axes | None = None) -> Axes:
    """Mean Stein features with 95% intervals, those with the strongest evidence first; zero if the draws are right.

    Parameters
    ----------
    table
        From `moment_table`, or `diagnose(…).moments`.
    most
        How many polynomials to show.
    ax
        Axes to draw on; new ones by default.

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
    for chosen, colour, label in ((clear, RED, "adjusted p ≤ 0.05"), (~clear, BLUE, "may be chance")):
        if chosen.any():
            ax.barh(rows[chosen], mean[chosen], color=colour, alpha=0.6, label=label)
    ax.errorbar(mean, rows, xerr=NORMAL_95 * error, fmt="none", ecolor="black", capsize=2, linewidth=1)
    ax.axvline(0, color="black", linewidth=0.8)
    ax.set_yticks(rows, [shorten(label) for label in table.labels[:count]])
    ax.invert_yaxis()
    ax.set_xlabel("mean Stein feature, with 95% interval")
    if count < len(table.labels):
        ax.set_title(f"{count} of {len(table.labels):,} polynomials", fontsize="medium", pad=24)
    # Above the bars, which it would hide.
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, fontsize="small")
    return ax
