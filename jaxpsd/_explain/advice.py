"""What to say about a set of draws: a verdict, what makes it doubtful, and what to do."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from jaxpsd._core.draws import Draws
from jaxpsd._core.tables import number
from jaxpsd._explain.errors import are_too_few
from jaxpsd._explain.findings import Finding
from jaxpsd._explain.moments import MomentTable
from jaxpsd._explain.phrases import times_as_many
from jaxpsd._explain.relaxation import Relaxation
from jaxpsd._explain.remedies import about_divergences, remedy_for, remedy_for_divergences
from jaxpsd._explain.report import DetectableErrors
from jaxpsd._explain.tolerance import Judgement
from jaxpsd._gof.result import GofResult

# Fewer effective draws than this tell next to nothing.
_FEWEST = 20

# R-hat above this means that chains, or their halves, disagree.
_AGREEMENT = 1.05

# Where less of a score is linear in the draws, a look at it is worth while.
_FAR_FROM_GAUSSIAN = 0.8

_BLIND = "A mode that no draw has visited cannot be seen."


class Facts(NamedTuple):
    """What the words are made of."""

    draws: Draws
    names: tuple[str, ...]
    test: GofResult
    table: MomentTable
    findings: tuple[Finding, ...]
    judgement: Judgement
    tolerance: float
    relaxation: Relaxation | None
    refuted: bool
    remedy: str | None
    times: Float[np.ndarray, " chains"]
    effective: float
    r_hat: Float[np.ndarray, " dim"]
    burn_in: int | None
    detectable: DetectableErrors

    disagrees = property(lambda self: self.r_hat.max() > _AGREEMENT)
    least_linear = property(lambda self: np.asarray(self.table.linearity).min())
    too_few = property(lambda self: self.effective < _FEWEST or float(self.test.p_value_floor) > self.test.alpha)
    moved = property(lambda self: self.relaxation is not None and self.relaxation.reject)
    reject = property(lambda self: bool(self.test.reject) or self.moved)


def verdict(facts: Facts) -> str:
    """What the sampler itself has reported; whether the draws are from the target; whether they are good enough."""
    reported = about_divergences(facts.draws.origin, facts.draws.num_draws)
    return " ".join(filter(None, (reported, _right_or_wrong(facts), _good_enough(facts))))


def _right_or_wrong(facts: Facts) -> str:
    p = f"p = {number(facts.test.p_value)}"
    if facts.reject:
        return (
            f"These draws are not from the target ({p if facts.test.reject else _p_of_moves(facts)}): {_worst(facts)}."
        )
    if facts.too_few:
        return f"Too few effective draws (about {facts.effective:.0f}) to say whether they are from the target ({p})."
    if facts.disagrees:
        about = f"{facts.names[facts.r_hat.argmax()]} (R-hat {facts.r_hat.max():.2f})"
        return f"No moment is clearly wrong ({p}), but chains or their halves disagree about {about}."
    return f"Nothing wrong was found ({p})."


def _p_of_moves(facts: Facts) -> str:
    assert facts.relaxation is not None
    return f"p = {number(facts.relaxation.p_value)}, by draws that followed it"


def _worst(facts: Facts) -> str:
    """What is known of what is wrong; where that is little, what shows it."""
    statements = () if facts.relaxation is None else facts.relaxation.statements
    # Where an error is not known, it may be the worst, and what the moves show comes first.
    if statements and (facts.table.unknown() or not facts.findings):
        return statements[0]
    if facts.findings:
        return facts.findings[0].text
    parts = facts.test.parts
    assert parts is not None  # An adaptive test has parts.
    p = np.asarray(parts.p_value)
    where = f"it shows most in the part of the test called \u201c{parts.labels[int(p.argmin())]}\u201d"
    return f"{where}; what it amounts to is not known"


def _good_enough(facts: Facts) -> str:
    judgement, asked = facts.judgement, f"tolerance {facts.tolerance:g}"
    times = None if judgement.times is None else times_as_many(judgement.times)
    if judgement.good_enough:
        return f"They are good enough ({asked}): {judgement.reason}."
    if judgement.good_enough is None:
        so = "" if times is None else f"; {times} would tell"
        return f"Whether they are good enough cannot be told ({asked}): {judgement.reason}{so}."
    if judgement.is_bias or facts.reject:
        is_said = facts.reject and bool(facts.findings) and facts.findings[0].text.startswith(judgement.about)
        return f"They are not good enough ({asked})" + ("." if is_said else f": {judgement.reason}.")
    chance = f"chance alone may make it so of {facts.effective:,.0f} effective draws, and {times} would tell"
    return f"They are not good enough ({asked}): {judgement.reason}; {chance}."


def without_agreement(judgement: Judgement, r_hat: Float[np.ndarray, " dim"], names: tuple[str, ...]) -> Judgement:
    """Good enough is not said of chains that disagree."""
    if not judgement.good_enough or r_hat.max() <= _AGREEMENT:
        return judgement
    return Judgement(None, f"chains or their halves disagree about {names[int(r_hat.argmax())]}")


def caveats(facts: Facts) -> tuple[str, ...]:
    """What makes the verdict doubtful, or limits it."""
    found = [doubt.message for doubt in facts.test.doubts]
    parts = facts.test.parts
    if parts is not None and not facts.test.reject and (p := np.asarray(parts.p_value)).min() <= facts.test.alpha:
        found.append(
            f"One of {len(p)} parts of the test has p = {number(p.min())}, which is no finding: the smallest of so "
            f"many is that small with probability {number(facts.test.p_value)}."
        )
    found += [f"Not looked at: {reason}." for reason in facts.test.left_out]
    if facts.refuted:
        found.append(
            "Errors of moments are not known: draws that followed the target show more of it than polynomials see."
        )
    elif unknown := facts.table.unknown():
        some = "; ".join(unknown[:3]) + (f"; and {len(unknown) - 3} more" if len(unknown) > 3 else "")
        found.append(f"Errors of some moments are not known, because {_why_unknown(facts)}: the {some}.")
    if facts.relaxation is not None:
        found += facts.relaxation.caveats
    if np.isfinite(facts.detectable.mean) and not facts.too_few:
        scale = (
            "" if np.isnan(facts.detectable.scale) else f", or its standard deviation by {facts.detectable.scale:.0%}"
        )
        found.append(
            f"Of any linear combination of coordinates, a mean off by {facts.detectable.mean:.2g} of its standard "
            f"deviations{scale}, would have shown in four of five cases; less may be there."
        )
    return (*found, _BLIND)


def _why_unknown(facts: Facts) -> str:
    if are_too_few(facts.effective, facts.draws.dim):
        return "so few effective draws do not carry the polynomials that would tell"
    cause = "the target is not Gaussian"
    if facts.draws.dtype != np.float64:
        cause += f", or too ill-conditioned for {facts.draws.dtype}"
    return f"scores are not linear in the draws ({cause}), and polynomials explain too little"


def advice(facts: Facts) -> tuple[str, ...]:
    """What to do next."""
    origin, steps = facts.draws.origin, []
    if origin.divergences:
        steps.append(remedy_for_divergences(origin))
    if facts.burn_in is not None and not origin.is_approximation:
        steps.append(
            f"Discard more of the beginning: the first tenth differs from the rest, most clearly in "
            f"{facts.names[facts.burn_in]}."
        )
    if facts.disagrees and not origin.is_approximation:
        steps.append("Run chains longer, from starts far apart, until they agree.")
    if facts.too_few:
        steps.append(f"Draw at least {max(2, np.ceil(100 / max(facts.effective, 1))):.0f} times as many draws.")
    if facts.reject:
        steps.append(_remedy(facts))
    if facts.remedy is not None and facts.table.unknown():
        steps.append(facts.remedy)
    if facts.times.min() > 10 and facts.draws.num_draws > 10_000:
        steps.append(f"Keeping one of every {facts.times.min() / 2:.0f} draws would lose little.")
    if facts.least_linear < _FAR_FROM_GAUSSIAN:
        steps.append("Plot marginal scores against draws (`jaxpsd.plots.marginal_scores`), or reparameterise.")
    return tuple(steps)


def _remedy(facts: Facts) -> str:
    # The worst comes first.
    scales = [finding.error for finding in facts.findings if finding.quantity == "standard deviation"]
    remedy = remedy_for(facts.draws.origin, scales[0] if scales else None)
    if not facts.table.unknown():
        remedy += " `corrected_expectation` estimates expectations under the target from these draws meanwhile."
    return remedy
