"""What an eager call costs beyond the compiled program: checks, and tracing the log-density so that it is never stale.

Run with `python -m benchmarks.eager`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxpsd
from benchmarks._harness import interleaved_times, main, table


def logdensity(x):
    return -0.5 * jnp.sum(x**2)


COMPILED = "compiled program (scores)"


class Model:
    """A log-density that is a method, and so may change its state unseen."""

    def logdensity(self, x):
        """Of a standard normal."""
        return -0.5 * jnp.sum(x**2)


def logistic(num_observations: int, dim: int) -> Callable[[jax.Array], jax.Array]:
    """A posterior that refers to NumPy arrays, which are passed to the program at every call."""
    rng = np.random.default_rng(0)
    covariates = rng.normal(size=(num_observations, dim)).astype(np.float32)
    outcomes = rng.integers(0, 2, num_observations).astype(np.float32)

    def posterior(beta):
        logits = covariates @ beta
        return jnp.sum(outcomes * logits - jnp.logaddexp(0.0, logits)) - 0.5 * jnp.sum(beta**2)

    return posterior


def tests_of(psd: jaxpsd.PSD, scores: jax.Array, x: jax.Array) -> dict[str, Callable[[], Any]]:
    key, test = jax.random.key(1), partial(jaxpsd.gof_test, method="rademacher")
    compiled = jax.jit(lambda key, scores, x: test(key, psd, scores, x))
    return {
        COMPILED: lambda: compiled(key, scores, x),
        "scores": lambda: test(key, psd, scores, x),
        "log-density": lambda: test(key, psd, logdensity, x),
        'log-density, method="auto"': lambda: jaxpsd.gof_test(key, psd, logdensity, x),
    }


def run(smoke: bool) -> dict[str, Any]:
    n, dim = 1000, 5
    x = jax.random.normal(jax.random.key(0), (n, dim))
    scores, psd, posterior = -x, jaxpsd.PSD(2), logistic(100, dim)
    compiled = jax.jit(psd)
    targets = {
        "scores": scores,
        "log-density": logdensity,
        "log-density under jax.jit": jax.jit(logdensity),
        "log-density defined anew": None,
        "method": Model().logdensity,
        "logistic regression, 100 observations": posterior,
        "the same under jax.jit": jax.jit(posterior),
    }

    def call(name: str) -> Callable[[], Any]:
        target = targets[name]
        if target is None:
            return lambda: psd(lambda x: -0.5 * jnp.sum(x**2), x)
        return lambda: psd(target, x)

    calls = {COMPILED: lambda: compiled(scores, x), **{name: call(name) for name in targets}}
    best = interleaved_times(calls, rounds=3 if smoke else 300)
    rows = [{"call": name, "ms": 1e3 * time, "beyond": 1e3 * (time - best[COMPILED])} for name, time in best.items()]
    tests = []
    for count in (n,) if smoke else (n, 10 * n):
        more = jax.random.normal(jax.random.key(0), (count, dim))
        each = interleaved_times(tests_of(psd, -more, more), rounds=3 if smoke else 300)
        tests += [
            {"n": count, "call": name, "ms": 1e3 * time, "ratio": time / each[COMPILED]} for name, time in each.items()
        ]
    few = x[:2]
    large = logistic(1000 if smoke else 5_000_000, dim)
    data = {
        "log-density": lambda: jaxpsd.score(logdensity, few),
        "100 MB of NumPy data": lambda: jaxpsd.score(large, few),
        "the same under jax.jit": lambda: jaxpsd.score(jitted, few),
    }
    jitted = jax.jit(large)
    times = interleaved_times(data, rounds=1 if smoke else 10)
    return {
        "n": n, "dim": dim, "rows": rows, "tests": tests,
        "data": [{"call": name, "ms": 1e3 * time} for name, time in times.items()],
    }  # fmt: skip


def render(result: dict[str, Any]) -> str:
    columns = {"call": "`PSD(2)(…, samples)` given", "ms": "ms", "beyond": "beyond the compiled program"}
    tests = {"n": "draws", "call": "`gof_test(…)` given", "ms": "ms", "ratio": "beside the compiled program"}
    data = {"call": "`score(…)` of two draws given", "ms": "ms"}
    return (
        f"# Eager calls\n\n{result['cpu']}, {result['cores']} cores, {result['date']}: {result['n']} draws in "
        f"{result['dim']} dimensions, shortest times.\n\n"
        + table(columns, result["rows"])
        + '\nTests with 500 replicates, method="rademacher" unless it says otherwise:\n\n'
        + table(tests, result["tests"])
        + "\n\nData that a log-density refers to is passed to the program, not hashed nor built in:\n\n"
        + table(data, result["data"])
    )


if __name__ == "__main__":
    main("eager", run, render)
