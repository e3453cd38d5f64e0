from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpsd
from jaxpsd._stein.coordinates import Apart

RULES = ["center", "standardize", "whiten"]


def draws(n=200, dim=3):
    mixing = jnp.array([[100.0, 0, 0], [0.5, 0.3, 0], [-2e-3, 1e-3, 1e-3]])[:dim, :dim]
    return jax.random.normal(jax.random.key(0), (n, dim)) @ mixing.T + jnp.array([[1e3, -5.0, 0.0]])[:, :dim]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("weighted", [False, True])
def test_fits_have_the_moments_they_promise(weighted):
    x = draws()
    w = jax.random.uniform(jax.random.key(1), (len(x),)) if weighted else None
    p = jnp.full(len(x), 1 / len(x)) if w is None else w / w.sum()
    for rule in RULES:
        y = jaxpsd.Affine.fit(x, rule, weights=w).forward(x)
        np.testing.assert_allclose(p @ y, 0, atol=1e-9)
        covariance = jnp.einsum("n,ni,nj->ij", p, y, y)
        if rule == "standardize":
            np.testing.assert_allclose(jnp.diag(covariance), 1, rtol=1e-10)
        if rule == "whiten":
            np.testing.assert_allclose(covariance, jnp.eye(3), atol=1e-7)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("rule", RULES)
def test_scores_are_those_of_the_density_of_the_new_coordinates(rule):
    x = draws()
    target = lambda x: -0.5 * jnp.sum((x / 10) ** 2) + jnp.sin(x[0] / 50)  # noqa: E731
    affine = jaxpsd.Affine.fit(x, rule)
    y = affine.forward(x)
    np.testing.assert_allclose(affine.inverse(y), x, rtol=1e-9, atol=1e-9)
    expected = jaxpsd.score(lambda y: target(affine.inverse(y)), y)
    np.testing.assert_allclose(affine.scores(jaxpsd.score(target, x)), expected, rtol=1e-7, atol=1e-9)
    # The discrepancy with the transform is the plain one in the new coordinates.
    plain, moved = jaxpsd.PSD(3), jaxpsd.PSD(3, transform=rule)
    np.testing.assert_allclose(moved(target, x), plain(expected, y), rtol=1e-7)
    np.testing.assert_allclose(moved(target, x), jaxpsd.PSD(3, transform=affine)(target, x), rtol=1e-12)
    np.testing.assert_allclose(moved.features(target, x), plain.features(expected, y), rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("x64")
def test_a_matrix_of_any_shape_carries_scores_along():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 3))
    affine = jaxpsd.Affine(jnp.asarray(rng.normal(size=3)), jnp.asarray(rng.normal(size=(3, 3))))
    target = lambda x: -jnp.sum(jnp.cosh(x))  # noqa: E731
    y = affine.forward(jnp.asarray(x))
    expected = jaxpsd.score(lambda y: target(affine.inverse(y)), y)
    np.testing.assert_allclose(jaxpsd.PSD(2, transform=affine)(target, x), jaxpsd.PSD(2)(expected, y), rtol=1e-10)


def test_standardizing_makes_units_irrelevant():
    x = jax.random.normal(jax.random.key(2), (500, 3)) * 1.2
    units = jnp.array([1e-4, 1.0, 1e5])
    psd = jaxpsd.PSD(2, transform="standardize")
    np.testing.assert_allclose(psd(-x / units[None], x * units[None]), psd(-x, x), rtol=1e-4)


@pytest.mark.filterwarnings("ignore::jaxpsd.PrecisionWarning")
def test_standardizing_works_far_from_the_origin_in_single_precision():
    x = np.random.default_rng(0).normal(size=(2000, 2)) * 4 + np.array([1e6, -3e5])
    x = x.astype(np.float32)
    scores = -(x - np.array([1e6, -3e5], np.float32)) / 16
    single = jaxpsd.PSD(2, transform="standardize")(scores, x)
    with jax.enable_x64(True):
        double = jaxpsd.PSD(2, transform="standardize")(scores.astype(float), x.astype(float))
    np.testing.assert_allclose(single, double, rtol=1e-3)


def test_pytrees_are_fitted_in_the_order_of_their_leaves():
    x = draws()
    tree = {"a": x[:, 0], "b": x[:, 1:]}
    np.testing.assert_allclose(jaxpsd.Affine.fit(tree).loc, jaxpsd.Affine.fit(x).loc)


def test_singular_fits_are_errors():
    x = draws()
    constant = x.at[:, 1].set(1e6)
    with pytest.raises(ValueError, match="Cannot standardize these draws: coordinate 1 has the same value"):
        jaxpsd.PSD(2, transform="standardize")(-x, constant)
    with pytest.raises(ValueError, match="Cannot whiten these draws: coordinate 1 has the same value"):
        jaxpsd.PSD(2, transform="whiten")(-x, constant)
    collinear = x.at[:, 2].set(x[:, 0] - x[:, 1])
    with pytest.raises(ValueError, match="coordinate 2 is, but for rounding, a linear combination of others"):
        jaxpsd.PSD(2, transform="whiten")(-x, collinear)
    with pytest.raises(ValueError, match="needs more than 3 draws; got 3"):
        jaxpsd.PSD(2, transform="whiten")(-x[:3], x[:3])
    with pytest.raises(ValueError, match="has the same value in every draw"):
        jaxpsd.PSD(2, transform="standardize")(-x[:1], x[:1])
    assert np.isfinite(jaxpsd.PSD(2, transform="center")(-x, constant))


def test_singular_fits_are_nan_where_nothing_can_be_raised():
    x = draws().at[:, 1].set(2.0)
    for rule in ("standardize", "whiten"):
        assert jnp.isnan(jax.jit(jaxpsd.PSD(2, transform=rule))(-x, x))


def test_fits_name_draws_that_are_not_finite():
    x = draws().at[7, 2].set(jnp.nan)
    for rule in RULES:
        with pytest.raises(ValueError, match="`samples` is not finite at draw 7, coordinate 2: nan"):
            jaxpsd.PSD(2, transform=rule)(-x, x)


@pytest.mark.parametrize(
    ("affine", "message"),
    [
        (
            jaxpsd.Affine(np.zeros(2), np.ones(3)),
            r"needs loc \(3,\) and scale \(3,\) or \(3, 3\); got \(2,\) and \(3,\)",
        ),
        (jaxpsd.Affine(np.zeros(3), np.ones((3, 2))), r"got \(3,\) and \(3, 2\)"),
        (jaxpsd.Affine(np.zeros(3), np.array([1.0, 0, 1])), "finite and invertible"),
        (jaxpsd.Affine(np.zeros(3), np.ones((3, 3))), "finite and invertible"),
        (jaxpsd.Affine(np.array([0, np.inf, 0]), np.ones(3)), "finite and invertible"),
    ],
)
def test_transforms_that_do_not_fit(affine, message):
    with pytest.raises(ValueError, match=message):
        jaxpsd.PSD(2, transform=affine)(-draws(), draws())


def test_units_of_any_size_can_be_standardized():
    x = draws()
    for unit in (1e-20, 1e20):
        scaled = x * unit
        y = jaxpsd.Affine.fit(scaled, "standardize").forward(scaled)
        np.testing.assert_allclose(y, jaxpsd.Affine.fit(x, "standardize").forward(x), rtol=1e-3, atol=1e-3)


def test_a_fit_is_accepted_as_a_transform_whatever_the_units():
    x = draws() * jnp.array([[1e-10, 1.0, 1e8]])
    for rule in RULES:
        affine = jaxpsd.Affine.fit(x, rule)
        np.testing.assert_allclose(
            jaxpsd.PSD(1, transform=affine)(-x, x), jaxpsd.PSD(1, transform=rule)(-x, x), rtol=1e-5
        )


def test_an_affine_made_of_lists_is_an_affine():
    affine = jaxpsd.Affine([0.0, 1.0], [2.0, 4.0])
    np.testing.assert_allclose(affine.forward(np.ones((3, 2))), [[0.5, 0.0]] * 3)
    np.testing.assert_allclose(affine.scores(np.ones(2)), [2.0, 4.0])
    with pytest.raises(ValueError, match=r"must have 2 coordinates; got shape \(3, 1\)"):
        affine.forward(np.ones((3, 1)))


def test_a_singular_affine_is_nan_where_nothing_can_be_raised():
    x = draws()
    value = jax.jit(lambda affine: jaxpsd.PSD(1, transform=affine)(-x, x))
    assert jnp.isnan(value(jaxpsd.Affine(jnp.zeros(3), jnp.zeros(3))))


def test_rules_are_named_in_the_error():
    with pytest.raises(ValueError, match="`rule` must be one of 'center', 'standardize', 'whiten', 'target'; got 'z'"):
        jaxpsd.Affine.fit(draws(), "z")


# --- the coordinates of the target ------------------------------------------------------------------------

MEAN, COVARIANCE = np.array([1.0, -3.0, 1000.0]), np.array([[4.0, 1.0, 0.0], [1.0, 0.5, 0.1], [0.0, 0.1, 100.0]])


def gaussian_scores(x, mean=MEAN, covariance=COVARIANCE):
    return -jnp.linalg.solve(jnp.asarray(covariance), (x - mean[None]).T).T


def logistic(x):
    """Far from Gaussian, with correlations."""
    y = jnp.array([x[0], x[1] - 0.7 * x[0], x[2] + 0.5 * x[1]])
    return -jnp.sum(y + 2 * jnp.log1p(jnp.exp(-y)))


def narrow_draws(n=400):
    return jax.random.laplace(jax.random.key(3), (n, 3)) * jnp.array([[0.2, 1.0, 2.0]]) + 0.3


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("weighted", [False, True])
def test_a_gaussian_target_is_found_exactly_whatever_the_draws(weighted):
    x = 900 + 5 * jax.random.laplace(jax.random.key(0), (200, 3))
    w = jax.random.uniform(jax.random.key(1), (len(x),)) if weighted else None
    affine = jaxpsd.Affine.fit(x, "target", target=gaussian_scores(x), weights=w)
    np.testing.assert_allclose(affine.loc, MEAN, rtol=1e-6)
    np.testing.assert_allclose(affine.scale @ affine.scale.T, COVARIANCE, rtol=1e-6, atol=1e-6)
    assert affine.fallback == 0


@pytest.mark.usefixtures("x64")
def test_axes_of_the_target_stay_near_the_coordinates():
    x = jax.random.normal(jax.random.key(0), (200, 3))
    scale = np.asarray(jaxpsd.Affine.fit(x, "target", target=gaussian_scores(x)).scale)
    in_units = scale / np.sqrt(np.diag(COVARIANCE))[:, None]
    np.testing.assert_allclose(in_units, in_units.T, atol=1e-9)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float64, 1e-10)])
@pytest.mark.parametrize("order", [2, 4])
def test_the_value_does_not_depend_on_the_users_coordinates(order, dtype, tolerance):
    rng = np.random.default_rng(0)
    mixing, shift = rng.normal(size=(3, 3)), rng.normal(size=3)
    psd = jaxpsd.PSD(order, basis="hermite", transform="target")
    with jax.enable_x64(dtype == np.float64):
        x = np.asarray(narrow_draws(), np.float64)
        s = np.asarray(jax.vmap(jax.grad(logistic))(jnp.asarray(x)), np.float64)
        plain = psd(s.astype(dtype), x.astype(dtype))
        moved = psd((s @ np.linalg.inv(mixing)).astype(dtype), (x @ mixing.T + shift).astype(dtype))
        np.testing.assert_allclose(moved, plain, rtol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float64, 1e-10)])
def test_nor_does_it_where_those_are_strongly_correlated(dtype, tolerance):
    rng = np.random.default_rng(0)
    (left, _), (right, _) = (np.linalg.qr(rng.normal(size=(3, 3))) for _ in range(2))
    # A condition number of a thousand.
    mixing = left @ np.diag([1, 30, 1000]) @ right
    psd = jaxpsd.PSD(2, basis="hermite", transform="target")
    with jax.enable_x64(dtype == np.float64):
        x = np.asarray(narrow_draws(), np.float64)
        s = np.asarray(jax.vmap(jax.grad(logistic))(jnp.asarray(x)), np.float64)
        plain = psd(s.astype(dtype), x.astype(dtype))
        moved = psd((s @ np.linalg.inv(mixing)).astype(dtype), (x @ mixing.T).astype(dtype))
        np.testing.assert_allclose(moved, plain, rtol=tolerance)


def test_draws_without_weight_tell_nothing_of_the_target():
    x = narrow_draws()
    # That scores point outwards is clear from 400 draws, but not from 30.
    s = 0.3 * x / x.std(axis=0, keepdims=True) + jax.random.normal(jax.random.key(1), x.shape)
    few = jaxpsd.Affine.fit(x[:30], "target", target=s[:30])
    weighted = jaxpsd.Affine.fit(x, "target", target=s, weights=jnp.arange(len(x)) < 30)
    assert few.fallback < jaxpsd.Affine.fit(x, "target", target=s).fallback == 3
    assert weighted.fallback == few.fallback
    np.testing.assert_allclose(weighted.scale, few.scale, rtol=1e-3, atol=1e-3)


@pytest.mark.usefixtures("x64")
def test_where_scores_imply_no_scale_the_draws_own_has_to_do():
    x = narrow_draws()
    # The second coordinate of the draws lies between two modes.
    s = (-x).at[:, 1].multiply(-1)
    affine = jaxpsd.Affine.fit(x, "target", target=s)
    assert affine.fallback == 1
    np.testing.assert_allclose(affine.loc[1], x[:, 1].mean(), rtol=0.1)
    np.testing.assert_allclose(affine.scale[1, 1], x[:, 1].std(), rtol=0.1)
    with pytest.warns(jaxpsd.CoordinatesWarning, match="1 of 3 directions"):
        jaxpsd.PSD(2, transform="target")(s, x)


def test_with_fewer_draws_than_coordinates_they_are_standardised():
    x = narrow_draws(4)
    affine = jaxpsd.Affine.fit(x, "target", target=-x)
    np.testing.assert_allclose(affine.scale, x.std(axis=0), rtol=1e-5)
    assert affine.fallback == 3
    with pytest.warns(jaxpsd.CoordinatesWarning, match="3 of 3 directions"):
        jaxpsd.PSD(2, transform="target")(-x, x)


DISCREPANCIES = [
    jaxpsd.PSD(3, transform="target"),
    jaxpsd.PSD(3, basis="hermite", transform="target"),
    jaxpsd.KSD(transform="target"),
    jaxpsd.RFSD(rng_key=jax.random.key(0), transform="target"),
    jaxpsd.FSSD(np.eye(3), 2.0, transform="target"),
]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("discrepancy", DISCREPANCIES, ids=lambda each: type(each).__name__)
def test_discrepancies_are_those_of_the_fitted_coordinates(discrepancy):
    x = narrow_draws(200).reshape(2, 100, 3)
    affine = jaxpsd.Affine.fit(x, "target", target=logistic)
    expected = replace(discrepancy, transform=affine)(logistic, x)
    np.testing.assert_allclose(discrepancy(logistic, x), expected, rtol=1e-9)
    np.testing.assert_allclose(jax.jit(discrepancy)(jaxpsd.score(logistic, x), x), expected, rtol=1e-9)
    tree = {"a": x[..., :1], "b": x[..., 1:]}
    of_tree = discrepancy(lambda p: logistic(jnp.concatenate([p["a"], p["b"]])), tree, chains=True)
    np.testing.assert_allclose(of_tree, expected, rtol=1e-9)


@pytest.mark.parametrize(
    "call",
    [
        *DISCREPANCIES,
        jaxpsd.LinearKSD(transform="target"),
        jaxpsd.PSD(2, transform="target").features,
        jaxpsd.PSD(2, transform="target").by_degree,
        lambda s, x: jaxpsd.gof_test(jax.random.key(0), jaxpsd.PSD(2, transform="target"), s, x, method="asymptotic"),
        lambda s, x: jaxpsd.gof_test(jax.random.key(0), jaxpsd.LinearKSD(transform="target"), s, x),
    ],
    ids=range(10),
)
def test_whatever_is_computed_there_says_so(call):
    x = narrow_draws(60)
    # Scores of the wrong sign imply no scale at all.
    with pytest.warns(jaxpsd.CoordinatesWarning, match="3 of 3 directions"):
        call(x, x)


def test_a_target_goes_with_its_rule_alone():
    x = narrow_draws()
    with pytest.raises(ValueError, match="needs it"):
        jaxpsd.Affine.fit(x, "target")
    with pytest.raises(ValueError, match="belongs to the rule 'target'"):
        jaxpsd.Affine.fit(x, "whiten", target=-x)
    with pytest.raises(ValueError, match="needs scores"):
        jaxpsd.FSSD.random(jax.random.key(0), x, transform="target")
    with pytest.raises(ValueError, match="a stream has not seen"):
        jaxpsd.stream(jaxpsd.PSD(2, transform="target")).init(jax.random.key(0), x[0])


@pytest.mark.usefixtures("x64")
def test_gradients_hold_the_coordinates_of_the_target_fixed():
    x, psd = narrow_draws(50), jaxpsd.PSD(2, basis="hermite", transform="target")
    affine = jaxpsd.Affine.fit(x, "target", target=logistic)
    fixed = jax.grad(lambda x: replace(psd, transform=affine)(logistic, x))(x)
    np.testing.assert_allclose(jax.grad(lambda x: psd(logistic, x))(x), fixed, rtol=1e-6, atol=1e-9)


@pytest.mark.filterwarnings("ignore::jaxpsd.CoordinatesWarning", "ignore::jaxpsd.HeavyTailsWarning")
@pytest.mark.parametrize("size", [1e4, 1e8, 1e12])
@pytest.mark.parametrize("place", [0, 100])
def test_one_extreme_score_leaves_coordinates_that_can_be_inverted(size, place):
    # As of a draw deep in the neck of a funnel.
    x = jax.random.normal(jax.random.key(3), (300, 6))
    scores = (-x).at[place].multiply(size * jnp.arange(1.0, 7))
    value = jaxpsd.PSD(2, basis="hermite", transform="target")(scores, x)
    assert np.isfinite(value)
    report = jaxpsd.moment_table(jax.random.key(0), scores, x, method="rademacher")
    assert np.isfinite(report.mean).all()


@pytest.mark.usefixtures("x64")
def test_features_of_coordinates_apart_are_those_of_a_vector_field():
    """The Stein operator of f'(y_i) along Σe_i/σ_i, by autodiff; Hermite polynomials as f."""
    x, dim = draws(), 3
    root = jaxpsd.Affine(x.mean(axis=0), jnp.linalg.cholesky(jnp.cov(x.T)))
    covariance, lengths = root.scale @ root.scale.T, jnp.linalg.norm(root.scale, axis=1)
    target = lambda x: -jnp.sum(jnp.cosh((x - root.loc) / lengths))  # noqa: E731
    psd = jaxpsd.PSD(3, basis="hermite", interactions=False, transform=Apart(root))
    features = psd.features(target, x)
    # He_{k−1}/√k!, a k-th of the derivative of the orthonormal polynomial.
    slopes = (lambda y: 1.0, lambda y: y / 2**0.5, lambda y: (y**2 - 1) / 6**0.5)
    for k, exponent in enumerate(psd.exponents(dim)):
        i, degree = int(exponent.argmax()), int(exponent.sum())
        direction = covariance[i] / lengths[i]

        def field(x, i=i, degree=degree, direction=direction):
            return slopes[degree - 1]((x[i] - root.loc[i]) / lengths[i]) * direction

        expected = jax.vmap(jaxpsd.stein_operator(field, target, order=1))(x)
        np.testing.assert_allclose(features[:, k], expected, rtol=1e-8, atol=1e-8)
