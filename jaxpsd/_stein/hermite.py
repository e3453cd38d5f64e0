"""Hermite polynomials, orthonormal under the standard normal distribution, as a basis of the PSD.

With He_k the (probabilists') Hermite polynomials, P_α(x) = h_α(x) / |α| where h_α = Π_i He_{α_i}(x_i) / √α_i!. For a
standard normal target A h_α = −|α| h_α, so that the Stein features ψ_α = A h_α / |α| are uncorrelated with variance
one; for any other they still have mean zero.
"""

from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxpsd._core.blocks import einsum
from jaxpsd._core.types import Block, Weights
from jaxpsd._stein import monomials
from jaxpsd._stein.polynomials import (
    FeatureRecipe,
    Interactions,
    highest_product,
    moment_matrix,
    padded_words,
    recurrence,
)


@partial(jax.jit, static_argnames=("order", "interactions"))
def stein_features(
    x: Block, s: Block, order: int, *, interactions: Interactions = True
) -> Float[Array, "block polynomials"]:
    """ψ_α(x) = A h_α(x) / |α| for each multi-index, in graded order.

    With α = β + e_i, i the last letter of α: √α_i h_α = x_i h_β − √β_i h_{β − e_i}, and the product rule gives
    √α_i A h_α = x_i A h_β + s_i h_β + √β_i (2 h_{β − e_i} − A h_{β − e_i}).

    Traced once for all programs that have it as a part.
    """
    mixed, dim = highest_product(order, interactions), x.shape[1]
    powers = _power_features(x, s, order)[:, mixed * dim :]
    # Draws along the last axis: gathering polynomials then copies whole rows.
    x, s = x.T, s.T
    h_below, h = jnp.ones_like(x[:1]), x
    a_below, a = jnp.zeros_like(x[:1]), s
    features = [a]
    for degree in range(2, mixed + 1):
        parent, i, repeats, grandparent = recurrence(dim, degree)
        root, root_below = (np.sqrt(repeats + k)[:, None].astype(x.dtype) for k in (1, 0))
        grown = x[i] * a[parent] + s[i] * h[parent] + root_below * (2 * h_below - a_below)[grandparent]
        a_below, a = a, grown / root
        h_below, h = h, (x[i] * h[parent] - root_below * h_below[grandparent]) / root
        features.append(a / degree)
    return jnp.concatenate([jnp.concatenate(features).T, powers], axis=1)


def _power_features(x: Block, s: Block, order: int) -> Float[Array, "block polynomials"]:
    """A h_k / k = (√(k(k − 1)) h_{k−2} + √k h_{k−1} s) / k, for each coordinate."""
    features, h_below, h = [s], jnp.zeros_like(x), jnp.ones_like(x)
    for k in range(2, order + 1):
        h_below, h = h, (x * h - (k - 2) ** 0.5 * h_below) / (k - 1) ** 0.5
        features.append(((k - 1) / k) ** 0.5 * h_below + h * s / k**0.5)
    return jnp.concatenate(features, axis=1)


def stein_moments(x: Block, s: Block, weights: Weights, order: int) -> Float[Array, "rows columns"]:
    """M = Φᵀ [S, 1], with Φ the polynomials h_α up to degree r − 1."""

    def grow(augmented: Float[Array, "columns draws"], degree: int) -> Float[Array, "rows draws"]:
        phi_below, phi = jnp.ones_like(augmented[:1]), augmented
        for k in range(2, degree + 1):
            parent, letter, repeats, grandparent = recurrence(len(augmented), k)
            # The constant's powers are one.
            repeats = np.where(letter > 0, repeats, 0)
            root, root_below = (np.sqrt(repeats + k)[:, None].astype(augmented.dtype) for k in (1, 0))
            grown = (augmented[letter] * phi[parent] - root_below * phi_below[grandparent]) / root
            phi_below, phi = phi, grown
        return phi

    return moment_matrix(x, s, weights, order, grow)


@lru_cache(maxsize=16)
def feature_recipe(dim: int, order: int, dtype: np.dtype) -> FeatureRecipe:
    """Which moments make up the mean of each feature.

    |α| ψ̄_α = Σ_i √α_i M[α − e_i, i] + Σ_i √(α_i(α_i − 1)) M[α − 2e_i, 1]: moments in the same places as for monomials,
    whose coefficients sum to α_i and α_i(α_i − 1) over the occurrences of a letter.
    """
    place, coefficient = monomials.feature_recipe(dim, order, np.dtype(np.float64))
    word = padded_words(dim, order)
    count = (word[:, :, None] == word[:, None, :]).sum(axis=2)
    repeated = np.maximum(count * (count - 1), 1)[:, 1:]
    degree = (word > 0).sum(axis=1, keepdims=True)
    coefficient = coefficient / (np.sqrt(np.concatenate([count, repeated], axis=1)) * degree)
    return FeatureRecipe(place, coefficient.astype(dtype))


# --- the Stein kernel, in closed form ---------------------------------------------------------------------


def stein_kernel(
    x: Block, s: Block, y: Array, u: Array, degree_weights: Float[Array, " order"], pairing: str = "id,jd->ij"
) -> Array:
    """Δ(x, y) = Σ_{|α| ≤ r} ω_{|α|} ψ_α(x) ψ_α(y) for all pairs, s and u the scores at x and y.

    By Mehler's formula Σ_α t^{|α|} h_α(x) h_α(y) = G(t) = (1 − t²)^{−d/2} exp((t x·y − t²(‖x‖² + ‖y‖²)/2) / (1 − t²)).
    A_x A_y G = G·Q, where the power series Q(t) is made of inner products: with F = A_x G / G and E = A_y G / G,
    Q = F·E + t/(1 − t²)·R + 2d t²/(1 − t²)². Lists hold coefficients of t^k.
    """
    order, inner = len(degree_weights), partial(einsum, pairing)
    dim, are_pairs = x.shape[1], pairing.endswith("ij")

    def of_draw(left: Array, right: Array, axis: int) -> Array:
        """An inner product of what belongs to one side, along the axis of that side."""
        product = (left * right).sum(axis=1)
        return jnp.expand_dims(product, axis) if are_pairs else product

    a, sy, xu, su = inner(x, y), inner(s, y), inner(x, u), inner(s, u)
    b, sx, c, uy = of_draw(x, x, 1), of_draw(s, x, 1), of_draw(y, y, 0), of_draw(u, y, 0)
    zero = jnp.zeros_like(a)

    # log G' has the coefficients a (odd) and d − k(b + c)/2 (even), from which those of G follow by G' = (log G)' G.
    g = [jnp.ones_like(a)]
    for k in range(1, order + 1):
        terms = ((j * a if j % 2 else dim - j * (b + c) / 2) * g[k - j] for j in range(1, k + 1))
        g.append(sum(terms, zero) / k)

    f, e, r = [zero], [zero], [su]
    for k in range(1, order + 1):
        j = k // 2
        if k % 2:
            f.append(sy - 2 * j * a)
            e.append(xu - 2 * j * a)
            r.append(2 * (sx + uy) - 4 * j * (b + c))
        else:
            f.append(j * c + (j - 1) * b - dim - sx)
            e.append(j * b + (j - 1) * c - dim - uy)
            r.append(4 * (k - 1) * a - 2 * (sy + xu))
    q, kernel = [zero], zero
    for k in range(1, order + 1):
        q_k = sum((f[j] * e[k - j] for j in range(1, k)), zero) + sum(r[k - 1 - 2 * j] for j in range((k + 1) // 2))
        q.append(q_k + (dim * k if k % 2 == 0 else 0))
        kernel += degree_weights[k - 1] / k**2 * sum((g[k - j] * q[j] for j in range(1, k + 1)), zero)
    return kernel


def stein_kernel_diagonal(x: Block, s: Block, degree_weights: Float[Array, " order"]) -> Float[Array, " block"]:
    """Δ(x, x) = ‖ψ(x)‖² for each draw."""
    return stein_kernel(x, s, x, s, degree_weights, "id,id->i")
