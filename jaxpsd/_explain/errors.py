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

from jaxpsd._core.scores import Given
from jaxpsd._core.types import Block, static
from jaxpsd._discrepancies.psd import PSD
from jaxpsd._explain.regression import Functions, Regression, regress
from jaxpsd._gof.dependence import variance_of_mean
from jaxpsd._stein.coordinates import Affine


class ImpliedErrors(NamedTuple):
    """What wrong moments amount to, in units of the target: from the regression on Stein features.

    They are exact where the target is Gaussian. Standard errors are those of the draws' randomness: where the target is
    not Gaussian, the regression itself is off by more than they say, by a few per cent for a Student-t distribution
    with ten degrees of freedom.

    mean_off
        How far the mean of the draws is off, in standard deviations of the target, for each coordinate.
    mean_off_se
        Its standard error.
    sd_ratio
        Ratio of the draws' standard deviation to the target's; None at order 1, and NaN where the regression gives the
        target no variance, as it may where draws are far off or the target is far from Gaussian. Correlations are NaN
        there too, and errors of means are in units of the draws.
    sd_ratio_se
        Its standard error.
    correlation
        Correlations (dim, dim) of the draws; None without interactions.
    true_correlation
        Those of the target, as far as can be told.
    correlation_se
        Standard errors of those.
    explained
        The smallest share of a moment's variance that the features explain: near one where the target is near
        Gaussian, and where it is not the numbers above are not to be trusted.
    """

    mean_off: Float[Array, " dim"]
    mean_off_se: Float[Array, " dim"]
    sd_ratio: Float[Array, " dim"] | None
    sd_ratio_se: Float[Array, " dim"] | None
    correlation: Float[Array, "dim dim"] | None
    true_correlation: Float[Array, "dim dim"] | None
    correlation_se: Float[Array, "dim dim"] | None
    explained: Float[Array, ""]

    # The names of version 0.1, in which an error could be a standard error.
    mean = property(lambda self: self.mean_off)
    mean_error = property(lambda self: self.mean_off_se)
    scale = property(lambda self: self.sd_ratio)
    scale_error = property(lambda self: self.sd_ratio_se)
    correlation_error = property(lambda self: self.correlation_se)


_Pairs = tuple[np.ndarray, np.ndarray]

# A target that is narrower than draws by a factor of a thousand cannot be told from one that has no variance.
_SMALLEST_VARIANCE = 1e-6


def implied_errors(psd: PSD, given: Given, standardized: Affine, effective: float | None) -> ImpliedErrors:
    """Errors of means, standard deviations and correlations, by regressing moments on Stein features."""
    interactions = psd.interactions is not False
    # Of the user's own coordinates, whatever those of the features; standardised for the sake of digits.
    moments = _Moments(standardized, interactions)
    regression = regress(moments, psd, given, effective)
    return errors_of(regression, given.draws.dim, psd.order, interactions, given.draws.num_chains)


@partial(jax.jit, static_argnums=(1, 2, 3, 4))
def errors_of(regression: Regression, dim: int, order: int, interactions: bool, num_chains: int) -> ImpliedErrors:
    """From a regression of first and second moments of so many coordinates."""
    pairs = _pairs(dim, interactions=interactions)
    sample_mean, sample_sd, sample_correlation = _summary(regression.mean, dim, pairs)

    def quantities(value: Float[Array, " moments"]) -> tuple[Array, Array, Array]:
        mean, sd, correlation = _summary(value, dim, pairs)
        # Features of order 1 say nothing of scales, and others may fail to; the draws' own have to do as units.
        unit = jnp.where(jnp.isnan(sd), sample_sd, sd) if order > 1 else sample_sd
        # One of each pair of correlations: for many coordinates they take most of the memory.
        return (sample_mean - mean) / unit, sample_sd / sd, correlation[above]

    above = np.triu_indices(dim)
    off, scale, correlation = quantities(regression.value)
    # Delta method: how each draw moves the moments, and those the quantities.
    moved = jax.vmap(lambda by: jax.jvp(quantities, (regression.value,), (by,))[1])(regression.influence)
    off_error, scale_error, correlation_error = (jnp.sqrt(variance_of_mean(part, num_chains)) for part in moved)

    sees_scales, sees_correlations = order > 1, order > 1 and interactions
    explained = regression.explained if sees_scales else regression.explained[:dim]
    return ImpliedErrors(
        mean_off=off,
        mean_off_se=off_error,
        sd_ratio=scale if sees_scales else None,
        sd_ratio_se=scale_error if sees_scales else None,
        correlation=sample_correlation if sees_correlations else None,
        true_correlation=_symmetric(correlation, dim, above) if sees_correlations else None,
        correlation_se=_symmetric(correlation_error, dim, above) if sees_correlations else None,
        explained=explained.min(),
    )


@register_dataclass
@dataclass(frozen=True)
class _Moments(Functions):
    """First and second moments of standardised draws."""

    affine: Affine
    interactions: bool = static()

    def values(self, x: Block) -> Float[Array, "block moments"]:
        y = self.affine.forward(x)
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
    covariance = _symmetric(moments[dim:], dim, pairs) - jnp.outer(mean, mean)
    variance = jnp.diag(covariance)
    # A variance that the regression makes negative is one that it cannot tell. Moments are of standardised draws.
    known = variance > _SMALLEST_VARIANCE
    sd = jnp.where(known, jnp.sqrt(jnp.where(known, variance, 1)), jnp.nan)
    return mean, sd, covariance / jnp.outer(sd, sd)
