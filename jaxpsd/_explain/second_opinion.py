"""Draws that followed the target for a while, as a second opinion on what polynomials say of it.

Intervals of errors rest on one assumption: what features do not see is in proportion to what they see. Where moved
draws change a moment of which features cannot tell, or change it by more than they allow, there is more to the target
than they see, and nothing is stated of any error.
"""

import importlib.util
from typing import NamedTuple, cast

import numpy as np
from jaxtyping import Bool, Float, PRNGKeyArray

from jaxpsd._core.scores import Given
from jaxpsd._core.types import LogDensityFn, Target
from jaxpsd._explain.errors import ImpliedErrors
from jaxpsd._explain.moves import Moves, require_blackjax
from jaxpsd._explain.relax import relax_draws, with_values
from jaxpsd._explain.relaxation import Relaxation
from jaxpsd._explain.tolerance import Judgement
from jaxpsd._gof.dependence import Dependence
from jaxpsd._gof.settings import Settings
from jaxpsd._stein.coordinates import Canonical

# Where less than this share of a score is linear in the draws, "auto" asks for it.
NEARLY_GAUSSIAN = 0.95

# Moved draws prove others wrong at this share of the level.
_SHARE_OF_LEVEL = 0.2


_Values = Float[np.ndarray, " dim"]
_Ends = tuple[_Values, _Values] | Float[np.ndarray, "2 dim"]


class SecondOpinion(NamedTuple):
    """What became of moved draws; or, where none were moved, what it would take to know."""

    relaxation: Relaxation | None
    remedy: str | None = None


def check_second_opinion(asked: object, target: Target) -> None:
    """True, False or "auto"; True takes a log-density and BlackJAX."""
    if not isinstance(asked, bool) and asked != "auto":
        raise ValueError(f"`second_opinion` must be True, False or 'auto'; got {asked!r}.")
    if asked is True:
        require_blackjax()
        if not callable(target):
            raise ValueError(
                "`second_opinion=True` moves draws, which takes the log-density as a function; got scores. Pass the "
                "function, or second_opinion=False."
            )


def ask(
    asked: bool | str,
    rng_key: PRNGKeyArray,
    target: Target,
    given: Given,
    settings: Settings,
    names: tuple[str, ...],
    errors: ImpliedErrors,
    coordinates: Canonical,
    dependence: Dependence | None,
) -> SecondOpinion:
    """Move draws where that is asked for, or where polynomials explain too little of them."""
    is_known = all(np.isfinite(values).all() for values in (errors.mean_off, errors.sd_ratio) if values is not None)
    if asked is False:
        return SecondOpinion(None, "`jaxpsd.relax` moves the draws, and would show more.")
    if asked == "auto" and is_known and float(coordinates.linearity) >= NEARLY_GAUSSIAN:
        return SecondOpinion(None)
    if not callable(target):
        return SecondOpinion(
            None, "Pass the log-density as a function instead of scores: moving the draws would show more."
        )
    if importlib.util.find_spec("blackjax") is None:
        return SecondOpinion(
            None, "Install BlackJAX (pip install 'jaxpsd[blackjax]'): moving the draws would show more."
        )
    settings = settings._replace(alpha=settings.alpha * _SHARE_OF_LEVEL)
    known = {"coordinates": coordinates.for_tests, "dependence": dependence}
    return SecondOpinion(
        relax_draws(rng_key, with_values(given, cast(LogDensityFn, target)), settings, names, moves=Moves(), **known)
    )


def is_refuted(errors: ImpliedErrors, relaxation: Relaxation | None) -> bool:
    """Whether moved draws change a moment of which no error is known, or go farther than its interval, or elsewhere.

    To go only part of the way is no contradiction: some transitions seldom mend an error altogether.
    """
    if relaxation is None:
        return False

    def changes(moved: _Ends, stated: _Ends, p_value: _Values) -> Bool[np.ndarray, " dim"]:
        is_unknown = np.isnan(stated[0])
        is_beyond = (moved[0] > np.fmax(stated[1], 0)) | (moved[1] < np.fmin(stated[0], 0))
        return (is_unknown | is_beyond) & (p_value <= relaxation.alpha)

    means = changes(relaxation.mean_off_interval, errors.mean_off_interval(), relaxation.mean_p_value)
    stated = errors.sd_ratio_interval()
    ends = np.full((2, len(means)), np.nan) if stated is None else np.log(stated)
    return bool((means | changes(np.log(relaxation.sd_ratio_interval), ends, relaxation.sd_p_value)).any())


def with_moves(
    judgement: Judgement, errors: ImpliedErrors, relaxation: Relaxation | None, tolerance: float
) -> Judgement:
    """Nothing is said of refuted errors, nor good enough where moving changes a moment by more than the tolerance."""
    if relaxation is None or judgement.good_enough is None:
        return judgement
    if is_refuted(errors, relaxation) or (judgement.good_enough and _is_beyond(relaxation, tolerance)):
        return Judgement(None, relaxation.statements[0])
    return judgement


def _is_beyond(relaxation: Relaxation, tolerance: float) -> bool:
    """Whether moving changes a mean or a standard deviation by more than the tolerance, beyond chance."""
    low, high = relaxation.mean_off_interval
    changed = (relaxation.mean_p_value <= relaxation.alpha) & ((low > tolerance) | (high < -tolerance))
    low, high = relaxation.sd_ratio_interval
    spread = (relaxation.sd_p_value <= relaxation.alpha) & ((low > 1 + tolerance) | (high < 1 - tolerance))
    return bool((changed | spread).any())
