"""Errors of means, standard deviations and correlations that chance does not explain."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from jaxpsd._explain.errors import NORMAL_95, ImpliedErrors
from jaxpsd._explain.phrases import correlation_error, mean_error, sd_error
from jaxpsd._explain.tolerance import Chance

# An error of a moment stands out where it is more than so many times what chance makes of it.
_STANDS_OUT = 3.5

# How many of them a report names.
_MOST = 5


class Finding(NamedTuple):
    """An error of a moment.

    text
        What is wrong, in words, with an interval.
    score
        How large it is in units of what chance, and the uncertainty of the error, make of it.
    quantity
        "mean", "standard deviation" or "correlation".
    error
        How far off it is: a mean in standard deviations of the target, a standard deviation as a share of the
        target's, a correlation as it is.
    interval
        Where that error is, with 95% confidence.
    """

    text: str
    score: float
    quantity: str
    error: float
    interval: tuple[float, float]


def find_errors(errors: ImpliedErrors, chance: Chance, names: tuple[str, ...]) -> tuple[Finding, ...]:
    """Those that stand out, the largest first."""
    found: list[tuple[float, Finding]] = []

    def look_at(
        quantity: str,
        off: Float[np.ndarray, "..."],
        uncertainty: tuple[Float[np.ndarray, "..."], ...],
        say: Callable[..., tuple[str, float, tuple[float, float]]],
    ) -> None:
        """Errors on a scale on which they are about normal; standard errors by chance, of the estimate, and unseen."""
        # Squares of what is known no better than by a large number may be beyond single precision.
        by_chance, se, unseen = (np.asarray(part, np.float64) for part in uncertainty)
        scores = np.abs(off) / np.sqrt(by_chance**2 + se**2 + (unseen / NORMAL_95) ** 2)
        for at in zip(*np.nonzero((scores > _STANDS_OUT) & np.isfinite(scores)), strict=True):
            text, error, interval = say(*map(int, at))
            found.append((abs(float(off[at])), Finding(text, float(scores[at]), quantity, error, interval)))

    def say_mean(k: int) -> tuple[str, float, tuple[float, float]]:
        ends = (float(mean_ends[0, k]), float(mean_ends[1, k]))
        return mean_error(names[k], float(off[k]), ends), float(off[k]), ends

    def say_sd(k: int) -> tuple[str, float, tuple[float, float]]:
        assert sd_ends is not None
        ends = (float(sd_ends[0, k]), float(sd_ends[1, k]))
        return sd_error(names[k], float(ratio[k]), ends), float(ratio[k]) - 1, (ends[0] - 1, ends[1] - 1)

    def say_correlation(i: int, j: int) -> tuple[str, float, tuple[float, float]]:
        half = float(np.hypot(NORMAL_95 * correlation_se[i, j], correlation_unseen[i, j]))
        text = correlation_error((names[i], names[j]), float(drawn[i, j]), float(right[i, j]), half)
        error = float(drawn[i, j] - right[i, j])
        return text, error, (error - half, error + half)

    sd_ends = errors.sd_ratio_interval()
    off, mean_ends = np.asarray(errors.mean_off, np.float64), errors.mean_off_interval()
    look_at("mean", off, (chance.mean, *map(np.asarray, (errors.mean_off_se, errors.mean_off_unseen))), say_mean)
    if errors.sd_ratio is not None:
        ratio = np.asarray(errors.sd_ratio, np.float64)
        uncertainty = (chance.log_sd, np.asarray(errors.sd_ratio_se) / ratio, np.asarray(errors.sd_ratio_unseen))
        look_at("standard deviation", np.log(ratio), uncertainty, say_sd)
    if errors.correlation is not None and errors.true_correlation is not None:
        drawn, right = (np.clip(each, -0.999, 0.999) for each in (errors.correlation, errors.true_correlation))
        correlation_se, correlation_unseen = map(np.asarray, (errors.correlation_se, errors.correlation_unseen))
        # Fisher's transform, whose variance does not depend on the correlation.
        stretch = 1 / (1 - right**2)
        transformed = np.triu(np.arctanh(drawn) - np.arctanh(right), 1)
        uncertainty = (chance.mean[0], correlation_se * stretch, correlation_unseen * stretch)
        look_at("correlation", transformed, uncertainty, say_correlation)
    return tuple(finding for _, finding in sorted(found, key=lambda each: -each[0])[:_MOST])
