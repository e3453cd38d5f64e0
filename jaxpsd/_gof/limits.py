"""Asymptotic null distributions (paper, section 3.2).

For a U-statistic n U → Σ_i ω_i (Z_i² − 1). The ω_i are the eigenvalues of M, the covariance of the Stein features,
J × J; or, the same but for zeros, of the Gram matrix divided by n, n × n: whichever is smaller. The limit is also that
of zᵀMz − tr M with z standard normal, which is simulated without any eigenvalue.

For other norms N of the mean features, n N(τ̄)² → N(g)² with g normal, whose covariance is estimated, as in the
published code, by the second moments of the features: of draws that are right, those have mean zero.
"""

from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp
from jax import lax, random
from jax.tree_util import register_static
from jaxtyping import Array, Float, PRNGKeyArray

from jaxpsd._core.blocks import block_length, einsum, sum_over_blocks, weighted
from jaxpsd._core.compiling import compile_by_work
from jaxpsd._core.programs import Data
from jaxpsd._core.types import PyTree, Scalar, Weights
from jaxpsd._discrepancies.plans import FeaturePlan, Plan
from jaxpsd._gof.symptoms import Symptoms, observe, symptoms_from

Matrix = Float[Array, "side side"]

# Replicates simulated at a time.
_BATCH = 64


@register_static
@dataclass(frozen=True)
class Null:
    """Which matrix M stands for the null distribution.

    from_features
        J × J, and not n × n.
    centred
        Of the covariance. Draws of the target itself need no centring: their features have mean zero.
    """

    from_features: bool
    centred: bool


def null_matrix(data: Data, plan: Plan, null: Null) -> tuple[Scalar, Matrix, Symptoms]:
    """U of the draws, and the matrix M that belongs to them."""
    find = _from_features if null.from_features else _from_gram
    u, matrix, diagonal, seen = find(plan.prepare(data), plan, centred=null.centred)
    # By how much M has to shrink for the variance 2 Σ_ij M_ij² to be right: Σ_ij M_ij² = Σ_ij Δ_ij² / n² has terms
    # i = j, Σ_i Δ_ii² / n², that the variance of U has not. With many features, or features with heavy tails, they are
    # not small, and the test would seldom reject.
    squares, n = (matrix**2).sum(), data.num_draws
    ratio = (squares - diagonal) / squares * n / (n - 1)
    return u, matrix * jnp.where(squares > 0, jnp.sqrt(jnp.clip(ratio, 0, 1)), 1), seen


def _from_features(data: Data, plan: Plan, *, centred: bool) -> tuple[Scalar, Matrix, Scalar, Symptoms]:
    """U, M, Σ_i Δ_ii² / n² and what was seen, from the covariance of the features."""
    assert isinstance(plan, FeaturePlan)
    n = data.num_draws
    total, moments, seen = _feature_moments(data, plan)
    mean = total[:-1]
    u = (n * (mean**2).sum() - jnp.trace(moments[:-1, :-1])) / (n - 1)
    if not centred:
        return u, moments[:-1, :-1], moments[-1, -1] / n, seen
    # ‖τ − τ̄‖² = ‖τ‖² − 2 τ̄ᵀτ + ‖τ̄‖² is linear in the extended features, up to a constant.
    linear, constant = jnp.append(-2 * mean, 1), (mean**2).sum()
    diagonal = einsum("i,ij,j->", linear, moments, linear) + 2 * constant * (linear * total).sum() + constant**2
    return u, moments[:-1, :-1] - jnp.outer(mean, mean), diagonal / n, seen


def _feature_moments(data: Data, plan: FeaturePlan) -> tuple[Float[Array, " extended"], Matrix, Symptoms]:
    """First and second moments of the features over the draws, with ‖τ‖² as one more feature.

    Products with that one give all that the diagonal of the Gram matrix needs.
    """
    n, scorer = data.num_draws, data.scorer()

    def on_block(rows: PyTree, fresh: Weights) -> tuple[PyTree, Array]:
        x, s = scorer(rows)
        tau = weighted(plan.features(x, s), fresh)
        extended = jnp.concatenate([tau, (tau**2).sum(axis=1, keepdims=True)], axis=1)
        seen, largest = observe(plan, x, s, fresh, n)
        return (extended.sum(axis=0), einsum("ni,nj->ij", extended, extended), seen), largest

    length = block_length(len(data.x), plan.working_bytes(data.x), given=plan.block_size)
    (total, products, seen), largest = sum_over_blocks(on_block, data.rows, None, length)
    return total / n, products / n, symptoms_from(seen, largest)


def _from_gram(data: Data, plan: Plan, *, centred: bool) -> tuple[Scalar, Matrix, Scalar, Symptoms]:
    """The same from the Gram matrix."""
    x, s = data.scored().rows
    gram, n = plan.gram(x, s), len(x)
    rows = gram.mean(axis=0)
    u = (n * rows.mean() - jnp.trace(gram) / n) / (n - 1)
    if centred:
        gram = gram - rows[None] - rows[:, None] + rows.mean()[None, None]
    diagonal = (jnp.diag(gram) ** 2).sum() / n**2
    return u, gram / n, diagonal, symptoms_from(*observe(plan, x, s, None, n))


@partial(compile_by_work, static_argnums=2)
def simulate(
    rng_key: PRNGKeyArray, matrix: Matrix, num_replicates: int, plan: FeaturePlan | None = None
) -> Float[Array, " replicates"]:
    """Draws of zᵀMz − tr M; or, for the norm N of a plan, of N(g)², where the matrix is a root of g's covariance."""

    def once(replicate: Array) -> Scalar:
        z = random.normal(random.fold_in(rng_key, replicate), matrix.shape[:1], matrix.dtype)
        if plan is not None:
            return plan.squared_norm(einsum("ij,j->i", matrix, z)[:, None])[0]
        # For many replicates at a time, a matrix product.
        return einsum("i,i->", einsum("i,ij->j", z, matrix), z)

    values = lax.map(once, jnp.arange(num_replicates), batch_size=_BATCH)
    return values if plan is not None else values - jnp.trace(matrix)


def null_root(data: Data, plan: FeaturePlan) -> tuple[Scalar, Matrix, Symptoms]:
    """V of the draws, and a root of the second moments of their features."""
    total, moments, seen = _feature_moments(plan.prepare(data), plan)
    squares, directions = jnp.linalg.eigh(moments[:-1, :-1])
    root = directions * jnp.sqrt(jnp.maximum(squares, 0))[None]
    return plan.squared_norm(total[:-1, None])[0], root, seen
