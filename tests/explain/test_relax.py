import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import jaxpsd
from jaxpsd._explain.moves import _choose_lengths
from jaxpsd._explain.paired import Blocks, changes_of, moment_differences, sign_flip_test
from jaxpsd._gof import pvalues

KEY = jax.random.key(0)


def logdensity(x):
    return -0.5 * jnp.sum(x**2)


# Settings that all cheap tests share, and with them one compiled program.
N, DIM, FEW = 200, 2, {"num_draws": 200, "num_replicates": 199}
SHORT = {**FEW, "num_transitions": 4, "num_steps": 3}


def normal(seed, n=N, dim=DIM):
    return jax.random.normal(jax.random.key(seed), (n, dim))


# --- against what is known ----------------------------------------------------------------------------------


def test_narrow_draws_spread_and_shifted_ones_come_back():
    x = normal(0) * jnp.array([[0.6, 1.0]]) + jnp.array([[0.0, 0.5]])
    result = jaxpsd.relax(KEY, logdensity, x, names=("tau", "mu"), **FEW)
    assert result.reject
    # A correct interval of six standard errors fails once in 10⁸ runs. Ten transitions mix this target completely.
    np.testing.assert_array_less(np.abs(result.mean_off - [0.0, 0.5]), 6 * result.mean_off_se)
    np.testing.assert_array_less(np.abs(np.log(result.sd_ratio / [0.6, 1.0])), 6 * result.sd_ratio_se / result.sd_ratio)
    assert 0.05 < result.mean_off_se[0] < 0.15
    assert result.sd_p_value[0] <= 0.05
    assert result.mean_p_value[1] <= 0.05
    wide, high = result.statements[:2]
    assert wide.startswith("the standard deviation of tau grows by")
    assert wide.endswith("when the draws follow the target for 10 transitions")
    assert high.startswith("the mean of mu moves down by 0.")


def test_draws_of_the_target_are_rarely_rejected():
    repeats = 40
    rejections = sum(jaxpsd.relax(jax.random.key(k), logdensity, normal(k), **SHORT).reject for k in range(repeats))
    # A correct 5% test fails this once in 10⁴ runs.
    assert rejections <= scipy.stats.binom.ppf(1 - 1e-4, repeats, 0.05)


def test_dependent_draws_of_the_target_are_rarely_rejected(chain):
    repeats = 40
    results = [
        jaxpsd.relax(jax.random.key(k), logdensity, chain(0.9, (4, 250, DIM), seed=k), **SHORT) for k in range(repeats)
    ]
    # Starts lie an autocorrelation time apart, about 19 draws; fewer than one in 10³ sets look independent.
    assert max(result.num_draws for result in results) < 200
    # A test that is off by no more than to 8% fails this once in 10⁴ runs.
    assert sum(result.reject for result in results) <= scipy.stats.binom.ppf(1 - 1e-4, repeats, 0.08)


Y = jnp.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = jnp.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def eight_schools(p):
    """Non-centred."""
    tau = jnp.exp(p["log_tau"])
    prior = -0.5 * (p["mu"] / 5) ** 2 - jnp.log1p((tau / 5) ** 2) + p["log_tau"] - 0.5 * jnp.sum(p["theta"] ** 2)
    return prior - 0.5 * jnp.sum(((Y - p["mu"] - tau * p["theta"]) / ERRORS) ** 2)


def test_a_mean_field_of_eight_schools_spreads_to_its_right_width():
    # The optimum of the ELBO over independent normal distributions.
    theta = jnp.array([0.29, 0.10, -0.09, 0.05, -0.18, -0.08, 0.34, 0.07])
    draw = lambda k, mean, sd, *shape: mean + sd * jax.random.normal(jax.random.key(k), (1000, *shape))  # noqa: E731
    samples = {
        "mu": draw(0, 4.54, 3.17),
        "log_tau": draw(1, 0.82, 0.72),
        "theta": theta[None] + draw(2, 0, 0.95, 8),
    }
    result = jaxpsd.relax(KEY, eight_schools, samples, num_draws=1000, fn=lambda p: jnp.exp(p["log_tau"]))
    at = result.names.index("log_tau")
    # Long runs of NUTS say 0.62; a correct interval of four standard errors fails once in 10⁴ runs.
    assert abs(result.sd_ratio[at] - 0.62) < 4 * result.sd_ratio_se[at] < 0.15
    assert result.statements[0].startswith("the standard deviation of log_tau grows by")
    assert result.fn.after[0] > result.fn.before[0]


# --- why it is exact ----------------------------------------------------------------------------------------


def test_before_and_after_are_exchangeable():
    # A skewed target, on which two short transitions mix slowly: the log of a gamma variable.
    x = jnp.log(jax.random.gamma(KEY, 2.0, (2000, 1)))
    result = jaxpsd.relax(KEY, lambda x: jnp.sum(2 * x - jnp.exp(x)), x, num_draws=2000, num_transitions=2, num_steps=2)
    before, after = result.started[:, 0], result.moved[:, 0]
    assert np.corrcoef(before, after)[0, 1] > 0.1
    # Functions whose means would differ for pairs that are not exchangeable; one of three fails once in 10⁴ runs.
    for f in (np.exp, np.sin, lambda x: x**3):
        change = f(before) * after - f(after) * before
        assert abs(change.mean()) < scipy.stats.norm.isf(1e-4 / 6) * change.std() / 2000**0.5


def test_lengths_read_the_same_backwards_and_stay_within_bounds():
    lengths = np.stack([_choose_lengths(np.random.default_rng(k), 10, 8) for k in range(200)])
    np.testing.assert_array_equal(lengths, lengths[:, ::-1])
    assert (lengths.min(), lengths.max()) == (1, 15)
    assert abs(lengths.mean() - 8) < 0.5
    assert (_choose_lengths(np.random.default_rng(0), 4, 1) == 1).all()


def test_differences_change_sign_when_before_and_after_are_swapped():
    before, after = np.random.default_rng(0).normal(size=(2, 50, 3))
    np.testing.assert_allclose(moment_differences(before, after), -moment_differences(after, before), atol=1e-12)


def test_step_down_p_values_are_those_of_the_library():
    differences = np.random.default_rng(1).normal(size=(60, 5)) + np.array([0, 0.5, 0, 0.3, 0])
    blocks = Blocks(np.arange(60), 60)
    p = sign_flip_test(np.random.default_rng(2), differences, blocks, 300)
    # The same signs again.
    signs = np.frombuffer(np.random.default_rng(2).bytes(300 * 8), np.uint8).reshape(300, 8)
    signs = np.concatenate([np.ones((1, 60)), 1.0 - 2.0 * np.unpackbits(signs, axis=1, count=60)])
    values = np.abs(signs @ differences) / np.sqrt((differences**2).sum(axis=0))
    np.testing.assert_allclose(p, pvalues.step_down(-jnp.asarray(values.T)), rtol=1e-5)


def test_standard_errors_are_those_of_the_bootstrap():
    rng = np.random.default_rng(3)
    before = rng.normal(size=(400, 2)) * [0.7, 1.0] + [0.4, 0.0]
    after = 0.5 * before + rng.normal(size=(400, 2))
    changes = changes_of(before, after, Blocks(np.arange(400), 400))
    again = rng.integers(400, size=(1000, 400))
    replicates = [changes_of(before[rows], after[rows], Blocks(np.arange(400), 400)) for rows in again]
    for field in ("mean_off", "sd_ratio"):
        spread = np.std([getattr(each, field) for each in replicates], axis=0)
        # A standard deviation of 1000 replicates is known to 2%.
        np.testing.assert_allclose(getattr(changes, f"{field}_se"), spread, rtol=0.12)


def test_blocks_hold_copies_of_a_draw_and_dependent_draws_together():
    places = np.array([0, 3, 3, 3, 7, 12, 19])
    np.testing.assert_array_equal(Blocks.of_draws(places, 10, None, 0.05).of, [0, 1, 1, 1, 2, 3, 4])
    of, number = Blocks.of_draws(np.arange(400), 200, 10.0, 0.05)
    assert number == 20
    assert (np.bincount(of) == 20).all()
    # Never so few that nothing could be rejected.
    assert Blocks.of_draws(np.arange(400), 200, 1e3, 0.05).number >= 7


# --- what goes in -------------------------------------------------------------------------------------------


def test_structured_draws_come_back_in_their_structure():
    x = normal(1, dim=3)
    samples = {"b": x[:, 1:].reshape(2, 100, 2), "a": x[:, 0].reshape(2, 100)}
    target = lambda p: -0.5 * (p["a"] ** 2 + jnp.sum(p["b"] ** 2))  # noqa: E731
    fn = lambda p: {"square": p["a"] ** 2, "both": p["b"] > 0}  # noqa: E731
    result = jaxpsd.relax(KEY, target, samples, fn=fn, chains=True, **FEW)
    assert result.names == ("a", "b[0]", "b[1]")
    assert jax.tree.map(np.shape, result.moved) == {"a": (200,), "b": (200, 2)}
    np.testing.assert_array_equal(result.started["b"], x[:, 1:])
    assert result.fn.names == ("both[0]", "both[1]", "square")
    np.testing.assert_allclose(result.fn.after[2], (result.moved["a"] ** 2).mean(), rtol=1e-5)
    np.testing.assert_allclose(result.fn.change, result.fn.after - result.fn.before, atol=1e-12)
    # A flat array of the same draws moves to the same places.
    flat = jaxpsd.relax(KEY, logdensity, x, **FEW)
    np.testing.assert_allclose(flat.moved[:, 0], result.moved["a"], atol=1e-3)


def test_weighted_draws_are_chosen_by_their_weights():
    x = 1.5 * normal(2, n=1000)
    log_weights = jax.vmap(logdensity)(x) - jax.vmap(lambda x: logdensity(x / 1.5))(x)
    weighted = jaxpsd.relax(KEY, logdensity, x, weights=jnp.exp(log_weights), num_draws=500)
    # A correct test fails this twice in 10³ runs.
    assert weighted.p_value > 0.002
    assert weighted.num_blocks < 500
    np.testing.assert_allclose(np.std(weighted.started, axis=0), 1, atol=0.15)
    assert jaxpsd.relax(KEY, logdensity, x, num_draws=500).reject


def test_the_key_decides_everything():
    x = normal(3)
    one, same, other = (jaxpsd.relax(jax.random.key(k), logdensity, x, **FEW) for k in (1, 1, 2))
    np.testing.assert_array_equal(one.moved, same.moved)
    np.testing.assert_array_equal(one.sd_p_value, same.sd_p_value)
    assert (one.moved != other.moved).any()
    jaxpsd.relax(jax.random.PRNGKey(0), logdensity, x, **FEW)


def test_a_function_that_is_defined_anew_is_not_compiled_again(compilations):
    for k in range(3):
        data = jnp.full(DIM, 0.1 * k)
        x = normal(k)
        before = compilations.count
        jaxpsd.relax(
            jax.random.key(k), lambda x, d=data: -0.5 * jnp.sum((x - d) ** 2), x, fn=lambda x: x[0] ** 2, **FEW
        )
        assert k == 0 or compilations.count == before


def test_derivatives_of_ones_own_making_are_followed():
    @jax.custom_jvp
    def half_square(x):
        return 0.5 * jnp.sum(x**2)

    half_square.defjvp(lambda primals, tangents: (half_square(*primals), jnp.sum(primals[0] * tangents[0])))
    result = jaxpsd.relax(KEY, lambda x: -half_square(x), 0.5 * normal(4), **FEW)
    assert result.reject


def test_many_draws_at_once_are_cut_into_blocks(monkeypatch):
    from jaxpsd._explain import moves

    monkeypatch.setattr(moves, "_WORKING_BYTES", 2**11)
    result = jaxpsd.relax(KEY, lambda x: -0.5 * jnp.sum((x * 1.0) ** 2), 0.5 * normal(5), **FEW)
    assert result.stuck == 0
    np.testing.assert_allclose(np.std(result.moved, axis=0), 1, atol=0.3)


def test_few_draws_in_many_dimensions_move_by_their_own_scale():
    x = normal(6, n=20, dim=30)
    result = jaxpsd.relax(KEY, logdensity, x, num_replicates=99)
    assert result.num_draws == 20
    assert np.isfinite(result.sd_ratio).all()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"logdensity_fn": np.zeros((N, DIM))}, TypeError, "scores that are known at the draws alone; got ndarray"),
        ({"fn": 3}, TypeError, "`fn` must be a function of one position"),
        ({"num_transitions": 3}, ValueError, "`num_transitions` must be even"),
        ({"num_transitions": 0}, ValueError, "`num_transitions` must be an integer of at least 1"),
        ({"num_draws": 1}, ValueError, "`num_draws` must be at least 2"),
        ({"num_steps": 0}, ValueError, "`num_steps` must be an integer"),
        ({"target_acceptance": 1.5}, ValueError, "`target_acceptance` must be a float between 0 and 1"),
        ({"num_replicates": 5}, ValueError, "nothing can be rejected"),
        ({"names": ("a",)}, ValueError, "`names` must be strings"),
        ({"fn": lambda x: jnp.log(x)}, FloatingPointError, "`fn` is not finite"),
    ],
)
def test_what_makes_no_sense_is_refused(options, error, message):
    options = {"logdensity_fn": logdensity, "samples": normal(0), **FEW, **options}
    with pytest.raises(error, match=message):
        jaxpsd.relax(KEY, **options)


def test_a_draw_outside_the_support_is_named():
    x = jnp.abs(normal(0)).at[7, 1].set(-1.0)
    inside = lambda x: jnp.where((x > 0).all(), -jnp.sum(x), -jnp.inf)  # noqa: E731
    with pytest.raises(ValueError, match=r"not finite at draw 7.*outside the support"):
        jaxpsd.relax(KEY, inside, x)


def test_it_cannot_be_traced():
    with pytest.raises(ValueError, match="cannot be traced"):
        jax.jit(lambda x: jaxpsd.relax(KEY, logdensity, x).moved)(normal(0))


def test_without_blackjax_it_says_how_to_install_it():
    script = (
        "import sys; sys.modules['blackjax'] = None; import jax, jaxpsd;"
        "jaxpsd.relax(jax.random.key(0), lambda x: -x @ x, jax.numpy.zeros((9, 1)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'jaxpsd[blackjax]'" in done.stderr


# --- what comes out -----------------------------------------------------------------------------------------


def test_results_print_and_go_to_json():
    result = jaxpsd.relax(KEY, logdensity, 0.6 * normal(0), fn=lambda x: x[0] ** 2, **FEW)
    text, html = repr(result), result._repr_html_()
    for shown in ("sd, before / after", "x[1]", "after − before", "10 transitions", "acceptance"):
        assert shown in text
        assert shown in html
    assert json.loads(json.dumps(result.to_dict()))["fn"]["names"] == ["fn"]
    assert "The standard deviation of x[0] grows by" in text
    assert any(sentence.startswith("the mean of fn moves from 0.3") for sentence in result.statements)
    low, high = result.sd_ratio_interval
    assert ((low < result.sd_ratio) & (result.sd_ratio < high) & (high < 1)).all()
    low, high = result.mean_off_interval
    np.testing.assert_allclose((high - low) / result.mean_off_se, 2 * scipy.stats.t.isf(0.025, 199), rtol=1e-6)


def test_no_change_is_said_to_prove_nothing():
    result = jaxpsd.relax(jax.random.key(1), logdensity, normal(1), **FEW)
    assert result.statements == ()
    assert "Nothing moved beyond chance, which proves nothing about slow directions." in repr(result)


def test_draws_that_do_not_move_are_reported():
    # A log-density that is not smooth at all: leapfrog steps know nothing of it.
    rough = lambda x: -0.5 * jnp.sum(x**2) + jax.lax.stop_gradient(50 * jnp.sum(jnp.sin(1e4 * x)))  # noqa: E731
    result = jaxpsd.relax(KEY, rough, normal(0), **FEW)
    assert result.acceptance < 0.6
    stuck = jaxpsd.relax(KEY, lambda x: rough(x) + 1e3 * jax.lax.stop_gradient(jnp.sin(1e5 * x[0])), normal(0), **FEW)
    assert stuck.acceptance < 0.3
    assert any("hardly move" in caveat for caveat in stuck.caveats)
    still = (stuck.started == stuck.moved).all(axis=1)
    assert stuck.stuck == still.mean() > 0.01
    assert any("never moved" in caveat for caveat in stuck.caveats)


def test_too_few_blocks_to_reject_anything_are_a_caveat():
    result = jaxpsd.relax(KEY, logdensity, normal(0, n=4), num_replicates=99)
    assert any("only 4 independent blocks" in caveat for caveat in result.caveats)
