"""Tests that the adaptive one is compared with, each from scores and draws to a p-value.

All go by Rademacher signs. Those that the library does not have are written out here.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

import jaxpsd
from jaxpsd._core.checks import check_samples
from jaxpsd._stein.pairs import median_distance

Test = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]

ORDERS = (1, 2, 3, 4)
REPLICATES = 500

# Bandwidths of the aggregated KSD, in units of the median distance between draws.
BANDWIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)


def raw_orders(key: jax.Array, scores: jax.Array, x: jax.Array) -> jax.Array:
    """The paper's PSD, of each order."""
    psd = jaxpsd.PSD(ORDERS[-1])
    return jaxpsd.gof_test(key, psd, scores, x, method="rademacher", num_replicates=REPLICATES, orders=ORDERS).p_value


def orthonormal_orders(key: jax.Array, scores: jax.Array, x: jax.Array) -> jax.Array:
    """The orthonormal PSD of each order, in the coordinates of the target."""
    psd = jaxpsd.PSD(ORDERS[-1], basis="hermite", transform="target")
    return jaxpsd.gof_test(key, psd, scores, x, method="rademacher", num_replicates=REPLICATES, orders=ORDERS).p_value


def adaptive(key: jax.Array, scores: jax.Array, x: jax.Array) -> jax.Array:
    return jaxpsd.adaptive_test(key, scores, x, method="rademacher", num_replicates=1000).p_value


def imq_ksd(key: jax.Array, scores: jax.Array, x: jax.Array) -> jax.Array:
    return jaxpsd.gof_test(
        key, jaxpsd.KSD(), scores, x, method="rademacher", num_replicates=REPLICATES
    ).p_value  # fmt: skip


def aggregated_ksd(kernels: Sequence[jaxpsd.Gaussian | jaxpsd.IMQ]) -> Test:
    """KSD of several kernels, by the most significant."""

    def test(key: jax.Array, scores: jax.Array, x: jax.Array) -> jax.Array:
        several = {f"kernel {k}": jaxpsd.KSD(kernel) for k, kernel in enumerate(kernels)}
        options = {"method": "rademacher", "num_replicates": REPLICATES}
        return jaxpsd.aggregate_test(key, several, scores, x, **options).p_value

    return test


def gaussian_ksds(key: jax.Array, scores: jax.Array, x: jax.Array) -> jax.Array:
    """KSD aggregated over Gaussian kernels."""
    median = median_distance(check_samples(x), None)
    return aggregated_ksd([jaxpsd.Gaussian(factor * median) for factor in BANDWIDTHS])(key, scores, x)


def with_signs(key: jax.Array, n: int) -> jax.Array:
    """The observed sum, and replicates of it: a row of ones, then of signs."""
    signs = jax.random.rademacher(key, (REPLICATES, n), jnp.float32)
    return jnp.concatenate([jnp.ones((1, n)), signs])


def ranks(values: jax.Array) -> jax.Array:
    """The p-value of each column among all, row by row."""
    return jax.vmap(lambda row: len(row) - jnp.searchsorted(jnp.sort(row), row * (1 - 1e-5)))(values) / values.shape[1]


def smallest_of_two(key: jax.Array, scores: jax.Array, x: jax.Array) -> jax.Array:
    """The first recipe for an adaptive test: the smaller p-value of raw order 4 and of the largest mean feature.

    Features of the second are those of orders up to 2, each divided by its root mean square. The smaller p-value is
    ranked among those of the replicates.
    """
    signs = with_signs(key, len(x))
    gram = jaxpsd.PSD(4, form="dual").gram(scores, x)
    features = jaxpsd.PSD(2).features(scores, x)
    features /= jnp.sqrt((features**2).mean(axis=0, keepdims=True))
    values = jnp.stack([((signs @ gram) * signs).sum(axis=1), jnp.abs(signs @ features).max(axis=1)])
    smallest = ranks(values).min(axis=0)
    return (smallest <= smallest[0]).mean()


def reweighted(key: jax.Array, scores: jax.Array, x: jax.Array) -> jax.Array:
    """Order 2 in the metric of its own covariance, z̄ᵀ(Σ̂ + λI)⁻¹z̄ with λ a hundredth of the mean variance.

    Features are divided by their root mean squares first, so that λ has no units. Signs leave Σ̂, taken around zero, as
    it is.
    """
    signs = with_signs(key, len(x))
    features = jaxpsd.PSD(2).features(scores, x)
    features /= jnp.sqrt((features**2).mean(axis=0, keepdims=True))
    covariance = features.T @ features / len(x)
    factor = jnp.linalg.cholesky(covariance + 0.01 * jnp.eye(len(covariance)))
    sums = jax.scipy.linalg.solve_triangular(factor, (signs @ features).T, lower=True)
    return ranks((sums**2).sum(axis=0)[None])[0, 0]


def effective_draws(result: jaxpsd.GofResult, n: int) -> float:
    """As the adaptive test counts them: all, unless they are clearly dependent."""
    return float(n) if result.method == "rademacher" else n / float(result.autocorrelation_time)


RIVALS: dict[str, Test] = {
    "old adaptive": smallest_of_two,
    "raw": raw_orders,
    "orthonormal": orthonormal_orders,
    "reweighted": reweighted,
    "IMQ KSD": imq_ksd,
    "KSDs": gaussian_ksds,
}
"""By name; "raw" and "orthonormal" give a p-value for each order."""


def names_of(tests: Sequence[str]) -> list[str]:
    """What the columns are called, one for each p-value."""
    several = ("raw", "orthonormal")
    return [name for test in tests for name in ([f"{test} {r}" for r in ORDERS] if test in several else [test])]
