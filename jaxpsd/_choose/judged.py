"""Whether each of several sample sets is good enough, by itself."""

from collections.abc import Iterable
from typing import Any

from jaxpsd._choose.candidates import Candidate
from jaxpsd._choose.worth import has_moved
from jaxpsd._explain.measured import measure_errors
from jaxpsd._explain.tolerance import Judgement, judge


def judge_candidates(candidates: Iterable[Candidate], tolerance: float) -> dict[Any, bool | None]:
    """By label: True or False, None where it cannot be told."""
    return {each.label: judge_candidate(each, tolerance).good_enough for each in candidates}


def judge_candidate(candidate: Candidate, tolerance: float) -> Judgement:
    """Errors are in coordinates of the set's own: one that went astray does not spoil those of another."""
    given = candidate.given
    if candidate.reason is not None or not has_moved(given.draws):
        return Judgement(None, candidate.reason or "all draws are the same")
    try:
        errors, chance, *_ = measure_errors(given)
    except (ValueError, FloatingPointError) as error:
        # Too few draws to regress on, a coordinate that does not move, or numbers too large: they say nothing.
        return Judgement(None, str(error))
    return judge(errors, chance, tolerance, given.draws.names)
