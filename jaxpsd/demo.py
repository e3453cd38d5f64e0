"""A worked example: choosing the step size of stochastic-gradient Langevin dynamics.

The posterior of Welling and Teh (2011), a mixture with tied means, whose gradient is estimated from ten of a hundred
observations at each step (paper, section 4.2). Large steps are biased by the noise of the gradient; small ones do not
get around. The discrepancy weighs one against the other.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, UInt32

from jaxpsd._choose.rank import rank_orders
from jaxpsd._choose.ranking import Ranking
from jaxpsd._choose.tune import tune
from jaxpsd._choose.tuning import Tuning
from jaxpsd._core.compiling import compile_by_work, for_a_report
from jaxpsd._core.types import LogDensityFn, Scalar
from jaxpsd._discrepancies.psd import PSD
from jaxpsd._explain.diagnose import diagnose
from jaxpsd._explain.report import Report

STEP_SIZES = (5e-2, 1e-2, 5e-3, 1e-3, 5e-4, 1e-4, 5e-5, 1e-5)
ORDERS = (1, 2, 3, 4)

Observations = Float[Array, " observations"]
Means = Float[Array, " 2"]

NUM_CHAINS = 10
_NUM_OBSERVATIONS, _BATCH = 100, 10
# How many chains `tune` runs for each step size, and what a step of theirs costs, in gradients of all observations.
_TUNED_CHAINS, _STEP_PRICE = 4, _BATCH / _NUM_OBSERVATIONS
# Variances of the two prior means and of an observation; and every how many-th draw is kept.
_PRIOR_VARIANCES, _VARIANCE, _THIN = (10.0, 1.0), 2.0, 5


class Demo(NamedTuple):
    """What the example found: draws for each step size, rankings of the step sizes by the PSD of each order.

    The report is on the draws with the step size that the PSD of order `chosen` ranks first. `tuning` has looked for a
    step size by itself, with fewer chains, for a third of what full runs of those at all step sizes would cost.
    """

    logdensity: LogDensityFn
    samples: dict[float, Float[np.ndarray, "chains draws 2"]]
    rankings: Mapping[int, Ranking]
    chosen: int
    report: Report
    tuning: Tuning


@for_a_report()
def run_demo(
    rng_key: PRNGKeyArray,
    num_draws: int,
    order: int,
    *,
    say: Callable[[str], None] = lambda step: None,
    num_chains: int = NUM_CHAINS,
) -> Demo:
    """Sample at each step size, rank, and report on the best; `say` is told of each step.

    Meanwhile `tune` looks for a step size by itself: most of the time of either goes into compiling, on one core.
    """
    keys, data, starts = _begin(rng_key)
    density = jax.tree_util.Partial(log_posterior, data)
    with ThreadPoolExecutor(1) as meanwhile:
        tuning = meanwhile.submit(
            copy_context().run,
            tune,
            keys.tune,
            density,
            partial(_step, data),
            list(STEP_SIZES),
            positions=starts,
            num_steps=2 * num_draws,
            gradients=_STEP_PRICE,
            progress=False,
        )
        say(f"sampling with {len(STEP_SIZES)} step sizes, {num_chains} chains each")
        paths = _run_chains(keys.sample, np.array(STEP_SIZES, data.dtype), data, num_chains, num_draws)
        samples = dict(zip(STEP_SIZES, np.asarray(paths), strict=True))
        orders = sorted({order, *ORDERS})
        named = f"order{'s' if len(orders) > 1 else ''} {', '.join(map(str, orders))}"
        say(f"ranking the step sizes, by the PSD of {named}")
        discrepancy = PSD(max(orders), basis="hermite", transform="target")
        found = rank_orders(
            keys.rank, discrepancy, density, samples, orders, method="markov", per_chain=True, progress=False
        )
        rankings = dict(zip(orders, found, strict=True))
        best = rankings[order].best
        say(f"reporting on the draws of step size {best:g}")
        report = diagnose(keys.report, density, samples[best], names=("theta_1", "theta_2"), progress=False)
        say("waiting for `tune`, which has been asked for a step size")
        return Demo(density, samples, rankings, order, report, tuning.result())


class _Keys(NamedTuple):
    sample: PRNGKeyArray
    rank: PRNGKeyArray
    report: PRNGKeyArray
    tune: PRNGKeyArray


@compile_by_work
def _begin(rng_key: PRNGKeyArray) -> tuple[_Keys, Observations, Float[Array, "chains 2"]]:
    """Keys for all steps, the data, and where the chains of `tune` start."""
    data_key, sample_key, rank_key, report_key = jax.random.split(rng_key, 4)
    tune_key, start_key = jax.random.split(jax.random.fold_in(rng_key, 1))
    starts = jax.vmap(_start)(jax.random.split(start_key, _TUNED_CHAINS))
    return _Keys(sample_key, rank_key, report_key, tune_key), observations(data_key), starts


def observations(rng_key: PRNGKeyArray) -> Observations:
    """Data from the mixture with means 0 and 1."""
    which, noise = jax.random.split(rng_key)
    second = jax.random.bernoulli(which, 0.5, (_NUM_OBSERVATIONS,))
    return second + jnp.sqrt(_VARIANCE) * jax.random.normal(noise, (_NUM_OBSERVATIONS,))


def log_prior(theta: Means) -> Scalar:
    """Both means, normal about zero."""
    return -0.5 * (theta**2 / jnp.array(_PRIOR_VARIANCES)).sum()


def log_likelihood(data: Observations, theta: Means) -> Scalar:
    """½ N(θ₁, 2) + ½ N(θ₁ + θ₂, 2), for each observation."""
    deviations = jnp.stack([data - theta[0], data - theta[0] - theta[1]])
    return jax.nn.logsumexp(-0.5 * deviations**2 / _VARIANCE, axis=0).sum()


def log_posterior(data: Observations, theta: Means) -> Scalar:
    """Unnormalised."""
    return log_prior(theta) + log_likelihood(data, theta)


def _start(rng_key: PRNGKeyArray) -> Means:
    """A draw of the prior."""
    return jnp.sqrt(jnp.array(_PRIOR_VARIANCES)) * jax.random.normal(rng_key, (2,))


def _move(theta: Means, step_size: Scalar, batch: Observations, num_observations: int, noise: Means) -> Means:
    """θ ← θ + ½ε (∇log prior + N/B Σ_batch ∇log likelihood) + √ε noise."""
    factor = num_observations / len(batch)
    gradient = jax.grad(log_prior)(theta) + factor * jax.grad(log_likelihood, argnums=1)(batch, theta)
    return theta + 0.5 * step_size * gradient + jnp.sqrt(step_size) * noise


def _step(data: Observations, rng_key: PRNGKeyArray, theta: Means, step_size: Scalar) -> tuple[Means, Means]:
    """A step with a batch drawn by itself, as `tune` takes it."""
    batch_key, noise_key = jax.random.split(rng_key)
    batch = data[jax.random.randint(batch_key, (_BATCH,), 0, len(data))]
    theta = _move(theta, step_size, batch, len(data), jax.random.normal(noise_key, (2,)))
    return theta, theta


@partial(compile_by_work, static_argnums=(3, 4))
def _run_chains(
    rng_key: PRNGKeyArray, step_sizes: Float[Array, " sizes"], data: Observations, num_chains: int, num_draws: int
) -> Float[Array, "sizes chains draws 2"]:
    """All chains with all step sizes, side by side."""

    def of_size(key: PRNGKeyArray, step_size: Scalar) -> Array:
        keys = jax.random.split(key, num_chains)
        return jax.vmap(lambda key: _run_chain(key, step_size, data, num_draws))(keys)

    return jax.vmap(of_size)(jax.random.split(rng_key, len(step_sizes)), step_sizes)


def _run_chain(rng_key: PRNGKeyArray, step_size: Scalar, data: Observations, num_draws: int) -> Float[Array, "draws 2"]:
    """Steps over batches that partition the data.

    As many draws are discarded at the beginning as are kept, before thinning.
    """
    num_batches = len(data) // _BATCH
    start_key, sweep_key = jax.random.split(rng_key)

    def step(theta: Array, given: tuple[Array, Array]) -> tuple[Array, Array]:
        theta = _move(theta, step_size, given[0], len(data), given[1])
        return theta, theta

    def sweep(theta: Array, key: PRNGKeyArray) -> tuple[Array, Array]:
        order_key, noise_key = jax.random.split(key)
        batches = data[_permutation(order_key, len(data))].reshape(num_batches, _BATCH)
        return jax.lax.scan(step, theta, (batches, jax.random.normal(noise_key, (num_batches, 2))))

    sweeps = -(-2 * num_draws // num_batches)
    _, path = jax.lax.scan(sweep, _start(start_key), jax.random.split(sweep_key, sweeps))
    return path.reshape(-1, 2)[-num_draws::_THIN]


def _permutation(rng_key: PRNGKeyArray, count: int) -> UInt32[Array, " count"]:
    """The numbers below a count in random order: those that sorted random words end in, which is faster to sort."""
    low = jnp.uint32(2 ** (count - 1).bit_length() - 1)
    words = jax.random.bits(rng_key, (count,), jnp.uint32)
    return jnp.sort((words & ~low) | jnp.arange(count, dtype=jnp.uint32)) & low


def draw_figures(demo: Demo, folder: Path) -> list[Path]:
    """Draw all that into files; the result is their names."""
    from matplotlib.figure import Figure

    from jaxpsd import plots

    folder.mkdir(parents=True, exist_ok=True)
    written = []

    def save(name: str, figure: Any) -> None:
        path, partial = folder / f"{name}.png", folder / f"{name}.partial"
        figure.savefig(partial, dpi=120, format="png")
        # At one stroke: an interruption leaves no broken picture.
        written.append(partial.replace(path))

    # Figures of their own, which no window shows and no state holds on to.
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    named = {f"PSD of order {order}": ranking for order, ranking in demo.rankings.items()}
    plots.step_sizes(named, ax=figure.subplots())
    save("step_sizes", figure)

    shown = sorted({max(STEP_SIZES), demo.rankings[demo.chosen].best, min(STEP_SIZES)}, reverse=True)
    figure = Figure(figsize=(4 * len(shown), 3.8), layout="constrained")
    for size, ax in zip(shown, figure.subplots(1, len(shown), squeeze=False)[0], strict=True):
        limits = (-2, 3), (-3, 3)
        plots.draws(demo.logdensity, demo.samples[size], label=f"step size {size:g}", limits=limits, ax=ax)
        ax.set(xlabel="θ₁", ylabel="θ₂")
    save("draws", figure)

    figure = Figure(figsize=(6.4, 4), layout="constrained")
    plots.tuning(demo.tuning, ax=figure.subplots())
    save("tuning", figure)

    figure = Figure(figsize=(11, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    plots.null_distribution(demo.report.discrepancy, ax=left)
    plots.moment_errors(demo.report.moments, ax=right)
    save("best_step_size", figure)
    return written
