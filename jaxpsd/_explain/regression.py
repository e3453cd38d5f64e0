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
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float

from jaxpsd._core.blocks import block_length, einsum, map_over_blocks, sum_over_blocks, weighted
from jaxpsd._core.checks import is_concrete
from jaxpsd._core.draws import join_draws, split_draws
from jaxpsd._core.programs import Data, run
from jaxpsd._core.scores import Given
from jaxpsd._core.types import Block, PyTree, Scalar, Weights, static
from jaxpsd._discrepancies.plans import FeaturePlan, Plan
from jaxpsd._discrepancies.psd import PSD
from jaxpsd._explain.extremes import inverse_scale, mean_over_draws, weights_without_extremes
from jaxpsd._gof.dependence import measure_dependence, variance_of_mean

# From features themselves up to so many of them; beyond, from the Gram matrix of up to so many draws.
_MOST_FEATURES, _MOST_DRAWS = 2000, 4000

# Ridges to choose from, in units of the features' variance; and those of double precision, which are for fits that are
# perfect but for the ridge, and draws that are far off: what it takes away is as many times as large.
_RIDGES = np.logspace(-6, 1, 15)
_TINY_RIDGES = (1e-12, 1e-9)

# A smaller ridge is preferred if it is worse by no more than this.
_TOLERANCE = 0.01

# Influences of more draws than this are averaged over stretches of successive ones.
_POINTS = 2**13

# Leverages, which say how closely a draw is fitted because it is fitted to, stay below this.
_LARGEST_LEVERAGE = 0.95

# How much wronger than what features see that may be which they do not see, as a standard deviation.
_UNSEEN = 2.0


@register_dataclass
@dataclass(frozen=True)
class Regression:
    """Functions regressed on Stein features.

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
    """

    value: Float[Array, " functions"]
    mean: Float[Array, " functions"]
    influence: Float[Array, "points functions"]
    residual: Float[Array, "points functions"]
    deviation: Float[Array, "points functions"]
    seen: Scalar
    ridge: Scalar
    num_features: int = static()
    num_chains: int = static()

    @property
    def standard_error(self) -> Float[Array, " functions"]:
        """Standard errors, autocorrelation included."""
        return self.error_of_mean(self.influence)

    @property
    def explained(self) -> Float[Array, " functions"]:
        """Shares of the functions' variances that the features explain."""
        return explained_share(self.residual, self.deviation)

    @property
    def unseen(self) -> Float[Array, " functions"]:
        """How far off the estimates may be because of what the features do not explain."""
        return self.unseen_of(self.residual)

    def error_of_mean(self, influence: Float[Array, "points columns"]) -> Float[Array, " columns"]:
        """Standard errors of quantities, of which these are the influences."""
        return jnp.sqrt(variance_of_mean(influence, self.num_chains))

    def unseen_of(self, residual: Float[Array, "points columns"]) -> Float[Array, " columns"]:
        """How far off quantities may be, of which these are the residuals."""
        return _UNSEEN * jnp.sqrt((residual**2).mean(axis=0) * self.seen)


def explained_share(
    residual: Float[Array, "points columns"], deviation: Float[Array, "points columns"]
) -> Float[Array, " columns"]:
    """One less the ratio of variances; one for what does not vary."""
    variance = (deviation**2).mean(axis=0)
    return 1 - jnp.where(variance > 0, (residual**2).mean(axis=0) / jnp.where(variance > 0, variance, 1), 0)


class Functions(ABC):
    """The functions to regress, a pytree that a compiled program is given."""

    @abstractmethod
    def values(self, x: Block) -> Float[Array, "block functions"]:
        """All functions of each draw of a block, in the coordinates of the draws."""


REGRESSION_TAKES = (
    f"a regression takes twice as many draws as features, and at most {_MOST_FEATURES:,} features; or at most "
    f"{_MOST_DRAWS:,} draws, without weights"
)


def can_regress(num_features: int, num_draws: int, *, weighted: bool) -> bool:
    """Whether so many features can be regressed on, in one way or the other."""
    return _are_few(num_features, num_draws) or (num_draws <= _MOST_DRAWS and not weighted)


def _are_few(num_features: int, num_draws: int) -> bool:
    return num_features <= min(_MOST_FEATURES, num_draws // 2)


def regress(functions: Functions, psd: PSD, given: Given, effective: float | None = None) -> Regression:
    """Regress functions on the Stein features of a PSD.

    How many independent draws these are worth is measured unless it is known.
    """
    draws, weights = given.draws, given.weights
    n, count = draws.num_draws, psd._num_features(draws)
    from_features = _are_few(count, n)
    if not can_regress(count, n, weighted=weights is not None):
        raise ValueError(
            f"{count:,} Stein features are too many for {n:,} draws: {REGRESSION_TAKES}. Use a lower order or "
            "interactions=False."
        )
    if n < 4:
        raise ValueError(f"A regression takes at least four draws; got {n}.")
    given = given.with_scores()
    plan = replace(psd, form="primal" if from_features else "dual")._plan(given, 0)
    if effective is None and given.is_concrete and n > 2 * draws.num_chains:
        time, is_dependent = measure_dependence(given, plan)
        effective = n / time if is_dependent else None
    effective = float(n) if effective is None else effective
    stretch = max(1, min(n // _POINTS, n // draws.num_chains // 2))
    problem = _Problem(plan, functions, jnp.asarray(effective, draws.dtype), draws.num_chains, stretch)
    fit = run(_from_features if from_features else _from_gram, given, problem, result="gathered")
    if is_concrete(fit) and not all(np.isfinite(leaf).all() for leaf in fit):
        remedy = "Is `fn` finite at every draw? Otherwise use `transform='standardize'`, or float64."
        given.raise_for_value("The corrected expectation", remedy)
    return Regression(*fit, num_features=count, num_chains=draws.num_chains)


@register_dataclass
@dataclass(frozen=True)
class _Problem:
    """What a compiled regression is given; draws are worth `effective` independent ones.

    Influences are averaged over stretches of `stretch` successive draws.
    """

    plan: Plan
    functions: Functions
    effective: Scalar
    num_chains: int = static(default=1)
    stretch: int = static(default=1)


_Fit = tuple[Array, Array, Array, Array, Array, Array, Array]


def _from_features(data: Data, problem: _Problem) -> _Fit:
    """Weights for the draws; then two passes: the normal equations, and residuals and influences."""
    plan, x, n = problem.plan, data.x, data.num_draws
    assert isinstance(plan, FeaturePlan)
    scorer, moved = data.scorer(), plan.prepare(data).scorer()

    def all_features(block: PyTree) -> Block:
        return plan.features(*moved(block))

    def all_values(block: PyTree) -> Block:
        return problem.functions.values(scorer(block)[0])

    first = all_values(data.first_row())
    length = block_length(n, plan.working_bytes(x) + 8 * (x.shape[1] + first.size) * x.dtype.itemsize)
    given = jnp.full(n, 1 / n, x.dtype) if data.weights is None else data.weights
    weights, tau_offset = weights_without_extremes(all_features, data.rows, given, length)
    # Offsets that all values share cost no digits: nearly the means, in which no extreme draw has a part.
    plain_mean = mean_over_draws(all_values, data.rows, given, length)
    offset = mean_over_draws(all_values, data.rows, weights, length)[None]

    def features(block: PyTree) -> Block:
        return all_features(block) - tau_offset[None]

    def values(block: PyTree) -> Block:
        return all_values(block) - offset

    # Draws of unequal weights are worth fewer (Kish).
    effective = problem.effective / (n * (weights**2).sum())

    def on_block(block: PyTree, block_weights: Weights) -> tuple[PyTree, None]:
        tau, f = features(block), values(block)
        counted = weighted(jnp.concatenate([jnp.ones_like(tau[:, :1]), tau], axis=1), block_weights)
        return (
            einsum("ni,nj->ij", counted, jnp.concatenate([tau, f], axis=1)),
            weighted(f, block_weights).sum(axis=0),
            weighted(f**2, block_weights).sum(axis=0),
        ), None

    (products, f_mean, f_squares), _ = sum_over_blocks(on_block, data.rows, weights, length)
    count = products.shape[0] - 1
    centre = products[0, :count]
    covariance = products[1:, :count] - jnp.outer(centre, centre)
    with_f = products[1:, count:] - jnp.outer(centre, f_mean)
    variance = jnp.maximum(f_squares - f_mean**2, 0)

    # In units of the features' standard deviations; a feature that is constant has no part in it.
    inverse = inverse_scale(covariance)
    eigenvalues, directions = jnp.linalg.eigh(covariance * jnp.outer(inverse, inverse))
    eigenvalues = jnp.maximum(eigenvalues, 0)
    projected = einsum("ji,jk->ik", directions, with_f * inverse[:, None])
    ridge = _ridge(eigenvalues, projected, variance, effective)
    shrunk = directions / (eigenvalues + ridge)[None]
    slope = inverse[:, None] * einsum("ij,jk->ik", shrunk, projected)
    freedom = 1 + (eigenvalues / (eigenvalues + ridge)).sum()
    # (C + λ)⁻¹ τ̄, what turns features into weights.
    mean = tau_offset + centre
    tilt = inverse * einsum("ij,kj,k->i", shrunk, directions, mean * inverse)
    seen = _at_most((mean * tilt).sum(), freedom, effective)

    def residuals(stretches: PyTree) -> tuple[Block, Block, Block]:
        block, block_weights = join_draws(stretches)
        share = n * block_weights[:, None]
        centred, f = features(block) - centre[None], values(block) - f_mean[None]
        e = f - einsum("nj,jk->nk", centred, slope)
        projected = einsum("nj,ji->ni", centred * inverse[None], directions) / jnp.sqrt(eigenvalues + ridge)[None]
        leverage = block_weights * (1 + (projected**2).sum(axis=1))
        e = _left_out(e, f, leverage, freedom, n, effective)
        g = share * (1 - einsum("nj,j->n", centred, tilt)[:, None])
        influence = (g * e).reshape(-1, problem.stretch, e.shape[1]).mean(axis=1)
        # Of the first draw of each stretch; squares are weighted.
        root = jnp.sqrt(share)[:: problem.stretch]
        return influence, root * e[:: problem.stretch], root * f[:: problem.stretch]

    chain = n // problem.num_chains
    whole = chain - chain % problem.stretch
    kept = join_draws(jax.tree.map(lambda leaf: leaf[:, :whole], split_draws((data.rows, weights), problem.num_chains)))
    grouped = split_draws(kept, problem.num_chains * whole // problem.stretch)
    influence, residual, deviation = map_over_blocks(residuals, grouped, max(1, length // problem.stretch))
    value = f_mean - einsum("j,jk->k", mean, slope)
    return offset[0] + value, plain_mean, influence, residual, deviation, seen, ridge


def _from_gram(data: Data, problem: _Problem) -> _Fit:
    """The same from the Gram matrix, where features outnumber draws; all of which have the same weight."""
    gram = problem.plan.gram(*problem.plan.prepare(data).scored().rows)
    x, _ = data.scored().rows
    n = len(x)
    values = problem.functions.values(x)
    offset = values[:1]
    f = values - offset
    f_mean = f.mean(axis=0)
    centred = f - f_mean[None]
    variance = (centred**2).mean(axis=0)

    rows = gram.mean(axis=1)
    # (τ_i − τ̄)ᵀ τ̄, and inner products of τ_i − τ̄, in units of the features' total variance.
    along_mean, total = rows - rows.mean(), jnp.trace(gram) / n - rows.mean()
    unit = jnp.where(total > 0, total, 1)
    matrix = (gram - rows[None] - rows[:, None] + rows.mean()) / (n * unit)
    eigenvalues, directions = jnp.linalg.eigh(matrix)
    eigenvalues = jnp.maximum(eigenvalues, 0)
    coordinates = einsum("ni,nk->ik", directions, centred)
    projected = jnp.sqrt(eigenvalues / n)[:, None] * coordinates
    ridge = _ridge(eigenvalues, projected, variance, problem.effective)
    shrunk = directions / (eigenvalues + ridge)[None]
    solved = einsum("ni,ik->nk", shrunk, coordinates)
    e = centred - einsum("nm,mk->nk", matrix, solved)
    kept = eigenvalues / (eigenvalues + ridge)
    leverage, freedom = (directions**2 * kept[None]).sum(axis=1), 1 + kept.sum()
    e = _left_out(e, centred, 1 / n + leverage, freedom, n, problem.effective)
    tilt = einsum("ni,mi,m->n", shrunk, directions, along_mean) / unit
    g = 1 - (tilt - tilt.mean())
    value = f_mean - einsum("n,nk->k", along_mean, solved) / (n * unit)
    # τ̄ᵀ(C + λ)⁻¹τ̄, from what of τ̄ is among the features' directions, and what is not: there is the ridge alone.
    among = einsum("ni,n->i", directions, along_mean) ** 2 / (n * unit)
    varies = eigenvalues > jnp.finfo(x.dtype).eps * n * eigenvalues.max()
    among = jnp.where(varies, among / jnp.where(varies, eigenvalues, 1), 0)
    elsewhere = jnp.maximum(rows.mean() - among.sum(), 0)
    seen = ((among / (eigenvalues + ridge)).sum() + elsewhere / ridge) / unit
    seen = _at_most(seen, freedom, problem.effective)
    return offset[0] + value, offset[0] + f_mean, g[:, None] * e, e, centred, seen, ridge


def _at_most(seen: Scalar, freedom: Scalar, effective: Scalar) -> Scalar:
    """τ̄ᵀC⁻¹τ̄ less what chance makes of it, χ² over the number of draws, and a standard deviation of that more."""
    return jnp.maximum(seen - freedom / effective, 0) + jnp.sqrt(2 * freedom) / effective


def _left_out(
    residual: Float[Array, "block functions"],
    deviation: Float[Array, "block functions"],
    leverage: Float[Array, " block"],
    freedom: Scalar,
    n: int,
    effective: Scalar,
) -> Float[Array, "block functions"]:
    """The residuals of a fit to all other draws.

    Dependent draws are fitted more closely than their number suggests, all of them alike; and if the fit is as free as
    they are, it goes through all of them, and says nothing of any function.
    """
    taken = freedom / effective
    tells = (taken < _LARGEST_LEVERAGE) | (2 * effective > n)
    closely = jnp.sqrt((1 - freedom / n) / jnp.maximum(1 - taken, 1 - _LARGEST_LEVERAGE))
    left = residual * (jnp.maximum(closely, 1) / (1 - jnp.minimum(leverage, _LARGEST_LEVERAGE)))[:, None]
    return jnp.where(tells, left, deviation)


def _ridge(
    eigenvalues: Float[Array, " features"],
    projected: Float[Array, "features functions"],
    variance: Float[Array, " functions"],
    effective: Scalar,
) -> Scalar:
    """The ridge with the least error by generalised cross-validation, summed over functions in units of variance."""
    known = variance > 0
    # Of a fit that is perfect, rounding leaves this much.
    floor = 100 * jnp.finfo(variance.dtype).eps

    def score(ridge: Scalar) -> Scalar:
        shrunk = eigenvalues + ridge
        fitted = (projected**2 * (2 / shrunk - eigenvalues / shrunk**2)[:, None]).sum(axis=0)
        unexplained = jnp.maximum(1 - fitted / jnp.where(known, variance, 1), floor)
        freedom = 1 - (1 + (eigenvalues / shrunk).sum()) / effective
        return jnp.where(freedom > 0, jnp.where(known, unexplained, 0).sum() / freedom**2, jnp.inf)

    tiny = _TINY_RIDGES if variance.dtype == jnp.float64 else ()
    ridges = jnp.asarray([*_RIDGES, *tiny], variance.dtype)
    scores = jax.vmap(score)(ridges)
    # The first, hence smallest, that is about as good as the best: a ridge takes away from the correction. Tiny ones
    # come last.
    return ridges[jnp.argmax(scores <= (1 + _TOLERANCE) * scores.min())]
