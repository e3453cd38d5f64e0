"""Log-densities from the user's own code, and draws in the structure that they take.

No code runs but the module or file that the user names.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxpsd._core.draws import Draws, evenly_spaced, names_of
from jaxpsd._core.types import PyTree, Target
from jaxpsd.adapters.columns import draws_of_columns
from jaxpsd.adapters.files import Sampled
from jaxpsd.adapters.pymc import from_pymc

# At how many draws to look whether a log-density depends on a variable.
_LOOKED_AT = 10


class Fitted(NamedTuple):
    """A target with draws in the structure that it takes; and the variables that it does not look at, left out."""

    target: Target
    sampled: Sampled
    left_out: tuple[str, ...] = ()


def fit_target(found: Any, sampled: Sampled) -> Fitted:
    """Give a log-density what it takes: an array, or a dictionary of what it looks at in a table or a file."""
    if is_pymc_model(found):
        if sampled.groups is None:
            raise ValueError("A model of PyMC takes an ArviZ file (.nc) of its draws.")
        logdensity, draws = from_pymc(found, sampled.groups)
        return Fitted(logdensity, Sampled(draws))
    if sampled.is_table and sampled.names is not None:
        rows, names = sampled.samples, sampled.names
        num_chains = rows.shape[0] if rows.ndim == 3 else 1
        draws = draws_of_columns(rows.reshape(-1, len(names)), names, num_chains)
        if _takes(found, draws.positions) or not _takes(found, rows.reshape(-1, len(names))):
            left_out = _not_looked_at(found, draws)
            return Fitted(found, Sampled(_without(draws, left_out)), left_out)
        return Fitted(found, sampled)
    if sampled.groups is not None and isinstance(sampled.samples, Draws):
        left_out = _not_looked_at(found, sampled.samples)
        return Fitted(found, Sampled(_without(sampled.samples, left_out), groups=sampled.groups), left_out)
    return Fitted(found, sampled)


def _takes(function: Callable[..., Any], positions: PyTree) -> bool:
    """Whether a function takes one such position."""
    one = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), positions)
    try:
        jax.eval_shape(function, one)
    except (Exception, SystemExit):
        return False
    return True


def _not_looked_at(function: Callable[..., Any], draws: Draws) -> tuple[str, ...]:
    """Variables whose score is zero wherever one looks, such as what was computed from parameters."""
    some = evenly_spaced(draws.num_draws, _LOOKED_AT)
    positions = jax.tree.map(lambda leaf: jnp.asarray(leaf[some]), draws.positions)
    try:
        scores = jax.vmap(jax.grad(function))(positions)
    except (Exception, SystemExit):
        # It will be called again, where errors are explained.
        return ()
    left_out = tuple(name for name, values in scores.items() if not np.any(np.asarray(values)))
    return () if len(left_out) == len(scores) else left_out


def _without(draws: Draws, names: tuple[str, ...]) -> Draws:
    if not names:
        return draws
    positions = {name: values for name, values in draws.positions.items() if name not in names}
    return replace(draws, positions=positions, labels=names_of(positions, dimensions=draws.dimensions))


def load_target(where: str) -> Any:
    """A function, or a model of PyMC, by `module:name` or `path/to/file.py:name`."""
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
    found = getattr(module, name, None)
    if not (callable(found) or is_pymc_model(found)):
        raise ValueError(f"{place} has no function {name}.")
    return found


def is_pymc_model(value: Any) -> bool:
    """Whether it is a model of PyMC, which is not imported to find out."""
    return any(kind.__module__.partition(".")[0] == "pymc" and kind.__name__ == "Model" for kind in type(value).__mro__)


def _import_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ValueError("it is not a file of Python code")
    module = importlib.util.module_from_spec(spec)
    # Where its own imports, and tracebacks, look for it.
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module
