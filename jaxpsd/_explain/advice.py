"""What to say about a set of draws: a verdict in one sentence, what makes it doubtful, and what to do."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from jaxpsd._core.draws import Draws
from jaxpsd._core.tables import number
from jaxpsd._explain.moments import TRUSTED, MomentTable
from jaxpsd._explain.report import DetectableErrors, Finding
from jaxpsd._gof.result import GofResult

# Fewer effective draws than this tell next to nothing.
_FEWEST = 20

# R-hat above this means that chains, or their halves, disagree.
_AGREEMENT = 1.05

_BLIND = (
    "A mode that no draw has visited cannot be seen by any method that knows the target through its score: start "
    "chains far apart."
)


class Facts(NamedTuple):
    """What the words are made of."""

    draws: Draws
    names: tuple[str, ...]
    test: GofResult
    table: MomentTable
    findings: tuple[Finding, ...]
    times: Float[np.ndarray, " chains"]
    effective: float
    r_hat: Float[np.ndarray, " dim"]
    burn_in: int | None
    detectable: DetectableErrors

    disagrees = property(lambda self: self.r_hat.max() > _AGREEMENT)
    least_linear = property(lambda self: np.min(self.table.linearity))
    too_few = property(lambda self: self.effective < _FEWEST or float(self.test.p_value_floor) > self.test.alpha)


def verdict(facts: Facts) -> str:
    """One sentence."""
    p = f"p = {number(facts.test.p_value)}"
    if facts.test.reject:
        if facts.findings:
            return f"These draws are not from the target ({p}): {facts.findings[0].text}."
        return (
            f"These draws are not from the target ({p}), although no mean, standard deviation or correlation stands "
            "out: look at skewness and tails."
        )
    if facts.too_few:
        return f"Too few effective draws (about {facts.effective:.0f}) to say whether they are from the target ({p})."
    if facts.disagrees:
        about = f"{facts.names[facts.r_hat.argmax()]} (R-hat {facts.r_hat.max():.2f})"
        return f"No moment is clearly wrong ({p}), but chains or their halves disagree about {about}."
    return f"Nothing wrong was found ({p}). {_would_have_shown(facts.detectable)}"


def _would_have_shown(detectable: DetectableErrors) -> str:
    return (
        f"A mean off by {detectable.mean:.2g} standard deviations, or a standard deviation off by "
        f"{detectable.scale:.0%}, would probably have shown."
    )


def caveats(facts: Facts) -> tuple[str, ...]:
    """What makes the verdict doubtful."""
    found = [doubt.message for doubt in facts.test.doubts]
    if facts.least_linear < TRUSTED:
        worst = facts.names[int(np.argmin(facts.table.linearity))]
        found.append(
            f"The target is far from Gaussian: only {facts.least_linear:.0%} of the score of {worst} is linear in the "
            "draws. The test holds, but errors of moments are rough, and some errors may not show."
        )
    if facts.test.reject:
        found.append(f"{_would_have_shown(facts.detectable)} Smaller errors may be there too.")
    return (*found, _BLIND)


def advice(facts: Facts) -> tuple[str, ...]:
    """What to do next."""
    steps = []
    if facts.burn_in is not None:
        steps.append(
            f"Discard more of the beginning: the first tenth differs from the rest, most clearly in "
            f"{facts.names[facts.burn_in]}."
        )
    if facts.disagrees:
        steps.append("Run chains longer, from starts far apart, until they agree.")
    if facts.too_few:
        steps.append(f"Draw at least {max(2, np.ceil(100 / max(facts.effective, 1))):.0f} times as many draws.")
    elif not facts.test.reject and facts.detectable.mean > 0.1:
        times = (facts.detectable.mean / 0.1) ** 2
        steps.append(f"To see a mean off by 0.1 standard deviations takes about {times:.1f} times as many draws.")
    if facts.test.reject:
        steps.append(_remedy(facts))
    if facts.times.min() > 10 and facts.draws.num_draws > 10_000:
        steps.append(f"Keeping every {facts.times.min() / 2:.0f}th draw would lose little.")
    if facts.least_linear < TRUSTED:
        steps.append("Plot marginal scores against draws (`jaxpsd.plots.marginal_scores`), or reparameterise.")
    return tuple(steps)


def _remedy(facts: Facts) -> str:
    # The worst comes first.
    scales = [finding.error for finding in facts.findings if finding.quantity == "standard deviation"]
    if not scales:
        remedy = "Use a sampler without bias, or less of it, such as a smaller step size."
    elif scales[0] < 0:
        remedy = "Draws are too narrow: a richer approximation, or chains that move farther."
    else:
        remedy = "Draws are too wide: a smaller step size, larger mini-batches, or an accept step."
    if float(facts.table.errors.explained) >= TRUSTED:
        remedy += " `corrected_expectation` estimates expectations under the target from these draws meanwhile."
    return remedy
