"""Errors of means and standard deviations, beside what chance makes of such draws: all that a judgement takes."""

from typing import NamedTuple

import numpy as np

from jaxpsd._core.draws import ravel
from jaxpsd._core.scores import Given
from jaxpsd._discrepancies.psd import PSD
from jaxpsd._explain.diagnose import features_for
from jaxpsd._explain.errors import ImpliedErrors, implied_errors, most_effective
from jaxpsd._explain.tolerance import Chance
from jaxpsd._gof.dependence import Dependence, measure_dependence
from jaxpsd._stein.coordinates import Canonical, Rule, canonical, fit


class MeasuredErrors(NamedTuple):
    """What is wrong with draws.

    errors
        Of their means and standard deviations.
    chance
        How large these are for as many draws of the target.
    effective
        How many independent draws these are worth.
    dependence
        How dependent they are; None of single draws.
    """

    errors: ImpliedErrors
    chance: Chance
    effective: float
    dependence: Dependence | None


def measure_errors(given: Given, coordinates: Canonical | None = None) -> MeasuredErrors:
    """From draws that are finite and have scores, as `diagnose` does, but without any test."""
    draws, dependence = given.draws, None
    order, interactions = features_for(draws, 1, weighted=given.weights is not None)
    standardized = fit(Rule.STANDARDIZE, given)
    coordinates = coordinates or canonical(given, standardized)
    psd = PSD(order, interactions=interactions, basis="hermite", transform=coordinates.for_tests, form="primal")
    effective = float(draws.num_draws)
    if draws.num_draws > draws.num_chains:
        dependence = measure_dependence(given, psd._plan(given, 1))
        effective /= dependence.time if dependence.is_clear else 1
    effective = most_effective(effective, coordinates)
    errors = implied_errors(given, coordinates, standardized, effective, interactions=interactions)
    x = np.asarray(ravel(draws.positions), np.float64).reshape(draws.num_chains, -1, draws.dim)
    return MeasuredErrors(errors, Chance.of_draws(x, effective, errors), effective, dependence)
