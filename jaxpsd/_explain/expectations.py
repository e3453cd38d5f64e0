"""Expectations under the target from draws of something else: the intercept of the regression on Stein features."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.tree_util import register_dataclass
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from jaxpsd._core.checks import check_positive_integer, is_concrete
from jaxpsd._core.compiling import as_array, compile_by_work
from jaxpsd._core.doubts import CorrectionWarning, Doubt, warn_of
from jaxpsd._core.draws import Structure, one_position
from jaxpsd._core.functions import check_function, returning_numbers
from jaxpsd._core.scores import Given, check_input
from jaxpsd._core.tracing import Traced, trace
from jaxpsd._core.types import Block, PyTree, Target, Vector, static
from jaxpsd._discrepancies.psd import PSD
from jaxpsd._explain.errors import LEAST_EXPLAINED, MOST_UNSEEN, NORMAL_95, choose_features
from jaxpsd._explain.least_squares import Functions
from jaxpsd._explain.measured import measure_errors
from jaxpsd._explain.regression import Regression, best_fit, regress
from jaxpsd._explain.second_opinion import NEARLY_GAUSSIAN, ask, check_second_opinion, is_refuted
from jaxpsd._gof.dependence import measure_dependence
from jaxpsd._gof.settings import Settings
from jaxpsd._stein.coordinates import Apart, Canonical, Rule, Transform, canonical, check_transform

# Random signs, and the level of which moved draws get their share.
_NUM_SIGNS, _LEVEL = 1000, 0.05


@register_dataclass
@dataclass(frozen=True, eq=False)
class CorrectedExpectation:
    """E_P[f], corrected for what the draws have wrong; each field in the structure of f's value.

    value
        The estimate of E_P[f].
    standard_error
        Its standard error, for chains with their autocorrelation.
    unseen
        How far the estimate may be off, beside, for what the features do not explain: found on many targets whose truth
        is known, and small where draws are nearly right. Infinite where moved draws show that features do not tell.
    sample_mean
        The plain mean over the draws, for comparison.
    explained
        The share of f's variance over the draws that the features explain. Near one, the correction is nearly exact;
        where it is small, the estimate is not to be trusted more than the plain mean.
    ridge
        The ridge λ of the regression, in units of the features' variances, chosen by generalised cross-validation.
    num_features
        How many Stein features there were to regress f on; unless an order is given, each number takes as many of them
        as leave its interval the narrowest.
    """

    value: PyTree
    standard_error: PyTree
    unseen: PyTree
    sample_mean: PyTree
    explained: PyTree
    ridge: PyTree
    num_features: int = static()

    @property
    def interval(self) -> PyTree:
        """Lower and upper ends of a 95% interval, along a first axis: what is random, and what is unseen."""

        def ends(value: Array, error: Array, unseen: Array) -> Array:
            half = jnp.hypot(NORMAL_95 * error, unseen)
            return jnp.stack([value - half, value + half])

        return jax.tree.map(ends, self.value, self.standard_error, self.unseen)


def corrected_expectation(
    fn: Callable[[PyTree], Any],
    target: Target,
    samples: PyTree,
    *,
    order: int | None = None,
    interactions: bool = True,
    transform: Transform | str | None = "target",
    second_opinion: bool | str = "auto",
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
        The Stein features to regress on, as for `PSD`: Hermite polynomials in the coordinates of the target unless told
        otherwise, and of the order that explains most, as far as the draws carry it.
    second_opinion
        Whether to let some draws follow the target, as `diagnose` does, to see whether features tell enough of it. They
        move by random numbers of their own, the same in every call.
    weights
        Weights of the draws, one each.
    chains
        Whether the leaves of a pytree have a chain axis before the draws.

    Returns
    -------
    CorrectedExpectation
        The estimate with its standard error, beside the plain mean; and how much of f the features explain.

    Notes
    -----
    All is seen from where draws are. Far too narrow an approximation of a curved target looks like a right one of a
    Gaussian, and its correction is far off. Moved draws show that mostly, and a warning says so; of scores alone, of
    several modes, or inside `jit`, nothing does.

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
    if order is not None:
        order = check_positive_integer(order, "order")
    transform = check_transform(transform)
    check_second_opinion(second_opinion, target)
    given = check_input(target, samples, weights, chains)
    draws = given.draws
    position = one_position(draws.positions)
    traced = trace(returning_numbers(fn, "fn", floating=False), position)
    leaves, treedef = jax.tree.flatten(jax.eval_shape(traced, position))
    # Means, of numbers that may be integers.
    structure = Structure(treedef, tuple(leaf.shape for leaf in leaves), (draws.dtype,) * len(leaves))
    if structure.dim == 0:
        raise ValueError(f"`fn` must return at least one number; it returned arrays of shapes {structure.shapes}.")
    unscored, given = given, given.with_scores()
    coordinates = canonical(given)
    psds, effective = _choose_features(given, coordinates, order, interactions, transform)
    fits = regress(_UserFunction(traced, draws.structure), psds, given, effective, by_degree=order is None)
    value, standard_error, unseen, explained, ridge, sd = _best_of(fits)
    if is_concrete(standard_error) and not np.isfinite(standard_error).all():
        raise FloatingPointError(
            f"The standard error of the corrected expectation is not finite in {draws.dtype}: values of `fn` are too "
            "large to be squared. Use other units, or float64."
        )
    if second_opinion is not False and _is_refuted(second_opinion, target, unscored, given, coordinates):
        unseen = as_array(np.full(unseen.shape, np.inf, unseen.dtype))
    warn_of((*given.doubts, *_doubt_of(explained, unseen, sd, fits.num_features)))
    fields = (value, standard_error, unseen, fits.mean, explained, ridge)
    return CorrectedExpectation(*map(structure.unravel, fields), num_features=fits.num_features)


def _choose_features(
    given: Given, coordinates: Canonical, order: int | None, interactions: bool, transform: Transform
) -> tuple[list[PSD], float | None]:
    """The PSDs whose features to regress on, and how many draws these are worth, where it had to be found out."""
    if order is not None:
        if transform is not Rule.TARGET:
            return [PSD(order, interactions=interactions, transform=transform)], None
        joint = coordinates.for_regression
        axes = joint if interactions else Apart(joint)
        return [PSD(order, basis="hermite", interactions=interactions, transform=axes)], None
    draws, effective = given.draws, float(given.draws.num_draws)
    if given.is_concrete and draws.num_draws > 2 * draws.num_chains:
        leading = PSD(2, basis="hermite", transform=coordinates.for_tests, form="primal")
        time, is_clear = measure_dependence(given, leading._plan(given, 0))
        effective /= time if is_clear else 1
    psds, effective = choose_features(given, coordinates, effective, interactions=interactions)
    if transform is not Rule.TARGET:
        # In coordinates of the user's, one set of features holds the other.
        psds = [replace(psds[0], transform=transform)]
    return psds, effective


@partial(compile_by_work, seldom=True)
def _best_of(fits: Regression) -> tuple[Array, ...]:
    """Of each number, by the fit that knows it best: values, standard errors, what is unseen, explained; and ridges.

    Last come the standard deviations of the function over the draws.
    """
    standard_error, unseen, explained = fits.standard_error, fits.unseen, fits.explained
    sd = jnp.sqrt((fits.deviation**2).mean(axis=0))
    is_known = (explained >= LEAST_EXPLAINED) & (unseen <= MOST_UNSEEN * sd[None])
    best = best_fit(jnp.hypot(NORMAL_95 * standard_error, unseen), explained, is_known)
    columns = (fits.value, standard_error, unseen, explained, jnp.broadcast_to(fits.ridge[:, None], unseen.shape))
    return *(jnp.take_along_axis(each, best, axis=0)[0] for each in columns), sd


def _doubt_of(explained: Array, unseen: Array, sd: Array, num_features: int) -> tuple[Doubt, ...]:
    """Of the numbers of which least is known."""
    if not is_concrete((explained, unseen, sd)):
        return ()
    unit = np.where(np.asarray(sd) > 0, sd, 1)
    least, most = float(np.min(explained)), float(np.max(np.asarray(unseen) / unit))
    if np.isinf(most):
        message = (
            "Draws that followed the target show more of it than Stein features see of a function: its corrected "
            "expectation is not to be trusted. `jaxpsd.relax(…, fn=fn)` shows where its mean moves."
        )
    elif least < LEAST_EXPLAINED:
        message = (
            f"{num_features} Stein features explain {max(least, 0):.0%} of a function's variance: its corrected "
            "expectation is not to be trusted. A higher order may explain more."
        )
    elif most > MOST_UNSEEN:
        message = (
            f"What {num_features} Stein features do not see may put a function's expectation off by {most:.2g} of its "
            "standard deviations: its corrected expectation is not to be trusted. A higher order may explain more."
        )
    else:
        return ()
    return (Doubt(CorrectionWarning, message),)


def _is_refuted(asked: bool | str, target: Target, unscored: Given, given: Given, coordinates: Canonical) -> bool:
    """Whether some draws that follow the target show more of it than features see."""
    if not given.is_concrete:
        if asked is True:
            raise ValueError("`second_opinion=True` looks at values and cannot be traced; call it outside `jit`.")
        return False
    if asked == "auto" and coordinates.linearity >= NEARLY_GAUSSIAN:
        return False
    errors, _, _, dependence = measure_errors(given, coordinates)
    settings = Settings.checked("auto", _NUM_SIGNS, _LEVEL, None, None)
    names, rng_key = given.draws.names, jax.random.key(0)
    opinion = ask(asked, rng_key, target, unscored, settings, names, errors, coordinates, dependence)
    return is_refuted(errors, opinion.relaxation)


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
