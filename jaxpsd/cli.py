"""The command line: `jaxpsd demo`."""

import argparse
import json
import os
import sys
import warnings
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxpsd import PSD, Affine, DependentDrawsWarning, __version__, gof_test

_STEP_SIZES = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.001)
_NUM_CHAINS = 8
_MEAN = np.array([1.0, -2.0, 0.5, 0.0, 30.0])
_SD = np.array([1.0, 0.5, 2.0, 1.0, 10.0])
_CORRELATION = 0.6


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the result is the exit code."""
    parser = argparse.ArgumentParser(prog="jaxpsd", description="How good is a set of Monte Carlo draws?")
    parser.add_argument("--version", action="version", version=f"jaxpsd {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="rank step sizes of an unadjusted Langevin sampler on a known target")
    demo.add_argument("--draws", type=_several, default=20_000, help="draws kept of each chain (%(default)s)")
    demo.add_argument("--order", type=int, choices=range(1, 9), default=2, help="polynomial order (%(default)s)")
    demo.add_argument("--seed", type=_seed, default=0, help="seed of the random numbers (%(default)s)")
    demo.add_argument("--json", action="store_true", help="print the table as JSON")
    options = parser.parse_args(arguments)
    try:
        _run_demo(options)
    except BrokenPipeError:
        # Whoever read the output has seen enough. Python must not try to flush the rest at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _run_demo(options: argparse.Namespace) -> None:
    rows = _demo(jax.random.key(options.seed), options.draws, options.order)
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        _print_demo(rows, options.draws, options.order)
    sys.stdout.flush()


def _several(text: str) -> int:
    return _integer(text, range(2, sys.maxsize))


def _seed(text: str) -> int:
    return _integer(text, range(2**32))


def _integer(text: str, allowed: range) -> int:
    try:
        value = int(text)
    except ValueError:
        value = None
    if value is None or value not in allowed:
        raise argparse.ArgumentTypeError(f"must be an integer from {allowed[0]} to {allowed[-1]}, not {text!r}")
    return value


def _covariance() -> np.ndarray:
    correlations = _CORRELATION ** np.abs(np.subtract.outer(np.arange(len(_SD)), np.arange(len(_SD))))
    return correlations * np.outer(_SD, _SD)


def _logdensity(x: Float[Array, " dim"]) -> Float[Array, ""]:
    """A Gaussian with correlated coordinates on scales from 0.5 to 10."""
    deviation = x - jnp.asarray(_MEAN, x.dtype)
    return -0.5 * deviation @ jnp.asarray(np.linalg.inv(_covariance()), x.dtype) @ deviation


@partial(jax.jit, static_argnames="num_draws")
@partial(jax.vmap, in_axes=(0, None, None))
def _unadjusted_langevin(rng_key: Array, step_size: Array, num_draws: int) -> Float[Array, "draws dim"]:
    """One chain of x ← x + ½ ε D ∇log p(x) + √(ε D) · noise, D the target's variances.

    Without an accept step its draws are biased, the more the larger ε, while a small ε hardly moves.
    """
    variances = jnp.asarray(_SD**2, jnp.float32)

    def step(x: Array, key: Array) -> tuple[Array, Array]:
        noise = jnp.sqrt(step_size * variances) * jax.random.normal(key, x.shape, x.dtype)
        x = x + 0.5 * step_size * variances * jax.grad(_logdensity)(x) + noise
        return x, x

    start = jnp.asarray(_MEAN + 3 * _SD, jnp.float32)
    _, path = jax.lax.scan(step, start, jax.random.split(rng_key, num_draws + num_draws // 10))
    return path[num_draws // 10 :]


def _demo(rng_key: Array, num_draws: int, order: int) -> list[dict[str, float]]:
    # One transform for all candidates, here by the target's own moments: a fair comparison.
    psd = PSD(order, transform=Affine(jnp.asarray(_MEAN), jnp.asarray(np.linalg.cholesky(_covariance()))))
    rows = []
    for key, step_size in zip(
        jax.random.split(rng_key, len(_STEP_SIZES)), jnp.asarray(_STEP_SIZES, jnp.float32), strict=True
    ):
        samples = _unadjusted_langevin(jax.random.split(key, _NUM_CHAINS), step_size, num_draws)
        draws = np.asarray(samples, np.float64).reshape(-1, len(_MEAN))
        with warnings.catch_warnings():
            # The smallest step sizes are here to show what dependence does.
            warnings.simplefilter("ignore", DependentDrawsWarning)
            test = gof_test(key, psd, _logdensity, samples)
        rows.append(
            {
                "step_size": round(float(step_size), 6),
                "psd": float(jnp.sqrt(test.statistic)),
                "p_value": float(test.p_value),
                "autocorrelation_time": float(test.autocorrelation_time),
                "largest_mean_error": float(np.abs((draws.mean(0) - _MEAN) / _SD).max()),
                "largest_sd_error": float(np.abs(draws.std(0) / _SD - 1).max()),
            }
        )
    return sorted(rows, key=lambda row: row["psd"])


def _print_demo(rows: list[dict[str, float]], num_draws: int, order: int) -> None:
    print(
        f"Unadjusted Langevin draws ({_NUM_CHAINS} chains of {num_draws:,} for each step size) of a Gaussian with "
        f"{len(_MEAN)} correlated\ncoordinates, ranked by the polynomial Stein discrepancy (PSD) of order {order}. "
        "PSD, test and autocorrelation\ntime see only draws and log-density; the errors beside them use the "
        "target's known moments, for comparison.\n"
    )
    print(
        f"{'rank':>4}  {'step size':>9}  {'PSD':>8}  {'p-value':>7}  {'autocorrelation time':>20}  "
        f"{'mean off by':>12}  {'sd off by':>9}"
    )
    for rank, row in enumerate(rows, start=1):
        print(
            f"{rank:>4}  {row['step_size']:>9g}  {row['psd']:>8.3f}  {row['p_value']:>7.3f}  "
            f"{row['autocorrelation_time']:>20.0f}  "
            f"{row['largest_mean_error']:>9.2f} sd  {row['largest_sd_error']:>9.0%}"
        )
    print(f"\nThe step size to use: {rows[0]['step_size']:g}.")


if __name__ == "__main__":
    sys.exit(main())
