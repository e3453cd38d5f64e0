"""Draws as the rest of the library sees them: one axis of draws, chains one after the other."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, register_dataclass
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from jaxpsd._core.dimensions import NO_DIMENSIONS, Dimensions
from jaxpsd._core.origins import UNKNOWN, Origin
from jaxpsd._core.states import positions_in
from jaxpsd._core.types import PyTree, static


@register_dataclass
@dataclass(frozen=True)
class Draws(Mapping[str, Array | np.ndarray]):
    """Draws that know their chains and the names of their coordinates; they may be passed wherever samples may.

    It is a mapping from the names of variables to their draws, with an axis of chains: `draws["beta"]` is (chains,
    draws, …), `list(draws)` are the names, `dict(draws)` has all. An array of positions is called x.

    positions
        A pytree whose leaves are (chains · draws, …), all of chain 0 before all of chain 1.
    num_chains
        How many chains lie one after the other.
    labels
        Names of the coordinates, where those of the structure will not do.
    origin
        Where the draws came from, as in `Origin("laplace")`, which decides what a report advises.
    dimensions
        What the axes of variables, and the entries along them, are called; kept by `from_arviz` and `to_arviz`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> draws = jaxpsd.Draws({"mu": jnp.zeros(200), "beta": jnp.zeros((200, 2))}, num_chains=4)
    >>> draws.names, draws.num_draws
    (('beta[0]', 'beta[1]', 'mu'), 200)
    >>> list(draws), draws["beta"].shape
    (['beta', 'mu'], (4, 50, 2))
    """

    positions: PyTree
    num_chains: int = static(default=1)
    labels: tuple[str, ...] | None = static(default=None)
    origin: Origin = static(default=UNKNOWN)
    dimensions: Dimensions = static(default=NO_DIMENSIONS)

    def __getitem__(self, name: str) -> Array | np.ndarray:
        for path, leaf in jax.tree.leaves_with_path(self.positions):
            if _leaf_name(path) == name:
                return split_draws(leaf, self.num_chains)
        raise KeyError(f"There is no variable {name!r}; there are {', '.join(map(repr, self)):.200}.")

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    @property
    def num_draws(self) -> int:
        """Draws in all chains together."""
        return jax.tree.leaves(self.positions)[0].shape[0]

    @property
    def dim(self) -> int:
        """Coordinates of one position."""
        return self.structure.dim

    @property
    def dtype(self) -> np.dtype:
        """The type that `ravel` gives."""
        return jnp.result_type(*jax.tree.leaves(self.positions))

    @property
    def structure(self) -> "Structure":
        """The structure of one position."""
        leaves, treedef = jax.tree.flatten(self.positions)
        return Structure(treedef, tuple(leaf.shape[1:] for leaf in leaves), tuple(leaf.dtype for leaf in leaves))

    def between(self, start: int, stop: int) -> "Draws":
        """Draws `start` … `stop` − 1 of each chain."""
        some = jax.tree.map(lambda chains: chains[:, start:stop], split_draws(self.positions, self.num_chains))
        return replace(self, positions=join_draws(some))

    def like(self, samples: PyTree) -> PyTree:
        """These draws with the leading axes that the user's samples have."""
        samples = positions_in(samples)
        if isinstance(samples, Draws):
            return self

        def shaped(flat: Array, given: ArrayLike) -> Array:
            before = np.shape(given)[: np.ndim(given) - flat.ndim]
            return flat.reshape(*before, flat.shape[0] // prod(before), *flat.shape[1:]) if before else flat

        return jax.tree.map(shaped, self.positions, samples)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the coordinates: beta[2] of a pytree, x[2] of an array, or with labels in the place of numbers."""
        return names_of(self.positions, dimensions=self.dimensions) if self.labels is None else self.labels

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each leaf of one position, by name; x for an array."""
        return {_leaf_name(path): leaf.shape[1:] for path, leaf in jax.tree.leaves_with_path(self.positions)}

    def with_coords(
        self, coords: Mapping[str, Sequence[Any]], *, dims: Mapping[str, Sequence[str]] | None = None
    ) -> "Draws":
        """The same draws with labels along axes, which names and `to_arviz` then have; ArviZ's words for it.

        Parameters
        ----------
        coords
            Axes with the labels of their entries.
        dims
            Variables with names for their axes, chains and draws aside, where they are to have others.

        Examples
        --------
        >>> import jax.numpy as jnp
        >>> import jaxpsd
        >>> draws = jaxpsd.Draws({"mu": jnp.zeros(200), "beta": jnp.zeros((200, 2))})
        >>> draws.with_coords({"term": ["slope", "offset"]}, dims={"beta": ["term"]}).names
        ('beta[slope]', 'beta[offset]', 'mu')
        """
        dimensions = self.dimensions.labelled(self.shapes, coords, dims or {})
        if self.labels is None:
            return replace(self, dimensions=dimensions)
        # Labels such as log tau[2] keep what goes before the entry.
        ends = zip(_entries(self.positions, self.dimensions), _entries(self.positions, dimensions), strict=True)
        labels = tuple(
            label.removesuffix(old) + new if label.endswith(old) else label
            for label, ((_, old), (_, new)) in zip(self.labels, ends, strict=True)
        )
        return replace(self, labels=labels, dimensions=dimensions)

    def to_arviz(self) -> Any:
        """An xarray `Dataset` with dimensions chain and draw, which functions of ArviZ take as a posterior."""
        per_chain = self.num_draws // self.num_chains
        leading = {"chain": np.arange(self.num_chains), "draw": np.arange(per_chain)}
        return self.dimensions.to_dataset(self, leading)

    def coordinate(self, index: int) -> str:
        """Name one coordinate for a message: `beta[2]` of a pytree, coordinate 2 of an array."""
        is_array = jax.tree_util.treedef_is_leaf(jax.tree.structure(self.positions))
        return f"coordinate {index}" if is_array else f"`{self.names[index]}`"

    def draw(self, index: int) -> str:
        """Name one draw for a message, with its chain where there are several."""
        if self.num_chains == 1:
            return f"draw {index}"
        chain, within = divmod(index, self.num_draws // self.num_chains)
        return f"draw {within} of chain {chain}"


def names_of(
    positions: PyTree, labels: Mapping[str, str] | None = None, dimensions: Dimensions = NO_DIMENSIONS
) -> tuple[str, ...]:
    """Names of all coordinates of one draw, with other labels for the leaves of a pytree where given."""
    return tuple((labels or {}).get(name, name) + entry for name, entry in _entries(positions, dimensions))


def _entries(positions: PyTree, dimensions: Dimensions) -> Iterator[tuple[str, str]]:
    """For each coordinate, its variable and its place there: [2], [Choate], or nothing for a scalar."""
    for path, leaf in jax.tree.leaves_with_path(positions):
        name = _leaf_name(path)
        for entry in dimensions.entries(name, leaf.shape[1:]):
            yield name, f"[{entry}]" if leaf.ndim > 1 else ""


def _leaf_name(path: tuple[Any, ...]) -> str:
    return keystr(path, simple=True, separator=".") or "x"


def split_draws(arrays: PyTree, count: int) -> PyTree:
    """Draws in so many parts of one length, along an axis of their own."""
    return jax.tree.map(lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]), arrays)


def join_draws(parts: PyTree) -> PyTree:
    """Parts of draws one after the other."""
    return jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]), parts)


def evenly_spaced(count: int, most: int) -> np.ndarray:
    """Places of at most so many of a number of draws, the first and the last among them."""
    return np.linspace(0, count - 1, min(count, most)).round().astype(int)


def one_position(positions: PyTree) -> PyTree:
    """What one draw looks like to a function that is traced."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), positions)


def ravel(positions: PyTree) -> Float[Array, "draws dim"]:
    """Lay the coordinates of each draw side by side."""
    leaves = [leaf.reshape(leaf.shape[0], prod(leaf.shape[1:])) for leaf in jax.tree.leaves(positions)]
    return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves, axis=1)


class Structure(NamedTuple):
    """What one position looks like, without its values; hashable."""

    treedef: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype, ...]

    @property
    def dim(self) -> int:
        """Coordinates of one position."""
        return sum(prod(shape) for shape in self.shapes)

    def unravel(self, flat: Float[Array, " dim"]) -> PyTree:
        """Give the coordinates of one draw their structure back."""
        each = zip(jnp.split(flat, self._ends), self.shapes, self.dtypes, strict=True)
        return jax.tree.unflatten(self.treedef, [part.reshape(shape).astype(dtype) for part, shape, dtype in each])

    def unravel_rows(self, rows: Float[np.ndarray, "draws dim"]) -> PyTree:
        """The same of many draws, a row each, on the host."""
        each = zip(np.split(rows, self._ends, axis=1), self.shapes, self.dtypes, strict=True)
        leaves = [part.reshape(len(rows), *shape).astype(dtype) for part, shape, dtype in each]
        return jax.tree.unflatten(self.treedef, leaves)

    @property
    def _ends(self) -> np.ndarray:
        """Where the coordinates of each leaf but the last end."""
        return np.cumsum([prod(shape) for shape in self.shapes])[:-1]


def is_key(leaf: Any) -> bool:
    """Whether an array is one of random keys, which NumPy does not know."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def as_numpy(leaf: Any) -> np.ndarray:
    """An array, or the numbers of keys."""
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)
