"""What bases of polynomials share: multi-indices in an order, and mean Stein features from moments.

Notation as in the paper: x a draw, s = ∇log p(x), α a multi-index of degree 1 … r. A basis has a polynomial P_α for
each, and Stein features τ_α = A P_α, with A the second-order Langevin operator. The modules `monomials` and `hermite`
have them in three ways, each exact:

- `stein_features`: τ itself, by the product rule A(fg) = f·Ag + g·Af + 2∇f·∇g.
- `stein_moments` and `feature_recipe`: the mean of τ from the moment matrix M = Φᵀ[S, 1], Φ the basis up to degree
  r − 1, since τ is linear in (s, 1).
- `stein_kernel`: Δ(x, y) = Σ_α τ_α(x) τ_α(y) in closed form, at a cost that does not depend on how many there are.

**Order of the multi-indices.** One of degree k is written as the k variables that x^α multiplies, in ascending order:
x₀²x₃ is (0, 0, 3). Degrees ascend, and within a degree the words are ordered by their last letter, then by the one
before, and so on (graded colexicographic order). The words with letters below i are then the first of their degree,
whatever the dimension, and the place of a word is a sum of binomial coefficients.
"""

from collections.abc import Callable
from functools import lru_cache
from math import comb
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxpsd._core.blocks import product_over_draws, weighted, wide_product_over_draws
from jaxpsd._core.types import Block, Weights

Places = Int[np.ndarray, " words"]
Words = Int[np.ndarray, "words degree"]


Interactions = bool | int
"""Whether products of different variables are there: those of all degrees, none, or those up to a degree."""


def highest_product(order: int, interactions: Interactions) -> int:
    """The degree up to which products of different variables are there; beyond it there are powers of single ones."""
    return (order if interactions else 1) if isinstance(interactions, bool) else min(interactions, order)


def num_monomials(dim: int, order: int, *, interactions: Interactions = True) -> int:
    """J, the number of multi-indices of degree 1 … r."""
    mixed = highest_product(order, interactions)
    return comb(dim + mixed, mixed) - 1 + dim * (order - mixed)


@lru_cache(maxsize=256)
def growth(dim: int, degree: int) -> tuple[Places, Places]:
    """For each word of this degree, the place of the word without its last letter, and that letter."""
    # The words that letter i may follow are those with letters up to i: the first C(i + k − 1, k − 1).
    sizes = [comb(i + degree - 1, degree - 1) for i in range(dim)]
    parent = np.concatenate([np.arange(size, dtype=np.int32) for size in sizes])
    return parent, np.repeat(np.arange(dim, dtype=np.int32), sizes)


@lru_cache(maxsize=256)
def words(dim: int, degree: int) -> Words:
    """All words of one degree, a row each."""
    if degree == 0:
        return np.zeros((1, 0), np.int32)
    parent, letter = growth(dim, degree)
    return np.column_stack([words(dim, degree - 1)[parent], letter])


def place(word: Words) -> Places:
    """Place of each word within its degree: Σ_p C(v_p + p − 1, p), p = 1 … k."""
    place, largest = np.zeros(len(word), np.int64), int(word.max(initial=0))
    for p, letters in enumerate(word.T, start=1):
        place += np.array([comb(v + p - 1, p) for v in range(largest + 1)])[letters]
    return place


@lru_cache(maxsize=64)
def exponents(dim: int, order: int, *, interactions: Interactions = True) -> Int[np.ndarray, "monomials dim"]:
    """Multi-indices of degree 1 … r, a row each, in graded order."""
    mixed = highest_product(order, interactions)
    powers = [degree * np.eye(dim, dtype=np.int32) for degree in range(mixed + 1, order + 1)]
    rows = [np.zeros((1, dim), np.int32)]
    for degree in range(1, mixed + 1):
        parent, letter = growth(dim, degree)
        rows.append(rows[-1][parent])
        rows[-1][np.arange(len(letter)), letter] += 1
    return np.concatenate([*rows[1:], *powers])


def degrees(dim: int, order: int, *, interactions: Interactions = True) -> Int[np.ndarray, " monomials"]:
    """|α| of each multi-index, in graded order."""
    mixed = highest_product(order, interactions)
    counts = [comb(dim + k - 1, k) if k <= mixed else dim for k in range(1, order + 1)]
    return np.repeat(np.arange(1, order + 1), counts)


@lru_cache(maxsize=256)
def recurrence(dim: int, degree: int) -> tuple[Places, Places, Places, Places]:
    """For each word as in `growth`, how often its last letter is in the parent, and the parent's parent."""
    parent, letter = growth(dim, degree)
    repeats = (words(dim, degree - 1)[parent] == letter[:, None]).sum(axis=1)
    # Where the appended letter is in the parent at all, it is the parent's last, and dropping it gives
    # the parent's parent. Elsewhere the term has the coefficient zero, and any place will do.
    return parent, letter, repeats, growth(dim, degree - 1)[0][parent]


# --- mean features, from moments --------------------------------------------------------------------------


def num_moment_rows(dim: int, order: int) -> int:
    """Rows of the moment matrix: the polynomials of degree 0 … r − 1."""
    return comb(dim + order - 1, order - 1)


Growth = Callable[[Float[Array, "columns draws"], int], Float[Array, "rows draws"]]
"""From draws x̃ = (1, x), along the last axis, and a degree of at least 2 to the polynomials Φ up to it."""


def moment_matrix(x: Block, s: Block, weights: Weights, order: int, grow: Growth) -> Float[Array, "rows columns"]:
    """M = Φᵀ [S, 1], Σ over draws (weighted): one matrix product.

    With a constant coordinate x̃ = (1, x) in front, the polynomials of x up to degree r − 1 have words of x̃ of length
    exactly r − 1, and no degree has to be kept apart from the others.
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
    # Draws along the last axis: gathering polynomials then copies whole rows.
    return wide_product_over_draws(grow(augmented.T, order - 1), scores)


class FeatureRecipe(NamedTuple):
    """z̄ = Σ_j coefficient[:, j] · M[place[:, j]], with M flattened."""

    place: np.ndarray
    coefficient: np.ndarray


def feature_recipe_bytes(dim: int, order: int) -> int:
    """Memory of a recipe."""
    return num_monomials(dim, order) * (2 * order - 1) * (4 + 8)


def padded_words(dim: int, order: int) -> Words:
    """All words in terms of x̃, of length r, filled up in front with the constant's letter 0."""
    return np.concatenate([np.pad(words(dim, k) + 1, ((0, 0), (order - k, 0))) for k in range(1, order + 1)])


def mean_features(moments: Float[Array, "rows columns"], recipe: FeatureRecipe) -> Float[Array, " monomials"]:
    """z̄_α for each multi-index in graded order, from M already divided by the number of draws."""
    return (moments.ravel()[recipe.place] * jnp.asarray(recipe.coefficient, moments.dtype)).sum(axis=1)
