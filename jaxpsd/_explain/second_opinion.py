"""Draws that followed the target for a while, as a second opinion on what polynomials say of it.

Where the two contradict each other nothing is stated: errors become unknown, and draws are not called good enough.
"""

import importlib.util
from typing import NamedTuple, cast

import jax.numpy as jnp
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


def without_contradictions(errors: ImpliedErrors, relaxation: Relaxation | None) -> ImpliedErrors:
    """Errors that are not known where moved draws went farther than the stated interval allows, or the other way.

    To go only part of the way is no contradiction: some transitions seldom mend an error altogether.
    """
    if relaxation is None:
        return errors

    def contradicts(moved: _Ends, stated: _Ends, p_value: _Values) -> Bool[np.ndarray, " dim"]:
        is_beyond = (moved[0] > np.maximum(stated[1], 0)) | (moved[1] < np.minimum(stated[0], 0))
        return is_beyond & (p_value <= relaxation.alpha)

    mean = contradicts(relaxation.mean_off_interval, errors.mean_off_interval(), relaxation.mean_p_value)
    errors = errors._replace(mean_off=jnp.where(mean, jnp.nan, errors.mean_off))
    if errors.sd_ratio is None or (stated := errors.sd_ratio_interval()) is None:
        return errors
    sd = contradicts(np.log(relaxation.sd_ratio_interval), np.log(stated), relaxation.sd_p_value)
    return errors._replace(sd_ratio=jnp.where(sd, jnp.nan, errors.sd_ratio))


def with_moves(judgement: Judgement, relaxation: Relaxation | None, tolerance: float) -> Judgement:
    """Good enough is not said where moving the draws changes a moment by more than the tolerance."""
    if not judgement.good_enough or relaxation is None:
        return judgement
    low, high = relaxation.mean_off_interval
    changed = (relaxation.mean_p_value <= relaxation.alpha) & ((low > tolerance) | (high < -tolerance))
    low, high = relaxation.sd_ratio_interval
    spread = (relaxation.sd_p_value <= relaxation.alpha) & ((low > 1 + tolerance) | (high < 1 - tolerance))
    if not (changed | spread).any():
        return judgement
    return Judgement(None, relaxation.statements[0])
