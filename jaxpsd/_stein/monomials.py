"""Monomials of total degree 1 … r and their images under the Stein operator, three ways.

Notation as in the paper: x a draw, s = ∇log p(x), α a multi-index, P_α(x) = x^α, τ_α = A P_α, with A the
second-order Langevin operator. The three ways, each exact:

- `stein_features`: τ itself, by the product rule A(fg) = f·Ag + g·Af + 2∇f·∇g.
- `stein_moments` and `mean_features`: the mean of τ from the moment matrix M = Φᵀ[S, 1], Φ the monomials up to degree
  r − 1, since τ is linear in (s, 1).
- `stein_kernel`: Δ(x, y) = Σ_α τ_α(x) τ_α(y) in closed form, at a cost that does not depend on how many monomials there
  are.

**Order of the monomials.** A monomial of degree k is written as the k variables it multiplies, in ascending order:
x₀²x₃ is (0, 0, 3). Degrees ascend, and within a degree the words are ordered by their last letter, then by the one
before, and so on (graded colexicographic order). The words with letters below i are then the first of their degree,
whatever the dimension, and the place of a word is a sum of binomial coefficients.
"""

from functools import lru_cache, partial
from math import comb
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxpsd._core.blocks import einsum, product_over_draws, weighted, wide_product_over_draws
from jaxpsd._core.types import Block, Weights

Places = Int[np.ndarray, " words"]


def num_monomials(dim: int, order: int, *, interactions: bool = True) -> int:
    """J, the number of monomials of degree 1 … r."""
    return comb(dim + order, order) - 1 if interactions else dim * order


@lru_cache(maxsize=256)
def growth(dim: int, degree: int) -> tuple[Places, Places]:
    """For each word of this degree, the place of the word without its last letter, and that letter."""
    # The words that letter i may follow are those with letters up to i: the first C(i + k − 1, k − 1).
    sizes = [comb(i + degree - 1, degree - 1) for i in range(dim)]
    parent = np.concatenate([np.arange(size, dtype=np.int32) for size in sizes])
    return parent, np.repeat(np.arange(dim, dtype=np.int32), sizes)


@lru_cache(maxsize=256)
def words(dim: int, degree: int) -> Int[np.ndarray, "words degree"]:
    """All words of one degree, a row each."""
    if degree == 0:
        return np.zeros((1, 0), np.int32)
    parent, letter = growth(dim, degree)
    return np.column_stack([words(dim, degree - 1)[parent], letter])


def _place(word: Int[np.ndarray, "words degree"]) -> Places:
    """Place of each word within its degree: Σ_p C(v_p + p − 1, p), p = 1 … k."""
    place, largest = np.zeros(len(word), np.int64), int(word.max(initial=0))
    for p, letters in enumerate(word.T, start=1):
        place += np.array([comb(v + p - 1, p) for v in range(largest + 1)])[letters]
    return place


@lru_cache(maxsize=64)
def exponents(dim: int, order: int, *, interactions: bool = True) -> Int[np.ndarray, "monomials dim"]:
    """Multi-indices of degree 1 … r, a row each, in graded order."""
    if not interactions:
        return np.concatenate([degree * np.eye(dim, dtype=np.int32) for degree in range(1, order + 1)])
    rows = [np.zeros((1, dim), np.int32)]
    for degree in range(1, order + 1):
        parent, letter = growth(dim, degree)
        rows.append(rows[-1][parent])
        rows[-1][np.arange(len(letter)), letter] += 1
    return np.concatenate(rows[1:])


def degrees(dim: int, order: int, *, interactions: bool = True) -> Int[np.ndarray, " monomials"]:
    """|α| of each monomial, in graded order."""
    counts = [comb(dim + k - 1, k) if interactions else dim for k in range(1, order + 1)]
    return np.repeat(np.arange(1, order + 1), counts)


# --- τ, by recurrence -------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _recurrence(dim: int, degree: int) -> tuple[Places, Places, Places, Places]:
    """For each word as in `growth`, how often its last letter is in the parent, and the parent's parent."""
    parent, letter = growth(dim, degree)
    repeats = (words(dim, degree - 1)[parent] == letter[:, None]).sum(axis=1)
    # Where the appended letter is in the parent at all, it is the parent's last, and dropping it gives
    # the parent's parent. Elsewhere the term has the coefficient zero, and any place will do.
    return parent, letter, repeats, growth(dim, degree - 1)[0][parent]


def stein_features(x: Block, s: Block, order: int, *, interactions: bool = True) -> Float[Array, "block monomials"]:
    """τ_α(x) = A x^α for each monomial, in graded order.

    With α = β + e_i, i the last letter of α: m_α = x_i m_β and τ_α = x_i τ_β + s_i m_β + 2 β_i m_{β − e_i}.
    """
    if not interactions:
        return _features_without_interactions(x, s, order)
    dim = x.shape[1]
    # Draws along the last axis: gathering monomials then copies whole rows.
    x, s = x.T, s.T
    m_below, m, tau = jnp.ones_like(x[:1]), x, s
    features = [tau]
    for degree in range(2, order + 1):
        parent, i, repeats, grandparent = _recurrence(dim, degree)
        twice_beta = (2 * repeats)[:, None].astype(x.dtype)
        tau = x[i] * tau[parent] + s[i] * m[parent] + twice_beta * m_below[grandparent]
        m_below, m = m, x[i] * m[parent]
        features.append(tau)
    return jnp.concatenate(features).T


def _features_without_interactions(x: Block, s: Block, order: int) -> Float[Array, "block monomials"]:
    """A x_i^k = k(k − 1) x_i^{k−2} + k x_i^{k−1} s_i."""
    features, m_below, m = [s], jnp.zeros_like(x), jnp.ones_like(x)
    for k in range(2, order + 1):
        m_below, m = m, m * x
        features.append(k * (k - 1) * m_below + k * m * s)
    return jnp.concatenate(features, axis=1)


# --- the mean of τ, from moments --------------------------------------------------------------------------


def num_moment_rows(dim: int, order: int) -> int:
    """Rows of the moment matrix: the monomials of degree 0 … r − 1."""
    return comb(dim + order - 1, order - 1)


def stein_moments(x: Block, s: Block, weights: Weights, order: int) -> Float[Array, "rows columns"]:
    """M = Φᵀ [S, 1], Σ over draws (weighted): one matrix product.

    With a constant coordinate x̃ = (1, x) in front, the monomials of x up to degree r − 1 are those of
    x̃ of degree exactly r − 1, and no degree has to be kept apart from the others.
    """
    one = jnp.ones_like(x[:, :1])
    augmented = jnp.concatenate([one, x], axis=1)
    if order == 2:
        # The last column matters in its first row only, the number of draws, and copying S is most of the work.
        products = product_over_draws(augmented, weighted(s, weights))
        last = jnp.zeros_like(products[:, :1]).at[0, 0].set(len(s) if weights is None else weights.sum())
        return jnp.concatenate([products, last], axis=1)
    scores = weighted(jnp.concatenate([s, one], axis=1), weights)
    if order == 1:
        return product_over_draws(one, scores)
    # Draws along the last axis: gathering monomials then copies whole rows.
    phi = augmented.T
    for degree in range(2, order):
        parent, letter = growth(x.shape[1] + 1, degree)
        phi = phi[parent] * augmented.T[letter]
    return wide_product_over_draws(phi, scores)


class FeatureRecipe(NamedTuple):
    """z̄ = Σ_j coefficient[:, j] · M[place[:, j]], with M flattened."""

    place: np.ndarray
    coefficient: np.ndarray


def feature_recipe_bytes(dim: int, order: int) -> int:
    """Memory of `feature_recipe(dim, order)`."""
    return num_monomials(dim, order) * (2 * order - 1) * (4 + 2)


@lru_cache(maxsize=16)
def feature_recipe(dim: int, order: int) -> FeatureRecipe:
    """Which moments make up the mean of each Stein feature.

    z̄_α = Σ_i α_i M[α − e_i, i] + Σ_i α_i(α_i − 1) M[α − 2e_i, 1], where a letter that occurs α_i times
    in the word of α contributes once for each occurrence to the first sum, and 2·(occurrences before it)
    to the second.
    """
    columns = dim + 1
    # In terms of x̃ every α is a word of length r, filled up in front with the constant's letter 0.
    word = np.concatenate([np.pad(words(dim, k) + 1, ((0, 0), (order - k, 0))) for k in range(1, order + 1)])
    place, coefficient = [], []
    for p in range(order):
        row = _place(np.delete(word, p, axis=1))
        is_variable = word[:, p] > 0
        place.append(row * columns + np.where(is_variable, word[:, p] - 1, 0))
        coefficient.append(is_variable)
    for p in range(1, order):
        twice = word[:, p] == word[:, p - 1]
        before = (word[:, :p] == word[:, p : p + 1]).sum(axis=1)
        row = _place(np.pad(np.delete(word, (p - 1, p), axis=1), ((0, 0), (1, 0))))
        place.append(row * columns + dim)
        coefficient.append(np.where(twice & (word[:, p] > 0), 2 * before, 0))
    return FeatureRecipe(np.column_stack(place).astype(np.int32), np.column_stack(coefficient).astype(np.int16))


def mean_features(moments: Float[Array, "rows columns"], recipe: FeatureRecipe) -> Float[Array, " monomials"]:
    """z̄_α for each monomial in graded order, from M already divided by the number of draws."""
    return (moments.ravel()[recipe.place] * jnp.asarray(recipe.coefficient, moments.dtype)).sum(axis=1)


# --- the Stein kernel, in closed form ---------------------------------------------------------------------


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
