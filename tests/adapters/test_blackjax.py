"""States of BlackJAX's samplers pass straight in."""

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
    for _ in range(3):
        state = svgd.step(state)
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
