"""How often correct draws are rejected at the 5% level: method by order, transform, dependence and target.

Targets in three dimensions, from Gaussian to bimodal; exact draws, independent or in chains whose margins are exact
(an AR(1) chain of normal variables, mapped to the target's margins). Then chains of real samplers on a real posterior,
the eight schools, where the unadjusted one is wrong by as much as its step size makes it. Run with
`python -m benchmarks.calibration`; interrupted, it goes on where it stopped.
"""

import argparse
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

import jaxpsd
from benchmarks._harness import RESULTS, Pieces, in_one_program, interval, run_pieces, table, write_at_one_stroke

ALPHA, ORDERS, DIM = 0.05, (1, 2, 3, 4), 3
TRANSFORMS = (None, "center", "standardize", "whiten")
REPLICATES = 500


# --- targets ----------------------------------------------------------------------------------------------


class Target(NamedTuple):
    """A density of three coordinates whose margins, before a linear map, are independent.

    logdensity
        Of one position.
    quantiles
        From standard normal variables to the margins.
    mixing
        The linear map.
    """

    logdensity: Callable[[jax.Array], jax.Array]
    quantiles: Callable[[jax.Array], jax.Array]
    mixing: np.ndarray | None = None

    def draws(self, z: jax.Array) -> jax.Array:
        """From standard normal variables."""
        x = self.quantiles(z)
        return x if self.mixing is None else x @ jnp.asarray(self.mixing.T, x.dtype)


GRID = np.linspace(-7, 7, 28_001)


def tabulated(quantile: Callable[[np.ndarray], np.ndarray]) -> Callable[[jax.Array], jax.Array]:
    """A quantile function of Φ(z), by interpolation."""
    values = quantile(GRID).astype(np.float32)
    return lambda z: jnp.interp(z, jnp.asarray(GRID, z.dtype), jnp.asarray(values))


def mixture_quantile(z: np.ndarray) -> np.ndarray:
    """Of ½N(−2, 1) + ½N(2, 1), by inverting its distribution function on a grid."""
    x = np.linspace(-10, 10, 200_001)
    below = 0.5 * (scipy.stats.norm.cdf(x + 2) + scipy.stats.norm.cdf(x - 2))
    above = 0.5 * (scipy.stats.norm.sf(x + 2) + scipy.stats.norm.sf(x - 2))
    score = np.where(below < 0.5, scipy.stats.norm.ppf(below), scipy.stats.norm.isf(above))
    return np.interp(z, score, x)


def gamma_quantile(z: np.ndarray) -> np.ndarray:
    """Of the logarithm of a Gamma(2) variable; from the nearer end, where digits are left."""
    gamma = scipy.stats.gamma(2)
    low = gamma.ppf(scipy.stats.norm.cdf(np.minimum(z, 0)))
    high = gamma.isf(scipy.stats.norm.sf(np.maximum(z, 0)))
    return np.log(np.where(z < 0, low, high))


def student_quantile(z: np.ndarray) -> np.ndarray:
    return np.sign(z) * scipy.stats.t(5).isf(scipy.stats.norm.sf(np.abs(z)))


MIXING = np.linalg.cholesky(np.array([[1, 0.8, 0.5], [0.8, 1, 0.6], [0.5, 0.6, 1]]))
UNMIXING = np.linalg.inv(MIXING)


def gaussian(x):
    return -0.5 * jnp.sum(x**2)


def correlated(x):
    return -0.5 * jnp.sum((jnp.asarray(UNMIXING, x.dtype) @ x) ** 2)


def skewed(x):
    return jnp.sum(2 * x - jnp.exp(x))


def heavy_tailed(x):
    return -3 * jnp.sum(jnp.log1p(x**2 / 5))


def bimodal(x):
    return jnp.sum(jnp.logaddexp(-0.5 * (x - 2) ** 2, -0.5 * (x + 2) ** 2))


@lru_cache(maxsize=1)
def targets() -> dict[str, Target]:
    return {
        "Gaussian": Target(gaussian, lambda z: z),
        "correlated": Target(correlated, lambda z: z, MIXING),
        "skewed": Target(skewed, tabulated(gamma_quantile)),
        "heavy tails": Target(heavy_tailed, tabulated(student_quantile)),
        "bimodal": Target(bimodal, tabulated(mixture_quantile)),
    }


def autoregressive(key: jax.Array, rho: float, chains: int, n: int) -> jax.Array:
    """Standard normal variables (chains, n, dim), those of a chain correlated."""
    noise = jax.random.normal(key, (n, chains, DIM))
    path = jax.lax.scan(lambda x, e: (rho * x + (1 - rho**2) ** 0.5 * e,) * 2, noise[0], noise)[1]
    return jnp.swapaxes(path, 0, 1)


# --- tests ------------------------------------------------------------------------------------------------


def independent(name: str, transform: str | None, n: int, repeats: int) -> dict[str, dict[str, float]]:
    """Methods for independent draws: all repeats in one program."""
    target = targets()[name]
    psd = jaxpsd.PSD(ORDERS[-1], transform=transform)

    def of_orders(method: str, key: jax.Array, x: jax.Array) -> jax.Array:
        test = partial(jaxpsd.gof_test, key, method=method, num_replicates=REPLICATES)
        if method == "asymptotic":
            each = [test(jaxpsd.PSD(order, transform=transform), target.logdensity, x).p_value for order in ORDERS]
            return jnp.stack(each)
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


def shares(labels: list[str], p: np.ndarray) -> dict[str, float]:
    return {label: float(share) for label, share in zip(labels, (p <= ALPHA).mean(axis=0), strict=True)}


def judged(
    logdensity: Callable[..., Any], sets: jax.Array, transform: str | None, methods: tuple[str, ...]
) -> dict[str, dict[str, float]]:
    """Every set of chains (sets, chains, n, dim), by tests that look at the draws; one after the other."""
    psd, found = jaxpsd.PSD(ORDERS[-1], transform=transform), {}
    labels = [f"r = {order}" for order in ORDERS]
    for method in methods:
        p = []
        for k, samples in enumerate(sets):
            key = jax.random.key(k)
            if method == "adaptive":
                result = jaxpsd.adaptive_test(key, logdensity, samples, num_replicates=REPLICATES)
                p.append([float(result.p_value)])
                continue
            test = partial(jaxpsd.gof_test, key, psd, logdensity, samples, orders=ORDERS, num_replicates=REPLICATES)
            p.append(np.asarray(test(method=method).p_value))
        found[method] = shares(labels if method != "adaptive" else ["adaptive"], np.array(p))
    return found


def dependent(name: str, transform: str | None, rho: float, chains: int, n: int, repeats: int) -> dict[str, Any]:
    target = targets()[name]
    keys = jax.random.split(jax.random.key(round(1000 * rho)), repeats)
    sets = jax.jit(jax.vmap(lambda key: target.draws(autoregressive(key, rho, chains, n))))(keys)
    methods = ("auto", "block", "adaptive") if transform is None else ("auto",)
    return judged(target.logdensity, sets, transform, methods)


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


def of_sampler(sampler: str, transform: str | None, n: int, repeats: int) -> dict[str, Any]:
    sets = sampled(sampler, jax.random.split(jax.random.key(3), repeats), n)[:, None]
    return judged(eight_schools, sets, transform, ("auto", "adaptive") if transform is None else ("auto",))


# --- everything -------------------------------------------------------------------------------------------

# Correlation, chains and draws of each; repeats.
DEPENDENCE = {"ρ = 0.5": (0.5, 1, 2000), "ρ = 0.9": (0.9, 1, 2000), "ρ = 0.97": (0.97, 1, 4000),
              "ρ = 0.5, ten chains": (0.5, 10, 100)}  # fmt: skip
SAMPLERS = ("NUTS", "MALA", "ULA, ε = 0.02", "ULA, ε = 0.2")
INDEPENDENT_REPEATS, REPEATS = 1000, 200


def pieces(smoke: bool) -> Pieces:
    if smoke:
        return {
            "skewed, independent, center": partial(independent, "skewed", "center", 60, 2),
            "bimodal, ρ = 0.5, ten chains, None": partial(dependent, "bimodal", None, 0.5, 2, 100, 2),
            "eight schools, MALA, standardize": partial(of_sampler, "MALA", "standardize", 100, 2),
        }
    found: dict[str, Any] = {}
    for name in targets():
        for transform in TRANSFORMS:
            found[f"{name}, independent, {transform}"] = partial(
                independent, name, transform, 1000, INDEPENDENT_REPEATS
            )
    for name in targets():
        for transform in (None, "standardize"):
            for title, (rho, chains, n) in DEPENDENCE.items():
                found[f"{name}, {title}, {transform}"] = partial(dependent, name, transform, rho, chains, n, REPEATS)
    for sampler in SAMPLERS:
        for transform in (None, "standardize"):
            found[f"eight schools, {sampler}, {transform}"] = partial(of_sampler, sampler, transform, 1000, REPEATS)
    return found


def rows_of(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for name, methods in results.items():
        target, *dependence, transform = name.split(", ")
        for method, row in methods.items():
            cells = {"target": target, "draws": ", ".join(dependence), "transform": transform, "method": method}
            rows.append({**cells, **row})
    return rows


def render(results: Mapping[str, Any]) -> str:
    rows = rows_of(results)
    columns = ["target", "draws", "transform", "method", *(f"r = {order}" for order in ORDERS), "adaptive", "IMQ KSD"]

    def repeats(row: Mapping[str, Any]) -> int:
        return INDEPENDENT_REPEATS if row["draws"] == "independent" else REPEATS

    def is_biased(row: Mapping[str, Any]) -> bool:
        return row["draws"].startswith("ULA")

    def marked(row: Mapping[str, Any], key: str) -> Any:
        value = row.get(key)
        if not isinstance(value, float):
            return value
        low, high = interval(value, repeats(row))
        return f"**{value:.3f}**" if not is_biased(row) and not low <= ALPHA <= high else f"{value:.3f}"

    shown = [{key: marked(row, key) for key in columns} for row in rows]
    judged_rows = [row for row in rows if not is_biased(row)]
    cells = [(row, key, row[key]) for row in judged_rows for key in columns[4:] if key in row]
    high = [(row, key, value) for row, key, value in cells if interval(value, repeats(row))[0] > ALPHA]
    low = [cell for cell in cells if interval(cell[2], repeats(cell[0]))[1] < ALPHA]
    worst = sorted(high, key=lambda cell: -cell[2])[:12]
    lines = [
        "# Calibration",
        "",
        f"Share of correct draws that are rejected at 5%; d = {DIM} (eight schools: 10), {REPLICATES} replicates, "
        f"{INDEPENDENT_REPEATS} repeats of independent draws (n = 1000) and {REPEATS} of chains. In bold, shares whose "
        "95% interval leaves out 5%. Draws of ULA are not correct: what they show is power.",
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
        table({key: key for key in columns}, shown),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibration")
    parser.add_argument("--smoke", action="store_true", help="toy sizes, in seconds; nothing is written")
    smoke = parser.parse_args().smoke
    text = render(run_pieces(RESULTS / "calibration.json", pieces, smoke=smoke))
    print(text)
    if not smoke:
        write_at_one_stroke(RESULTS / "calibration.md", text)


if __name__ == "__main__":
    main()
