"""Columns of a table as variables: beta.1, beta.2, … of Stan, or beta[0], beta[1], …, are entries of an array beta."""

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from jaxpsd._core.dimensions import Dimensions
from jaxpsd._core.draws import Draws, evenly_spaced, names_of
from jaxpsd._core.origins import UNKNOWN, Origin

# What a transform of unknown kind has made.
OTHER = "unconstrained "

# How many draws are looked at to see what a transform does; and by how much they may miss it, in standard deviations,
# since files have six digits of them.
LOOKED_AT, _CLOSE = 100, 0.01

# beta.3, or beta.3.1 with two axes; beta[3], or beta[3, 1].
_ENTRY = re.compile(r"(?P<variable>[^.\[\]]+)(\.(?P<dots>\d+(\.\d+)*)|\[(?P<commas>\d+(, ?\d+)*)\])")


def draws_of_columns(
    rows: np.ndarray,
    names: Sequence[str],
    num_chains: int = 1,
    origin: Origin = UNKNOWN,
    prefixes: Mapping[str, str] | None = None,
) -> Draws:
    """Draws of the variables that columns are entries of, which keep the numbers that they have there.

    Prefixes, such as "log ", go before the names of variables. Where entries are missing, each column is a variable.
    """
    places: dict[str, dict[tuple[int, ...], int]] = {}
    for column, name in enumerate(names):
        variable, place = _split(name)
        places.setdefault(variable, {})[place] = column
    positions, dims, coords = {}, {}, {}
    for variable, columns in places.items():
        order, axes = _arrange(columns)
        if axes:
            positions[variable] = rows[:, order].reshape(-1, *map(len, axes))
            dims[variable] = [f"{variable}_dim_{k}" for k in range(len(axes))]
            coords |= dict(zip(dims[variable], axes, strict=True))
        else:
            positions |= {names[column]: rows[:, column] for column in columns.values()}
    dimensions = Dimensions.of(dims, coords)
    labels = {name: (prefixes or {}).get(_split(name)[0], "") + name for name in positions}
    return Draws(positions, num_chains, names_of(positions, labels, dimensions), origin, dimensions)


def _split(name: str) -> tuple[str, tuple[int, ...]]:
    """The variable that a column is of, and its place there."""
    found = _ENTRY.fullmatch(name)
    if found is None:
        return name, ()
    return found["variable"], tuple(map(int, re.findall(r"\d+", found["dots"] or found["commas"])))


def _arrange(columns: Mapping[tuple[int, ...], int]) -> tuple[list[int], list[range]]:
    """Columns in the order of an array, and the numbers along its axes; no axes where they do not fill one."""
    if len({len(place) for place in columns}) != 1 or () in columns:
        return [], []
    numbers = np.array(list(columns))
    # From zero on, or from one, in all axes alike.
    first = int(numbers.min())
    axes = [range(first, last + 1) for last in numbers.max(axis=0).tolist()]
    shape = tuple(map(len, axes))
    wanted = [tuple(k + first for k in place) for place in np.ndindex(*shape)]
    if first > 1 or set(wanted) != set(columns):
        return [], []
    return [columns[place] for place in wanted], axes


def find_prefixes(names: Sequence[str], x: np.ndarray, constrained: Mapping[str, np.ndarray]) -> dict[str, str]:
    """What transforms have done, seen from some draws: "log " before the name of a variable, for example."""
    transforms: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "": lambda values: values,
        "log ": np.log,
        "logit ": lambda values: np.log(values) - np.log1p(-values),
    }
    some = evenly_spaced(len(x), LOOKED_AT)
    found: dict[str, str] = {}
    for name, column in zip(names, x[some].T, strict=True):
        prefix = OTHER
        if name in constrained:
            with np.errstate(all="ignore"):
                misses = {key: np.abs(fn(constrained[name][some]) - column).max() for key, fn in transforms.items()}
            # The closest, since log and logit of small numbers are nearly the same.
            best = min(misses, key=lambda key: np.nan_to_num(misses[key], nan=np.inf))
            prefix = best if misses[best] <= _CLOSE * column.std() else OTHER
        variable = _split(name)[0]
        # All entries of a variable have the same transform; if not, something is more complicated.
        found[variable] = prefix if found.get(variable, prefix) == prefix else OTHER
    return found
