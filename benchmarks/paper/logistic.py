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
from matplotlib.figure import Figure

import jaxpsd
from benchmarks.paper._experiment import Experiment, Pieces
from benchmarks.paper._text import COLOURS, MARKERS, markdown, verdict

STEP_SIZES = (1e-5, 5e-5, 1e-4, 5e-4, 1e-3, 5e-3, 1e-2, 5e-2, 1e-1)
RUNS, STEPS, KSD_DRAWS = 5, 10_000, 2000
CORRELATIONS = (0.0, 0.9, -0.9)
ORDERS = (1, 2, 3, 4)


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
    """Medians over runs, by step size, each column over its maximum; and the step size with the least of each."""
    data = simulated(dim, num, correlation)
    density = partial(log_posterior, data)
    gold = np.asarray(gold_standard(density, dim, gold_draws), np.float64)
    columns: dict[str, list[float]] = {}
    run = jax.jit(partial(langevin, density, dim, steps))
    score = jax.jit(jax.vmap(jax.vmap(jax.grad(density))))
    truth = {
        (order, interactions): moments(gold, order, interactions=interactions)
        for order in orders
        for interactions in (True, False)
    }
    for size in STEP_SIZES:
        draws = run(size, jax.random.split(jax.random.key(1), RUNS))
        scores = score(draws)
        for order in orders:
            for interactions in (True, False):
                name = f"{order}" + ("" if interactions else ", no interactions")
                psd = jaxpsd.PSD(order, interactions=interactions)
                columns.setdefault(f"PSD {name}", []).append(_median(psd, scores, draws))
                off = [
                    np.linalg.norm(
                        moments(np.asarray(each, np.float64), order, interactions=interactions)
                        - truth[order, interactions]
                    )
                    for each in draws
                ]
                columns.setdefault(f"Eucl {name}", []).append(float(np.median(off)))
        stride = max(1, steps // KSD_DRAWS)
        columns.setdefault("KSD", []).append(_median(jaxpsd.KSD(), scores[:, ::stride], draws[:, ::stride]))
    return {
        name: [value / max(values) if max(values) > 0 else 0.0 for value in values] for name, values in columns.items()
    }


def _median(discrepancy: jaxpsd.Discrepancy, scores: jax.Array, draws: jax.Array) -> float:
    values = np.asarray(jax.lax.map(lambda each: discrepancy(*each), (scores, draws)))
    return float(np.median(np.where(np.isfinite(values), values, np.inf)))


def moments(x: np.ndarray, order: int, *, interactions: bool) -> np.ndarray:
    """Means of all monomials up to the order."""
    exponents = np.asarray(jaxpsd.PSD(order, interactions=interactions).exponents(x.shape[1]))
    powers = [np.ones_like(x)]
    for _ in range(order):
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


def _chosen(values: list[float]) -> float:
    return STEP_SIZES[int(np.argmin(values))]


def _render(results: Mapping[str, Any], *, table: str) -> str:
    first = next(iter(results.values()))
    orders = [order for order in ORDERS if f"PSD {order}" in first]
    names = ["KSD", *(f"{kind} {order}" for order in orders for kind in ("PSD", "Eucl"))]
    rows = [
        {"step size": f"{size:g}", **{name: f"{first[name][k]:.2e}" for name in names}}
        for k, size in enumerate(STEP_SIZES)
    ]
    choices = []
    for name, part in results.items():
        for suffix in ("", ", no interactions"):
            choices += [
                {
                    "covariates": name.removeprefix("covariates "), "": f"order {order}{suffix}",
                    "PSD chooses": _chosen(part[f"PSD {order}{suffix}"]),
                    "least Euclidean error": _chosen(part[f"Eucl {order}{suffix}"]),
                }
                for order in orders
            ]  # fmt: skip
    high = [order for order in orders if order >= 2]
    agree = [
        (_chosen(part[f"PSD {order}"]), _chosen(part[f"Eucl {order}"])) for part in results.values() for order in high
    ]
    same = sum(a == b for a, b in agree)
    near = sum(abs(STEP_SIZES.index(a) - STEP_SIZES.index(b)) <= 1 for a, b in agree)
    independent = all(_chosen(first[f"PSD {order}"]) == _chosen(first[f"Eucl {order}"]) for order in high)
    return (
        f"Medians over {RUNS} runs of {STEPS:,} steps, over the maximum of each column ({table}, independent "
        f"covariates):\n\n{markdown(rows)}\n"
        f"- *PSD r ≥ 2 chooses the step size with the least Euclidean error* (independent covariates): "
        f"{verdict(independent)}. Over all "
        f"covariates and orders 2 to 4: the same in {same} of {len(agree)} cases, at most a grid point apart in "
        f"{near}.\n"
        f"- KSD chooses {_chosen(first['KSD']):g}, order 1 {_chosen(first['PSD 1']):g}.\n\n{markdown(choices)}"
    )


def _draw(results: Mapping[str, Any]) -> Figure:
    first = next(iter(results.values()))
    figure = Figure(figsize=(11, 4), layout="constrained")
    for ax, kind in zip(figure.subplots(1, 2, sharey=True), ("PSD", "Eucl"), strict=True):
        for k, order in enumerate(ORDERS):
            if f"{kind} {order}" in first:
                values = first[f"{kind} {order}"]
                ax.plot(
                    STEP_SIZES, values, color=COLOURS[k], marker=MARKERS[k], markersize=4, label=f"{kind} r = {order}"
                )
        if kind == "PSD":
            ax.plot(STEP_SIZES, first["KSD"], color=COLOURS[4], marker=MARKERS[4], markersize=4, label="IMQ KSD")
        ax.set(
            xscale="log", yscale="log", xlabel="step size", title="discrepancy" if kind == "PSD" else "error of moments"
        )
        ax.legend()
    return figure


SPARSE = Experiment(
    "logistic_sparse", "Logistic regression, sparse prior (Table 2)",
    partial(_pieces, sparse, 20, 100), partial(_render, table="Table 2"), _draw,
)  # fmt: skip
BIG = Experiment(
    "logistic_big", "Logistic regression, many data (Table 3)",
    partial(_pieces, plain, 5, 10_000), partial(_render, table="Table 3"), _draw,
)  # fmt: skip
