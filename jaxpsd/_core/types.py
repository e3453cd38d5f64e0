"""Names for the types that appear in more than one module."""

from collections.abc import Callable
from dataclasses import field
from enum import StrEnum
from typing import Any

from jax.typing import ArrayLike
from jaxtyping import Array, Float

PyTree = Any
"""Any nesting of dicts, lists, tuples and registered classes with arrays as leaves."""

LogDensityFn = Callable[[PyTree], ArrayLike]
"""One unbatched position to the log of an unnormalised density, a scalar."""

Target = LogDensityFn | PyTree
"""A log-density function, or the scores ∇log p at the samples, in the samples' structure."""

Scalar = Float[Array, ""]
Vector = Float[Array, " dim"]
Block = Float[Array, "block dim"]
Weights = Float[Array, " draws"] | None
"""Weights of draws that sum to one, or None for equal ones."""


class Choice(StrEnum):
    """A word that stands for how something is chosen, shown as the user wrote it."""

    def __repr__(self) -> str:
        return repr(self.value)


def static(**options: Any) -> Any:
    """A field of a pytree that belongs to its structure: programs are compiled for its value."""
    return field(metadata={"static": True}, **options)
