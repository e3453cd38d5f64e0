"""How far a budget of gradient evaluations goes: lengths of rounds, in stretches of steps."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxpsd._choose.arms import SamplerSettings
from jaxpsd._choose.runner import Costs, Runner
from jaxpsd._choose.transitions import Lengths

FIRST_ROUND = 8
"""Stretches in the first round."""

# Draws of a stretch that are scored, about, unless the user says how many steps apart they are to be.
_DRAWS = 64
_FEWEST_DRAWS = 2
# The share of the budget that is for new draws of the winner.
_FRESH = 0.25


class Budget(NamedTuple):
    """What may be spent, and on what.

    total
        Gradient evaluations.
    grid
        What a full run of every setting would cost.
    num_rounds
        How many rounds there are at most.
    lengths
        Of a stretch.
    burned
        Stretches of the first round that are not scored.
    most
        Stretches in a full run.
    """

    total: float
    grid: float
    num_rounds: int
    lengths: Lengths
    burned: int
    most: int

    @property
    def for_rounds(self) -> float:
        """All but what is for new draws of the winner."""
        return (1 - _FRESH) * self.total

    def next_stretches(self, runner: Runner, live: list[int], number: int, done: int) -> int:
        """How many more stretches the settings that are still in run in a round: none where the budget is spent."""
        spent = sum(arm.spent for arm in runner.arms)
        share = (self.for_rounds - spent) / (self.num_rounds - number)
        each = sum(runner.price(place, 1) for place in live)
        return max(0, min(int(share / each), self.most - done))

    def fresh_stretches(self, runner: Runner, best: int) -> int:
        """How many stretches there are new draws of the winner for, with what is left."""
        left = self.total - sum(arm.spent for arm in runner.arms)
        return min(int(left / runner.price(best, 1)), self.most)


def make_budget(
    budget: float | None,
    costs: Costs,
    num_chains: int,
    num_steps: int,
    burn_in: float,
    keep: float,
    thin: int | None,
) -> Budget:
    """Split a budget, by default a third of what the grid would cost, over rounds of equal price."""
    count = len(costs.steps)
    num_rounds = max(1, math.ceil(math.log(count) / -math.log(keep) - 1e-9))

    def for_thin(thin: int) -> tuple[float, float, int]:
        """The price of the grid, the budget, and how many steps a stretch has, when draws so far apart are scored."""
        score = (1 - burn_in) * costs.score / thin
        per_step = num_chains * float((costs.steps + score).sum())
        grid = per_step * num_steps
        total = grid / 3 if budget is None else budget
        steps = (1 - _FRESH) * total / num_rounds / per_step
        return grid, total, int(min(steps, num_steps) / FIRST_ROUND)

    if thin is None:
        thin = 1
        while for_thin(thin)[2] > 2 * _DRAWS * thin:
            thin *= 2
    grid, total, steps = for_thin(thin)
    draws = steps // thin
    if draws < _FEWEST_DRAWS:
        raise ValueError(
            f"A budget of {total:,.0f} gradient evaluations leaves {FIRST_ROUND * steps:,} steps for each of {count} "
            f"settings in the first round, and it takes {FIRST_ROUND * _FEWEST_DRAWS * thin:,}. Raise `num_steps` or "
            "`budget`, or lower `thin`, or try fewer settings."
        )
    lengths = Lengths(draws, thin)
    burned = min(math.ceil(burn_in * FIRST_ROUND), FIRST_ROUND - 2)
    return Budget(total, grid, num_rounds, lengths, burned, max(FIRST_ROUND, num_steps // lengths.steps))


def costs_of(gradients: float | Callable[[Any], float], score_gradients: float, settings: SamplerSettings) -> Costs:
    """What a step of each setting costs, and the score of a draw."""
    each = [gradients(value) if callable(gradients) else gradients for value in settings.values]
    try:
        steps = np.array([float(cost) for cost in each])
        score = float(score_gradients)
    except (TypeError, ValueError) as error:
        raise TypeError(
            "`gradients` must be a number, or a function from a setting to one, and `score_gradients` a number; got "
            f"{gradients!r:.100} and {score_gradients!r:.100}."
        ) from error
    if not (np.isfinite(steps).all() and (steps > 0).all() and score >= 0 and math.isfinite(score)):
        raise ValueError(
            "`gradients` must be positive for every setting, and `score_gradients` not negative; got "
            f"{steps.min():g} … {steps.max():g}, and {score:g}."
        )
    return Costs(steps, score)
