"""Draws of a posterior in unconstrained space: four chains of Markov chain methods, or independent ones.

MALA and MCLMC run in coordinates divided by the standard deviations of NUTS's draws, from where its warm-up has ended,
at three step sizes each; the one in the middle is what their users are told to choose.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import optax

CHAINS = 4

LogDensity = Callable[[jax.Array], jax.Array]

# How many steps a draw of MALA and MCLMC takes; and how many of them tell whether a step size is a good one.
_THIN, _TRIED = 10, 100

# Share of proposals that MALA accepts at a good step; variance of MCLMC's energy in a step, for each coordinate.
_ACCEPTED, _ENERGY_VARIANCE = 0.57, 5e-4

_ELBO_STEPS, _ELBO_DRAWS = 2000, 10


class Nuts(NamedTuple):
    """Chains that have been warmed up, and how to go on: `run(key, states, num)` gives states and positions."""

    states: Any
    run: Callable[[jax.Array, Any, int], tuple[Any, jax.Array]]


def warmed_up_nuts(key: jax.Array, logdensity: LogDensity, dim: int, num_warmup: int) -> Nuts:
    """Four chains that start near the origin; each finds its step size and diagonal mass matrix."""
    start_key, key = jax.random.split(key)
    starts = 0.1 * jax.random.normal(start_key, (CHAINS, dim))
    warmup = blackjax.window_adaptation(blackjax.nuts, logdensity, adaptation_info_fn=lambda *_: ())
    kernel = blackjax.nuts.build_kernel()

    @jax.jit
    def warm(keys: jax.Array) -> Any:
        found, _ = jax.vmap(lambda key, start: warmup.run(key, start, num_steps=num_warmup))(keys, starts)
        return found

    states, parameters = warm(jax.random.split(key, CHAINS))

    @jax.vmap
    def step(key: jax.Array, state: Any, step_size: jax.Array, inverse_mass: jax.Array) -> Any:
        return kernel(key, state, logdensity, step_size, inverse_mass)[0]

    def run(key: jax.Array, states: Any, num: int) -> tuple[Any, jax.Array]:
        def move(states: Any, key: jax.Array) -> tuple[Any, jax.Array]:
            keys = jax.random.split(key, CHAINS)
            states = step(keys, states, parameters["step_size"], parameters["inverse_mass_matrix"])
            return states, states.position

        states, x = jax.lax.scan(move, states, jax.random.split(key, num))
        return states, jnp.swapaxes(x, 0, 1)

    return Nuts(states, jax.jit(run, static_argnums=2))


class _Method(NamedTuple):
    """A chain with a step size, in scaled coordinates; its `move` gives a number that tells whether the step is good.

    good
        Whether a step with such a mean of these numbers is small enough.
    largest
        The step to begin with.
    smaller, larger
        Factors from a good step to one that is too small, and to one that is too large.
    """

    init: Callable[[jax.Array, jax.Array], Any]
    move: Callable[[jax.Array, Any, jax.Array], tuple[Any, jax.Array]]
    good: Callable[[float], bool]
    largest: float
    smaller: float
    larger: float


def _mala(logdensity: LogDensity, dim: int) -> _Method:
    kernel = blackjax.mala.build_kernel()

    def move(key: jax.Array, state: Any, step: jax.Array) -> tuple[Any, jax.Array]:
        state, info = kernel(key, state, logdensity, step)
        return state, info.acceptance_rate

    del dim
    return _Method(
        lambda key, y: blackjax.mala.init(y, logdensity), move, lambda rate: rate >= _ACCEPTED, 2.0, 1 / 100, 8.0
    )


def _mclmc(logdensity: LogDensity, dim: int) -> _Method:
    kernel = blackjax.mclmc.build_kernel()

    def move(key: jax.Array, state: Any, step: jax.Array) -> tuple[Any, jax.Array]:
        # Of unit variances √dim is how far momentum should carry.
        state, info = kernel(key, state, logdensity, 1.0, dim**0.5, step)
        return state, info.energy_change**2 / dim

    # A step that diverges changes no state, and has no energy; so that a good one has some.
    return _Method(
        lambda key, y: blackjax.mclmc.init(y, logdensity, key), move, lambda change: 0 < change <= _ENERGY_VARIANCE,
        dim**0.5, 1 / 10, 4.0,
    )  # fmt: skip


METHODS = {"MALA": _mala, "MCLMC": _mclmc}


def at_three_steps(
    name: str, key: jax.Array, logdensity: LogDensity, starts: jax.Array, scale: jax.Array, num: int
) -> dict[str, jax.Array]:
    """Chains (chains, num, dim) of a method, from positions (chains, dim), by what its step is like."""
    method = METHODS[name](lambda y: logdensity(scale * y), starts.shape[1])
    init_key, try_key, run_key = jax.random.split(key, 3)
    states = jax.vmap(method.init)(jax.random.split(init_key, CHAINS), starts / scale)

    def run(key: jax.Array, step: jax.Array, num: int, thin: int) -> tuple[jax.Array, jax.Array]:
        def move(states: Any, key: jax.Array) -> tuple[Any, jax.Array]:
            return jax.vmap(method.move, in_axes=(0, 0, None))(jax.random.split(key, CHAINS), states, step)

        def keep(states: Any, key: jax.Array) -> tuple[Any, tuple[jax.Array, jax.Array]]:
            states, told = jax.lax.scan(move, states, jax.random.split(key, thin))
            return states, (states.position, told.mean())

        _, (y, told) = jax.lax.scan(keep, states, jax.random.split(key, num))
        return scale * jnp.swapaxes(y, 0, 1), told.mean()

    program = jax.jit(run, static_argnums=(2, 3))
    step = method.largest
    while not method.good(float(program(try_key, step, _TRIED, 1)[1])) and step > 1e-6:
        step /= 2**0.5
    factors = {"step too small": method.smaller, "good step": 1.0, "step too large": method.larger}
    return {f"{name}, {label}": program(run_key, step * factor, num, _THIN)[0] for label, factor in factors.items()}


def mean_field(key: jax.Array, logdensity: LogDensity, start: jax.Array, scale: jax.Array, num: int) -> jax.Array:
    """Independent draws (num, dim) of the factorised Gaussian with the largest ELBO, found by Adam."""
    optimizer = optax.adam(optax.cosine_decay_schedule(0.03, _ELBO_STEPS))
    fit_key, draw_key = jax.random.split(key)

    def at(parameters: tuple[jax.Array, jax.Array], z: jax.Array) -> jax.Array:
        mean, log_sd = parameters
        return scale * (mean + jnp.exp(log_sd) * z)

    def loss(parameters: tuple[jax.Array, jax.Array], key: jax.Array) -> jax.Array:
        z = jax.random.normal(key, (_ELBO_DRAWS // 2, len(start)))
        values = jax.vmap(lambda z: logdensity(at(parameters, z)))(jnp.concatenate([z, -z]))
        return -values.mean() - parameters[1].sum()

    @jax.jit
    def fit(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        def step(carry: tuple[Any, Any], key: jax.Array) -> tuple[tuple[Any, Any], None]:
            parameters, state = carry
            updates, state = optimizer.update(jax.grad(loss)(parameters, key), state)
            return (optax.apply_updates(parameters, updates), state), None

        parameters = (start / scale, jnp.full(len(start), -1.0))
        return jax.lax.scan(step, (parameters, optimizer.init(parameters)), jax.random.split(key, _ELBO_STEPS))[0][0]

    return at(fit(fit_key), jax.random.normal(draw_key, (num, len(start))))


def pathfinder(key: jax.Array, logdensity: LogDensity, dim: int, num: int) -> jax.Array:
    """Independent draws (num, dim) of one path, from near the origin."""
    start_key, fit_key, draw_key = jax.random.split(key, 3)
    start = 0.1 * jax.random.normal(start_key, (dim,))
    state, _ = jax.jit(lambda key: blackjax.vi.pathfinder.approximate(key, logdensity, start))(fit_key)
    return blackjax.vi.pathfinder.sample(draw_key, state, num)[0]


def pooled_sd(x: jax.Array) -> jax.Array:
    """Of chains (chains, num, dim), all together."""
    return jnp.asarray(np.asarray(x, np.float64).std(axis=(0, 1)), x.dtype)
