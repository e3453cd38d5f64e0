"""Progress of tuning in a file, written at one stroke after every call of the program."""

import json
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxpsd._choose.runner import Runner
from jaxpsd._choose.transitions import Origin
from jaxpsd._core.draws import as_numpy, is_key
from jaxpsd._core.saving import write_arrays
from jaxpsd._core.types import PyTree


def fingerprint(*what: PyTree) -> str:
    """Of all that decides the result, in words and bytes."""
    digest = blake2b(digest_size=16)
    for leaf in jax.tree.leaves(what):
        if isinstance(leaf, jax.Array | np.ndarray):
            array = as_numpy(leaf)
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(array.tobytes())
        else:
            digest.update(repr(leaf).encode())
    return digest.hexdigest()


class Checkpoint(NamedTuple):
    """A file, and what call it belongs to."""

    path: Path
    about: str

    def save(self, runner: Runner, progress: dict[str, Any]) -> None:
        """Write down arms, the states of their chains and the progress."""
        arrays: dict[str, np.ndarray] = {}
        for arm in runner.arms:
            for name, stretches in (("x", arm.x), ("s", arm.s), ("moments", arm.moments)):
                if stretches:
                    arrays[f"{name} {arm.place}"] = np.stack(stretches)
        for g, states in enumerate(runner.states):
            for k, leaf in enumerate(jax.tree.leaves(states)):
                arrays[f"state {g} {k}"] = as_numpy(leaf)
        arms = [{"stretches": arm.stretches, "spent": arm.spent, "reason": arm.reason} for arm in runner.arms]
        origin = [np.asarray(part, np.float64).tolist() for part in runner.origin]
        told = {"about": self.about, "arms": arms, "origin": origin, "members": runner.members, "progress": progress}
        write_arrays(self.path, arrays | {"told": np.array(json.dumps(told))})

    def load(self, runner: Runner) -> dict[str, Any] | None:
        """Put arms and chains back to where they were, and return the progress; None where there is no file."""
        if not self.path.exists():
            return None
        try:
            # Opened here, since NumPy does not close what it cannot read.
            with self.path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                arrays = dict(file)
            told = json.loads(str(arrays.pop("told")))
            about = told["about"]
        except Exception as error:
            # A damaged file can make its reader raise anything.
            raise ValueError(
                f"{self.path} is no checkpoint of `tune`, or a broken one. Delete it, or name another file."
            ) from error
        if about != self.about:
            raise ValueError(
                f"{self.path} is the checkpoint of another call of `tune`: with another key, other settings or "
                "positions, another target, sampler or option. Delete it, or name another file."
            )
        for arm, kept in zip(runner.arms, told["arms"], strict=True):
            arm.stretches, arm.spent, arm.reason = kept["stretches"], kept["spent"], kept["reason"]
            arm.x, arm.s, arm.moments = (list(arrays.get(f"{name} {arm.place}", ())) for name in ("x", "s", "moments"))
        dtype = runner.origin.loc.dtype
        runner.origin = Origin(*(jnp.asarray(part, dtype) for part in told["origin"]))
        runner.members = told["members"]
        for g, states in enumerate(runner.states):
            leaves, treedef = jax.tree.flatten(states)
            kept = [_like(arrays[f"state {g} {k}"], leaf) for k, leaf in enumerate(leaves)]
            runner.states[g] = jax.tree.unflatten(treedef, kept)
        return told["progress"]

    def remove(self) -> None:
        """The result is there, and progress is of no use any more."""
        self.path.unlink(missing_ok=True)


def _like(kept: np.ndarray, leaf: Any) -> Any:
    """An array of the type that it had; a key of its own kind."""
    if kept.dtype.kind == "V":
        # Files know types that NumPy does not have, such as bfloat16, by their size alone.
        kept = kept.view(leaf.dtype)
    if is_key(leaf):
        return jax.random.wrap_key_data(jnp.asarray(kept), impl=jax.random.key_impl(leaf))
    return jnp.asarray(kept, leaf.dtype)
