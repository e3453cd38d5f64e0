"""Functions regressed on Stein features.

A Stein feature has mean zero under the target. So if f = a + βᵀτ up to a residual, E_P[f] is a plus the mean of the
residual. The intercept of the least-squares fit of f on [1, τ] is known as a zero-variance control variate where draws
are right, and corrects their bias where they are not. With C the covariance and τ̄ the mean of the features,

    E_P[f] ≈ f̄ − βᵀτ̄ = Σ_i w_i g_i f(x_i),   g_i = 1 − (τ_i − τ̄)ᵀ (C + λ)⁻¹ τ̄,

a weighted mean whose weights do not depend on f. It is exact where f − E_P[f] is in the span of the features, as it is
for a Gaussian target and polynomials up to the features' order, whatever the draws. So draws may be given other weights
first: those whose features are extreme get less, lest a few of them rule the fit.

What the features do not explain, the residual ρ, may have a mean under the target that no draw tells of. Its mean under
the draws' law Q is zero, and |E_P ρ| ≤ sd_Q(ρ) √χ²(P‖Q | τ), of which the features see τ̄ᵀC⁻¹τ̄. It is taken that what
they do not see is in proportion to what they see: the constant was found on targets whose truth is known.

No number of features is best for all functions: more of them explain more, and are noisier. So there are several fits
on one pass, features above a degree left out of each but the last, and each quantity takes the one that knows it best.
What the others see counts too: the best Gaussian approximation is one whose features of degree 2 see nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass
from jaxtyping import Array, Bool, Float, Int

from jaxpsd._core.checks import is_concrete
from jaxpsd._core.compiling import as_array
from jaxpsd._core.programs import run
from jaxpsd._core.scores import Given
from jaxpsd._core.types import static
from jaxpsd._discrepancies.psd import PSD
from jaxpsd._explain import least_squares
from jaxpsd._explain.least_squares import Functions, Problem
from jaxpsd._gof.dependence import measure_dependence, variance_of_mean

# From features themselves up to so many of them; beyond, from the Gram matrix of up to so many draws.
_MOST_FEATURES, _MOST_DRAWS = 2000, 4000

# Influences of more draws than this are averaged over stretches of successive ones.
_POINTS = 2**13

# How much wronger than what features see that may be which they do not see, as a standard deviation. What other fits
# see counts up to the second: of draws that are far off, high degrees see more than there is.
_UNSEEN, _SEEN_BY_OTHERS = 2.0, 1.0


@register_dataclass
@dataclass(frozen=True)
class Regression:
    """Functions regressed on Stein features, by several fits: each on some of them.

    value
        Estimates of E_P[f].
    mean
        Means over the draws.
    influence
        How much each draw, or a stretch of successive ones, moves an estimate: its mean is the error.
    residual, deviation
        What the fit leaves of f at some draws, and how far f is from its mean there; their mean squares are variances.
    seen
        τ̄ᵀC⁻¹τ̄, how far the draws may be off as far as features tell, beyond what chance makes of it.
    ridge
        The ridge λ, in units of the features' variances.
    num_features
        How many features there are for a fit.
    """

    value: Float[Array, "fits functions"]
    mean: Float[Array, " functions"]
    influence: Float[Array, "fits points functions"]
    residual: Float[Array, "fits points functions"]
    deviation: Float[Array, "points functions"]
    seen: Float[Array, " fits"]
    ridge: Float[Array, " fits"]
    num_features: int = static()
    num_chains: int = static()

    @property
    def standard_error(self) -> Float[Array, "fits functions"]:
        """Standard errors, autocorrelation included."""
        return self.error_of_mean(self.influence)

    @property
    def explained(self) -> Float[Array, "fits functions"]:
        """Shares of the functions' variances that the features explain."""
        return explained_share(self.residual, self.deviation[None])

    @property
    def unseen(self) -> Float[Array, "fits functions"]:
        """How far off the estimates may be because of what the features do not explain."""
        return self.unseen_of(self.residual)

    def error_of_mean(self, influence: Float[Array, "fits points columns"]) -> Float[Array, "fits columns"]:
        """Standard errors of quantities, of which these are the influences."""
        return jnp.sqrt(jax.lax.map(lambda each: variance_of_mean(each, self.num_chains), influence))

    def unseen_of(self, residual: Float[Array, "fits points columns"]) -> Float[Array, "fits columns"]:
        """How far off quantities may be, of which these are the residuals."""
        seen = jnp.maximum(self.seen, jnp.minimum(self.seen.max(), _SEEN_BY_OTHERS))
        return _UNSEEN * jnp.sqrt((residual**2).mean(axis=1) * seen[:, None])


def explained_share(
    residual: Float[Array, "fits points columns"], deviation: Float[Array, "#fits points columns"]
) -> Float[Array, "fits columns"]:
    """One less the ratio of variances; one for what does not vary."""
    variance = (deviation**2).mean(axis=1)
    return 1 - jnp.where(variance > 0, (residual**2).mean(axis=1) / jnp.where(variance > 0, variance, 1), 0)


def best_fit(
    half_width: Float[Array, "fits columns"],
    explained: Float[Array, "fits columns"],
    is_known: Bool[Array, "fits columns"],
) -> Int[Array, "1 columns"]:
    """Of each quantity, the fit that knows it best: the narrowest interval, or where none knows it, what explains most.

    Intervals, unlike values, are not chosen by chance to say what they say.
    """
    narrowest = jnp.argmin(jnp.where(is_known, half_width, jnp.inf), axis=0)
    return jnp.where(is_known.any(axis=0), narrowest, jnp.argmax(explained, axis=0))[None]


REGRESSION_TAKES = (
    f"a regression takes twice as many draws as features, and at most {_MOST_FEATURES:,} features; or at most "
    f"{_MOST_DRAWS:,} draws, without weights"
)


def can_regress(num_features: int, num_draws: int, *, weighted: bool) -> bool:
    """Whether so many features can be regressed on, in one way or the other."""
    return _are_few(num_features, num_draws) or (num_draws <= _MOST_DRAWS and not weighted)


def _are_few(num_features: int, num_draws: int) -> bool:
    return num_features <= min(_MOST_FEATURES, num_draws // 2)


def regress(
    functions: Functions, psds: Sequence[PSD], given: Given, effective: float | None = None, *, by_degree: bool = False
) -> Regression:
    """Regress functions on the Stein features of one PSD, or of several together.

    There is a fit for each PSD; `by_degree`, one for each of its degrees from two on, on features up to that. How many
    independent draws these are worth is measured unless it is known.
    """
    draws, weights = given.draws, given.weights
    n, counts = draws.num_draws, [psd._num_features(draws) for psd in psds]
    count = sum(counts)
    are_few = _are_few(count, n)
    if not can_regress(count, n, weighted=weights is not None):
        raise ValueError(
            f"{count:,} Stein features are too many for {n:,} draws: {REGRESSION_TAKES}. Use a lower order or "
            "interactions=False."
        )
    if n < 4:
        raise ValueError(f"A regression takes at least four draws; got {n}.")
    given = given.with_scores()
    plans = tuple(replace(psd, form="primal" if are_few else "dual")._plan(given, 0) for psd in psds)
    if effective is None and given.is_concrete and n > 2 * draws.num_chains:
        time, is_dependent = measure_dependence(given, plans[0])
        effective = n / time if is_dependent else None
    effective = float(n) if effective is None else effective
    stretch = max(1, min(n // _POINTS, n // draws.num_chains // 2))
    if are_few:
        takes_part = np.concatenate([_members(psds, k, draws.dim, by_degree=by_degree) for k in range(len(psds))])
    else:
        assert len(psds) == 1
        takes_part = np.ones((1, 1), bool)
    problem = Problem(plans, functions, takes_part, as_array(effective, draws.dtype), draws.num_chains, stretch)
    program = least_squares.from_features if are_few else least_squares.from_gram
    if not are_few:
        # All of whose draws have the same weight.
        given = given._replace(filled=None)
    fit = run(program, given, problem, result="gathered", seldom=True)
    if is_concrete(fit) and not all(np.isfinite(leaf).all() for leaf in fit):
        remedy = "Is `fn` finite at every draw? Otherwise use `transform='standardize'`, or float64."
        given.raise_for_value("The corrected expectation", remedy)
    return Regression(*fit, num_features=count, num_chains=draws.num_chains)


def _members(psds: Sequence[PSD], k: int, dim: int, *, by_degree: bool) -> Bool[np.ndarray, "fits features"]:
    """Which of all features take part in each fit on those of one PSD."""
    degrees = [psd.exponents(dim).sum(axis=1) * (place == k) for place, psd in enumerate(psds)]
    order = psds[k].order
    highest = np.arange(min(2, order), order + 1) if by_degree else np.array([order])
    own = np.concatenate(degrees)[None]
    return (own > 0) & (own <= highest[:, None])
