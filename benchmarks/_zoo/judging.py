"""Whether what a report states is true.

Errors are those of the very draws: their mean less the target's, and their standard deviation over the target's. Only
what "would have shown", and whether more draws "would do", is held to the law of the draws.
"""

from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from benchmarks._zoo.approximations import Kind
from benchmarks._zoo.known import KnownTarget, TrueErrors, errors_of_law, true_errors
from benchmarks._zoo.reading import (
    NOT_KNOWN,
    NOTHING_STANDS_OUT,
    Claim,
    Move,
    stated,
    understand,
    understand_move,
    understand_verdict,
    would_have_shown,
)
from jaxpsd import Report

# What the digits of a table, and the accuracy of what is called true, can hold.
SLACK = 0.002

# A thing named as the worst has to be at least this share of it.
SHARE_OF_WORST = 0.75

# An error that stands out so much should not be called one that does not.
_STANDS_OUT = 5


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

    @property
    def misses_a_mode(self) -> bool:
        """Whether all draws are in one of two modes, which have unit covariance: draws of both are wider."""
        return self.target.name.startswith("bimodal") and bool(np.linalg.eigvalsh(self.covariance).max() < 1.5)

    def value(self, claim: Claim) -> float:
        """What the claim should have said."""
        if claim.quantity == "correlation":
            i, j = claim.of
            return float(self.target.covariance[i, j] / (self.target.sd[i] * self.target.sd[j]))
        variance = claim.of @ self.target.covariance @ claim.of
        if claim.quantity == "mean":
            return float(claim.of @ (self.mean - self.target.mean) / variance**0.5)
        return float(0.5 * np.log(claim.of @ self.covariance @ claim.of / variance))

    def error(self, move: Move) -> float:
        """Of the coordinate that moved."""
        errors = self.errors.mean_off if move.quantity == "mean" else self.errors.log_sd_ratio
        return float(errors[move.of])

    def share_of_worst(self, named: Claim | Move) -> float:
        """The true error of what is named over the largest there is, of coordinates or of directions.

        Errors of means in standard deviations, of logarithms of standard deviations, and of correlations by Fisher's
        transform are taken to be of one kind, as reports do.
        """
        if isinstance(named, Claim) and named.about.endswith("combination"):
            return abs(self.value(named)) / self._worst_direction(named.quantity)
        right = self.target.covariance / np.outer(self.target.sd, self.target.sd)
        drawn, right = (np.clip(each, -0.999, 0.999) for each in (right + self.errors.correlation, right))
        correlations = np.abs(np.arctanh(drawn) - np.arctanh(right)) * (1 - np.eye(len(right)))
        off, log_ratio = np.abs(self.errors.mean_off), np.abs(self.errors.log_sd_ratio)
        if isinstance(named, Move):
            size = abs(self.error(named))
        elif named.quantity == "correlation":
            size = correlations[tuple(named.of)]
        else:
            size = abs(self.value(named))
        # Moves show no correlations.
        largest = max(off.max(), log_ratio.max(), 0 if isinstance(named, Move) else correlations.max())
        return float(size / largest)

    def _worst_direction(self, quantity: str) -> float:
        mean, log_sd = worst_direction(self.target, self.mean, self.covariance)
        return mean if quantity == "mean" else np.abs(log_sd).max()


def worst_direction(target: KnownTarget, mean: np.ndarray, covariance: np.ndarray) -> tuple[float, np.ndarray]:
    """The largest error of the mean of any combination; and logarithms of the ratios of standard deviations."""
    whiten = np.linalg.inv(np.linalg.cholesky(target.covariance))
    ratios = np.linalg.eigvalsh(whiten @ covariance @ whiten.T)
    return float(np.linalg.norm(whiten @ (mean - target.mean))), 0.5 * np.log(ratios)


class Judged:
    """Counts of statements by what they are and whether they are true; and the sentences that are wrong."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter(reports=1)
        self.wrong: list[dict[str, str]] = []
        self.misses_a_mode = False

    @classmethod
    def crashed(cls, error: Exception) -> "Judged":
        """There is no report."""
        judged = cls()
        judged.counts["crashed"] += 1
        judged.sentence("none, for an error", False, f"{type(error).__name__}: {error}", "")
        return judged

    def sentence(self, about: str, is_true: bool, text: str, truth: str) -> None:
        self.counts[f"sentences: {about}"] += 1
        if not is_true:
            self.counts[f"wrong: {about}"] += 1
            self.wrong.append({"about": about, "text": text, "truth": truth})


def judge(report: Report, target: KnownTarget, kind: Kind, x: Any) -> Judged:
    truth, judged = Truth.of(target, x), Judged()
    judged.misses_a_mode = truth.misses_a_mode
    _judge_numbers(judged, report, truth)
    _judge_verdict(judged, report, truth, kind)
    _judge_good_enough(judged, report, truth, kind)
    _judge_what_would_have_shown(judged, report, target, kind)
    for finding in report.findings:
        _judge_claim(judged, finding.text, truth, "")
    _judge_moves(judged, report, truth)
    return judged


def _judge_numbers(judged: Judged, report: Report, truth: Truth) -> None:
    counts, right = judged.counts, {"mean": truth.errors.mean_off, "sd": truth.errors.log_sd_ratio}
    for name, (value, (low, high)) in stated(report).items():
        known, miss = np.isfinite(value), np.fmax(low - right[name], right[name] - high)
        clear = known & ((low > 0) | (high < 0)) & (np.abs(right[name]) > SLACK)
        counts[f"{name}: all"] += len(value)
        counts[f"{name}: stated"] += int(known.sum())
        counts[f"{name}: covered"] += int((miss[known] <= SLACK).sum())
        counts[f"{name}: signed"] += int(clear.sum())
        counts[f"{name}: sign right"] += int((np.sign(value) == np.sign(right[name]))[clear].sum())
        # In units of 0.001, since counts are whole.
        counts[f"{name}: width"] += int(500 * (high - low)[known].sum())


def _judge_verdict(judged: Judged, report: Report, truth: Truth, kind: Kind) -> None:
    verdict = understand_verdict(report.verdict)
    judged.counts[f"verdict: {verdict.kind}"] += 1
    moved = report.relaxation is not None and report.relaxation.reject
    judged.counts.update(
        {"rejected by the test": bool(report.test.reject), "rejected by moves": moved, "rejected": report.reject}
    )
    if verdict.kind == "not understood" or not verdict.judgement:
        judged.sentence("not understood", False, report.verdict, "")
    if verdict.kind != "not from the target":
        return
    judged.sentence("not from the target", not kind.is_right, report.verdict, "they are")
    named = understand(verdict.named, truth.target.names) or understand_move(verdict.named, truth.target.names)
    if named is not None:
        share = truth.share_of_worst(named)
        about = "named as the worst, " + ("by moves" if isinstance(named, Move) else named.about)
        # Of draws that are right nothing is worst.
        if not kind.is_right:
            judged.sentence(about, share >= SHARE_OF_WORST, verdict.named, f"{share:.0%} of the worst")
    elif NOT_KNOWN in verdict.named:
        judged.sentence("what it amounts to is not known", True, verdict.named, "")
    elif NOTHING_STANDS_OUT in verdict.named:
        off, scale, shown = _largest(truth.errors)
        bound = max(report.tolerance, _STANDS_OUT * report.total_effective**-0.5)
        judged.sentence("in no moment by more than chance", max(off, scale) <= bound, verdict.named, shown)
    else:
        judged.sentence("not understood", False, verdict.named, "")


def _largest(errors: TrueErrors) -> tuple[float, float, str]:
    """The largest error of a mean, in standard deviations, and of a standard deviation, as a share; and in words."""
    off, scale = np.abs(errors.mean_off).max(), np.abs(np.expm1(errors.log_sd_ratio)).max()
    return float(off), float(scale), f"a mean is off by {off:.3f}, a standard deviation by {scale:.1%}"


def _judge_good_enough(judged: Judged, report: Report, truth: Truth, kind: Kind) -> None:
    said, text = report.good_enough, understand_verdict(report.verdict).judgement
    off, scale, shown = _largest(truth.errors)
    fits = max(off, scale) <= report.tolerance
    judged.counts[f"good enough: {said}, in truth {fits}"] += 1
    # Within the slack of the tolerance either will do.
    is_close = abs(max(off, scale) - report.tolerance) <= SLACK
    judged.sentence(f"good enough: {said}", said in (None, fits) or is_close, text, shown)
    _judge_claim(judged, text, truth, "of good enough: ")
    if "would do" in text:
        off, scale, shown = _largest(errors_of_law(truth.target, kind.mean, kind.covariance))
        judged.sentence(
            "more draws would do", max(off, scale) <= report.tolerance + SLACK, text, f"of the law, {shown}"
        )


def _judge_what_would_have_shown(judged: Judged, report: Report, target: KnownTarget, kind: Kind) -> None:
    """Where the law is off by so much, in the worst direction, the test should reject in four of five cases."""
    if (least := would_have_shown(report.caveats)) is None:
        return
    judged.counts["would have shown: said"] += 1
    off, log_sd = worst_direction(target, kind.mean, kind.covariance)
    scale = np.abs(np.expm1(log_sd)).max()
    if off > least[0] or scale > least[1]:
        text = f"{least[0]:g} of a mean, {least[1]:.0%} of a standard deviation"
        shown = f"{off:.2g} and {scale:.0%}, p = {float(report.test.p_value):.2g}"
        judged.sentence("would have shown in four of five cases", bool(report.test.reject), text, shown)


def _judge_claim(judged: Judged, text: str, truth: Truth, what: str) -> None:
    claim = understand(text, truth.target.names)
    if claim is None:
        # A judgement may state no error.
        if not what:
            judged.sentence("not understood", False, text, "")
        return
    right = truth.value(claim)
    shown = f"{np.exp(right):.3f} times" if claim.quantity == "standard deviation" else f"{right:+.3f}"
    is_inside = claim.ends[0] - SLACK <= right <= claim.ends[1] + SLACK
    judged.sentence(f"{what}{claim.about}, within the interval", is_inside, text, shown)
    has_sign = claim.quantity != "correlation" and (claim.ends[0] > 0 or claim.ends[1] < 0)
    if has_sign and abs(right) > SLACK:
        judged.sentence(f"{what}{claim.about}, sign", np.sign(claim.value) == np.sign(right), text, shown)


def _judge_moves(judged: Judged, report: Report, truth: Truth) -> None:
    """Whether draws move to where the target is, and how far of the way: nothing is claimed of it."""
    if (moved := report.relaxation) is None:
        return
    counts = judged.counts
    counts["moves: reports"] += 1
    for text in moved.statements:
        if (move := understand_move(text, truth.target.names)) is None:
            judged.sentence("not understood", False, text, "")
            continue
        error = truth.error(move)
        counts[f"moves: {move.quantity}, said"] += 1
        if move.change * error >= 0:
            counts[f"moves: {move.quantity}, away from the target"] += 1
            judged.wrong.append({"about": "moves away", "text": text, "truth": f"error {error:+.3f}"})
        else:
            share = abs(move.change / error)
            size = "less than half" if share < 0.5 else "about all" if share <= 1.5 else "more than 1.5 times"
            counts[f"moves: {move.quantity}, {size}"] += 1
