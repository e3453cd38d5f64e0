"""Stein features of a Gaussian kernel at test locations, and how good locations are found (Jitkrittum et al., 2017).

Good locations are those where a test has most power: they maximise U / √(σ² + γ), with σ² = 4 mean((τᵀτ̄)²) − 4‖τ̄‖⁴
the variance of √n U when the draws are wrong.
"""

import sys
from functools import partial
from math import ceil
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from jaxpsd._core.blocks import einsum
from jaxpsd._core.compiling import compile_by_work
from jaxpsd._core.types import Block, Scalar

# Bounds of the search: log σ², with σ in median distances, and how many standard deviations beyond the draws'
# range a location may lie.
_LOG_VARIANCES = (np.log(1e-2), np.log(1e3))
_BEYOND = 10

# Locations are drawn with a little more variance than the draws have.
_JITTER = 1e-6


def location_features(
    x: Block, s: Block, locations: Float[Array, "locations dim"], bandwidth: Scalar
) -> Float[Array, "block features"]:
    """τ(x) = vec[s k(x, v_j) + ∇ₓk(x, v_j)] / √(dJ) for each draw, k the Gaussian kernel."""
    apart = x[:, None] - locations[None]
    kernel = jnp.exp(-0.5 * (apart**2).sum(axis=2, keepdims=True) / bandwidth**2)
    tau = kernel * (s[:, None] - apart / bandwidth**2)
    return tau.reshape(len(x), -1) / locations.size**0.5


def power_criterion(tau: Float[Array, "draws features"], regularization: ArrayLike) -> Scalar:
    """U / √(σ² + γ), γ the regularisation."""
    n, mean = len(tau), tau.mean(axis=0)
    squared = (mean**2).sum()
    u = (n * squared - (tau**2).sum() / n) / (n - 1)
    variance = 4 * (einsum("nk,k->n", tau, mean) ** 2).mean() - 4 * squared**2
    return u / jnp.sqrt(jnp.maximum(variance, 0) + regularization)


@partial(compile_by_work, static_argnums=2)
def gaussian_locations(rng_key: PRNGKeyArray, x: Block, num_locations: int) -> Float[Array, "locations dim"]:
    """Draws from a Gaussian with the mean and covariance of others."""
    mean = x.mean(axis=0)
    deviations = x - mean[None]
    # A combination of deviations with normal coefficients has their covariance, of whatever rank.
    chosen, extra = random.split(rng_key)
    coefficients = random.normal(chosen, (num_locations, len(x)), x.dtype) / max(len(x) - 1, 1) ** 0.5
    noise = _JITTER**0.5 * x.std(axis=0)[None] * random.normal(extra, (num_locations, x.shape[1]), x.dtype)
    return mean[None] + einsum("jn,nk->jk", coefficients, deviations) + noise


class LocationProblem(NamedTuple):
    """What the criterion depends on but locations and bandwidth, draws x and scores s; and units to search those in.

    The units are mean and standard deviations of the draws, and the median distance between them.
    """

    x: Block
    s: Block
    centre: Float[Array, "1 dim"]
    scale: Float[Array, "1 dim"]
    distance: Scalar
    learning_rate: float
    regularization: float

    def in_units(self, choice: "_Choice") -> tuple[Float[Array, "locations dim"], Scalar]:
        """Locations and bandwidth as the draws are measured."""
        return self.centre + self.scale * choice.locations, self.distance * jnp.exp(0.5 * choice.log_variance)

    def loss(self, choice: "_Choice") -> Scalar:
        features = location_features(self.x, self.s, *self.in_units(choice))
        return -power_criterion(features, self.regularization)

    def bounded(self, choice: "_Choice") -> "_Choice":
        """The nearest choice within reason."""
        x = (self.x - self.centre) / self.scale
        bounds = x.min(axis=0, keepdims=True) - _BEYOND, x.max(axis=0, keepdims=True) + _BEYOND
        return _Choice(jnp.clip(choice.locations, *bounds), jnp.clip(choice.log_variance, *_LOG_VARIANCES))


class _Choice(NamedTuple):
    """Locations, in standard deviations from the mean; and log σ², with σ in median distances."""

    locations: Float[Array, "locations dim"]
    log_variance: Scalar


Progress = tuple[_Choice, Any, Scalar]
"""Where the optimiser stands: the choice, its own state, and the loss."""


@partial(compile_by_work, static_argnums=2)
def _begin(rng_key: PRNGKeyArray, problem: LocationProblem, num_locations: int) -> Progress:
    """Locations as in `FSSD.random`, and the best of a few bandwidths."""
    drawn = (gaussian_locations(rng_key, problem.x, num_locations) - problem.centre) / problem.scale
    candidates = jnp.log(2.0) * jnp.linspace(-3, 3, 5, dtype=drawn.dtype)
    losses = jax.vmap(lambda log_variance: problem.loss(_Choice(drawn, log_variance)))(candidates)
    choice = _Choice(drawn, candidates[jnp.argmin(losses)])
    return choice, _optimizer(problem).init(choice), losses.min()


@partial(compile_by_work, static_argnums=2)
def _advance(progress: Progress, problem: LocationProblem, num_steps: int) -> Progress:
    """Steps of the optimiser."""

    def step(progress: Progress, _: None) -> tuple[Progress, None]:
        choice, state = progress[:2]
        loss, gradient = jax.value_and_grad(problem.loss)(choice)
        updates, state = _optimizer(problem).update(gradient, state)
        return (problem.bounded(jax.tree.map(jnp.add, choice, updates)), state, loss), None

    return lax.scan(step, progress, length=num_steps)[0]


def _optimizer(problem: LocationProblem) -> Any:
    # Not imported with the module: it takes a while, and nothing else needs it.
    import optax

    return optax.adam(problem.learning_rate)


def search_locations(
    rng_key: PRNGKeyArray, problem: LocationProblem, num_locations: int, num_steps: int, *, show: bool
) -> tuple[Float[Array, "locations dim"], Scalar]:
    """Locations and bandwidth that maximise the power criterion."""
    progress = _begin(rng_key, problem, num_locations)
    done, at_once = 0, ceil(num_steps / 20) if show else num_steps
    while done < num_steps:
        steps = min(at_once, num_steps - done)
        progress = _advance(progress, problem, steps)
        done += steps
        if show:
            line = f"\rFSSD: step {done}/{num_steps}, criterion {-float(progress[2]):.4g}"
            print(line, end="\n" if done == num_steps else "", file=sys.stderr, flush=True)  # noqa: T201
    return problem.in_units(progress[0])
