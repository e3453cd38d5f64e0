"""Goodness of fit (Figure 1 and its asymptotic counterpart): share of rejections at the 5% level.

The target is normal; the draws are right, have one variance of 1.7, or the tails of a Student-t or a Laplace
distribution.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import jaxpsd
from benchmarks._draws import Draw, laplace, normal, student, widened
from benchmarks._harness import Pieces, in_one_program, interval
from benchmarks.baselines import PUBLISHED, TESTS
from benchmarks.paper._experiment import Experiment
from benchmarks.paper._text import COLOURS, MARKERS, markdown, verdict

DIMENSIONS = (1, 3, 5, 7, 10, 15, 20)
ORDERS = (1, 2, 3, 4)
PSDS = tuple(f"PSD r = {order}" for order in ORDERS)
COMPETITORS = ("IMQ KSD", "Gaussian KSD", "FSSD-opt", "RFSD")
METHODS = (*PSDS, "adaptive", *COMPETITORS)

# Draws, variance of the target, number of draws, repeats.
CASES: dict[str, tuple[Draw, float, int, int]] = {
    "null": (normal, 1.0, 1000, 500),
    "variance": (widened(1.7), 1.0, 1000, 200),
    "student-t": (student, 5 / 3, 2000, 250),
    "laplace": (laplace, 1.0, 1000, 500),
}

# Share of rejections of the PSD by an independent implementation, 300 repeats, at d = 1, 5, 10, 20.
PUBLISHED_PSD = {
    "null": ((0.07, 0.02, 0.07, 0.04), (0.06, 0.06, 0.05, 0.04), (0.05, 0.04, 0.05, 0.07), (0.10, 0.06, 0.05, 0.03)),
    "variance": ((0.07, 0.02, 0.05, 0.06), (1, 1, 1, 1), (0.93, 0.86, 0.77, 0.51), (1, 1, 1, 1)),
    "student-t": ((0.03, 0.03, 0.04, 0.03), (0.09, 0.05, 0.05, 0.06), (0.05, 0.03, 0.07, 0.06), (1, 1, 1, 1)),
    "laplace": ((0.07, 0.03, 0.08, 0.05), (0.07, 0.05, 0.04, 0.03), (0.04, 0.05, 0.05, 0.06), (0.99, 1, 1, 1)),
}


def shares(
    draw: Draw, variance: float, n: int, dim: int, repeats: int, tests: Mapping[str, Callable[..., jax.Array]]
) -> dict[str, float]:
    """Share of rejections, all repeats in one program."""

    def once(key: jax.Array) -> jax.Array:
        draws, test_key = jax.random.split(key)
        x = draw(draws, n, dim)
        return jnp.concatenate([jnp.atleast_1d(test(test_key, -x / variance, x)) for test in tests.values()])

    p = in_one_program(once, n + dim, repeats)
    names = [name for key in tests for name in (PSDS if key == "PSD" else (key,))]
    return dict(zip(names, map(float, (p <= 0.05).mean(axis=0)), strict=True))


def psd_orders(key: jax.Array, scores: jax.Array, x: jax.Array) -> jax.Array:
    psd = jaxpsd.PSD(4)
    return jaxpsd.gof_test(key, psd, scores, x, method="rademacher", num_replicates=500, orders=ORDERS).p_value


def adaptive(key: jax.Array, scores: jax.Array, x: jax.Array) -> jax.Array:
    return jaxpsd.adaptive_test(key, scores, x, method="rademacher", num_replicates=500).p_value


def asymptotic(order: int) -> Callable[..., jax.Array]:
    def test(key: jax.Array, scores: jax.Array, x: jax.Array) -> jax.Array:
        return jaxpsd.gof_test(key, jaxpsd.PSD(order), scores, x, method="asymptotic", num_replicates=3000).p_value

    return test


def bootstrap_pieces(smoke: bool) -> Pieces:
    groups: dict[str, Mapping[str, Callable[..., jax.Array]]] = {
        "PSD": {"PSD": psd_orders, "adaptive": adaptive},
        **{name: {name: TESTS[name]} for name in COMPETITORS},
    }
    return {
        f"{case}, d = {dim}, {group}": partial(
            shares, draw, variance, 60 if smoke else n, dim, 2 if smoke else repeats, tests
        )
        for case, (draw, variance, n, repeats) in CASES.items()
        for dim in ((2,) if smoke else DIMENSIONS)
        for group, tests in groups.items()
    }


def asymptotic_pieces(smoke: bool) -> Pieces:
    return {
        f"{case}, d = {dim}, {name}": partial(
            shares, draw, variance, 60 if smoke else n, dim, 2 if smoke else repeats, {name: asymptotic(order)}
        )
        for case, (draw, variance, n, repeats) in CASES.items()
        for dim in ((2,) if smoke else DIMENSIONS)
        for order, name in zip(ORDERS, PSDS, strict=True)
    }


def _collected(results: Mapping[str, Any]) -> dict[tuple[str, int], dict[str, float]]:
    found: dict[tuple[str, int], dict[str, float]] = {}
    for name, part in results.items():
        case, dim = name.split(", ")[:2]
        found.setdefault((case, int(dim.removeprefix("d = "))), {}).update(part)
    return found


def _published(case: str, dim: int, method: str) -> float | None:
    if dim not in (1, 5, 10, 20):
        return None
    place = (1, 5, 10, 20).index(dim)
    if method in PSDS:
        return float(PUBLISHED_PSD[case][PSDS.index(method)][place])
    return PUBLISHED[case][method][place] if method in PUBLISHED[case] else None


def _table(found: Mapping[tuple[str, int], Mapping[str, float]], *, published: bool = True) -> str:
    rows = []
    for (case, dim), row in found.items():
        cells = {"case": case, "d": dim}
        for method in (method for method in METHODS if any(method in each for each in found.values())):
            theirs = _published(case, dim, method) if published else None
            text = "" if method not in row else f"{row[method]:.2f}"
            cells[method] = text if theirs is None else f"{text} ({theirs:.2f})"
        rows.append(cells)
    return markdown(rows)


def render_bootstrap(results: Mapping[str, Any]) -> str:
    found = _collected(results)
    tails = [row for (case, _), row in found.items() if case in ("student-t", "laplace")]
    others = [name for name in METHODS if name not in ("PSD r = 4", "adaptive")]
    least = {name: min(row[name] for row in tails) for name in (*others, "PSD r = 4", "adaptive")}
    lines = [
        "Rademacher signs, 500 replicates; in parentheses, the shares of the published code (PSD: an independent "
        "implementation), good to ±0.1.",
        "",
        _table(found),
    ]
    beyond = [
        f"{method}, d = {dim}: {row[method]:.3f}"
        for (case, dim), row in found.items()
        if case == "null"
        for method in METHODS
        if not interval(row[method], CASES["null"][3])[0] <= 0.05 <= interval(row[method], CASES["null"][3])[1]
    ]
    only = least["PSD r = 4"] > 0.95 and max(least[name] for name in others) < 0.95
    lines += [
        f"- *PSD r = 4 is the only method with power about 1 on Student-t and Laplace for every d*: "
        f"{verdict(only)}. Least "
        f"power over both cases and all d: {', '.join(f'{name} {share:.2f}' for name, share in least.items())}. The "
        "adaptive test, which is not in the paper, keeps it without an order to choose.",
    ]
    last = found.get(("variance", 20))
    if last is not None:
        ratios = {name: last["PSD r = 2"] / max(last[name], 1e-9) for name in ("IMQ KSD", "FSSD-opt", "RFSD")}
        lines.append(
            f"- *Up to double IMQ KSD's power and four times the linear-time methods' at d = 20* (variance, r = 2): "
            f"{verdict(ratios['IMQ KSD'] >= 2 and min(ratios['FSSD-opt'], ratios['RFSD']) >= 4)}. Ratios: "
            f"{', '.join(f'{name} {ratio:.1f}' for name, ratio in ratios.items())}."
        )
    lines.append(
        "- Levels whose 95% interval leaves out 5%: " + ("none." if not beyond else "; ".join(beyond) + ". RFSD "
        "keeps its "
        "nominal 5% where the published code lowers it, and is conservative at large d; order 4 in one dimension has "
        "heavy-tailed features.")
    )  # fmt: skip
    return "\n".join(lines)


def render_asymptotic(results: Mapping[str, Any]) -> str:
    found = _collected(results)

    def least(case: str, *methods: str) -> float:
        return min(row[method] for (name, _), row in found.items() if name == case for method in methods)

    student_t = {dim: row["PSD r = 4"] for (case, dim), row in found.items() if case == "student-t"}
    levels = {
        f"{method} at d = {dim}": row[method] for (case, dim), row in found.items() if case == "null" for method in PSDS
    }
    too_high = [name for name, level in levels.items() if interval(level, CASES["null"][3])[0] > 0.05]
    which = f", for {' and '.join(too_high)}" if too_high else ""
    good = least("variance", "PSD r = 2", "PSD r = 4") > 0.9 and least("laplace", "PSD r = 4") > 0.9
    return "\n".join([
        "The U-statistic against 3,000 draws of its limiting distribution, with the covariance of the draws under "
        "test.",
        "",
        _table(found, published=False),
        f"- *Good against the wrong variance (r = 2, 4) and Laplace (r = 4)*: {verdict(good)}; least power "
        f"{least('variance', 'PSD r = 2', 'PSD r = 4'):.2f} and {least('laplace', 'PSD r = 4'):.2f}.",
        f"- *Order 4 does not keep its power against Student-t*: {verdict(min(student_t.values()) < 0.9)}; "
        + ", ".join(f"d = {dim}: {share:.2f}" for dim, share in student_t.items()) + ".",
        f"- *The level is not well controlled*: {verdict(bool(too_high))}{which}; levels lie between "
        f"{min(levels.values()):.3f} and {max(levels.values()):.3f}. Ours differs from the paper's in one respect: "
        "an estimated covariance makes the null distribution too wide, by the diagonal of the Gram matrix, and is "
        "shrunk so that its variance is that of U.",
    ])  # fmt: skip


def draw(results: Mapping[str, Any]) -> Figure:
    found = _collected(results)
    figure = Figure(figsize=(15, 4), layout="constrained")
    for ax, case in zip(figure.subplots(1, 4), CASES, strict=True):
        for k, method in enumerate(METHODS):
            points = [(dim, row[method]) for (name, dim), row in found.items() if name == case and method in row]
            if not points:
                continue
            dims, rates = zip(*points, strict=True)
            ends = np.array([interval(rate, CASES[case][3]) for rate in rates])
            ax.plot(dims, rates, color=COLOURS[k], marker=MARKERS[k], markersize=4, linewidth=1.2, label=method)
            ax.fill_between(dims, ends[:, 0], ends[:, 1], color=COLOURS[k], alpha=0.12)
        ax.axhline(0.05, color="black", linestyle=":", linewidth=0.8)
        ax.set(title=case, xlabel="dimension", ylim=(0, 0.2) if case == "null" else (-0.03, 1.03))
    figure.axes[0].set_ylabel("share rejected")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center")
    return figure


BOOTSTRAP = Experiment("gof", "Goodness of fit, bootstrap (Figure 1)", bootstrap_pieces, render_bootstrap, draw)
ASYMPTOTIC = Experiment(
    "gof_asymptotic", "Goodness of fit, asymptotic (appendix)", asymptotic_pieces, render_asymptotic, draw
)
