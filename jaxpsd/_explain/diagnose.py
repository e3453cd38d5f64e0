"""Everything at a glance: a report on a set of draws."""

import warnings
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float, PRNGKeyArray

from jaxpsd._core.blocks import MEMORY_BUDGET
from jaxpsd._core.checks import check_key, is_concrete
from jaxpsd._core.doubts import PrecisionWarning
from jaxpsd._core.draws import Draws, ravel
from jaxpsd._core.scores import check_finite_draws, scores_of
from jaxpsd._core.types import PyTree, Target
from jaxpsd._discrepancies.base import check_input
from jaxpsd._discrepancies.psd import PSD, replicate_bytes
from jaxpsd._explain.advice import Facts, advice, caveats, verdict
from jaxpsd._explain.moments import MomentTable, checked_names, tabulated
from jaxpsd._explain.regression import REGRESSION_TAKES, can_regress
from jaxpsd._explain.report import DetectableErrors, Finding, Report
from jaxpsd._gof.adaptive import adaptive_test
from jaxpsd._gof.dependence import times_by_chain
from jaxpsd._gof.settings import Settings, check_several
from jaxpsd._stein.monomials import num_monomials

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
    with warnings.catch_warnings():
        # The test below says it again, into the report.
        warnings.simplefilter("ignore", PrecisionWarning)
        target, draws, weights = check_input(target, samples, weights, chains)
    check_several(draws)
    names = checked_names(names, draws)
    if not is_concrete(draws, target, weights):
        raise ValueError("`diagnose` looks at values and cannot be traced; call it outside `jit` and `vmap`.")
    target = scores_of(target, draws)
    check_finite_draws(draws, target)
    scores = Draws(target, draws.num_chains)
    order, interactions = _features(draws, num_replicates, weighted=weights is not None)
    psd = PSD(order, interactions=interactions, transform="standardize", form="primal")
    test_key, table_key = jax.random.split(rng_key)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        test = adaptive_test(test_key, scores, draws, alpha=alpha, weights=weights, num_replicates=num_replicates)
    with warnings.catch_warnings():
        # What makes draws doubtful the test has said.
        warnings.simplefilter("ignore")
        table, discrepancy = tabulated(table_key, psd, target, draws, weights, settings, names)
    times = _times(target, draws, psd)
    effective = draws.num_draws / draws.num_chains / times
    x = np.asarray(ravel(draws.positions), np.float64).reshape(draws.num_chains, -1, draws.dim)
    disagreement = _split_r_hat(x)
    total = float(effective.sum())
    detectable = _detectable(total, num_monomials(draws.dim, order, interactions=interactions), alpha)
    findings = _findings(table, total)
    facts = Facts(
        draws, names, test, table, findings, times, total, disagreement, _burn_in(x, times), detectable,
        tuple(dict.fromkeys(str(warning.message) for warning in caught)),
    )  # fmt: skip
    return Report(
        verdict=verdict(facts),
        test=test,
        discrepancy=discrepancy,
        moments=table,
        findings=findings,
        autocorrelation_time=times,
        effective_draws=effective,
        disagreement=disagreement,
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


def _times(scores: PyTree, draws: Draws, psd: PSD) -> Float[np.ndarray, " chains"]:
    if draws.num_draws == draws.num_chains:
        return np.ones(draws.num_chains)
    return times_by_chain(scores, draws, psd._form(draws, None))


def _split_r_hat(x: Float[np.ndarray, "chains draws dim"]) -> Float[np.ndarray, " dim"]:
    """Variance of all draws over that within halves of chains, as a ratio of standard deviations (Gelman et al.)."""
    half = x.shape[1] // 2
    if half < 2:
        return np.ones(x.shape[2])
    halves = np.concatenate([x[:, :half], x[:, -half:]])
    within = halves.var(axis=1, ddof=1).mean(axis=0)
    between = halves.mean(axis=1).var(axis=0, ddof=1)
    # A coordinate that does not move agrees with itself, unless it stands still in different places.
    ratio = np.where(within > 0, between / np.where(within > 0, within, 1), np.where(between > 0, np.inf, 1 / half))
    return np.sqrt((half - 1) / half + ratio)


def _burn_in(x: Float[np.ndarray, "chains draws dim"], times: Float[np.ndarray, " chains"]) -> int | None:
    """The coordinate whose first tenth is farthest from the rest, if it is too far."""
    start = x.shape[1] // 10
    if start < 10:
        return None
    first, rest = x[:, :start], x[:, start:]
    sd = rest.std(axis=(0, 1))
    error = sd * np.sqrt(times.max() / (first.shape[0] * start))
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
    errors, names = table.errors, table.names

    def score(off: np.ndarray, by_chance: float, error: Any) -> np.ndarray:
        """In units of what chance and the uncertainty of the correction make of it; zero where it is not known."""
        scores = np.abs(off) / np.hypot(by_chance, np.asarray(error, np.float64))
        return np.where(np.isfinite(scores), scores, 0)

    off = np.asarray(errors.mean, np.float64)
    by_size = score(off, effective**-0.5, errors.mean_error)
    found = [
        Finding(
            f"the mean of {name} is {abs(off[k]):.2f} standard deviations too {'high' if off[k] > 0 else 'low'}",
            float(by_size[k]),
            "mean",
            float(off[k]),
        )
        for k, name in enumerate(names)
    ]
    if errors.scale is not None:
        ratio = np.asarray(errors.scale, np.float64)
        by_size = score(np.log(ratio), (2 * effective) ** -0.5, np.asarray(errors.scale_error) / ratio)
        found += [
            Finding(
                f"the standard deviation of {name} is {ratio[k]:.2f} times the target's",
                float(by_size[k]),
                "standard deviation",
                float(ratio[k] - 1),
            )
            for k, name in enumerate(names)
        ]
    if errors.correlation is not None and errors.true_correlation is not None:
        drawn, right = (
            np.clip(np.asarray(matrix, np.float64), -0.999, 0.999)
            for matrix in (errors.correlation, errors.true_correlation)
        )
        # Fisher's transform, whose variance does not depend on the correlation.
        off = np.triu(np.arctanh(drawn) - np.arctanh(right), 1)
        by_size = score(off, effective**-0.5, np.asarray(errors.correlation_error) / (1 - right**2))
        for flat in np.argsort(-by_size, axis=None)[:most]:
            i, j = np.unravel_index(flat, off.shape)
            if i < j:
                text = (
                    f"the correlation of {names[i]} and {names[j]} is {drawn[i, j]:.2f} and should be {right[i, j]:.2f}"
                )
                found.append(Finding(text, float(by_size[i, j]), "correlation", float(drawn[i, j] - right[i, j])))
    found = [finding for finding in found if finding.score > _STANDS_OUT]
    return tuple(sorted(found, key=lambda finding: -finding.score)[:most])
