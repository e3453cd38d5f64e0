"""Successive halving: rounds of all settings that are still in, and what was found of them."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxpsd._choose.budget import FIRST_ROUND, Budget
from jaxpsd._choose.candidates import Candidate
from jaxpsd._choose.checkpoint import Checkpoint
from jaxpsd._choose.evidence import Expected, expect_square
from jaxpsd._choose.judged import judge_candidate
from jaxpsd._choose.ranking import Outcome, Ranking, ranking_of
from jaxpsd._choose.runner import Arm, Runner
from jaxpsd._choose.scoring import (
    Scorer,
    TargetMoments,
    errors_of_moments,
    make_scorer,
    parts_of_moments,
    rough_moments,
    summarize,
    target_moments,
)
from jaxpsd._choose.transitions import STRETCHES_AT_ONCE
from jaxpsd._choose.tuning import Fresh, Outcomes, Round, Tuning
from jaxpsd._core.compiling import compile_by_work, key_of, split_key
from jaxpsd._core.scores import Given

_REPLICATES = 400


class Asked(NamedTuple):
    """What the user has asked for."""

    objective: str
    order: int
    burn_in: float
    keep: float
    alpha: float
    num_steps: int
    budget: Budget


class _Standard(NamedTuple):
    """What settings are held to, all of them to the same."""

    scorer: Scorer
    moments: TargetMoments


class Race:
    """All settings, and those that are still in."""

    def __init__(self, runner: Runner, asked: Asked, rng_key: PRNGKeyArray, checkpoint: Checkpoint | None):
        """Begin, or go on from where a file says."""
        self.runner, self.asked, self.rng_key, self.checkpoint = runner, asked, rng_key, checkpoint
        self.live = list(range(len(runner.arms)))
        self.rounds: list[Round] = []
        # Stretches that each setting has run, and will have run when the round is over.
        self.done, self.goal = 0, FIRST_ROUND
        if checkpoint is not None and (kept := checkpoint.load(runner)) is not None:
            self.live, self.done, self.goal = kept["live"], kept["done"], kept["goal"]
            self.rounds = [Round(**each) for each in kept["rounds"]]

    def run(self, show: Callable[[str], None]) -> None:
        """Until one setting is left or the budget is spent; `show` is told of each round."""
        while True:
            show(f"round {len(self.rounds) + 1}, {len(self.live)} settings")
            if not self._run_round():
                return

    def _run_round(self) -> bool:
        """One round; whether there is another."""
        budget, runner = self.asked.budget, self.runner
        while self.done < self.goal:
            is_burning = self.done < budget.burned
            count = min(STRETCHES_AT_ONCE, (budget.burned if is_burning else self.goal) - self.done)
            runner.advance(self.live, count, scored=not is_burning)
            self.done += count
            if self.done == budget.burned:
                runner.end_burn_in()
            self._save()
        self._end_round()
        number = len(self.rounds)
        more = 0
        if len(self.live) > 1 and number < budget.num_rounds:
            more = budget.next_stretches(runner, self.live, number, self.done)
        self.goal += more
        return more > 0

    def _save(self) -> None:
        if self.checkpoint is not None:
            rounds = [each._asdict() for each in self.rounds]
            self.checkpoint.save(
                self.runner, {"live": self.live, "done": self.done, "goal": self.goal, "rounds": rounds}
            )

    def _end_round(self) -> None:
        """Drop what is worse than the best for certain, and not among the better ones."""
        sound = [place for place in self.live if self.runner.arms[place].reason is None]
        if not sound:
            arm = self.runner.arms[self.live[0]]
            raise ValueError(f"No setting can be used. {self.runner.settings.labels[arm.place]}: {arm.reason}")
        ranking = self._rank(sound)
        stay = math.ceil(self.asked.keep * len(self.live))
        # An interval that is not known reaches anywhere.
        in_doubt = ~(ranking.interval[:, 0] > ranking.interval[0, 1]) & np.isfinite(ranking.discrepancy)
        kept = {place for k, place in enumerate(ranking.labels) if k < stay or in_doubt[k]}
        kept -= {place for place in kept if self.runner.arms[place].reason is not None}
        values = dict(zip(ranking.labels, ranking.discrepancy.tolist(), strict=True))
        intervals = dict(zip(ranking.labels, ranking.interval.tolist(), strict=True))
        self.rounds.append(
            Round(
                steps=self.done * self.runner.lengths.steps,
                places=self.live,
                values=[values.get(place, math.nan) for place in self.live],
                intervals=[intervals.get(place, [math.nan, math.nan]) for place in self.live],
                dropped=[place for place in self.live if place not in kept],
            )
        )
        self.live = [place for place in self.live if place in kept]

    def _rank(self, places: Sequence[int]) -> Ranking:
        """The settings from the best to the worst, by what a full run would have."""
        arms = [self.runner.arms[place] for place in places]
        scorer = self._make_scorer(arms)
        if self.asked.objective == "bias":
            expected = [self._discrepancy(arm, scorer, arm.used(self.asked.burn_in)) for arm in arms]
        else:
            standard = _Standard(scorer, target_moments(arms, scorer.affine, self._effective(arms, scorer)))
            expected = [self._error(arm, standard, arm.used(self.asked.burn_in)) for arm in arms]
        for arm, each in zip(arms, expected, strict=True):
            if not np.isfinite(each.square):
                arm.reason = "Diverged: its draws are too far away for a discrepancy."
        return _ranking(places, expected, self.asked.alpha)

    def _make_scorer(self, arms: Sequence[Arm]) -> Scorer:
        # As many draws of each as there are after the first round, so that there is one program.
        scored = (FIRST_ROUND - self.asked.budget.burned + 1) // 2
        return make_scorer(arms, self.asked.order, self.runner.num_chains * self.runner.lengths.draws * scored)

    def _effective(self, arms: Sequence[Arm], scorer: Scorer) -> float:
        """How many independent draws all these settings are worth together."""
        rough, burn_in = rough_moments(scorer.affine), self.asked.burn_in
        errors = (errors_of_moments(arm, arm.used(burn_in), self.runner.origin, rough) for arm in arms)
        return sum(summarize(each).effective for each in errors)

    def _discrepancy(self, arm: Arm, scorer: Scorer, used: int) -> Expected:
        share = used / ((1 - self.asked.burn_in) * self.asked.budget.most)
        return scorer.discrepancy(self._rng(arm, 0), arm, used, share, _REPLICATES)

    def _error(self, arm: Arm, standard: _Standard, used: int) -> Expected:
        """The mean squared error of means and deviations, in a run that costs as much as that of any other setting.

        Where the target's moments are not known, the bias is that of Stein features, which need no guess of them: one
        by draws of settings that do not get around would find those to be right.
        """
        scorer, moments = standard
        costs = self.runner.costs.steps
        full = (1 - self.asked.burn_in) * self.asked.budget.most * costs.mean() / costs[arm.place]
        batches = errors_of_moments(arm, used, self.runner.origin, moments).batches
        # The mean, and not the sum, over all of these.
        batches = batches / batches.shape[-1] ** 0.5
        parts = parts_of_moments(scorer.dim)
        if not np.isnan(moments.error).any():
            return expect_square(self._rng(arm, 1), batches, parts, used / full, _REPLICATES)
        noise = expect_square(self._rng(arm, 1), batches - batches.mean(axis=(0, 1)), parts, used / full, _REPLICATES)
        bias = expect_square(self._rng(arm, 2), scorer.moment_features(arm, used), parts, 0.0, _REPLICATES)
        return Expected(noise.square + bias.square, noise.parts + bias.parts, noise.replicates + bias.replicates)

    def _rng(self, arm: Arm, purpose: int) -> np.random.Generator:
        return np.random.default_rng(int(_bits_of(key_of(self.rng_key, 3 * arm.place + purpose, arm.stretches))))

    # --- results ----------------------------------------------------------------------------------------------

    def result(self, fresh_key: PRNGKeyArray, tolerance: float | None) -> Tuning:
        """What was found of all settings, and new draws of the best."""
        runner, last, burn_in = self.runner, self.rounds[-1], self.asked.burn_in
        values = dict(zip(last.places, last.values, strict=True))
        best = min(self.live, key=values.__getitem__)
        # Of those that were dropped too, in what survivors have shown the target to be.
        left = [runner.arms[place] for place in self.live]
        scorer = self._make_scorer(left)
        fresh = self._run_fresh(fresh_key, best)
        judged = left if fresh.reason else [fresh]
        moments = target_moments(judged, scorer.affine, self._effective(judged, scorer))
        standard = _Standard(scorer, moments)
        return Tuning(
            settings=runner.settings.values,
            labels=runner.settings.labels,
            best_place=best,
            outcomes=self._outcomes(runner.arms, [arm.used(burn_in) for arm in runner.arms], standard),
            rounds=tuple(self.rounds),
            fresh=self._describe(fresh, standard, tolerance),
            spent=float(sum(arm.spent for arm in runner.arms) + fresh.spent),
            budget=float(self.asked.budget.total),
            grid_price=float(self.asked.budget.grid),
            num_steps=self.asked.num_steps,
            objective=self.asked.objective,
            tolerance=tolerance,
            alpha=self.asked.alpha,
            names=runner.starts.names,
        )

    def _run_fresh(self, rng_key: PRNGKeyArray, best: int) -> Arm:
        """New draws of the best with new keys, from where its chains stand, for what is left of the budget."""
        count = self.asked.budget.fresh_stretches(self.runner, best)
        fresh = Arm(best)
        self.runner.run_key, self.runner.score_key = split_key(rng_key)
        while fresh.stretches < count and fresh.reason is None:
            self.runner.advance([best], min(STRETCHES_AT_ONCE, count - fresh.stretches), kept={best: fresh})
        return fresh

    def _outcomes(self, arms: Sequence[Arm], used: Sequence[int], standard: _Standard) -> Outcomes:
        """A row for each, NaN where there is nothing."""
        scorer, moments = standard
        dim, count = scorer.dim, len(arms)
        sound = [k for k, arm in enumerate(arms) if arm.reason is None]
        by_discrepancy = {k: self._discrepancy(arms[k], scorer, used[k]) for k in sound}
        by_error = {k: self._error(arms[k], standard, used[k]) for k in sound}
        nan = np.full((count, 2 * dim), np.nan)
        off, error, effective = nan, nan.copy(), np.full(count, np.nan)
        for k in sound:
            summary = summarize(errors_of_moments(arms[k], used[k], self.runner.origin, moments))
            # Where the target's moments are not known, neither are errors.
            off[k] = summary.off + 0 * moments.error
            error[k] = np.hypot(summary.error, moments.error)
            steps = used[k] * self.runner.lengths.steps * self.runner.num_chains
            effective[k] = 1000 * summary.effective / (steps * self.runner.costs.steps[arms[k].place])
        dropped = {place: number for number, each in enumerate(self.rounds, start=1) for place in each.dropped}
        discrepancy, interval, parts = _columns(by_discrepancy, count, scorer.order, self.asked.alpha)
        rms_error, error_interval, _ = _columns(by_error, count, 2, self.asked.alpha)
        return Outcomes(
            discrepancy=discrepancy,
            interval=interval,
            parts=parts,
            error=rms_error,
            error_interval=error_interval,
            mean_off=off[:, :dim],
            mean_off_se=error[:, :dim],
            sd_off=off[:, dim:],
            sd_off_se=error[:, dim:],
            effective=effective,
            gradients=np.array([arm.spent for arm in arms]),
            steps=np.array([arm.stretches * self.runner.lengths.steps for arm in arms]),
            dropped_in=np.array([dropped.get(arm.place, 0) for arm in arms]),
            reasons=tuple(arm.reason for arm in arms),
        )

    def _describe(self, fresh: Arm, standard: _Standard, tolerance: float | None) -> Fresh:
        outcomes = self._outcomes([fresh], [len(fresh.x)], standard)
        draws, scores = self.runner.as_draws(fresh)
        if fresh.reason is not None:
            return Fresh(outcomes, draws, scores, None if tolerance is None else False, fresh.reason)
        if tolerance is None:
            return Fresh(outcomes, draws, scores, None, None)
        judgement = judge_candidate(Candidate("new draws", Given(draws, scores.positions), None), tolerance)
        return Fresh(outcomes, draws, scores, judgement.good_enough, judgement.reason)


@compile_by_work
def _bits_of(rng_key: PRNGKeyArray) -> Array:
    return jax.random.bits(rng_key)


def _ranking(places: Sequence[int], expected: Sequence[Expected], alpha: float) -> Ranking:
    """From the smallest expected square to the largest, with intervals."""
    outcomes = {
        place: Outcome(each.square, np.zeros(0), np.nan, np.nan, each.replicates, bool(np.isfinite(each.square)), ())
        for place, each in zip(places, expected, strict=True)
    }
    return ranking_of(outcomes, dict.fromkeys(places, 0), alpha)


def _columns(found: dict[int, Expected], count: int, num_parts: int, alpha: float) -> tuple[np.ndarray, ...]:
    """Roots of expected squares, their intervals and parts, of those that have them."""
    value, interval, parts = np.full(count, np.nan), np.full((count, 2), np.nan), np.full((count, num_parts), np.nan)
    if found:
        ranking = _ranking(list(found), list(found.values()), alpha)
        value[list(ranking.labels)], interval[list(ranking.labels)] = ranking.discrepancy, ranking.interval
        for k, each in found.items():
            parts[k] = np.sqrt(each.parts)
    return value, interval, parts
