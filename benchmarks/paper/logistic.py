"""Logistic regression by the unadjusted Langevin algorithm at nine step sizes (Tables 2 and 3).

With a sparsity prior (100 observations, 20 coefficients of which three are not zero) and with many data (10⁴
observations, five coefficients); and with correlated covariates, with and without interactions. The sampler is
BlackJAX's SGLD with all data, whose step size is half of the usual one; the gold standard a long run of its NUTS.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import jaxpsd
from benchmarks._harness import Pieces
from benchmarks.paper._experiment import Experiment
from benchmarks.paper._text import COLOURS, markdown, plot_medians, verdict

STEP_SIZES = (1e-5, 5e-5, 1e-4, 5e-4, 1e-3, 5e-3, 1e-2, 5e-2, 1e-1)
RUNS, STEPS, KSD_DRAWS = 5, 10_000, 2000
CORRELATIONS = (0.0, 0.9, -0.9)
ORDERS = (1, 2, 3, 4)
# Step sizes of which draws are shown: too small, good, too large; a coefficient that is not zero, and one that is.
SHOWN, COORDINATES, POINTS = (1e-5, 5e-4, 5e-3, 1e-1), (0, 3), 150

# The paper's tables: medians over the maximum of their column, by step size.
TABLE_2 = {
    "KSD": (1.0, 5.7e-1, 4.3e-1, 2.0e-1, 1.4e-1, 7.2e-2, 6.6e-2, 2.9e-2, 2.78e-2),
    "PSD 1": (1.0, 5.6e-1, 4.3e-1, 2.0e-1, 1.4e-1, 6.7e-2, 4.7e-2, 2.4e-2, 1.7e-2),
    "Eucl 1": (6.2e-2, 5.8e-2, 5.4e-2, 3.9e-2, 3.1e-2, 1.56e-2, 7.0e-2, 7.6e-1, 1.0),
    "PSD 2": (1.0, 5.6e-1, 4.5e-1, 2.3e-1, 1.6e-1, 8.38e-2, 1.0e-1, 1.5e-1, 2.0e-1),
    "Eucl 2": (2.2e-2, 2.1e-2, 2.0e-2, 1.5e-2, 1.2e-2, 4.88e-3, 2.9e-2, 6.5e-1, 1.0),
    "PSD 3": (1.0, 5.7e-1, 4.8e-1, 2.6e-1, 1.9e-1, 1.07e-1, 1.5e-1, 5.3e-1, 9.7e-1),
    "Eucl 3": (7.4e-3, 7.2e-3, 6.7e-3, 5.0e-3, 3.8e-3, 1.79e-3, 1.1e-2, 5.4e-1, 1.0),
    "PSD 4": (2.3e-1, 1.3e-1, 1.2e-1, 6.6e-2, 5.1e-2, 3.25e-2, 5.4e-2, 4.5e-1, 1.0),
    "Eucl 4": (2.4e-3, 2.3e-3, 2.2e-3, 1.6e-3, 1.2e-3, 5.75e-4, 3.8e-3, 4.5e-1, 1.0),
}
TABLE_3 = {
    "PSD 1": (7.44e-1, 2.80e-1, 2.02e-1, 8.19e-2, 6.25e-2, 5.89e-1, 7.32e-1, 9.23e-1, 1.0),
    "Eucl 1": (5.92e-5, 2.89e-5, 2.31e-5, 1.40e-5, 2.10e-5, 2.92e-2, 7.14e-2, 4.60e-1, 1.0),
    "PSD 2": (1.97e-4, 7.07e-5, 5.14e-5, 2.30e-5, 3.20e-5, 5.89e-2, 1.19e-1, 5.03e-1, 1.0),
    "Eucl 2": (7.98e-7, 4.22e-7, 3.41e-7, 2.51e-7, 3.89e-7, 1.19e-3, 5.46e-3, 2.08e-1, 1.0),
    "PSD 3": (1.80e-6, 6.75e-7, 4.92e-7, 2.35e-7, 3.74e-7, 2.21e-3, 7.98e-3, 2.10e-1, 1.0),
    "Eucl 3": (7.70e-9, 4.30e-9, 3.68e-9, 2.97e-9, 4.65e-9, 3.53e-5, 3.40e-4, 9.19e-2, 1.0),
    "PSD 4": (1.11e-8, 4.26e-9, 2.76e-9, 1.61e-9, 2.71e-9, 5.52e-5, 4.71e-4, 9.63e-2, 1.0),
    "Eucl 4": (7.12e-11, 3.70e-11, 3.35e-11, 2.77e-11, 4.35e-11, 9.13e-7, 1.97e-5, 4.05e-2, 1.0),
}


def simulated(dim: int, num: int, correlation: float) -> tuple[jax.Array, jax.Array]:
    """AR(1) covariates; of the coefficients, the first three are not zero."""
    keys = jax.random.split(jax.random.key(dim), 2)
    powers = correlation ** np.abs(np.subtract.outer(np.arange(dim), np.arange(dim)))
    x = jax.random.normal(keys[0], (num, dim)) @ jnp.asarray(np.linalg.cholesky(powers).T, jnp.float32)
    beta = jnp.zeros(dim).at[:3].set(jnp.array([2.0, -2.0, 1.5]))
    y = (jax.random.uniform(keys[1], (num,)) < jax.nn.sigmoid(x @ beta)).astype(jnp.float32)
    return x, y


def log_likelihood(data: tuple[jax.Array, jax.Array], beta: jax.Array) -> jax.Array:
    x, y = data
    logits = x @ beta
    return jnp.sum(y * logits - jnp.logaddexp(0, logits))


def sparse(data: tuple[jax.Array, jax.Array], beta: jax.Array) -> jax.Array:
    """Each coefficient is N(0, 0.1²) or N(0, 10²), with even odds."""
    narrow, wide = (-0.5 * (beta / sd) ** 2 - jnp.log(sd) for sd in (0.1, 10.0))
    return log_likelihood(data, beta) + jnp.logaddexp(narrow, wide).sum()


def plain(data: tuple[jax.Array, jax.Array], beta: jax.Array) -> jax.Array:
    return log_likelihood(data, beta) - 0.5 * jnp.sum(beta**2) / 100


def langevin(
    density: Callable[[jax.Array], jax.Array], dim: int, steps: int, size: float, keys: jax.Array
) -> jax.Array:
    sampler = blackjax.sgld(lambda beta, _: jax.grad(density)(beta))

    def chain(key: jax.Array) -> jax.Array:
        start, noise = jax.random.split(key)

        def step(beta: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
            beta = sampler.step(key, beta, None, size / 2)
            return beta, beta

        return jax.lax.scan(step, jax.random.normal(start, (dim,)), jax.random.split(noise, steps))[1]

    return jax.vmap(chain)(keys)


def gold_standard(density: Callable[[jax.Array], jax.Array], dim: int, num: int) -> jax.Array:
    """Draws (chains · draws, dim) of NUTS after window adaptation."""

    def chain(key: jax.Array) -> jax.Array:
        warm, run, start = jax.random.split(key, 3)
        adaptation = blackjax.window_adaptation(blackjax.nuts, density)
        (state, parameters), _ = adaptation.run(warm, jax.random.normal(start, (dim,)), num_steps=1000)
        kernel = blackjax.nuts(density, **parameters)

        def step(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
            state, _ = kernel.step(key, state)
            return state, state.position

        return jax.lax.scan(step, state, jax.random.split(run, num))[1]

    return jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(7), 4)).reshape(-1, dim)


def table_of(
    log_posterior: Callable[..., jax.Array],
    dim: int,
    num: int,
    correlation: float,
    steps: int,
    gold_draws: int,
    orders: tuple[int, ...],
) -> dict[str, Any]:
    """Every column of the table: by step size, the values of all runs; and some draws, to be shown."""
    density = partial(log_posterior, simulated(dim, num, correlation))
    gold = np.asarray(gold_standard(density, dim, gold_draws), np.float64)
    truth = {psd: moments(gold, psd) for psd in polynomials(orders).values()}
    run = jax.jit(partial(langevin, density, dim, steps))
    score = jax.jit(jax.vmap(jax.vmap(jax.grad(density))))
    columns: dict[str, list[list[float]]] = {}
    points = {"gold standard": _some(gold)}

    def put(name: str, values: Any) -> None:
        if not np.isfinite(values).all():
            raise FloatingPointError(f"{name} is not finite.")
        columns.setdefault(name, []).append([float(f"{value:.4g}") for value in values])

    for size in STEP_SIZES:
        draws = run(size, jax.random.split(jax.random.key(1), RUNS))
        scores = score(draws)
        exact = np.asarray(draws, np.float64)
        for name, psd in polynomials(orders).items():
            put(f"PSD {name}", jax.lax.map(lambda each, psd=psd: psd(*each), (scores, draws)))
            put(f"Eucl {name}", [np.linalg.norm(moments(each, psd) - truth[psd]) for each in exact])
        some = slice(None, None, max(1, steps // KSD_DRAWS))
        put("KSD", jax.lax.map(lambda each: jaxpsd.KSD()(*each), (scores[:, some], draws[:, some])))
        if size in SHOWN:
            points[f"{size:g}"] = _some(exact[0])
    return {"columns": columns, "points": points}


def polynomials(orders: tuple[int, ...]) -> dict[str, jaxpsd.PSD]:
    with_interactions = {f"{order}": jaxpsd.PSD(order) for order in orders}
    return with_interactions | {
        f"{order}, no interactions": jaxpsd.PSD(order, interactions=False) for order in orders if order > 1
    }


def _some(draws: np.ndarray) -> list[list[float]]:
    places = np.linspace(0, len(draws) - 1, POINTS).round().astype(int)
    return [[float(f"{value:.3g}") for value in draws[places, min(k, draws.shape[1] - 1)]] for k in COORDINATES]


def moments(x: np.ndarray, psd: jaxpsd.PSD) -> np.ndarray:
    """Means of all monomials that the discrepancy looks at."""
    exponents = np.asarray(psd.exponents(x.shape[1]))
    powers = [np.ones_like(x)]
    for _ in range(psd.order):
        powers.append(powers[-1] * x)
    found = np.empty(len(exponents))
    for k, alpha in enumerate(exponents):
        columns = np.flatnonzero(alpha)
        product = powers[alpha[columns[0]]][:, columns[0]]
        for column in columns[1:]:
            product = product * powers[alpha[column]][:, column]
        found[k] = product.mean()
    return found


def _pieces(log_posterior: Callable[..., jax.Array], dim: int, num: int, smoke: bool) -> Pieces:
    sizes = (200, 100, (1, 2)) if smoke else (STEPS, 5000, ORDERS)
    return {
        f"covariates {correlation}": partial(
            table_of, log_posterior, 3 if smoke else dim, 50 if smoke else num, correlation, *sizes
        )
        for correlation in (CORRELATIONS[:1] if smoke else CORRELATIONS)
    }


def _medians(columns: Mapping[str, Any], name: str) -> np.ndarray:
    """Over runs, by step size, and over the largest of them."""
    medians = np.median(columns[name], axis=1)
    return medians / medians.max()


def _chosen(columns: Mapping[str, Any], name: str) -> float:
    return STEP_SIZES[int(_medians(columns, name).argmin())]


def _render(results: Mapping[str, Any], *, published: Mapping[str, tuple[float, ...]], best: float) -> str:
    parts = {name.removeprefix("covariates "): part["columns"] for name, part in results.items()}
    first = next(iter(parts.values()))
    orders = [order for order in ORDERS if f"PSD {order}" in first]
    names = ["KSD", *(f"{kind} {order}" for order in orders for kind in ("PSD", "Eucl"))]

    def cell(name: str, k: int) -> str:
        ours = f"{_medians(first, name)[k]:.1e}"
        return f"{ours} ({published[name][k]:.1e})" if name in published else ours

    rows = [{"step size": f"{size:g}", **{name: cell(name, k) for name in names}} for k, size in enumerate(STEP_SIZES)]
    choices = [
        {
            "correlation of covariates": name, "": f"order {order}{suffix}",
            "PSD chooses": _chosen(part, f"PSD {order}{suffix}"),
            "least Euclidean error": _chosen(part, f"Eucl {order}{suffix}"),
            "Euclidean error of the choice / least": _loss(part, f"{order}{suffix}"),
        }
        for name, part in parts.items()
        for suffix in ("", ", no interactions")
        for order in orders
        if f"PSD {order}{suffix}" in part
    ]  # fmt: skip
    high = [order for order in orders if order >= 2]
    agree = {
        order: (_chosen(first, f"PSD {order}"), _chosen(first, f"Eucl {order}"), _loss(first, f"{order}"))
        for order in high
    }
    tell = ", ".join(f"order {order}: {psd:g} for {least:g}" for order, (psd, least, _) in agree.items())
    everywhere = [(part, order) for part in parts.values() for order in high]
    same = sum(_chosen(part, f"PSD {order}") == _chosen(part, f"Eucl {order}") for part, order in everywhere)
    worst = max(_loss(part, f"{order}") for part, order in everywhere)
    alike = sum(
        _chosen(part, f"PSD {order}") == _chosen(part, f"PSD {order}, no interactions") for part, order in everywhere
    )
    correlations = [
        np.corrcoef(np.log(_medians(part, f"PSD {order}")), np.log(_medians(part, f"PSD {order}, no interactions")))
        for part, order in everywhere
    ]
    return (
        f"Medians over {RUNS} runs of {STEPS:,} steps, over the maximum of each column; independent covariates; in "
        f"parentheses, the paper's for its own simulated data (where {best:g} is best):\n\n{markdown(rows)}\n"
        f"- *PSD r ≥ 2 chooses the step size with the least Euclidean error* (independent covariates): "
        f"{verdict(all(psd == least for psd, least, _ in agree.values()))} ({tell}). Over all covariates and orders 2 "
        f"to 4: the same step size in {same} of {len(everywhere)} cases; the error of what PSD chooses is at most "
        f"{worst:.2g} times the least.\n"
        f"- *{'KSD and order 1 do' if 'KSD' in published else 'Order 1 does'} not*: order 1 chooses "
        f"{_chosen(first, 'PSD 1'):g}, KSD {_chosen(first, 'KSD'):g}, where the least error of means is at "
        f"{_chosen(first, 'Eucl 1'):g}.\n"
        f"- *Nearly the same without interactions*: {verdict(min(c[0, 1] for c in correlations) > 0.9)}; the same "
        f"choice in {alike} of {len(everywhere)} cases, correlations of the logarithms of the two curves at least "
        f"{min(c[0, 1] for c in correlations):.2f}.\n\n{markdown(choices)}"
    )


def _loss(columns: Mapping[str, Any], name: str) -> float:
    """How many times as large as need be the error of moments is, with the step size that PSD chooses."""
    errors = _medians(columns, f"Eucl {name}")
    return float(errors[STEP_SIZES.index(_chosen(columns, f"PSD {name}"))] / errors.min())


def _draw(results: Mapping[str, Any]) -> Figure:
    first = next(iter(results.values()))
    figure = Figure(figsize=(15, 7.5), layout="constrained")
    above, below = figure.subfigures(2, 1)
    sizes = [size for size in first["points"] if size != "gold standard"]
    for ax, size in zip(above.subplots(1, len(sizes)), sizes, strict=True):
        ax.plot(*first["points"][size], ".", color=COLOURS[0], markersize=5, alpha=0.6, label=f"ULA, ε = {size}")
        ax.plot(*first["points"]["gold standard"], "x", color=COLOURS[1], markersize=4, alpha=0.6, label="NUTS")
        ax.set(xlabel=f"β[{COORDINATES[0]}]", ylabel=f"β[{COORDINATES[1]}]")
        ax.legend()
    columns = first["columns"]
    panels = {
        "discrepancy": ["KSD", *(f"PSD {order}" for order in ORDERS)],
        "error of moments": [f"Eucl {order}" for order in ORDERS],
        "with (lines) and without (dashes) interactions": [f"PSD {order}" for order in ORDERS[1:]],
    }
    for ax, (title, names) in zip(below.subplots(1, 3), panels.items(), strict=True):
        for name in (name for name in names if name in columns):
            _curve(ax, columns, name)
            if "interactions" in title:
                _curve(ax, columns, f"{name}, no interactions", linestyle="--")
        ax.set(xscale="log", yscale="log", xlabel="step size", ylabel="median / largest median", title=title)
        ax.legend(fontsize="small")
    return figure


def _curve(ax: Axes, columns: Mapping[str, Any], name: str, **style: Any) -> None:
    # An order has the same colour everywhere, and the KSD the one after the last order.
    k = ORDERS[-1] if name == "KSD" else int(name.split()[1].rstrip(",")) - 1
    values = np.array(columns[name])
    scaled = values / np.median(values, axis=1).max()
    plot_medians(ax, dict(zip(STEP_SIZES, scaled, strict=True)), k, name, **style)


SPARSE = Experiment(
    "logistic_sparse", "Logistic regression, sparse prior (Table 2)",
    partial(_pieces, sparse, 20, 100), partial(_render, published=TABLE_2, best=5e-3), _draw,
)  # fmt: skip
BIG = Experiment(
    "logistic_big", "Logistic regression, many data (Table 3)",
    partial(_pieces, plain, 5, 10_000), partial(_render, published=TABLE_3, best=5e-4), _draw,
)  # fmt: skip
