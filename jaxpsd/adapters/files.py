"""Draws from files. Nothing is unpickled, and no code runs."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from jaxpsd._core.checks import check_samples
from jaxpsd._core.types import PyTree, Target
from jaxpsd.adapters.arviz import from_arviz
from jaxpsd.adapters.nutpie import from_nutpie, has_gradients
from jaxpsd.adapters.stan_files import is_stan_file, read_diagnostics

# What marks the scores among the columns of a table, or the arrays of an archive.
_SCORE = "score."


@dataclass(frozen=True)
class Sampled:
    """What a file has: `Draws`, an array of draws, or a dictionary of arrays by name; and scores in the same structure.

    An array may have names of its coordinates, and be a `table`, of columns that are variables or entries of one. An
    ArviZ file has `groups` as well, for those who know the model.
    """

    samples: PyTree
    scores: PyTree | None = None
    weights: np.ndarray | None = None
    names: tuple[str, ...] | None = None
    is_table: bool = False
    groups: Mapping[str, Any] | None = None


def read(path: str | Path) -> Sampled:
    """Read draws, and scores where there are some, from a file as `jaxpsd diagnose --help` describes them."""
    path = Path(path)
    readers = {".npy": _read_numpy, ".npz": _read_numpy, ".csv": _read_csv, ".nc": _read_netcdf}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"{path} must be a file of draws: {', '.join(readers)}.")
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    try:
        return reader(path)
    except ImportError:
        raise
    except Exception as error:
        # A damaged file can make its reader raise anything.
        raise ValueError(f"{path} could not be read: {str(error) or type(error).__name__}") from error


def read_all(paths: Sequence[str | Path]) -> Sampled:
    """Read one file; or several, which are the chains of one run of CmdStan."""
    if len(paths) == 1:
        return read(paths[0])
    for path in map(Path, paths):
        if not path.is_file():
            raise FileNotFoundError(f"There is no file {path}.")
        if path.suffix.lower() != ".csv" or not is_stan_file(path):
            raise ValueError(f"Several files must be CmdStan's diagnostic files, one for each chain; {path} is not.")
    scores, draws = read_diagnostics(list(map(Path, paths)))
    return Sampled(draws, scores)


def with_origin(target: Target, sampled: Sampled, kind: str) -> tuple[Target, Sampled]:
    """A target and draws, of which it is said how they were made."""
    draws = check_samples(sampled.samples)
    draws = replace(draws, origin=replace(draws.origin, kind=kind))
    return target if callable(target) else check_samples(target, name="scores"), replace(sampled, samples=draws)


def _read_numpy(path: Path) -> Sampled:
    # Opened here, since NumPy does not close what it cannot read.
    with path.open("rb") as file:
        try:
            found = np.load(file, allow_pickle=False)
        except ValueError as error:
            # NumPy takes whatever it does not know for a pickle, and says how to load that unsafely.
            raise ValueError("it is not an array of numbers written by NumPy, or is damaged") from error
        is_array = isinstance(found, np.ndarray)
        if is_array != (path.suffix.lower() == ".npy"):
            what = "a single array; let its name end in .npy" if is_array else "an archive; let its name end in .npz"
            raise ValueError(f"it is {what}")
        if is_array:
            return Sampled(_as_floats(found, "the array"))
        with found:
            arrays = dict(found)
    if "samples" not in arrays:
        return _split_scores({name: _as_floats(array, name) for name, array in arrays.items()})
    samples, names = _as_floats(arrays["samples"], "samples"), arrays.get("names")
    if names is not None and (names.ndim != 1 or names.shape != samples.shape[-1:]):
        raise ValueError(f"`names` must name each coordinate; it has shape {names.shape} for samples {samples.shape}")
    scores = _as_floats(arrays["scores"], "scores") if "scores" in arrays else None
    return Sampled(samples, scores, arrays.get("weights"), None if names is None else tuple(map(str, names)))


def _read_csv(path: Path) -> Sampled:
    if is_stan_file(path):
        scores, draws = read_diagnostics([path])
        return Sampled(draws, scores)
    # Excel puts a mark before the first letter, which this encoding leaves out.
    encoding = "utf-8-sig"
    with path.open(encoding=encoding) as file:
        names = [name.strip().strip('"') for name in file.readline().split(",")]
    has_names = not all(map(_is_number, names))
    with warnings.catch_warnings(action="ignore"):
        # That there are no numbers, which is said below.
        try:
            table = np.loadtxt(path, delimiter=",", skiprows=int(has_names), ndmin=2, encoding=encoding)
        except ValueError as error:
            # Without what programmers could do about it.
            raise ValueError(str(error).partition("; use `usecols`")[0]) from error
    if not table.size:
        raise ValueError("it has no rows of numbers")
    if not has_names:
        return Sampled(table)
    if "" in names:
        raise ValueError(
            "a column has no name, as the index of a table in pandas: write it by `to_csv(…, index=False)`"
        )
    if len(set(names)) < len(names):
        raise ValueError("two columns have the same name")
    if len(names) != table.shape[1]:
        raise ValueError(f"the first line names {len(names)} columns, but rows have {table.shape[1]}")
    columns = dict(zip(names, table.T, strict=True))
    chain = columns.pop("chain", None)
    found = _split_scores(columns)

    def stack(by_name: Mapping[str, np.ndarray]) -> np.ndarray:
        rows = np.stack([by_name[name] for name in found.samples], axis=1)
        return rows if chain is None else _split_chains(rows, chain)

    scores = None if found.scores is None else stack(found.scores)
    return Sampled(stack(found.samples), scores, names=tuple(found.samples), is_table=True)


def _split_chains(rows: np.ndarray, chain: np.ndarray) -> np.ndarray:
    if not np.isfinite(chain).all():
        raise ValueError("the column `chain` must have the number of a chain in every row")
    numbers, counts = np.unique(chain, return_counts=True)
    if len(set(counts)) > 1:
        raise ValueError(f"chains differ in length: {', '.join(map(str, counts)):.100} draws")
    return np.stack([rows[chain == number] for number in numbers])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_netcdf(path: Path) -> Sampled:
    try:
        import xarray
    except ImportError as error:
        error.add_note("ArviZ files need xarray: pip install 'jaxpsd[arviz]'.")
        raise
    groups: dict[str, Any] = {}
    for name in ("posterior", "scores", "sample_stats"):
        try:
            with xarray.open_dataset(path, group=name) as group:
                groups[name] = group.load()
        except (OSError, KeyError, ValueError):
            if name == "posterior":
                raise
    if "scores" not in groups and "sample_stats" in groups and has_gradients(groups["sample_stats"]):
        scores, draws = from_nutpie(groups)
        return Sampled(draws, scores, groups=groups)
    groups["posterior"] = groups["posterior"].map(_with_floats)
    scores, draws = from_arviz(groups, None if "scores" in groups else _NO_TARGET)
    return Sampled(draws, None if scores is _NO_TARGET else scores, groups=groups)


# Stands for a log-density that is still to be named.
_NO_TARGET = object()


def _with_floats(variable: Any) -> Any:
    return variable if np.issubdtype(variable.dtype, np.floating) else variable.astype(float)


def _split_scores(arrays: Mapping[str, np.ndarray]) -> Sampled:
    samples = {name: array for name, array in arrays.items() if not name.startswith(_SCORE)}
    scores = {name.removeprefix(_SCORE): array for name, array in arrays.items() if name.startswith(_SCORE)}
    if not samples:
        raise ValueError("it holds no draws" + (", only scores" if scores else ""))
    if scores and set(scores) != set(samples):
        missing = sorted(set(samples) ^ set(scores))[0]
        raise ValueError(f"there are scores for some parameters and not for others, such as {missing}")
    return Sampled(samples, scores or None)


def _as_floats(array: np.ndarray, name: str) -> np.ndarray:
    if not np.issubdtype(array.dtype, np.number) or np.issubdtype(array.dtype, np.complexfloating):
        raise ValueError(f"{name} must be real numbers, not {array.dtype}")
    return array if np.issubdtype(array.dtype, np.floating) else array.astype(float)
