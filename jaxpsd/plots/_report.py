"""A report in one figure, for a paper or a pull request."""

import textwrap

import numpy as np

from jaxpsd._core.checks import check_positive_integer
from jaxpsd._explain.report import Report
from jaxpsd.plots._axes import Figure, check_made_by, plt
from jaxpsd.plots._errors import errors, second_moments
from jaxpsd.plots._evidence import moment_errors, null_distribution


def report(report: Report, *, most: int = 12) -> Figure:
    """A whole report in one figure: the verdict, errors, correlations, and the discrepancy beside what chance gives.

    Where the report knows of no correlations, as of many coordinates, there are moments in the order of evidence.

    Parameters
    ----------
    report
        From `diagnose`.
    most
        How many coordinates to show.

    Examples
    --------
    >>> import jax
    >>> from jaxpsd import diagnose, plots
    >>> x = jax.random.normal(jax.random.key(0), (1000, 2))
    >>> report = diagnose(jax.random.key(1), lambda x: -0.5 * (x**2).sum(), x)
    >>> figure = plots.report(report)
    >>> len(figure.axes)
    3
    """
    check_made_by("`diagnose`", report, Report, "report")
    found = report.moments.errors
    # Beside the diagonal of ones.
    known = 0 if found.true_correlation is None else np.isfinite(found.true_correlation).sum() - len(report.r_hat)
    has_map = bool(known > 0)
    rows = min(check_positive_integer(most, "most"), len(report.r_hat))
    figure = plt.figure(figsize=(11.5, max(6.2, 0.38 * rows + 2.6)), layout="constrained")
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(1.2, 1))[0]
    errors(report, most=most, ax=left.subplots())
    # Each in a part of its own, since names take more room below one than below the other.
    upper, lower = right.subfigures(2, 1, height_ratios=(1, 2))
    null_distribution(report.discrepancy, ax=upper.subplots())
    beside = second_moments if has_map else moment_errors
    beside(report.moments, most=most, ax=lower.subplots())
    figure.suptitle(textwrap.fill(report.verdict, 125), fontsize=11, x=0.01, ha="left")
    figure.supxlabel(_counts(report), fontsize="small", x=0.01, ha="left")
    return figure


def _counts(report: Report) -> str:
    """How many draws there were, in effect."""
    chains, effective = len(report.effective_draws), report.total_effective
    several = f"{chains} chains, " if chains > 1 else ""
    return (
        f"{several}worth {effective:,.0f} independent draws; autocorrelation time up to "
        f"{report.autocorrelation_time.max():.3g}; R-hat up to {report.r_hat.max():.2f}"
    )
