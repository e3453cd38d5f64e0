"""Draws that do not fit in memory: streamed from disk, with a progress that survives a kill.

A checkpoint is the state of a stream after some batch, written at one stroke. Resumed, batches are cut where they
would have been cut, so that the result is the same to the last bit.
"""

import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from math import lcm, prod
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxpsd._core.checks import check_positive_integer, check_same_shapes, is_concrete, shapes_of
from jaxpsd._core.draws import as_numpy, is_key
from jaxpsd._core.saving import check_path, check_writable, write_arrays
from jaxpsd._core.scores import score
from jaxpsd._core.types import LogDensityFn, PyTree, Scalar, Target
from jaxpsd._gof.result import GofResult
from jaxpsd._scale.stream import Stream, StreamState, is_one_stream

# Bytes of positions that are read at a time.
_CHUNK_BYTES = 2**25


def stream_over(
    stream: Stream,
    rng_key: PRNGKeyArray,
    target: Target,
    source: PyTree,
    *,
    chunk_length: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: float = 60.0,
    progress: bool = True,
    chains: bool | None = None,
) -> Scalar | GofResult:
    """Stream draws that are too many for memory, from arrays on disk or from any iterator.

    Parameters
    ----------
    stream
        From `jaxpsd.stream`.
    rng_key
        A key of `jax.random`; without replicates, any.
    target
        The log-density; or the scores, in the form of `source`. The batches of an iterator are then pairs
        `(samples, scores)` and the target is None.
    source
        What has a shape and can be sliced, (draws, dim) or (chains, draws, dim): a NumPy memmap, a Zarr array, a
        dataset of h5py. Or a dictionary, list or tuple of such. Or an iterator of batches (draws, dim) of one chain.
    chunk_length
        Draws to read at a time; None chooses by memory and, for Zarr and HDF5, by how they are stored.
    checkpoint
        A file that keeps the progress. If it exists already, the work goes on where it stopped.
    checkpoint_every
        Seconds between two savings of it.
    progress
        Whether to show a progress bar.
    chains
        Whether the leaves of a pytree have a chain axis before the draws.

    Returns
    -------
    Array or GofResult
        What the stream computes.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import numpy as np
    >>> import jaxpsd
    >>> folder = getfixture("tmp_path")
    >>> np.save(folder / "draws.npy", np.random.default_rng(0).normal(size=(5000, 3)).astype(np.float32))
    >>> def logdensity(x):
    ...     return -0.5 * jnp.sum(x**2)
    >>> draws = np.load(folder / "draws.npy", mmap_mode="r")
    >>> stream = jaxpsd.stream(jaxpsd.PSD(2), num_replicates=200)
    >>> result = jaxpsd.stream_over(
    ...     stream, jax.random.key(0), logdensity, draws, checkpoint=folder / "progress.npz", progress=False
    ... )
    >>> bool(result.reject)
    False
    """
    if not isinstance(stream, Stream):
        raise TypeError(f"`stream` must come from `jaxpsd.stream`; got {type(stream).__name__}.")
    if not isinstance(checkpoint_every, int | float | np.number) or not checkpoint_every >= 0:
        raise ValueError(f"`checkpoint_every` must be seconds, 0 or more; got {checkpoint_every!r:.100}.")
    path = None if checkpoint is None else check_writable(checkpoint, "checkpoint")
    _check_not_traced(rng_key, target)
    source = _open_source(target, source, chunk_length, chains)
    first = next(iter(source.batches(0)), None)
    if first is None:
        raise ValueError("`source` holds no draws.")
    position = jax.tree.map(lambda leaf: leaf[0], first.samples)
    state, num_done, work = stream.init(rng_key, position), 0, {}
    # Inside `jit` a state is traced also where all that is given is known.
    _check_not_traced(state)
    if path is not None:
        work = {"content": _fingerprint(target, first, source.read_last()), **source.description}
    if path is not None and path.exists():
        state, about = _load(path, state)
        if about.get("source") != work:
            raise ValueError(
                f"{path} has the progress of other work, {about.get('source')!s:.100}; this is {work!s:.100}. Pass "
                "another file as `checkpoint`, or remove that one."
            )
        num_done = about["batches"]
    reached = state, num_done

    def save() -> None:
        if path is not None:
            _save(reached[0], path, {"source": work, "batches": reached[1]})

    # Here, so that importing the library does not wait for it.
    from tqdm import tqdm

    seen, saved = state.count.number, time.monotonic()
    with tqdm(total=source.num_draws, initial=seen, unit=" draws", unit_scale=True, disable=not progress) as bar:
        try:
            for number, batch in enumerate(_read_ahead(source.batches(num_done)), start=num_done + 1):
                if batch.starts_chain and (start := state.count.number):
                    state = stream.merge(state, stream.init(rng_key, position, start=start))
                state = stream.update(state, target if batch.scores is None else batch.scores, batch.samples)
                # In one assignment, so that an interruption finds what was before or what is after.
                reached = state, number
                bar.update(len(jax.tree.leaves(batch.samples)[0]))
                if time.monotonic() - saved >= checkpoint_every:
                    save()
                    saved = time.monotonic()
        finally:
            save()
    return stream.result(state)


def _fingerprint(target: Target | None, first: "_Batch", last: PyTree) -> str:
    """What tells one set of draws, and one target, from another: the ends of the draws, and a score."""
    scores = first.scores
    if scores is None:
        scores = score(cast(LogDensityFn, target), jax.tree.map(lambda leaf: leaf[:1], first.samples))
    digest = blake2b(digest_size=16)
    for leaf in jax.tree.leaves((first.samples, scores, last)):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()


def save_state(state: StreamState, path: str | os.PathLike[str]) -> None:
    """Write the state of a stream to a file, at one stroke: an interruption leaves the old file or the new one.

    Parameters
    ----------
    state
        From `init`, `update` or `merge` of a stream.
    path
        The file, in a folder that is there.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> init, update, merge, result = jaxpsd.stream(jaxpsd.PSD(2))
    >>> key, path = jax.random.key(0), getfixture("tmp_path") / "state.npz"
    >>> x = jax.random.normal(key, (100, 2))
    >>> jaxpsd.save_state(update(init(key, x[0]), -x, x), path)
    >>> state = jaxpsd.load_state(path, like=init(key, x[0]))
    >>> bool(jnp.isclose(result(state), jaxpsd.PSD(2)(-x, x)))
    True
    """
    _check_state(state, "state")
    _save(state, check_path(path, "path"), {})


def load_state(path: str | os.PathLike[str], like: StreamState) -> StreamState:
    """Read what `save_state` has written, for a stream whose `init` gives a state like this one.

    Parameters
    ----------
    path
        The file.
    like
        A state of that stream, with the same key: the file of any other is refused.

    Returns
    -------
    StreamState
        The state, to go on from.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> init, *_ = jaxpsd.stream(jaxpsd.PSD(2))
    >>> path = getfixture("tmp_path") / "state.npz"
    >>> jaxpsd.save_state(init(jax.random.key(0), jnp.zeros(2)), path)
    >>> try:
    ...     jaxpsd.load_state(path, like=init(jax.random.key(0), jnp.zeros(3)))
    ... except ValueError as error:
    ...     print(str(error).partition(" is ")[2])
    the state of another stream: its replicates, features or precision differ.
    """
    _check_state(like, "like")
    path = check_path(path, "path")
    if not path.exists():
        raise FileNotFoundError(f"There is no file {path}.")
    return _load(path, like)[0]


def _check_state(state: StreamState, name: str) -> None:
    if not isinstance(state, StreamState):
        raise TypeError(f"`{name}` must be the state of a stream, from its `init`; got {type(state).__name__}.")
    _check_not_traced(state)


def _check_not_traced(*trees: PyTree) -> None:
    if not is_concrete(*trees):
        raise ValueError("Files cannot be used while JAX traces: call this outside of `jit`, `vmap` and `grad`.")


def _save(state: StreamState, path: Path, about: dict[str, Any]) -> None:
    arrays: dict[str, Any] = {f"leaf_{k}": as_numpy(leaf) for k, leaf in enumerate(jax.tree.leaves(state))}
    write_arrays(path, arrays | {"about": np.array(json.dumps(about))})


def _load(path: Path, like: StreamState) -> tuple[StreamState, dict[str, Any]]:
    expected, structure = jax.tree.flatten(like)
    try:
        # Opened here, since NumPy does not close what it cannot read.
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            about = json.loads(str(file["about"]))
            found = [file[f"leaf_{k}"] for k in range(len(expected))]
    except Exception as error:
        # A damaged file can make its reader raise anything.
        raise ValueError(f"{path} is not the state of such a stream, or is damaged.") from error
    leaves = []
    for leaf, other in zip(found, expected, strict=True):
        like_it = as_numpy(other)
        if leaf.shape != like_it.shape or leaf.dtype != like_it.dtype:
            raise ValueError(f"{path} is the state of another stream: its replicates, features or precision differ.")
        impl = jax.random.key_impl(other) if is_key(other) else None
        leaves.append(jnp.asarray(leaf) if impl is None else jax.random.wrap_key_data(leaf, impl=impl))
    state = jax.tree.unflatten(structure, leaves)
    if not is_one_stream(like, state):
        raise ValueError(f"{path} is the state of another stream: its key, method or transform differ.")
    return state, about


class _Batch(NamedTuple):
    samples: PyTree
    scores: PyTree | None
    starts_chain: bool


class _Source(NamedTuple):
    """Where batches come from: all of them but for the first few, and how many draws they have, where that is known.

    The description, which goes to JSON, and the last draw, where it can be read, tell one source from another.
    """

    batches: Callable[[int], Iterable[_Batch]]
    num_draws: int | None
    description: dict[str, Any]
    read_last: Callable[[], PyTree]


def _open_source(target: Target | None, source: PyTree, chunk_length: int | None, chains: bool | None) -> _Source:
    if not isinstance(source, Mapping | list | tuple) and not hasattr(source, "shape"):
        return _open_iterable(target, source)
    _check_not_traced(source)
    leaves, structure = jax.tree.flatten(source)
    is_array = jax.tree_util.treedef_is_leaf(structure)
    if not leaves or not all(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves):
        raise TypeError("`source` must be an array that can be sliced, or a pytree of such, or an iterator of batches.")
    leading = len(leaves[0].shape) - 1 if is_array and chains is None else 2 if chains else 1
    shapes, axes = {leaf.shape[:leading] for leaf in leaves}, {len(leaf.shape) for leaf in leaves}
    given = f"{[leaf.shape for leaf in leaves]!s:.100}"
    if leading not in (1, 2) or len(shapes) > 1 or min(axes) < leading or (is_array and axes != {leading + 1}):
        either = "(draws, …) or (chains, draws, …)"
        expected = either if chains is None else "(chains, draws, …)" if chains else "(draws, …)"
        raise ValueError(f"`source` must be {expected}; got {given}. Pass a list of batches as `iter(batches)`.")
    (shape,) = shapes
    if 0 in shape:
        raise ValueError(f"`source` holds no draws: its leading axes are {shape}.")
    if not any(prod(leaf.shape[leading:]) for leaf in leaves):
        raise ValueError(f"`source` has positions without coordinates: shapes {given}.")
    scores = None if callable(target) else target
    if not callable(target):
        wanted = "`target` must be a log-density function, or scores in the structure and shape of `source`"
        check_same_shapes(target, source, wanted)
    num_chains, per_chain = shape if leading == 2 else (1, *shape)
    length = _chunk_length(leaves, leading, per_chain, chunk_length)
    places = list(itertools.product(range(num_chains), range(0, per_chain, length)))

    def read(tree: PyTree, chain: int, start: int) -> PyTree:
        part = slice(start, min(start + length, per_chain))
        return jax.tree.map(lambda leaf: np.asarray(leaf[part] if leading == 1 else leaf[chain, part]), tree)

    def batches(done: int) -> Iterator[_Batch]:
        for chain, start in places[done:]:
            yield _Batch(read(source, chain, start), read(scores, chain, start), start == 0)

    description = {"shapes": [list(leaf.shape) for leaf in leaves], "chunk_length": length, "leading": leading}
    return _Source(batches, num_chains * per_chain, description, lambda: read(source, num_chains - 1, per_chain - 1))


def _chunk_length(leaves: list[Any], leading: int, per_chain: int, given: int | None) -> int:
    """A multiple of the chunks in which all arrays are stored, if they tell."""
    if given is not None:
        return min(check_positive_integer(given, "chunk_length"), per_chain)
    bytes_per_draw = sum(prod(leaf.shape[leading:]) * np.dtype(leaf.dtype).itemsize for leaf in leaves)
    stored = [leaf.chunks[leading - 1] for leaf in leaves if getattr(leaf, "chunks", None)]
    unit = lcm(*stored) if stored else 1024
    return min(max(unit, _CHUNK_BYTES // bytes_per_draw // unit * unit), per_chain)


def _open_iterable(target: Target | None, source: Iterable[PyTree]) -> _Source:
    if not isinstance(source, Iterable):
        raise TypeError(f"`source` must be an array that can be sliced or an iterable; got {type(source).__name__}.")
    if not (target is None or callable(target)):
        raise TypeError(
            "With an iterator of batches, `target` must be a log-density function, or None and each batch a pair "
            f"(samples, scores); got {type(target).__name__}."
        )
    iterator = iter(source)
    # Taken before all others, to see what draws look like.
    first = list(itertools.islice(iterator, 1))

    def batches(done: int) -> Iterator[_Batch]:
        remaining = itertools.chain(first, iterator)
        for number, batch in enumerate(itertools.islice(remaining, done, None), start=done):
            if target is None and not (isinstance(batch, tuple | list) and len(batch) == 2):
                found = f"number {number} is {type(batch).__name__}"
                raise TypeError(f"Without a target, batches must be pairs (samples, scores); {found}.")
            samples, scores = batch if target is None else (batch, None)
            _check_not_traced(samples)
            samples = jax.tree.map(np.asarray, samples)
            lengths = {leaf.shape[:1] for leaf in jax.tree.leaves(samples)}
            if len(lengths) != 1 or lengths & {(), (0,)}:
                found = f"number {number} has shape {shapes_of(samples)!s:.100}"
                raise ValueError(f"Batches of `source` must be (draws, …), with at least one draw; {found}.")
            yield _Batch(samples, scores, number == 0)

    return _Source(batches, None, {"source": "an iterator"}, lambda: None)


def _read_ahead(batches: Iterable[_Batch]) -> Iterator[_Batch]:
    """The same batches, each read while the one before is being worked on."""
    iterator = iter(batches)
    with ThreadPoolExecutor(max_workers=1) as reader:
        coming = reader.submit(next, iterator, None)
        while (batch := coming.result()) is not None:
            coming = reader.submit(next, iterator, None)
            yield batch
