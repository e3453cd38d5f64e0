"""Replicates of mean features from the normal distribution that those by independent signs tend to.

Given the draws, with independent signs v_i, Σ_i v_i w_i τ(x_i) has mean zero and covariance Σ_i w_i² τ(x_i) τ(x_i)ᵀ.
From many draws, none of which rules the sum, it is normal. One product of the features with themselves then does for
all replicates, where signs take a product with each.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float, PRNGKeyArray

from jaxpsd._core.blocks import MEMORY_BUDGET, einsum
from jaxpsd._core.checks import readable_bytes
from jaxpsd._core.scores import Given
from jaxpsd._core.types import PyTree, static
from jaxpsd._discrepancies.plans import FeaturePlan, Plan

Matrix = Float[Array, "features features"]

# From so many draws on, levels are those with signs, also for heavy tails; and with so many replicates a feature, the
# product is less work than that with signs, and its root is none to speak of.
_ENOUGH_DRAWS, _REPLICATES_A_FEATURE = 10_000, 2

# What is added to each variance, as a share of it, so that a matrix without full rank has a root in spite of rounding.
_RIDGE = 4


@register_dataclass
@dataclass(frozen=True)
class Normal:
    """Normal replicates.

    key
        From `key_of_bits`.
    """

    key: PRNGKeyArray
    num_replicates: int = static()

    def of_share(self, arrays: PyTree) -> "Normal":
        """The same for every device: replicates are made from sums over all draws."""
        return self

    def columns(self, covariance: Matrix) -> Float[Array, "features replicates"]:
        """Normal vectors with a given covariance, one a replicate."""
        count, dtype = len(covariance), covariance.dtype
        variance = jnp.diag(covariance)
        scale = jnp.sqrt(jnp.where(variance > 0, variance, 1))
        # As correlations, so that features of small variance keep their digits beside those of large.
        ridge = _RIDGE * count * jnp.finfo(dtype).eps * jnp.eye(count, dtype=dtype)
        root = jnp.linalg.cholesky(covariance / scale[:, None] / scale[None] + ridge)
        normal = jax.random.normal(self.key, (count, self.num_replicates), dtype)
        return jnp.where(variance > 0, scale, variance)[:, None] * einsum("ij,jm->im", root, normal)


def check_normal(given: Given, plan: Plan) -> None:
    """Refuse normal replicates where there are no features, or too many."""
    if not isinstance(plan, FeaturePlan):
        raise ValueError(
            "method='gaussian' replicates mean features, and this discrepancy is summed over pairs of draws; use "
            "method='rademacher', or form='primal' of a PSD."
        )
    count, dtype = plan.num_features(given.draws.dim), given.draws.dtype
    # The sum over blocks, its rounding errors, a block's part of it and the root.
    size = 4 * count**2 * dtype.itemsize
    if size > MEMORY_BUDGET:
        raise ValueError(
            f"The covariance of {count:,} features takes {readable_bytes(size)}, more than the "
            f"{readable_bytes(MEMORY_BUDGET)} that temporaries may take. Use method='rademacher'."
        )


def suits(given: Given, plan: Plan, num_replicates: int) -> bool:
    """Whether independent draws are so many, and features so few, that nobody could tell normal replicates from signs.

    Weights may leave few draws of many.
    """
    if not isinstance(plan, FeaturePlan) or given.weights is not None or given.draws.num_draws < _ENOUGH_DRAWS:
        return False
    return _REPLICATES_A_FEATURE * plan.num_features(given.draws.dim) <= num_replicates
