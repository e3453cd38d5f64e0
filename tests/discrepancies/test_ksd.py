import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpsd

slow = pytest.mark.slow


def logdensity(x):
    return -0.25 * jnp.sum(x**4) - 0.5 * jnp.sum((x - 0.3) ** 2)


# --- the published implementation's values ----------------------------------------------------------------


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("kernel", "name", "block_size"), [(jaxpsd.IMQ(), "imq", None), (jaxpsd.Gaussian(), "gauss_median", 17)]
)
def test_values_are_those_of_the_published_code(reference, kernel, name, block_size):
    ksd = jaxpsd.KSD(kernel, block_size=block_size)
    x, s = reference["samples"], reference["scores"]
    np.testing.assert_allclose(ksd(s, x), reference[f"ksd_v_{name}"], rtol=1e-10)
    np.testing.assert_allclose(ksd.u_statistic(s, x), reference[f"ksd2_u_{name}"], rtol=1e-10)


# The target with most draws in most coordinates has most to round.
@pytest.mark.parametrize(
    "reference",
    ["gauss_d10", *(pytest.param(name, marks=slow) for name in ("gauss_d1", "gauss_d4", "mixture_d2", "rbm_d6"))],
    indirect=True,
)
def test_values_in_single_precision(reference):
    x, s = reference["samples"].astype(np.float32), reference["scores"].astype(np.float32)
    value = jaxpsd.KSD()(s, x)
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, reference["ksd_v_imq"], rtol=1e-5)


# --- identities -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
def test_v_u_and_weights_follow_from_the_gram_matrix():
    x = jax.random.normal(jax.random.key(0), (41, 2))
    ksd = jaxpsd.KSD(block_size=8)
    gram = np.asarray(ksd.gram(logdensity, x))
    np.testing.assert_allclose(gram, gram.T, rtol=1e-12)
    np.testing.assert_allclose(ksd.v_statistic(logdensity, x), gram.mean(), rtol=1e-12)
    np.testing.assert_allclose(ksd(logdensity, x), gram.mean() ** 0.5, rtol=1e-12)
    off_diagonal = (gram.sum() - np.trace(gram)) / (41 * 40)
    np.testing.assert_allclose(ksd.u_statistic(logdensity, x), off_diagonal, rtol=1e-10)
    w = np.arange(41.0) / np.arange(41.0).sum()
    np.testing.assert_allclose(ksd.v_statistic(logdensity, x, 5 * w), w @ gram @ w, rtol=1e-12)
    assert np.linalg.eigvalsh(gram).min() > -1e-10


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_a_transform_is_a_change_of_coordinates():
    x = 10 + 3 * jax.random.normal(jax.random.key(1), (50, 2))
    affine = jaxpsd.Affine(jnp.array([10.0, 9.0]), jnp.array([[3.0, 0.0], [1.0, 2.0]]))
    s = -(x - 10)
    moved = jaxpsd.KSD(jaxpsd.Gaussian())(affine.scores(s), affine.forward(x))
    np.testing.assert_allclose(jaxpsd.KSD(jaxpsd.Gaussian(), transform=affine)(s, x), moved, rtol=1e-12)
    fitted = jaxpsd.Affine.fit(x, "whiten")
    moments = jaxpsd.MomentKernel(2)
    np.testing.assert_allclose(
        jaxpsd.KSD(moments, transform="whiten")(s, x),
        jaxpsd.KSD(moments)(fitted.scores(s), fitted.forward(x)),
        rtol=1e-10,
    )


def test_a_kernel_of_the_users_sees_the_structure_of_the_draws():
    x = jax.random.normal(jax.random.key(2), (20, 3))
    tree = {"a": x[:, 0], "b": x[:, 1:]}

    def kernel(p, q):
        return 1 / jnp.sqrt(1 + (p["a"] - q["a"]) ** 2 + jnp.sum((p["b"] - q["b"]) ** 2))

    target = lambda p: -0.5 * (p["a"] ** 2 + jnp.sum(p["b"] ** 2))  # noqa: E731
    np.testing.assert_allclose(jaxpsd.KSD(kernel)(target, tree), jaxpsd.KSD()(-x, x), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_the_gradient_is_that_of_the_definition():
    x = jax.random.normal(jax.random.key(3), (30, 2))
    ksd, plain = jaxpsd.KSD(block_size=7), jaxpsd.KSD(lambda x, y: (1 + jnp.sum((x - y) ** 2)) ** -0.5)
    gradients = [jax.grad(lambda x, d=d: d(logdensity, x))(x) for d in (ksd, plain)]
    np.testing.assert_allclose(*gradients, rtol=1e-8, atol=1e-12)
    # The kernel's own parameter can be tuned too.
    slope = jax.grad(lambda c: jaxpsd.KSD(jaxpsd.IMQ(c))(logdensity, x))
    step = 1e-5
    values = [jaxpsd.KSD(jaxpsd.IMQ(1 + h))(logdensity, x) for h in (-step, step)]
    np.testing.assert_allclose(slope(1.0), (values[1] - values[0]) / (2 * step), rtol=1e-6)


@pytest.mark.slow
def test_discrepancies_are_pytrees_and_work_inside_jit_and_vmap():
    sets = jax.random.normal(jax.random.key(4), (3, 40, 2))
    for kernel in (
        jaxpsd.IMQ(),
        jaxpsd.Gaussian(),
        jaxpsd.MomentKernel(2),
        lambda x, y: jnp.exp(-jnp.sum((x - y) ** 2)),
    ):
        ksd = jaxpsd.KSD(kernel)
        one_by_one = [ksd(logdensity, x) for x in sets]
        together = jax.jit(lambda ksd, sets: jax.vmap(lambda draws: ksd(logdensity, draws))(sets))(ksd, sets)
        np.testing.assert_allclose(together, one_by_one, rtol=1e-5)
    lengths = jaxpsd.KSD(jaxpsd.IMQ(c=jnp.array([0.5, 1.0, 2.0])))
    by_length = jax.vmap(lambda ksd: ksd(logdensity, sets[0]))(lengths)
    np.testing.assert_allclose(by_length[1], jaxpsd.KSD()(logdensity, sets[0]), rtol=1e-6)


# --- theory -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_moments_that_do_not_converge_are_seen_by_the_moment_kernel_and_not_by_imq():
    """A weight of 1/(n + 1) at √(n + 1)·(1, 1): it vanishes, but the second moments that it adds do not."""

    def values(n):
        x = jax.random.normal(jax.random.key(5), (n, 2))
        x = jnp.concatenate([x, jnp.full((1, 2), (n + 1) ** 0.5)])
        weights = jnp.append(jnp.full(n, 1 / (n + 1)), 1 / (n + 1))
        kernels = jaxpsd.IMQ(), jaxpsd.MomentKernel(2, location=jnp.zeros(2))
        discrepancies = [jaxpsd.KSD(kernel) for kernel in kernels] + [jaxpsd.PSD(2)]
        with warnings.catch_warnings():
            # One draw decides them: that is the point.
            warnings.simplefilter("ignore", jaxpsd.HeavyTailsWarning)
            return np.array([d(-x, x, weights) for d in discrepancies])

    few, many = values(100), values(5000)
    imq, moments, psd = many / few
    assert imq < 0.3
    assert moments > 0.5
    assert psd > 0.5


# --- what goes wrong --------------------------------------------------------------------------------------


def test_a_kernel_has_no_features(normal_draws):
    x, s = normal_draws
    with pytest.raises(ValueError, match="has a Stein kernel and no features"):
        jaxpsd.KSD().features(s, x)
    with pytest.raises(ValueError, match="cannot be streamed"):
        jaxpsd.stream(jaxpsd.KSD())[0](jax.random.key(0), x[0])


@pytest.mark.parametrize("kernel", [None, 3, "imq"])
def test_what_is_no_kernel_is_an_error(kernel, normal_draws):
    x, s = normal_draws
    with pytest.raises(TypeError, match=r"not its class: IMQ\(\)"):
        jaxpsd.KSD(jaxpsd.IMQ)
    with pytest.raises(TypeError, match="must be IMQ"):
        jaxpsd.KSD(kernel)(s, x)


@pytest.mark.parametrize(
    ("kernel", "error", "message"),
    [
        (lambda x, y: jnp.exp(-jnp.linalg.norm(x - y)), FloatingPointError, "also where x = y"),
        (lambda x, y: x - y, TypeError, "must return one floating-point number"),
        (lambda x, y: 1, TypeError, "must return one floating-point number"),
    ],
)
def test_a_kernel_that_is_none_is_an_error(kernel, error, message, normal_draws):
    x, s = normal_draws
    with pytest.raises(error, match=message):
        jaxpsd.KSD(kernel)(s, x)


def test_draws_that_are_not_finite_are_named(normal_draws):
    x, s = normal_draws
    with pytest.raises(ValueError, match="draw 7, coordinate 1"):
        jaxpsd.KSD()(s, x.at[7, 1].set(jnp.nan))
