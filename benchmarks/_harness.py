"""What the benchmark scripts share: timing, memory, and results that say where they come from."""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

RESULTS = Path(__file__).parent / "results"


def best_time(fn: Callable[[], Any], *, seconds: float = 0.5, most: int = 50) -> float:
    """Shortest time of a call in seconds, after warming up: the machine is shared, the work is not."""

    def once() -> float:
        start = time.perf_counter()
        jax.block_until_ready(fn())
        return time.perf_counter() - start

    # A long call needs no repeats to be told from its noise.
    fewest = 1 if once() > 2 else 3
    times = [once() for _ in range(fewest)]
    while sum(times) < seconds and len(times) < most:
        times.append(once())
    return min(times)


def interleaved_times(calls: dict[str, Callable[[], Any]], *, rounds: int) -> dict[str, float]:
    """Shortest time of each call in seconds, all of them taking turns, so that a busy moment hits all alike."""
    best = dict.fromkeys(calls, float("inf"))
    for turn in range(rounds + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            jax.block_until_ready(call())
            if turn:
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def in_one_program(once: Callable[[jax.Array], Any], seed: int, repeats: int) -> np.ndarray:
    """What `once(key)` gives for different keys, usually p-values: finite numbers."""
    found = np.asarray(jax.jit(partial(jax.lax.map, once))(jax.random.split(jax.random.key(seed), repeats)))
    if not np.isfinite(found).all():
        raise FloatingPointError("A repeat gave something that is not a finite number.")
    return found


_MEMORY_SCRIPT = """
import json, time
import jax, jax.numpy as jnp, jaxpsd
def memory(key):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) / 2**10 for line in lines if line.startswith(key))
logdensity = lambda x: -0.5 * jnp.sum(x**2)
# Draws in pieces, so that making them leaves no peak of its own.
x = jnp.zeros(({n}, {dim}))
def fill(x, key, start):
    return jax.lax.dynamic_update_slice_in_dim(x, jax.random.normal(key, (1000, {dim})), start, axis=0)
fill = jax.jit(fill, donate_argnums=0)
for start in range(0, {n}, 1000):
    x = fill(x, jax.random.key(start), start)
x.block_until_ready()
# Linux then forgets the peak that making the draws has left.
open("/proc/self/clear_refs", "w").write("5")
before = memory("VmRSS")
start = time.perf_counter()
value = float({value})
seconds = time.perf_counter() - start
print(json.dumps(dict(value=value, seconds=seconds, before_mib=before, extra_mib=memory("VmHWM") - before)))
"""


def peak_memory_of(value: str, n: int, dim: int) -> dict[str, float]:
    """What an expression in `logdensity` and normal draws `x` takes beyond them, in a process of its own."""
    script = _MEMORY_SCRIPT.format(n=n, dim=dim, value=value)
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def provenance() -> dict[str, Any]:
    """Versions and hardware, to stand beside every result."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "versions": {name: version(name) for name in ("jaxpsd", "jax", "jaxlib", "numpy")},
        "python": platform.python_version(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "device": jax.devices()[0].device_kind,
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def table(columns: dict[str, str], rows: Iterable[dict[str, Any]]) -> str:
    """A Markdown table: column titles by key, numbers with three significant digits."""

    def cell(value: Any) -> str:
        if value is None:
            return ""
        return f"{value:.3g}" if isinstance(value, float | np.floating) else str(value)

    lines = ["| " + " | ".join(columns.values()) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell(row.get(key)) for key in columns) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def main(name: str, run: Callable[[bool], dict[str, Any]], render: Callable[[dict[str, Any]], str]) -> None:
    """Run a benchmark from the command line; `--smoke` tries everything at toy size and writes nothing."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.add_argument("--smoke", action="store_true", help="toy sizes, in seconds; nothing is written")
    options = parser.parse_args()
    result = {**provenance(), **run(options.smoke)}
    text = render(result)
    print(text)
    if not options.smoke:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
        (RESULTS / f"{name}.md").write_text(text)
