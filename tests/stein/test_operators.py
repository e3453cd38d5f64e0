import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpsd

pytestmark = pytest.mark.usefixtures("x64")


def logdensity(x):
    return -0.25 * jnp.sum(x**4) + 0.3 * jnp.prod(x)


POSITION = np.array([0.3, -1.2, 0.7])


def test_second_order_is_the_laplacian_plus_gradient_times_score():
    def fn(x):
        return jnp.stack([jnp.sin(x[0]) * x[1] ** 2, jnp.exp(x @ x / 5), x[2]])

    @jax.jit
    def by_autodiff(x):
        gradient, hessian = jax.jacrev(fn)(x), jax.hessian(fn)(x)
        return jnp.trace(hessian, axis1=1, axis2=2) + gradient @ jax.grad(logdensity)(x)

    expected = by_autodiff(POSITION)
    np.testing.assert_allclose(jaxpsd.stein_operator(fn, logdensity)(POSITION), expected, rtol=1e-13)
    np.testing.assert_allclose(jaxpsd.stein_operator(lambda x: fn(x)[1], logdensity)(POSITION), expected[1], rtol=1e-13)


def test_first_order_of_a_gradient_is_second_order_of_the_function():
    def fn(x):
        return jnp.sum(jnp.cos(x)) * x[0]

    first = jaxpsd.stein_operator(jax.grad(fn), logdensity, order=1)(POSITION)
    second = jaxpsd.stein_operator(fn, logdensity)(POSITION)
    np.testing.assert_allclose(first, second, rtol=1e-13)


def test_a_score_stands_for_the_log_density():
    score = jax.grad(logdensity)(POSITION)
    for order, fn in ((1, lambda x: x**2), (2, jnp.sum)):
        np.testing.assert_allclose(
            jaxpsd.stein_operator(fn, score, order=order)(POSITION),
            jaxpsd.stein_operator(fn, logdensity, order=order)(POSITION),
            rtol=1e-14,
        )


def test_positions_and_values_may_be_pytrees():
    position = {"a": jnp.array(0.5), "b": jnp.array([1.0, -2.0])}
    flat = jnp.array([0.5, 1.0, -2.0])
    fn = lambda p: {"product": p["a"] * p["b"], "sum": p["a"] + p["b"].sum()}  # noqa: E731
    result = jaxpsd.stein_operator(fn, lambda p: -(p["a"] ** 2) - jnp.sum(p["b"] ** 2))(position)
    expected = jaxpsd.stein_operator(lambda x: x[0] * x[1:], lambda x: -jnp.sum(x**2))(flat)
    np.testing.assert_allclose(result["product"], expected)
    assert result["sum"].shape == ()


@pytest.mark.parametrize("order", [1, 2])
def test_the_mean_under_the_target_is_zero(order):
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    x = jnp.asarray(nodes)[:, None]
    fn = (lambda x: x**3 + 2 * x**2) if order == 1 else (lambda x: x[0] ** 5 + x[0] ** 4)
    values = jax.vmap(jaxpsd.stein_operator(fn, lambda x: -0.5 * jnp.sum(x**2), order=order))(x)
    assert abs(weights @ values / weights.sum()) < 1e-10


@pytest.mark.parametrize(
    ("fn", "found"),
    [
        (lambda x: None, "nothing"),
        (lambda x: (), "nothing"),
        (lambda x: 1, r"int64 of shape \(\)"),
        (jnp.argmax, "int64"),
        (lambda x: x > 0, r"bool of shape \(3,\)"),
        (lambda x: x + 1j, "complex128"),
        (lambda x: "a", "str"),
        (lambda x: {"a": x, "b": object()}, r"float64 of shape \(3,\), object"),
    ],
)
@pytest.mark.parametrize("order", [1, 2])
def test_what_functions_must_return_is_said(order, fn, found):
    with pytest.raises(TypeError, match=f"`fn` must return floating-point numbers or arrays; it returned {found}"):
        jaxpsd.stein_operator(fn, logdensity, order=order)(POSITION)


@pytest.mark.parametrize(
    ("fn", "error"),
    [
        (lambda: 1.0, TypeError),
        (lambda x: x[0] if x[0] > 0 else x[1], jax.errors.TracerBoolConversionError),
        (lambda x: np.asarray(x), jax.errors.TracerArrayConversionError),
        (lambda x: {}["missing"], KeyError),
    ],
)
def test_functions_that_fail_are_told_what_they_were_called_with(fn, error):
    with pytest.raises(error) as caught:
        jaxpsd.stein_operator(fn, logdensity)(POSITION)
    assert "`fn` was called for one draw or pair of draws, of shape (3,)" in "".join(caught.value.__notes__)


def test_what_is_not_finite_is_named():
    bad = np.array([0.3, np.nan, 0.7])
    with pytest.raises(ValueError, match="`position` is not finite at coordinate 1: nan"):
        jaxpsd.stein_operator(jnp.sum, POSITION)(bad)
    with pytest.raises(ValueError, match="The score ∇log p is not finite at coordinate 1: nan"):
        jaxpsd.stein_operator(jnp.sum, bad)(POSITION)
    inside = lambda p: jnp.where(p["a"] > 0, -p["a"], -jnp.inf)  # noqa: E731
    operated = jaxpsd.stein_operator(lambda p: p["a"], inside)
    with pytest.raises(ValueError, match=r"not finite at `a`: nan\. Is the position outside the support\?"):
        operated({"a": -1.0})
    assert jnp.isnan(jax.jit(operated)({"a": -1.0}))


def test_mistakes_are_explained():
    for order in (3, np.array([1, 2]), True, "2"):
        with pytest.raises(ValueError, match="must be 2"):
            jaxpsd.stein_operator(jnp.sum, logdensity, order=order)
    for empty in ({}, np.zeros(0)):
        with pytest.raises(ValueError, match="`position` is empty"):
            jaxpsd.stein_operator(jnp.sum, logdensity)(empty)
    with pytest.raises(TypeError, match="`position` must be an array of floats; got str"):
        jaxpsd.stein_operator(jnp.sum, logdensity)("ab")
    with pytest.raises(TypeError, match="`target` must be floating point; got complex128"):
        jaxpsd.stein_operator(jnp.sum, POSITION + 1j)(POSITION)
    with pytest.raises(TypeError, match="function of one position"):
        jaxpsd.stein_operator(3.0, logdensity)
    with pytest.raises(ValueError, match="structure of the position"):
        jaxpsd.stein_operator(jnp.sum, logdensity, order=1)(POSITION)
    with pytest.raises(ValueError, match=r"jax\.vmap"):
        jaxpsd.stein_operator(jnp.sum, jnp.ones((5, 3)))(POSITION)
    with pytest.raises(TypeError, match="floating point"):
        jaxpsd.stein_operator(jnp.sum, logdensity)(jnp.arange(3))
    with pytest.raises(TypeError, match="must return a scalar"):
        jaxpsd.stein_operator(jnp.sum, lambda x: -(x**2))(POSITION)
