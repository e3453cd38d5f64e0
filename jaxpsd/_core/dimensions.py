"""Names of the axes of variables, and labels along them, as xarray and ArviZ have them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.typing import ArrayLike

from jaxpsd._core.types import PyTree


@dataclass(frozen=True)
class Dimensions:
    """What the axes of variables are called, and their entries; hashable, since it is part of a pytree's structure.

    by_variable
        Each variable with the names of its axes, chains and draws aside.
    labels
        Each axis with the labels of its entries, where they have some.
    """

    by_variable: tuple[tuple[str, tuple[str, ...]], ...] = ()
    labels: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    @classmethod
    def of(cls, dims: Mapping[str, Sequence[str]], coords: Mapping[str, ArrayLike | Sequence[Any]]) -> "Dimensions":
        """From dictionaries; only labels of axes that a variable has are kept."""
        used = {dim for names in dims.values() for dim in names}
        return cls(
            tuple((name, tuple(names)) for name, names in dims.items() if names),
            tuple((dim, tuple(np.asarray(values).tolist())) for dim, values in coords.items() if dim in used),
        )

    @property
    def dims(self) -> dict[str, tuple[str, ...]]:
        """The names of the axes of each variable that has some."""
        return dict(self.by_variable)

    @property
    def coords(self) -> dict[str, np.ndarray]:
        """The labels along each axis that has some."""
        return {dim: np.asarray(values) for dim, values in self.labels}

    def of_variable(self, name: str, shape: tuple[int, ...]) -> tuple[str, ...]:
        """The names of the axes of one variable; those that ArviZ gives where there are none, or they do not fit."""
        names, sizes = self.dims.get(name, ()), {dim: len(values) for dim, values in self.labels}
        fits = len(names) == len(shape) and all(
            sizes.get(dim, size) == size for dim, size in zip(names, shape, strict=True)
        )
        return names if fits else tuple(f"{name}_dim_{k}" for k in range(len(shape)))

    def entries(self, name: str, shape: tuple[int, ...]) -> Iterable[str]:
        """What to call each entry of a variable: theta[Choate], theta[2] without labels, theta itself if a scalar."""
        labels = dict(self.labels)
        along = [labels.get(dim, range(size)) for dim, size in zip(self.of_variable(name, shape), shape, strict=True)]
        for place in np.ndindex(*shape):
            yield ", ".join(str(values[k]) for values, k in zip(along, place, strict=True))

    def to_dataset(self, arrays: Mapping[str, ArrayLike], leading: Mapping[str, ArrayLike | Sequence[str]]) -> PyTree:
        """An xarray `Dataset` of variables with leading axes that are named, and labelled, first."""
        try:
            import xarray
        except ImportError as error:
            error.add_note("`to_arviz` needs xarray: pip install 'jaxpsd[arviz]'.")
            raise
        values = {name: np.asarray(array) for name, array in arrays.items()}
        dims = {name: self.of_variable(name, array.shape[len(leading) :]) for name, array in values.items()}
        used = {dim for names in dims.values() for dim in names}
        coords = {dim: labels for dim, labels in self.coords.items() if dim in used}
        return xarray.Dataset(
            {name: ([*leading, *dims[name]], array) for name, array in values.items()}, {**leading, **coords}
        )


NO_DIMENSIONS = Dimensions()
