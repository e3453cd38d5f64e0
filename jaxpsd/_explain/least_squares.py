"""The least-squares fits of functions on Stein features, and what each leaves unexplained.

From the features themselves where they are few: the normal equations of all of them are summed once, and each fit
solves for those that take part in it. From their Gram matrix where they outnumber the draws.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass
from jaxtyping import Array, Bool, Float

from jaxpsd._core.blocks import block_length, einsum, map_over_blocks, sum_over_blocks, weighted
from jaxpsd._core.draws import join_draws, split_draws
from jaxpsd._core.programs import Data
from jaxpsd._core.types import Block, PyTree, Scalar, Weights, static
from jaxpsd._discrepancies.plans import FeaturePlan, Plan, weights_of
from jaxpsd._explain.extremes import inverse_scale, mean_over_draws, weights_without_extremes

# Ridges to choose from, in units of the features' variance; and those of double precision, which are for fits that are
# perfect but for the ridge, and draws that are far off: what it takes away is as many times as large.
_RIDGES = np.logspace(-6, 1, 15)
_TINY_RIDGES = (1e-12, 1e-9)

# A smaller ridge is preferred if it is worse by no more than this.
_TOLERANCE = 0.01

# Leverages, which say how closely a draw is fitted because it is fitted to, stay below this.
_LARGEST_LEVERAGE = 0.95


class Functions(ABC):
    """The functions to regress, a pytree that a compiled program is given."""

    @abstractmethod
    def values(self, x: Block) -> Float[Array, "block functions"]:
        """All functions of each draw of a block, in the coordinates of the draws."""


@register_dataclass
@dataclass(frozen=True)
class Problem:
    """What a compiled regression is given: `takes_part` says which features each fit is on.

    Draws are worth `effective` independent ones. Influences are averaged over stretches of `stretch` successive draws.
    """

    plans: tuple[Plan, ...]
    functions: Functions
    takes_part: Bool[np.ndarray, "fits features"]
    effective: Scalar
    num_chains: int = static(default=1)
    stretch: int = static(default=1)


_Fits = tuple[Array, Array, Array, Array, Array, Array, Array]


class _Fit(NamedTuple):
    """The fit on some of the features.

    slope
        β of each function.
    factor
        (C + λ)^(−½), but for a rotation: what turns features into leverages.
    tilt
        (C + λ)⁻¹ τ̄, what turns features into weights.
    freedom
        How many free parameters it is worth.
    seen, ridge
        As in `Regression`.
    """

    slope: Float[Array, "features functions"]
    factor: Float[Array, "features features"]
    tilt: Float[Array, " features"]
    freedom: Scalar
    seen: Scalar
    ridge: Scalar


def from_features(data: Data, problem: Problem) -> _Fits:
    """Weights for the draws; then two passes: the normal equations, and residuals and influences."""
    x, rows, n = data.x, data.num_draws, data.num_real
    plans = [plan for plan in problem.plans if isinstance(plan, FeaturePlan)]
    scorer, moved = data.scorer(), [plan.prepare(data).scorer() for plan in plans]

    # Traced once, for all passes.
    @jax.jit
    def all_features(block: PyTree) -> Block:
        parts = [plan.features(*score(block)) for plan, score in zip(plans, moved, strict=True)]
        return jnp.concatenate(parts, axis=1)

    def all_values(block: PyTree) -> Block:
        return problem.functions.values(scorer(block)[0])

    first = all_values(data.first_row())
    working = sum(plan.working_bytes(x) for plan in plans)
    length = block_length(rows, working + 8 * (x.shape[1] + first.size) * x.dtype.itemsize)
    given = weights_of(data)
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
    mean = tau_offset + centre
    covariance = products[1:, :count] - jnp.outer(centre, centre)
    with_f = products[1:, count:] - jnp.outer(centre, f_mean)
    variance = jnp.maximum(f_squares - f_mean**2, 0)

    def solve(takes_part: Bool[Array, " features"]) -> _Fit:
        # In units of the features' standard deviations; a feature that is constant, or left out, has no part in it.
        inverse = inverse_scale(covariance) * takes_part
        eigenvalues, directions = jnp.linalg.eigh(covariance * jnp.outer(inverse, inverse))
        eigenvalues = jnp.maximum(eigenvalues, 0)
        projected = einsum("ji,jk->ik", directions, with_f * inverse[:, None])
        ridge = _ridge(eigenvalues, projected, variance, effective)
        factor = inverse[:, None] * directions / jnp.sqrt(eigenvalues + ridge)[None]
        freedom = 1 + (eigenvalues / (eigenvalues + ridge)).sum()
        tilt = einsum("ij,kj,k->i", factor, factor, mean)
        seen = _at_most((mean * tilt).sum(), freedom, effective)
        return _Fit(einsum("ij,lj,lk->ik", factor, factor, with_f), factor, tilt, freedom, seen, ridge)

    fits = jax.lax.map(solve, jnp.asarray(problem.takes_part))

    def residuals(stretches: PyTree) -> tuple[Block, Block, Block]:
        block, block_weights = join_draws(stretches)
        share = rows * block_weights[:, None]
        centred, f = features(block) - centre[None], values(block) - f_mean[None]

        def of_fit(fit: _Fit) -> tuple[Block, Block]:
            leverage = block_weights * (1 + (einsum("nj,ji->ni", centred, fit.factor) ** 2).sum(axis=1))
            e = _left_out(f - einsum("nj,jk->nk", centred, fit.slope), f, leverage, fit.freedom, n, effective)
            return e, share * (1 - einsum("nj,j->n", centred, fit.tilt)[:, None]) * e

        # One fit after the other: products of many matrices at once are slow on processors.
        e, influence = (jnp.swapaxes(part, 0, 1) for part in jax.lax.map(of_fit, fits))
        influence = influence.reshape(-1, problem.stretch, *influence.shape[1:]).mean(axis=1)
        # Of the first draw of each stretch; squares are weighted.
        root = jnp.sqrt(share)[:: problem.stretch]
        return influence, root[:, None] * e[:: problem.stretch], root * f[:: problem.stretch]

    chain = rows // problem.num_chains
    whole = chain - chain % problem.stretch
    kept = join_draws(jax.tree.map(lambda leaf: leaf[:, :whole], split_draws((data.rows, weights), problem.num_chains)))
    grouped = split_draws(kept, problem.num_chains * whole // problem.stretch)
    influence, residual, deviation = map_over_blocks(residuals, grouped, max(1, length // problem.stretch))
    value = offset + f_mean[None] - einsum("j,fjk->fk", mean, fits.slope)
    influence, residual = (jnp.swapaxes(part, 0, 1) for part in (influence, residual))
    return value, plain_mean, influence, residual, deviation, fits.seen, fits.ridge


def from_gram(data: Data, problem: Problem) -> _Fits:
    """The same from the Gram matrix, where features outnumber draws; all of which have the same weight."""
    (plan,) = problem.plans
    gram = plan.gram(*plan.prepare(data).scored().rows)
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
    influence = g[:, None] * e
    return (
        offset + value[None], offset[0] + f_mean, influence[None], e[None], centred, seen[None], ridge[None]
    )  # fmt: skip


def _at_most(seen: Scalar, freedom: Scalar, effective: Scalar) -> Scalar:
    """τ̄ᵀC⁻¹τ̄ less what chance makes of it, χ² over the number of draws, and a standard deviation of that more."""
    return jnp.maximum(seen - freedom / effective, 0) + jnp.sqrt(2 * freedom) / effective


def _left_out(
    residual: Float[Array, "block functions"],
    deviation: Float[Array, "block functions"],
    leverage: Float[Array, " block"],
    freedom: Scalar,
    n: int | Scalar,
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
