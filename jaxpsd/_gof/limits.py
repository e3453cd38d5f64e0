"""Asymptotic null distributions (paper, section 3.2).

For a U-statistic n U → Σ_i ω_i (Z_i² − 1). The ω_i are the eigenvalues of M, the covariance of the Stein features,
J × J; or, the same but for zeros, of the Gram matrix divided by n, n × n: whichever is smaller. The limit is also that
of zᵀMz − tr M with z standard normal, which is simulated without any eigenvalue.

For other norms N of the mean features, n N(τ̄)² → N(g)² with g normal, whose covariance is estimated, as in the
published code, by the second moments of the features: of draws that are right, those have mean zero.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax, random
from jax.tree_util import register_static
from jaxtyping import Array, Float, PRNGKeyArray

from jaxpsd._core.blocks import block_length, einsum, sum_over_blocks, weighted
from jaxpsd._core.programs import Data
from jaxpsd._core.types import PyTree, Scalar, Weights
from jaxpsd._discrepancies.plans import FeaturePlan, Plan
from jaxpsd._gof.symptoms import Symptoms, observe, symptoms_from

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


def null_matrix(data: Data, plan: Plan, null: Null) -> tuple[Scalar, Float[Array, "side side"], Symptoms]:
    """U of the draws, and the matrix M that belongs to them."""
    prepared = plan.prepare(data)
    if null.from_features:
        assert isinstance(plan, FeaturePlan)
        u, matrix, diagonal, seen = _from_features(prepared, plan, centred=null.centred)
    else:
        u, matrix, diagonal, seen = _from_gram(prepared, plan, centred=null.centred)
    return u, matrix * _shrinkage((matrix**2).sum(), diagonal, data.num_draws), seen


def _shrinkage(squares: Scalar, diagonal: Scalar, num_draws: int) -> Scalar:
    """By how much an estimated matrix has to shrink for the variance 2 Σ_ij M_ij² to be right.

    Σ_ij M_ij² = Σ_ij Δ_ij² / n² has terms i = j, Σ_i Δ_ii² / n², that the variance of U has not. With many features,
    or features with heavy tails, they are not small, and the test would seldom reject.
    """
    ratio = (squares - diagonal) / squares * num_draws / (num_draws - 1)
    return jnp.where(squares > 0, jnp.sqrt(jnp.clip(ratio, 0, 1)), 1)


def _from_features(
    data: Data, plan: FeaturePlan, *, centred: bool
) -> tuple[Scalar, Float[Array, "features features"], Scalar, Symptoms]:
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


def _feature_moments(
    data: Data, plan: FeaturePlan
) -> tuple[Float[Array, " extended"], Float[Array, "extended extended"], Symptoms]:
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


def _from_gram(
    data: Data, plan: Plan, *, centred: bool
) -> tuple[Scalar, Float[Array, "draws draws"], Scalar, Symptoms]:
    x, s = data.scored().rows
    gram, n = plan.gram(x, s), len(x)
    rows = gram.mean(axis=0)
    u = (n * rows.mean() - jnp.trace(gram) / n) / (n - 1)
    if centred:
        gram = gram - rows[None] - rows[:, None] + rows.mean()[None, None]
    diagonal = (jnp.diag(gram) ** 2).sum() / n**2
    return u, gram / n, diagonal, symptoms_from(*observe(plan, x, s, None, n))


@partial(jax.jit, static_argnums=2)
def simulate(
    rng_key: PRNGKeyArray, matrix: Float[Array, "side side"], num_replicates: int
) -> Float[Array, " replicates"]:
    """Draws of zᵀMz − tr M."""

    def once(replicate: Array) -> Scalar:
        z = random.normal(random.fold_in(rng_key, replicate), matrix.shape[:1], matrix.dtype)
        # For many replicates at a time, a matrix product.
        return einsum("i,i->", einsum("i,ij->j", z, matrix), z)

    return lax.map(once, jnp.arange(num_replicates), batch_size=_BATCH) - jnp.trace(matrix)


# --- other norms ------------------------------------------------------------------------------------------


def null_root(data: Data, plan: FeaturePlan) -> tuple[Scalar, Float[Array, "features features"], Symptoms]:
    """V of the draws, and a root of the second moments of their features."""
    total, moments, seen = _feature_moments(plan.prepare(data), plan)
    squares, directions = jnp.linalg.eigh(moments[:-1, :-1])
    root = directions * jnp.sqrt(jnp.maximum(squares, 0))[None]
    return plan.squared_norm(total[:-1, None])[0], root, seen


@partial(jax.jit, static_argnums=3)
def simulate_norms(
    rng_key: PRNGKeyArray, plan: FeaturePlan, root: Float[Array, "features features"], num_replicates: int
) -> Float[Array, " replicates"]:
    """Draws of N(g)², g normal with the covariance whose root is given."""

    def once(replicate: Array) -> Scalar:
        z = random.normal(random.fold_in(rng_key, replicate), root.shape[:1], root.dtype)
        return plan.squared_norm(einsum("ij,j->i", root, z)[:, None])[0]

    return lax.map(once, jnp.arange(num_replicates), batch_size=_BATCH)
