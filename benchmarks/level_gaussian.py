"""How often tests with normal replicates reject correct draws at the 5% level, beside tests with signs.

Both test the same draws: independent ones of many targets, as few as `method="auto"` takes normal replicates for, by
the adaptive test and by every order of the paper's PSD that has features few enough. Run with
`python -m benchmarks.level_gaussian`; interrupted, it goes on where it stopped.
"""

import zlib
from collections.abc import Mapping
from functools import partial
from math import comb
from typing import Any

import jax
import numpy as np

import jaxpsd
from benchmarks._harness import Pieces, main_of_pieces, table
from benchmarks._targets import targets
from benchmarks.level import ALPHA, interval, marked

DRAWS, REPLICATES, REPEATS = 10_000, 500, 400
METHODS = ("gaussian", "rademacher")
DIMENSIONS = (1, 3)
NAMES = ("Gaussian", "skewed", "heavy tails", "funnel", "banana", "logistic", "bimodal")
MANY, OF_MANY = 10, ("Gaussian", "skewed", "heavy tails")


def orders_of(dim: int) -> tuple[int, ...]:
    """Orders with at most half as many features as replicates."""
    return tuple(order for order in (1, 2, 3, 4) if 2 * (comb(dim + order, order) - 1) <= REPLICATES)


def of_target(name: str, dim: int, n: int, repeats: int) -> dict[str, Any]:
    """Shares of rejections by each method; and of draws that one rejects and the other does not."""
    target, orders = targets()[name], orders_of(dim)
    keys = jax.random.split(jax.random.key(zlib.crc32(f"{name}, {dim}".encode())), (repeats, 2))
    draw = jax.jit(lambda key: target.draws(jax.random.normal(key, (n, dim))))
    psd, rejected = jaxpsd.PSD(orders[-1]), {method: [] for method in METHODS}
    for own, sign in keys:
        x = draw(own)
        scores = jaxpsd.score(target.logdensity, x)
        for method in METHODS:
            options = {"method": method, "num_replicates": REPLICATES}
            adaptive = jaxpsd.adaptive_test(sign, scores, x, **options)
            raw = jaxpsd.gof_test(sign, psd, scores, x, orders=orders, **options)
            rejected[method].append(np.append(adaptive.p_value, raw.p_value) <= ALPHA)
    found: dict[str, Any] = {"target": name, "dim": dim, "n": n, "repeats": repeats}
    names = ["adaptive", *(f"raw {order}" for order in orders)]
    both = {method: np.array(rows) for method, rows in rejected.items()}
    for k, statistic in enumerate(names):
        for method in METHODS:
            found[f"{statistic}, {method}"] = float(both[method][:, k].mean())
        found[f"{statistic}, differ"] = float((both[METHODS[0]] != both[METHODS[1]])[:, k].mean())
    return found


def pieces(smoke: bool) -> Pieces:
    if smoke:
        return {"funnel, d = 2": partial(of_target, "funnel", 2, 60, 2)}
    found: dict[str, Any] = {}
    for name in NAMES:
        for dim in (*DIMENSIONS, *([MANY] if name in OF_MANY else [])):
            if dim >= targets()[name].fewest:
                found[f"{name}, d = {dim}"] = partial(of_target, name, dim, DRAWS, REPEATS)
    return found


def render(results: Mapping[str, Any]) -> str:
    rows = list(results.values())
    statistics = ["adaptive", *(f"raw {order}" for order in (1, 2, 3, 4))]
    columns = {"target": "target", "dim": "d"}
    for statistic in statistics:
        columns |= {f"{statistic}, gaussian": statistic, f"{statistic}, rademacher": "by signs"}
    low, high = interval(REPEATS)
    keys = [key for key in columns if ", " in key]
    differ = [row[f"{each}, differ"] for row in rows for each in statistics if f"{each}, differ" in row]
    excess = {
        method: np.mean([row[f"{each}, {method}"] for row in rows for each in statistics if f"{each}, {method}" in row])
        for method in METHODS
    }
    n = rows[0]["n"]
    return "\n".join(
        [
            "# Level with normal replicates",
            "",
            f"Share of {n:,} independent, correct draws that are rejected at the 5% level with normal replicates "
            '(method="gaussian"), and with signs ("rademacher") of the same draws; '
            f"{rows[0]['repeats']} repeats, {REPLICATES:,} replicates. In bold, what a 5% test would show once in 10⁴ "
            f"cells: outside {low:.4f} … {high:.4f}.",
            "",
            table(columns, [marked(row, keys) for row in rows]),
            f"In all cells together, {excess['gaussian']:.4f} with normal replicates and {excess['rademacher']:.4f} "
            f"with signs; the two disagree about {np.mean(differ):.4f} of sets, at most {max(differ):.4f} in a cell.",
            "",
        ]
    )


if __name__ == "__main__":
    main_of_pieces("level_gaussian", pieces, render)
