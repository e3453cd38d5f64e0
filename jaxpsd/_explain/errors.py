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

from jaxpsd._core.checks import is_concrete
from jaxpsd._core.compiling import as_array, compile_by_work
from jaxpsd._core.scores import Given
from jaxpsd._core.types import Block, static
from jaxpsd._discrepancies.psd import PSD, check_interactions
from jaxpsd._explain.least_squares import Functions
from jaxpsd._explain.regression import Regression, best_fit, can_regress, explained_share, regress
from jaxpsd._stein.coordinates import Affine, Apart, Canonical
from jaxpsd._stein.polynomials import Interactions, num_monomials

# Standard errors to either side between which 95% of a normal distribution lie.
NORMAL_95 = 1.96


class ImpliedErrors(NamedTuple):
    """What wrong moments amount to, in units of the target: from the regression on Stein features.

    They are exact where the target is Gaussian. Where it is not, features do not explain moments altogether, and what
    they leave may be wrong too: intervals allow for that, by what was found on many targets whose truth is known. NaN
    stands for what cannot be told: where features explain less than half of a quantity's variance, or it could be off
    by more than 0.2 for what they do not see; in a report also where moved draws show that there is more.

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
        """Lower and upper ends between which the errors of means are, each with a confidence of 95%.

        Another one has another quantile of the normal distribution, so many standard errors to either side.
        """
        half = np.hypot(quantile * np.asarray(self.mean_off_se), self.mean_off_unseen)
        return np.asarray(self.mean_off) + np.stack([-half, half])

    def sd_ratio_interval(self, quantile: float = NORMAL_95) -> Float[np.ndarray, "2 dim"] | None:
        """The same for ratios of standard deviations."""
        if self.sd_ratio is None or self.sd_ratio_unseen is None:
            return None
        ratio = np.asarray(self.sd_ratio)
        half = np.hypot(quantile * np.asarray(self.sd_ratio_se) / ratio, self.sd_ratio_unseen)
        return ratio * np.exp(np.stack([-half, half]))

    def not_known(self) -> "ImpliedErrors":
        """The same with no error stated."""
        stated = ("mean_off", "sd_ratio", "true_correlation")
        return self._replace(
            **{
                name: as_array(np.full(value.shape, np.nan, value.dtype))
                for name in stated
                if (value := getattr(self, name)) is not None
            }
        )

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
LEAST_EXPLAINED, MOST_UNSEEN = 0.5, 0.2

# Features to regress on, the best first: order, and highest degree of products. They take so many effective draws
# each, and no more than so much work. Those of order 2 are all that a Gaussian target takes, by this share of the
# scores' variance that is linear.
_CANDIDATES = ((4, 3), (4, 2), (3, True), (3, 2), (2, True), (4, False), (2, False))
_LAST_RESORTS = ((2, True), (2, False))
_DRAWS_A_FEATURE, _MOST_FEATURES, _MOST_WORK = 8, 512, 5e10
_GAUSSIAN = 0.9999


class Features(NamedTuple):
    """What to regress on.

    psds
        Whose features explain most of the moments of such draws. One with products, along joint axes, however
        coordinates depend on each other; and one without, near the coordinates themselves, which explains those that
        do not with fewer features.
    effective
        How many independent draws there are to fit to.
    """

    psds: list[PSD]
    effective: float


def most_effective(effective: float, coordinates: Canonical) -> float:
    """How many independent draws there can be: those that are the same as the one before say nothing more."""
    return min(effective, 1 + float(coordinates.num_moves)) if is_concrete(coordinates.num_moves) else effective


def are_too_few(effective: float, dim: int) -> bool:
    """Whether so few independent draws do not carry the first and second powers of each coordinate."""
    return effective < _DRAWS_A_FEATURE * num_monomials(dim, 2, interactions=False)


def choose_features(given: Given, coordinates: Canonical, effective: float, *, interactions: bool = True) -> Features:
    """As many as so many independent draws carry."""
    draws, effective, joint = given.draws, most_effective(effective, coordinates), coordinates.for_regression
    # A Gaussian target leaves nothing unexplained, so that any draws will do that make the features differ.
    is_gaussian = _is_gaussian(coordinates)
    carried = float(coordinates.num_moves) / 2 if is_gaussian else effective / _DRAWS_A_FEATURE

    def count_of(order: int, products: Interactions) -> int:
        return num_monomials(draws.dim, order, interactions=products)

    def is_affordable(count: int) -> bool:
        return count <= min(carried, _MOST_FEATURES) and draws.num_draws * count**2 <= _MOST_WORK

    def can_be(order: int, products: Interactions) -> bool:
        return can_regress(count_of(order, products), draws.num_draws, weighted=given.weights is not None)

    def psd_of(order: int, products: Interactions, transform: Affine | Apart) -> PSD:
        return PSD(order, interactions=check_interactions(products, order), basis="hermite", transform=transform)

    allowed = [
        (order, products)
        for order, products in _CANDIDATES
        if order <= (2 if is_gaussian else 4) and (interactions or not products)
    ]
    last_resort = [each for each in _LAST_RESORTS if can_be(*each) and (interactions or not each[1])]
    order, products = next((each for each in allowed if is_affordable(count_of(*each))), (*last_resort, (1, False))[0])
    psds = [psd_of(order, products, joint if products else Apart(joint))]
    both = count_of(order, products) + count_of(4, False)
    if products and draws.dim > 1 and (4, False) in allowed and is_affordable(both):
        psds.append(psd_of(4, False, coordinates.for_tests))
    return Features(psds, max(effective, float(coordinates.num_moves)) if is_gaussian else effective)


def _is_gaussian(coordinates: Canonical) -> bool:
    """Whether the target is, as far as its scores at the draws tell."""
    return is_concrete(coordinates.linearity) and float(coordinates.linearity) > _GAUSSIAN


def implied_errors(
    given: Given, coordinates: Canonical, standardized: Affine, effective: float, *, interactions: bool = True
) -> ImpliedErrors:
    """Errors of means, standard deviations and correlations, by regressing moments on Stein features."""
    psds, effective = choose_features(given, coordinates, effective, interactions=interactions)
    interactions = psds[0].interactions is not False
    # Of the user's own coordinates, whatever those of the features; standardised for the sake of digits.
    moments = _Moments(standardized, psds[0].order, interactions)
    regression = regress(moments, psds, given, effective, by_degree=True)
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
    has_scales = regression.value.shape[1] > dim
    above = np.triu_indices(dim)

    def second_order(value: Float[Array, " moments"]) -> tuple[Array, Array]:
        _, sd, correlation = _summary(value, dim, pairs)
        # One of each pair of correlations: for many coordinates they take most of the memory.
        return jnp.log(sample_sd / sd), correlation[above] if interactions else jnp.zeros(0, value.dtype)

    # Delta method: how each draw moves the moments, and those the quantities; what the features leave of them; and how
    # they vary.
    columns = (
        regression.influence,
        regression.residual,
        jnp.broadcast_to(regression.deviation, regression.influence.shape),
    )

    def of_fit(fit: tuple[Array, tuple[Array, ...]]) -> tuple[tuple[Array, Array], tuple[tuple[Array, Array], ...]]:
        value, parts = fit
        found, move = jax.linearize(second_order, value)
        return found, tuple(jax.vmap(move)(part) for part in parts)

    (log_ratio, correlation), moved = jax.lax.map(of_fit, (regression.value, columns))
    # All standard errors in one go; those of means are in units that are not known yet.
    influences = [moved[0][0], moved[0][1], regression.influence[..., :dim]]
    se = regression.error_of_mean(jnp.concatenate(influences, axis=2))
    log_ratio_se, correlation_se, off_se = jnp.split(se, np.cumsum([part.shape[2] for part in influences[:2]]), axis=1)
    log_ratio = _best(regression, log_ratio, log_ratio_se, tuple(part[0] for part in moved[1:]))
    # An error of a mean is known no better than its unit.
    unit = jnp.where(jnp.isnan(exact_sd), sample_sd * jnp.exp(-log_ratio.value), exact_sd)
    doubt = jnp.where(jnp.isnan(exact_sd), jnp.hypot(NORMAL_95 * log_ratio.se, log_ratio.unseen), 0)
    off = (sample_mean[None] - regression.value[:, :dim]) / unit[None]
    in_units = tuple(part[..., :dim] / unit[None, None] for part in columns[1:])
    off = _best(regression, off, off_se / unit[None], in_units, jnp.abs(off) * jnp.expm1(doubt)[None])
    correlation = _best(regression, correlation, correlation_se, tuple(part[1] for part in moved[1:]))
    # Of first moments alone nothing can be said unless the unit is known.
    mean_off = off.known if has_scales else off.known + 0 * exact_sd
    ratio = jnp.exp(log_ratio.known)

    def matrix(entries: Array) -> Array | None:
        return _symmetric(entries, dim, above) if interactions else None

    return ImpliedErrors(
        mean_off=mean_off,
        mean_off_se=off.se,
        mean_off_unseen=off.unseen,
        sd_ratio=ratio if has_scales else None,
        sd_ratio_se=log_ratio.se * ratio if has_scales else None,
        sd_ratio_unseen=log_ratio.unseen if has_scales else None,
        correlation=sample_correlation if interactions else None,
        # Of a scale that is not known, no correlation is.
        true_correlation=matrix(correlation.known + 0 * (ratio[above[0]] + ratio[above[1]])) if interactions else None,
        correlation_se=matrix(correlation.se),
        correlation_unseen=matrix(correlation.unseen),
        mean_explained=off.explained,
        sd_explained=log_ratio.explained if has_scales else None,
    )


class _Quantities(NamedTuple):
    """Quantities, each by the fit that knows it best.

    value
        The best there is; `known` is the same, and NaN where that is not enough for a number.
    se, unseen
        Standard errors, and how far off they may be for what features do not see.
    explained
        Shares of their variances that features explain.
    """

    value: Float[Array, " quantities"]
    known: Float[Array, " quantities"]
    se: Float[Array, " quantities"]
    unseen: Float[Array, " quantities"]
    explained: Float[Array, " quantities"]


def _best(
    regression: Regression,
    value: Float[Array, "fits quantities"],
    se: Float[Array, "fits quantities"],
    moved: tuple[Array, ...],
    doubt: Float[Array, "fits quantities"] | float = 0.0,
) -> _Quantities:
    """From standard errors of quantities, how residuals and deviations move them, and other doubts of them."""
    residual, deviation = moved
    explained = explained_share(residual, deviation)
    unseen = jnp.hypot(regression.unseen_of(residual), doubt)
    is_known = (explained >= LEAST_EXPLAINED) & (unseen <= MOST_UNSEEN) & jnp.isfinite(value)
    best = best_fit(jnp.hypot(NORMAL_95 * se, unseen), explained, is_known)
    value, is_known, se, unseen, explained = (
        jnp.take_along_axis(each, best, axis=0)[0] for each in (value, is_known, se, unseen, explained)
    )
    return _Quantities(value, jnp.where(is_known, value, jnp.nan), se, unseen, explained)


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
