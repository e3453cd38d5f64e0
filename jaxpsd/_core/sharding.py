"""Draws that are spread over devices: each device works on its own share, and only sums travel.

A program that runs on shares sees one of them, and says by the functions below what is to be put together. In a
program that does not, there is one share, and they do nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike
from jaxtyping import Array, Int

from jaxpsd._core.compiling import as_array
from jaxpsd._core.draws import join_draws
from jaxpsd._core.types import PyTree

_AXIS, _COPIES = "jaxpsd_shares", "jaxpsd_copies"

WHOLE, CUT = PartitionSpec(), PartitionSpec(_AXIS)
"""What is the same on every device; and what is cut along its first axis, that of draws."""


@dataclass(frozen=True)
class Shards:
    """Which devices hold the draws: each row of the mesh has one share, in the order of draws."""

    mesh: Mesh

    @property
    def count(self) -> int:
        """How many shares there are."""
        return self.mesh.devices.shape[0]

    def put(self, arrays: PyTree) -> PyTree:
        """The same arrays, cut like the draws; what lies as it should is not moved."""
        return jax.device_put(arrays, NamedSharding(self.mesh, CUT))

    def on_shares(self, program: Callable[..., Any], in_specs: PyTree, out_specs: PyTree) -> Callable[..., Any]:
        """A program that every device runs on its share."""
        # What is summed over shares is the same on all devices; JAX need not prove it.
        return jax.shard_map(program, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def shards_of(positions: PyTree) -> Shards | None:
    """How draws are spread along their first axis; None if they are not, or if it is not to be seen."""
    leaf = jax.tree.leaves(positions)[0]
    if not _has_devices(leaf) or leaf.sharding.num_devices == 1:
        return None
    rows: dict[int, list[Any]] = {}
    for device, index in leaf.sharding.devices_indices_map(leaf.shape).items():
        if any(part.indices(size) != (0, size, 1) for part, size in zip(index[1:], leaf.shape[1:], strict=True)):
            return None
        rows.setdefault(index[0].indices(leaf.shape[0])[0], []).append(device)
    devices = np.array([rows[start] for start in sorted(rows)])
    return None if len(devices) == 1 else Shards(Mesh(devices, (_AXIS, _COPIES)))


def spread(samples: PyTree) -> PyTree:
    """Spread samples over all devices, along their first axis: of chains, or of draws.

    Under `jax.distributed` every process calls it with the samples that it has itself, as many as any other. They stay
    with it, and together are one set of samples: those of process 0 first. All other functions of the library then
    compute where the samples are, and are called by every process alike.

    Parameters
    ----------
    samples
        An array, or a pytree of arrays, whose first axis is a multiple of the devices that this process has.

    Returns
    -------
    PyTree
        The samples of all processes, each device with its share.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> def logdensity(x):
    ...     return -0.5 * jnp.sum(x**2)
    >>> chains = jax.random.normal(jax.random.key(0), (8, 1000, 3))
    >>> samples = jaxpsd.spread(chains)
    >>> bool(jaxpsd.gof_test(jax.random.key(1), jaxpsd.PSD(2), logdensity, samples).reject)
    False
    """
    devices = np.array(sorted(jax.devices(), key=lambda device: (device.process_index, device.id)))
    sharding = NamedSharding(Mesh(devices[:, None], (_AXIS, _COPIES)), CUT)
    here = len(jax.local_devices())

    def put(leaf: ArrayLike) -> Array:
        array = leaf if isinstance(leaf, jax.Array) else np.asanyarray(leaf)
        if isinstance(array, np.ma.MaskedArray) or not jnp.issubdtype(array.dtype, jnp.number):
            found = f"{type(leaf).__name__} of {array.dtype}"
            raise TypeError(f"`samples` must be arrays of numbers, none of them masked; got {found}.")
        if array.ndim == 0 or array.shape[0] % here:
            raise ValueError(
                f"The first axis of `samples` must be a multiple of the {here} devices of this process; got shape "
                f"{array.shape}. Leave out some chains or draws, or use fewer devices."
            )
        return jax.make_array_from_process_local_data(sharding, array)

    return jax.tree.map(put, samples)


def put_together(leaves: list[Array], *, chains: bool) -> list[Array]:
    """Arrays on the same devices, spread if one of them is, with axes of chains and draws merged into one."""
    shards = next((found for leaf in leaves if (found := shards_of(leaf)) is not None), None)
    leaves = [_without_explicit_axes(leaf) for leaf in leaves]
    if shards is not None:
        leaves = shards.put(leaves)
        return _join_on(shards)(leaves) if chains else leaves
    leaves = [leaves[0], *move_to_devices_of(leaves[0], leaves[1:])]
    return join_draws(leaves) if chains else leaves


def _without_explicit_axes(value: Any) -> Any:
    """The same on the same devices, with a type that does not say how it lies: programs would have to as well."""
    if not _has_devices(value) or not isinstance(value.sharding, NamedSharding):
        return value
    mesh = value.sharding.mesh
    if not isinstance(mesh, Mesh) or AxisType.Explicit not in mesh.axis_types:
        return value
    return jax.device_put(value, NamedSharding(Mesh(mesh.devices, mesh.axis_names), value.sharding.spec))


@lru_cache(maxsize=16)
def _join_on(shards: Shards) -> Callable[[list[Array]], list[Array]]:
    """Merge axes on every device, which leaves all draws where they are."""
    return jax.jit(shards.on_shares(join_draws, (CUT,), CUT))


def shard_like(positions: PyTree, values: PyTree) -> PyTree:
    """Values with an axis of draws, on the devices where the positions are."""
    shards = shards_of(positions)
    if shards is None:
        return move_to_devices_of(positions, jax.tree.map(_without_explicit_axes, values))
    return values if shards == shards_of(values) else shards.put(values)


def move_to_devices_of(positions: PyTree, values: PyTree) -> PyTree:
    """Values of any kind on the devices where the positions are, whole on each of them.

    Programs take arguments from one set of devices only. What JAX may move by itself, it does.
    """
    leaf = jax.tree.leaves(positions)[0]
    if not _has_devices(leaf):
        return values

    def is_elsewhere(value: Any) -> bool:
        return _has_devices(value) and value.committed and value.devices() != leaf.devices()

    if not any(map(is_elsewhere, jax.tree.leaves(values))):
        return values
    sharding = leaf.sharding
    if isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, WHOLE)
    return jax.tree.map(lambda value: jax.device_put(value, sharding) if is_elsewhere(value) else value, values)


def _has_devices(value: object) -> bool:
    """Whether it is an array, and not one that is being traced."""
    return isinstance(value, jax.Array) and not isinstance(value, Tracer)


def as_local(result: PyTree) -> PyTree:
    """A result that is the same on all devices, as arrays of this process."""
    return jax.tree.map(lambda leaf: as_array(np.asarray(leaf)), result)


# --- within a program -------------------------------------------------------------------------------------


def num_shares() -> int:
    """Into how many shares the draws are cut."""
    try:
        return lax.axis_size(_AXIS)
    except NameError:
        return 1


def share_index() -> Int[Array, ""] | int:
    """Which of the shares this is."""
    return lax.axis_index(_AXIS) if num_shares() > 1 else 0


def sum_of_shares(values: PyTree) -> PyTree:
    """Add up what each share has summed."""
    return lax.psum(values, _AXIS) if num_shares() > 1 else values


def largest_of_shares(values: PyTree) -> PyTree:
    """The largest, over shares, of each entry."""
    return lax.pmax(values, _AXIS) if num_shares() > 1 else values


def gather_shares(values: Array) -> Array:
    """What each share has, in the order of draws, along a first axis; to be small."""
    return lax.all_gather(values, _AXIS) if num_shares() > 1 else values[None]


def from_first_share(values: Array) -> Array:
    """What the first share has."""
    return sum_of_shares(jnp.where(share_index() == 0, values, jnp.zeros_like(values)))


def from_share_ahead(values: PyTree, distance: int) -> PyTree:
    """What the share so many places further on has, round in a ring."""
    count = num_shares()
    pairs = [((k + distance) % count, k) for k in range(count)]
    return lax.ppermute(values, _AXIS, pairs) if count > 1 else values


def with_next_share(arrays: PyTree, length: int) -> PyTree:
    """The draws of this share and so many of those that follow it; behind the last share, the first one's."""
    if num_shares() == 1 or length == 0:
        return arrays
    following = from_share_ahead(jax.tree.map(lambda leaf: leaf[:length], arrays), 1)
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), arrays, following)


def assemble_shares(values: Array, places: Int[Array, " values"], total: int) -> Array:
    """Values of all shares, each at its place among the total; those whose place is beyond it are left out."""
    if num_shares() == 1:
        return values
    return sum_of_shares(jnp.zeros((total, *values.shape[1:]), values.dtype).at[places].set(values, mode="drop"))
