"""The adaptive test: its parts, its calibration on common replicates, its coordinates."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpsd
from jaxpsd._gof import adaptive as adaptive_module

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
        ("means", lambda x: x.at[:, 0].add(0.25)),
        ("scales and correlations", lambda x: x.at[:, 1].set(0.3 * x[:, 0] + 0.91**0.5 * x[:, 1])),
        ("scales", lambda x: x.at[:, 1].multiply(1.2)),
        ("skewness", lambda x: (x**2 + 4 * x - 1) / 18**0.5),
        ("tails", lambda x: jnp.sign(x) * jnp.abs(x) ** 1.5 / 1.2),
        ("largest of degrees 1 and 2", lambda x: x.at[:, 2].add(0.25)),
        ("overall scale", lambda x: 1.05 * x),
    ],
)
def test_each_part_finds_what_it_is_for(good, part, wrong):
    result = adaptive(logdensity, wrong(good))
    assert result.reject
    assert result.parts.reject[result.parts.labels.index(part)]


def test_right_draws_of_a_part_left_out_are_named(good):
    result = adaptive(logdensity, good[:60])
    assert "tails" not in result.parts.labels
    assert any(reason.startswith("tails: takes") for reason in result.left_out)
    assert result.to_dict()["left_out"] == list(result.left_out)
    assert adaptive(logdensity, good).left_out == ()


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


def test_heavy_tailed_targets_take_more_draws_for_high_degrees():
    def student(x):
        return -3 * jnp.sum(jnp.log1p(x**2 / 5))

    x = jax.random.t(jax.random.key(1), 5.0, (1000, 3))
    result = adaptive(student, x)
    assert not result.reject
    assert [reason.split(":")[0] for reason in result.left_out] == ["skewness", "tails"]
    assert "tails" not in result.parts.labels
    assert adaptive(student, 1.5 * x).reject


def test_dependent_draws(chain):
    x = chain(0.9, (2, 4000, 3))
    result = adaptive(logdensity, x)
    assert result.method == "markov"
    assert not result.reject
    assert adaptive(logdensity, x.at[..., 0].add(0.6)).reject


def test_where_products_are_too_many_they_are_summed_over_pairs(good, monkeypatch):
    expected = adaptive(logdensity, good)
    monkeypatch.setattr(adaptive_module, "MEMORY_BUDGET", 40_000)
    result = adaptive(logdensity, good)
    assert result.parts.labels[-1] == "scales and correlations"
    place = expected.parts.labels.index("scales and correlations")
    np.testing.assert_allclose(result.parts.statistic[-1], expected.parts.statistic[place], rtol=1e-3)
    np.testing.assert_allclose(result.parts.replicates[:, -1], expected.parts.replicates[:, place], rtol=1e-2)
    assert "without products" in result.parts.labels[-3]


def test_what_fits_in_no_way_is_left_out_and_named(good, monkeypatch):
    monkeypatch.setattr(adaptive_module, "MEMORY_BUDGET", 25_000)
    monkeypatch.setattr(adaptive_module, "_MOST_WORK", 1e6)
    result = adaptive(logdensity, good)
    named = [reason.split(":")[0] for reason in result.left_out]
    assert named == ["tails", "skewness", "scales and correlations"]


def test_many_coordinates():
    x = jax.random.normal(jax.random.key(1), (100, 60))
    assert adaptive(logdensity, x).p_value > 0.01


def test_more_coordinates_than_draws():
    x = jax.random.normal(jax.random.key(1), (100, 150))
    with pytest.warns(jaxpsd.CoordinatesWarning, match="150 of 150"):
        assert adaptive(logdensity, x).p_value > 0.01


def test_lower_orders_and_no_interactions(good):
    assert adaptive(logdensity, good, order=1).parts.labels == ("means", "largest of degree 1")
    result = adaptive(logdensity, good, order=3, interactions=False)
    assert not result.reject
    assert result.parts.labels == ("means", "scales", "skewness", "largest of degrees 1 and 2", "overall scale")


def test_one_coordinate_has_nothing_twice(good):
    assert adaptive(logdensity, good[:, :1]).parts.labels == ("means", "scales", "skewness", "tails")


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


def test_the_result_does_not_depend_on_units_of_a_gaussian_target(good):
    moved = 1000 + 0.01 * good
    plain = adaptive(-1.2 * good, good)
    far = adaptive(-120 * good, moved)
    np.testing.assert_allclose(plain.parts.statistic, far.parts.statistic, rtol=0.02)
