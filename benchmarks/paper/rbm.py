"""Restricted Boltzmann machines with perturbed weights (Table 1): share of rejections at the 5% level.

50 visible and 40 hidden units; draws come from the machine with weights B + σ noise, by blocked Gibbs sampling.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

import jaxpsd
from benchmarks._harness import Pieces, in_one_program, interval
from benchmarks.baselines import TESTS
from benchmarks.paper._experiment import Experiment
from benchmarks.paper._text import markdown, verdict
from benchmarks.paper.gof import COMPETITORS, PSDS, adaptive, psd_orders
from jaxpsd._core.checks import check_samples
from jaxpsd._stein.pairs import median_distance

VISIBLE, HIDDEN, N, SWEEPS, REPEATS = 50, 40, 1000, 2000, 100
PERTURBATIONS = (0.0, 0.02, 0.04, 0.06)
PUBLISHED = {
    "RFSD": (0.00, 0.48, 0.93, 0.98), "FSSD-opt": (0.05, 0.70, 0.96, 0.99), "IMQ KSD": (0.08, 0.99, 1.00, 1.00),
    "Gaussian KSD": (0.08, 0.95, 1.00, 1.00), "PSD r = 1": (0.08, 0.51, 0.96, 0.99),
    "PSD r = 2": (0.06, 1.00, 1.00, 1.00), "PSD r = 3": (0.09, 0.97, 1.00, 1.00),
}  # fmt: skip


def gibbs(key: jax.Array, weights: jax.Array, b: jax.Array, c: jax.Array, n: int, sweeps: int) -> jax.Array:
    """The last states of n chains: h_j = ±1 with probability sigmoid((xB)_j + 2c_j), x | h ~ N(½Bh + b, I)."""

    def sweep(x: jax.Array, key: jax.Array) -> tuple[jax.Array, None]:
        hidden, visible = jax.random.split(key)
        up = jax.random.uniform(hidden, (n, HIDDEN)) < jax.nn.sigmoid(x @ weights + 2 * c[None])
        mean = 0.5 * jnp.where(up, 1.0, -1.0) @ weights.T + b[None]
        return mean + jax.random.normal(visible, (n, VISIBLE)), None

    start, steps = jax.random.split(key)
    return jax.lax.scan(sweep, jax.random.normal(start, (n, VISIBLE)), jax.random.split(steps, sweeps))[0]


def score(x: jax.Array, weights: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    """∇log p, with log p(x) = −½‖x‖² + bᵀx + Σ_j log cosh(½(xB)_j + c_j)."""
    return b[None] - x + 0.5 * jnp.tanh(0.5 * x @ weights + c[None]) @ weights.T


def wide_rfsd(key: jax.Array, scores: jax.Array, x: jax.Array) -> jax.Array:
    """As in the published code for this example: a scale of 100 median distances, and heavier tails of locations."""
    locate, simulate = jax.random.split(key)
    c = 100 * median_distance(check_samples(x), None)
    rfsd = jaxpsd.RFSD(rng_key=locate, c=c, df=2.6, location_scale="published")
    return jaxpsd.gof_test(simulate, rfsd, scores, x, method="asymptotic", num_replicates=3000).p_value


# With those settings the level is far from nominal; the published code lowers it to this.
RFSD_LEVEL = 0.005
GROUPS: dict[str, dict[str, Callable[..., jax.Array]]] = {
    "": {"PSD": psd_orders, "adaptive": adaptive, **{name: TESTS[name] for name in COMPETITORS if name != "RFSD"}},
    ", RFSD": {"RFSD": wide_rfsd},
}


def shares(
    perturbation: float, tests: Mapping[str, Callable[..., jax.Array]], repeats: int, n: int, sweeps: int
) -> dict[str, float]:
    def once(key: jax.Array) -> jax.Array:
        keys = jax.random.split(key, 6)
        weights = jax.random.rademacher(keys[0], (VISIBLE, HIDDEN), jnp.float32)
        b, c = jax.random.normal(keys[1], (VISIBLE,)), jax.random.normal(keys[2], (HIDDEN,))
        perturbed = weights + perturbation * jax.random.normal(keys[3], weights.shape)
        x = gibbs(keys[4], perturbed, b, c, n, sweeps)
        s = score(x, weights, b, c)
        return jnp.concatenate([jnp.atleast_1d(test(keys[5], s, x)) for test in tests.values()])

    p = in_one_program(once, 0, repeats)
    names = [name for key in tests for name in (PSDS if key == "PSD" else (key,))]
    found = dict(zip(names, map(float, (p <= 0.05).mean(axis=0)), strict=True))
    if "RFSD" in tests:
        found |= {"RFSD": float((p <= RFSD_LEVEL).mean()), "RFSD at 5%": float((p <= 0.05).mean())}
    return found


def pieces(smoke: bool) -> Pieces:
    sizes = (2, 60, 5) if smoke else (REPEATS, N, SWEEPS)
    return {
        f"{sigma}{group}": partial(shares, sigma, tests, *sizes)
        for group, tests in GROUPS.items()
        for sigma in (PERTURBATIONS[:1] if smoke else PERTURBATIONS)
    }


def render(results: Mapping[str, Any]) -> str:
    rows, outside = [], []
    results = {
        name: {**results[name], **results[f"{name}, RFSD"]} for name in map(str, PERTURBATIONS) if name in results
    }
    for method in (*PSDS, "adaptive", *COMPETITORS, "RFSD at 5%"):
        row: dict[str, Any] = {"": method}
        for place, sigma in enumerate(PERTURBATIONS):
            if str(sigma) not in results:
                continue
            found, published = results[str(sigma)][method], PUBLISHED.get(method)
            row[f"σ = {sigma}"] = f"{found:.2f}" + ("" if published is None else f" ({published[place]:.2f})")
            if published is not None:
                ours, theirs = interval(found, REPEATS), interval(published[place], REPEATS)
                if ours[1] < theirs[0] or theirs[1] < ours[0]:
                    outside.append(f"{method} at σ = {sigma} ({found:.2f} for {published[place]:.2f})")
        rows.append(row)
    return (
        f"{REPEATS} machines each, n = {N}; in parentheses the paper's shares. Order 4 and the adaptive test are "
        "not in the "
        f"paper.\n\n{markdown(rows)}\n"
        f"- *Table 1 within binomial error* (95% intervals of both overlap): {verdict(not outside)}"
        + (f"; apart: {'; '.join(outside)}" if outside else "") + ".\n"
        "- RFSD has the published settings of this example, c = 100 median distances, ν = 2.6 and the level lowered "
        f"to {RFSD_LEVEL}. Without that (last row) it rejects {results[str(PERTURBATIONS[0])]['RFSD at 5%']:.2f} of "
        "correct draws, so that the lowered level costs power and is not needed here.\n"
    )  # fmt: skip


EXPERIMENT = Experiment("rbm", "Restricted Boltzmann machines (Table 1)", pieces, render)
