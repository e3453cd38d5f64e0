import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpsd
from jaxpsd._core.draws import Draws

COVARIANCE = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, -0.3], [0.0, -0.3, 0.5]])
KERNELS = {
    "imq": jaxpsd.IMQ(),
    "imq with other settings": jaxpsd.IMQ(c=1.7, beta=-0.3),
    "gaussian": jaxpsd.Gaussian(bandwidth=1.3),
    "moments 1": jaxpsd.MomentKernel(1, location=[0.1, -0.2, 0.3]),
    "moments 2": jaxpsd.MomentKernel(2, location=[0.1, -0.2, 0.3], covariance=COVARIANCE),
    "moments 3": jaxpsd.MomentKernel(3, location=np.zeros(3)),
}


def double_loop(kernel, x, s):
    """k₀ of each pair from the derivatives of k, one after the other."""
    first, second = jax.grad(kernel, 0), jax.grad(kernel, 1)
    mixed = jax.jacfwd(second, 0)

    def stein(x, s, y, u):
        return jnp.trace(mixed(x, y)) + first(x, y) @ u + second(x, y) @ s + kernel(x, y) * (s @ u)

    stein = jax.jit(stein)
    return np.array([[stein(x[i], s[i], x[j], s[j]) for j in range(len(x))] for i in range(len(x))])


# A function of the distance and one of moments, with all of their settings given.
_FEW = ("imq with other settings", "moments 2")


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in _FEW else pytest.mark.slow) for name in KERNELS]
)
def test_stein_kernels_are_those_of_a_double_loop_with_autodiff(name):
    x, s = jax.random.normal(jax.random.key(0), (2, 5, 3))
    kernel = KERNELS[name]
    expected = double_loop(kernel, x, s)
    fitted = kernel.fitted_to(Draws(x), None, None)
    pairs, diagonal = jax.jit(lambda x, s: (fitted.stein(x, s, x, s), fitted.stein_diagonal(x, s)))(x, s)
    np.testing.assert_allclose(pairs, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(diagonal, np.diag(expected), rtol=1e-10)
    np.testing.assert_allclose(jaxpsd.KSD(kernel).gram(s, x), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("x64")
def test_any_function_has_the_stein_kernel_of_a_double_loop():
    x, s = jax.random.normal(jax.random.key(0), (2, 7, 3))
    kernel = lambda x, y: jnp.exp(-jnp.sum(jnp.sin(x - y) ** 2)) + (x @ y) ** 2  # noqa: E731
    np.testing.assert_allclose(jaxpsd.KSD(kernel).gram(s, x), double_loop(kernel, x, s), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: jaxpsd.IMQ(c=0.0), "`c` must be a positive number"),
        (lambda: jaxpsd.IMQ(c="wide"), "`c` must be a positive number"),
        (lambda: jaxpsd.IMQ(beta=0.5), "`beta` must be a float between -1 and 0"),
        (lambda: jaxpsd.Gaussian("mean"), "`bandwidth` must be one of 'median'"),
        (lambda: jaxpsd.Gaussian(-1.0), "`bandwidth` must be a positive number"),
        (lambda: jaxpsd.Gaussian(float("nan")), "`bandwidth` must be a positive number"),
        (lambda: jaxpsd.MomentKernel(0), "`order` must be an integer"),
        (lambda: jaxpsd.MomentKernel(location="median"), "`location` must be one of 'mean'"),
        (lambda: jaxpsd.Gaussian()(jnp.zeros(2), jnp.zeros(2)), "is settled by draws"),
        (lambda: jaxpsd.MomentKernel()(jnp.zeros(2), jnp.zeros(2)), "is settled by draws"),
    ],
)
def test_kernels_refuse_what_makes_no_sense(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (jaxpsd.MomentKernel(location=[0.0]), "`location` must have one entry"),
        (jaxpsd.MomentKernel(covariance=np.eye(2)), r"`covariance` must be \(3, 3\)"),
        (jaxpsd.MomentKernel(covariance=-np.eye(3)), "positive definite"),
    ],
)
def test_kernels_are_held_against_the_draws(kernel, message, normal_draws):
    x, s = normal_draws
    with pytest.raises(ValueError, match=message):
        jaxpsd.KSD(kernel)(s, x)


def test_a_median_of_zero_is_an_error():
    x = jnp.zeros((10, 2))
    with pytest.raises(ValueError, match="median distance between draws is zero"):
        jaxpsd.KSD(jaxpsd.Gaussian())(x, x)
    with pytest.raises(ValueError, match="at least two draws"):
        jaxpsd.KSD(jaxpsd.Gaussian())(x[:1], x[:1])


BAD_PARAMETERS = {
    "too large": (lambda: jaxpsd.IMQ(1e30), "`c` must be a length whose square is positive and finite in float32"),
    "too small": (lambda: jaxpsd.Gaussian(1e-30), "`bandwidth` must be a length whose square"),
    "several": (lambda: jaxpsd.IMQ(np.ones(2)), r"`c` must be one number; got shape \(2,\)"),
    "complex": (lambda: jaxpsd.MomentKernel(2, np.array([5j, 0, 0])), "`location` must be real"),
    "not finite": (lambda: jaxpsd.MomentKernel(2, np.array([np.nan, 0, 0])), "`location` must be finite"),
    "of too many": (lambda: jaxpsd.MomentKernel(2, np.ones((2, 2))), "one entry for each of 3"),
    "indefinite": (lambda: jaxpsd.MomentKernel(2, np.zeros(3), -np.eye(3)), "positive definite"),
}


@pytest.mark.parametrize("name", BAD_PARAMETERS)
def test_bad_parameters_are_explained(name, normal_draws):
    kernel, message = BAD_PARAMETERS[name]
    x, s = normal_draws
    with pytest.raises((TypeError, ValueError), match=message):
        jaxpsd.KSD(kernel())(s, x)


def test_a_moment_kernel_checks_its_parameters_when_called_by_itself():
    with pytest.raises(ValueError, match="positive definite"):
        jaxpsd.MomentKernel(2, np.zeros(2), -np.eye(2))(jnp.zeros(2), jnp.ones(2))
