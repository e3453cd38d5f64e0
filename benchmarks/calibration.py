"""How often correct draws are rejected at the 5% level: method by order, transform, dependence and target.

Targets in three dimensions, from Gaussian to bimodal; exact draws, independent or in chains whose margins are exact
(an AR(1) chain of normal variables, mapped to the target's margins). Then chains of real samplers on a real posterior,
the eight schools, where the unadjusted one is wrong by as much as its step size makes it. Run with
`python -m benchmarks.calibration`; interrupted, it goes on where it stopped.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np

import jaxpsd
from benchmarks._harness import Pieces, in_one_program, interval, main_of_pieces, table
from benchmarks._rivals import effective_draws
from benchmarks._targets import autoregressive, targets

ALPHA, ORDERS, DIM = 0.05, (1, 2, 3, 4), 3
TARGETS = ("Gaussian", "correlated", "skewed", "heavy tails", "bimodal")
TRANSFORMS = (None, "center", "standardize", "whiten", "target")
REPLICATES = 500


def psd_in(transform: str | None, order: int = ORDERS[-1]) -> jaxpsd.PSD:
    """Monomials; in the coordinates of the target, the Hermite polynomials that belong to them."""
    return jaxpsd.PSD(order, transform=transform, basis="hermite" if transform == "target" else "monomial")


# --- tests ------------------------------------------------------------------------------------------------


def independent(name: str, transform: str | None, n: int, repeats: int) -> dict[str, dict[str, float]]:
    """Methods for independent draws: all repeats in one program."""
    target, psd = targets()[name], psd_in(transform)

    def of_orders(method: str, key: jax.Array, x: jax.Array) -> jax.Array:
        test = partial(jaxpsd.gof_test, key, method=method, num_replicates=REPLICATES)
        if method == "asymptotic":
            return jnp.stack([test(psd_in(transform, order), target.logdensity, x).p_value for order in ORDERS])
        return test(psd, target.logdensity, x, orders=ORDERS).p_value

    def once(method: str, key: jax.Array) -> jax.Array:
        draw, sign = jax.random.split(key)
        x = target.draws(jax.random.normal(draw, (n, DIM)))
        if method != "KSD":
            return of_orders(method, sign, x)
        test = partial(jaxpsd.gof_test, sign, jaxpsd.KSD(), target.logdensity, x, method="rademacher")
        return test(num_replicates=REPLICATES).p_value[None]

    found = {}
    for method in ("rademacher", "multinomial", "asymptotic", *(["KSD"] if transform is None else [])):
        p = in_one_program(partial(once, method), 1, repeats)
        found[method] = shares([f"r = {order}" for order in ORDERS] if p.shape[1] > 1 else ["IMQ KSD"], p)
    return found


def adaptive_on_independent(name: str, n: int, repeats: int) -> dict[str, dict[str, float]]:
    """The adaptive test, which looks at how linear the scores are, and so goes through the draws one by one."""
    target = targets()[name]
    sets = target.draws(jax.random.normal(jax.random.key(2), (repeats, n, DIM)))
    return judged(target.logdensity, sets, "target", ("adaptive",))


def shares(labels: list[str], p: np.ndarray) -> dict[str, float]:
    return {label: float(share) for label, share in zip(labels, (p <= ALPHA).mean(axis=0), strict=True)}


def judged(
    logdensity: Callable[..., Any], sets: jax.Array, transform: str | None, methods: tuple[str, ...]
) -> dict[str, dict[str, float]]:
    """Every set of draws (sets, …, n, dim), by tests that look at them; one after the other."""
    psd, found = psd_in(transform), {}
    for method in methods:
        results = []
        # Arrays of NumPy: to take those of JAX apart is a program of its own, which takes long to compile.
        for k, samples in enumerate(np.asarray(sets)):
            key, options = jax.random.key(k), {"num_replicates": REPLICATES}
            if method == "adaptive":
                results.append(jaxpsd.adaptive_test(key, logdensity, samples, **options))
            else:
                test = partial(jaxpsd.gof_test, key, psd, logdensity, samples, orders=ORDERS, method=method)
                results.append(test(**options))
        labels = ["adaptive"] if method == "adaptive" else [f"r = {order}" for order in ORDERS]
        found[method] = shares(labels, np.array([np.atleast_1d(result.p_value) for result in results]))
        if method == "adaptive":
            n = sets[0].size // sets.shape[-1]
            found[method]["effective draws"] = float(np.median([effective_draws(result, n) for result in results]))
    return found


def dependent(name: str, rho: float, chains: int, n: int, repeats: int) -> dict[str, Any]:
    target = targets()[name]
    keys = jax.random.split(jax.random.key(round(1000 * rho)), repeats)
    sets = jax.jit(jax.vmap(lambda key: target.draws(autoregressive(key, rho, chains, n, DIM))))(keys)
    return judged(target.logdensity, sets, "target", METHODS)


# --- chains of samplers -----------------------------------------------------------------------------------

EFFECTS = np.array([28, 8, -3, 7, -1, 1, 18, 12], np.float32)
ERRORS = np.array([15, 10, 16, 11, 9, 11, 10, 18], np.float32)


def eight_schools(position):
    """μ, log τ and the schools' standardised effects: μ ~ N(0, 5²), τ ~ half-Cauchy(5)."""
    mu, log_tau, eta = position[0], position[1], position[2:]
    theta = mu + jnp.exp(log_tau) * eta
    prior = -0.5 * (mu / 5) ** 2 - jnp.log1p(jnp.exp(2 * log_tau) / 25) + log_tau - 0.5 * jnp.sum(eta**2)
    return prior - 0.5 * jnp.sum(((EFFECTS - theta) / ERRORS) ** 2)


def sampled(sampler: str, keys: jax.Array, n: int) -> jax.Array:
    """Chains (keys, n, 10), after a run of NUTS long enough to be at rest."""

    def chain(key: jax.Array) -> jax.Array:
        start, warm, run = jax.random.split(key, 3)
        adaptation = blackjax.window_adaptation(blackjax.nuts, eight_schools, target_acceptance_rate=0.9)
        (state, parameters), _ = adaptation.run(warm, 0.5 * jax.random.normal(start, (10,)), num_steps=500)
        if sampler == "NUTS":
            kernel, thin = blackjax.nuts(eight_schools, **parameters), 1
        elif sampler == "MALA":
            kernel, thin = blackjax.mala(eight_schools, 0.06), 5
            state = kernel.init(state.position)
        else:
            langevin = blackjax.sgld(lambda position, _: jax.grad(eight_schools)(position))
            size, thin, state = float(sampler.split(" = ")[1]), 5, state.position

        def step(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
            if sampler.startswith("ULA"):
                # BlackJAX's step size is half of the usual one.
                state = langevin.step(key, state, None, size / 2)
                return state, state
            state, _ = kernel.step(key, state)
            return state, state.position

        return jax.lax.scan(step, state, jax.random.split(run, n * thin))[1][::thin]

    return jax.jit(jax.vmap(chain))(keys)


def of_sampler(sampler: str, n: int, repeats: int) -> dict[str, Any]:
    sets = sampled(sampler, jax.random.split(jax.random.key(3), repeats), n)[:, None]
    return judged(eight_schools, sets, "target", METHODS)


# --- everything -------------------------------------------------------------------------------------------

# Correlation, chains and draws of each; repeats.
DEPENDENCE = {"ρ = 0.5": (0.5, 1, 2000), "ρ = 0.9": (0.9, 1, 2000), "ρ = 0.97": (0.97, 1, 4000),
              "ρ = 0.5, ten chains": (0.5, 10, 100)}  # fmt: skip
SAMPLERS = ("NUTS", "MALA", "ULA, ε = 0.02", "ULA, ε = 0.2")
# What chains are tested with, in which coordinates.
METHODS = ("auto", "adaptive")
INDEPENDENT_REPEATS, ADAPTIVE_REPEATS = 1000, 400


def pieces(smoke: bool) -> Pieces:
    if smoke:
        return {
            "skewed, independent, center": partial(independent, "skewed", "center", 60, 2),
            "bimodal, ρ = 0.5, ten chains, target": partial(dependent, "bimodal", 0.5, 2, 100, 2),
            "skewed, independent, target": partial(independent, "skewed", "target", 60, 2),
            "heavy tails, independent, adaptive": partial(adaptive_on_independent, "heavy tails", 60, 2),
            "eight schools, MALA, target": partial(of_sampler, "MALA", 100, 2),
        }
    found: dict[str, Any] = {}
    for name in TARGETS:
        for transform in TRANSFORMS:
            found[f"{name}, independent, {transform}"] = partial(
                independent, name, transform, 1000, INDEPENDENT_REPEATS
            )
        found[f"{name}, independent, adaptive"] = partial(adaptive_on_independent, name, 1000, ADAPTIVE_REPEATS)
    for name in TARGETS:
        for title, (rho, chains, n) in DEPENDENCE.items():
            found[f"{name}, {title}, target"] = partial(dependent, name, rho, chains, n, ADAPTIVE_REPEATS)
    for sampler in SAMPLERS:
        found[f"eight schools, {sampler}, target"] = partial(of_sampler, sampler, 1000, ADAPTIVE_REPEATS)
    return found


def rows_of(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for name, methods in results.items():
        target, *dependence, transform = name.split(", ")
        for method, row in methods.items():
            coordinates = "target" if transform == "adaptive" else transform
            cells = {"target": target, "draws": ", ".join(dependence), "transform": coordinates, "method": method}
            rows.append({**cells, **row})
    return rows


def render(results: Mapping[str, Any]) -> str:
    rows = rows_of(results)
    columns = ["target", "draws", "transform", "method", *(f"r = {order}" for order in ORDERS), "adaptive", "IMQ KSD"]

    def repeats(row: Mapping[str, Any]) -> int:
        if row["draws"] == "independent" and row["method"] != "adaptive":
            return INDEPENDENT_REPEATS
        return ADAPTIVE_REPEATS

    def is_biased(row: Mapping[str, Any]) -> bool:
        return row["draws"].startswith("ULA")

    def marked(row: Mapping[str, Any], key: str) -> Any:
        value = row.get(key)
        if not isinstance(value, float):
            return value
        low, high = interval(value, repeats(row))
        return f"**{value:.3f}**" if not is_biased(row) and not low <= ALPHA <= high else f"{value:.3f}"

    shown = [{key: marked(row, key) for key in columns} for row in rows]
    for row, cells in zip(rows, shown, strict=True):
        if "effective draws" in row:
            cells["effective draws"] = round(row["effective draws"])
    judged_rows = [row for row in rows if not is_biased(row)]
    cells = [(row, key, row[key]) for row in judged_rows for key in columns[4:] if key in row]
    high = [(row, key, value) for row, key, value in cells if interval(value, repeats(row))[0] > ALPHA]
    low = [cell for cell in cells if interval(cell[2], repeats(cell[0]))[1] < ALPHA]
    adaptive = [row for row in judged_rows if row.get("effective draws", 0) >= 100]
    most = max(adaptive or judged_rows, key=lambda row: row.get("adaptive", 0.0))
    worst = sorted(high, key=lambda cell: -cell[2])[:12]
    lines = [
        "# Calibration",
        "",
        f"Share of correct draws that are rejected at 5%; d = {DIM} (eight schools: 10), {REPLICATES} replicates, "
        f"{INDEPENDENT_REPEATS} repeats of independent draws (n = 1000) and {ADAPTIVE_REPEATS} of "
        "chains in the coordinates of the target, where the basis is orthonormal, and of the adaptive test. In bold, "
        "shares whose 95% interval leaves out 5%. Draws of ULA are not correct: what they show is power.",
        "",
        f"Of {len(cells)} levels, {len(high)} are too high and {len(low)} too low by that measure; by chance alone "
        f"there would be about {0.025 * len(cells):.0f} of each. The highest:",
        "",
        *(
            f"- {row['target']}, {row['draws']}, transform {row['transform']}, {row['method']}, {key}: {value:.3f} "
            "({:.3f} … {:.3f})".format(*interval(value, repeats(row)))
            for row, key, value in worst
        ),
        "",
        f"Of draws worth 100 independent ones, the adaptive test rejects at most {most.get('adaptive', 0):.3f}: "
        f"{most['target']}, {most['draws']}.",
        "",
        table({key: key for key in [*columns, "effective draws"]}, shown),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main_of_pieces("calibration", pieces, render)
