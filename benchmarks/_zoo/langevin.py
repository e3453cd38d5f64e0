"""Langevin chains in whitened coordinates y of the target: y′ = y + ½h ∇log p(y) + √h z, with or without a test."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks._zoo.known import KnownTarget

CHAINS, LONGEST = 4, 2500

# Steps to choose from; and the bias that is sought: squared, of a second moment, in units of its standard deviation.
_STEPS = 1.6 * 2.0 ** -np.arange(0, 6, 0.5)
_SQUARED_BIAS, _LEAST, _MOST = 0.12, 0.03, 0.5


@dataclass(frozen=True, eq=False)
class Langevin:
    """Four chains, from exact draws."""

    target: KnownTarget
    step: float
    thin: int
    adjusted: bool

    def draw(self, key: jax.Array, n: int) -> jax.Array:
        """Chains (4, n / 4, dim); of up to 10,000 draws, such that one program serves any number of them."""
        if n > CHAINS * LONGEST:
            raise ValueError(f"There are at most {CHAINS * LONGEST:,} draws; got n = {n:,}.")
        start, run = jax.random.split(key)
        x, _ = _chains(self.target, LONGEST, self.thin, self.adjusted)(self.target.exact(start, CHAINS), run, self.step)
        return x[:, : n // CHAINS]


_PROGRAMS: dict[tuple[str, int, int, bool], Callable[..., tuple[jax.Array, jax.Array]]] = {}


def _chains(target: KnownTarget, num: int, thin: int, adjusted: bool) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """A program from starts (chains, dim), a key and a step to positions (chains, num, dim) and rates of acceptance."""
    which = (target.name, num, thin, adjusted)
    if which not in _PROGRAMS:
        _PROGRAMS[which] = jax.jit(partial(_run, target, num, thin, adjusted))
    return _PROGRAMS[which]


def _run(
    target: KnownTarget, num: int, thin: int, adjusted: bool, starts: jax.Array, key: jax.Array, step: jax.Array
) -> tuple[jax.Array, jax.Array]:
    factor, mean = np.linalg.cholesky(target.covariance), target.mean

    def logdensity(y: jax.Array) -> jax.Array:
        return target.logdensity(jnp.asarray(mean, y.dtype) + jnp.asarray(factor, y.dtype) @ y)

    score = jax.vmap(jax.value_and_grad(logdensity))

    def log_proposal(to: jax.Array, y: jax.Array, s: jax.Array) -> jax.Array:
        return -((to - y - 0.5 * step * s) ** 2).sum(axis=1) / (2 * step)

    def move(state: tuple, key: jax.Array) -> tuple[tuple, jax.Array]:
        y, value, s = state
        noise, coin = jax.random.split(key)
        new = y + 0.5 * step * s + jnp.sqrt(step) * jax.random.normal(noise, y.shape)
        new_value, new_s = score(new)
        if not adjusted:
            return (new, new_value, new_s), jnp.ones(len(y))
        log_ratio = new_value - value + log_proposal(y, new, new_s) - log_proposal(new, y, s)
        accept = jnp.log(jax.random.uniform(coin, log_ratio.shape)) < log_ratio
        chosen = (
            jnp.where(accept.reshape(-1, *[1] * (a.ndim - 1)), a, b)
            for a, b in zip((new, new_value, new_s), state, strict=True)
        )
        return tuple(chosen), accept.astype(y.dtype)

    def keep(state: tuple, key: jax.Array) -> tuple[tuple, tuple[jax.Array, jax.Array]]:
        state, accepted = jax.lax.scan(move, state, jax.random.split(key, thin))
        return state, (state[0], accepted.mean(axis=0))

    whitened = jnp.asarray(np.linalg.inv(factor), starts.dtype)
    y = (starts - jnp.asarray(mean, starts.dtype)[None]) @ whitened.T
    _, (path, accepted) = jax.lax.scan(keep, (y, *score(y)), jax.random.split(key, num))
    x = jnp.asarray(mean, y.dtype)[None, None] + path @ jnp.asarray(factor.T, y.dtype)
    return jnp.swapaxes(x, 0, 1), accepted.mean(axis=0)


def choose_adjusted(target: KnownTarget) -> float:
    """The largest step at which six proposals in ten are accepted."""
    starts, program = target.exact(jax.random.key(0), 100), _chains(target, 100, 1, True)
    rates = [float(program(starts, jax.random.key(1), step)[1].mean()) for step in _STEPS]
    # Where none is small enough the smallest has to do.
    return float(next((step for step, rate in zip(_STEPS, rates, strict=True) if rate >= 0.6), _STEPS[-1]))


def choose_unadjusted(target: KnownTarget) -> float | None:
    """The step whose squared bias, of the worst coordinate, is nearest to what is sought; None if none is near."""
    starts, program = target.exact(jax.random.key(0), 200), _chains(target, 200, 5, False)
    right = target.draw(np.random.default_rng(0), 100_000)
    second = ((right - target.mean) / target.sd) ** 2
    best, found = np.inf, None
    for step in _STEPS:
        x = np.asarray(program(starts, jax.random.key(1), step)[0], np.float64)[:, 40:]
        if not np.isfinite(x).all() or np.abs((x - target.mean) / target.sd).max() > 100:
            continue
        bias = (((x - target.mean) / target.sd) ** 2).mean(axis=(0, 1)) - 1
        squared = (bias**2 / second.var(axis=0)).max()
        off = abs(np.log(squared / _SQUARED_BIAS))
        if _LEAST <= squared <= _MOST and off < best:
            best, found = off, float(step)
    return found


def law_of(target: KnownTarget, step: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of unadjusted chains after two million steps; not numbers where they run away."""
    x = _chains(target, 400, 10, False)(target.exact(jax.random.key(2), 500), jax.random.key(3), step)[0]
    x = np.asarray(x, np.float64)[:, 20:].reshape(-1, target.dim)
    if not np.abs((x - target.mean) / target.sd).max() < 100:
        return np.full(target.dim, np.nan), np.full((target.dim, target.dim), np.nan)
    return x.mean(axis=0), np.atleast_2d(np.cov(x, rowvar=False))
