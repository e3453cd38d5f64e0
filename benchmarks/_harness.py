"""What the benchmark scripts share: timing, memory, and results that say where they come from."""

import argparse
import json
import multiprocessing
import os
import platform
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
import scipy.stats
from tqdm import tqdm

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


Pieces = Mapping[str, Callable[[], Any]]
"""Pieces of work by name; each returns what JSON can hold."""

Work = Callable[[bool], Pieces]
"""All pieces of a study, at toy size on request; a function of a module, which other processes find by its name."""


def run_pieces(path: Path, work: Work, *, smoke: bool, one_by_one: bool = False) -> dict[str, Any]:
    """Do what has not been done yet, a piece a core, and write it down piece by piece; a toy run writes nothing."""
    names, start = list(work(smoke)), time.perf_counter()
    kept = {} if smoke else _kept(path)
    found = {name: piece for name, piece in kept.get("pieces", {}).items() if name in names}
    missing = [name for name in names if name not in found]
    done = _one_by_one(work, smoke, missing) if smoke or one_by_one else _on_all_cores(work, missing)
    for name, piece in tqdm(done, desc=path.stem, total=len(missing), disable=smoke):
        found[name] = piece
        if not smoke:
            in_order = {name: found[name] for name in names if name in found}
            wall = kept.get("wall_seconds", 0.0) + time.perf_counter() - start
            text = json.dumps({**provenance(), "wall_seconds": wall, "pieces": in_order}, indent=1)
            write_at_one_stroke(path, text + "\n")
    return {name: found[name]["result"] for name in names}


def kept_pieces(path: Path) -> dict[str, Any]:
    """What an earlier run has written down: each piece with its result and its time."""
    return _kept(path).get("pieces", {})


def wall_seconds(path: Path) -> float:
    """How long all pieces took, those on different cores at the same time."""
    return _kept(path)["wall_seconds"]


def _kept(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def _one_by_one(work: Work, smoke: bool, names: list[str]) -> Iterator[tuple[str, Any]]:
    return ((name, _timed(work, smoke, name)) for name in names)


def _on_all_cores(work: Work, names: list[str]) -> Iterator[tuple[str, Any]]:
    """In processes of one core each: small programs gain little from a second one."""
    context, count = multiprocessing.get_context("spawn"), os.cpu_count() or 1
    cores = context.Queue()
    for core in range(count):
        cores.put(core)
    with ProcessPoolExecutor(count, context, _keep_to_one_core, (cores,)) as pool:
        waiting = {pool.submit(_timed, work, False, name): name for name in names}
        try:
            for future in as_completed(waiting):
                yield waiting[future], future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _keep_to_one_core(cores: Any) -> None:
    """Before JAX starts, which has a thread for each core it sees."""
    # An interrupt is for the parent to report.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {cores.get()})


def _timed(work: Work, smoke: bool, name: str) -> dict[str, Any]:
    start = time.perf_counter()
    with warnings.catch_warnings():
        # Draws are tested in ways that are known to be doubtful, to see how doubtful.
        warnings.simplefilter("ignore", UserWarning)
        result = work(smoke)[name]()
    jax.clear_caches()
    return {"result": result, "seconds": time.perf_counter() - start}


def main_of_pieces(
    name: str,
    work: Work,
    render: Callable[[dict[str, Any]], str],
    draw: Callable[[dict[str, Any]], Any] | None = None,
) -> None:
    """Run a study in pieces from the command line; interrupted, it goes on where it stopped. `draw` gives a figure."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.add_argument("--smoke", action="store_true", help="toy sizes, in seconds; nothing is written")
    parser.add_argument("--one-by-one", action="store_true", help="in this process alone, and not a piece a core")
    options = parser.parse_args()
    found = run_pieces(RESULTS / f"{name}.json", work, smoke=options.smoke, one_by_one=options.one_by_one)
    text, figure = render(found), None if draw is None else draw(found)
    print(text)
    if not options.smoke:
        write_at_one_stroke(RESULTS / f"{name}.md", text)
        if figure is not None:
            figure.savefig(RESULTS / f"{name}.png", dpi=110)


def write_at_one_stroke(path: Path, text: str) -> None:
    """An interruption leaves the old file or the new one."""
    path.parent.mkdir(exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.replace(path)


def interval(share: float, repeats: int) -> tuple[float, float]:
    """Where the probability lies, with 95% confidence, by Clopper and Pearson."""
    count = round(share * repeats)
    low = scipy.stats.beta.ppf(0.025, count, repeats - count + 1) if count > 0 else 0.0
    high = scipy.stats.beta.ppf(0.975, count + 1, repeats - count) if count < repeats else 1.0
    return float(low), float(high)


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
        write_at_one_stroke(RESULTS / f"{name}.json", json.dumps(result, indent=1) + "\n")
        write_at_one_stroke(RESULTS / f"{name}.md", text)
