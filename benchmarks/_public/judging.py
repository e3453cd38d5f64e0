"""What is stated of a set of draws, and whether it is true.

Errors are those of the very draws: their mean less the true one, and their standard deviation over the true one.
"""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxpsd
from benchmarks._public.known import Moments, PublicModel

TOLERANCE = 0.1

# What the digits of numbers can hold; and how many standard errors of the ground truth are allowed for: of an interval
# by itself, and of all coordinates at once.
SLACK, OF_ONE, OF_ALL = 0.002, 2, 4

# Where features explain less than this share of a function's variance, or its expectation may be off by more than so
# many of its standard deviations for what they do not see, the library says that it is not to be trusted.
_LEAST_EXPLAINED, _MOST_UNSEEN = 0.5, 0.2

# An interval that the truth misses by more than its own half-width, beyond its end, is listed.
BADLY = 2.0


def errors_of(x: Any, truth: Moments) -> tuple[np.ndarray, np.ndarray]:
    """Errors of means, in true standard deviations, and logarithms of ratios of standard deviations; of (…, dim)."""
    x = np.asarray(x, np.float64).reshape(-1, len(truth.mean))
    return (x.mean(axis=0) - truth.mean) / truth.sd, np.log(x.std(axis=0) / truth.sd)


def fits(off: np.ndarray, log_ratio: np.ndarray, truth: Moments, tolerance: float = TOLERANCE) -> bool | None:
    """Whether all errors are within the tolerance; None where the ground truth is not accurate enough to tell."""
    sizes = np.concatenate([np.abs(off), np.abs(np.expm1(log_ratio))])
    unsure = OF_ALL * np.concatenate([truth.mean_se, truth.log_sd_se]) + SLACK
    if (sizes - unsure > tolerance).any():
        return False
    return True if (sizes + unsure <= tolerance).all() else None


def outcome(said: bool | None, true: bool | None) -> str:
    """Of a verdict: "right", "wrong", "not known", or "too close" for the ground truth to tell."""
    if said is None:
        return "not known"
    if true is None:
        return "too close"
    return "right" if said is true else "wrong"


def judge(key: jax.Array, model: PublicModel, x: jax.Array, truth: Moments) -> dict[str, Any]:
    """A report on draws of unconstrained positions, and corrected means of parameters, beside what is true."""
    row: dict[str, Any] = {"draws": int(np.prod(x.shape[:-1]))}
    if not np.isfinite(np.asarray(x)).all():
        return row | {"refused": "the sampler gave draws that are not finite"}
    theta = jax.vmap(model.constrained)(x.reshape(-1, model.dim))
    row |= _true_errors(theta, model.truth)
    off, log_ratio = errors_of(x, truth)
    true = fits(off, log_ratio, truth)
    row |= {
        "fits": true,
        "worst mean": _named(off, model.names),
        "worst sd": _named(np.expm1(log_ratio), model.names),
    }
    try:
        report = jaxpsd.diagnose(key, model.logdensity, x, tolerance=TOLERANCE, names=model.names)
    except Exception as error:
        # A report that is not there is something to count, and no reason to lose the others.
        return row | {"refused": f"{type(error).__name__}: {error}"[:300]}
    errors = report.moments.errors
    row |= {
        "verdict": report.verdict,
        "good enough": report.good_enough,
        "outcome": outcome(report.good_enough, true),
        "rejected": report.reject,
        "rejected by the test": bool(report.test.reject),
        "effective draws": report.total_effective,
        "largest R-hat": float(np.max(report.r_hat)),
    }
    row["means"] = hold(
        np.asarray(errors.mean_off, np.float64), errors.mean_off_interval(), off, truth.mean_se, model.names
    )
    if (ends := errors.sd_ratio_interval()) is not None:
        logs = np.log(np.asarray(errors.sd_ratio, np.float64))
        row["sds"] = hold(logs, np.log(ends), log_ratio, truth.log_sd_se, model.names)
    return row | _corrected(model, x)


def _true_errors(theta: jax.Array, truth: Moments) -> dict[str, Any]:
    """Of parameters: b² of means, and the same with standard deviations, which sampling gives about half of it."""
    off, log_ratio = errors_of(theta, truth)
    return {
        "b²": float((off**2).mean()),
        "largest b²": float((off**2).max()),
        "error": float(np.sqrt(np.concatenate([off**2, log_ratio**2]).mean())),
    }


def _corrected(model: PublicModel, x: jax.Array) -> dict[str, Any]:
    """Means of parameters, corrected, and so what is stated of the errors of plain means."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", jaxpsd.CorrectionWarning)
            found = jaxpsd.corrected_expectation(model.constrained, model.logdensity, x)
    except Exception as error:
        return {"corrected": {"refused": f"{type(error).__name__}: {error}"[:300]}}
    truth, names = model.truth, model.constrained_names
    parts = (found.sample_mean, found.value, found.interval, found.explained, found.unseen)
    plain, value, ends, explained, unseen = (np.asarray(part, np.float64) for part in parts)
    theta = np.asarray(jax.vmap(model.constrained)(x.reshape(-1, model.dim)), np.float64)
    is_known = (explained >= _LEAST_EXPLAINED) & (unseen <= _MOST_UNSEEN * theta.std(axis=0))
    stated = np.where(is_known, (plain - value) / truth.sd, np.nan)
    off = errors_of(theta, truth)[0]
    # The error is the plain mean less the target's, so that the upper end of one is the lower end of the other.
    interval = (plain - ends)[::-1] / truth.sd
    held = hold(stated, interval, off, truth.mean_se, names)
    k, known = int(np.abs(off).argmax()), np.isfinite(stated)
    at_worst = {"name": names[k], "true": float(off[k]), "stated": _number(stated[k])}
    if known[k]:
        at_worst["interval"] = [float(end) for end in interval[:, k]]
    b_squared = {"true": _mean(off[known] ** 2), "stated": _mean(stated[known] ** 2)}
    return {"corrected": {**held, "at the worst": at_worst, "b² of what is stated": b_squared}}


def hold(
    stated: np.ndarray, interval: np.ndarray, true: np.ndarray, se: np.ndarray, names: tuple[str, ...]
) -> dict[str, Any]:
    """Counts of errors that are stated, whose interval has the true one, and whose sign is right where it has one."""
    known, (low, high) = np.isfinite(stated), interval
    slack = OF_ONE * se + SLACK
    miss = np.fmax(low - true, true - high)
    clear = known & ((low > 0) | (high < 0)) & (np.abs(true) > slack)
    counts = {
        "all": len(stated), "stated": int(known.sum()), "covered": int((miss <= slack)[known].sum()),
        "signed": int(clear.sum()), "sign right": int((np.sign(stated) == np.sign(true))[clear].sum()),
    }  # fmt: skip
    half = np.maximum((high - low) / 2, SLACK)
    by = np.where(known, (np.abs(stated - true) - slack) / half, -np.inf)
    k = int(np.argmax(by))
    if by[k] > BADLY:
        counts["worst miss"] = {
            "name": names[k], "stated": float(stated[k]), "interval": [float(low[k]), float(high[k])],
            "true": float(true[k]), "count": int((by > BADLY).sum()),
        }  # fmt: skip
    return counts


def _named(errors: np.ndarray, names: tuple[str, ...]) -> dict[str, Any]:
    k = int(np.abs(errors).argmax())
    return {"name": names[k], "error": float(errors[k])}


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _mean(values: np.ndarray) -> float | None:
    return float(jnp.mean(values)) if len(values) else None


def judge_ranking(key: jax.Array, model: PublicModel, sets: dict[str, jax.Array], rows: list[dict[str, Any]]) -> Any:
    """Which of the sets `rank` chooses, and which has the least error in truth."""
    errors = {row["set"]: row["error"] for row in rows if "error" in row}
    try:
        ranking = jaxpsd.rank(key, None, model.logdensity, sets)
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {error}"[:300]}
    best = min(errors, key=errors.__getitem__)
    chosen = errors.get(ranking.best, np.inf)
    return {
        "chosen": ranking.best, "as good": list(ranking.as_good), "undecided": list(ranking.undecided),
        "error of the chosen": chosen, "best": best, "error of the best": errors[best],
        # Draws that differ by chance alone have errors that do, too.
        "right": bool(chosen <= max(2 * errors[best], TOLERANCE / 2)),
    }  # fmt: skip
