"""How often the tests reject correct draws at the 5% level, and how often they find a wrong mean in dependent ones.

Independent draws: every method, orders 1 to 4, standard normal targets in 1, 5 and 10 dimensions. Dependent
draws: AR(1) chains with the right margins, method "auto". Run with `python -m benchmarks.level`.
"""

import time
import warnings
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

import jaxpsd
from benchmarks._harness import in_one_program, main, table

ALPHA = 0.05
ORDERS = (1, 2, 3, 4)

# On independent draws, the parameters that "auto" would take for an autocorrelation time of one.
BOOTSTRAPS = {
    "rademacher": {},
    "multinomial": {},
    "markov": {"flip_probability": 0.05},
    "block": {"block_length": 20},
}


def logdensity(x):
    return -0.5 * jnp.sum(x**2)


def interval(repeats: int) -> tuple[float, float]:
    """Where the share of rejections of a 5% test lies, but for once in 10⁴."""
    low, high = scipy.stats.binom.interval(1 - 1e-4, repeats, ALPHA)
    return low / repeats, high / repeats


def uniformity(p: np.ndarray) -> float | None:
    """How well p-values fit a uniform distribution, by Kolmogorov and Smirnov."""
    return float(scipy.stats.kstest(p, "uniform").pvalue) if len(p) else None


def p_values_of(test: Any, repeats: int, n: int, dim: int) -> np.ndarray:
    """One row of p-values for each set of independent draws."""

    def once(key: jax.Array) -> jax.Array:
        draw, sign = jax.random.split(key)
        x = jax.random.normal(draw, (n, dim))
        return jnp.atleast_1d(test(sign, -x, x))

    return in_one_program(once, dim, repeats)


def independent(
    repeats: int,
    n: int,
    dims: tuple[int, ...],
    replicates: int,
    methods: tuple[str, ...],
    asymptotic_orders: tuple[int, ...],
) -> list[dict[str, Any]]:
    rows = []

    def record(method: str, dim: int, labels: list[str], p: np.ndarray, seconds: float) -> None:
        low, high = interval(repeats)
        for label, column in zip(labels, p.T, strict=True):
            level = float((column <= ALPHA).mean())
            rows.append(
                {
                    "method": method, "dim": dim, "statistic": label, "n": n, "repeats": repeats, "level": level,
                    "within": "yes" if low <= level <= high else "no",
                    "uniformity_p": uniformity(column), "small_uniformity_p": uniformity(2 * column[column <= 0.5]),
                    "seconds": seconds,
                }
            )  # fmt: skip
            print(rows[-1], flush=True)

    for dim in dims:
        for method in methods:
            options, start = BOOTSTRAPS[method], time.perf_counter()

            def test(key, s, x, method=method, options=options):
                shared = {"method": method, "num_replicates": replicates, **options}
                orders = jaxpsd.gof_test(key, jaxpsd.PSD(ORDERS[-1]), s, x, orders=ORDERS, **shared)
                return orders.p_value

            p = p_values_of(test, repeats, n, dim)
            record(method, dim, [f"order {order}" for order in ORDERS], p, time.perf_counter() - start)

            if method not in ("rademacher", "markov"):
                continue
            start = time.perf_counter()

            def adaptive(key, s, x, method=method, options=options):
                return jaxpsd.adaptive_test(key, s, x, method=method, num_replicates=replicates, **options).p_value

            record(method, dim, ["adaptive"], p_values_of(adaptive, repeats, n, dim), time.perf_counter() - start)
        for order in asymptotic_orders:
            start = time.perf_counter()

            def asymptotic(key, s, x, order=order):
                null = jax.random.normal(jax.random.fold_in(key, 1), x.shape)
                test = partial(jaxpsd.gof_test, key, jaxpsd.PSD(order), s, x, method="asymptotic", num_replicates=1000)
                return jnp.stack([test().p_value, test(null_samples=null, null_target=-null).p_value])

            p = p_values_of(asymptotic, repeats, n, dim)
            labels = [f"order {order}", f"order {order}, null_samples"]
            record("asymptotic", dim, labels, p, time.perf_counter() - start)
    return rows


@partial(jax.jit, static_argnums=(1, 2, 3))
def autoregressive(key: jax.Array, chains: int, length: int, dim: int, rho: float) -> jax.Array:
    """Stationary AR(1) chains with standard normal margins."""
    first, noise = jax.random.split(key)

    def step(x: jax.Array, e: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = rho * x + jnp.sqrt(1 - rho**2) * e
        return x, x

    start = jax.random.normal(first, (chains, dim))
    _, draws = jax.lax.scan(step, start, jax.random.normal(noise, (length, chains, dim)))
    return jnp.swapaxes(draws, 0, 1)


def dependent(repeats: int, cases: list[tuple[int, int, float, float]], dim: int, replicates: int) -> list[dict]:
    """Rejections of `method="auto"`, of correct chains and of chains whose first mean is off by `shift`."""
    rows = []
    for chains, length, rho, shift in cases:
        p, times, methods, start = [], [], [], time.perf_counter()
        for repeat in range(repeats):
            draw, sign = jax.random.split(jax.random.key(repeat))
            x = autoregressive(draw, chains, length, dim, rho).at[..., 0].add(shift)
            with warnings.catch_warnings():
                # That chains are short is what is being tried.
                warnings.simplefilter("ignore", jaxpsd.DependentDrawsWarning)
                result = jaxpsd.gof_test(sign, jaxpsd.PSD(4), logdensity, x, orders=ORDERS, num_replicates=replicates)
                adaptive = jaxpsd.adaptive_test(sign, logdensity, x, num_replicates=replicates)
            p.append([*np.asarray(result.p_value), float(adaptive.p_value)])
            times.append(result.autocorrelation_time)
            methods.append(result.method)
        shares = (np.array(p) <= ALPHA).mean(axis=0)
        rows.append(
            {
                "chains": chains, "length": length, "rho": rho, "shift": shift, "dim": dim, "repeats": repeats,
                "effective": chains * length * (1 - rho) / (1 + rho),
                **{f"order_{order}": float(share) for order, share in zip(ORDERS, shares[:-1], strict=True)},
                "adaptive": float(shares[-1]), "time": (1 + rho) / (1 - rho), "measured_time": float(np.mean(times)),
                "methods": ", ".join(f"{methods.count(each)} {each}" for each in sorted(set(methods))),
                "seconds": time.perf_counter() - start,
            }
        )  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def run(smoke: bool) -> dict[str, Any]:
    correct = [(chains, 2000 // chains, rho, 0.0) for rho in (0.5, 0.9, 0.97) for chains in (1, 4)]
    # An effective sample size of 200, and a mean that is off by half a standard deviation.
    wrong = [(1, 600, 0.5, 0.5), (4, 950, 0.9, 0.5), (1, 3800, 0.9, 0.5), (1, 13_134, 0.97, 0.5)]
    if smoke:
        return {
            "independent": independent(3, 50, (2,), 19, ("rademacher", "multinomial"), (1,)),
            "correct_chains": dependent(2, [(2, 50, 0.5, 0.0)], 2, 19),
            "wrong_chains": dependent(2, [(2, 50, 0.5, 0.5)], 2, 19),
        }
    return {
        "independent": independent(2000, 1000, (1, 5, 10), 500, tuple(BOOTSTRAPS), ORDERS[:3]),
        "correct_chains": dependent(1000, correct, 5, 500),
        "wrong_chains": dependent(200, wrong, 5, 500),
    }


def render(result: dict[str, Any]) -> str:
    low, high = interval(result["independent"][0]["repeats"])
    independent = {
        "method": "method", "dim": "d", "statistic": "statistic", "level": "rejected", "within": "within the interval",
        "uniformity_p": "uniformity (Kolmogorov–Smirnov p)", "small_uniformity_p": "the same, of p-values ≤ ½",
    }  # fmt: skip
    chains = {
        "chains": "chains", "length": "draws each", "rho": "autocorrelation", "effective": "effective draws",
        **{f"order_{order}": f"r = {order}" for order in ORDERS}, "adaptive": "adaptive", "time": "τ",
        "measured_time": "τ measured", "methods": "methods chosen",
    }  # fmt: skip
    return (
        f"# Level of the tests\n\nShare of rejections at the 5% level, {result['date']}.\n\n## Independent draws\n\n"
        f"n = {result['independent'][0]['n']}, {result['independent'][0]['repeats']} repeats; a 5% test is between "
        f"{low:.4f} and {high:.4f} but for once in 10⁴.\n\n"
        + table(independent, result["independent"])
        + f"\n## Correct AR(1) chains, {result['correct_chains'][0]['repeats']} repeats\n\n"
        + table(chains, result["correct_chains"])
        + f"\n## AR(1) chains with one mean off by half a standard deviation, {result['wrong_chains'][0]['repeats']} "
        + "repeats\n\n"
        + table(chains, result["wrong_chains"])
    )


if __name__ == "__main__":
    main("level", run, render)
