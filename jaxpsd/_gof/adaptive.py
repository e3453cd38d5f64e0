"""One test for whatever is wrong, so that no order has to be chosen.

High orders drown errors of low moments, low orders are blind to tails, and a sum over all features dilutes an
error of one. The adaptive test takes the most significant of three statistics: V of order 1 for means, V of the
highest order for tails, and the largest standardised mean feature up to degree 2 for single moments. Each
replicate goes through the same, so that the smallest p-value is compared with smallest p-values.
"""

from jax.typing import ArrayLike
from jaxtyping import PRNGKeyArray

from jaxpsd._core.blocks import MEMORY_BUDGET
from jaxpsd._core.checks import check_choice, check_key, check_positive_integer
from jaxpsd._core.doubts import warn_of
from jaxpsd._core.draws import Draws
from jaxpsd._core.scores import Given, check_input
from jaxpsd._core.types import PyTree, Target
from jaxpsd._discrepancies.psd import PSD
from jaxpsd._discrepancies.psd_plans import replicate_bytes
from jaxpsd._gof import pvalues
from jaxpsd._gof.bootstrap import Wanted
from jaxpsd._gof.dependence import Dependence
from jaxpsd._gof.gof_test import resample, score_in_advance
from jaxpsd._gof.result import GofResult, result_of
from jaxpsd._gof.settings import BOOTSTRAPS, Settings, check_several, check_weights_suit, labels_of
from jaxpsd._stein.coordinates import Rule, Transform, fit_to_target
from jaxpsd._stein.monomials import num_monomials

# With fewer draws the largest of many skewed features is too often larger than its replicates, whose signs are fair.
_ENOUGH_DRAWS = 300


def adaptive_test(
    rng_key: PRNGKeyArray,
    target: Target,
    samples: PyTree,
    *,
    method: str = "auto",
    num_replicates: int = 1000,
    alpha: float = 0.05,
    order: int = 4,
    interactions: bool = True,
    transform: Transform | str = "target",
    weights: ArrayLike | None = None,
    flip_probability: float | None = None,
    block_length: int | None = None,
    chains: bool | None = None,
) -> GofResult:
    """Test whether the draws could come from the target, without choosing a polynomial order.

    Parameters
    ----------
    rng_key, target, samples, method, num_replicates, alpha, weights, flip_probability, block_length, chains
        As in `gof_test`; every bootstrap will do.
    order
        The highest order to look at.
    interactions
        Whether to look at products of different coordinates.
    transform
        Coordinates to test in, as for `PSD`; or "target" to standardise by the location and scales that draws and
        scores imply for the target, which are exact if it is Gaussian.

    Returns
    -------
    GofResult
        `statistic` is −log₁₀ of the smallest of several p-values, `p_value` is calibrated for having chosen it, and
        `parts` has each of the statistics with its own.

    Notes
    -----
    The level is right where that of order `order` is: in one dimension order 4 rejects correct draws somewhat too
    often, because its features have heavy tails.

    The maximum is over degree 1 only, and the label of that part says so, with fewer than 300 draws, where the skewed
    features of variances would make it reject correct draws too often, and beyond some hundreds of coordinates, where
    replicates of all features of degree 2 would take too much memory.

    Examples
    --------
    Tails that are too light, means and variances right:

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> def logdensity(x):
    ...     return -0.5 * jnp.sum(x**2)
    >>> samples = jax.random.uniform(jax.random.key(0), (1000, 3), minval=-(3**0.5), maxval=3**0.5)
    >>> result = jaxpsd.adaptive_test(jax.random.key(1), logdensity, samples)
    >>> bool(result.reject)
    True
    >>> dict(zip(result.parts.labels, result.parts.reject.tolist()))
    {'V of order 1': False, 'V of order 4': True, 'maximum of order 2': False}
    """
    check_key(rng_key)
    check_choice(method, BOOTSTRAPS, "method")
    settings = Settings.checked(method, num_replicates, alpha, flip_probability, block_length)
    settings.check_attainable()
    check_weights_suit(method, weights)
    if isinstance(transform, str):
        check_choice(transform, ("target", *(rule.value for rule in Rule)), "transform")
    order = check_positive_integer(order, "order")
    given = check_input(target, samples, weights, chains)
    check_several(given.draws)
    result = run_adaptive_test(rng_key, given, settings, order=order, interactions=interactions, transform=transform)
    warn_of(result.doubts)
    return result


def run_adaptive_test(
    rng_key: PRNGKeyArray,
    given: Given,
    settings: Settings,
    *,
    order: int = 4,
    interactions: bool = True,
    transform: Transform | str = "target",
    dependence: Dependence | None = None,
) -> GofResult:
    """The adaptive test of what has been checked; the dependence of the draws is measured unless it is known."""
    if isinstance(transform, str) and transform == "target":
        given = score_in_advance(given)
        transform = fit_to_target(given)
    psd = PSD(order, interactions=interactions, transform=transform)
    maximum = _order_of_maximum(psd, given.draws, settings.num_replicates)
    orders, unbiased = (1, order) if order > 1 else (1,), settings.method == "multinomial"
    wanted = Wanted(orders, unbiased=unbiased, maximum=maximum)
    values, scheme, doubts = resample(rng_key, psd, given, settings, wanted, dependence)
    parts = result_of(values, scheme, settings, (*labels_of(wanted), f"maximum of order {wanted.maximum}"))
    smallest = pvalues.smallest(values)[None]
    return result_of(smallest, scheme, settings, ("−log₁₀ of the smallest p",), parts).doubted(doubts)


def _order_of_maximum(psd: PSD, draws: Draws, num_replicates: int) -> int:
    """2, or 1 where draws are too few, or the sums of all replicates of so many features would not fit."""
    if psd.order == 1 or draws.num_draws < _ENOUGH_DRAWS:
        return 1
    count = num_monomials(draws.dim, 2, interactions=psd.interactions)
    return 2 if replicate_bytes(count, num_replicates, draws.dtype) <= MEMORY_BUDGET else 1
