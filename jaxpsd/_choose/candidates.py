"""Sample sets that are to be compared: checked, and scored."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxpsd._core.checks import check_samples
from jaxpsd._core.draws import Draws
from jaxpsd._core.scores import Given, check_target
from jaxpsd._core.types import PyTree, Target
from jaxpsd._gof.settings import check_several

Samples = Mapping[Any, PyTree]


class Candidate(NamedTuple):
    """A sample set, with its scores; the reason why it cannot be ranked, if there is one."""

    label: Any
    given: Given
    reason: str | None


def check_candidates(
    target: Target | Mapping[Any, PyTree], samples: Samples, chains: bool | None, *, paired: bool
) -> list[Candidate]:
    """Every set, checked and scored; all of one structure."""
    if not isinstance(samples, Mapping) or isinstance(samples, Draws) or not samples:
        raise TypeError(f"`samples` must be a mapping from labels to draws, at least one; got {samples!r:.100}.")
    if not callable(target) and (not isinstance(target, Mapping) or set(target) != set(samples)):
        raise TypeError(
            "`target` must be the log-density, or a mapping from each label of `samples` to the scores at its draws."
        )
    candidates = []
    for label, own_samples in samples.items():
        try:
            draws = check_samples(own_samples, chains=chains)
            check_several(draws)
            own_target = target[label] if isinstance(target, Mapping) else target
            given = Given(draws, check_target(own_target, own_samples, draws, chains=chains)).with_scores()
        except (TypeError, ValueError) as error:
            error.add_note(f"jaxpsd: this is about the sample set {label!r}.")
            raise
        try:
            given.check_finite()
            reason = None
        except ValueError as error:
            reason = str(error)
        candidates.append(Candidate(label, given, reason))
    first = candidates[0].given.draws
    for label, (draws, *_), _ in candidates:
        differ = f"{label!r} and {candidates[0].label!r} differ."
        if draws.structure != first.structure:
            raise ValueError(f"All sample sets must have positions of the same structure, shape and dtype; {differ}")
        if paired and shape_of(draws) != shape_of(first):
            raise ValueError(f"Paired sets must have as many draws and chains as each other; {differ}")
    return candidates


def shape_of(draws: Draws) -> tuple[int, int]:
    """How many draws there are, and how many chains."""
    return draws.num_draws, draws.num_chains
