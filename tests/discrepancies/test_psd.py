import warnings
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpsd
from jaxpsd._core.checks import check_samples
from jaxpsd._discrepancies import psd as _psd

slow = pytest.mark.slow

FORMS = ["primal", "dual"]
ORDERS = [1, 2, 3, 4]


def logdensity(x):
    return -0.25 * jnp.sum(x**4) - 0.5 * jnp.sum((x - 0.3) ** 2)


# --- the published implementation's values ----------------------------------------------------------------


@pytest.mark.usefixtures("x64")
# Every run takes all targets in both forms.
@pytest.mark.parametrize(
    ("order", "form"),
    [
        (3, "primal"),
        (4, "dual"),
        *(pytest.param(order, "primal", marks=slow) for order in (1, 2, 4)),
        pytest.param(2, "dual", marks=slow),
    ],
)
def test_values_are_those_of_the_published_code(reference, order, form):
    psd = jaxpsd.PSD(order, form=form)
    x, s = reference["samples"], reference["scores"]
    np.testing.assert_allclose(psd(s, x), reference[f"psd_v_r{order}"], rtol=1e-10)
    np.testing.assert_allclose(psd.u_statistic(s, x), reference[f"psd2_u_r{order}"], rtol=1e-10)


# The target with most draws in most coordinates has most to round.
@pytest.mark.parametrize(("order", "form"), [(2, "primal"), (4, "dual")])
@pytest.mark.parametrize(
    "reference",
    ["gauss_d10", *(pytest.param(name, marks=slow) for name in ("gauss_d1", "gauss_d4", "mixture_d2", "rbm_d6"))],
    indirect=True,
)
def test_values_in_single_precision(reference, order, form):
    psd = jaxpsd.PSD(order, form=form)
    x, s = reference["samples"].astype(np.float32), reference["scores"].astype(np.float32)
    value = psd(s, x)
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, reference[f"psd_v_r{order}"], rtol=1e-4)
    # U is a difference of two larger numbers: its error is measured by those.
    scale = float(psd.v_statistic(s, x))
    np.testing.assert_allclose(psd.u_statistic(s, x), reference[f"psd2_u_r{order}"], rtol=1e-4, atol=1e-4 * scale)


@pytest.mark.usefixtures("x64")
def test_features_are_those_of_the_published_code(reference):
    if "features" not in reference:
        pytest.skip("no features stored")
    dim = reference["samples"].shape[1]
    psd = jaxpsd.PSD(4)
    features = np.asarray(psd.features(reference["scores"], reference["samples"]))
    column = {tuple(alpha): k for k, alpha in enumerate(psd.exponents(dim))}
    order = [column[tuple(alpha)] for alpha in reference["exponents"].astype(int)]
    assert sorted(order) == list(range(features.shape[1]))
    np.testing.assert_allclose(features[:, order], reference["features"], rtol=1e-10, atol=1e-10)


# --- identities -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("order", "interactions"),
    [(3, True), (4, False), *(pytest.param(order, True, marks=slow) for order in (1, 6))],
)
def test_moments_features_and_gram_give_the_same_statistics(order, interactions):
    x = jax.random.normal(jax.random.key(1), (53, 3))
    n = len(x)
    penalties = [
        None,
        np.linspace(0.5, 2, order),
        np.linspace(0.5, 2, len(jaxpsd.PSD(order, interactions=interactions).exponents(3))),
    ]
    for penalty, form in product(penalties, FORMS):
        if form == "dual" and penalty is penalties[2]:
            continue
        psd = jaxpsd.PSD(order, interactions=interactions, penalty=penalty, form=form)
        features, gram = psd.features(logdensity, x), psd.gram(logdensity, x)
        v, u = psd.v_statistic(logdensity, x), psd.u_statistic(logdensity, x)
        np.testing.assert_allclose(gram, features @ features.T, rtol=1e-9, atol=1e-11 * float(jnp.abs(gram).max()))
        np.testing.assert_allclose(v, (features.mean(axis=0) ** 2).sum(), rtol=1e-10)
        np.testing.assert_allclose(v, gram.mean(), rtol=1e-10)
        np.testing.assert_allclose(u, (gram.sum() - jnp.trace(gram)) / (n * (n - 1)), rtol=1e-9)
        np.testing.assert_allclose(psd(logdensity, x), jnp.sqrt(v), rtol=1e-14)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("weighted", [True, pytest.param(False, marks=slow)])
def test_the_block_size_changes_nothing(form, weighted):
    x = jax.random.normal(jax.random.key(2), (101, 4))
    weights = jax.random.uniform(jax.random.key(3), (101,)) if weighted else None
    whole = jaxpsd.PSD(3, form=form)
    for size in (1, 7, 100):
        blocks = jaxpsd.PSD(3, form=form, block_size=size)
        for call in (lambda psd: psd(logdensity, x, weights), lambda psd: psd.u_statistic(logdensity, x)):
            np.testing.assert_allclose(call(blocks), call(whole), rtol=1e-11)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("interactions", [True, False])
def test_integer_weights_repeat_draws(form, interactions):
    x = jax.random.normal(jax.random.key(4), (20, 2))
    counts = np.arange(20) % 4
    psd = jaxpsd.PSD(3, form=form, interactions=interactions)
    repeated = jnp.repeat(x, counts, axis=0)
    np.testing.assert_allclose(psd(logdensity, x, counts / 7), psd(logdensity, repeated), rtol=1e-11)


@pytest.mark.usefixtures("x64")
def test_scores_stand_for_the_log_density():
    x = jax.random.normal(jax.random.key(5), (30, 2))
    scores = jaxpsd.score(logdensity, x)
    psd = jaxpsd.PSD(3)
    for method in (psd, psd.v_statistic, psd.u_statistic, psd.features, psd.gram):
        np.testing.assert_allclose(method(scores, x), method(logdensity, x), rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("x64")
def test_chains_and_pytrees_are_laid_out_as_one_array():
    x = jax.random.normal(jax.random.key(6), (4, 25, 3))
    flat = x.reshape(100, 3)
    psd = jaxpsd.PSD(3)
    expected = psd(logdensity, flat)
    np.testing.assert_allclose(psd(logdensity, x), expected, rtol=1e-12)
    tree = {"a": x[..., 0], "b": x[..., 1:]}
    as_array = lambda p: logdensity(jnp.concatenate([p["a"][None], p["b"]]))  # noqa: E731
    np.testing.assert_allclose(psd(as_array, tree, chains=True), expected, rtol=1e-12)
    scores = jaxpsd.score(as_array, tree, chains=True)
    assert jax.tree.map(jnp.shape, scores) == jax.tree.map(jnp.shape, tree)
    np.testing.assert_allclose(psd(scores, tree, chains=True), expected, rtol=1e-12)
    weights = jax.random.uniform(jax.random.key(7), (4, 25))
    np.testing.assert_allclose(psd(logdensity, x, weights), psd(logdensity, flat, weights.ravel()), rtol=1e-12)


# --- norms ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("interactions", [True, False])
def test_the_l1_ball_gives_the_largest_mean_feature(interactions):
    x = jax.random.normal(jax.random.key(8), (40, 3))
    z = jnp.abs(jaxpsd.PSD(3, interactions=interactions).features(logdensity, x).mean(axis=0))
    psd = jaxpsd.PSD(3, norm="l1", interactions=interactions)
    np.testing.assert_allclose(psd(logdensity, x), z.max(), rtol=1e-12)
    penalty = np.linspace(1, 3, len(z))
    np.testing.assert_allclose(
        jaxpsd.PSD(3, norm="l1", interactions=interactions, penalty=penalty)(logdensity, x),
        (z / penalty).max(),
        rtol=1e-12,
    )


@pytest.mark.usefixtures("x64")
def test_a_penalty_is_the_matrix_of_the_constraint():
    x = jax.random.normal(jax.random.key(9), (40, 2))
    z = np.asarray(jaxpsd.PSD(2).features(logdensity, x).mean(axis=0))
    penalty = np.array([0.5, 2.0, 1.0, 3.0, 0.1])
    beta = z / penalty
    beta /= np.sqrt(beta @ (penalty * beta))  # The maximiser of βᵀz̄ on βᵀWβ = 1.
    np.testing.assert_allclose(jaxpsd.PSD(2, penalty=penalty)(logdensity, x), beta @ z, rtol=1e-12)
    by_degree = jaxpsd.PSD(2, penalty=(4.0, 0.25))(logdensity, x)
    np.testing.assert_allclose(by_degree**2, (z[:2] ** 2).sum() / 4 + (z[2:] ** 2).sum() / 0.25, rtol=1e-12)


# --- theory -----------------------------------------------------------------------------------------------


def gauss_hermite(dim, count):
    """Weighted points whose moments up to 2·count − 1 in each coordinate are those of N(0, I)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    points = np.array(list(product(nodes, repeat=dim)))
    return points, np.array([np.prod(w) for w in product(weights, repeat=dim)])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("dim", "order"), [(3, 3), *(pytest.param(*pair, marks=slow) for pair in [(1, 1), (1, 5), (2, 4), (3, 2)])]
)
def test_psd_is_zero_if_and_only_if_the_moments_of_a_gaussian_match(dim, order, form):
    rng = np.random.default_rng(0)
    mean, factor = rng.normal(size=dim), np.tril(rng.normal(size=(dim, dim))) + 2 * np.eye(dim)
    precision = np.linalg.inv(factor @ factor.T)
    # Moments up to 2·count − 1 ≥ r are exact, E[x^{2·count}] is not.
    count = (order + 2) // 2
    points, weights = gauss_hermite(dim, count)
    x = mean + points @ factor.T
    target = lambda x: -0.5 * (x - mean) @ precision @ (x - mean)  # noqa: E731
    psd = jaxpsd.PSD(order, form=form)
    scale = np.abs(psd.features(target, x)).max()
    # The dual form takes the root of a sum that cancels to rounding.
    tolerance = 1e-13 if form == "primal" else 1e-7
    assert psd(target, x, weights) <= tolerance * scale
    assert jaxpsd.PSD(2 * count, form=form)(target, x, weights) > 1e-3 * scale
    # One moment wrong: the mean, or, from order 2 on, a variance alone.
    assert psd(target, x + 0.1, weights) > 1e-3
    if order >= 2:
        assert psd(target, mean + 1.05 * points @ factor.T, weights) > 1e-3
    # A linear map of the parameters changes none of this (appendix on linear transforms).
    other = jaxpsd.Affine(rng.normal(size=dim), rng.normal(size=(dim, dim)) + 3 * np.eye(dim))
    moved = jaxpsd.PSD(order, form=form, transform=other)
    assert moved(target, x, weights) <= tolerance * np.abs(moved.features(target, x)).max()
    assert moved(target, x + 0.1, weights) > 1e-3


@pytest.mark.usefixtures("x64")
def test_psd_notices_a_moment_that_weak_convergence_does_not():
    # Q_n = (1 − 1/(n+1)) P_n + δ_{√(n+1)·1} / (n+1) tends to P, its second moment does not.
    for n in (10**3, 10**4):
        x = jnp.concatenate([jax.random.normal(jax.random.key(0), (n, 2)), jnp.full((1, 2), (n + 1) ** 0.5)])
        weights = np.append(np.full(n, 1 / (n + 1)), 1 / (n + 1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", jaxpsd.HeavyTailsWarning)
            value = jaxpsd.PSD(2)(-x, x, weights)
        # Each of x₁², x₂² and x₁x₂ has z̄ → −2.
        np.testing.assert_allclose(value, np.sqrt(12), rtol=0.1)


def test_the_u_statistic_is_unbiased():
    # The mean of 4000 U-statistics, each with mean zero under the target.
    x = jax.random.normal(jax.random.key(11), (4000, 20, 2))
    u = jax.vmap(lambda x: jaxpsd.PSD(2).u_statistic(-x, x))(x)
    # A correct statistic fails this once in 10⁴ runs.
    assert abs(u.mean()) < 3.9 * u.std() / np.sqrt(len(u))


# --- the choice of the form -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "dim", "order", "expected"),
    [
        (10**6, 10, 4, "primal"),
        (2000, 1000, 4, "dual"),
        (10**7, 10, 2, "primal"),
        (1000, 50, 4, "dual"),
        (5, 1, 1, "primal"),
    ],
)
def test_auto_takes_the_cheaper_form(n, dim, order, expected):
    draws = check_samples(jnp.zeros((1, dim)))
    fake = type("Fake", (), {"num_draws": n, "dim": dim, "dtype": draws.dtype})()
    assert jaxpsd.PSD(order)._choose_form(fake) == expected
    assert (_psd._primal_cost(n, dim, order) < _psd._dual_cost(n, dim, order)) == (expected == "primal")


def test_auto_stays_within_memory(monkeypatch):
    x = jax.random.normal(jax.random.key(0), (500, 6))
    assert jaxpsd.PSD(3)._choose_form(check_samples(x)) == "primal"
    monkeypatch.setattr(_psd, "MEMORY_BUDGET", 1000)
    assert jaxpsd.PSD(3)._choose_form(check_samples(x)) == "dual"
    with pytest.raises(ValueError, match=r"primal form needs .* 83 monomials .* form='dual'"):
        jaxpsd.PSD(3, form="primal")(-x, x)
    with pytest.raises(ValueError, match="interactions=False or a lower order"):
        jaxpsd.PSD(3, norm="l1")(-x, x)


def test_more_monomials_than_memory_could_hold():
    # 4.2·10¹⁰ monomials.
    x = jax.random.normal(jax.random.key(0), (100, 1000))
    psd = jaxpsd.PSD(4)
    assert np.isfinite(psd(-x, x))
    with pytest.raises(ValueError, match=r"feature matrix would be 100 × 42,084,793,750, 15,677\.\d GiB"):
        psd.features(-x, x)
    with pytest.raises(ValueError, match="table of exponents"):
        psd.exponents(1000)


# --- single precision -------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
def test_single_precision_keeps_four_digits_over_many_draws(order):
    n, dim = 200_000, 3
    x = np.random.default_rng(order).standard_normal((n, dim)).astype(np.float32)
    single = float(jaxpsd.PSD(order)(-x, x))
    with jax.enable_x64(True):
        double = float(jaxpsd.PSD(order)(-x.astype(np.float64), x.astype(np.float64)))
    assert abs(single / double - 1) < 1e-4
