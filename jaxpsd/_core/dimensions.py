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

    def labelled(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        coords: Mapping[str, Sequence[Any]],
        dims: Mapping[str, Sequence[str]],
    ) -> "Dimensions":
        """These with other labels, and other names of axes, for variables of such shapes."""
        for name, given in dims.items():
            if name not in shapes or len(given) != len(shapes[name]) or {"chain", "draw"} & set(given):
                has = f"it has {len(shapes[name])}" if name in shapes else f"there are {', '.join(shapes):.200}"
                raise ValueError(
                    f"`dims` must name each axis of a variable, chains and draws aside; got {list(given)!s:.100} of "
                    f"{name!r}: {has}."
                )
        named = {name: tuple(dims.get(name, self.of_variable(name, shape))) for name, shape in shapes.items()}
        sizes: dict[str, int] = {}
        for name, shape in shapes.items():
            for dim, size in zip(named[name], shape, strict=True):
                if sizes.setdefault(dim, size) != size:
                    raise ValueError(f"`dims` must have axes of one length each; {dim!r} has {sizes[dim]} and {size}.")
        for dim, labels in coords.items():
            if dim not in sizes:
                raise ValueError(f"`coords` must be of axes that variables have, {', '.join(sizes):.200}; got {dim!r}.")
            if len(labels) != sizes[dim]:
                raise ValueError(
                    f"`coords` must label each of the {sizes[dim]} entries along {dim!r}; got {len(labels)} labels."
                )
        return Dimensions.of(named, {**self.coords, **coords})

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
