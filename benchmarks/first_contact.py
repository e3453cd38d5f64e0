"""How long a first call takes, in a process of its own and without programs compiled before: most of it is compiling.

Beside wall time there is the processor's, which other work on the machine changes less, and its ratio to compiling an
empty function in the same process. The command line is run on one file twice, with a cache of its own.

Run with `python -m benchmarks.first_contact`.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._harness import main, table

CALLS = {
    "PSD(2)": "jaxpsd.PSD(2)(logdensity, x)",
    "gof_test, auto": "jaxpsd.gof_test(key, jaxpsd.PSD(2), logdensity, x)",
    "adaptive_test": "jaxpsd.adaptive_test(key, logdensity, x)",
    "moment_table": "jaxpsd.moment_table(key, logdensity, x)",
    "rank of 3": "jaxpsd.rank(key, None, logdensity, {'a': x, 'b': 1.1 * x, 'c': 1.3 * x})",
    "diagnose": "jaxpsd.diagnose(key, logdensity, x, second_opinion=False)",
}

# Chains, draws and coordinates, and another number of draws.
_SHAPE, _OTHER = (4, 1000, 5), 937

_SCRIPT = """
import json, time
import jax, jax.numpy as jnp, numpy as np, jaxpsd
compiling = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: event == "/jax/core/compile/backend_compile_duration" and compiling.append(seconds)
)
def timed(call):
    compiling.clear()
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return dict(wall=wall, cpu=cpu, programs=len(compiling), compiling=sum(compiling))
def logdensity(x):
    return -0.5 * jnp.sum(x**2) - 0.05 * jnp.sum(x**4)
def call(count):
    x = np.random.default_rng(count).normal(size=({chains}, count, {dim})).astype(np.float32)
    return lambda: call_with(x)
def call_with(x):
    {call}
key = jax.random.key(0).block_until_ready()
empty = timed(lambda: jax.jit(lambda x: x)(np.float32(1)))
cold, other, warm = (timed(call(count)) for count in ({draws}, {other}, {other}))
print(json.dumps(dict(empty=empty, cold=cold, other=other, warm=warm)))
"""


def run(smoke: bool) -> dict[str, Any]:
    chains, draws, dim = (2, 60, 2) if smoke else _SHAPE
    sizes = {"chains": chains, "draws": draws, "dim": dim, "other": 50 if smoke else _OTHER}
    calls = dict(list(CALLS.items())[:1]) if smoke else CALLS
    rows = [{"call": name, **_first_call(call, sizes)} for name, call in calls.items()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "draws.npz"
        x = np.random.default_rng(0).normal(size=(chains, draws, dim)).astype(np.float32)
        np.savez(path, samples=x, scores=-x)
        commands = {"--help": ["--help"], "test": ["test", str(path)], "diagnose": ["diagnose", str(path)]}
        commands |= {"demo": ["demo", "--folder", folder]}
        asked = {"--help": commands["--help"]} if smoke else commands
        runs = [
            {"command": name, "run": which, **_command(arguments, folder)}
            for name, arguments in asked.items()
            for which in ("first", "second")
        ]
    return {**sizes, "rows": rows, "commands": runs}


def _environment(**more: str) -> dict[str, str]:
    """Without a cache of the developer's, and as users have it."""
    dropped = ("JAX_COMPILATION_CACHE_DIR", "JAX_DISABLE_MOST_OPTIMIZATIONS", "XLA_FLAGS")
    return {name: value for name, value in os.environ.items() if name not in dropped} | more


def _first_call(call: str, sizes: dict[str, int]) -> dict[str, float]:
    script = _SCRIPT
    for name, value in {**sizes, "call": call}.items():
        script = script.replace("{" + name + "}", str(value))
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=_environment())
    found = json.loads(done.stdout.splitlines()[-1])
    cold, empty = found["cold"], found["empty"]
    return {
        **cold,
        "ratio": cold["cpu"] / empty["cpu"],
        "other_wall": found["other"]["wall"],
        "other_cpu": found["other"]["cpu"],
        "warm": found["warm"]["wall"],
    }


def _command(arguments: list[str], cache: str) -> dict[str, float]:
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "jaxpsd", *arguments], capture_output=True, env=_environment(XDG_CACHE_HOME=cache)
    )
    if done.returncode > 1:
        raise RuntimeError(f"jaxpsd {' '.join(arguments)} has failed: {done.stderr.decode()}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": time.perf_counter() - start, "cpu": cpu}


def render(result: dict[str, Any]) -> str:
    columns = {
        "call": "call",
        "wall": "first (s)",
        "cpu": "of the processor (s)",
        "ratio": "in empty compilations",
        "programs": "programs",
        "compiling": "XLA (s)",
        "other_wall": "another number of draws (s)",
        "other_cpu": "of the processor (s) ",
        "warm": "again (s)",
    }
    commands = {"command": "`jaxpsd …`", "run": "run", "wall": "seconds", "cpu": "of the processor"}
    sizes = f"{result['chains']} chains of {result['draws']} draws in {result['dim']} dimensions"
    return (
        f"# First calls\n\n{sizes}, each call in a process of its own, without programs compiled before.\n\n"
        + table(columns, result["rows"])
        + "\n\nCommands on a file of the same draws, imports included, with programs kept from the first run:\n\n"
        + table(commands, result["commands"])
    )


if __name__ == "__main__":
    main("first_contact", run, render)
