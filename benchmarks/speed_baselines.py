"""How fast the other discrepancies are beside the PSD, in one run, from given scores.

Run with `python -m benchmarks.speed_baselines`.
"""

from typing import Any

import jax

import jaxpsd
from benchmarks._harness import interleaved_times, main, peak_memory_of, table


def discrepancies(n: int, dim: int, rounds: int, *, quadratic: bool) -> list[dict[str, Any]]:
    """Every discrepancy of the same draws, by time and in units of the PSD of order 2."""
    x = jax.random.normal(jax.random.key(0), (n, dim))
    s = -x
    every: dict[str, jaxpsd.Discrepancy] = {f"PSD r = {order}": jaxpsd.PSD(order) for order in (1, 2, 3, 4)}
    every |= {
        "RFSD": jaxpsd.RFSD(),
        "FSSD": jaxpsd.FSSD.random(jax.random.key(1), x),
        "linear KSD": jaxpsd.LinearKSD(),
    }
    if quadratic:
        every |= {
            "IMQ KSD": jaxpsd.KSD(),
            "Gaussian KSD": jaxpsd.KSD(jaxpsd.Gaussian()),
            "moment KSD": jaxpsd.KSD(jaxpsd.MomentKernel(2)),
        }
    # Compiled by a user: what an eager call adds, about a millisecond, is not what is compared here. The RFSD by its
    # logarithm, which is always representable.
    compiled = {
        name: jax.jit(each.log_value if isinstance(each, jaxpsd.RFSD) else each) for name, each in every.items()
    }
    calls = {name: (lambda fn=fn: fn(s, x)) for name, fn in compiled.items()}
    times = interleaved_times(calls, rounds=rounds)
    return [
        {"n": n, "dim": dim, "discrepancy": name, "ms": 1e3 * times[name], "ratio": times[name] / times["PSD r = 2"]}
        for name in every
    ]


def memory(n: int, dim: int) -> dict[str, Any]:
    return {"n": n, "dim": dim, **peak_memory_of("jaxpsd.KSD()(logdensity, x)", n, dim)}


def run(smoke: bool) -> dict[str, Any]:
    if smoke:
        return {
            "every": discrepancies(100, 2, 1, quadratic=True),
            "memory": [memory(1000, 2)],
        }
    every = [
        *discrepancies(2000, 2, 30, quadratic=True),
        *discrepancies(10_000, 10, 10, quadratic=True),
        *discrepancies(100_000, 10, 10, quadratic=False),
    ]
    return {"every": every, "memory": [memory(100_000, 10)]}


def render(result: dict[str, Any]) -> str:
    every = {"n": "n", "dim": "d", "discrepancy": "discrepancy", "ms": "time (ms)", "ratio": "/ PSD r = 2"}
    memory = {"n": "n", "dim": "d", "extra_mib": "extra memory (MiB)", "seconds": "first call (s)"}
    return (
        f"# Speed of other discrepancies\n\n{result['cpu']}, {result['cores']} cores, jax {result['versions']['jax']}, "
        f"float32, {result['date']}. Ratios are from one run, calls taking turns.\n\n"
        "## Every discrepancy, inside `jit`\n\n"
        + table(every, result["every"])
        + "\n## Peak memory of the IMQ KSD beyond the draws\n\n"
        + table(memory, result["memory"])
    )


if __name__ == "__main__":
    main("speed_baselines", run, render)
