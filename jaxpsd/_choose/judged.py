"""Whether each of several sample sets is good enough, by itself."""

from collections.abc import Iterable
from typing import Any

from jaxpsd._choose.candidates import Candidate
from jaxpsd._choose.worth import has_moved
from jaxpsd._explain.measured import measure_errors
from jaxpsd._explain.tolerance import judge


def judge_candidates(candidates: Iterable[Candidate], tolerance: float) -> dict[Any, bool | None]:
    """By label: True or False, None where it cannot be told."""
    return {each.label: _is_good_enough(each, tolerance) for each in candidates}


def _is_good_enough(candidate: Candidate, tolerance: float) -> bool | None:
    """Errors are in coordinates of the set's own: one that went astray does not spoil those of another."""
    given = candidate.given
    if candidate.reason is not None or not has_moved(given.draws):
        return None
    try:
        errors, chance, _ = measure_errors(given)
    except (ValueError, FloatingPointError):
        # Too few draws to regress on, a coordinate that does not move, or numbers too large: they say nothing.
        return None
    return judge(errors, chance, tolerance, given.draws.names).good_enough
