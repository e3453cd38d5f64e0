"""Functions of the user's: what they are called with, what they have to return, and what they compute."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxpsd._core.checks import CONVERSION_ERRORS, shapes_of
from jaxpsd._core.tracing import Traced, trace
from jaxpsd._core.types import PyTree

Function = Callable[..., Any]


def check_function(function: object, name: str, of: str) -> None:
    """Something that can be called."""
    if not callable(function):
        raise TypeError(f"`{name}` must be a function of {of}; got {type(function).__name__}.")


def checked_logdensity(logdensity: Function) -> Callable[[PyTree], Array]:
    """A log-density that is held to returning one number, at the moment it is traced."""

    def checked(position: PyTree) -> Array:
        otherwise = "; for any other, pass the scores at the draws instead of the function"
        hint = (
            "a position is a pair; of draws and their log q, as Pathfinder samples, pass the draws"
            if (type(position) is tuple and len(position) == 2 and jnp.shape(position[1]) == ())
            else ""
        )
        value = _called(logdensity, (position,), "the log-density was called with one position", otherwise, hint)
        array = as_returned(value)
        if array is None or array.shape != ():
            found = type(value).__name__ if array is None else f"shape {array.shape}"
            raise TypeError(
                f"The log-density must return a scalar for one position; it returned {found}. "
                "It is called with one draw at a time; if it returns one term a coordinate, sum them."
            )
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise TypeError(f"The log-density must return a floating-point number; it returned {array.dtype}.")
        return array

    return checked


def returning_number(function: Function, name: str) -> Callable[..., Array]:
    """A function of the user's, held to returning one floating-point number at the moment it is traced."""

    def checked(*arguments: PyTree) -> Array:
        value = _called(function, arguments, f"`{name}` was called for one draw or pair of draws")
        array = as_returned(value)
        if array is None or array.shape != () or not jnp.issubdtype(array.dtype, jnp.floating):
            wanted = "one floating-point number for one draw or pair of draws"
            raise TypeError(f"`{name}` must return {wanted}; it returned {_described(value)}.")
        return array

    return checked


def returning_numbers(function: Function, name: str, *, floating: bool = True) -> Callable[..., PyTree]:
    """As `returning_number`, for numbers or arrays in any structure; on request also integers and truth values."""
    kinds = (jnp.floating,) if floating else (jnp.floating, jnp.integer, jnp.bool_)

    def is_allowed(array: Array | None) -> bool:
        return array is not None and any(jnp.issubdtype(array.dtype, kind) for kind in kinds)

    def checked(*arguments: PyTree) -> PyTree:
        values = _called(function, arguments, f"`{name}` was called for one draw or pair of draws")
        leaves = jax.tree.leaves(values)
        arrays = [as_returned(leaf) for leaf in leaves]
        if not leaves or not all(map(is_allowed, arrays)):
            wanted, found = "floating-point" if floating else "real", ", ".join(map(_described, leaves)) or "nothing"
            raise TypeError(f"`{name}` must return {wanted} numbers or arrays; it returned {found}.")
        return jax.tree.unflatten(jax.tree.structure(values), arrays)

    return checked


def trace_held(function: Function, held: Callable[[Function, str], Function], name: str, *arguments: PyTree) -> Traced:
    """Trace a function that is `held` to what it has to return, unless it has been traced before."""
    return function if isinstance(function, Traced) else trace(held(function, name), *arguments)


def _called(function: Function, arguments: tuple[PyTree, ...], how: str, otherwise: str = "", hint: str = "") -> Any:
    """What a function returns; where it fails, the error says what it was called with."""
    try:
        return function(*arguments)
    except Exception as error:
        shapes = ", ".join(str(shapes_of(argument)) for argument in arguments)
        error.add_note(f"jaxpsd: {how}, of shape {shapes}.")
        if isinstance(error, jax.errors.JAXTypeError):
            error.add_note(f"jaxpsd: it could not be traced. It must be written with jax.numpy{otherwise}.")
        if hint:
            error.add_note(f"jaxpsd: {hint}.")
        raise


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
