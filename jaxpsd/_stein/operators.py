"""The Langevin Stein operators on any function, by automatic differentiation (paper, section 2.1).

These are the definitions; the closed forms elsewhere in the library are held to them by the tests.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxpsd._core.blocks import einsum
from jaxpsd._core.checks import as_floats, check_same_shapes, is_concrete
from jaxpsd._core.draws import Draws
from jaxpsd._core.functions import check_function, checked_logdensity, returning_numbers
from jaxpsd._core.scores import guarded_score
from jaxpsd._core.types import LogDensityFn, PyTree, Scalar, Vector


def stein_operator(
    fn: Callable[[PyTree], Any], target: LogDensityFn | PyTree, *, order: int = 2
) -> Callable[[PyTree], Any]:
    """Apply a Langevin Stein operator of the target to any smooth function.

    With s = ∇log p, the second-order operator takes f to A f(x) = Δf(x) + ∇f(x)·s(x), and the
    first-order operator takes a vector field g to A g(x) = ∇·g(x) + g(x)·s(x). Both results have mean
    zero under p, for functions that do not grow too fast.

    Parameters
    ----------
    fn
        For `order=2` a function of one position, to a scalar, an array or a pytree of them, each
        entry a function f of its own. For `order=1` a vector field: its value has the structure of
        the position.
    target
        The log-density, a function of one position; or the score at the position to which the result
        is applied, in its structure.
    order
        2 for functions, 1 for vector fields.

    Returns
    -------
    Callable
        The function A f of one position. `jax.vmap` applies it to many.

    Examples
    --------
    The score of a standard normal is s(x) = −x, so A x² = 2 − 2x².

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> operated = jaxpsd.stein_operator(lambda x: x**2, lambda x: -0.5 * jnp.sum(x**2))
    >>> operated(jnp.array([0.0, 1.0, 3.0]))
    Array([  2.,   0., -16.], dtype=float32)

    Scores that are known already go in beside the draws.

    >>> x, s = jnp.ones((4, 2)), -jnp.ones((4, 2))
    >>> jax.vmap(lambda x, s: jaxpsd.stein_operator(jnp.sum, s)(x))(x, s)
    Array([-2., -2., -2., -2.], dtype=float32)
    """
    check_function(fn, "fn", "one position")
    if not isinstance(order, int | np.integer) or isinstance(order, bool) or order not in (1, 2):
        raise ValueError(f"`order` must be 2 (functions) or 1 (vector fields); got {order!r}.")
    checked_fn = returning_numbers(fn, "fn")
    score = guarded_score(checked_logdensity(target)) if callable(target) else None

    def operated(position: PyTree) -> Any:
        position = as_floats(position, "position")
        x, unravel = ravel_pytree(position)
        if len(x) == 0:
            raise ValueError(f"`position` is empty: {position!r} holds no numbers.")
        _check_finite(x, position, "`position`")
        scores = as_floats(target, "target") if score is None else score(position)
        expected = "A score must have the structure and shape of the one position it belongs to"
        s = _raveled_like(position, scores, expected, "Use `jax.vmap` over draws and scores.")
        _check_finite(s, position, "The score ∇log p", " Is the position outside the support?")
        if order == 2:
            return second_order(lambda flat: checked_fn(unravel(flat)), x, s)

        def field(flat: Vector) -> Vector:
            expected = "A vector field must have the structure of the position"
            hint = "Functions, scalar- or vector-valued, take `order=2`."
            return _raveled_like(position, checked_fn(unravel(flat)), expected, hint)

        return first_order(field, x, s)

    return operated


def _check_finite(values: Vector, position: PyTree, what: str, remedy: str = "") -> None:
    if is_concrete(values) and not np.isfinite(values).all():
        at = int(np.argmin(np.isfinite(values)))
        coordinate = Draws(jax.tree.map(lambda leaf: leaf[None], position)).coordinate(at)
        raise ValueError(f"{what} is not finite at {coordinate}: {values[at]}.{remedy}")


def _raveled_like(position: PyTree, values: PyTree, expected: str, hint: str) -> Vector:
    check_same_shapes(values, position, expected, hint)
    return ravel_pytree(values)[0]


# --- the operators on functions of coordinates, with nothing checked ---------------------------------------


def second_order(fn: Callable[[Vector], Any], x: Vector, s: Vector) -> Any:
    """Δf(x) + ∇f(x)·s, for every entry of what the function returns."""

    def along(direction: Vector) -> Callable[[Scalar], Any]:
        return lambda t: fn(x + t * direction)

    zero = jnp.zeros((), x.dtype)
    drift = jax.jacfwd(along(s))(zero)
    # Second derivatives along the axes are the diagonal of the Hessian, without the rest of it.
    curvature = jax.vmap(lambda axis: jax.jacfwd(jax.jacfwd(along(axis)))(zero))(jnp.eye(len(x), dtype=x.dtype))
    return jax.tree.map(lambda c, d: c.sum(0) + d, curvature, drift)


def first_order(field: Callable[[Vector], Vector], x: Vector, s: Vector) -> Scalar:
    """∇·g(x) + g(x)·s."""
    return jnp.trace(jax.jacfwd(field)(x)) + einsum("i,i->", field(x), s)
