"""Second moments that do not converge although the distribution does (Kanagawa et al., Example 4.1).

Q_n has n draws of a standard normal and a point at √(n + 1)·(1, 1), all with weight 1/(n + 1).
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import jaxpsd
from benchmarks._harness import Pieces
from benchmarks.paper._experiment import Experiment
from benchmarks.paper._text import COLOURS, MARKERS, markdown, verdict

DISCREPANCIES: dict[str, jaxpsd.Discrepancy] = {
    "IMQ KSD": jaxpsd.KSD(jaxpsd.IMQ()),
    "moment-controlling KSD": jaxpsd.KSD(jaxpsd.MomentKernel(2, location=jnp.zeros(2))),
    "PSD r = 2": jaxpsd.PSD(2),
}
LIMIT = 3**0.5  # 1 is added to E x₁², E x₂² and E x₁x₂.


def values(n: int) -> dict[str, float]:
    x = jax.random.normal(jax.random.key(0), (n, 2))
    x = jnp.concatenate([x, jnp.full((1, 2), (n + 1) ** 0.5)])
    weights = jnp.full(n + 1, 1 / (n + 1))
    found = {name: float(discrepancy(-x, x, weights)) for name, discrepancy in DISCREPANCIES.items()}
    moments = jnp.array([x[:, 0], x[:, 1], x[:, 0] ** 2 - 1, x[:, 1] ** 2 - 1, x[:, 0] * x[:, 1]]).mean(axis=1)
    return found | {"Euclidean distance": float(jnp.linalg.norm(moments))}


def pieces(smoke: bool) -> Pieces:
    counts = (20, 50) if smoke else np.geomspace(10, 20_000, 25).round().astype(int).tolist()
    return {str(n): partial(values, n) for n in counts}


def render(results: Mapping[str, Any]) -> str:
    rows = [{"n": int(n), **row} for n, row in results.items()]
    first, last = rows[0], rows[-1]
    falls = last["IMQ KSD"] < 0.2 * first["IMQ KSD"]
    correlation = np.corrcoef(
        [np.log(row["PSD r = 2"]) for row in rows], [np.log(row["Euclidean distance"]) for row in rows]
    )
    stays = all(abs(row["Euclidean distance"] - LIMIT) < 1.5 for row in rows[-5:]) and last["PSD r = 2"] > 1
    return (
        f"{markdown(rows[:: max(1, len(rows) // 8)])}\n"
        f"- *IMQ KSD goes to zero*: {verdict(falls)} ({first['IMQ KSD']:.2f} at n = {first['n']}, "
        f"{last['IMQ KSD']:.3f} at "
        f"n = {last['n']:,}).\n"
        f"- *PSD r = 2 stays, and tracks the distance of moments* (limit √3 = {LIMIT:.2f}): {verdict(stays)}; "
        "correlation of "
        f"the logarithms {correlation[0, 1]:.2f}. The moment-controlling KSD stays too, at quadratic cost.\n"
    )


def draw(results: Mapping[str, Any]) -> Figure:
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    ax = figure.subplots()
    counts = [int(n) for n in results]
    for k, name in enumerate([*DISCREPANCIES, "Euclidean distance"]):
        ax.plot(
            counts,
            [row[name] for row in results.values()],
            color=COLOURS[k],
            marker=MARKERS[k],
            markersize=4,
            label=name,
        )
    ax.set(xscale="log", yscale="log", xlabel="n", ylabel="discrepancy")
    ax.legend()
    return figure


EXPERIMENT = Experiment("kanagawa", "Second moments that do not converge (Kanagawa et al.)", pieces, render, draw)
