"""The settings that are tried: of equal structure together, so that one program runs them all."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxpsd._core.checks import as_real, flatten
from jaxpsd._core.tables import number
from jaxpsd._core.types import PyTree

# Whole numbers, truth values and words belong to the structure of a program; what else is in a setting are its data.
_STRUCTURE = (bool, np.bool_, int, np.integer, str)
# So many entries of an array are shown in a label.
_MOST_SHOWN = 4


class Group(NamedTuple):
    """Settings that differ only in the values of arrays.

    members
        Their places among all settings.
    arrays
        What is data of each, with an axis of members.
    rebuild
        From the arrays of one, the setting as the user wrote it.
    """

    members: tuple[int, ...]
    arrays: list[Array]
    rebuild: Callable[[Sequence[Any]], PyTree]


class SamplerSettings(NamedTuple):
    """All settings of a sampler: as the user gave them, what to call them, and in groups."""

    values: tuple[Any, ...]
    labels: tuple[str, ...]
    groups: tuple[Group, ...]


def check_settings(settings: Any, dtype: np.dtype) -> SamplerSettings:
    """A list of settings, or a pytree of arrays with an axis of settings; floats on the host get the draws' type."""
    if isinstance(settings, list | tuple | range) and not hasattr(settings, "_fields"):
        values = tuple(settings)
        groups = _in_groups(values, dtype)
    else:
        values, groups = _from_arrays(settings, dtype)
    if not values:
        raise ValueError("`settings` must hold at least one setting; got none.")
    return SamplerSettings(values, _labels(values), groups)


def _in_groups(values: Sequence[Any], dtype: np.dtype) -> tuple[Group, ...]:
    found: dict[Any, list[tuple[int, list[Any]]]] = {}
    for k, value in enumerate(values):
        paths, treedef = flatten(value, f"settings[{k}]")
        leaves = [leaf for _, leaf in paths]
        if not leaves:
            raise ValueError(f"`settings[{k}]` is empty: {value!r:.100}.")
        fixed = tuple((type(leaf), leaf) if isinstance(leaf, _STRUCTURE) else None for leaf in leaves)
        arrays = [
            _as_data(leaf, f"settings[{k}]", dtype)
            for leaf, is_fixed in zip(leaves, fixed, strict=True)
            if is_fixed is None
        ]
        alike = treedef, fixed, tuple((each.shape, each.dtype) for each in arrays)
        found.setdefault(alike, []).append((k, arrays))
    return tuple(
        Group(
            tuple(k for k, _ in members),
            [jnp.stack(leaves) for leaves in zip(*(arrays for _, arrays in members), strict=True)],
            _rebuilder(treedef, fixed),
        )
        for (treedef, fixed, _), members in found.items()
    )


def _rebuilder(treedef: Any, fixed: tuple[Any, ...]) -> Callable[[Sequence[Any]], PyTree]:
    def rebuild(arrays: Sequence[Any]) -> PyTree:
        data = iter(arrays)
        return jax.tree.unflatten(treedef, [next(data) if each is None else each[1] for each in fixed])

    return rebuild


def _from_arrays(settings: PyTree, dtype: np.dtype) -> tuple[tuple[Any, ...], tuple[Group, ...]]:
    paths, treedef = flatten(settings, "settings")
    leaves = [leaf for _, leaf in paths]
    hint = "a list of settings, or a pytree of arrays whose first axis is that of the settings"
    arrays = [_as_data(leaf, "settings", dtype) for leaf in leaves]
    if not arrays or any(each.ndim == 0 for each in arrays) or len({len(each) for each in arrays}) != 1:
        found = ", ".join(str(each.shape) for each in arrays) or "nothing"
        raise ValueError(f"`settings` must be {hint}; got arrays of shape {found}.")
    count = len(arrays[0])

    def one(k: int) -> PyTree:
        # As the user wrote them, and not as programs see them.
        rows = [np.asarray(leaf)[k] for leaf in leaves]
        return jax.tree.unflatten(treedef, [row.item() if row.ndim == 0 else row for row in rows])

    def rebuild(data: Sequence[Any]) -> PyTree:
        return jax.tree.unflatten(treedef, list(data))

    return tuple(map(one, range(count))), (Group(tuple(range(count)), arrays, rebuild),)


def _as_data(leaf: Any, name: str, dtype: np.dtype) -> Array:
    array = as_real(leaf, name)
    if not isinstance(array, jax.Array) and array.dtype.kind == "f":
        # What it has no room for is named below.
        with np.errstate(over="ignore"):
            array = array.astype(dtype)
    array = jnp.asarray(array)
    if not np.isfinite(np.asarray(array, np.float64)).all():
        raise ValueError(f"`{name}` has a value that is not finite in {array.dtype}.")
    return array


def _labels(values: Iterable[Any]) -> tuple[str, ...]:
    """Words for settings, numbered where two would read alike."""
    labels = [_label(value) for value in values]
    return tuple(
        f"{label} (number {k})" if labels.count(label) > 1 else label for k, label in enumerate(labels, start=1)
    )


def _label(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_label(each)}" for name, each in value.items())
    if isinstance(value, bool | np.bool_ | int | np.integer | str):
        return str(value)
    if isinstance(value, float | np.floating) or np.ndim(value) == 0:
        return number(value)
    if isinstance(value, np.ndarray | jax.Array):
        entries = np.asarray(value).reshape(-1)
        shown = ", ".join(map(number, entries[:_MOST_SHOWN]))
        return f"[{shown}{', …' if len(entries) > _MOST_SHOWN else ''}]"
    return f"{value!r:.40}"


def numbers_of(values: Sequence[Any]) -> dict[str, np.ndarray]:
    """Settings as columns of numbers by name, where all of them are numbers; a setting that is a number has no name."""
    rows = [dict(value) if isinstance(value, Mapping) else {"": value} for value in values]
    names = rows[0].keys()
    if any(row.keys() != names for row in rows):
        return {}
    columns = {}
    for name in names:
        try:
            column = np.array([float(row[name]) for row in rows])
        except (TypeError, ValueError):
            continue
        columns[str(name)] = column
    return columns
