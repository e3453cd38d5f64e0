"""What the experiments share: pieces of work that survive an interruption, and where results come from."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from tqdm import tqdm

from benchmarks._harness import provenance

FOLDER = Path(__file__).parent
RESULTS, FIGURES = FOLDER / "results", FOLDER / "figures"

Pieces = Mapping[str, Callable[[], Any]]
"""Pieces of work by name; each returns what JSON can hold."""


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
    """

    name: str
    title: str
    pieces: Callable[[bool], Pieces]
    render: Callable[[Mapping[str, Any]], str]
    draw: Callable[[Mapping[str, Any]], Figure] | None = None

    def run(self, *, smoke: bool) -> dict[str, Any]:
        """Do what has not been done yet, and write it down piece by piece; a toy run writes nothing."""
        pieces = self.pieces(smoke)
        path = RESULTS / f"{self.name}.json"
        done = {} if smoke else _read(path)
        found = {name: piece for name, piece in done.get("pieces", {}).items() if name in pieces}
        for name in tqdm([name for name in pieces if name not in found], desc=self.name, disable=smoke):
            start = time.perf_counter()
            found[name] = {"result": pieces[name](), "seconds": time.perf_counter() - start}
            if not smoke:
                _write(path, {**provenance(), "pieces": found})
        return {name: found[name]["result"] for name in pieces}

    def finished(self) -> dict[str, Any] | None:
        """The committed results, if all are there."""
        found = _read(RESULTS / f"{self.name}.json").get("pieces", {})
        names = self.pieces(False)
        return {name: found[name]["result"] for name in names} if set(names) <= set(found) else None

    def seconds(self) -> float:
        """How long all pieces took."""
        return sum(piece["seconds"] for piece in _read(RESULTS / f"{self.name}.json").get("pieces", {}).values())


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def _write(path: Path, result: Mapping[str, Any]) -> None:
    """At one stroke, so that an interruption leaves the old file or the new one."""
    path.parent.mkdir(exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(result, indent=1) + "\n")
    partial.replace(path)
