"""The adaptive test: its parts, its calibration on common replicates, its coordinates."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpsd
from jaxpsd._core.checks import check_samples
from jaxpsd._core.programs import Data
from jaxpsd._core.scores import Given
from jaxpsd._gof.bootstrap import Wanted, bootstrap
from jaxpsd._gof.scheme import signs_of
from jaxpsd._stein.coordinates import fit_to_target

KEY = jax.random.key(0)
adaptive = partial(jaxpsd.adaptive_test, KEY, num_replicates=199)


def logdensity(x):
    return -0.5 * jnp.sum(x**2)


@pytest.fixture(scope="module")
def good():
    return jax.random.normal(jax.random.key(1), (1000, 3))


def test_right_draws_pass(good):
    assert not adaptive(logdensity, good).reject


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        (0, lambda x: x.at[:, 0].add(0.25)),
        (2, lambda x: x.at[:, 1].set(0.3 * x[:, 0] + 0.91**0.5 * x[:, 1])),
        (1, lambda x: jnp.sign(x) * jnp.abs(x) ** 1.5 / 1.2),
    ],
)
def test_each_part_finds_what_it_is_for(good, part, wrong):
    result = adaptive(logdensity, wrong(good))
    assert result.reject
    assert result.parts.reject[part]


def test_the_p_value_is_that_of_the_smallest_among_replicates(good):
    result = adaptive(logdensity, good.at[:, 0].add(0.05))
    values = np.concatenate([np.asarray(result.parts.statistic)[None], np.asarray(result.parts.replicates)])
    p = (values[None] >= values[:, None]).mean(axis=1)
    smallest = p.min(axis=1)
    np.testing.assert_allclose(result.parts.p_value, p[0], rtol=1e-5)
    assert float(result.p_value) == pytest.approx((smallest <= smallest[0]).mean(), rel=1e-5)
    assert float(result.statistic) == pytest.approx(-np.log10(smallest[0]), rel=1e-4)
    assert result.labels == ("−log₁₀ of the smallest p",)


# Other tests let draws decide, and get "rademacher" or "markov".
@pytest.mark.parametrize(
    "options",
    [
        {"method": "multinomial"},
        {"method": "block", "block_length": 10},
        pytest.param({"method": "rademacher"}, marks=pytest.mark.slow),
        pytest.param({"method": "markov", "flip_probability": 0.1}, marks=pytest.mark.slow),
    ],
    ids=lambda options: options["method"],
)
def test_every_bootstrap_will_do_and_can_be_traced(good, options):
    result = jax.jit(lambda x: adaptive(logdensity, x, **options))(1.3 * good)
    assert result.reject
    assert result.method == options["method"]
    np.testing.assert_allclose(result.p_value, adaptive(logdensity, 1.3 * good, **options).p_value, atol=0.02)


def test_dependent_draws(chain):
    x = chain(0.9, (2, 4000, 3))
    result = adaptive(logdensity, x)
    assert result.method == "markov"
    assert not result.reject
    assert adaptive(logdensity, x.at[..., 0].add(0.6)).reject


def test_sums_over_pairs_and_over_features_give_the_same(x64):
    x = jax.random.normal(jax.random.key(1), (150, 4))
    wanted, signs = Wanted((1, 4), maximum=2), signs_of(KEY, "markov", 0.125, 150, 50)
    results = []
    for form in ("primal", "dual"):
        plan = jaxpsd.PSD(4, form=form)._plan(check_samples(x), None, 50)
        run = jax.jit(lambda x, plan: bootstrap(Data(x, 0.1 - x, None, None), plan, signs, wanted)[0])
        results.append(run(x, plan))
    np.testing.assert_allclose(*results, rtol=1e-9)


def test_many_monomials_are_summed_over_pairs():
    x = jax.random.normal(jax.random.key(1), (100, 60))
    assert adaptive(lambda x: -0.5 * jnp.sum(x**2), x).p_value > 0.01


def test_few_draws_and_many_coordinates_take_the_maximum_over_degree_one(good):
    assert adaptive(logdensity, good[:200]).parts.labels[-1] == "maximum of order 1"
    assert adaptive(logdensity, good).parts.labels[-1] == "maximum of order 2"


def test_lower_orders_and_no_interactions(good):
    assert adaptive(logdensity, good, order=1).parts.labels == ("V of order 1", "maximum of order 1")
    assert not adaptive(logdensity, good, order=3, interactions=False).reject


def test_a_draw_that_is_not_finite_is_an_error_or_no_p_value(good):
    bad = good.at[3, 2].set(jnp.inf)
    with pytest.raises(ValueError, match="draw 3, coordinate 2"):
        adaptive(logdensity, bad)
    traced = jax.jit(lambda x: adaptive(logdensity, x, method="rademacher"))(bad)
    assert np.isnan(traced.p_value)
    assert not traced.reject


def test_a_score_that_is_not_finite_is_named(good):
    with pytest.raises(ValueError, match=r"score .* draw 5, coordinate 1"):
        adaptive((-good).at[5, 1].set(jnp.nan), good)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "asymptotic"}, "'auto'"),
        ({"order": 0}, "order"),
        ({"transform": "squeeze"}, "'target'"),
        ({"method": "multinomial", "weights": np.ones(1000)}, "no weights"),
        ({"num_replicates": 10}, "at least 19"),
    ],
)
def test_options_that_make_no_sense(good, options, message):
    with pytest.raises(ValueError, match=message):
        adaptive(logdensity, good, **options)


def test_one_draw_is_not_enough(good):
    with pytest.raises(ValueError, match="at least two draws"):
        adaptive(logdensity, good[:1])


# --- the target's own coordinates -------------------------------------------------------------------------


def test_location_and_scale_of_a_gaussian_target_are_exact_whatever_the_draws(x64):
    covariance = jnp.array([[4.0, 1.0, 0.0], [1.0, 0.5, 0.1], [0.0, 0.1, 100.0]])
    mean = jnp.array([1.0, -3.0, 1000.0])
    x = 900 + 5 * jax.random.laplace(KEY, (200, 3))
    scores = -jnp.linalg.solve(covariance, (x - mean[None]).T).T
    draws = check_samples(x)
    affine = fit_to_target(Given(draws, scores))
    np.testing.assert_allclose(affine.loc, mean, rtol=1e-6)
    np.testing.assert_allclose(affine.scale, jnp.sqrt(jnp.diag(covariance)), rtol=1e-6)


def test_far_from_gaussian_the_draws_own_scale_has_to_do():
    x = jax.random.normal(KEY, (500, 2))
    affine = fit_to_target(Given(check_samples(x), jnp.sin(20 * x)))
    np.testing.assert_allclose(affine.scale, x.std(axis=0), rtol=1e-4)
    np.testing.assert_allclose(affine.loc, x.mean(axis=0), atol=1e-5)


def test_the_result_does_not_depend_on_units_of_a_gaussian_target(good):
    moved = 1000 + 0.01 * good
    plain = adaptive(-1.2 * good, good)
    far = adaptive(-120 * good, moved)
    np.testing.assert_allclose(plain.parts.statistic, far.parts.statistic, rtol=0.02)
