"""Pairs of draws: what radial kernels need to know of each, and the median distance."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from jaxpsd._core.blocks import einsum
from jaxpsd._core.checks import as_real, is_concrete
from jaxpsd._core.compiling import compile_by_work
from jaxpsd._core.draws import Draws, evenly_spaced, ravel
from jaxpsd._core.types import Block, PyTree, Scalar
from jaxpsd._stein.coordinates import Affine, in_coordinates

Tile = Float[Array, "rows columns"]


# So many draws tell the median distance well enough, at a bounded cost.
_MEDIAN_DRAWS = 1000

# Squared distances from a tile's centre, in units of the kernel's own length, up to which matrix products lose no
# more than three digits of the distance between two draws.
_SAFE = 2.0**10


class Pairs(NamedTuple):
    """What radial Stein kernels need to know of each pair of draws: ‖x − y‖², (x − y)·(s − u) and s·u."""

    squared: Tile
    aligned: Tile
    product: Tile


def pairs_of(x: Block, s: Block, y: Block, u: Block, length: float | Scalar) -> Pairs:
    """All pairs of two blocks, by matrix products where those keep the digits that a kernel of this length sees.

    Products lose digits where two draws are much closer to each other than to the origin. The centre of the block is
    therefore made the origin, which is enough unless draws spread over many lengths of the kernel.
    """
    centre = lax.stop_gradient(x[:1] + (x - x[:1]).mean(axis=0, keepdims=True))
    x, y = x - centre, y - centre
    farthest = jnp.maximum((x**2).sum(axis=1).max(), (y**2).sum(axis=1).max())
    safe = _in_every_set(lax.stop_gradient(farthest <= _SAFE * length**2))
    return lax.cond(safe, _by_products, _by_differences, x, s, y, u)


def _by_products(x: Block, s: Block, y: Block, u: Block) -> Pairs:
    # What belongs to one draw alone goes into the products as well, which costs less than adding it to each pair:
    # ‖x − y‖² = −2x·y + ‖x‖² + ‖y‖², and (x − y)·(s − u) = −x·u − s·y + x·s + y·u.
    def products(left: list[Block], of_left: Block, right: list[Block], of_right: Block) -> Tile:
        own, others = (terms.sum(axis=1, keepdims=True) for terms in (of_left, of_right))
        rows = jnp.concatenate([*left, own, jnp.ones_like(own)], axis=1)
        columns = jnp.concatenate([*right, jnp.ones_like(others), others], axis=1)
        return einsum("ik,jk->ij", rows, columns)

    squared = products([-2 * x], x**2, [y], y**2)
    aligned = products([-x, -s], x * s, [u, y], y * u)
    return Pairs(jnp.maximum(squared, 0), aligned, einsum("ik,jk->ij", s, u))


def _by_differences(x: Block, s: Block, y: Block, u: Block) -> Pairs:
    def add(sums: tuple[Tile, Tile], coordinate: tuple[Array, Array, Array, Array]) -> tuple[tuple[Tile, Tile], None]:
        x, s, y, u = coordinate
        apart = x[:, None] - y[None]
        return (sums[0] + apart**2, sums[1] + apart * (s[:, None] - u[None])), None

    zeros = jnp.zeros((len(x), len(y)), x.dtype)
    (squared, aligned), _ = lax.scan(add, (zeros, zeros), (x.T, s.T, y.T, u.T))
    return Pairs(squared, aligned, einsum("ik,jk->ij", s, u))


@jax.custom_batching.custom_vmap
def _in_every_set(safe: Bool[Array, ""]) -> Bool[Array, ""]:
    """The same decision for all sample sets of a `vmap`, which would else compute both ways for each of them."""
    return safe


@_in_every_set.def_vmap
def _(axis_size: int, in_batched: list[bool], safe: Array) -> tuple[Array, bool]:
    del axis_size, in_batched
    return _in_every_set(safe.all(axis=0)), False


def check_length(value: ArrayLike, name: str, dtype: np.dtype) -> Scalar:
    """A length that the user has given: one number, whose square the dtype can hold."""
    length = jnp.asarray(as_real(value, name), dtype)
    if length.shape != ():
        raise ValueError(f"`{name}` must be one number; got shape {length.shape}.")
    with np.errstate(over="ignore"):
        is_usable = not is_concrete(length) or 0 < np.square(np.asarray(length)) < np.inf
    if not is_usable:
        raise ValueError(f"`{name}` must be a length whose square is positive and finite in {dtype}; got {value}.")
    return length


def median_distance(draws: Draws, transform: Affine | None) -> Scalar:
    """Median distance between two draws, in the coordinates of the transform; zero is an error."""
    if draws.num_draws < 2:
        raise ValueError("The median distance needs at least two draws; got one. Give the bandwidth as a number.")
    chosen = evenly_spaced(draws.num_draws, _MEDIAN_DRAWS)
    median = _median_distance(jax.tree.map(lambda leaf: leaf[chosen], draws.positions), transform)
    if is_concrete(median) and median == 0:
        raise ValueError("The median distance between draws is zero: more than half of the pairs are equal.")
    return median


@compile_by_work
def _median_distance(positions: PyTree, transform: Affine | None) -> Scalar:
    """Median distance over all pairs of different draws; a constant to differentiation."""
    x = lax.stop_gradient(in_coordinates(ravel(positions), transform))
    squared = _by_differences(x, x, x, x).squared[np.triu_indices(len(x), 1)]
    middle = np.array([(len(squared) - 1) // 2, len(squared) // 2])
    return jnp.sqrt(_order_statistics(squared, middle)).mean()


def _order_statistics(values: Float[Array, " values"], ranks: Int[np.ndarray, " ranks"]) -> Float[Array, " ranks"]:
    """The values of given ranks, from 0, among others that are not negative.

    By bisection over their bits, which ascend as the values do: sorting takes many times as long.
    """
    integer = jnp.dtype(f"int{8 * values.dtype.itemsize}")
    bits = lax.bitcast_convert_type(values, integer)

    def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        enough = jax.vmap(lambda bound: (bits <= bound).sum())(middle) > ranks
        return jnp.where(enough, low, middle + 1), jnp.where(enough, middle, high)

    bounds = jnp.zeros(len(ranks), integer), jnp.full(len(ranks), jnp.iinfo(integer).max, integer)
    low, _ = lax.fori_loop(0, 8 * values.dtype.itemsize - 1, halve, bounds)
    return lax.bitcast_convert_type(low, values.dtype)
