"""Time of a discrepancy against the number of draws (Figure 4); PSD to 10⁷ draws, and to 1,000 dimensions."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import jaxpsd
from benchmarks._draws import widened
from benchmarks._harness import Pieces, best_time, in_one_program, interval
from benchmarks.paper._experiment import Experiment
from benchmarks.paper._text import COLOURS, MARKERS, markdown, verdict
from benchmarks.paper.gof import adaptive

DIM = 10
DISCREPANCIES: dict[str, jaxpsd.Discrepancy] = {
    **{f"PSD r = {order}": jaxpsd.PSD(order) for order in (1, 2, 3, 4)},
    "RFSD": jaxpsd.RFSD(),
    "IMQ KSD": jaxpsd.KSD(),
}
COUNTS, MANY = (100, 300, 1000, 3000, 10_000), (100_000, 1_000_000, 10_000_000)
DIMENSIONS, MOST_FOR_ADAPTIVE = (50, 100, 200, 500, 1000), 200


def seconds(n: int, dim: int, names: tuple[str, ...]) -> dict[str, float]:
    """Of a compiled call on given scores, all in one process, so that ratios can be trusted."""
    x = jax.random.normal(jax.random.key(0), (n, dim))
    return {
        name: best_time(partial(jax.jit(lambda x, d=DISCREPANCIES[name]: d(-x, x)), x), seconds=0.3) for name in names
    }


def power(dim: int, repeats: int) -> dict[str, float]:
    """Variance case, n = 1000: share of rejections of order 2 and, where it takes minutes only, the adaptive test."""
    tests = ["order 2", "adaptive"] if dim <= MOST_FOR_ADAPTIVE else ["order 2"]
    draw = widened(1.7)

    def once(key: jax.Array) -> jax.Array:
        draws, sign = jax.random.split(key)
        x = draw(draws, 1000, dim)
        order_2 = jaxpsd.gof_test(sign, jaxpsd.PSD(2), -x, x, method="rademacher", num_replicates=500).p_value
        return jnp.stack([order_2, adaptive(sign, -x, x)] if len(tests) > 1 else [order_2])

    shares = (in_one_program(once, dim, repeats) <= 0.05).mean(axis=0)
    return {**dict(zip(tests, map(float, shares), strict=True)), "repeats": repeats}


def pieces(smoke: bool) -> Pieces:
    if smoke:
        return {
            "n = 100": partial(seconds, 100, DIM, ("PSD r = 1",)),
            "mixture": partial(seconds, 60, 2, ("RFSD",)),
            "d = 5": partial(power, 5, 2),
        }
    cheap = ("PSD r = 1", "PSD r = 2")
    found: dict[str, Any] = {f"n = {n}": partial(seconds, n, DIM, tuple(DISCREPANCIES)) for n in COUNTS}
    found |= {f"n = {n}": partial(seconds, n, DIM, cheap) for n in MANY}
    found["mixture"] = partial(seconds, 2000, 2, tuple(DISCREPANCIES))
    return found | {f"d = {dim}": partial(power, dim, 100) for dim in DIMENSIONS}


def render(results: Mapping[str, Any]) -> str:
    times = {int(name.removeprefix("n = ")): row for name, row in results.items() if name.startswith("n = ")}
    names = sorted({name for row in times.values() for name in row}, key=list(DISCREPANCIES).index)
    rows = [
        {"n": f"{n:,}", **{name: None if name not in row else f"{1e3 * row[name]:.3g}" for name in names}}
        for n, row in times.items()
    ]
    lines = ["Milliseconds of a compiled call, d = 10:", "", markdown(rows)]
    mixture = results["mixture"]
    if {"PSD r = 2", "IMQ KSD", "RFSD"} <= set(mixture):
        to_ksd, to_rfsd = (mixture[name] / mixture["PSD r = 2"] for name in ("IMQ KSD", "RFSD"))
        lines.append(
            f"- *About 70 times faster than KSD and 7 times than RFSD* in the SGLD example (2,000 draws, d = 2, "
            "order 2): ours "
            f"{to_ksd:.0f} and {to_rfsd:.0f} times. {verdict(to_ksd > 30 and to_rfsd > 4)[0].upper()}"
            f"{verdict(to_ksd > 30 and to_rfsd > 4)[1:]}, with a KSD that is itself faster than the one of the paper."
        )
    if 10_000_000 in times:
        slope = np.log(times[10_000_000]["PSD r = 2"] / times[100_000]["PSD r = 2"]) / np.log(100)
        lines.append(f"- From 10⁵ to 10⁷ draws the time of order 2 grows with the power {slope:.2f} of n.")
    powers = [{"d": name.removeprefix("d = "), **row} for name, row in results.items() if name.startswith("d = ")]

    def share(row: Mapping[str, Any], test: str) -> str | None:
        if test not in row:
            return None
        return "{:.2f} ({:.2f} … {:.2f})".format(row[test], *interval(row[test], row["repeats"]))

    rows = [{"d": row["d"], **{test: share(row, test) for test in ("order 2", "adaptive")}} for row in powers]
    lines += ["", "Power against one variance of 1.7 among d, n = 1000:", "", markdown(rows)]
    return "\n".join(lines) + "\n"


def draw(results: Mapping[str, Any]) -> Figure:
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    ax = figure.subplots()
    times = {int(name.removeprefix("n = ")): row for name, row in results.items() if name.startswith("n = ")}
    for k, name in enumerate(DISCREPANCIES):
        points = [(n, row[name]) for n, row in times.items() if name in row]
        if points:
            ax.plot(*zip(*points, strict=True), color=COLOURS[k], marker=MARKERS[k], markersize=4, label=name)
    ax.set(xscale="log", yscale="log", xlabel="n", ylabel="seconds")
    ax.legend()
    return figure


EXPERIMENT = Experiment("runtime", "Time (Figure 4), and larger n and d", pieces, render, draw, is_timed=True)
