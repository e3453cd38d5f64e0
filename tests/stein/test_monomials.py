from math import comb

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpsd import stein_operator
from jaxpsd._stein import monomials

pytestmark = pytest.mark.usefixtures("x64")

slow = pytest.mark.slow

DIMS_AND_ORDERS = [(1, 1), (1, 6), (2, 5), (3, 3), (4, 2), (5, 1), pytest.param(6, 6, marks=slow)]

# Of the tests that compile programs, every run takes a middle case.
COMPILED = [(3, 3), *(pytest.param(*pair, marks=slow) for pair in [(1, 1), (1, 6), (2, 5), (4, 2), (5, 1), (6, 6)])]


def draws_and_scores(dim, n=7):
    keys = jax.random.split(jax.random.key(dim), 2)
    return jax.random.normal(keys[0], (n, dim)), jax.random.normal(keys[1], (n, dim))


def power(x, exponents):
    """x^α for each row α, in a way that can be differentiated at zero."""
    powers = [jnp.ones_like(x)]
    for _ in range(exponents.max()):
        powers.append(powers[-1] * x)
    table = jnp.stack(powers)
    result = jnp.ones(len(exponents))
    for i, alpha in enumerate(exponents.T):
        result = result * table[alpha, i]
    return result


@pytest.mark.parametrize(("dim", "order"), [*DIMS_AND_ORDERS, (20, 3)])
def test_exponents_are_all_multi_indices_once_in_graded_order(dim, order):
    exponents = monomials.exponents(dim, order)
    assert len(exponents) == comb(dim + order, dim) - 1 == monomials.num_monomials(dim, order)
    assert len(np.unique(exponents, axis=0)) == len(exponents)
    degrees = exponents.sum(axis=1)
    assert (np.diff(degrees) >= 0).all()
    assert (degrees == monomials.degrees(dim, order)).all()
    assert degrees.min() == 1
    assert degrees.max() == order


def test_exponents_within_a_degree_are_ordered_by_the_largest_variable():
    assert monomials.exponents(3, 2)[3:].tolist() == [
        [2, 0, 0], [1, 1, 0], [0, 2, 0], [1, 0, 1], [0, 1, 1], [0, 0, 2],
    ]  # fmt: skip


def test_the_place_of_a_word_is_where_it_stands():
    for dim, degree in [(1, 4), (3, 3), (5, 2), (7, 4)]:
        words = monomials.words(dim, degree)
        assert (monomials._place(words) == np.arange(len(words))).all()


@pytest.mark.parametrize(("dim", "order"), COMPILED)
@pytest.mark.parametrize("interactions", [True, False])
def test_recurrence_matches_the_operator_by_autodiff(dim, order, interactions):
    x, s = draws_and_scores(dim)
    x = x.at[0].set(0.0)
    exponents = monomials.exponents(dim, order, interactions=interactions)
    expected = jax.jit(jax.vmap(lambda x, s: stein_operator(lambda x: power(x, exponents), s)(x)))(x, s)
    features = monomials.stein_features(x, s, order, interactions=interactions)
    np.testing.assert_allclose(features, expected, rtol=1e-12, atol=1e-12 * float(jnp.abs(expected).max()))


@pytest.mark.parametrize(("dim", "order"), [*COMPILED, pytest.param(10, 4, marks=slow)])
def test_mean_features_from_moments_are_the_mean_of_the_features(dim, order):
    x, s = draws_and_scores(dim)
    weights = jax.random.uniform(jax.random.key(3), (len(x),))
    table = monomials.feature_recipe(dim, order)
    features = monomials.stein_features(x, s, order)
    scale = float(jnp.abs(features).max())
    for w in (None, weights):
        expected = features.sum(axis=0) if w is None else w @ features
        actual = monomials.mean_features(monomials.stein_moments(x, s, w, order), table)
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-13 * scale)


@pytest.mark.parametrize(("dim", "order"), COMPILED)
def test_dual_and_primal_agree_for_any_degree_weights(dim, order):
    (x, s), (y, u) = draws_and_scores(dim), draws_and_scores(dim, 5)
    weights = jax.random.uniform(jax.random.key(1), (order,), minval=0.5)
    per_monomial = weights[monomials.degrees(dim, order) - 1]
    left, right = monomials.stein_features(x, s, order), monomials.stein_features(y, u, order)
    expected = jnp.einsum("ik,k,jk->ij", left, per_monomial, right)
    actual = monomials.stein_kernel(x, s, y, u, weights)
    np.testing.assert_allclose(actual, expected, rtol=1e-11, atol=1e-13 * float(jnp.abs(expected).max()))


@pytest.mark.parametrize(("dim", "order"), COMPILED)
def test_the_diagonal_is_the_squared_length_of_the_features(dim, order):
    x, s = draws_and_scores(dim)
    expected = (monomials.stein_features(x, s, order) ** 2).sum(axis=1)
    np.testing.assert_allclose(monomials.stein_kernel_diagonal(x, s, jnp.ones(order)), expected, rtol=1e-11)


def test_tables_are_computed_once_for_each_dimension_and_order():
    assert monomials.feature_recipe(4, 3) is monomials.feature_recipe(4, 3)
    assert monomials.feature_recipe(4, 3).place.nbytes + monomials.feature_recipe(
        4, 3
    ).coefficient.nbytes == monomials.feature_recipe_bytes(4, 3)
