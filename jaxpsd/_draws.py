"""Draws as the rest of the library sees them: one axis of draws, chains one after the other."""

from dataclasses import dataclass
from functools import partial
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, register_dataclass
from jaxtyping import Array, Float

from jaxpsd._types import PyTree


@partial(register_dataclass, data_fields=["positions"], meta_fields=["num_chains"])
@dataclass(frozen=True)
class Draws:
    """Positions in their own structure, with one leading axis.

    positions
        A pytree whose leaves are (chains · draws, …), all of chain 0 before all of chain 1.
    num_chains
        How many chains lie one after the other.
    """

    positions: PyTree
    num_chains: int = 1

    @property
    def num_draws(self) -> int:
        """Draws in all chains together."""
        return jax.tree.leaves(self.positions)[0].shape[0]

    @property
    def dim(self) -> int:
        """Coordinates of one position."""
        return sum(map(_size, jax.tree.leaves(self.positions)))

    @property
    def dtype(self) -> jnp.dtype:
        """The type that `ravel` gives."""
        return jnp.result_type(*jax.tree.leaves(self.positions))

    def coordinate(self, index: int) -> str:
        """Name one coordinate for a message: `beta[2]` of a pytree, coordinate 2 of an array."""
        for path, leaf in jax.tree.leaves_with_path(self.positions):
            if index < _size(leaf):
                break
            index -= _size(leaf)
        else:
            raise IndexError("There is no such coordinate.")
        if not path:
            return f"coordinate {index}"
        at = ", ".join(map(str, np.unravel_index(index, leaf.shape[1:])))
        return f"`{keystr(path, simple=True, separator='.')}{f'[{at}]' if at else ''}`"

    def draw(self, index: int) -> str:
        """Name one draw for a message, with its chain where there are several."""
        if self.num_chains == 1:
            return f"draw {index}"
        chain, within = divmod(index, self.num_draws // self.num_chains)
        return f"draw {within} of chain {chain}"


def _size(leaf: Array) -> int:
    return prod(leaf.shape[1:])


def ravel(positions: PyTree) -> Float[Array, "draws dim"]:
    """Lay the coordinates of each draw side by side."""
    leaves = [leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(positions)]
    return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves, axis=1)


def unravel(flat: Float[Array, "draws dim"], like: PyTree) -> PyTree:
    """Undo `ravel`: give each draw the structure of `like`, one leading axis included."""
    leaves, treedef = jax.tree.flatten(like)
    parts, start = [], 0
    for leaf in leaves:
        size = _size(leaf)
        parts.append(flat[:, start : start + size].reshape(-1, *leaf.shape[1:]).astype(leaf.dtype))
        start += size
    return jax.tree.unflatten(treedef, parts)
