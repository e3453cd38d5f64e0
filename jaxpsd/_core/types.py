"""Names for the types that appear in more than one module."""

from collections.abc import Callable
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
