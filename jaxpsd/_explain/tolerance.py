"""Good enough? Whether errors of means and standard deviations are within what the user can bear.

A test rejects every biased sampler once draws are many. Here it is asked whether all errors are within a tolerance:
simultaneous intervals that lie inside it say yes, one that lies outside says no, and otherwise it cannot be told. It is
asked of draws, whose errors are known well, or of the sampler they came from, which is not to blame for chance.
"""

from collections.abc import Callable
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from jaxpsd._core.checks import check_positive
from jaxpsd._explain.errors import ImpliedErrors
from jaxpsd._explain.phrases import mean_error, sd_error

# All intervals hold at once with this probability.
_CONFIDENCE = 0.95

# Errors that an interval allows, to see what they amount to.
_STEPS = 17

_Values = Float[np.ndarray, "..."]


class BSquared(NamedTuple):
    """Squared errors in units of the target's variances: b² of the literature on samplers without an accept step.

    means
        (E_Q x − E_P x)² / Var_P x of each coordinate.
    second_moments
        (E_Q x² − E_P x²)² / Var_P x², with the variance that a normal distribution would have.
    means_interval, second_moments_interval
        Lower and upper ends of these, which hold all at once with a confidence of 95%.
    """

    means: Float[np.ndarray, " dim"]
    second_moments: Float[np.ndarray, " dim"]
    means_interval: Float[np.ndarray, "2 dim"]
    second_moments_interval: Float[np.ndarray, "2 dim"]


def b_squared(errors: ImpliedErrors, mean: Float[np.ndarray, " dim"], sd: Float[np.ndarray, " dim"]) -> BSquared:
    """From implied errors, and the mean and standard deviations of the draws; NaN where an error is not known."""

    def of_means(off: _Values, _: _Values) -> _Values:
        return off

    def of_second_moments(off: _Values, ratio: _Values) -> _Values:
        """The error in standard deviations of x²."""
        right_sd = sd / ratio
        right_mean = mean - off * right_sd
        error = (mean**2 + sd**2) - (right_mean**2 + right_sd**2)
        return error / np.sqrt(2 * right_sd**4 + 4 * right_mean**2 * right_sd**2)

    dim, quantile = len(mean), _simultaneous(_CONFIDENCE, 2 * len(mean))
    off, ratio = np.asarray(errors.mean_off, np.float64), errors.sd_ratio
    ratio_ends = errors.sd_ratio_interval(quantile)
    ratio = np.full(dim, np.nan) if ratio is None else np.asarray(ratio, np.float64)
    logs = np.full((2, dim), np.nan) if ratio_ends is None else np.log(np.asarray(ratio_ends, np.float64))
    offs = np.asarray(errors.mean_off_interval(quantile), np.float64)
    # Over all errors that the intervals allow: a grid of them, along new first axes.
    steps = np.linspace(0, 1, _STEPS)[:, None]
    offs = (offs[0] + steps * (offs[1] - offs[0]))[:, None]
    ratios = np.exp(logs[0] + steps * (logs[1] - logs[0]))[None]

    def ends(error: Callable[[_Values, _Values], _Values]) -> Float[np.ndarray, "2 dim"]:
        allowed = np.broadcast_to(error(offs, ratios), (_STEPS, _STEPS, dim)).reshape(-1, dim)
        low, high = allowed.min(axis=0), allowed.max(axis=0)
        has_sign = np.sign(low) * np.sign(high) > 0
        squares = np.stack([low, high]) ** 2
        # What is not known stays so.
        return np.stack([np.where(has_sign, squares.min(axis=0), 0 * squares[0]), squares.max(axis=0)])

    return BSquared(off**2, of_second_moments(off, ratio) ** 2, ends(of_means), ends(of_second_moments))


def _simultaneous(confidence: float, count: int) -> float:
    """Half the width, in standard errors, of so many intervals that hold all at once (Bonferroni)."""
    return NormalDist().inv_cdf(1 - (1 - confidence) / (2 * count))


class Chance(NamedTuple):
    """Standard errors that chance gives to means, in standard deviations of the target, and to logarithms of sds."""

    mean: Float[np.ndarray, " dim"]
    log_sd: Float[np.ndarray, " dim"]

    @classmethod
    def of_draws(cls, x: Float[np.ndarray, "chains draws dim"], effective: float, errors: ImpliedErrors) -> "Chance":
        """By the kurtosis of the draws, for as many independent ones as they are worth."""
        squares = (x - x.mean(axis=(0, 1))) ** 2
        variance = squares.mean(axis=(0, 1))
        kurtosis = (squares**2).mean(axis=(0, 1)) / np.where(variance > 0, variance, 1) ** 2
        # Draws that are too wide have means that vary more; of those that are too narrow it may not be chance.
        ratio = 1.0 if errors.sd_ratio is None else np.fmax(np.asarray(errors.sd_ratio, np.float64), 1)
        log_sd = np.sqrt(np.maximum(kurtosis - 1, 1) / (4 * effective))
        return cls(np.full_like(log_sd, effective**-0.5) * ratio, log_sd)


class Judgement(NamedTuple):
    """Whether draws are good enough.

    good_enough
        True or False; None where it cannot be told.
    reason
        Why, in words.
    is_bias
        Whether chance does not explain what is not good enough, so that more draws would not help.
    times
        How many times as many draws would tell, or would do, where that is known.
    about
        What it is about, such as "the mean of x".
    """

    good_enough: bool | None
    reason: str
    is_bias: bool = False
    times: float | None = None
    about: str = ""


def check_tolerance(tolerance: float) -> float:
    """A number between zero and one: standard deviations for means, a share for standard deviations."""
    check_positive(tolerance, "tolerance")
    if tolerance >= 1:
        raise ValueError(
            "`tolerance` must be below 1: by how many standard deviations means, and by which share standard "
            f"deviations, may be off; got {tolerance:g}."
        )
    return float(tolerance)


def judge(errors: ImpliedErrors, chance: Chance, tolerance: float, names: tuple[str, ...]) -> Judgement:
    """Hold all errors of these draws to a tolerance."""
    return _judge(_Claims.of(errors, chance, tolerance, names, _CONFIDENCE), tolerance)


def judge_sampler(
    errors: ImpliedErrors, chance: Chance, tolerance: float, names: tuple[str, ...], confidence: float
) -> Judgement:
    """Hold to a tolerance what is wrong with a sampler: the errors of its draws, but for what chance made of them."""
    return _judge(_Claims.of(errors, chance, tolerance, names, confidence).of_sampler, tolerance)


def _judge(claims: "_Claims", tolerance: float) -> Judgement:
    if claims.is_outside.any():
        return _not_good_enough(claims)
    if claims.is_inside.all():
        within = f"every mean is within {tolerance:g} standard deviations of the target's"
        return Judgement(True, f"{within}, and every standard deviation within {tolerance:.0%}")
    if claims.is_unknown.any():
        places = np.flatnonzero(claims.is_unknown)
        more = f", nor of {len(places) - 1} more" if len(places) > 1 else ""
        return Judgement(None, f"the error of {claims.what(int(places[0]))} is not known{more}")
    # The one that reaches farthest beyond the tolerance.
    k = int(np.argmax(claims.reach))
    room = (claims.high - claims.low) / 2 - np.abs(claims.off)
    takes = np.where(room > claims.unseen, claims.random**2 / np.maximum(room**2 - claims.unseen**2, 1e-12), np.inf)
    times = float(takes.max())
    return Judgement(None, claims.say(k), times=times if np.isfinite(times) else None, about=claims.what(k))


def _not_good_enough(claims: "_Claims") -> Judgement:
    excess = np.where(claims.is_outside, claims.reach, -np.inf)
    # What chance does not explain comes first.
    is_biased = claims.is_outside & claims.is_biased
    k = int(np.argmax(np.where(is_biased, excess, -np.inf) if is_biased.any() else excess))
    limit = (claims.high - claims.low) / 2
    times = None if is_biased.any() else float(np.max((claims.by_chance / limit) ** 2))
    return Judgement(False, claims.say(k), bool(is_biased.any()), times, claims.what(k))


class _Claims(NamedTuple):
    """Errors of all means and standard deviations, these as logarithms of ratios, and what they are held to.

    off
        The errors.
    random, unseen
        How far off these may be, by chance and for what features do not see; all at once with some confidence.
    by_chance
        How far off draws of the target would be.
    low, high
        The tolerance.
    """

    off: Float[np.ndarray, " claims"]
    random: Float[np.ndarray, " claims"]
    unseen: Float[np.ndarray, " claims"]
    by_chance: Float[np.ndarray, " claims"]
    low: Float[np.ndarray, " claims"]
    high: Float[np.ndarray, " claims"]
    names: tuple[str, ...]

    @classmethod
    def of(
        cls, errors: ImpliedErrors, chance: Chance, tolerance: float, names: tuple[str, ...], confidence: float
    ) -> "_Claims":
        quantile = _simultaneous(confidence, 2 * len(names))
        dim = len(names)
        unknown = np.full(dim, np.nan)
        parts = np.array([errors.mean_off, errors.mean_off_se, errors.mean_off_unseen], np.float64)
        if errors.sd_ratio is None:
            scales = np.stack([unknown] * 3)
        else:
            ratio = np.asarray(errors.sd_ratio, np.float64)
            scales = np.array([np.log(ratio), np.asarray(errors.sd_ratio_se) / ratio, errors.sd_ratio_unseen])
        off, se, unseen = np.concatenate([parts, scales], axis=1)
        by_chance = quantile * np.concatenate([chance.mean, chance.log_sd])
        low, high = (np.repeat([sign * tolerance, np.log1p(sign * tolerance)], dim) for sign in (-1, 1))
        return cls(off, quantile * se, unseen, by_chance, low, high, names)

    @property
    def of_sampler(self) -> "_Claims":
        """The same of the sampler, of whose draws more is random: that they are these."""
        return self._replace(random=np.hypot(self.random, self.by_chance), by_chance=np.zeros_like(self.by_chance))

    @property
    def _half(self) -> Float[np.ndarray, " claims"]:
        return np.hypot(self.random, self.unseen)

    @property
    def is_unknown(self) -> Bool[np.ndarray, " claims"]:
        return np.isnan(self.off)

    @property
    def is_inside(self) -> Bool[np.ndarray, " claims"]:
        return (self.off - self._half >= self.low) & (self.off + self._half <= self.high)

    @property
    def is_outside(self) -> Bool[np.ndarray, " claims"]:
        return (self.off - self._half > self.high) | (self.off + self._half < self.low)

    @property
    def is_biased(self) -> Bool[np.ndarray, " claims"]:
        """Whether errors are outside by more than chance makes of right draws."""
        half = np.hypot(self._half, self.by_chance)
        return (self.off - half > self.high) | (self.off + half < self.low)

    @property
    def reach(self) -> Float[np.ndarray, " claims"]:
        """How far intervals reach, in units of the tolerance."""
        return np.nan_to_num((np.abs(self.off) + self._half) / self.high, nan=-np.inf)

    def what(self, k: int) -> str:
        quantity = "the mean" if k < len(self.names) else "the standard deviation"
        return f"{quantity} of {self.names[k % len(self.names)]}"

    def say(self, k: int) -> str:
        name = self.names[k % len(self.names)]
        ends = self.off[k] + self._half[k] * np.array([-1, 1])
        if k < len(self.names):
            return mean_error(name, self.off[k], ends)
        return sd_error(name, float(np.exp(self.off[k])), np.exp(ends))
