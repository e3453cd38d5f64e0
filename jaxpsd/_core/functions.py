"""Functions of the user's: what they are called with, and what they have to return."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxpsd._core.checks import CONVERSION_ERRORS
from jaxpsd._core.types import PyTree


def check_function(function: object, name: str, of: str) -> None:
    """Something that can be called."""
    if not callable(function):
        raise TypeError(f"`{name}` must be a function of {of}; got {type(function).__name__}.")


def with_note(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function of the user's which, where it fails, says what it was called with."""

    def called(*arguments: PyTree) -> Any:
        try:
            return function(*arguments)
        except Exception as error:
            shapes = ", ".join(str(jax.tree.map(jnp.shape, argument)) for argument in arguments)
            written = " It must be written with jax.numpy." if isinstance(error, jax.errors.JAXTypeError) else ""
            error.add_note(f"jaxpsd: `{name}` was called for one draw or pair of draws, of shape {shapes}.{written}")
            raise

    return called


def returning_number(function: Callable[..., Any], name: str) -> Callable[..., Array]:
    """A function of the user's, held to returning one floating-point number at the moment it is traced."""

    def checked(*arguments: PyTree) -> Array:
        value = with_note(function, name)(*arguments)
        array = as_returned(value)
        if array is None or array.shape != () or not _is_one_of(array, _FLOATING):
            raise TypeError(
                f"`{name}` must return one floating-point number for one draw or pair of draws; it returned "
                f"{_described(value)}."
            )
        return array

    return checked


def returning_numbers(function: Callable[..., Any], name: str, *, floating: bool = True) -> Callable[..., PyTree]:
    """As `returning_number`, for numbers or arrays in any structure; on request also integers and truth values."""
    allowed, wanted = (_FLOATING, "floating-point") if floating else (_REAL, "real")

    def checked(*arguments: PyTree) -> PyTree:
        values = with_note(function, name)(*arguments)
        leaves = jax.tree.leaves(values)
        arrays = [as_returned(leaf) for leaf in leaves]
        if not leaves or any(array is None or not _is_one_of(array, allowed) for array in arrays):
            found = ", ".join(map(_described, leaves)) or "nothing"
            raise TypeError(f"`{name}` must return {wanted} numbers or arrays; it returned {found}.")
        return jax.tree.unflatten(jax.tree.structure(values), arrays)

    return checked


_FLOATING = (jnp.floating,)


_REAL = (*_FLOATING, jnp.integer, jnp.bool_)


def _is_one_of(array: Array, kinds: tuple[Any, ...]) -> bool:
    return any(jnp.issubdtype(array.dtype, kind) for kind in kinds)


def as_returned(value: object) -> Array | None:
    """What a function of the user's returned, as an array; None if it is neither number nor array."""
    # To JAX a string may be the name of a type.
    if isinstance(value, str) or not jax.tree_util.all_leaves([value]):
        return None
    try:
        return jnp.asarray(value)
    except CONVERSION_ERRORS:
        return None


def _described(value: object) -> str:
    array = as_returned(value)
    return type(value).__name__ if array is None else f"{array.dtype} of shape {array.shape}"
