"""How often the tests of other discrepancies reject, at the 5% level: correct draws, and the paper's wrong ones.

The cases of the paper's Figure 1, beside the shares that the authors' published code gives. Run with
`python -m benchmarks.baselines`.
"""

import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxpsd
from benchmarks._draws import Draw, laplace, normal, student, widened
from benchmarks._harness import in_one_program, main, table

Test = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def bootstrapped(discrepancy: jaxpsd.Discrepancy, method: str = "rademacher", **options: Any) -> Test:
    def test(key: jax.Array, scores: jax.Array, x: jax.Array) -> jax.Array:
        return jaxpsd.gof_test(key, discrepancy, scores, x, method=method, **options).p_value

    return test


def fssd_optimized(key: jax.Array, scores: jax.Array, x: jax.Array) -> jax.Array:
    choose, test = jax.random.split(key)
    held_out = jaxpsd.FSSD.optimized(choose, scores, x)
    return jaxpsd.gof_test(test, *held_out, method="asymptotic", num_replicates=2000).p_value


def fssd_random(key: jax.Array, scores: jax.Array, x: jax.Array) -> jax.Array:
    choose, test = jax.random.split(key)
    fssd = jaxpsd.FSSD.random(choose, x)
    return jaxpsd.gof_test(test, fssd, scores, x, method="asymptotic", num_replicates=2000).p_value


def rfsd(method: str, location_scale: str) -> Test:
    def test(key: jax.Array, scores: jax.Array, x: jax.Array) -> jax.Array:
        locate, draw = jax.random.split(key)
        discrepancy = jaxpsd.RFSD(rng_key=locate, location_scale=location_scale)
        return jaxpsd.gof_test(draw, discrepancy, scores, x, method=method, num_replicates=1000).p_value

    return test


TESTS: dict[str, Test] = {
    "IMQ KSD": bootstrapped(jaxpsd.KSD()),
    "Gaussian KSD": bootstrapped(jaxpsd.KSD(jaxpsd.Gaussian())),
    "linear KSD": bootstrapped(jaxpsd.LinearKSD(), "asymptotic"),
    "FSSD-opt": fssd_optimized,
    "FSSD-rand": fssd_random,
    "RFSD": rfsd("asymptotic", "published"),
}
LEVEL_ONLY: dict[str, Test] = {
    "IMQ KSD, multinomial": bootstrapped(jaxpsd.KSD(), "multinomial"),
    "IMQ KSD, asymptotic": bootstrapped(jaxpsd.KSD(), "asymptotic"),
    "moment KSD, q = 2": bootstrapped(jaxpsd.KSD(jaxpsd.MomentKernel(2))),
    "FSSD-rand, signs": lambda key, scores, x: bootstrapped(jaxpsd.FSSD.random(key, x))(key, scores, x),
    "RFSD, signs": rfsd("rademacher", "published"),
    "RFSD, matched locations": rfsd("asymptotic", "matched"),
    "RFSD, matched, signs": rfsd("rademacher", "matched"),
}

# Share of rejections by the published NumPy code, 50 repeats (Student-t at d = 20: 48).
PUBLISHED = {
    "null": {
        "IMQ KSD": (0.00, 0.06, 0.02, 0.10), "Gaussian KSD": (0.02, 0.08, 0.04, 0.08),
        "FSSD-opt": (0.06, 0.08, 0.02, 0.12), "RFSD": (0.02, 0.04, 0.02, 0.00),
    },
    "variance": {
        "IMQ KSD": (1.00, 1.00, 0.96, 0.34), "Gaussian KSD": (1.00, 1.00, 1.00, 0.44),
        "FSSD-opt": (0.98, 0.58, 0.32, 0.06), "RFSD": (1.00, 0.58, 0.12, 0.00),
    },
    "student-t": {
        "IMQ KSD": (1.00, 1.00, 1.00, 0.77), "Gaussian KSD": (1.00, 1.00, 0.60, 0.06),
        "FSSD-opt": (0.94, 0.76, 0.50, 0.33), "RFSD": (0.98, 0.98, 0.94, 0.12),
    },
    "laplace": {
        "IMQ KSD": (1.00, 1.00, 1.00, 0.32), "Gaussian KSD": (1.00, 0.96, 0.18, 0.10),
        "FSSD-opt": (1.00, 0.56, 0.54, 0.16), "RFSD": (1.00, 1.00, 0.94, 0.22),
    },
}  # fmt: skip
DIMENSIONS, LEVEL_DIMENSIONS = (1, 5, 10, 20), (1, 2, 10)


def shares(tests: dict[str, Test], draw: Draw, variance: float, n: int, dim: int, repeats: int) -> dict[str, float]:
    """Share of rejections of each test; the target is normal with the given variance."""

    def once(key: jax.Array) -> jax.Array:
        draws, test_key = jax.random.split(key)
        x = draw(draws, n, dim)
        return jnp.stack([test(test_key, -x / variance, x) for test in tests.values()])

    p = in_one_program(once, n + dim, repeats)
    return dict(zip(tests, map(float, (p <= 0.05).mean(axis=0)), strict=True))


def dependent_level(rho: float, n: int, dim: int, repeats: int) -> dict[str, Any]:
    """Correct chains x' = ρx + √(1 − ρ²) noise, tested by `method="auto"`."""
    rejections, methods = 0, []
    for key in jax.random.split(jax.random.key(7), repeats):
        noise = np.asarray(jax.random.normal(key, (n, dim)))
        x = noise.copy()
        for t in range(1, n):
            x[t] = rho * x[t - 1] + (1 - rho**2) ** 0.5 * noise[t]
        result = jaxpsd.gof_test(key, jaxpsd.KSD(), -x, x)
        rejections += bool(result.reject)
        methods.append(result.method)
    return {
        "rho": rho,
        "n": n,
        "dim": dim,
        "repeats": repeats,
        "share": rejections / repeats,
        "methods": sorted(set(methods)),
    }


def run(smoke: bool) -> dict[str, Any]:
    cases: list[tuple[str, Draw, float, int, int]] = [
        ("null", normal, 1, 1000, 1000),
        ("variance", widened(1.7), 1, 1000, 300),
        ("student-t", student, 5 / 3, 2000, 300),
        ("laplace", laplace, 1, 1000, 300),
    ]
    dimensions, chains = DIMENSIONS, [(0.5, 2000, 5, 300), (0.9, 2000, 5, 300)]
    if smoke:
        cases, dimensions, chains = [("null", normal, 1, 40, 2)], (2,), [(0.5, 50, 2, 2)]
    rows = []
    for name, draw, variance, n, repeats in cases:
        for dim in dimensions:
            tests = TESTS | LEVEL_ONLY if name == "null" and dim in LEVEL_DIMENSIONS else TESTS
            start = time.perf_counter()
            row = {"case": name, "dim": dim, "n": n, "repeats": repeats}
            rows.append(row | {"shares": shares(tests, draw, variance, n, dim, repeats)})
            rows[-1]["seconds"] = time.perf_counter() - start
            print(rows[-1], flush=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jaxpsd.DependentDrawsWarning)
        dependent = [dependent_level(*chain) for chain in chains]
    return {"rejections": rows, "dependent": dependent}


def render(result: dict[str, Any]) -> str:
    def cell(row: dict[str, Any], test: str) -> str:
        share = row["shares"].get(test)
        if share is None:
            return ""
        published = PUBLISHED[row["case"]].get(test)
        if published is None or row["dim"] not in DIMENSIONS:
            return f"{share:.3g}"
        return f"{share:.3g} ({published[DIMENSIONS.index(row['dim'])]:.2f})"

    rows = [{**row, **{test: cell(row, test) for test in TESTS | LEVEL_ONLY}} for row in result["rejections"]]
    head = {"case": "case", "dim": "d", "n": "n", "repeats": "repeats"}
    null = [row for row in rows if row["case"] == "null" and row["dim"] in LEVEL_DIMENSIONS]
    return (
        f"# Tests of other discrepancies\n\nShare of rejections at the 5% level, {result['date']}; in parentheses that "
        "of the authors' published code in 50 repeats, good to about ±0.1.\n\n"
        + table(head | {test: test for test in TESTS}, rows)
        + "\nLevel of further tests:\n\n"
        + table(head | {test: test for test in LEVEL_ONLY}, null)
        + '\nIMQ KSD on correct autocorrelated chains, `method="auto"`:\n\n'
        + table({"rho": "ρ", "n": "n", "dim": "d", "repeats": "repeats", "share": "rejected"}, result["dependent"])
    )


if __name__ == "__main__":
    main("baselines", run, render)
