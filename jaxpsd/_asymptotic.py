"""The asymptotic null distribution of the U-statistic, n U → Σ_i ω_i (Z_i² − 1) (paper, section 3.2).

The ω_i are the eigenvalues of the covariance of the Stein features, J × J. Those other than zero are also the
eigenvalues of the Gram matrix divided by n, n × n, whichever is smaller.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax, random
from jax.tree_util import register_static
from jaxtyping import Array, Float, PRNGKeyArray

from jaxpsd._blocks import block_length, einsum, num_draws, sum_over_blocks
from jaxpsd._discrepancy import Form, all_scored, gram_of, in_coordinates_of
from jaxpsd._score import Scorer
from jaxpsd._types import PyTree, Scalar
from jaxpsd._watch import Watched, watch, watched

# Replicates simulated at a time.
_BATCH = 64


@register_static
@dataclass(frozen=True)
class Spectrum:
    """How to find the eigenvalues.

    from_features
        From the J × J matrix, and not from the n × n matrix.
    centred
        Of the covariance. Draws of the target itself need no centring: their features have mean zero.
    """

    from_features: bool
    centred: bool


def null_spectrum(
    scorer: Scorer, arrays: PyTree, form: Form, spectrum: Spectrum
) -> tuple[Scalar, Float[Array, " terms"], Watched]:
    """U of the draws, and the ω_i that belong to them."""
    scorer = in_coordinates_of(form, scorer)
    compute = _from_features if spectrum.from_features else _from_gram
    u, matrix, seen = compute(scorer, arrays, form, centred=spectrum.centred)
    # Not negative but for rounding.
    return u, jnp.maximum(jnp.linalg.eigvalsh(matrix), 0), seen


def _from_features(
    scorer: Scorer, arrays: PyTree, form: Form, *, centred: bool
) -> tuple[Scalar, Float[Array, "features features"], Watched]:
    n = num_draws(arrays)

    def on_block(block: PyTree, fresh: Float[Array, " block"] | None) -> tuple[PyTree, Array]:
        x, s = scorer(block)
        tau = form.features(x, s)
        tau = tau if fresh is None else tau * fresh[:, None]
        seen, largest = watch(form, x, s, fresh, n)
        return (tau.sum(axis=0), einsum("ni,nj->ij", tau, tau), seen), largest

    x, _ = jax.eval_shape(scorer, arrays)
    length = block_length(n, form.working_bytes(x), given=form.block_size)
    (total, products, seen), largest = sum_over_blocks(on_block, arrays, None, length)
    mean, moments = total / n, products / n
    u = (n * (mean**2).sum() - jnp.trace(moments)) / (n - 1)
    return u, moments - jnp.outer(mean, mean) if centred else moments, watched(seen, largest)


def _from_gram(
    scorer: Scorer, arrays: PyTree, form: Form, *, centred: bool
) -> tuple[Scalar, Float[Array, "draws draws"], Watched]:
    x, s = all_scored(scorer, arrays)
    gram, n = gram_of(form, x, s), len(x)
    rows = gram.mean(axis=0)
    u = (n * rows.mean() - jnp.trace(gram) / n) / (n - 1)
    if centred:
        gram = gram - rows[None] - rows[:, None] + rows.mean()[None, None]
    return u, gram / n, watched(*watch(form, x, s, None, n))


def simulate(rng_key: PRNGKeyArray, omega: Float[Array, " terms"], num_replicates: int) -> Float[Array, " replicates"]:
    """Draws of Σ_i ω_i (Z_i² − 1)."""

    def once(replicate: Array) -> Scalar:
        z = random.normal(random.fold_in(rng_key, replicate), omega.shape, omega.dtype)
        return einsum("i,i->", omega, z**2 - 1)

    return lax.map(once, jnp.arange(num_replicates), batch_size=_BATCH)
