"""What the experiments share: pieces of work that survive an interruption, and where results come from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks._harness import Work, kept_pieces, run_pieces, wall_seconds

FOLDER = Path(__file__).parent
RESULTS, FIGURES = FOLDER / "results", FOLDER / "figures"


@dataclass(frozen=True)
class Experiment:
    """An experiment of the paper.

    name
        What it is called on the command line.
    title
        And in the report.
    pieces
        The work, at toy size on request.
    render
        From the results of all pieces to a section of the report.
    draw
        From them to a figure, where there is one.
    is_timed
        Whether times are what it is about, so that its pieces must not run side by side.
    """

    name: str
    title: str
    pieces: Work
    render: Callable[[Mapping[str, Any]], str]
    draw: Callable[[Mapping[str, Any]], Figure] | None = None
    is_timed: bool = False

    @property
    def path(self) -> Path:
        """Where its results are."""
        return RESULTS / f"{self.name}.json"

    def run(self, *, smoke: bool) -> dict[str, Any]:
        """Do what has not been done yet, and write it down piece by piece; a toy run writes nothing."""
        return run_pieces(self.path, self.pieces, smoke=smoke, one_by_one=self.is_timed)

    def finished(self) -> dict[str, Any] | None:
        """The committed results, if all are there."""
        found, names = kept_pieces(self.path), self.pieces(False)
        return {name: found[name]["result"] for name in names} if set(names) <= set(found) else None

    def seconds(self) -> float:
        """How long it took."""
        return wall_seconds(self.path)
