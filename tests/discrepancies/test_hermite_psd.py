"""The PSD of Hermite polynomials: what it means, and that it does all that the PSD of monomials does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpsd

ORDERS = [1, 2, 3, 4, pytest.param(6, marks=pytest.mark.slow)]
KEY = jax.random.key(0)


def logdensity(x):
    return -0.25 * jnp.sum(x**4) - 0.5 * jnp.sum((x - 0.3) ** 2) + 0.2 * x[0] * x[1]


def draws(n=150, dim=3):
    return 0.8 * jax.random.normal(jax.random.key(1), (n, dim))


@pytest.mark.usefixtures("x64")
def test_for_a_gaussian_target_it_measures_means_and_covariances():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(3, 3))
    mean, covariance = rng.normal(size=3), root @ root.T + np.eye(3)
    x = 0.7 * rng.normal(size=(500, 3)) + 0.2
    scores = -np.linalg.solve(covariance, (x - mean).T).T
    values, vectors = np.linalg.eigh(covariance)
    inverse_root = vectors @ np.diag(values**-0.5) @ vectors.T
    m = inverse_root @ (x.mean(axis=0) - mean)
    c = inverse_root @ np.cov(x.T, bias=True) @ inverse_root
    psd = jaxpsd.PSD(2, basis="hermite", transform="target")
    first, second = m @ m, 0.5 * ((c + np.outer(m, m) - np.eye(3)) ** 2).sum()
    np.testing.assert_allclose(psd.v_statistic(scores, x), first + second, rtol=1e-9)
    np.testing.assert_allclose(psd.by_degree(scores, x), [first, second], rtol=1e-9)


@pytest.mark.usefixtures("x64")
def test_it_is_zero_where_moments_match():
    # Nodes of a quadrature have the moments of a normal distribution.
    nodes, weights = np.polynomial.hermite_e.hermegauss(6)
    x = 3 + 2 * nodes[:, None]
    psd = jaxpsd.PSD(6, basis="hermite", transform=jaxpsd.Affine([3.0], [2.0]))
    assert psd(-(x - 3) / 4, x, weights) < 1e-9
    assert psd(-(x - 3) / 4, x) > 0.1


def test_a_mean_that_is_off_by_some_standard_deviations_has_that_value():
    x = jax.random.normal(KEY, (100_000, 4)).at[:, 2].add(0.3)
    psd = jaxpsd.PSD(2, basis="hermite", transform="target")
    np.testing.assert_allclose(psd(lambda x: -0.5 * jnp.sum(x**2), x), 0.3, rtol=0.06)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("order", ORDERS)
def test_dual_and_primal_and_features_agree(order):
    x = draws()
    primal, dual = (jaxpsd.PSD(order, basis="hermite", form=form) for form in ("primal", "dual"))
    psi = primal.features(logdensity, x)
    assert psi.shape[1] == len(primal.exponents(3))
    z = psi.mean(axis=0)
    np.testing.assert_allclose(primal.v_statistic(logdensity, x), z @ z, rtol=1e-10)
    np.testing.assert_allclose(dual.v_statistic(logdensity, x), z @ z, rtol=1e-10)
    np.testing.assert_allclose(primal.u_statistic(logdensity, x), dual.u_statistic(logdensity, x), rtol=1e-9)
    np.testing.assert_allclose(dual.gram(logdensity, x), psi @ psi.T, rtol=1e-8, atol=1e-10)
    by_degree = [jnp.sum(z[primal.exponents(3).sum(axis=1) == k] ** 2) for k in range(1, order + 1)]
    for psd in (primal, dual):
        np.testing.assert_allclose(psd.by_degree(logdensity, x), by_degree, rtol=1e-8, atol=1e-14)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("interactions", [False, 2])
def test_products_can_be_left_out(interactions):
    x = draws()
    psd = jaxpsd.PSD(4, basis="hermite", interactions=interactions)
    exponents = psd.exponents(3)
    products = (exponents > 0).sum(axis=1) > 1
    assert (exponents[products].sum(axis=1) == 2).all()
    assert products.sum() == (3 if interactions else 0)
    z = psd.features(logdensity, x).mean(axis=0)
    everything = jaxpsd.PSD(4, basis="hermite")
    places = [everything.exponents(3).tolist().index(alpha) for alpha in exponents.tolist()]
    np.testing.assert_allclose(z, everything.features(logdensity, x).mean(axis=0)[np.array(places)], rtol=1e-9)
    np.testing.assert_allclose(psd.v_statistic(logdensity, x), z @ z, rtol=1e-10)
    np.testing.assert_allclose(psd.by_degree(logdensity, x).sum(), z @ z, rtol=1e-10)


@pytest.mark.parametrize("form", ["primal", "dual"])
def test_single_precision_is_close_to_double_precision(form):
    psd = jaxpsd.PSD(4, basis="hermite", form=form, transform="target")
    x, values = np.asarray(draws(600, 5)), []
    for dtype in (np.float32, np.float64):
        with jax.enable_x64(dtype == np.float64):
            values.append(float(psd(logdensity, jnp.asarray(x, dtype))))
    np.testing.assert_allclose(*values, rtol=1e-4)


@pytest.mark.parametrize("form", ["primal", "dual"])
def test_high_orders_keep_their_digits(form):
    # Tails short enough for degree 20.
    psd, x, values = jaxpsd.PSD(20, basis="hermite", form=form), np.asarray(draws(100, 1)), []
    for dtype in (np.float32, np.float64):
        with jax.enable_x64(dtype == np.float64):
            values.append(float(psd(-x.astype(dtype), x.astype(dtype))))
    np.testing.assert_allclose(*values, rtol=1e-4)


@pytest.mark.usefixtures("x64")
def test_norms_and_penalties():
    x, penalty = draws(), (1.0, 2.0, 4.0)
    z = jaxpsd.PSD(3, basis="hermite").features(logdensity, x).mean(axis=0)
    by_degree = 2.0 ** (jaxpsd.PSD(3).exponents(3).sum(axis=1) - 1)
    for form in ("primal", "dual"):
        psd = jaxpsd.PSD(3, basis="hermite", penalty=penalty, form=form)
        np.testing.assert_allclose(psd.v_statistic(logdensity, x), (z**2 / by_degree).sum(), rtol=1e-9)
    largest = jaxpsd.PSD(3, basis="hermite", norm="l1", penalty=penalty)
    np.testing.assert_allclose(largest(logdensity, x), jnp.abs(z / by_degree).max(), rtol=1e-9)


@pytest.mark.usefixtures("x64")
def test_weights_and_streams_and_sets():
    x, psd = draws(), jaxpsd.PSD(3, basis="hermite", transform=jaxpsd.Affine(np.zeros(3) + 0.1, np.ones(3)))
    w = jax.random.uniform(KEY, (len(x),))
    z = (w / w.sum()) @ psd.features(logdensity, x)
    np.testing.assert_allclose(psd.v_statistic(logdensity, x, w), z @ z, rtol=1e-9)
    stream = jaxpsd.stream(psd)
    state = stream.init(KEY, x[0])
    for part in (x[:70], x[70:]):
        state = stream.update(state, logdensity, part)
    np.testing.assert_allclose(stream.result(state), psd(logdensity, x), rtol=1e-9)
    sets = jaxpsd.discrepancies(psd, logdensity, [x[:100], x])
    np.testing.assert_allclose(sets, [psd(logdensity, x[:100]), psd(logdensity, x)], rtol=1e-6)


@pytest.mark.parametrize("form", ["primal", "dual"])
def test_it_can_be_traced_mapped_differentiated_and_lowered(form):
    psd, x = jaxpsd.PSD(3, basis="hermite", form=form, transform="target"), draws(64)
    value = jax.jit(lambda x: psd(logdensity, x))
    np.testing.assert_allclose(value(x), psd(logdensity, x), rtol=1e-4)
    mapped = jax.vmap(value)(jnp.stack([x, 1.1 * x]))
    np.testing.assert_allclose(mapped, [psd(logdensity, x), psd(logdensity, 1.1 * x)], rtol=1e-3)
    assert np.isfinite(jax.grad(value)(x)).all()
    exported = jax.export.export(value, platforms=("cuda", "tpu"))(jax.ShapeDtypeStruct(x.shape, x.dtype))
    assert exported.platforms == ("cuda", "tpu")


def test_tests_take_it():
    x, psd = draws(400), jaxpsd.PSD(4, basis="hermite", transform="target")
    normal = lambda x: -0.5 * jnp.sum((x / 0.8) ** 2)  # noqa: E731
    result = jaxpsd.gof_test(KEY, psd, normal, x, orders=(1, 2, 4), num_replicates=99)
    assert not result.reject.any()
    assert jaxpsd.gof_test(KEY, psd, normal, 1.2 * x, num_replicates=99).reject


@pytest.mark.parametrize(
    ("options", "message"),
    [({"basis": "fourier"}, "basis"), ({"interactions": 1}, "at least 2"), ({"interactions": "yes"}, "True or False")],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        jaxpsd.PSD(3, **options)
