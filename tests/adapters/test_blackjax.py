"""States of BlackJAX's samplers pass straight in."""

from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxpsd

KEY = jax.random.key(0)


def logdensity(p):
    return -0.5 * (jnp.sum(p["beta"] ** 2) + (p["mu"] - 1) ** 2 / 4)


START = {"mu": jnp.zeros(()), "beta": jnp.zeros(2)}


def chain(kernel, state, n):
    def step(state, key):
        state, _ = kernel.step(key, state)
        return state, state

    return jax.jit(lambda state: jax.lax.scan(step, state, jax.random.split(jax.random.key(1), n))[1])(state)


@pytest.mark.parametrize("name", ["mala", "nuts"])
def test_states_are_samples(name):
    options = {"mala": {"step_size": 0.4}, "nuts": {"step_size": 0.7, "inverse_mass_matrix": jnp.ones(3)}}[name]
    kernel = getattr(blackjax, name)(logdensity, **options)
    states = chain(kernel, kernel.init(START), 5000)
    result = jaxpsd.adaptive_test(KEY, logdensity, states)
    assert not result.reject
    # What the sampler knows already will do as scores.
    assert float(jaxpsd.PSD(2)(states.logdensity_grad, states)) == pytest.approx(
        float(jaxpsd.PSD(2)(logdensity, states.position)), rel=1e-3
    )
    assert jaxpsd.score(logdensity, states)["beta"].shape == (5000, 2)


def test_particles_are_samples():
    svgd = blackjax.svgd(jax.grad(logdensity), optax.sgd(0.1))
    particles = {"mu": jax.random.normal(KEY, (50,)), "beta": jax.random.normal(KEY, (50, 2))}
    state = svgd.init(particles)
    step = jax.jit(svgd.step)
    for _ in range(3):
        state = step(state)
    assert float(jaxpsd.PSD(1)(logdensity, state)) == pytest.approx(float(jaxpsd.PSD(1)(logdensity, state.particles)))


def test_positions_of_sgld_are_samples():
    sgld = blackjax.sgld(lambda p, _: jax.grad(logdensity)(p))

    def step(position, key):
        position = sgld.step(key, position, None, 0.05)
        return position, position

    _, positions = jax.lax.scan(step, START, jax.random.split(KEY, 2000))
    assert np.isfinite(float(jaxpsd.PSD(2)(logdensity, positions)))


@pytest.mark.slow
def test_approximations_are_samples():
    _, info = blackjax.vi.pathfinder.approximate(KEY, logdensity, START)
    best = jax.tree.map(lambda leaf: leaf[np.argmax(np.asarray(info.path.elbo))], info.path)
    drawn, _ = blackjax.vi.pathfinder.sample(KEY, best, 1000)
    assert np.isfinite(float(jaxpsd.PSD(2)(logdensity, drawn)))
    vi = blackjax.meanfield_vi(logdensity, optax.adam(0.05), 50)
    state = vi.init(START)
    state, _ = jax.lax.scan(lambda s, key: (vi.step(key, s)[0], None), state, jax.random.split(KEY, 400))
    drawn = vi.sample(KEY, state, 1000)
    assert float(jaxpsd.PSD(2)(logdensity, drawn)) < 1


@pytest.fixture(scope="module")
def four_chains():
    """A scan over steps of several chains: (draws, chains, …)."""
    num_chains, n = 4, 300
    kernel = blackjax.nuts(logdensity, 0.7, jnp.ones(3))
    start = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_chains, *leaf.shape)), START)

    def step(states, key):
        states, infos = jax.vmap(kernel.step)(jax.random.split(key, num_chains), states)
        return states, (states, infos)

    keys = jax.random.split(KEY, n)
    return jax.jit(lambda states: jax.lax.scan(step, states, keys)[1])(jax.vmap(kernel.init)(start))


def test_chains_of_a_scan_are_put_in_order(four_chains):
    states, infos = four_chains
    scores, samples = jaxpsd.from_blackjax(states, infos)
    assert samples.num_chains == 4
    np.testing.assert_array_equal(samples["beta"], jnp.swapaxes(states.position["beta"], 0, 1))
    np.testing.assert_allclose(scores["mu"], jaxpsd.score(logdensity, samples)["mu"], rtol=1e-5, atol=1e-6)
    assert (samples.origin.kind, samples.origin.library) == ("mcmc", "BlackJAX")
    assert samples.origin.divergences == int(infos.is_divergent.sum())
    assert samples.origin.acceptance == pytest.approx(float(infos.acceptance_rate.mean()))
    swapped = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), states)
    np.testing.assert_array_equal(jaxpsd.from_blackjax(swapped)[1]["mu"], samples["mu"])
    one = jax.tree.map(lambda leaf: leaf[:, 0], states)
    target, samples = jaxpsd.from_blackjax(one, target=logdensity)
    assert target is logdensity
    assert (samples.num_chains, samples.num_draws) == (1, 300)


def test_chains_that_cannot_be_told_are_asked_for(four_chains):
    states, infos = four_chains
    square = jax.tree.map(lambda leaf: leaf[:4], states)
    with pytest.raises(ValueError, match="say by `chain_axis`"):
        jaxpsd.from_blackjax(square)
    assert jaxpsd.from_blackjax(square, chain_axis=1)[1].num_chains == 4
    with pytest.raises(ValueError, match=r"leading axes are \(300,\), with chain_axis=1"):
        jaxpsd.from_blackjax(jax.tree.map(lambda leaf: leaf[:, 0], states), chain_axis=1)
    with pytest.raises(TypeError, match="`states` must be states of a sampler"):
        jaxpsd.from_blackjax(states.position)
    without = blackjax.rmh.init(START, logdensity)
    with pytest.raises(ValueError, match="RWState has no gradients; pass the log-density"):
        jaxpsd.from_blackjax(jax.tree.map(lambda leaf: jnp.stack([leaf] * 9), without))
    with pytest.raises(TypeError, match=r"tuple of HMCState and NUTSInfo; pass the states alone"):
        jaxpsd.score(logdensity, (states, infos))
    with pytest.raises(TypeError, match=r"is a NUTSInfo, which says how transitions went"):
        jaxpsd.score(logdensity, infos)


def test_unadjusted_chains_are_said_to_be():
    state = blackjax.mclmc.init(START, logdensity, KEY)
    states = jax.tree.map(lambda leaf: jnp.stack([leaf] * 5), state)
    assert jaxpsd.from_blackjax(states)[1].origin.kind == "sg-mcmc"
    svgd = blackjax.svgd(jax.grad(logdensity), optax.sgd(0.1)).init({"mu": jnp.zeros(5), "beta": jnp.zeros((5, 2))})
    assert jaxpsd.from_blackjax(svgd, target=logdensity)[1].origin.kind == "unknown"


def test_more_chains_than_draws_look_swapped(four_chains):
    states, _ = four_chains
    with pytest.warns(jaxpsd.ChainsWarning, match=r"300 chains of 4 draws each.*`jnp.swapaxes\(x, 0, 1\)`"):
        jaxpsd.PSD(1)(lambda x: -0.5 * jnp.sum(x**2), states.position["beta"])
    # Draws have said what their chains are.
    jaxpsd.PSD(1)(lambda x: -0.5 * jnp.sum(x**2), jaxpsd.Draws(jnp.ones((20, 2)), 10))


def test_what_is_no_draws_is_told_by_name():
    vi = blackjax.meanfield_vi(logdensity, optax.adam(0.05), 5)
    with pytest.raises(TypeError, match="`samples` is a MFVIState, the state of a variational approximation"):
        jaxpsd.score(logdensity, vi.init(START))
    state = jax.jit(lambda key: blackjax.vi.pathfinder.approximate(key, logdensity, START, num_samples=5)[0])(KEY)
    with pytest.raises(TypeError, match="`samples` is a PathfinderState"):
        jaxpsd.score(logdensity, state)
    pair = blackjax.vi.pathfinder.sample(KEY, state, 5)
    with pytest.raises(TypeError) as caught:
        jaxpsd.score(logdensity, pair)
    assert any(
        "of draws and their log q, as Pathfinder samples, pass the draws" in note for note in caught.value.__notes__
    )


def test_a_discrepancy_can_be_followed_inside_the_sampling_loop():
    kernel = blackjax.mala(logdensity, 0.4)
    init, update, _, result = jaxpsd.stream(jaxpsd.PSD(2))

    def step(carry, key):
        state, seen = carry
        state, _ = kernel.step(key, state)
        return (state, update(seen, logdensity, jax.tree.map(lambda leaf: leaf[None], state.position))), state

    (_, seen), states = jax.jit(
        lambda state: jax.lax.scan(step, (state, init(KEY, START)), jax.random.split(KEY, 500))
    )(kernel.init(START))
    np.testing.assert_allclose(result(seen), jaxpsd.PSD(2)(logdensity, states), rtol=1e-3)


class State(NamedTuple):
    position: Any
    logdensity: Any
    logdensity_grad: Any


@pytest.mark.parametrize(
    ("states", "message"),
    [
        (State({}, jnp.zeros(9), {}), "hold no positions"),
        (State(jnp.zeros((9, 2)), jnp.zeros(8), jnp.zeros((9, 2))), "of the same transitions"),
        (State(jnp.zeros((9, 2)), jnp.zeros(9), jnp.zeros((8, 2))), "Gradients must have the shape of the positions"),
    ],
)
def test_states_that_do_not_fit_together_are_named(states, message):
    with pytest.raises(ValueError, match=message):
        jaxpsd.from_blackjax(states)
