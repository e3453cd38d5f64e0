"""What wrong moments amount to: errors of means, standard deviations and correlations, in units of the target.

Moments of the draws are regressed on Stein features; the intercepts are the moments of the target.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float

from jaxpsd._core.blocks import einsum
from jaxpsd._core.checks import is_concrete
from jaxpsd._core.compiling import compile_by_work
from jaxpsd._core.scores import Given
from jaxpsd._core.types import Block, static
from jaxpsd._discrepancies.psd import PSD, check_interactions
from jaxpsd._explain.regression import Functions, Regression, can_regress, explained_share, regress
from jaxpsd._stein.coordinates import Affine, Canonical
from jaxpsd._stein.polynomials import num_monomials

# Standard errors to either side between which 95% of a normal distribution lie.
NORMAL_95 = 1.96


class ImpliedErrors(NamedTuple):
    """What wrong moments amount to, in units of the target: from the regression on Stein features.

    They are exact where the target is Gaussian. Where it is not, features do not explain moments altogether, and what
    they leave may be wrong too: intervals allow for that, by what was found on many targets whose truth is known. NaN
    stands for what cannot be told: where features explain less than half of a quantity's variance, or it could be off
    by more than 0.2 for what they do not see.

    mean_off
        How far the mean of the draws is off, in standard deviations of the target, for each coordinate.
    mean_off_se
        Its standard error: what is random about it.
    mean_off_unseen
        How far it may be off, beside, for what the features do not see.
    sd_ratio
        Ratio of the draws' standard deviation to the target's; None where features are of order 1. Where it is NaN, so
        are correlations; and errors of means, whose unit it is, are known no better than it is, unless the target is
        Gaussian.
    sd_ratio_se
        Its standard error.
    sd_ratio_unseen
        How far its logarithm may be off, beside, for what the features do not see.
    correlation
        Correlations (dim, dim) of the draws; None without interactions.
    true_correlation
        Those of the target, as far as can be told.
    correlation_se
        Standard errors of those.
    correlation_unseen
        How far they may be off, beside, for what the features do not see.
    mean_explained, sd_explained
        Shares of the variances that the features explain, of each mean and standard deviation.
    """

    mean_off: Float[Array, " dim"]
    mean_off_se: Float[Array, " dim"]
    mean_off_unseen: Float[Array, " dim"]
    sd_ratio: Float[Array, " dim"] | None
    sd_ratio_se: Float[Array, " dim"] | None
    sd_ratio_unseen: Float[Array, " dim"] | None
    correlation: Float[Array, "dim dim"] | None
    true_correlation: Float[Array, "dim dim"] | None
    correlation_se: Float[Array, "dim dim"] | None
    correlation_unseen: Float[Array, "dim dim"] | None
    mean_explained: Float[Array, " dim"]
    sd_explained: Float[Array, " dim"] | None

    @property
    def explained(self) -> Float[Array, ""]:
        """The smallest share of a variance that the features explain."""
        shares = self.mean_explained if self.sd_explained is None else (*self.mean_explained, *self.sd_explained)
        return jnp.min(jnp.asarray(shares))

    def mean_off_interval(self, quantile: float = NORMAL_95) -> Float[np.ndarray, "2 dim"]:
        """Lower and upper ends between which the errors of means are, by default with 95% confidence each."""
        half = np.hypot(quantile * np.asarray(self.mean_off_se), self.mean_off_unseen)
        return np.asarray(self.mean_off) + np.stack([-half, half])

    def sd_ratio_interval(self, quantile: float = NORMAL_95) -> Float[np.ndarray, "2 dim"] | None:
        """The same for ratios of standard deviations."""
        if self.sd_ratio is None or self.sd_ratio_unseen is None:
            return None
        ratio = np.asarray(self.sd_ratio)
        half = np.hypot(quantile * np.asarray(self.sd_ratio_se) / ratio, self.sd_ratio_unseen)
        return ratio * np.exp(np.stack([-half, half]))

    # The names of version 0.1, in which an error could be a standard error.
    mean = property(lambda self: self.mean_off)
    mean_error = property(lambda self: self.mean_off_se)
    scale = property(lambda self: self.sd_ratio)
    scale_error = property(lambda self: self.sd_ratio_se)
    correlation_error = property(lambda self: self.correlation_se)


_Pairs = tuple[np.ndarray, np.ndarray]

# A target that is narrower than draws by a factor of a thousand cannot be told from one that has no variance.
_SMALLEST_VARIANCE = 1e-6

# No number is stated where features explain less than the first share of a quantity, or where it may be off by more
# than the second for what they do not see, in standard deviations or as a share.
LEAST_EXPLAINED, _MOST_UNSEEN = 0.5, 0.2

# Features to regress on, the best first: order, and highest degree of products. They take so many effective draws
# each, and no more than so much work. Those of order 2 are all that a Gaussian target takes, by this share of the
# scores' variance that is linear.
_CANDIDATES = ((4, 3), (4, 2), (2, True), (4, False), (2, False))
_LAST_RESORTS = ((2, True), (2, False))
_DRAWS_A_FEATURE, _MOST_FEATURES, _MOST_WORK = 8, 512, 5e10
_GAUSSIAN = 0.9999


def explaining_psd(given: Given, coordinates: Canonical, effective: float, *, interactions: bool = True) -> PSD:
    """The PSD whose features explain most of the moments of such draws."""
    draws = given.draws

    def can_be(order: int, products: bool) -> bool:
        count = num_monomials(draws.dim, order, interactions=products)
        is_regular = can_regress(count, draws.num_draws, weighted=given.weights is not None)
        return is_regular and (interactions or not products)

    is_gaussian = _is_gaussian(coordinates)
    highest = 2 if is_gaussian else 4
    for order, products in _CANDIDATES:
        if order > highest:
            continue
        count = num_monomials(draws.dim, order, interactions=products)
        is_light = count <= _MOST_FEATURES and draws.num_draws * count**2 <= _MOST_WORK
        # A Gaussian target leaves nothing unexplained, so that any draws will do that make the features differ.
        carried = float(coordinates.num_moves) / 2 if is_gaussian else effective / _DRAWS_A_FEATURE
        if is_light and count <= carried and (interactions or not products):
            break
    else:
        order, products = next((each for each in _LAST_RESORTS if can_be(*each)), (1, False))
    # Without products, axes have to be near the coordinates for these to be explained.
    transform = coordinates.for_regression if products else coordinates.for_tests
    return PSD(order, interactions=check_interactions(products, order), basis="hermite", transform=transform)


def _is_gaussian(coordinates: Canonical) -> bool:
    """Whether the target is, as far as its scores at the draws tell."""
    return is_concrete(coordinates.linearity) and float(coordinates.linearity) > _GAUSSIAN


def implied_errors(
    given: Given, coordinates: Canonical, standardized: Affine, effective: float, *, interactions: bool = True
) -> ImpliedErrors:
    """Errors of means, standard deviations and correlations, by regressing moments on Stein features."""
    if is_concrete(coordinates.num_moves):
        # Draws that are the same as the one before say nothing more.
        effective = min(effective, 1 + float(coordinates.num_moves))
    psd = explaining_psd(given, coordinates, effective, interactions=interactions)
    interactions = psd.interactions is not False
    # Of the user's own coordinates, whatever those of the features; standardised for the sake of digits.
    moments = _Moments(standardized, psd.order, interactions)
    worth = max(effective, float(coordinates.num_moves)) if _is_gaussian(coordinates) else effective
    regression = regress(moments, psd, given, worth)
    return errors_of(regression, _exact_sd(coordinates, standardized), given.draws.dim, interactions)


def _exact_sd(coordinates: Canonical, standardized: Affine) -> Float[np.ndarray, " dim"]:
    """The target's standard deviations in units of the draws', if it is Gaussian; NaN otherwise."""
    if not _is_gaussian(coordinates):
        return np.full(standardized.loc.shape, np.nan, standardized.loc.dtype)
    return np.linalg.norm(coordinates.for_regression.scale, axis=1) / np.asarray(standardized.scale)


@partial(compile_by_work, seldom=True, static_argnums=(2, 3))
def errors_of(
    regression: Regression, exact_sd: Float[Array | np.ndarray, " dim"], dim: int, interactions: bool
) -> ImpliedErrors:
    """From a regression of first, and perhaps second, moments of so many coordinates.

    Standard deviations of the target are known exactly if it is Gaussian, and NaN otherwise.
    """
    pairs = _pairs(dim, interactions=interactions)
    sample_mean, sample_sd, sample_correlation = _summary(regression.mean, dim, pairs)

    def quantities(value: Float[Array, " moments"]) -> tuple[Array, Array, Array]:
        mean, sd, correlation = _summary(value, dim, pairs)
        unit = jnp.where(jnp.isnan(exact_sd), sd, exact_sd)
        # One of each pair of correlations: for many coordinates they take most of the memory.
        return (sample_mean - mean) / unit, jnp.log(sample_sd / sd), correlation[above]

    above = np.triu_indices(dim)
    off, log_ratio, correlation = quantities(regression.value)
    # Delta method: how each draw moves the moments, and those the quantities; what the features leave of them; and how
    # they vary.
    columns = jnp.concatenate([regression.influence, regression.residual, regression.deviation])
    moved = [einsum("nk,jk->nj", columns, slope) for slope in jax.jacfwd(quantities)(regression.value)]

    def uncertainty(part: Array, of_unit: Array | float = 0.0) -> tuple[Array, Array, Array, Array]:
        """Standard error, what may be unseen, the share explained, and whether that is enough for a number."""
        influence, residual, deviation = jnp.split(part, 3)
        unseen = jnp.hypot(regression.unseen_of(residual), of_unit)
        explained = explained_share(residual, deviation)
        is_known = (explained >= LEAST_EXPLAINED) & (unseen <= _MOST_UNSEEN)
        return regression.error_of_mean(influence), unseen, explained, jnp.where(is_known, 0, jnp.nan)

    log_se, log_unseen, sd_explained, sd_known = uncertainty(moved[1])
    # An error of a mean is known no better than its unit.
    doubt = jnp.where(jnp.isnan(exact_sd), jnp.hypot(NORMAL_95 * log_se, log_unseen), 0)
    mean_se, mean_unseen, mean_explained, mean_known = uncertainty(moved[0], jnp.abs(off) * jnp.expm1(doubt))
    correlation_se, correlation_unseen, _, correlation_known = uncertainty(moved[2])
    ratio = jnp.exp(log_ratio) + sd_known
    # Of first moments alone nothing else can be said.
    has_scales = len(regression.value) > dim
    if not has_scales:
        mean_known += 0 * exact_sd

    def matrix(entries: Array) -> Array | None:
        return _symmetric(entries, dim, above) if interactions else None

    return ImpliedErrors(
        mean_off=off + mean_known,
        mean_off_se=mean_se,
        mean_off_unseen=mean_unseen,
        sd_ratio=ratio if has_scales else None,
        sd_ratio_se=log_se * ratio if has_scales else None,
        sd_ratio_unseen=log_unseen if has_scales else None,
        correlation=sample_correlation if interactions else None,
        # Of a scale that is not known, no correlation is.
        true_correlation=matrix(correlation + correlation_known + 0 * (ratio[above[0]] + ratio[above[1]])),
        correlation_se=matrix(correlation_se),
        correlation_unseen=matrix(correlation_unseen),
        mean_explained=mean_explained,
        sd_explained=sd_explained if has_scales else None,
    )


@register_dataclass
@dataclass(frozen=True)
class _Moments(Functions):
    """First moments, and by features of order 2 or more second ones, of standardised draws."""

    affine: Affine
    order: int = static()
    interactions: bool = static()

    def values(self, x: Block) -> Float[Array, "block moments"]:
        y = self.affine.forward(x)
        if self.order == 1:
            return y
        first, second = _pairs(x.shape[1], interactions=self.interactions)
        return jnp.concatenate([y, y[:, first] * y[:, second]], axis=1)


def _pairs(dim: int, *, interactions: bool) -> _Pairs:
    """Coordinates whose products are the second moments."""
    return np.triu_indices(dim) if interactions else (np.arange(dim), np.arange(dim))


def _symmetric(entries: Float[Array, " entries"], dim: int, pairs: _Pairs) -> Float[Array, "dim dim"]:
    """A matrix from its entries on and above the diagonal."""
    half = jnp.zeros((dim, dim), entries.dtype).at[pairs].set(entries)
    return half + jnp.triu(half, 1).T


def _summary(moments: Float[Array, " moments"], dim: int, pairs: _Pairs) -> tuple[Array, Array, Array]:
    """Means, standard deviations and correlations, from moments about the origin."""
    mean = moments[:dim]
    if len(moments) == dim:
        return mean, jnp.ones_like(mean), jnp.eye(dim, dtype=mean.dtype)
    covariance = _symmetric(moments[dim:], dim, pairs) - jnp.outer(mean, mean)
    variance = jnp.diag(covariance)
    # A variance that the regression makes negative is one that it cannot tell. Moments are of standardised draws.
    known = variance > _SMALLEST_VARIANCE
    sd = jnp.where(known, jnp.sqrt(jnp.where(known, variance, 1)), jnp.nan)
    return mean, sd, covariance / jnp.outer(sd, sd)
