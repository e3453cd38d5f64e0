"""What became of draws that followed the target for a while: the result, for people and programs."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxpsd._core.tables import html_lines, html_table, number, plain, text_table
from jaxpsd._core.types import PyTree

# Rows to show.
_ROWS = 10

# Below this share of accepted proposals draws hardly move; above this share that never do, something holds them.
_HARDLY, _STUCK = 0.3, 0.01

_Interval = tuple[Float[np.ndarray, " dim"], Float[np.ndarray, " dim"]]


class FunctionChange(NamedTuple):
    """How the mean of a function of the user's changed; an entry for each number that it returns.

    before, after
        Means over the draws that were started from, and over the moved ones.
    change
        After less before.
    change_se
        Its standard error.
    sd
        Standard deviations over the moved draws.
    p_value
        Step-down p-values, over coordinates and functions.
    names
        What the numbers are called.
    """

    before: Float[np.ndarray, " numbers"]
    after: Float[np.ndarray, " numbers"]
    change: Float[np.ndarray, " numbers"]
    change_se: Float[np.ndarray, " numbers"]
    sd: Float[np.ndarray, " numbers"]
    p_value: Float[np.ndarray, " numbers"]
    names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Relaxation:
    """Draws before and after some transitions of a Markov chain that leaves the target alone.

    A significant change shows that the draws are not from the target. How large it is says less: draws that are far
    off may have moved only part of the way, or too far. No change proves nothing.

    p_value
        How often chance alone gives so large a change of any mean or standard deviation, or of `fn`.
    mean_off
        Mean of the draws less that of the moved draws, in standard deviations of the moved draws, for each coordinate:
        positive where draws move down.
    mean_off_se
        Its standard error.
    mean_p_value
        Its p-value, adjusted for all that is looked at (step-down).
    sd_ratio
        Ratio of the draws' standard deviation to the moved draws': below one where draws spread.
    sd_ratio_se
        Its standard error.
    sd_p_value
        Its p-value, adjusted likewise.
    fn
        How the mean of the user's function changed; None without one.
    acceptance
        The mean probability with which proposals were accepted.
    stuck
        The share of draws that never moved.
    step_size
        Of the leapfrog integrator, in the coordinates of the target.
    num_draws
        How many draws were started from.
    num_transitions
        How many transitions each made.
    num_blocks
        In how many blocks that may be taken to be independent these draws lie: that of the draws if they are.
    quantile
        Half the width of an interval of probability 1 − `alpha`, in standard errors: Student's, for so many blocks.
    started, moved
        The draws that were started from and what became of them, in the structure of the samples, without chains.
    names
        The coordinates.
    alpha
        The level of the test.
    """

    p_value: float
    mean_off: Float[np.ndarray, " dim"]
    mean_off_se: Float[np.ndarray, " dim"]
    mean_p_value: Float[np.ndarray, " dim"]
    sd_ratio: Float[np.ndarray, " dim"]
    sd_ratio_se: Float[np.ndarray, " dim"]
    sd_p_value: Float[np.ndarray, " dim"]
    fn: FunctionChange | None
    acceptance: float
    stuck: float
    step_size: float
    num_draws: int
    num_transitions: int
    num_blocks: int
    quantile: float
    started: PyTree
    moved: PyTree
    names: tuple[str, ...]
    alpha: float

    @property
    def reject(self) -> bool:
        """Whether the draws are not from the target."""
        return self.p_value <= self.alpha

    @property
    def mean_off_interval(self) -> _Interval:
        """Ends of an interval of probability 1 − `alpha` for each `mean_off`."""
        half = self.quantile * self.mean_off_se
        return self.mean_off - half, self.mean_off + half

    @property
    def sd_ratio_interval(self) -> _Interval:
        """Ends of an interval of probability 1 − `alpha` for each `sd_ratio`, from its logarithm."""
        factor = np.exp(self.quantile * self.sd_ratio_se / self.sd_ratio)
        return self.sd_ratio / factor, self.sd_ratio * factor

    @property
    def statements(self) -> tuple[str, ...]:
        """What changed by more than chance, in sentences, the largest change first.

        After ± stands half the width of an interval of probability 1 − `alpha`.
        """
        while_moving = f"when the draws follow the target for {self.num_transitions} transitions"
        found: list[tuple[float, str]] = []
        for k in np.flatnonzero(self.mean_p_value <= self.alpha):
            off, half = self.mean_off[k], self.quantile * self.mean_off_se[k]
            moves = f"moves {'down' if off > 0 else 'up'} by {abs(off):.2f} (± {half:.2f}) standard deviations"
            found.append((abs(off), f"the mean of {self.names[k]} {moves} {while_moving}"))
        for k in np.flatnonzero(self.sd_p_value <= self.alpha):
            growth = 1 / self.sd_ratio[k]
            half = self.quantile * self.sd_ratio_se[k] * growth**2
            verb = "grows" if growth > 1 else "shrinks"
            by = f"by {abs(growth - 1):.0%} (± {half:.0%})"
            found.append((abs(np.log(growth)), f"the standard deviation of {self.names[k]} {verb} {by} {while_moving}"))
        if (fn := self.fn) is not None:
            for k in np.flatnonzero(fn.p_value <= self.alpha):
                size = abs(fn.change[k]) / fn.sd[k] if fn.sd[k] > 0 else np.inf
                values = f"from {number(fn.before[k])} to {number(fn.after[k])}"
                half = f"(± {number(self.quantile * fn.change_se[k])})"
                found.append((size, f"the mean of {fn.names[k]} moves {values} {half} {while_moving}"))
        return tuple(text for _, text in sorted(found, key=lambda each: -each[0]))

    @property
    def caveats(self) -> tuple[str, ...]:
        """What limits what can be said."""
        found = []
        if self.acceptance < _HARDLY:
            found.append(
                f"Only {self.acceptance:.0%} of proposals were accepted: the draws hardly move, and show little of "
                "what is wrong with them. Another parametrisation may help."
            )
        if self.stuck > _STUCK:
            found.append(
                f"{self.stuck:.1%} of the draws never moved, and show nothing: the target may be much narrower there "
                "than elsewhere."
            )
        if 2.0 ** (1 - self.num_blocks) > self.alpha:
            found.append(
                f"The draws make only {self.num_blocks} independent blocks, so that no change can be significant at "
                f"{self.alpha:g}: more or longer chains are needed."
            )
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the draws as plain numbers and text, for JSON."""
        numbers = ("mean_off", "mean_off_se", "mean_p_value", "sd_ratio", "sd_ratio_se", "sd_p_value")
        settings = (
            "p_value",
            "alpha",
            "acceptance",
            "stuck",
            "step_size",
            "num_draws",
            "num_transitions",
            "num_blocks",
        )
        fn = None if self.fn is None else {name: plain(values) for name, values in self.fn._asdict().items()}
        return {
            "names": list(self.names),
            **{name: plain(getattr(self, name)) for name in (*numbers, *settings)},
            "fn": fn,
            "statements": list(self.statements),
            "caveats": list(self.caveats),
        }

    def __repr__(self) -> str:
        return "\n\n".join([*map(text_table, self._tables()), "\n".join(self._remarks())])

    def _repr_html_(self) -> str:
        return "".join(map(html_table, self._tables())) + html_lines(self._remarks())

    def _tables(self) -> list[dict[str, list[str]]]:
        rows = np.argsort(-np.fmax(np.abs(self.mean_off), np.abs(np.log(self.sd_ratio))), kind="stable")[:_ROWS]
        off, ratio = self.quantile * self.mean_off_se, self.quantile * self.sd_ratio_se
        tables = [
            {
                "coordinate": [self.names[k] for k in rows],
                "mean, before − after (sd)": [f"{self.mean_off[k]:.3f} ± {off[k]:.3f}" for k in rows],
                "p (mean)": [number(self.mean_p_value[k]) for k in rows],
                "sd, before / after": [f"{self.sd_ratio[k]:.3f} ± {ratio[k]:.3f}" for k in rows],
                "p (sd)": [number(self.sd_p_value[k]) for k in rows],
            }
        ]
        if (fn := self.fn) is not None:
            some = range(min(len(fn.names), _ROWS))
            halves = self.quantile * fn.change_se
            tables.append(
                {
                    "function": [fn.names[k] for k in some],
                    "before": [number(fn.before[k]) for k in some],
                    "after": [number(fn.after[k]) for k in some],
                    "after − before": [f"{number(fn.change[k])} ± {number(halves[k])}" for k in some],
                    "p": [number(fn.p_value[k]) for k in some],
                }
            )
        return tables

    def _remarks(self) -> list[str]:
        more = [f"… and {len(self.names) - _ROWS} more coordinates."] if len(self.names) > _ROWS else []
        moved = (
            f"{self.num_draws} draws, {self.num_transitions} transitions of HMC, acceptance {self.acceptance:.0%}; "
            f"p = {number(self.p_value)}; ± of {1 - self.alpha:.0%} intervals."
        )
        said = [f"{text[0].upper()}{text[1:]}." for text in self.statements]
        nothing = "Nothing moved beyond chance, which proves nothing about slow directions."
        return [*more, moved, *(said or [nothing]), *self.caveats]
