import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpsd
from jaxpsd import _kernels
from jaxpsd._draws import Draws

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


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", KERNELS)
def test_stein_kernels_are_those_of_a_double_loop_with_autodiff(name):
    x, s = jax.random.normal(jax.random.key(0), (2, 5, 3))
    kernel = KERNELS[name]
    expected = double_loop(kernel, x, s)
    settled = kernel.settled(Draws(x), None, None)
    np.testing.assert_allclose(settled.stein(x, s, x, s), expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(settled.stein_diagonal(x, s), np.diag(expected), rtol=1e-10)
    np.testing.assert_allclose(jaxpsd.KSD(kernel).gram(s, x), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("x64")
def test_any_function_has_the_stein_kernel_of_a_double_loop():
    x, s = jax.random.normal(jax.random.key(0), (2, 7, 3))
    kernel = lambda x, y: jnp.exp(-jnp.sum(jnp.sin(x - y) ** 2)) + (x @ y) ** 2  # noqa: E731
    np.testing.assert_allclose(jaxpsd.KSD(kernel).gram(s, x), double_loop(kernel, x, s), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("length", [1e-4, 1e4], ids=["by differences", "by products"])
def test_pairs_are_the_same_both_ways(length):
    x, s, y, u = jax.random.normal(jax.random.key(1), (4, 6, 3))
    pairs = _kernels.pairs_of(x, s, y, u, length)
    apart = x[:, None] - y[None]
    np.testing.assert_allclose(pairs.squared, (apart**2).sum(2), rtol=1e-5)
    np.testing.assert_allclose(pairs.aligned, (apart * (s[:, None] - u[None])).sum(2), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(pairs.product, s @ u.T, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("offset", [0.0, 1e4], ids=["at the origin", "far from it"])
@pytest.mark.parametrize("spread", [1.0, 300.0], ids=["compact", "spread out"])
def test_nearby_draws_keep_their_digits_in_single_precision(offset, spread):
    # Pairs of draws about 0.1 apart, the pairs themselves anywhere.
    keys = jax.random.split(jax.random.key(2), 3)
    centres = jnp.repeat(spread * jax.random.normal(keys[0], (100, 4)), 2, axis=0)
    x = np.asarray(offset + centres + 0.1 * jax.random.normal(keys[1], (200, 4)), np.float32)
    s = np.asarray(jax.random.normal(keys[2], (200, 4)), np.float32)
    single = jaxpsd.KSD().gram(s, x)
    with jax.enable_x64(True):
        double = np.asarray(jaxpsd.KSD().gram(s.astype(np.float64), x.astype(np.float64)))
    np.testing.assert_allclose(single, double, rtol=1e-4, atol=1e-4 * np.abs(double).mean())


def test_many_sets_at_once_take_the_safe_way_for_all_if_one_needs_it():
    sets = jax.random.normal(jax.random.key(3), (2, 60, 2)) * jnp.array([1.0, 1000.0])[:, None, None]
    ksd = jaxpsd.KSD()
    value = lambda x: ksd(-x, x)  # noqa: E731
    np.testing.assert_allclose(jax.vmap(value)(sets), [value(x) for x in sets], rtol=1e-5)
    batched = jax.make_jaxpr(jax.vmap(value))(sets)
    assert "cond" in str(batched), "one decision for all sets, not both ways for each of them"


def test_the_median_distance_is_that_of_the_published_code(reference):
    x = reference["samples"]
    median = _kernels.checked_median_distance(Draws(jnp.asarray(x, jnp.float32)), None)
    np.testing.assert_allclose(median, reference["median_distance"], rtol=1e-5)


@pytest.mark.parametrize("count", [2, 3, 10, 33])
def test_order_statistics_are_those_of_a_sorted_array(count):
    values = jnp.abs(jax.random.normal(jax.random.key(count), (count,))).at[0].set(0.0)
    ranks = np.arange(count)
    np.testing.assert_array_equal(_kernels._order_statistics(values, ranks), jnp.sort(values))


def test_of_many_draws_some_tell_the_median_distance():
    x = jax.random.normal(jax.random.key(4), (5000, 2))
    median = float(_kernels.checked_median_distance(Draws(x), None))
    # ‖x − y‖² / 2 is χ² with two degrees of freedom, whose median is 2 log 2.
    assert abs(median / (4 * np.log(2)) ** 0.5 - 1) < 0.05


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
