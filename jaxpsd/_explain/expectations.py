"""Expectations under the target from draws of something else: the intercept of the regression on Stein features."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.tree_util import register_dataclass
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from jaxpsd._core.checks import check_positive_integer, is_concrete
from jaxpsd._core.doubts import CorrectionWarning, Doubt, warn_of
from jaxpsd._core.draws import Structure, one_position
from jaxpsd._core.functions import check_function, returning_numbers
from jaxpsd._core.scores import check_input
from jaxpsd._core.tracing import Traced, trace
from jaxpsd._core.types import Block, PyTree, Scalar, Target, Vector, static
from jaxpsd._discrepancies.psd import PSD
from jaxpsd._explain.regression import Functions, regress
from jaxpsd._stein.coordinates import Transform

# Where features explain less of a function's variance than this, the correction is not to be trusted.
_ENOUGH = 0.5


@register_dataclass
@dataclass(frozen=True, eq=False)
class CorrectedExpectation:
    """E_P[f], corrected for what the draws have wrong; each field in the structure of f's value.

    value
        The estimate of E_P[f].
    standard_error
        Its standard error, for chains with their autocorrelation.
    sample_mean
        The plain mean over the draws, for comparison.
    explained
        The share of f's variance over the draws that the features explain. Near one, the correction is nearly exact;
        where it is small, the estimate is not to be trusted more than the plain mean.
    ridge
        The ridge λ of the regression, in units of the features' variances, chosen by generalised cross-validation.
    num_features
        How many Stein features f was regressed on.
    """

    value: PyTree
    standard_error: PyTree
    sample_mean: PyTree
    explained: PyTree
    ridge: Scalar
    num_features: int = static()


def corrected_expectation(
    fn: Callable[[PyTree], Any],
    target: Target,
    samples: PyTree,
    *,
    order: int = 2,
    interactions: bool = True,
    transform: Transform | str = "standardize",
    weights: ArrayLike | None = None,
    chains: bool | None = None,
) -> CorrectedExpectation:
    """Estimate an expectation under the target from draws that may be biased.

    Parameters
    ----------
    fn
        Any function f of one position, to a number, an array or a pytree of them.
    target
        The log-density, a function of one position, or the scores ∇log p at the samples.
    samples
        An array (draws, dim) or (chains, draws, dim), or a pytree of arrays with those leading axes.
    order, interactions, transform
        The Stein features to regress on, as for `PSD`.
    weights
        Weights of the draws, one each.
    chains
        Whether the leaves of a pytree have a chain axis before the draws.

    Returns
    -------
    CorrectedExpectation
        The estimate with its standard error, beside the plain mean; and how much of f the features explain.

    Examples
    --------
    Draws that are too wide by half, and the second moment of the target, which is one:

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> def logdensity(x):
    ...     return -0.5 * jnp.sum(x**2)
    >>> wide = 1.5 * jax.random.normal(jax.random.key(0), (1000, 2))
    >>> result = jaxpsd.corrected_expectation(lambda x: x**2, logdensity, wide)
    >>> print(result.sample_mean.round(1), result.value.round(3))
    [2.2 2.4] [1. 1.]
    """
    check_function(fn, "fn", "one position")
    psd = PSD(check_positive_integer(order, "order"), interactions=interactions, transform=transform)
    given = check_input(target, samples, weights, chains)
    draws = given.draws
    position = one_position(draws.positions)
    traced = trace(returning_numbers(fn, "fn", floating=False), position)
    leaves, treedef = jax.tree.flatten(jax.eval_shape(traced, position))
    # Means, of numbers that may be integers.
    structure = Structure(treedef, tuple(leaf.shape for leaf in leaves), (draws.dtype,) * len(leaves))
    if structure.dim == 0:
        raise ValueError(f"`fn` must return at least one number; it returned arrays of shapes {structure.shapes}.")
    fit = regress(_UserFunction(traced, draws.structure), psd, given)
    if is_concrete(fit.standard_error) and not np.isfinite(fit.standard_error).all():
        raise FloatingPointError(
            f"The standard error of the corrected expectation is not finite in {draws.dtype}: values of `fn` are too "
            "large to be squared. Use other units, or float64."
        )
    doubts = given.doubts
    if is_concrete(fit.explained) and (least := float(fit.explained.min())) < _ENOUGH:
        message = (
            f"The {fit.num_features} Stein features of order {order} explain {max(least, 0):.0%} of a function's "
            "variance: its corrected expectation is not to be trusted. A higher order may explain more."
        )
        doubts = (*doubts, Doubt(CorrectionWarning, message))
    warn_of(doubts)
    fields = (structure.unravel(each) for each in (fit.value, fit.standard_error, fit.mean, fit.explained))
    return CorrectedExpectation(*fields, ridge=fit.ridge, num_features=fit.num_features)


@register_dataclass
@dataclass(frozen=True)
class _UserFunction(Functions):
    """A function of the user's."""

    function: Traced
    structure: Structure = static()

    def values(self, x: Block) -> Float[Array, "block functions"]:
        def flat(x: Vector) -> Float[Array, " functions"]:
            value = self.function(self.structure.unravel(x))
            return ravel_pytree(jax.tree.map(lambda leaf: jnp.asarray(leaf, x.dtype), value))[0]

        return jax.vmap(flat)(x)
