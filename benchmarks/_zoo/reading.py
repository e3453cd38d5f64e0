"""What a report states, and whether it is true.

Errors are those of the very draws: their mean less the target's, and their standard deviation over the target's. Where
a library's fields or wording change, `stated`, `said_good_enough` and `understand` are what to adapt.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks._zoo.approximations import Kind
from benchmarks._zoo.known import KnownTarget, TrueErrors, errors_of_law, true_errors
from jaxpsd import Report

TOLERANCE = 0.1

# What the digits of a table, and the accuracy of what is called true, can hold.
_SLACK = 0.002

# A thing named as the worst has to be at least this share of it.
_SHARE_OF_WORST = 0.75

# An error that stands out so much should not be called one that does not.
_STANDS_OUT = 5


class Stated(NamedTuple):
    """Errors of means and log ratios of standard deviations, with half-widths of 95% intervals; NaN is "not known"."""

    mean_off: np.ndarray
    mean_half: np.ndarray
    log_sd_ratio: np.ndarray
    log_sd_half: np.ndarray


def stated(report: Report) -> Stated:
    errors = report.moments.errors
    mean, mean_se = (np.asarray(each, np.float64) for each in (errors.mean_off, errors.mean_off_se))
    if errors.sd_ratio is None or errors.sd_ratio_se is None:
        unknown = np.full_like(mean, np.nan)
        return Stated(mean, 1.96 * mean_se, unknown, unknown)
    ratio, ratio_se = (np.asarray(each, np.float64) for each in (errors.sd_ratio, errors.sd_ratio_se))
    return Stated(mean, 1.96 * mean_se, np.log(ratio), 1.96 * ratio_se / ratio)


def said_good_enough(report: Report) -> str | None:
    """Yes, no, or cannot tell; None where the report has no opinion."""
    said = getattr(report, "good_enough", None)
    return {True: "yes", False: "no", None: None}.get(said, str(said)) if not isinstance(said, str) else said


VERDICTS = {
    "These draws are not from the target": "not from the target",
    "Too few effective draws": "too few",
    "No moment is clearly wrong": "chains disagree",
    "Nothing wrong was found": "nothing wrong",
}
_NOTHING_STANDS_OUT = "although no mean, standard deviation or correlation stands out"


def kind_of_verdict(report: Report) -> str:
    return next((kind for start, kind in VERDICTS.items() if report.verdict.startswith(start)), "not understood")


class Claim(NamedTuple):
    """A finding, as its words say it.

    quantity
        "mean", "standard deviation" or "correlation".
    of
        Coefficients of a linear combination; for a correlation, the two coordinates.
    value
        Error of a mean in standard deviations, log ratio of standard deviations, or what the correlation should be.
    rounding
        How much the printed digits leave open.
    """

    quantity: str
    of: np.ndarray
    value: float
    rounding: float


def understand(text: str, names: Sequence[str]) -> Claim | None:
    """The claim that a sentence makes; None for one that is not understood."""
    number = r"(-?\d+\.\d+)"
    if found := re.search(rf"correlation of (\S+) and (\S+) is {number} and should be {number}", text):
        one, other, _, right = found.groups()
        return Claim("correlation", np.array([names.index(one), names.index(other)]), float(right), 0.005)
    if found := re.search(rf"mean of (.+) is {number} standard deviations too (high|low)", text):
        size = float(found[2])
        return Claim("mean", _combination(found[1], names), size if found[3] == "high" else -size, 0.005)
    if found := re.search(rf"standard deviation of (.+) is {number} times the target's", text):
        ratio = max(float(found[2]), 0.005)
        return Claim("standard deviation", _combination(found[1], names), np.log(ratio), 0.005 / ratio)
    return None


def _combination(text: str, names: Sequence[str]) -> np.ndarray:
    """A coordinate, or a sum such as 0.71·a − 0.7·b, by its coefficients as printed."""
    coefficients = np.zeros(len(names))
    if text in names:
        coefficients[names.index(text)] = 1
        return coefficients
    for sign, size, name in re.findall(r"([+−]?) ?([\d.e+-]+)·(\S+)", text):
        coefficients[names.index(name)] = -float(size) if sign == "−" else float(size)
    return coefficients


class Truth(NamedTuple):
    """A set of draws and its target: moments, and errors of coordinates."""

    target: KnownTarget
    mean: np.ndarray
    covariance: np.ndarray
    errors: TrueErrors

    @classmethod
    def of(cls, target: KnownTarget, x: Any) -> "Truth":
        flat = np.asarray(x, np.float64).reshape(-1, target.dim)
        return cls(target, flat.mean(axis=0), np.atleast_2d(np.cov(flat, rowvar=False, ddof=0)), true_errors(target, x))

    def value(self, claim: Claim) -> float:
        """What the claim should have said."""
        if claim.quantity == "correlation":
            i, j = claim.of
            return float(self.target.covariance[i, j] / (self.target.sd[i] * self.target.sd[j]))
        variance = claim.of @ self.target.covariance @ claim.of
        if claim.quantity == "mean":
            return float(claim.of @ (self.mean - self.target.mean) / variance**0.5)
        return float(0.5 * np.log(claim.of @ self.covariance @ claim.of / variance))

    def size(self, claim: Claim) -> float:
        """Of the true error, in units of what chance makes of one effective draw: 1, ½ for a variance of a log sd."""
        if claim.quantity == "correlation":
            return float(self._correlation_sizes()[tuple(claim.of)])
        return abs(self.value(claim)) * (2**0.5 if claim.quantity == "standard deviation" else 1)

    def largest(self, claim: Claim) -> float:
        """The largest error there is, in the same units: of coordinates, or of any direction for a combination."""
        if claim.quantity == "correlation" or np.count_nonzero(claim.of) == 1:
            sizes = (np.abs(self.errors.mean_off), 2**0.5 * np.abs(self.errors.log_sd_ratio), self._correlation_sizes())
            return float(max(each.max() for each in sizes))
        whiten = np.linalg.inv(np.linalg.cholesky(self.target.covariance))
        if claim.quantity == "mean":
            return float(np.linalg.norm(whiten @ (self.mean - self.target.mean)))
        return float(np.abs(np.log(np.linalg.eigvalsh(whiten @ self.covariance @ whiten.T))).max() / 2**0.5)

    def _correlation_sizes(self) -> np.ndarray:
        """By Fisher's transform."""
        right = self.target.covariance / np.outer(self.target.sd, self.target.sd)
        drawn, right = (np.clip(each, -0.999, 0.999) for each in (right + self.errors.correlation, right))
        return np.abs(np.arctanh(drawn) - np.arctanh(right)) * (1 - np.eye(len(right)))


def half_width(claim: Claim, finding: Any, report: Report) -> float:
    """Of the 95% interval of a finding's number."""
    errors = report.moments.errors
    if claim.quantity == "correlation":
        assert errors.correlation_se is not None
        return 1.96 * float(errors.correlation_se[tuple(claim.of)])
    if np.count_nonzero(claim.of) == 1:
        says = stated(report)
        halves = says.mean_half if claim.quantity == "mean" else says.log_sd_half
        return float(halves[claim.of.argmax()])
    # A finding of a combination has no interval; its score is the error over √(chance² + se²).
    off = finding.error if claim.quantity == "mean" else np.log1p(finding.error)
    chance = 1 / float(np.sum(report.effective_draws)) / (1 if claim.quantity == "mean" else 2)
    return 1.96 * max((off / finding.score) ** 2 - chance, 0.0) ** 0.5


def judge(report: Report, target: KnownTarget, kind: Kind, x: Any) -> tuple[Counter, list[dict[str, Any]]]:
    """Counts of statements by what they are and whether they are true; and the sentences that are wrong."""
    truth, counts, wrong = Truth.of(target, x), Counter(reports=1), []

    def sentence(about: str, is_true: bool, text: str, should_be: str) -> None:
        counts[f"sentences: {about}"] += 1
        if not is_true:
            counts[f"wrong: {about}"] += 1
            wrong.append({"about": about, "text": text, "truth": should_be})

    says, errors = stated(report), truth.errors
    for name, value, half, right in (
        ("mean", says.mean_off, says.mean_half, errors.mean_off),
        ("sd", says.log_sd_ratio, says.log_sd_half, errors.log_sd_ratio),
    ):
        known = np.isfinite(value) & np.isfinite(half)
        clear = known & (np.abs(value) > half) & (np.abs(right) > _SLACK)
        counts[f"{name}: all"] += len(value)
        counts[f"{name}: stated"] += int(known.sum())
        counts[f"{name}: covered"] += int((np.abs(value - right)[known] <= half[known] + _SLACK).sum())
        counts[f"{name}: signed"] += int(clear.sum())
        counts[f"{name}: sign right"] += int((np.sign(value) == np.sign(right))[clear].sum())
        # In units of 0.001, since counts are whole.
        counts[f"{name}: width"] += int(1000 * half[known].sum())

    verdict, law = kind_of_verdict(report), errors_of_law(target, kind.mean, kind.covariance)
    counts[f"verdict: {verdict}"] += 1
    effective, p = float(np.sum(report.effective_draws)), f"p = {float(report.test.p_value):.2g}"
    if verdict == "not from the target":
        sentence("not from the target", not kind.is_right, report.verdict, "they are")
    if verdict == "nothing wrong":
        # The law's errors: what chance does to a set is not to be detected.
        off, scale = np.abs(law.mean_off).max(), np.abs(np.expm1(law.log_sd_ratio)).max()
        unseen = off > report.detectable.mean or scale > report.detectable.scale
        # Draws of one mode of two are right as far as scores can tell.
        about = "would have shown" + (", modes apart" if target.name.startswith("bimodal") else "")
        sentence(about, not unseen, report.verdict, f"mean off by {off:.2f}, sd by {scale:.0%}, {p}")
    if _NOTHING_STANDS_OUT in report.verdict and not kind.is_right:
        off = max(np.abs(errors.mean_off).max(), np.abs(errors.log_sd_ratio).max())
        stands_out = off > max(TOLERANCE, _STANDS_OUT * effective**-0.5)
        sentence("nothing stands out", not stands_out, report.verdict, f"a mean or log sd is off by {off:.2f}")

    for place, finding in enumerate(report.findings):
        claim = understand(finding.text, report.moments.names)
        if claim is None:
            sentence("not understood", False, finding.text, "")
            continue
        right = truth.value(claim)
        about = claim.quantity + (
            " of a combination" if claim.quantity != "correlation" and np.count_nonzero(claim.of) > 1 else ""
        )
        shown = f"{np.exp(right):.3f} times" if claim.quantity == "standard deviation" else f"{right:+.3f}"
        miss = abs(claim.value - right)
        inside = miss <= half_width(claim, finding, report) + claim.rounding + _SLACK
        sentence(f"{about}, number within its interval", inside, finding.text, shown)
        near = miss <= max(0.05, 0.25 * abs(right))
        sentence(f"{about}, number within 25% or 0.05", near, finding.text, shown)
        if claim.quantity != "correlation" and abs(right) > _SLACK:
            sentence(f"{about}, sign", np.sign(claim.value) == np.sign(right), finding.text, shown)
        if place == 0 and report.reject:
            share = truth.size(claim) / truth.largest(claim)
            sentence("named as the worst", share >= _SHARE_OF_WORST, finding.text, f"{share:.0%} of the worst")

    if (said := said_good_enough(report)) is not None:
        off, scale = np.abs(errors.mean_off).max(), np.abs(np.expm1(errors.log_sd_ratio)).max()
        fits = max(off, scale) <= TOLERANCE
        counts[f"good enough: {said}, in truth {'yes' if fits else 'no'}"] += 1
        is_true = fits if said == "yes" else not fits if said == "no" else True
        sentence(f"good enough: {said}", is_true, said, f"mean off by {off:.3f}, sd by {scale:.1%}")
    return counts, wrong
