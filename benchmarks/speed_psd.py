"""How fast the PSD is, beside the bare matrix product Φᵀ[S, 1] of the same shape in the same run.

The product is given Φ already formed, in single precision and in the faster of two memory layouts. Calls are
those of a user: checks, warnings and the way to the host included. Run with `python -m benchmarks.speed_psd`.
"""

import time
from itertools import product
from math import comb
from typing import Any

import jax
import jax.numpy as jnp

import jaxpsd
from benchmarks._harness import best_time, main, peak_memory_of, table
from jaxpsd._core.checks import check_samples

# Φ of the bare product is held in memory; the PSD itself does not need it.
LARGEST_PHI_BYTES = 2**32


def logdensity(x):
    return -0.5 * jnp.sum(x**2)


def bare_product(n: int, dim: int, order: int) -> float | None:
    """Shortest time of Φᵀ[S, 1] with Φ formed; None where Φ would not fit."""
    rows = comb(dim + order - 1, order - 1)
    if 4 * n * rows > LARGEST_PHI_BYTES:
        return None
    phi = jax.random.normal(jax.random.key(1), (n, rows))
    scores = jax.random.normal(jax.random.key(2), (n, dim + 1))
    draws_first = jax.jit(lambda phi, scores: phi.T @ scores)
    times = [best_time(lambda: draws_first(phi, scores))]
    phi, scores = jnp.array(phi.T), jnp.array(scores.T)
    draws_last = jax.jit(lambda phi, scores: scores @ phi.T)
    times.append(best_time(lambda: draws_last(phi, scores)))
    return min(times)


def measure(n: int, dim: int, order: int) -> dict[str, Any]:
    x = jax.random.normal(jax.random.key(0), (n, dim))
    scores = jaxpsd.score(logdensity, x)
    psd = jaxpsd.PSD(order)
    jax.clear_caches()
    start = time.perf_counter()
    psd(scores, x)
    first = time.perf_counter() - start
    row = {
        "n": n,
        "dim": dim,
        "order": order,
        "monomials": comb(dim + order, order) - 1,
        "form": psd._choose_form(check_samples(x)),
        "first_call_s": first,
        "value_ms": 1e3 * best_time(lambda: psd(scores, x)),
        "in_jit_ms": None,
        "from_logdensity_ms": None,
        "u_statistic_ms": None,
        "bare_ms": None,
        "ratio": None,
        "ratio_in_jit": None,
    }
    if first < 5:
        inside = jax.jit(psd)
        row["in_jit_ms"] = 1e3 * best_time(lambda: inside(scores, x))
        row["from_logdensity_ms"] = 1e3 * best_time(lambda: psd(logdensity, x))
        row["u_statistic_ms"] = 1e3 * best_time(lambda: psd.u_statistic(scores, x))
    bare = bare_product(n, dim, order)
    if bare is not None:
        row |= {"bare_ms": 1e3 * bare, "ratio": row["value_ms"] / (1e3 * bare)}
        if row["in_jit_ms"] is not None:
            row["ratio_in_jit"] = row["in_jit_ms"] / (1e3 * bare)
    return row


def memory(n: int, dim: int, order: int) -> dict[str, Any]:
    measured = peak_memory_of(f"jaxpsd.PSD({order})(logdensity, x)", n, dim)
    return {"n": n, "dim": dim, "order": order, **measured}


def run(smoke: bool) -> dict[str, Any]:
    grid = list(product((10**3, 10**4, 10**5, 10**6), (1, 10, 20, 50), (1, 2, 3, 4)))
    # A minute for each call and nothing new: 10⁶ draws of 50 coordinates at order 4.
    grid = [(n, dim, order) for n, dim, order in grid if n * comb(dim + order - 1, order - 1) < 10**10]
    large = [(10**7, 10, 2), (10**6, 20, 4), (2000, 1000, 4)]
    if smoke:
        grid, large = [(100, 2, 1), (100, 3, 2), (300, 4, 4)], [(2000, 3, 2)]
    rows = []
    for case in grid:
        rows.append(measure(*case))
        print(rows[-1], flush=True)
    return {"speed": rows, "memory": [memory(*case) for case in large]}


def render(result: dict[str, Any]) -> str:
    speed = {
        "n": "n",
        "dim": "d",
        "order": "r",
        "monomials": "monomials",
        "form": "form",
        "value_ms": "PSD (ms)",
        "in_jit_ms": "in a user's jit (ms)",
        "bare_ms": "bare product (ms)",
        "ratio": "PSD / bare",
        "ratio_in_jit": "in jit / bare",
        "from_logdensity_ms": "from log-density (ms)",
        "u_statistic_ms": "U (ms)",
        "first_call_s": "first call (s)",
    }
    memory = {"n": "n", "dim": "d", "order": "r", "extra_mib": "extra memory (MiB)", "seconds": "first call (s)"}
    return (
        f"# Speed of the PSD\n\n{result['cpu']}, {result['cores']} cores, jax {result['versions']['jax']}, float32, "
        f"{result['date']}. Ratios are to the bare product in the same run.\n\n"
        + table(speed, result["speed"])
        + "\n## Peak memory beyond the draws, scores included\n\n"
        + table(memory, result["memory"])
    )


if __name__ == "__main__":
    main("speed_psd", run, render)
