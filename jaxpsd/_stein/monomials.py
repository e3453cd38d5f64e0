"""Monomials P_α(x) = x^α, the paper's basis: Stein features, their mean from moments, and their kernel."""

from functools import lru_cache, partial
from math import comb

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxpsd._core.blocks import einsum
from jaxpsd._core.types import Block, Weights
from jaxpsd._stein.polynomials import (
    FeatureRecipe,
    Interactions,
    growth,
    highest_product,
    moment_matrix,
    padded_words,
    place,
    recurrence,
)


def stein_features(
    x: Block, s: Block, order: int, *, interactions: Interactions = True
) -> Float[Array, "block monomials"]:
    """τ_α(x) = A x^α for each monomial, in graded order.

    With α = β + e_i, i the last letter of α: m_α = x_i m_β and τ_α = x_i τ_β + s_i m_β + 2 β_i m_{β − e_i}.
    """
    mixed, dim = highest_product(order, interactions), x.shape[1]
    powers = _power_features(x, s, order)[:, mixed * dim :]
    # Draws along the last axis: gathering monomials then copies whole rows.
    x, s = x.T, s.T
    m_below, m, tau = jnp.ones_like(x[:1]), x, s
    features = [tau]
    for degree in range(2, mixed + 1):
        parent, i, repeats, grandparent = recurrence(dim, degree)
        twice_beta = (2 * repeats)[:, None].astype(x.dtype)
        tau = x[i] * tau[parent] + s[i] * m[parent] + twice_beta * m_below[grandparent]
        m_below, m = m, x[i] * m[parent]
        features.append(tau)
    return jnp.concatenate([jnp.concatenate(features).T, powers], axis=1)


def _power_features(x: Block, s: Block, order: int) -> Float[Array, "block monomials"]:
    """A x_i^k = k(k − 1) x_i^{k−2} + k x_i^{k−1} s_i."""
    features, m_below, m = [s], jnp.zeros_like(x), jnp.ones_like(x)
    for k in range(2, order + 1):
        m_below, m = m, m * x
        features.append(k * (k - 1) * m_below + k * m * s)
    return jnp.concatenate(features, axis=1)


def stein_moments(x: Block, s: Block, weights: Weights, order: int) -> Float[Array, "rows columns"]:
    """M = Φᵀ [S, 1], with Φ the monomials up to degree r − 1."""

    def grow(augmented: Float[Array, "columns draws"], degree: int) -> Float[Array, "rows draws"]:
        phi = augmented
        for k in range(2, degree + 1):
            parent, letter = growth(len(augmented), k)
            phi = phi[parent] * augmented[letter]
        return phi

    return moment_matrix(x, s, weights, order, grow)


@lru_cache(maxsize=16)
def feature_recipe(dim: int, order: int, dtype: np.dtype) -> FeatureRecipe:
    """Which moments make up the mean of each Stein feature.

    z̄_α = Σ_i α_i M[α − e_i, i] + Σ_i α_i(α_i − 1) M[α − 2e_i, 1], where a letter that occurs α_i times
    in the word of α contributes once for each occurrence to the first sum, and 2·(occurrences before it)
    to the second.
    """
    columns = dim + 1
    word = padded_words(dim, order)
    places, coefficient = [], []
    for p in range(order):
        row = place(np.delete(word, p, axis=1))
        is_variable = word[:, p] > 0
        places.append(row * columns + np.where(is_variable, word[:, p] - 1, 0))
        coefficient.append(is_variable)
    for p in range(1, order):
        twice = word[:, p] == word[:, p - 1]
        before = (word[:, :p] == word[:, p : p + 1]).sum(axis=1)
        row = place(np.pad(np.delete(word, (p - 1, p), axis=1), ((0, 0), (1, 0))))
        places.append(row * columns + dim)
        coefficient.append(np.where(twice & (word[:, p] > 0), 2 * before, 0))
    return FeatureRecipe(np.column_stack(places).astype(np.int32), np.column_stack(coefficient).astype(dtype))


def stein_kernel(
    x: Block, s: Block, y: Array, u: Array, degree_weights: Float[Array, " order"], pairing: str = "id,jd->ij"
) -> Array:
    """Δ(x, y) = Σ_{|α| ≤ r} ω_{|α|} τ_α(x) τ_α(y) for all pairs, s and u the scores at x and y.

    Σ_{|α| = k} x^α y^α is the complete homogeneous polynomial h_k of t_i = x_i y_i, with the generating
    function H(z) = Π_i 1/(1 − z t_i). A_x A_y H is H times a power series whose coefficients E_m are made
    of inner products over coordinates.
    """
    order, inner = len(degree_weights), partial(einsum, pairing)
    a, b, c, p = (dict[int, Array]() for _ in range(4))
    # Powers x^{m−2}, x^{m−1} and x^m while m runs.
    x_2, x_1, x_0 = jnp.zeros_like(x), jnp.ones_like(x), x
    y_2, y_1, y_0 = jnp.zeros_like(y), jnp.ones_like(y), y
    for m in range(1, order + 1):
        c[m] = inner(s * x_1, m * u * y_1 + 4 * comb(m, 2) * y_2)
        if m > 1:
            c[m] += inner(x_2, 4 * comb(m, 2) * u * y_1 + (4 * comb(m + 1, 3) + 16 * comb(m, 3)) * y_2)
        if m < order:
            p[m] = inner(x_0, y_0)
            a[m] = inner(s * x_1 + 2 * (m - 1) * x_2, y_0)
            b[m] = inner(x_0, u * y_1 + 2 * (m - 1) * y_2)
        x_2, x_1, x_0 = x_1, x_0, x_0 * x
        y_2, y_1, y_0 = y_1, y_0, y_0 * y

    h = [jnp.ones_like(c[1])]
    for m in range(1, order):
        h.append(sum((p[k] * h[m - k] for k in range(2, m + 1)), p[1] * h[m - 1]) / m)

    total = jnp.zeros_like(c[1])
    for m in range(1, order + 1):
        e_m = c[m] + sum(a[k] * b[m - k] for k in range(1, m))
        total += e_m * sum(degree_weights[m + k - 1] * h[k] for k in range(order - m + 1))
    return total


def stein_kernel_diagonal(x: Block, s: Block, degree_weights: Float[Array, " order"]) -> Float[Array, " block"]:
    """Δ(x, x) = ‖τ(x)‖² for each draw."""
    return stein_kernel(x, s, x, s, degree_weights, "id,id->i")
