"""How often the tests reject wrong draws: PSD of orders 1 to 4, and the adaptive test, at the 5% level.

The cases of the paper's Figure 1, and single wrong moments. Run with `python -m benchmarks.power`.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxpsd
from benchmarks._harness import in_one_program, main, table

ORDERS = (1, 2, 3, 4)
Draw = Callable[[jax.Array, int, int], jax.Array]


def normal(key: jax.Array, n: int, dim: int) -> jax.Array:
    return jax.random.normal(key, (n, dim))


def shifted(by: float) -> Draw:
    return lambda key, n, dim: normal(key, n, dim).at[:, 0].add(by)


def widened(variance: float) -> Draw:
    return lambda key, n, dim: normal(key, n, dim).at[:, 0].multiply(variance**0.5)


def correlated(key: jax.Array, n: int, dim: int) -> jax.Array:
    x = normal(key, n, dim)
    return x.at[:, 1].set(0.15 * x[:, 0] + (1 - 0.15**2) ** 0.5 * x[:, 1])


def student(key: jax.Array, n: int, dim: int) -> jax.Array:
    return jax.random.t(key, 5.0, (n, dim))


def laplace(key: jax.Array, n: int, dim: int) -> jax.Array:
    return jax.random.laplace(key, (n, dim)) / 2**0.5


def p_values(draw: Draw, variance: float, n: int, dim: int, repeats: int, replicates: int) -> np.ndarray:
    """p-values of the four orders, and of the adaptive test; the target is normal with the given variance."""

    def once(key: jax.Array) -> jax.Array:
        draws, sign = jax.random.split(key)
        x = draw(draws, n, dim)
        test = partial(jaxpsd.gof_test, method="rademacher", num_replicates=500, orders=ORDERS)
        orders = test(sign, jaxpsd.PSD(4), -x / variance, x)
        adaptive = jaxpsd.adaptive_test(sign, -x / variance, x, method="rademacher", num_replicates=replicates)
        return jnp.append(orders.p_value, adaptive.p_value)

    return in_one_program(once, n + dim, repeats)


def run(smoke: bool) -> dict[str, Any]:
    cases: list[tuple[str, Draw, float, int, int]] = [
        ("mean off by 0.5, n = 100", shifted(0.5), 1, 100, 5),
        ("mean off by 0.12", shifted(0.12), 1, 1000, 5),
        ("one variance 1.25", widened(1.25), 1, 1000, 10),
        ("one correlation 0.15", correlated, 1, 1000, 10),
    ]
    for dim in (1, 5, 10, 20):
        cases += [
            ("null", normal, 1, 1000, dim),
            ("variance", widened(1.7), 1, 1000, dim),
            ("student-t", student, 5 / 3, 2000, dim),
            ("laplace", laplace, 1, 1000, dim),
        ]
    repeats, replicates = 300, 1000
    if smoke:
        cases, repeats, replicates = [("null", normal, 1, 60, 2), ("laplace", laplace, 1, 60, 2)], 3, 19
    rows = []
    for name, draw, variance, n, dim in cases:
        start = time.perf_counter()
        shares = (p_values(draw, variance, n, dim, repeats, replicates) <= 0.05).mean(axis=0)
        row = {"case": name, "dim": dim, "n": n, "repeats": repeats}
        row |= {f"order_{order}": float(share) for order, share in zip(ORDERS, shares[:-1], strict=True)}
        row |= {"adaptive": float(shares[-1]), "loss": float(shares[:-1].max() - shares[-1])}
        rows.append(row | {"seconds": time.perf_counter() - start})
        print(rows[-1], flush=True)
    return {"power": rows}


def render(result: dict[str, Any]) -> str:
    columns = {
        "case": "case", "dim": "d", "n": "n", **{f"order_{order}": f"r = {order}" for order in ORDERS},
        "adaptive": "adaptive", "loss": "best order − adaptive",
    }  # fmt: skip
    repeats = result["power"][0]["repeats"]
    return (
        f"# Power of the tests\n\nShare of rejections at the 5% level, Rademacher signs, {repeats} repeats "
        f"(±{1.96 * (0.25 / repeats) ** 0.5:.2f} at most), {result['date']}.\n\n" + table(columns, result["power"])
    )


if __name__ == "__main__":
    main("power", run, render)
