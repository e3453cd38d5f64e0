"""CmdStan's diagnostic files: unconstrained draws, and gradients at them, one file for each chain.

Columns are those of the sampler, which end in two underscores, the unconstrained parameters, their momenta `p_…`, and
the gradients `g_…` of the potential −log p. Parameters have the names of the constrained ones, whose draws are in
CmdStan's output file. Lines that begin with # are comments, in the middle of a file too.
"""

import re
from collections.abc import Sequence
from math import ceil
from pathlib import Path, PureWindowsPath
from typing import NamedTuple

import numpy as np

from jaxpsd._core.draws import Draws
from jaxpsd._core.origins import Kind, Origin
from jaxpsd.adapters.columns import draws_of_columns, find_prefixes

_HOW_TO = (
    "Run CmdStan again with `output diagnostic_file=FILE` (CmdStanPy: `save_latent_dynamics=True`), and pass those "
    "files, one for each chain; or use `from_stan(model, draws)` with a BridgeStan model."
)

# E[(x − E x)·s] = −1 in each coordinate, by parts. Draws that are biased, or few, change that by less than this.
_LOWEST, _HIGHEST, _ENOUGH = -10.0, -0.1, 20


class _Chain(NamedTuple):
    """One file: the names of its columns, its rows after warm-up, and the output file of the same run."""

    path: Path
    names: tuple[str, ...]
    rows: np.ndarray
    output: Path | None

    @property
    def parameters(self) -> list[str]:
        return [name for name in self.names if f"g_{name}" in self.names and f"p_{name}" in self.names]

    @property
    def columns(self) -> dict[str, np.ndarray]:
        return dict(zip(self.names, self.rows.T, strict=True))


def is_stan_file(path: Path) -> bool:
    """Whether a table was written by Stan."""
    with path.open(encoding="utf-8-sig") as file:
        for line in file:
            if not line.startswith("#"):
                return line.startswith("lp__,")
            if "stan_version_major" in line:
                return True
    return False


def read_diagnostics(paths: Sequence[Path], *, warmup: bool = False) -> tuple[Draws, Draws]:
    """The scores and the draws in diagnostic files; with those of warm-up, where they were saved, if asked for."""
    chains = [_read_chain(path, warmup=warmup) for path in paths]
    # A pattern such as *.csv finds both files of a run.
    outputs = {chain.output for chain in chains if chain.parameters}
    chains = [chain for chain in chains if chain.path.resolve() not in outputs]
    first = chains[0]
    for chain in chains[1:]:
        if chain.names != first.names:
            raise ValueError(f"{chain.path} and {first.path} have other columns than each other: chains of two models?")
        if len(chain.rows) != len(first.rows):
            raise ValueError(
                f"Chains differ in length: {chain.path} has {len(chain.rows):,} draws, {first.path} has "
                f"{len(first.rows):,}."
            )
    names = first.parameters
    if not names:
        raise ValueError(f"{first.path} has draws of constrained parameters, and no gradients. {_HOW_TO}")
    rows = np.concatenate([chain.rows for chain in chains])
    table = dict(zip(first.names, rows.T, strict=True))
    x = np.stack([table[name] for name in names], axis=1)
    # The potential is −log p, and so is its gradient.
    scores = -np.stack([table[f"g_{name}"] for name in names], axis=1)
    _check_sign(x, scores, names, first.path)
    origin = Origin.of_transitions(Kind.MCMC, "Stan", table.get("divergent__"), table.get("accept_stat__"))
    prefixes = _prefixes(first, names, warmup=warmup)
    return tuple(draws_of_columns(values, names, len(chains), origin, prefixes) for values in (scores, x))  # pyright: ignore


def _prefixes(chain: _Chain, names: list[str], *, warmup: bool) -> dict[str, str]:
    """What parameters are in terms of the constrained ones, as far as the output file of the same run tells."""
    constrained = {}
    if chain.output is not None:
        output = _read_chain(chain.output, warmup=warmup)
        if len(output.rows) == len(chain.rows):
            constrained = output.columns
    x = np.stack([chain.columns[name] for name in names], axis=1)
    return find_prefixes(names, x, constrained)


def _read_chain(path: Path, *, warmup: bool) -> _Chain:
    names, rows, settings, section, adapted = None, [], {}, "", None
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(map(str.strip, file), 1):
            if line.startswith("#"):
                if "=" in line:
                    key, _, value = line.strip("# ").partition("=")
                    settings.setdefault(key.strip(), value.strip())
                    settings.setdefault(f"{section} {key.strip()}", value.strip())
                else:
                    section = line.strip("# ")
                if "Adaptation terminated" in line:
                    adapted = len(rows)
            elif names is None:
                names = tuple(line.split(","))
            elif line:
                values = line.split(",")
                if len(values) != len(names):
                    # A chain that is still running, or was killed, ends in the middle of a line.
                    raise ValueError(f"{path}: line {number} has {len(values)} values for {len(names)} columns.")
                rows.append(values)
    if names is None or not rows:
        raise ValueError(f"{path} has no rows of numbers.")
    try:
        table = np.array(rows, dtype=float)
    except ValueError as error:
        raise ValueError(f"{path} has something else than numbers in its rows: {error}.") from error
    kept = table[0 if warmup else _num_warmup(settings, adapted) :]
    if not len(kept):
        raise ValueError(f"{path} has draws of warm-up only.")
    return _Chain(path, names, kept, _find_output(path, settings.get("output file", "")))


def _find_output(path: Path, named: str) -> Path | None:
    """The output file of a run, by what a file of it says; nowhere but in the same folder."""
    name = PureWindowsPath(named.removesuffix("(Default)").strip())
    # Where one process runs several chains, their numbers are added to the name that was asked for.
    number = re.search(r"_\d+$", path.stem)
    names = [name.name, f"{name.stem}{number[0]}{name.suffix}" if number else ""]
    found = [path.with_name(each).resolve() for each in names if each]
    return next((each for each in found if each.is_file() and each != path.resolve()), None)


def _num_warmup(settings: dict[str, str], adapted: int | None) -> int:
    """How many of the rows are of warm-up: those before adaptation ended or, where nothing adapts, as the file says."""
    if adapted is not None:
        return adapted
    if settings.get("save_warmup", "0").split()[0] not in ("1", "true"):
        return 0
    number, thin = (
        int(settings.get(name, default).split()[0]) for name, default in (("num_warmup", "0"), ("thin", "1"))
    )
    return ceil(number / thin)


def _check_sign(x: np.ndarray, scores: np.ndarray, names: Sequence[str], path: Path) -> None:
    """Hold gradients to what integration by parts says of those of a log-density at draws from it."""
    if len(x) < _ENOUGH:
        return
    by_parts = np.mean((x - x.mean(axis=0)) * scores, axis=0)
    if not _LOWEST < (middle := float(np.median(by_parts))) < _HIGHEST:
        worst = names[int(np.argmax(np.abs(by_parts + 1)))]
        raise ValueError(
            f"The columns g_… of {path} are not gradients of −log p at these draws: the mean of (x − mean)·∇log p must "
            f"be about −1 in every coordinate; its median over them is {middle:.2g}, and {worst} is farthest off. "
            "Are signs reversed, columns mixed up, or draws of warm-up among them?"
        )
