"""How time and memory grow with the number of draws, of dimensions and of devices.

Draws are streamed from a file that is read over and over, so that 10⁸ of them need no disk. Two cores cannot show how
much faster many devices are; what they would send each other is read from the compiled program instead. Run with
`python -m benchmarks.scale`.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxpsd
from benchmarks._harness import main, table
from jaxpsd._core.checks import check_samples
from jaxpsd._core.programs import compiled
from jaxpsd._core.scores import check_input
from jaxpsd._core.sharding import shards_of
from jaxpsd._discrepancies.base import _v
from jaxpsd._gof.bootstrap import Wanted, bootstrap
from jaxpsd._gof.scheme import signs_of

DIM, REPLICATES, IN_FILE = 10, 500, 10**6


def logdensity(x: jax.Array) -> jax.Array:
    return -0.5 * jnp.sum(x**2)


# --- draws from a file, in a process of its own -----------------------------------------------------------


class Repeated:
    """A long array on disk: a short one, read over and over."""

    def __init__(self, array: np.ndarray, length: int):
        self.array, self.shape, self.dtype = array, (length, *array.shape[1:]), array.dtype

    def __getitem__(self, part: slice) -> np.ndarray:
        start, stop, _ = part.indices(self.shape[0])
        return self.array[np.arange(start, stop) % len(self.array)]


def memory(key: str) -> float:
    """MiB of this process, by a line of Linux's status file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 2**10 for line in lines if line.startswith(key))


def streamed(path: str, n: int, replicates: int) -> dict[str, float]:
    """Seconds for n draws, and the memory that they take beyond what a few take."""
    file = np.load(path, mmap_mode="r")
    key, stream = jax.random.key(0), jaxpsd.stream(jaxpsd.PSD(2), num_replicates=replicates)

    def compute(count: int) -> Any:
        source = Repeated(file, count)
        return jax.block_until_ready(
            jaxpsd.stream_over(stream, key, logdensity, source, chunk_length=2**16, progress=False)
        )

    # Compiles for whole chunks and for what is left at the end.
    compute(min(n, 2**17 + n % 2**16))
    before = memory("VmHWM")
    start = time.perf_counter()
    compute(n)
    return {"seconds": time.perf_counter() - start, "extra_mib": memory("VmHWM") - before}


def dimensions(dim: int, n: int) -> dict[str, Any]:
    """Seconds of the PSD of order 2 in so many dimensions, and the memory beyond the draws."""
    x = jax.random.normal(jax.random.key(0), (n, dim))
    psd = jaxpsd.PSD(2)
    before = memory("VmRSS")
    psd(-x, x)
    extra = memory("VmHWM") - before
    start = time.perf_counter()
    rounds = 3
    for _ in range(rounds):
        jax.block_until_ready(psd(-x, x))
    return {"seconds": (time.perf_counter() - start) / rounds, "extra_mib": max(extra, 0.0)}


def in_a_process(name: str, *arguments: Any, devices: int = 1) -> dict[str, Any]:
    """Call a function of this module where nothing has been computed before."""
    call = f"import json; from benchmarks import scale; print(json.dumps(scale.{name}(*{arguments!r})))"
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": str(devices)}
    done = subprocess.run([sys.executable, "-c", call], env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


# --- what devices would send each other -------------------------------------------------------------------


def communication(devices: int, per_device: int) -> dict[str, Any]:
    """Bytes that each device sends in all, by kind of computation, from the compiled programs."""

    def volume(program: Any, num_draws: int, *args: Any) -> tuple[int, list[str]]:
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:devices]), ("draws",))
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("draws"))
        given = check_input(logdensity, jax.device_put(jnp.zeros((num_draws, DIM)), sharding))
        on_devices = compiled(program, shards_of(given.draws.positions), "sums")
        text = on_devices.lower(given.data, *args).compile().as_text() or ""
        found = re.findall(r"= (.+?) (all-gather|all-reduce|all-to-all|collective-permute)(?:-start)?\(", text)
        sent = [sum(map(_bytes, re.findall(r"(\w\d+)\[([\d,]*)\]", result))) for result, _ in found]
        # The body of the ring's loop runs for every meeting.
        meetings = devices // 2
        repeats = [meetings if kind == "collective-permute" else 1 for _, kind in found]
        return sum(size * times for size, times in zip(sent, repeats, strict=True)), sorted({kind for _, kind in found})

    n, few = devices * per_device, devices * 2000
    draws = check_samples(jnp.zeros((8, DIM)))
    psd, ksd = jaxpsd.PSD(2, form="primal"), jaxpsd.KSD()
    signs = signs_of(jax.random.key(0), "markov", 0.1, n, REPLICATES)
    value, _ = volume(_v, n, psd._plan(draws, None))
    test, kinds = volume(bootstrap, n, psd._plan(draws, None, REPLICATES), signs, Wanted())
    ring, of_ring = volume(_v, few, ksd._plan(draws, None))
    return {
        "devices": devices, "n": n, "value_bytes": value, "test_bytes": test, "kinds": ", ".join(kinds),
        "ring_n": few, "ring_bytes": ring, "ring_kinds": ", ".join(of_ring),
    }  # fmt: skip


def _bytes(shape: tuple[str, str]) -> int:
    kind, sizes = shape
    return int(re.sub(r"\D", "", kind)) // 8 * int(np.prod([int(size) for size in sizes.split(",") if size]))


# --- everything -------------------------------------------------------------------------------------------


def run(smoke: bool) -> dict[str, Any]:
    counts = (1000, 2000) if smoke else tuple(10**k for k in range(3, 9))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "draws.npy")
        rng = np.random.default_rng(0)
        np.save(path, rng.normal(size=(1000 if smoke else IN_FILE, DIM)).astype(np.float32))
        draws = [{"n": n, **in_a_process("streamed", path, n, 0)} for n in counts]
        # A test of 10⁸ draws takes minutes, and says nothing that one of 10⁷ does not.
        tests = [{"n": n, **in_a_process("streamed", path, n, REPLICATES)} for n in counts[: 2 if smoke else -1]]
    dims = (2, 5) if smoke else (2, 5, 10, 20, 50, 100, 200, 500, 1000)
    n = 100 if smoke else 10_000
    return {
        "draws": draws, "tests": tests,
        "dimensions": [{"dim": dim, "n": n, **in_a_process("dimensions", dim, n)} for dim in dims],
        "communication": [in_a_process("communication", k, 10 * n, devices=k) for k in ((2,) if smoke else (2, 4, 8))],
    }  # fmt: skip


def slope(rows: list[dict[str, Any]]) -> float:
    """The power of n with which time grows, over the larger half of the counts."""
    rows = rows[len(rows) // 2 :]
    if len(rows) < 2:
        return float("nan")
    return float(np.polyfit(np.log([row["n"] for row in rows]), np.log([row["seconds"] for row in rows]), 1)[0])


def render(result: dict[str, Any]) -> str:
    by_draws = {"n": "n", "seconds": "seconds", "extra_mib": "extra memory (MiB)"}
    by_dim = {"dim": "d", "n": "n", "seconds": "seconds", "extra_mib": "extra memory (MiB)"}
    sent = {
        "devices": "devices", "n": "n", "value_bytes": "value (bytes)", "test_bytes": "test (bytes)", "kinds": "by",
        "ring_n": "n of the KSD", "ring_bytes": "KSD (bytes)", "ring_kinds": "by",
    }  # fmt: skip
    last, test = result["draws"][-1], result["tests"][-1]
    rate, test_rate = last["n"] / last["seconds"], test["n"] / test["seconds"]
    volume = result["communication"][-1]["test_bytes"]
    hours = 1e10 / test_rate / 3600
    return (
        f"# Scale\n\n{result['cpu']}, {result['cores']} cores, jax {result['versions']['jax']}, float32, "
        f"{result['date']}. PSD of order 2.\n\n## Draws streamed from disk, d = {DIM}: the value\n\n"
        + table(by_draws, result["draws"])
        + f"\nTime grows with the power {slope(result['draws']):.2f} of n over the larger half; memory does not.\n\n"
        f"## The same: the test, {REPLICATES} replicates\n\n"
        + table(by_draws, result["tests"])
        + f"\nPower {slope(result['tests']):.2f} of n.\n\n## Dimensions: the value, in memory\n\n"
        + table(by_dim, result["dimensions"])
        + "\n## Devices: what each sends in all\n\n"
        "The number of draws grows with the number of devices. Sums do not: neither with draws nor with devices, but "
        "for the signs that each hands on. The KSD sends every share round half of the ring.\n\n"
        + table(sent, result["communication"])
        + "\n## What this implies for 10¹⁰ draws\n\n"
        f"- On this machine, {rate:,.0f} draws a second for the value and {test_rate:,.0f} for the test: 10¹⁰ draws "
        f"take {1e10 / rate / 3600:.1f} and {hours:.0f} hours, streamed, in the memory of a chunk and of the sums.\n"
        f"- On a pod each of D devices does 1/D of it. For a test each sends {volume:,} bytes, once, at the end: less "
        "than a millisecond on any interconnect, whatever D. Work is divided by D as long as each device has many more "
        "draws than a block. With 256 devices, each only as fast as these two cores, the test takes "
        f"{3600 * hours / 256 / 60:.1f} minutes; 10¹⁰ draws in ten dimensions are 400 GB, 1.6 GB on each.\n"
        "- Dependence is measured on the last 131,072 draws, or on more where chains are slow, in stretches of which "
        "only means travel: at most some 16,000 points of each leading feature.\n"
    )


if __name__ == "__main__":
    main("scale", run, render)
