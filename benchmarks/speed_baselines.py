"""How fast the other discrepancies are, beside other libraries and beside the PSD, in one run.

Needs `pip install -r benchmarks/requirements.txt`; a library that is not there is left out. Calls are those of a user,
from given scores (coreax evaluates them itself, at a cost that does not count here). Run with
`python -m benchmarks.speed_baselines`.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import jaxpsd
from benchmarks._harness import interleaved_times, main, peak_memory_of, table

try:
    from sgmcmcjax.ksd import imq_KSD
except ImportError:
    imq_KSD = None
try:
    import coreax
    from coreax.kernels import PCIMQKernel, SteinKernel
    from coreax.metrics import KSD as CoreaxKSD
except ImportError:
    coreax = None


def coreax_ksd(x: jax.Array, block_size: int) -> Callable[[], jax.Array]:
    # With this length its kernel is (1 + ‖x − y‖²)^{−½}.
    metric = CoreaxKSD(SteinKernel(PCIMQKernel(length_scale=0.5**0.5), score_function=lambda x: -x))
    compute = jax.jit(lambda data: metric.compute(data, data, block_size=block_size))
    data = coreax.Data(x)
    return lambda: compute(data)


def kernel_discrepancies(n: int, dim: int, rounds: int) -> dict[str, Any]:
    """The same number by three libraries; larger blocks make coreax slower."""
    x = jax.random.normal(jax.random.key(0), (n, dim))
    s = -x
    calls: dict[str, Callable[[], jax.Array]] = {"jaxpsd": lambda: jaxpsd.KSD()(s, x)}
    if imq_KSD is not None:
        calls["SGMCMCJax"] = lambda: imq_KSD(x, s)
    if coreax is not None:
        calls["coreax"] = coreax_ksd(x, block_size=n // 40)
    values = [float(call()) for call in calls.values()]
    np.testing.assert_allclose(values, values[0], rtol=1e-3)
    times = interleaved_times(calls, rounds=rounds)
    row = {
        "n": n,
        "dim": dim,
        "jaxpsd_ms": 1e3 * times["jaxpsd"],
        "sgmcmcjax_ms": None,
        "coreax_ms": None,
        "ratio": None,
    }
    if imq_KSD is not None:
        row["sgmcmcjax_ms"] = 1e3 * times["SGMCMCJax"]
    if coreax is not None:
        row["coreax_ms"] = 1e3 * times["coreax"]
    others = [row[name] for name in ("sgmcmcjax_ms", "coreax_ms") if row[name] is not None]
    if others:
        row["ratio"] = min(others) / row["jaxpsd_ms"]
    return row


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
            "kernel": [kernel_discrepancies(200, 3, 1)],
            "every": discrepancies(100, 2, 1, quadratic=True),
            "memory": [memory(1000, 2)],
        }
    kernel = []
    for dim, rounds in ((10, 4), (100, 1)):
        kernel.append(kernel_discrepancies(10_000, dim, rounds))
        print(kernel[-1], flush=True)
    every = [
        *discrepancies(2000, 2, 30, quadratic=True),
        *discrepancies(10_000, 10, 10, quadratic=True),
        *discrepancies(100_000, 10, 10, quadratic=False),
    ]
    return {"kernel": kernel, "every": every, "memory": [memory(100_000, 10)]}


def render(result: dict[str, Any]) -> str:
    kernel = {
        "n": "n", "dim": "d", "jaxpsd_ms": "jaxpsd (ms)", "coreax_ms": "coreax (ms)", "sgmcmcjax_ms": "SGMCMCJax (ms)",
        "ratio": "the faster of them / jaxpsd",
    }  # fmt: skip
    every = {"n": "n", "dim": "d", "discrepancy": "discrepancy", "ms": "time (ms)", "ratio": "/ PSD r = 2"}
    memory = {"n": "n", "dim": "d", "extra_mib": "extra memory (MiB)", "seconds": "first call (s)"}
    return (
        f"# Speed of other discrepancies\n\n{result['cpu']}, {result['cores']} cores, jax {result['versions']['jax']}, "
        f"float32, {result['date']}. Ratios are from one run, calls taking turns.\n\n"
        "## The IMQ KSD by three libraries\n\n"
        + table(kernel, result["kernel"])
        + "\n## Every discrepancy, inside `jit`\n\n"
        + table(every, result["every"])
        + "\n## Peak memory of the IMQ KSD beyond the draws\n\n"
        + table(memory, result["memory"])
    )


if __name__ == "__main__":
    main("speed_baselines", run, render)
