"""Step size of stochastic-gradient Langevin dynamics (Figures 2 and 3), with and without interactions.

Welling and Teh's mixture posterior; BlackJAX's sampler, over mini-batches that partition the data in every sweep.
BlackJAX moves by ε∇ + √(2ε) noise, so that its step size is half of the paper's.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from blackjax.adaptation.step_size import dual_averaging_adaptation
from matplotlib.figure import Figure

import jaxpsd
from benchmarks._harness import Pieces
from benchmarks.paper._experiment import Experiment
from benchmarks.paper._text import COLOURS, markdown, plot_medians, verdict
from jaxpsd import plots
from jaxpsd.demo import STEP_SIZES, log_likelihood, log_posterior, log_prior, observations

CHAINS, KEPT, BATCH, THIN = 20, 10_000, 10, 5
DATA_SETS = 4
METHODS: dict[str, jaxpsd.Discrepancy] = {
    **{f"PSD r = {order}": jaxpsd.PSD(order) for order in (1, 2, 3, 4)},
    **{f"PSD r = {order}, no interactions": jaxpsd.PSD(order, interactions=False) for order in (2, 3, 4)},
    "IMQ KSD": jaxpsd.KSD(),
    "RFSD": jaxpsd.RFSD(),
}
TESTS: dict[str, Callable[..., jaxpsd.GofResult]] = {
    "order 2, as if independent": lambda key, *draws: jaxpsd.gof_test(key, jaxpsd.PSD(2), *draws, method="rademacher"),
    "order 2": lambda key, *draws: jaxpsd.gof_test(key, jaxpsd.PSD(2), *draws),
    "adaptive": jaxpsd.adaptive_test,
}


@partial(jax.jit, static_argnames="kept")
def chains(keys: jax.Array, step_size: float, data: jax.Array, kept: int) -> jax.Array:
    num_batches = len(data) // BATCH
    sampler = blackjax.sgld(
        lambda theta, batch: jax.tree.map(
            lambda a, b: a + num_batches * b,
            jax.grad(log_prior)(theta),
            jax.grad(log_likelihood, argnums=1)(batch, theta),
        )
    )

    def chain(key: jax.Array) -> jax.Array:
        start, steps = jax.random.split(key)

        def step(theta: jax.Array, given: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            theta = sampler.step(given[1], theta, given[0], step_size / 2)
            return theta, theta

        def sweep(theta: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
            order, noise = jax.random.split(key)
            batches = jax.random.permutation(order, data).reshape(num_batches, BATCH)
            return jax.lax.scan(step, theta, (batches, jax.random.split(noise, num_batches)))

        position = jnp.array([10.0, 1.0]) ** 0.5 * jax.random.normal(start, (2,))
        path = jax.lax.scan(sweep, position, jax.random.split(steps, 2 * kept // num_batches))[1]
        return path.reshape(-1, 2)[-kept::THIN]

    return jax.vmap(chain)(keys)


def reference(data: jax.Array, num: int) -> tuple[jax.Array, jax.Array]:
    """A long run of MALA, tuned to accept 57.4% of its proposals; and what share it accepts."""
    density = partial(log_posterior, data)
    begin, adapt, settled = dual_averaging_adaptation(0.574)

    @jax.jit
    def run(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        warm_up, sampling = jax.random.split(key)

        def tune(carry: Any, key: jax.Array) -> tuple[Any, None]:
            state, tuning = carry
            state, info = blackjax.mala(density, jnp.exp(tuning.log_step_size)).step(key, state)
            return (state, adapt(tuning, info.acceptance_rate)), None

        start = blackjax.mala(density, 1.0).init(jnp.zeros(2))
        (state, tuning), _ = jax.lax.scan(tune, (start, begin(0.02)), jax.random.split(warm_up, num // 10))
        kernel = blackjax.mala(density, settled(tuning))

        def step(state: Any, key: jax.Array) -> tuple[Any, tuple[jax.Array, jax.Array]]:
            state, info = kernel.step(key, state)
            return state, (state.position, info.is_accepted)

        path, accepted = jax.lax.scan(step, state, jax.random.split(sampling, num))[1]
        return path, accepted.mean()

    return run(jax.random.key(9))


def judged_reference(data_set: int, kept: int) -> dict[str, float]:
    """How good the draws of MALA are, thinned to as many as a chain of SGLD has."""
    data = observations(jax.random.key(data_set))
    path, accepted = reference(data, 20 * kept)
    density = jax.tree_util.Partial(log_posterior, data)
    found = {name: float(METHODS[name](density, path[:: 20 * THIN])) for name in ("PSD r = 2", "IMQ KSD")}
    return {"accepted": float(accepted), **found}


def chosen(data_set: int, num_chains: int, kept: int) -> dict[str, Any]:
    """Each discrepancy of every chain, by step size; and how often chains are rejected, honestly and not."""
    data = observations(jax.random.key(data_set))
    density = jax.tree_util.Partial(log_posterior, data)
    found: dict[str, dict[str, list[float]]] = {name: {} for name in METHODS}
    rejected: dict[str, dict[str, float]] = {name: {} for name in TESTS}
    for size in STEP_SIZES:
        draws = chains(jax.random.split(jax.random.key(100 + data_set), num_chains), size, data, kept)
        scores = jaxpsd.score(density, draws)
        for name, discrepancy in METHODS.items():
            values = jax.lax.map(lambda each, d=discrepancy: d(*each), (scores, draws))
            found[name][f"{size:g}"] = [float(f"{value:.4g}") for value in values]
        for name, test in TESTS.items():
            results = [test(jax.random.key(k), scores[k], draws[k]).reject for k in range(num_chains)]
            rejected[name][f"{size:g}"] = float(np.mean(results))
    return {"values": found, "rejected": rejected}


def pieces(smoke: bool) -> Pieces:
    sizes = (2, 200) if smoke else (CHAINS, KEPT)
    data_sets = {f"data set {k}": partial(chosen, k, *sizes) for k in range(1 if smoke else DATA_SETS)}
    return data_sets | {"MALA": partial(judged_reference, 0, sizes[1])}


def _best(values: Mapping[str, list[float]]) -> str:
    return min(values, key=lambda size: float(np.median(values[size])))


def render(results: Mapping[str, Any]) -> str:
    results, mala = {name: part for name, part in results.items() if name != "MALA"}, results["MALA"]
    rows = [
        {"": name, **{data_set: _best(part["values"][name]) for data_set, part in results.items()}} for name in METHODS
    ]
    agree = all(
        _best(part["values"][name]) == "0.005"
        for part in results.values()
        for name in ("PSD r = 2", "PSD r = 3", "PSD r = 4", "IMQ KSD")
    )
    alike = all(
        _best(part["values"][f"PSD r = {order}"]) == _best(part["values"][f"PSD r = {order}, no interactions"])
        for part in results.values()
        for order in (2, 3, 4)
    )
    first = next(iter(results.values()))
    levels = [
        {"step size": size, **{name: first["rejected"][name][size] for name in TESTS}}
        for size in first["rejected"]["order 2"]
    ]
    return (
        f"Step size chosen: the median over {CHAINS} chains ({KEPT:,} draws after as many of burn-in, every "
        "fifth) is least. Bands in the figure run from the first quartile of chains to the third.\n\n"
        f"{markdown(rows)}\n"
        f"- *PSD r = 2, 3, 4 and IMQ KSD choose ε = 5e-3*: {verdict(agree)}, for {len(results)} simulated data sets.\n"
        f"- *Nearly the same without interactions*: {verdict(alike)} for the choice, orders 2 to 4.\n"
        f"- The reference, MALA with {mala['accepted']:.0%} of its proposals accepted: PSD r = 2 of as many of its "
        f"draws is {mala['PSD r = 2']:.2f}, where SGLD at its best has "
        f"{min(map(np.median, first['values']['PSD r = 2'].values())):.2f}.\n\n"
        f"Beyond the paper, what tests say of single chains (data set 0, share of {CHAINS} rejected): one that takes "
        "draws as independent rejects nearly all of them, honest ones those whose bias shows in 2,000 draws. With "
        "small steps that is not the bias of SGLD but what it has not seen: such chains have been at one end of the "
        f"posterior only.\n\n{markdown(levels)}"
    )


@lru_cache(maxsize=1)
def _pictures(kept: int) -> tuple[Any, dict[str, jax.Array]]:
    data = observations(jax.random.key(0))
    keys = jax.random.split(jax.random.key(100), 4)
    draws = {f"SGLD, ε = {size:g}": chains(keys, size, data, kept)[0] for size in (5e-2, 5e-3, 5e-5)}
    return jax.tree_util.Partial(log_posterior, data), draws | {"MALA": reference(data, 20 * kept)[0][::100]}


def draw(results: Mapping[str, Any]) -> Figure:
    figure = Figure(figsize=(17, 7.5), layout="constrained")
    above, below = figure.subfigures(2, 1)
    density, draws = _pictures(KEPT if len(results) > 1 else 200)
    for ax, (name, path) in zip(above.subplots(1, 4), draws.items(), strict=True):
        plots.draws(density, path, label=name, limits=((-2, 3), (-3, 3)), ax=ax)
        ax.set(xlabel="θ₁", ylabel="θ₂")
    first = next(iter(results.values()))["values"]
    for ax, names in zip(
        below.subplots(1, 2), ([*list(METHODS)[:4], "IMQ KSD", "RFSD"], list(METHODS)[1:7]), strict=True
    ):
        for k, name in enumerate(names):
            most = max(map(np.median, first[name].values()))
            scaled = {float(size): np.array(values) / most for size, values in first[name].items()}
            medians = plot_medians(ax, scaled, k, name)
            best = int(medians.argmin())
            ax.plot(
                list(scaled)[best], medians[best], marker="*", markersize=15, color=COLOURS[k], markeredgecolor="black"
            )
        ax.set(xscale="log", yscale="log", xlabel="step size", ylabel="median / largest median")
        ax.legend()
    return figure


EXPERIMENT = Experiment("sgld", "Step size of SGLD (Figures 2 and 3)", pieces, render, draw)
