"""Draws from files, and log-densities from the user's own code.

Nothing is unpickled, and no code runs but the module or file that the user names.
"""

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from jaxpsd._core.types import PyTree
from jaxpsd.adapters.arviz import chains_first

# What marks the scores among the columns of a table, or the arrays of an archive.
_SCORE = "score."


@dataclass(frozen=True)
class Sampled:
    """What a file has: an array of draws or a dictionary of arrays by name, and scores in the same structure.

    An array may have names of its coordinates; whether there are `chains` is about the arrays of a dictionary.
    """

    samples: PyTree
    scores: PyTree | None = None
    weights: np.ndarray | None = None
    names: tuple[str, ...] | None = None
    chains: bool | None = None


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
    # Excel puts a mark before the first letter, which this encoding leaves out.
    encoding = "utf-8-sig"
    with path.open(encoding=encoding) as file:
        names = [name.strip().strip('"') for name in file.readline().split(",")]
    has_names = not all(map(_is_number, names))
    with warnings.catch_warnings(action="ignore"):
        # That there are no numbers, which is said below.
        table = np.loadtxt(path, delimiter=",", skiprows=int(has_names), ndmin=2, encoding=encoding)
    if not table.size:
        raise ValueError("it has no rows of numbers")
    if not has_names:
        return Sampled(table)
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
    return Sampled(stack(found.samples), scores, names=tuple(found.samples))


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
    with xarray.open_dataset(path, group="posterior") as group:
        arrays = {str(name): _as_floats(chains_first(values), str(name)) for name, values in group.items()}
    try:
        with xarray.open_dataset(path, group="scores") as group:
            arrays |= {_SCORE + str(name): chains_first(values) for name, values in group.items()}
    except (OSError, KeyError, ValueError):
        pass  # A file without scores; the user has to name a log-density.
    return _split_scores(arrays, chains=True)


def _split_scores(arrays: Mapping[str, np.ndarray], chains: bool | None = None) -> Sampled:
    samples = {name: array for name, array in arrays.items() if not name.startswith(_SCORE)}
    scores = {name.removeprefix(_SCORE): array for name, array in arrays.items() if name.startswith(_SCORE)}
    if not samples:
        raise ValueError("it holds no draws" + (", only scores" if scores else ""))
    if scores and set(scores) != set(samples):
        missing = sorted(set(samples) ^ set(scores))[0]
        raise ValueError(f"there are scores for some parameters and not for others, such as {missing}")
    return Sampled(samples, scores or None, chains=chains)


def _as_floats(array: np.ndarray, name: str) -> np.ndarray:
    if not np.issubdtype(array.dtype, np.number) or np.issubdtype(array.dtype, np.complexfloating):
        raise ValueError(f"{name} must be real numbers, not {array.dtype}")
    return array if np.issubdtype(array.dtype, np.floating) else array.astype(float)


def load_function(where: str) -> Callable[..., Any]:
    """A function by `module:name` or `path/to/file.py:name`."""
    place, _, name = where.rpartition(":")
    is_file = place.endswith(".py")
    if not name.isidentifier() or not (is_file or all(part.isidentifier() for part in place.split("."))):
        raise ValueError(f"{where!r} must be a function as module:name or file.py:name.")
    if is_file and not Path(place).is_file():
        raise FileNotFoundError(f"There is no file {place}.")
    try:
        module = _import_file(Path(place)) if is_file else importlib.import_module(place)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name in (place, place.partition(".")[0]):
            error.add_note(f"jaxpsd: a file is named with its ending, as in path/to/{place}.py:{name}.")
            raise
        # The user's code, which may do anything.
        raise ValueError(f"{place} could not be loaded: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"{place} has no function {name}.")
    return function


def _import_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ValueError("it is not a file of Python code")
    module = importlib.util.module_from_spec(spec)
    # Where its own imports, and tracebacks, look for it.
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module
