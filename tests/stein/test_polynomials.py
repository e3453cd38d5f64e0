from math import comb, factorial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpsd import stein_operator
from jaxpsd._stein import hermite, monomials, polynomials

pytestmark = pytest.mark.usefixtures("x64")

slow = pytest.mark.slow

BASES = pytest.mark.parametrize("basis", [monomials, hermite], ids=["monomials", "hermite"])

DIMS_AND_ORDERS = [(1, 1), (1, 6), (2, 5), (3, 3), (4, 2), (5, 1), pytest.param(6, 6, marks=slow)]

# Of the tests that compile programs, every run takes a middle case.
COMPILED = [(3, 3), *(pytest.param(*pair, marks=slow) for pair in [(1, 1), (1, 6), (2, 5), (4, 2), (5, 1), (6, 6)])]


def draws_and_scores(dim, n=7):
    keys = jax.random.split(jax.random.key(dim), 2)
    return jax.random.normal(keys[0], (n, dim)), jax.random.normal(keys[1], (n, dim))


class Compiled:
    """The functions of a basis in one program each, as they are called: by themselves each operation would be one."""

    def __init__(self, basis):
        self.stein_features = jax.jit(basis.stein_features, static_argnames=("order", "interactions"))
        self.stein_moments = jax.jit(basis.stein_moments, static_argnames="order")
        self.stein_kernel = jax.jit(basis.stein_kernel)
        self.stein_kernel_diagonal = jax.jit(basis.stein_kernel_diagonal)


compiled = {basis: Compiled(basis) for basis in (monomials, hermite)}


def values(basis, x, exponents):
    """P_α(x) for each row α, in a way that can be differentiated at zero."""
    powers = [jnp.ones_like(x), x]
    for k in range(1, exponents.max()):
        # He_{k+1} = x He_k − k He_{k−1}, by definition.
        powers.append(powers[-1] * x - (k * powers[-2] if basis is hermite else 0))
    table = jnp.stack(powers)
    result = jnp.ones(len(exponents))
    for i, alpha in enumerate(exponents.T):
        result = result * table[alpha, i]
    if basis is monomials:
        return result
    factorials = np.array([[factorial(k) for k in alpha] for alpha in exponents], np.float64)
    return result / (exponents.sum(axis=1) * np.sqrt(factorials.prod(axis=1)))


@pytest.mark.parametrize(("dim", "order"), [*DIMS_AND_ORDERS, (20, 3)])
def test_exponents_are_all_multi_indices_once_in_graded_order(dim, order):
    exponents = polynomials.exponents(dim, order)
    assert len(exponents) == comb(dim + order, dim) - 1 == polynomials.num_monomials(dim, order)
    assert len(np.unique(exponents, axis=0)) == len(exponents)
    degrees = exponents.sum(axis=1)
    assert (np.diff(degrees) >= 0).all()
    assert (degrees == polynomials.degrees(dim, order)).all()
    assert degrees.min() == 1
    assert degrees.max() == order


def test_exponents_within_a_degree_are_ordered_by_the_largest_variable():
    assert polynomials.exponents(3, 2)[3:].tolist() == [
        [2, 0, 0], [1, 1, 0], [0, 2, 0], [1, 0, 1], [0, 1, 1], [0, 0, 2],
    ]  # fmt: skip


def test_the_place_of_a_word_is_where_it_stands():
    for dim, degree in [(1, 4), (3, 3), (5, 2), (7, 4)]:
        words = polynomials.words(dim, degree)
        assert (polynomials.place(words) == np.arange(len(words))).all()


@BASES
@pytest.mark.parametrize(("dim", "order"), COMPILED)
@pytest.mark.parametrize("interactions", [True, False, 2])
def test_recurrence_matches_the_operator_by_autodiff(basis, dim, order, interactions):
    x, s = draws_and_scores(dim)
    x = x.at[0].set(0.0)
    exponents = polynomials.exponents(dim, order, interactions=interactions)
    assert len(exponents) == polynomials.num_monomials(dim, order, interactions=interactions)
    assert (exponents.sum(axis=1) == polynomials.degrees(dim, order, interactions=interactions)).all()
    expected = jax.jit(jax.vmap(lambda x, s: stein_operator(lambda x: values(basis, x, exponents), s)(x)))(x, s)
    features = compiled[basis].stein_features(x, s, order, interactions=interactions)
    np.testing.assert_allclose(features, expected, rtol=1e-12, atol=1e-12 * float(jnp.abs(expected).max()))


@BASES
@pytest.mark.parametrize(("dim", "order"), [*COMPILED, pytest.param(10, 4, marks=slow)])
def test_mean_features_from_moments_are_the_mean_of_the_features(basis, dim, order):
    x, s = draws_and_scores(dim)
    weights = jax.random.uniform(jax.random.key(3), (len(x),))
    table = basis.feature_recipe(dim, order, np.dtype(np.float64))
    features = compiled[basis].stein_features(x, s, order)
    scale = float(jnp.abs(features).max())
    for w in (None, weights):
        expected = features.sum(axis=0) if w is None else w @ features
        actual = polynomials.mean_features(compiled[basis].stein_moments(x, s, w, order), table)
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-13 * scale)


@BASES
@pytest.mark.parametrize(("dim", "order"), COMPILED)
def test_dual_and_primal_agree_for_any_degree_weights(basis, dim, order):
    (x, s), (y, u) = draws_and_scores(dim), draws_and_scores(dim, 5)
    weights = jax.random.uniform(jax.random.key(1), (order,), minval=0.5)
    per_monomial = weights[polynomials.degrees(dim, order) - 1]
    left, right = compiled[basis].stein_features(x, s, order), compiled[basis].stein_features(y, u, order)
    expected = jnp.einsum("ik,k,jk->ij", left, per_monomial, right)
    actual = compiled[basis].stein_kernel(x, s, y, u, weights)
    np.testing.assert_allclose(actual, expected, rtol=1e-11, atol=1e-12 * float(jnp.abs(expected).max()))


@BASES
@pytest.mark.parametrize(("dim", "order"), COMPILED)
def test_the_diagonal_is_the_squared_length_of_the_features(basis, dim, order):
    x, s = draws_and_scores(dim)
    expected = (compiled[basis].stein_features(x, s, order) ** 2).sum(axis=1)
    np.testing.assert_allclose(compiled[basis].stein_kernel_diagonal(x, s, jnp.ones(order)), expected, rtol=1e-10)


def test_hermite_features_of_a_normal_target_are_minus_the_orthonormal_polynomials():
    x, _ = draws_and_scores(3, 50)
    exponents = polynomials.exponents(3, 4)
    expected = jax.jit(jax.vmap(lambda x: values(hermite, x, exponents)))(x) * exponents.sum(axis=1)[None]
    np.testing.assert_allclose(compiled[hermite].stein_features(x, -x, 4), -expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("order", [1, 4, 6])
def test_hermite_features_of_a_normal_target_are_uncorrelated_with_variance_one(order):
    # By quadrature that is exact for polynomials of twice the order, in each of two dimensions.
    nodes, weights = np.polynomial.hermite_e.hermegauss(2 * order + 2)
    x = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    w = np.outer(weights, weights).ravel() / weights.sum() ** 2
    psi = np.asarray(compiled[hermite].stein_features(jnp.asarray(x), -jnp.asarray(x), order))
    np.testing.assert_allclose(psi.T @ (w[:, None] * psi), np.eye(psi.shape[1]), atol=1e-10)


@BASES
def test_tables_are_computed_once_for_each_dimension_and_order(basis):
    table = basis.feature_recipe(4, 3, np.dtype(np.float64))
    assert table is basis.feature_recipe(4, 3, np.dtype(np.float64))
    assert table.place.nbytes + table.coefficient.nbytes <= polynomials.feature_recipe_bytes(4, 3)
