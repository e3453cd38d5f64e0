"""Programs, compiled once for each shape, on one device or on many."""

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import jax

from jaxpsd._core.data import SPECS
from jaxpsd._core.sharding import CUT, WHOLE, Shards, as_local, move_to_devices_of, shards_of
from jaxpsd._core.types import PyTree

if TYPE_CHECKING:
    from jaxpsd._core.scores import Given

Result = Literal["sums", "draws", "gathered"]


def run(program: Callable[..., Any], given: "Given", *args: PyTree, result: Result = "sums") -> Any:
    """Call `program(data, *args)`, compiled, with the data of what is given.

    Where draws are spread over devices, every device runs it on the draws that it has, and on all of `args`. What it
    returns is the same for all devices ("sums"), or has an axis of draws and stays where they are ("draws"). A program
    that has to see all draws at once ("gathered") leaves it to the compiler what travels.
    """
    shards = shards_of(given.draws.positions)
    data, args = move_to_devices_of(given.draws.positions, (given.data, args))
    value = compiled(program, shards, result)(data, *args)
    return value if shards is None or result == "draws" else as_local(value)


@lru_cache(maxsize=1024)
def compiled(program: Callable[..., Any], shards: Shards | None, result: Result) -> Callable[..., Any]:
    """The program as devices run it."""
    if shards is None:
        return jax.jit(program)

    def on_devices(data: PyTree, *args: PyTree) -> Any:
        if result == "gathered":
            return shards.replicate(program(data, *args))
        specs = (SPECS, *(WHOLE for _ in args))
        return shards.on_shares(program, specs, CUT if result == "draws" else WHOLE)(data, *args)

    return jax.jit(on_devices)
