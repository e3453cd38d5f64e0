"""What tuning has found: a setting, what it cost, and how all others did."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from jaxpsd._choose.ranking import say_parts
from jaxpsd._core.draws import Draws
from jaxpsd._core.tables import html_lines, html_table, number, plain, text_table


class Round(NamedTuple):
    """What was known after a round.

    steps
        Of each chain, so far.
    places
        Which settings were still in.
    values, intervals
        What they were judged by, expected of a full run, and where it lies; NaN of those that had diverged.
    dropped
        Which of them were dropped.
    """

    steps: int
    places: list[int]
    values: list[float]
    intervals: list[list[float]]
    dropped: list[int]


class Outcomes(NamedTuple):
    """What was found of settings: arrays with an entry for each, NaN where there is no result.

    discrepancy, interval
        The orthonormal PSD that a run of `num_steps` steps would have, by the bias and the noise seen so far, and
        (settings, 2), where it lies with probability 1 − alpha.
    parts
        (settings, degrees), its parts by degree, whose squares sum to that of the discrepancy.
    error, error_interval
        Root mean squared error of means and standard deviations, in standard deviations of the target and as shares, of
        a run of as many gradient evaluations as others have. Where moments of the target are not known, its bias is the
        mean of Stein features.
    mean_off, sd_off
        (settings, dim), how far means and standard deviations of the draws made so far are off, in these units; NaN
        where it cannot be told, since polynomials do not tell the moments of such a target.
    mean_off_se, sd_off_se
        Their standard errors: Monte Carlo error, and what is not known of the target.
    effective
        Independent draws, by the mean that is known least, for each 1000 gradient evaluations of steps after burn-in.
    gradients
        Gradient evaluations spent, those of scores included.
    steps
        Of each chain.
    dropped_in
        In which round, from 1; zero for those that were left.
    reasons
        Why a setting has no result, if it has none.
    """

    discrepancy: Float[np.ndarray, " settings"]
    interval: Float[np.ndarray, "settings 2"]
    parts: Float[np.ndarray, "settings degrees"]
    error: Float[np.ndarray, " settings"]
    error_interval: Float[np.ndarray, "settings 2"]
    mean_off: Float[np.ndarray, "settings dim"]
    mean_off_se: Float[np.ndarray, "settings dim"]
    sd_off: Float[np.ndarray, "settings dim"]
    sd_off_se: Float[np.ndarray, "settings dim"]
    effective: Float[np.ndarray, " settings"]
    gradients: Float[np.ndarray, " settings"]
    steps: Int[np.ndarray, " settings"]
    dropped_in: Int[np.ndarray, " settings"]
    reasons: tuple[str | None, ...]


class Fresh(NamedTuple):
    """New draws of the chosen setting, which had no part in choosing it.

    outcomes
        As for all settings, with one entry.
    draws, scores
        What `diagnose(rng_key, fresh.scores, fresh.draws)` takes.
    good_enough
        Whether the draws are, with a tolerance; None where it cannot be told, or was not asked.
    reason
        Why.
    """

    outcomes: Outcomes
    draws: Draws
    scores: Draws
    good_enough: bool | None
    reason: str | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Tuning:
    """A setting chosen among several, and what is known of all of them.

    settings, labels
        As the user gave them, and in words.
    best_place
        Which of them was chosen.
    outcomes
        What was found of each.
    rounds
        What was known after each round.
    fresh
        New draws of the chosen setting, made with new keys from where its chains stood, and what was found of them.
        What it was chosen by is optimistic; this is not.
    spent, budget
        Gradient evaluations, those of scores and new draws included.
    grid_price
        What a full run of each setting would have cost.
    num_steps
        Steps of each chain in a full run.
    objective
        What was to be small, "error" or "bias".
    tolerance
        What is good enough; None if it was not asked.
    alpha
        Intervals have probability 1 − alpha.
    names
        Of the coordinates.
    """

    settings: tuple[Any, ...]
    labels: tuple[str, ...]
    best_place: int
    outcomes: Outcomes
    rounds: tuple[Round, ...]
    fresh: Fresh
    spent: float
    budget: float
    grid_price: float
    num_steps: int
    objective: str
    tolerance: float | None
    alpha: float
    names: tuple[str, ...]

    @property
    def best(self) -> Any:
        """The chosen setting, as the user gave it."""
        return self.settings[self.best_place]

    @property
    def good_enough(self) -> bool | None:
        """Whether new draws of the chosen setting are within the tolerance; None if it is not known, or not asked."""
        return self.fresh.good_enough

    @property
    def as_good(self) -> tuple[Any, ...]:
        """The settings that were left at the end, and whose interval reaches that of the best; the best comes first.

        Of one whose chains stand still no interval is known, and it is not among them.
        """
        last = self.rounds[-1]
        interval = dict(zip(last.places, last.intervals, strict=True))
        reach = interval[self.best_place][1]
        left = [place for place in last.places if place not in last.dropped and place != self.best_place]
        close = [place for place in left if interval[place][0] <= reach]
        return (self.best, *(self.settings[place] for place in close))

    def to_dict(self) -> dict[str, Any]:
        """Everything but draws as plain numbers, for JSON; None for what is not known."""
        return {
            "best": _plain_setting(self.best),
            "as_good": [_plain_setting(setting) for setting in self.as_good],
            "objective": self.objective,
            "settings": [
                {"label": label, "setting": _plain_setting(setting), **_row(self.outcomes, k)}
                for k, (label, setting) in enumerate(zip(self.labels, self.settings, strict=True))
            ],
            "new_draws": {"num_draws": self.fresh.draws.num_draws, **_row(self.fresh.outcomes, 0)},
            "rounds": [
                {
                    "steps": each.steps,
                    "settings": [self.labels[place] for place in each.places],
                    "values": plain(each.values),
                    "intervals": plain(each.intervals),
                    "dropped": [self.labels[place] for place in each.dropped],
                }
                for each in self.rounds
            ],
            "spent": self.spent,
            "budget": self.budget,
            "grid_price": self.grid_price,
            "num_steps": self.num_steps,
            "alpha": self.alpha,
            "names": list(self.names),
            **(
                {}
                if self.tolerance is None
                else {"tolerance": self.tolerance, "good_enough": self.good_enough, "reason": self.fresh.reason}
            ),
        }

    def __repr__(self) -> str:
        return "\n".join([text_table(self._columns()), "", *self._remarks()])

    def _repr_html_(self) -> str:
        return html_table(self._columns()) + html_lines(self._remarks())

    def _order(self) -> list[int]:
        """The best first, then by how long they were in, and how good they were."""
        found, last = self.outcomes, len(self.rounds) + 1
        value = found.discrepancy if self.objective == "bias" else found.error

        def rank(place: int) -> tuple[bool, int, float]:
            stayed = found.dropped_in[place] or last
            return place != self.best_place, -int(stayed), float(np.nan_to_num(value[place], nan=np.inf))

        return sorted(range(len(self.labels)), key=rank)

    def _columns(self) -> dict[str, list[str]]:
        order, found = self._order(), self.outcomes
        fresh = self.fresh.outcomes
        rows = [(self.labels[place], found, place) for place in order]
        # Below the best, what its new draws are like.
        rows.insert(1, ("  its new draws", fresh, 0))

        def show(fn: Any) -> list[str]:
            return [fn(outcomes, k) for _, outcomes, k in rows]

        return {
            "setting": [label for label, *_ in rows],
            "discrepancy": show(lambda each, k: _number(each.discrepancy[k])),
            "by degree": show(lambda each, k: say_parts(each.parts[k])),
            f"{1 - self.alpha:.0%} interval": show(lambda each, k: _ends(each.interval[k])),
            "error": show(lambda each, k: _number(each.error[k])),
            f"its {1 - self.alpha:.0%} interval": show(lambda each, k: _ends(each.error_interval[k])),
            "worst mean": show(lambda each, k: _worst(each.mean_off[k], each.mean_off_se[k], 1, "")),
            "worst sd": show(lambda each, k: _worst(each.sd_off[k], each.sd_off_se[k], 100, "%")),
            "draws per 1000 gradients": show(lambda each, k: _number(each.effective[k])),
            "gradients": show(lambda each, k: f"{each.gradients[k]:,.0f}"),
            "dropped": show(lambda each, k: f"round {each.dropped_in[k]}" if each.dropped_in[k] else "–"),
        }

    def _remarks(self) -> list[str]:
        share = f"{self.spent / self.grid_price:.0%} of the {self.grid_price:,.0f} of the whole grid"
        what = "discrepancy" if self.objective == "bias" else "error"
        others = [
            label
            for label, setting in zip(self.labels, self.settings, strict=True)
            if any(setting is other for other in self.as_good[1:])
        ]
        chosen = f"{self.labels[self.best_place]} is chosen: the smallest {what} of a run of {self.num_steps:,} steps"
        if others:
            chosen += f"; chance alone may explain the difference to {', '.join(others)}"
        remarks = [f"{chosen}. It took {self.spent:,.0f} gradient evaluations, {share}."]
        if self.tolerance is not None:
            verdict = {
                True: "good enough",
                False: "not good enough",
                None: "not known to be good enough, nor not to be",
            }[self.good_enough]
            remarks.append(f"Its new draws are {verdict} (tolerance {self.tolerance:g}): {self.fresh.reason}.")
        elif self.fresh.reason is not None:
            remarks.append(f"Its new draws are not to be relied on. {self.fresh.reason}")
        if np.isnan(self.fresh.outcomes.mean_off).any() or np.isnan(self.fresh.outcomes.sd_off).any():
            remarks.append(
                "“–” among errors of means and standard deviations: polynomials do not tell these moments of such a "
                "target. The units of “error” are then those that scores imply, and its bias is that of Stein features."
            )
        reasons = zip(self.labels, self.outcomes.reasons, strict=True)
        return remarks + [f"{label}: {reason}" for label, reason in reasons if reason is not None]


def _row(outcomes: Outcomes, place: int) -> dict[str, Any]:
    """All that is known of one setting."""
    arrays = {name: plain(values[place]) for name, values in outcomes._asdict().items() if name != "reasons"}
    return {**arrays, "reason": outcomes.reasons[place]}


def _plain_setting(setting: Any) -> Any:
    if isinstance(setting, dict):
        return {str(name): _plain_setting(each) for name, each in setting.items()}
    if isinstance(setting, str | bool | int | float) or setting is None:
        return setting
    if isinstance(setting, list | tuple):
        return [_plain_setting(each) for each in setting]
    try:
        return plain(setting)
    except (TypeError, ValueError):
        return str(setting)


def _number(value: float) -> str:
    return "–" if np.isnan(value) else number(value)


def _ends(interval: np.ndarray) -> str:
    return "–" if np.isnan(interval).any() else " … ".join(map(number, interval))


def _worst(off: np.ndarray, se: np.ndarray, unit: float, sign: str) -> str:
    """The largest error, with its standard error, where all are known."""
    if np.isnan(off).any():
        return "–"
    k = int(np.argmax(np.abs(off)))
    return f"{float(f'{unit * off[k]:.2g}'):+g}{sign} ± {float(f'{unit * se[k]:.1g}'):g}{sign}"
