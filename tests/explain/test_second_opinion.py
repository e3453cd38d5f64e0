from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpsd
from jaxpsd._explain.second_opinion import is_refuted, with_moves
from jaxpsd._explain.tolerance import Judgement

KEY = jax.random.key(0)


def quartic(x):
    return -0.5 * jnp.sum(x**2) - 0.05 * jnp.sum(x**4)


def banana(x):
    """x₁ is normal about x₀², and the others by themselves."""
    return -0.5 * jnp.sum(x**2) + 0.5 * x[1] ** 2 - 2 * (x[1] - x[0] ** 2) ** 2


@pytest.fixture(scope="module")
def known():
    """Errors of two coordinates and what became of moved draws, neither of which is anything to speak of."""
    x = 0.85 * jax.random.normal(KEY, (500, 2))
    errors = jaxpsd.moment_table(KEY, quartic, x, progress=False).errors
    moved = jaxpsd.relax(KEY, quartic, x, num_draws=100)
    assert np.isfinite(errors.mean_off).all()
    assert np.isfinite(errors.sd_ratio).all()
    assert not is_refuted(errors, moved)
    return errors, moved


def changed(moved, **columns):
    """The first coordinate, with a small standard error and p-value."""
    small = {f"{name}_se": 0.01 for name in ("mean_off", "sd_ratio")}
    values = {name: np.array([first, getattr(moved, name)[1]]) for name, first in (small | columns).items()}
    return replace(moved, **values)


def test_nothing_is_refuted_by_draws_that_did_not_move(known):
    errors, moved = known
    assert not is_refuted(errors, None)
    assert not is_refuted(errors.not_known(), moved)


@pytest.mark.parametrize("sign", [1, -1])
def test_moves_beyond_the_interval_refute_and_part_of_the_way_does_not(known, sign):
    errors, moved = known
    low, high = (float(ends[0]) for ends in errors.mean_off_interval())
    beyond = changed(moved, mean_off=(high if sign > 0 else low) + sign * 0.5, mean_p_value=0.001)
    assert is_refuted(errors, beyond)
    # Chance does as much.
    assert not is_refuted(errors, replace(beyond, mean_p_value=np.array([0.2, 0.2])))
    off = errors._replace(mean_off=errors.mean_off.at[0].set(sign))
    assert not is_refuted(off, changed(moved, mean_off=sign * 0.4, mean_p_value=0.001))
    assert is_refuted(off, changed(moved, mean_off=-sign * 0.4, mean_p_value=0.001))


def test_changes_of_what_is_not_known_refute_what_is(known):
    errors, moved = known
    unknown = errors._replace(sd_ratio=errors.sd_ratio.at[0].set(jnp.nan))
    assert not is_refuted(unknown, moved)
    assert is_refuted(unknown, changed(moved, sd_ratio=0.7, sd_p_value=0.001))
    # Of first moments alone no standard deviation is known.
    first = errors._replace(sd_ratio=None)
    assert is_refuted(first, changed(moved, sd_ratio=0.7, sd_p_value=0.001))


def test_nothing_is_stated_of_refuted_errors(known):
    errors = known[0].not_known()
    for name in ("mean_off", "sd_ratio", "true_correlation"):
        assert np.isnan(getattr(errors, name)).all()
    assert np.isnan(errors.mean_off_interval()).all()
    assert np.isfinite(errors.mean_explained).all()


def test_refuted_judgements_are_withdrawn(known):
    errors, moved = known
    beyond = changed(moved, mean_off=2.0, mean_p_value=0.001)
    for good_enough in (True, False):
        judgement = with_moves(Judgement(good_enough, "so it is"), errors, beyond, 0.1)
        assert judgement == Judgement(None, beyond.statements[0])
        assert with_moves(Judgement(good_enough, "so it is"), errors, None, 0.1).good_enough is good_enough
    unclear = Judgement(None, "nobody knows")
    assert with_moves(unclear, errors, beyond, 0.1) is unclear


def test_a_report_on_a_narrow_approximation_of_a_curved_target_states_no_error():
    narrow = jax.random.normal(KEY, (1000, 3)) * jnp.array([[0.3, 0.5, 1.0]])
    report = jaxpsd.diagnose(KEY, banana, narrow, progress=False)
    assert report.reject
    assert report.good_enough is None
    # That of x[2] is known by itself; but what polynomials say of this target is not to be trusted.
    assert np.isnan(report.moments.errors.mean_off).all()
    assert not report.findings
    assert any("show more of it than polynomials see" in caveat for caveat in report.caveats)
    assert "when the draws follow the target" in report.verdict
    with pytest.raises(AssertionError, match="It cannot be told"):
        jaxpsd.check(KEY, banana, narrow)
