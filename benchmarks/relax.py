"""How often moved draws call draws of the target wrong, how often they find wrong ones, and what they cost.

Draws of targets of known quantiles: independent, in chains with exact margins, and chains of an exact sampler; then the
same too narrow, or off by some standard deviations. And the first call of `diagnose` in a process of its own, with and
without them. Run with `python -m benchmarks.relax`; interrupted, it goes on where it stopped.
"""

import json
import subprocess
import sys
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

import jaxpsd
from benchmarks._harness import Pieces, main_of_pieces, table
from benchmarks._targets import autoregressive, targets
from benchmarks.level import CHAINS, LENGTH, interval, mala, step_size_of

DIM, REPEATS = 3, 200
NAMES = ("Gaussian", "correlated", "heavy tails", "skewed", "logistic", "bimodal", "banana", "funnel")
RIGHT = ("independent", "ρ = 0.5", "ρ = 0.9", "MALA")
# What is done to independent draws, in standard deviations of each coordinate.
WRONG: dict[str, Callable[[Any], Any]] = {
    "0.8 times as wide": lambda x: x.mean(axis=0) + 0.8 * (x - x.mean(axis=0)),
    "off by 0.3": lambda x: x + 0.3 * x.std(axis=0),
}
LEVELS = (0.05, 0.01)


def draws_of(name: str, kind: str) -> Callable[[jax.Array], jax.Array]:
    target = targets()[name]
    if kind.startswith("ρ = "):
        rho = float(kind.removeprefix("ρ = "))
        return lambda key: target.draws(autoregressive(key, rho, CHAINS, LENGTH, DIM))
    if kind == "MALA":
        return mala(target, step_size_of(target, DIM)[0], DIM, LENGTH)
    return lambda key: target.draws(jax.random.normal(key, (CHAINS * LENGTH, DIM)))


def shares(name: str, kind: str, repeats: int) -> dict[str, Any]:
    """Of sets of such draws that are called wrong."""
    draws, keys = jax.random.split(jax.random.key(zlib.crc32(f"{name}, {kind}".encode())), (2, repeats))
    # Arrays of NumPy: to take those of JAX apart is a program of its own, which takes long to compile.
    sets, change = np.asarray(jax.jit(jax.vmap(draws_of(name, kind)))(draws)), WRONG.get(kind, lambda x: x)
    found = [jaxpsd.relax(key, targets()[name].logdensity, change(x)) for key, x in zip(keys, sets, strict=True)]
    p = np.array([each.p_value for each in found])
    return {
        "target": name, "draws": kind, "repeats": repeats,
        **{f"at {level:g}": float((p <= level).mean()) for level in LEVELS},
        "acceptance": float(np.mean([each.acceptance for each in found])),
        "blocks": float(np.median([each.num_blocks for each in found])),
    }  # fmt: skip


_COLD = """
import json, time
import jax, jax.numpy as jnp, numpy as np, jaxpsd, blackjax
def logdensity(x):
    return -0.5 * jnp.sum(x**2) - 0.05 * jnp.sum(x**4)
x = np.random.default_rng(0).normal(size=({n}, 5)).astype(np.float32)
key = jax.random.key(0).block_until_ready()
wall, cpu = time.perf_counter(), time.process_time()
jaxpsd.diagnose(key, logdensity, x, second_opinion={asked})
print(json.dumps(dict(wall=time.perf_counter() - wall, cpu=time.process_time() - cpu)))
"""


def first_call(n: int, rounds: int) -> dict[str, float]:
    """The shortest of some, since the machine is shared; with and without moved draws, in turns."""
    found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for _ in range(rounds):
        for asked, times in found.items():
            script = _COLD.format(n=n, asked=asked)
            done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
            times.append(json.loads(done.stdout.splitlines()[-1]))
    least = {asked: {key: min(each[key] for each in times) for key in times[0]} for asked, times in found.items()}
    return {f"{key}, {label}": least[asked][key] for key in ("wall", "cpu")
            for asked, label in ((False, "without"), (True, "with"))}  # fmt: skip


def pieces(smoke: bool) -> Pieces:
    if smoke:
        return {
            "Gaussian, independent": partial(shares, "Gaussian", "independent", 2),
            "first call": partial(first_call, 100, 1),
        }
    kinds = (*RIGHT, *WRONG)
    found: dict[str, Any] = {
        f"{name}, {kind}": partial(shares, name, kind, REPEATS) for name in NAMES for kind in kinds
    }
    return found | {"first call": partial(first_call, 500, 3)}


def render(results: dict[str, Any]) -> str:
    rows = [row for name, row in results.items() if name != "first call"]
    cold = results["first call"]
    columns = {"target": "target", "draws": "draws"} | {f"at {level:g}": f"p ≤ {level:g}" for level in LEVELS}
    more = {"acceptance": "acceptance", "blocks": "independent blocks"}
    right, wrong = ([row for row in rows if (row["draws"] in WRONG) is is_wrong] for is_wrong in (False, True))
    low, high = interval(REPEATS)
    walls, cpus = ({label: cold[f"{key}, {label}"] for label in ("without", "with")} for key in ("wall", "cpu"))
    return "\n".join(
        [
            "# Draws that follow the target",
            "",
            f"{CHAINS * LENGTH:,} draws in {DIM} dimensions, of which at most 500 are moved; {REPEATS} sets a row, of "
            f"which a test at level {LEVELS[0]:g} rejects {low:.3f} … {high:.3f}, but for once in 10⁴.",
            "",
            "## Draws of the target that are called wrong",
            "",
            table(columns | more, right),
            "## Wrong draws that are called so",
            "",
            "Every standard deviation, or every mean.",
            "",
            table(columns | more, wrong),
            "## What it costs",
            "",
            f"The first `diagnose` of 500 draws in 5 dimensions takes {walls['with']:.1f} s with moved draws and "
            f"{walls['without']:.1f} s without: {walls['with'] - walls['without']:.1f} s more, "
            f"{cpus['with'] - cpus['without']:.1f} s of the processor.",
            "",
        ]
    )


if __name__ == "__main__":
    main_of_pieces("relax", pieces, render)
