"""Everything at a glance: a report on a set of draws."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float, PRNGKeyArray

from jaxpsd._core.blocks import MEMORY_BUDGET
from jaxpsd._core.checks import check_key
from jaxpsd._core.draws import Draws, ravel
from jaxpsd._core.scores import check_input
from jaxpsd._core.types import PyTree, Target
from jaxpsd._discrepancies.psd import PSD
from jaxpsd._discrepancies.psd_plans import replicate_bytes
from jaxpsd._explain.advice import Facts, advice, caveats, verdict
from jaxpsd._explain.directions import worst_directions
from jaxpsd._explain.moments import MomentTable, check_names, make_table
from jaxpsd._explain.regression import REGRESSION_TAKES, can_regress
from jaxpsd._explain.report import DetectableErrors, Finding, Report
from jaxpsd._gof.adaptive import run_adaptive_test
from jaxpsd._gof.dependence import measure_dependence, times_by_chain
from jaxpsd._gof.settings import Settings, check_several
from jaxpsd._stein.coordinates import Rule, canonical, fit
from jaxpsd._stein.polynomials import num_monomials

Chains = Float[np.ndarray, "chains draws dim"]

# An error of a moment stands out where it is more than so many times what chance makes of it.
_STANDS_OUT = 3.5

# The first tenth of a chain is burn-in if its mean is off by more than so many standard errors.
_BURN_IN = 5

# Probability with which the smallest detectable error would have been detected.
_POWER = 0.8


def diagnose(
    rng_key: PRNGKeyArray,
    target: Target,
    samples: PyTree,
    *,
    names: Sequence[str] | None = None,
    alpha: float = 0.05,
    num_replicates: int = 1000,
    weights: ArrayLike | None = None,
    chains: bool | None = None,
) -> Report:
    """Say how good a set of draws is, what is wrong with it, and what to do.

    Parameters
    ----------
    rng_key, target, samples, alpha, num_replicates, weights, chains
        As in `gof_test`.
    names
        Names of the coordinates; taken from the structure of the samples by default.

    Returns
    -------
    Report
        A verdict in one sentence, and what it rests on. It prints as text, shows as tables in a notebook, and goes to
        JSON by `to_dict`.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> def logdensity(x):
    ...     return -0.5 * jnp.sum(x**2)
    >>> key = jax.random.key(0)
    >>> samples = jax.random.normal(key, (4, 500, 2)) * jnp.array([1.0, 0.6])
    >>> report = jaxpsd.diagnose(key, logdensity, samples, names=("mu", "tau"))
    >>> print(report.verdict)
    These draws are not from the target (p = 0.00...): the standard deviation of tau is 0.60 times the target's.
    """
    check_key(rng_key)
    settings = Settings.checked("auto", num_replicates, alpha, None, None)
    settings.check_attainable()
    given = check_input(target, samples, weights, chains)
    draws = given.draws
    check_several(draws)
    names = check_names(names, draws)
    if not given.is_concrete:
        raise ValueError("`diagnose` looks at values and cannot be traced; call it outside `jit` and `vmap`.")
    given = given.with_scores()
    given.check_finite()
    order, interactions = _features(draws, num_replicates, weighted=given.weights is not None)
    # Coordinates, and how dependent the draws are, serve the test and the table.
    standardized = fit(Rule.STANDARDIZE, given)
    coordinates = canonical(given, standardized)
    psd = PSD(order, interactions=interactions, basis="hermite", transform="target", form="primal")
    plan = replace(psd, transform=coordinates)._plan(given, num_replicates)
    dependence = measure_dependence(given, plan) if draws.num_draws > draws.num_chains else None
    test_key, table_key = jax.random.split(rng_key)
    test = run_adaptive_test(test_key, given, settings, transform=coordinates, dependence=dependence)
    table, discrepancy = make_table(table_key, psd, given, settings, names, standardized, dependence, coordinates)
    times = times_by_chain(given, plan)
    effective = draws.num_draws / draws.num_chains / times
    x = np.asarray(ravel(draws.positions), np.float64).reshape(draws.num_chains, -1, draws.dim)
    r_hat, total = _rank_normalized_r_hat(x), float(effective.sum())
    detectable = _detectable(total, num_monomials(draws.dim, order, interactions=interactions), alpha)
    findings = _findings(table, total)
    if test.reject and not findings:
        findings = worst_directions(replace(psd, transform=coordinates), given, table, total)
    burn_in = _burn_in(x, times)
    facts = Facts(draws, names, test, table, findings, times, total, r_hat, burn_in, detectable)
    return Report(
        verdict=verdict(facts),
        test=test,
        discrepancy=discrepancy,
        moments=table,
        findings=findings,
        autocorrelation_time=times,
        effective_draws=effective,
        r_hat=r_hat,
        detectable=detectable,
        caveats=caveats(facts),
        advice=advice(facts),
        shapes=draws.shapes,
    )


def _features(draws: Draws, num_replicates: int, *, weighted: bool) -> tuple[int, bool]:
    """Order and interactions of the moments to look at: as many as can be regressed on, and replicated."""
    for order, interactions in ((2, True), (2, False), (1, False)):
        count = num_monomials(draws.dim, order, interactions=interactions)
        fits = replicate_bytes(count, num_replicates, draws.dtype) <= MEMORY_BUDGET
        if fits and can_regress(count, draws.num_draws, weighted=weighted):
            return order, interactions
    raise ValueError(
        f"`diagnose` cannot look at {draws.dim:,} coordinates of {draws.num_draws:,} draws with {num_replicates:,} "
        f"replicates: {REGRESSION_TAKES}. Thin the draws, take fewer replicates, or use `adaptive_test`."
    )


# --- what is looked at beside tests and moments -----------------------------------------------------------


def _rank_normalized_r_hat(x: Chains) -> Float[np.ndarray, " dim"]:
    """The larger of split R-hat of the ranks, and of the ranks of distances from the median (Vehtari et al., 2021).

    Ranks are taken to be those of normal variables, so that heavy tails do no harm; and distances show where chains
    agree about the location but not about the scale.
    """
    if x.shape[1] < 4:
        return np.ones(x.shape[2])
    # Not `scipy.stats`, which has ranks too: importing it takes many times as long as ranking.
    from scipy.special import ndtri

    def ranks(column: np.ndarray) -> np.ndarray:
        """Equal values, as chains with rejections have, share the mean of their ranks."""
        _, place, counts = np.unique(column, return_inverse=True, return_counts=True)
        return (np.cumsum(counts) - (counts - 1) / 2)[place]

    def r_hat(values: Chains) -> Float[np.ndarray, " dim"]:
        ranked = np.apply_along_axis(ranks, 0, values.reshape(-1, x.shape[2])).reshape(x.shape)
        return _split_r_hat(ndtri((ranked - 3 / 8) / (x.shape[0] * x.shape[1] + 1 / 4)))

    return np.maximum(r_hat(x), r_hat(np.abs(x - np.median(x, axis=(0, 1)))))


def _split_r_hat(x: Chains) -> Float[np.ndarray, " dim"]:
    """Variance of all draws over that within halves of chains, as a ratio of standard deviations (Gelman et al.)."""
    half = x.shape[1] // 2
    halves = np.concatenate([x[:, :half], x[:, -half:]])
    within = halves.var(axis=1, ddof=1).mean(axis=0)
    between = halves.mean(axis=1).var(axis=0, ddof=1)
    # A coordinate that does not move agrees with itself, unless it stands still in different places.
    ratio = np.where(within > 0, between / np.where(within > 0, within, 1), np.where(between > 0, np.inf, 1 / half))
    return np.sqrt((half - 1) / half + ratio)


def _burn_in(x: Chains, times: Float[np.ndarray, " chains"]) -> int | None:
    """The coordinate whose first tenth is farthest from the rest, if it is too far."""
    start = x.shape[1] // 10
    if start < 10:
        return None
    first, rest = x[:, :start], x[:, start:]
    error = rest.std(axis=(0, 1)) * np.sqrt(times.max() / (first.shape[0] * start))
    off = np.abs(first.mean(axis=(0, 1)) - rest.mean(axis=(0, 1))) / np.where(error > 0, error, np.inf)
    return int(off.argmax()) if off.max() > _BURN_IN else None


def _detectable(effective: float, num_features: int, alpha: float) -> DetectableErrors:
    """From the normal limit: mean features whose number tells how large the largest of them is by chance."""
    normal = NormalDist()
    times_error = normal.inv_cdf(1 - alpha / (2 * num_features)) + normal.inv_cdf(_POWER)
    # The variance of n independent standard normal draws' mean is 1/n; that of the log of their sd, 1/(2n).
    return DetectableErrors(times_error / effective**0.5, times_error / (2 * effective) ** 0.5)


def _findings(table: MomentTable, effective: float, most: int = 5) -> tuple[Finding, ...]:
    """Errors of means, standard deviations and correlations that chance does not explain, the largest first."""
    errors: Any = jax.tree.map(lambda values: np.asarray(values, np.float64), table.errors)
    names, found = table.names, []

    def look_at(quantity: str, off: np.ndarray, by_chance: float, se: np.ndarray, say: Callable[..., tuple]) -> None:
        """Measure errors in units of what chance and the uncertainty of the correction make of them."""
        scores = np.abs(off) / np.hypot(by_chance, se)
        for at in zip(*np.nonzero((scores > _STANDS_OUT) & (scores < np.inf)), strict=True):
            text, error = say(*at)
            found.append(Finding(text, float(scores[at]), quantity, float(error)))

    def say_mean(k: int) -> tuple[str, float]:
        off = errors.mean_off[k]
        return f"the mean of {names[k]} is {abs(off):.2f} standard deviations too {'high' if off > 0 else 'low'}", off

    def say_scale(k: int) -> tuple[str, float]:
        return f"the standard deviation of {names[k]} is {ratio[k]:.2f} times the target's", ratio[k] - 1

    def say_correlation(i: int, j: int) -> tuple[str, float]:
        values = f"{drawn[i, j]:.2f} and should be {right[i, j]:.2f}"
        return f"the correlation of {names[i]} and {names[j]} is {values}", drawn[i, j] - right[i, j]

    look_at("mean", errors.mean_off, effective**-0.5, errors.mean_off_se, say_mean)
    if (ratio := errors.sd_ratio) is not None:
        se = errors.sd_ratio_se / ratio
        look_at("standard deviation", np.log(ratio), (2 * effective) ** -0.5, se, say_scale)
    if errors.correlation is not None:
        drawn, right = (np.clip(each, -0.999, 0.999) for each in (errors.correlation, errors.true_correlation))
        # Fisher's transform, whose variance does not depend on the correlation.
        off = np.triu(np.arctanh(drawn) - np.arctanh(right), 1)
        look_at("correlation", off, effective**-0.5, errors.correlation_se / (1 - right**2), say_correlation)
    return tuple(sorted(found, key=lambda finding: -finding.score)[:most])
