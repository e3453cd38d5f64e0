"""What users may pass, checked before anything is traced or computed, in one voice.

Messages say what was expected, what came and what to do. Values can only be looked at when they are
concrete: inside `jit`, `vmap` or `grad` the checks of values are skipped, those of shapes are not.
"""

import math
import operator
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.tree_util import keystr
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from jaxpsd._core.compiling import compile_by_work
from jaxpsd._core.draws import Draws
from jaxpsd._core.origins import Origin
from jaxpsd._core.sharding import as_local, put_together, shard_like
from jaxpsd._core.states import positions_in
from jaxpsd._core.types import PyTree, Weights


def is_concrete(*trees: PyTree) -> bool:
    """Whether all values can be looked at, that is, nothing is being traced."""
    return not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(trees))


def check_concrete(of: str, *trees: PyTree) -> None:
    """Refuse to be traced, where values decide what is computed."""
    if not is_concrete(*trees):
        raise ValueError(f"`{of}` looks at values and cannot be traced; call it outside `jit` and `vmap`.")


def check_samples(samples: PyTree, *, chains: bool | None = None, name: str = "samples") -> Draws:
    """Turn what the user calls samples into draws with one leading axis."""
    if isinstance(samples, Draws):
        return _check_draws(samples, name)
    samples = positions_in(samples, name)
    paths, treedef = flatten(samples, name)
    if not paths:
        raise ValueError(f"`{name}` is empty: {samples!r} holds no arrays.")
    names = [name + keystr(path) for path, _ in paths]
    leaves = [_check_leaf(leaf, leaf_name) for leaf_name, (_, leaf) in zip(names, paths, strict=True)]
    if not (chains is None or isinstance(chains, bool | np.bool_)):
        raise ValueError(f"`chains` must be True, False or None: whether there is an axis of chains; got {chains!r}.")
    if jax.tree_util.treedef_is_leaf(treedef):
        leading = _leading_axes_of_array(leaves[0].shape, chains, name)
    else:
        leading = 2 if chains else 1
        for leaf_name, leaf in zip(names, leaves, strict=True):
            if leaf.ndim < leading:
                axes = "(chains, draws, …)" if chains else "(draws, …)"
                hint = "" if chains else " A list of numbers becomes an array with `jnp.asarray`."
                raise ValueError(f"`{leaf_name}` must be {axes}; got shape {leaf.shape}.{hint}")
    shape = leaves[0].shape[:leading]
    if any(leaf.shape[:leading] != shape for leaf in leaves):
        found = ", ".join(f"{leaf_name}: {leaf.shape}" for leaf_name, leaf in zip(names, leaves, strict=True))
        raise ValueError(f"All leaves of `{name}` must share their leading axes; got {found}.")
    if 0 in shape:
        raise ValueError(f"`{name}` holds no draws: its leading axes are {shape}.")
    leaves = put_together(leaves, chains=leading == 2)
    draws = Draws(jax.tree.unflatten(treedef, leaves), shape[0] if leading == 2 else 1)
    if draws.dim == 0:
        raise ValueError(f"`{name}` has positions without coordinates: shape {leaves[0].shape}.")
    return draws


def flatten(tree: PyTree, name: str) -> tuple[list[tuple[Any, Any]], Any]:
    """The leaves of a pytree of the user's with their paths, and its structure."""
    try:
        return jax.tree.flatten_with_path(tree)
    except ValueError as error:
        reason = "has a dictionary whose keys cannot be sorted; use strings for all of them."
        raise TypeError(f"`{name}` {reason}") from error


def _check_draws(draws: Draws, name: str) -> Draws:
    flat = check_samples(draws.positions, chains=False, name=name)
    if flat.num_draws % check_positive_integer(draws.num_chains, "num_chains"):
        raise ValueError(f"`{name}` has {flat.num_draws} draws, which are not {draws.num_chains!r} chains.")
    labels = () if draws.labels is None else draws.labels
    if not (isinstance(labels, tuple | list) and all(isinstance(label, str) for label in labels)):
        raise TypeError(f"`labels` must be strings, one for each coordinate, or None; got {labels!r}.")
    if draws.labels is not None and len(labels) != flat.dim:
        raise ValueError(f"`{name}` has {flat.dim} coordinates and {len(labels)} labels.")
    if not isinstance(draws.origin, Origin):
        raise TypeError(f"`origin` must be an `Origin`, such as jaxpsd.Origin('mcmc'); got {draws.origin!r}.")
    same = all(a is b for a, b in zip(*map(jax.tree.leaves, (flat.positions, draws.positions)), strict=True))
    return draws if same else replace(draws, positions=flat.positions)


def _check_readable(value: object, name: str) -> None:
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"`{name}` is a masked array, and what is masked would be used like the rest. Leave it out, or put "
            "numbers there with `.filled(…)`."
        )
    if isinstance(value, jax.Array) and not isinstance(value, Tracer) and value.is_deleted():
        raise ValueError(
            f"`{name}` has been deleted: a compiled function was given its memory (`donate_argnums`), or `.delete()` "
            "was called. Pass a copy there."
        )


# What arrays of other libraries raise where they cannot be had as NumPy's.
CONVERSION_ERRORS = (TypeError, ValueError, RuntimeError)


def as_real(value: object, name: str) -> np.ndarray | Array:
    """Real numbers as an array, on the host unless they are on a device already."""
    _check_readable(value, name)
    try:
        array = value if isinstance(value, jax.Array) else np.asarray(value)
    except CONVERSION_ERRORS as error:
        raise TypeError(f"`{name}` must be real numbers; got {type(value).__name__}: {error}") from error
    is_real = not jnp.issubdtype(array.dtype, jax.dtypes.prng_key) and array.dtype.kind in "fiub"
    if not (is_real or jnp.issubdtype(array.dtype, jnp.floating)):
        found = type(value).__name__ if array.dtype == object else f"an array of {array.dtype}"
        raise TypeError(f"`{name}` must be real numbers; got {found}.")
    return array


def as_arrays(tree: PyTree, name: str) -> PyTree:
    """All leaves as arrays of JAX."""
    paths, treedef = flatten(tree, name)
    return treedef.unflatten(_as_array(leaf, name + keystr(path), "an array of numbers") for path, leaf in paths)


def as_floats(tree: PyTree, name: str) -> PyTree:
    """All leaves as arrays of floating-point numbers."""
    paths, treedef = flatten(tree, name)
    return treedef.unflatten(_check_leaf(leaf, name + keystr(path)) for path, leaf in paths)


def _as_array(leaf: ArrayLike, name: str, what: str) -> Array:
    _check_readable(leaf, name)
    if isinstance(leaf, np.ndarray) and (not leaf.dtype.isnative or leaf.dtype == np.longdouble):
        leaf = leaf.astype(np.float64 if leaf.dtype == np.longdouble else leaf.dtype.newbyteorder("="))
    try:
        return leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf)
    except CONVERSION_ERRORS as error:
        found = f"an array of {leaf.dtype}" if isinstance(leaf, np.ndarray) else type(leaf).__name__
        # Libraries say what to do, `detach` for example.
        reason = f": {error}" if isinstance(error, RuntimeError) else "."
        raise TypeError(f"`{name}` must be {what}; got {found}{reason}") from error


def _check_leaf(leaf: ArrayLike, name: str) -> Array:
    array = _as_array(leaf, name, "an array of floats")
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(
            f"`{name}` must be floating point; got {array.dtype}. Use `.astype(float)` if these are real "
            "numbers; discrete parameters have no score."
        )
    # Sixteen bits cannot hold the products of a polynomial; the draws lose nothing by being widened.
    return array.astype(jnp.float32) if array.dtype.itemsize < 4 else array


def _leading_axes_of_array(shape: tuple[int, ...], chains: bool | None, name: str) -> int:
    expected = {None: (2, 3), False: (2,), True: (3,)}[chains]
    if len(shape) in expected:
        return len(shape) - 1
    wanted = " or ".join("(draws, dim)" if ndim == 2 else "(chains, draws, dim)" for ndim in expected)
    hint = f" One scalar parameter needs `{name}[..., None]`." if len(shape) == expected[0] - 1 else ""
    raise ValueError(f"`{name}` must be {wanted}; got shape {shape}.{hint}")


def check_scores(scores: PyTree, samples: PyTree, draws: Draws, *, chains: bool | None = None) -> PyTree:
    """Scores given by the user, with one leading axis, in the structure of the samples."""
    ours, theirs = (each.positions if isinstance(each, Draws) else each for each in (positions_in(samples), scores))
    expected, found = jax.tree.structure(ours), jax.tree.structure(theirs)
    if expected != found:
        raise ValueError(
            "`target` must be a log-density function, or scores in the structure of `samples`; "
            f"the samples are {expected}, the scores {found}."
        )
    flat = check_samples(scores, chains=chains, name="target")
    if shapes_of(ours) == shapes_of(theirs) and draws.num_chains != flat.num_chains:
        raise ValueError(f"The samples have {draws.num_chains} chains, the scores {flat.num_chains}.")
    check_same_shapes(theirs, ours, "Scores must have the shape of the samples", what="samples of shape ")

    def in_type_of(score: Array, position: Array) -> Array:
        return score if score.dtype == position.dtype else score.astype(position.dtype)

    scores = jax.tree.map(in_type_of, flat.positions, draws.positions)
    return shard_like(draws.positions, scores)


def check_same_shapes(values: PyTree, like: PyTree, expected: str, hint: str = "", what: str = "") -> None:
    """Hold a pytree, such as scores, to the structure and the shapes of another."""
    found, wanted = shapes_of(values), shapes_of(like)
    if found != wanted:
        raise ValueError(f"{expected}; got {found!s:.100} for {what}{wanted!s:.100}. {hint}".rstrip())


def shapes_of(tree: PyTree) -> PyTree:
    """The shape of every array, in the structure that holds them."""
    return jax.tree.map(np.shape, tree)


def check_weights(weights: ArrayLike | None, draws: Draws) -> Weights:
    """Weights of the draws, in one axis, normalised to sum to one."""
    if weights is None:
        return None
    n, num_chains = draws.num_draws, draws.num_chains
    allowed = [(n,)] if num_chains == 1 else [(n,), (num_chains, n // num_chains)]
    # In double precision on the host where values are known: weights may span more than float32 does.
    is_known = is_concrete(weights) and getattr(weights, "is_fully_addressable", True)
    array = as_real(weights, "weights")
    array = np.asarray(array, np.float64) if is_known else jnp.asarray(array, draws.dtype)
    if array.shape not in allowed:
        wanted = " or ".join(map(str, allowed))
        raise ValueError(f"`weights` must have shape {wanted}, one for each draw; got {array.shape}.")
    array = array.reshape(-1)
    if isinstance(array, np.ndarray):
        bad = ~np.isfinite(array) | (array < 0)
        if bad.any():
            at = int(np.argmax(bad))
            raise ValueError(f"`weights` must be finite and not negative; {draws.draw(at)} has {array[at]}.")
        if not array.any():
            raise ValueError("`weights` sum to zero; at least one draw needs a positive weight.")
    array = array / array.max()
    if not isinstance(array, np.ndarray):
        # One division by a product, which some versions of XLA would make of both, overflows.
        array = lax.optimization_barrier(array)
    return shard_like(draws.positions, jnp.asarray(array / array.sum(), draws.dtype))


def check_finite(values: Float[Array, "draws dim"], draws: Draws, what: str, remedy: str = "") -> None:
    """Name the first draw and coordinate at which a value is not a finite number."""
    if not is_concrete(values):
        return
    draw, coordinate, value = as_local(_first_that_is_not_finite(values))
    if not np.isfinite(value):
        place = f"{draws.draw(int(draw))}, {draws.coordinate(int(coordinate))}"
        raise ValueError(f"{what} is not finite at {place}: {value}. {remedy}".rstrip())


@compile_by_work
def _first_that_is_not_finite(values: Float[Array, "draws dim"]) -> tuple[Array, Array, Array]:
    """Where a value is not finite first, and the value. On the device: other processes may have some of the values."""
    bad = ~jnp.isfinite(values)
    draw = jnp.argmax(bad.any(axis=1))
    coordinate = jnp.argmax(bad[draw])
    return draw, coordinate, values[draw, coordinate]


def check_underflow(values: Float[Array | np.ndarray, "..."], largest: Callable[[], float], terms: str) -> None:
    """Zero shall mean that nothing is wrong, and not that all numbers were too small for their type.

    A value stands by itself, or before its replicates along the last axis; `largest` is that of the terms whose squares
    they are made of.
    """
    if not is_concrete(values):
        return
    dtype, tiny = values.dtype, float(jnp.finfo(values.dtype).tiny)
    sizes = np.abs(np.asarray(values))
    if values.ndim and values.shape[-1] > 1:
        if not sizes.any(axis=-1).all():
            raise FloatingPointError(
                f"A statistic and all its replicates are zero in {dtype}: all Stein features are zero, or their "
                f"squares too small for {dtype}. Nothing can be compared. Are the scores zero? Otherwise use other "
                "units, `transform='standardize'`, or float64."
            )
    elif sizes.min() <= tiny**0.5 and (size := largest()) > 0 and size**2 < tiny / float(jnp.finfo(dtype).eps):
        raise FloatingPointError(
            f"{terms} are at most {size:.2g}, and their squares too small for {dtype}: a statistic of "
            f"{float(sizes.min()):.2g} has no meaning. Use `transform='standardize'` or other units."
        )


def check_positive_integer(value: int, name: str, hint: str = "") -> int:
    """An integer of any kind, at least one."""
    try:
        integer = operator.index(value)
    except TypeError:
        integer = 0
    if integer < 1 or isinstance(value, bool):
        raise ValueError(f"`{name}` must be an integer of at least 1; got {value!r}. {hint}".rstrip())
    return integer


def check_positive(value: object, name: str) -> None:
    """A positive finite number, or several for a `vmap` to come, where values can be looked at.

    Other objects pass: JAX puts all kinds of things where the numbers of a pytree were.
    """
    is_wrong = value is None or isinstance(value, bool | np.bool_ | str | bytes | list | tuple | dict | set | complex)
    if not is_wrong and isinstance(value, int | float | np.generic | np.ndarray | jax.Array) and is_concrete(value):
        numbers = np.asarray(as_real(value, name))
        is_wrong = not (np.isfinite(numbers) & (numbers > 0)).all()
    if is_wrong:
        raise ValueError(f"`{name}` must be a positive number; got {value!r}.")


def check_key(rng_key: Array) -> None:
    """A single key of `jax.random`, of the new or of the old kind."""
    is_new = isinstance(rng_key, jax.Array) and jnp.issubdtype(rng_key.dtype, jax.dtypes.prng_key)
    implementation = jax.config.jax_default_prng_impl  # pyright: ignore[reportAttributeAccessIssue]
    length = 2 if implementation == "threefry2x32" else 4
    is_old = isinstance(rng_key, jax.Array | np.ndarray) and (rng_key.dtype, rng_key.shape) == (np.uint32, (length,))
    if not (is_old or (is_new and rng_key.ndim == 0)):
        found = f"an array of {rng_key.dtype}, {rng_key.shape}" if hasattr(rng_key, "dtype") else repr(rng_key)
        raise TypeError(f"`rng_key` must be one key, such as jax.random.key(0); got {found}.")


def check_choice(value: object, choices: Iterable[str], name: str) -> str:
    """One of a few words."""
    choices = tuple(choices)
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"`{name}` must be one of {', '.join(map(repr, choices))}; got {value!r}.")
    return str(value)


def check_locations(locations: ArrayLike | None, draws: Draws) -> Float[Array, "locations dim"]:
    """Points among the draws, at least one."""
    if locations is None:
        raise TypeError("`locations` must be an array (locations, dim); got None. `FSSD.random` draws some.")
    array = jnp.asarray(as_real(locations, "locations"), draws.dtype)
    if array.ndim != 2 or array.shape[1] != draws.dim or len(array) == 0:
        wanted = f"(locations, {draws.dim}), like draws of {draws.dim} coordinates"
        raise ValueError(f"`locations` must be {wanted}; got shape {array.shape}.")
    if is_concrete(array) and not np.isfinite(array).all():
        raise ValueError("`locations` must be finite.")
    return array


def check_fits(shape: tuple[int, ...], dtype: jnp.dtype, what: str, instead: str) -> None:
    """Refuse an array that would take more than half of the device's memory."""
    size, limit = math.prod(shape) * jnp.dtype(dtype).itemsize, _device_memory() // 2
    if size > limit:
        dimensions = " × ".join(f"{length:,}" for length in shape)
        raise ValueError(
            f"{what} would be {dimensions}, {readable_bytes(size)} in {jnp.dtype(dtype).name}: more than half "
            f"of this device's memory ({readable_bytes(limit)}). {instead}"
        )


def readable_bytes(size: int) -> str:
    """A size with a unit that fits."""
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.1f} MiB"


def _device_memory() -> int:
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"]
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 2**34  # Windows does not tell without a further package.
