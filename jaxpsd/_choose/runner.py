"""Arms that run on from where they stand, and what is kept of them: some draws with scores, and means of all steps."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxpsd._choose.arms import SamplerSettings
from jaxpsd._choose.transitions import (
    STRETCHES_AT_ONCE,
    Lengths,
    Minibatched,
    Origin,
    Transition,
    begin_chains,
    run_chains,
    trace_transition,
)
from jaxpsd._core.compiling import as_array, compile_by_work, key_of, split_key
from jaxpsd._core.draws import Draws, ravel
from jaxpsd._core.types import PyTree

ScoreFn = Callable[[PRNGKeyArray, Draws], PyTree]
"""From a key and draws to scores in their structure."""


class Costs(NamedTuple):
    """In gradient evaluations: a step of each setting, and the score of a draw."""

    steps: Float[np.ndarray, " settings"]
    score: float


@dataclass
class Arm:
    """A setting, and what is known of it.

    place
        Which of the settings.
    stretches
        How many it has run, of each chain.
    x, s
        Draws and their scores (chains, draws, dim), of each stretch that was scored.
    moments
        Means of coordinates and squares (chains, 2·dim), in units of the origin, of the same stretches.
    spent
        Gradient evaluations.
    reason
        Why it was dropped, if not for its discrepancy.
    """

    place: int
    stretches: int = 0
    x: list[np.ndarray] = field(default_factory=list)
    s: list[np.ndarray] = field(default_factory=list)
    moments: list[np.ndarray] = field(default_factory=list)
    spent: float = 0.0
    reason: str | None = None

    def used(self, burn_in: float) -> int:
        """How many of the scored stretches come after burn-in, which is a share of all that have been run."""
        return min(len(self.x), self.stretches - math.ceil(burn_in * self.stretches))

    def later_half(self) -> tuple[np.ndarray, np.ndarray]:
        """Draws and scores (chains, draws, dim) of the later half of what was scored."""
        first = len(self.x) // 2
        return np.concatenate(self.x[first:], axis=1), np.concatenate(self.s[first:], axis=1)


class Runner:
    """All arms, with the states of their chains."""

    def __init__(
        self,
        rng_key: PRNGKeyArray,
        kernel: Callable[..., Any],
        init: Callable[..., Any] | None,
        settings: SamplerSettings,
        starts: Draws,
        score: ScoreFn,
        lengths: Lengths,
        costs: Costs,
        minibatched: Minibatched | None,
    ):
        """Trace the sampler for each group of settings, and make the first states."""
        self.run_key, self.score_key, begin_key = split_key(rng_key, 3)
        self.starts, self.score, self.lengths, self.costs = starts, score, lengths, costs
        self.settings = settings
        self.arms = [Arm(place) for place in range(len(settings.values))]
        self.origin = Origin(np.zeros(starts.dim, starts.dtype), np.ones(starts.dim, starts.dtype))
        self.transitions, self.members, self.states = [], [], []
        for group in settings.groups:
            transition = trace_transition(kernel, init, group, starts, begin_key, minibatched)
            places = np.asarray(group.members)
            self.transitions.append(transition)
            self.members.append(list(group.members))
            self.states.append(begin_chains(begin_key, transition, starts.positions, group.arrays, places))

    def first_steps(self, rng_key: PRNGKeyArray) -> list[PyTree]:
        """What a step makes of one chain, in each group: another sampler would hardly make the same of it."""
        return [
            _step_once(rng_key, transition, jax.tree.map(lambda leaf: leaf[0, 0], states), [a[0] for a in group.arrays])
            for transition, states, group in zip(self.transitions, self.states, self.settings.groups, strict=True)
        ]

    @property
    def num_chains(self) -> int:
        """Of each arm."""
        return self.starts.num_draws

    def price(self, place: int, stretches: int, *, scored: bool = True) -> float:
        """What so many stretches of all chains of an arm cost."""
        scores = self.lengths.draws * self.costs.score if scored else 0.0
        return self.num_chains * stretches * (self.lengths.steps * self.costs.steps[place] + scores)

    def advance(self, live: Sequence[int], count: int, *, scored: bool = True, kept: dict[int, Arm] | None = None):
        """Run some stretches, at most as many as a call takes, of the arms that are still in; `kept` gets the draws."""
        assert 0 < count <= STRETCHES_AT_ONCE
        kept = {place: self.arms[place] for place in live} if kept is None else kept
        for g, group in enumerate(self.settings.groups):
            chosen = [row for row, place in enumerate(self.members[g]) if place in live]
            self._keep_rows(g, chosen)
            if not chosen:
                continue
            places = self.members[g]
            first = kept[places[0]].stretches
            arrays = [np.asarray(leaf)[[group.members.index(place) for place in places]] for leaf in group.arrays]
            self.states[g], path = run_chains(
                self.run_key, self.transitions[g], self.states[g], arrays, np.asarray(places), self.origin,
                np.asarray(first), np.asarray(count), self.lengths,
            )  # fmt: skip
            paths, moments = jax.tree.map(np.asarray, path.positions), np.asarray(path.moments, np.float64)
            for number in range(count):
                positions = jax.tree.map(lambda leaf, number=number: leaf[number], paths)
                key = key_of(self.score_key, first + number, g)
                self._keep(key, places, positions, moments[number], scored=scored, kept=kept)

    def _keep_rows(self, group: int, chosen: list[int]) -> None:
        if len(chosen) < len(self.members[group]):
            rows = np.asarray(chosen, int)
            self.states[group] = _rows_of(self.states[group], rows)
            self.members[group] = [self.members[group][row] for row in chosen]

    def _keep(
        self,
        key: PRNGKeyArray,
        places: Sequence[int],
        positions: PyTree,
        moments: Float[np.ndarray, "arms chains columns"],
        *,
        scored: bool,
        kept: dict[int, Arm],
    ) -> None:
        """Write down one stretch of each arm: positions (arms, chains, draws, …)."""
        shape = len(places), self.num_chains, self.lengths.draws
        flat = jax.tree.map(lambda leaf: as_array(leaf.reshape(math.prod(shape), *leaf.shape[3:])), positions)
        x = np.asarray(ravel(flat)).reshape(*shape, -1)
        is_finite = np.asarray(np.isfinite(x).all(axis=(2, 3)) & np.isfinite(moments).all(axis=2))
        s = np.zeros_like(x)
        if scored:
            s = np.asarray(
                ravel(self.score(key, Draws(self._tamed(flat, np.logical_and.reduce(is_finite, axis=1)))))
            ).reshape(x.shape)
        has_score = np.asarray(np.isfinite(s).all(axis=(2, 3)))
        for row, place in enumerate(places):
            arm = kept[place]
            arm.stretches += 1
            arm.spent += self.price(place, 1, scored=scored)
            bad = np.flatnonzero(~(is_finite[row] & has_score[row]))
            if len(bad) and arm.reason is None:
                what = "its score" if is_finite[row, bad[0]] else "its position"
                steps = arm.stretches * self.lengths.steps
                arm.reason = f"Diverged: within {steps:,} steps {what} was not finite in chain {bad[0]}."
            arm.x.append(x[row])
            if scored:
                arm.s.append(s[row])
                arm.moments.append(moments[row])

    def _tamed(self, flat: PyTree, is_finite: np.ndarray) -> PyTree:
        """Where an arm has diverged, a starting position instead of its draws: its scores are not looked at."""
        if is_finite.all():
            return flat
        sound = np.repeat(is_finite, len(jax.tree.leaves(flat)[0]) // len(is_finite))

        def tame(leaf: Any, start: Any) -> Any:
            return as_array(np.where(sound.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, np.asarray(start)[:1]))

        return jax.tree.map(tame, flat, self.starts.positions)

    def end_burn_in(self) -> None:
        """Fix the origin by where arms are, by their medians, and forget the positions seen so far."""
        sound = [np.concatenate(arm.x, axis=1) for arm in self.arms if arm.reason is None]
        for arm in self.arms:
            arm.x.clear()
        if not sound:
            return
        rows = [np.asarray(x, np.float64).reshape(-1, x.shape[-1]) for x in sound]
        loc = np.median([x.mean(axis=0) for x in rows], axis=0)
        scale = np.median([x.std(axis=0) for x in rows], axis=0)
        dtype = self.origin.loc.dtype
        self.origin = Origin(loc.astype(dtype), np.where(scale > 0, scale, 1).astype(dtype))

    def as_draws(self, arm: Arm) -> tuple[Draws, Draws]:
        """Draws of an arm, chains one after the other, and their scores, in the structure of positions."""
        return self._joined(arm.x), self._joined(arm.s)

    def _joined(self, stretches: Sequence[Float[np.ndarray, "chains draws dim"]]) -> Draws:
        rows = np.concatenate(stretches, axis=1).reshape(-1, self.starts.dim)
        return Draws(jax.tree.map(jnp.asarray, self.starts.structure.unravel_rows(rows)), self.num_chains)


@compile_by_work
def _rows_of(states: PyTree, rows: Int[np.ndarray, " rows"]) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[rows], states)


@compile_by_work
def _step_once(rng_key: PRNGKeyArray, transition: Transition, state: PyTree, setting: list[Array]) -> PyTree:
    return transition.step(rng_key, state, setting)
