"""One test for whatever is wrong, so that no order has to be chosen.

High orders drown errors of low moments, low orders are blind to tails, and a sum over all features dilutes an error of
one. The adaptive test goes by the most significant of several parts of the orthonormal PSD, in the coordinates of the
target: sums of squares over all features of a degree, over powers of single coordinates, and the largest alone. It is
the aggregated test of these parts, each with a share of the level: most of it goes to means and scales, whose errors
are the hardest to see, since tails and skewness, where they are wrong, tend to show clearly.
"""

from dataclasses import replace
from typing import NamedTuple

from jax.typing import ArrayLike
from jaxtyping import PRNGKeyArray

from jaxpsd._core.blocks import MEMORY_BUDGET
from jaxpsd._core.checks import check_key, check_positive_integer, is_concrete
from jaxpsd._core.doubts import warn_of
from jaxpsd._core.draws import Draws
from jaxpsd._core.programs import Data, run
from jaxpsd._core.scores import Given, check_input
from jaxpsd._core.types import PyTree, Scalar, Target
from jaxpsd._discrepancies.plans import Part, Plan
from jaxpsd._discrepancies.psd import PSD, check_interactions, name_of_degree
from jaxpsd._discrepancies.psd_plans import replicate_bytes
from jaxpsd._gof.aggregate import Contribution, aggregate, largest_dependence
from jaxpsd._gof.dependence import Dependence
from jaxpsd._gof.gof_test import score_in_advance
from jaxpsd._gof.result import GofResult
from jaxpsd._gof.settings import Settings, check_bootstrap, check_several
from jaxpsd._stein.coordinates import Affine, Apart, Transform, resolve
from jaxpsd._stein.fitting import score_linearity
from jaxpsd._stein.polynomials import Interactions, num_monomials

# Effective draws from which on the heavy-tailed features of a degree, whose tails fewer have not seen, take part; for a
# Gaussian target. Others, whose scores are not linear, may have heavier tails: by this measure it takes more.
_FEWEST_DRAWS, _NEARLY_LINEAR = {1: 0, 2: 0, 3: 50, 4: 100}, 0.05

# Multiply-adds beyond which sums over pairs of draws are left out.
_MOST_WORK = 1e12


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
    rng_key, target, samples, num_replicates, alpha, weights, flip_probability, block_length, chains
        As in `gof_test`.
    method
        Any bootstrap of `gof_test`, but "gaussian" only where all parts are of features.
    order
        The highest degree to look at.
    interactions
        Whether to look at products of different coordinates.
    transform
        Coordinates to test in, as for `PSD`: those of the target unless told otherwise.

    Returns
    -------
    GofResult
        `statistic` is −log₁₀ of a mean of several p-values, which the smallest rules; `p_value` is calibrated for that;
        `parts` has each of the statistics with its own, and `left_out` names parts that these draws cannot carry.

    Notes
    -----
    Parts are sums of squared mean features of the orthonormal PSD: of degree 1 ("means"), of degree 2 ("scales and
    correlations"), of squares alone ("scales"), third powers ("skewness") and fourth powers ("tails"); the largest of
    the first two degrees; and the sum over all squares ("overall scale"). Which take part is decided by the number of
    effective draws and of coordinates and by how linear the scores are, before any of them is looked at; inside `jit`,
    where values are not known, scores are taken as linear.

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
    >>> dict(zip(result.parts.labels, result.parts.reject.tolist()))["tails"]
    True
    """
    check_key(rng_key)
    settings = check_bootstrap(method, num_replicates, alpha, flip_probability, block_length, weights)
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
    interactions: Interactions = True,
    transform: Transform | str = "target",
    dependence: Dependence | None = None,
) -> GofResult:
    """The adaptive test of what has been checked; the dependence of the draws is measured unless it is known."""
    given = score_in_advance(given)
    interactions = check_interactions(interactions, order)
    psd = PSD(order, basis="hermite", interactions=False, transform=resolve(transform, given))
    dependence = dependence or largest_dependence([psd], given, settings)
    effective = given.draws.num_draws
    if dependence is not None and dependence.is_clear:
        effective /= dependence.time
    plan = psd._plan(given, settings.num_replicates)
    linearity = float(run(_least_linearity, given, plan)) if given.is_concrete else 1.0
    demand = 1 + ((1 - linearity) / _NEARLY_LINEAR) ** 3
    supply = _Supply(effective, demand, settings.num_replicates)
    parts = _choose_parts(psd, given.draws, supply, products=interactions is not False)
    result = aggregate(rng_key, parts.contributions, given, settings, dependence)
    return replace(result, left_out=parts.left_out).doubted(result.doubts)


def _least_linearity(data: Data, plan: Plan) -> Scalar:
    return score_linearity(plan.prepare(data)).min()


class _Supply(NamedTuple):
    """Effective draws; how many times as many this target takes as a Gaussian one; and replicates."""

    effective: float
    demand: float
    num_replicates: int


class _Parts(NamedTuple):
    contributions: list[Contribution]
    left_out: tuple[str, ...]


def _choose_parts(psd: PSD, draws: Draws, supply: _Supply, *, products: bool) -> _Parts:
    """What to look at: fixed before any feature is, by how many draws there are, and by how Gaussian the target is."""
    effective, demand, num_replicates = supply
    n, dim, left_out = draws.num_draws, draws.dim, []
    own_coordinates = _fallback(psd.transform)
    degrees = []
    for degree in range(1, psd.order + 1):
        fewest = _FEWEST_DRAWS.get(degree, max(_FEWEST_DRAWS.values())) * demand
        if effective >= fewest:
            degrees.append(degree)
        else:
            name = name_of_degree(degree)
            left_out.append(
                f"{name}: takes about {float(f'{fewest:.2g}'):,.0f} effective draws of such a target; these are "
                f"{effective:,.0f}"
            )
    order = max(degrees)

    def fits(interactions: Interactions, order: int) -> bool:
        count = num_monomials(dim, order, interactions=interactions)
        return replicate_bytes(count, num_replicates, draws.dtype) <= MEMORY_BUDGET

    while order > 1 and not fits(False, order):
        left_out.append(f"{name_of_degree(order)}: too many features for {num_replicates:,} replicates")
        degrees.remove(order)
        order = max(degrees)
    products = products and dim > 1 and order > 1
    together = products and fits(2, order)
    found = [(name_of_degree(1), Part((1,)))]
    if order > 1:
        found.append((name_of_degree(2), Part((2,), powers=True)))
    found += [(name_of_degree(k), Part((k,), powers=True)) for k in degrees if k > 2]
    if dim > 1:
        highest = min(order, 2)
        kind = "" if together or not products else ", without products"
        label = f"largest of degree{' 1' if highest == 1 else 's 1 and 2'}{kind}"
        found.append((label, Part(tuple(range(1, highest + 1)), powers=not together, measure="largest")))
    if dim > 1 and order > 1:
        # Squares about the draws' own mean are too small by a little each, which their sum shows.
        if own_coordinates:
            left_out.append(f"{_OVERALL}: scores imply no scale of the target in {own_coordinates:,} directions")
        else:
            found.append((_OVERALL, Part((2,), powers=True, measure="sum")))
    if together:
        found.insert(1, (_PRODUCTS, Part((2,))))
    kept = replace(psd, order=order, interactions=check_interactions(2, order) if together else False)
    seen = effective / demand * dim**2
    contributions = [_contribution(kept, found, seen)]
    if products and not together:
        if n**2 / 2 * num_replicates <= _MOST_WORK:
            dual = replace(psd, order=2, interactions=True, form="dual")
            contributions.append(_contribution(dual, [(_PRODUCTS, Part((2,)))], seen))
        else:
            left_out.append(f"{_PRODUCTS}: too many features of {dim:,} coordinates, and too many pairs of draws")
    return _Parts(contributions, tuple(left_out))


def _fallback(transform: Transform | Apart | str) -> int:
    """In how many directions coordinates are the draws' own, as far as values can be looked at."""
    count = transform.fallback if isinstance(transform, Affine) else None
    return int(count) if count is not None and is_concrete(count) else 0


# Degree 2 with products, and its squares summed.
_PRODUCTS, _OVERALL = "scales and correlations", "overall scale"

# How much of the level each part is given, chosen by simulation such that the power is near that of the best part
# alone, whatever is wrong.
_SHARES = {"means": 0.28, "scales": 0.14, "skewness": 0.05, "tails": 0.15, _PRODUCTS: 0.14, _OVERALL: 0.03}
_SHARE_OF_LARGEST, _SHARE_OF_HIGHER = 0.21, 0.05


# Even powers are skewed: of few draws, those have a small mean that happen to have a small variance, which is what
# replicates go by, which sums over coordinates even out. Replicates of their squares are enlarged by a share of one
# over the number of draws and the square of that of coordinates, and at most by a quarter; found by simulation of
# Gaussian targets.
_SKEWED, _MOST_CAUTION = {2: 25, 4: 150}, 0.25


def _contribution(psd: PSD, parts: list[tuple[str, Part]], seen: float) -> Contribution:
    """Parts with their shares of the level, and as much caution as what was seen asks for."""
    labels, wanted = zip(*parts, strict=True)
    caution = (1 + min(_MOST_CAUTION, _skewness(part) / seen) for part in wanted)
    return Contribution(psd, tuple(wanted), tuple(labels), tuple(map(share_of_level, labels)), tuple(caution))


def _skewness(part: Part) -> float:
    return 0 if part.measure == "largest" or part.degrees is None else _SKEWED.get(max(part.degrees), 0)


def share_of_level(label: str) -> float:
    """How much of the level a part is given."""
    return _SHARES.get(label, _SHARE_OF_LARGEST if label.startswith("largest") else _SHARE_OF_HIGHER)
