"""How fast the tests are, beside the bare matrix products of the same shape in the same run.

Primal form: the product of an m × n matrix of signs, already formed, with n × J features, already formed, in the
faster of three memory layouts. Dual form: the product of the n × n Gram matrix with n × m signs, and five n × n
products over coordinates for each degree. Tests are a user's calls, from the log-density, checks, warnings and the
way to the host included. Run with `python -m benchmarks.speed_tests`.
"""

import time
from math import comb
from typing import Any

import jax
import jax.numpy as jnp

import jaxpsd
from benchmarks._harness import interleaved_times, main, peak_memory_of, table
from jaxpsd._core.checks import check_samples


def logdensity(x):
    return -0.5 * jnp.sum(x**2)


def bare_products(n: int, dim: int, order: int, replicates: int, form: str) -> dict[str, Any]:
    """Calls that do nothing but the matrix products, by name; the test has to do the work of all or of the fastest."""
    key = jax.random.key(1)
    if form == "dual":
        signs, gram = jax.random.normal(key, (n, replicates)), jax.random.normal(key, (n, n))
        x = jax.random.normal(key, (n, dim))
        inner = jax.jit(lambda x: [(x * (k + 1)) @ x.T for k in range(5 * order)])
        product = jax.jit(jnp.matmul)
        return {"bare": lambda: (product(gram, signs), inner(x))}
    signs = jax.random.normal(key, (replicates, n))
    features = jax.random.normal(key, (n, comb(dim + order, order) - 1))
    signs_t, features_t = jnp.array(signs.T), jnp.array(features.T)
    product, mixed = jax.jit(jnp.matmul), jax.jit(lambda a, b: jnp.einsum("nm,jn->mj", a, b))
    return {
        "bare, draws inside": lambda: product(signs, features),
        "bare, draws outside": lambda: product(features_t, signs_t),
        "bare, mixed": lambda: mixed(signs_t, features_t),
    }


def measure(n: int, dim: int, order: int, replicates: int, rounds: int) -> dict[str, Any]:
    x = jax.random.normal(jax.random.key(0), (n, dim))
    psd, key = jaxpsd.PSD(order), jax.random.key(2)
    form = psd._choose_form(check_samples(x), num_replicates=replicates)
    bare = bare_products(n, dim, order, replicates, form)
    start = time.perf_counter()
    jaxpsd.gof_test(key, psd, logdensity, x, method="rademacher", num_replicates=replicates)
    first = time.perf_counter() - start

    def call(**options: Any) -> Any:
        return lambda: jaxpsd.gof_test(key, psd, logdensity, x, num_replicates=replicates, **options)

    tests = {
        "rademacher": call(method="rademacher"),
        # Sums over pairs of draws have no normal replicates.
        **({} if form == "dual" else {"gaussian": call(method="gaussian")}),
        "markov": call(method="markov", flip_probability=0.01),
        "block": call(method="block", block_length=100),
        "auto": call(),
        "all orders": call(method="rademacher", orders=tuple(range(1, order + 1))),
        "multinomial": call(method="multinomial"),
        "adaptive": lambda: jaxpsd.adaptive_test(
            key, logdensity, x, method="rademacher", order=order, num_replicates=replicates
        ),
    }
    if rounds == 1:
        tests = {name: test for name, test in tests.items() if name in ("rademacher", "gaussian", "adaptive")}
    seconds = interleaved_times({**bare, **tests}, rounds=rounds)
    fastest = min(seconds[name] for name in bare)
    return {
        "n": n, "dim": dim, "order": order, "replicates": replicates, "form": form, "first_call_s": first,
        "chosen": tests["auto"]().method if "auto" in tests else None,
        "bare_ms": 1e3 * fastest, **{f"{name}_ms": 1e3 * seconds[name] for name in tests},
        **{f"{name}_ratio": seconds[name] / fastest for name in tests},
    }  # fmt: skip


def memory(n: int, dim: int, order: int, replicates: int, method: str) -> dict[str, Any]:
    case = {"n": n, "dim": dim, "order": order, "replicates": replicates, "method": method}
    call = (
        f"jaxpsd.gof_test(jax.random.key(0), jaxpsd.PSD({order}), logdensity, x, method={method!r}, "
        f"num_replicates={replicates}).p_value"
    )
    return {**case, **peak_memory_of(call, n, dim)}


def run(smoke: bool) -> dict[str, Any]:
    grid = [(102_400, 10, 2), (102_400, 10, 3), (10_000, 10, 2), (10_000, 10, 4), (1000, 20, 4), (1000, 5, 2)]
    large = [(n, 10, 2, 500, method) for n in (10**5, 10**6) for method in ("rademacher", "auto")]
    replicates, rounds = 500, 15
    if smoke:
        grid, large, replicates, rounds = [(200, 2, 2), (60, 8, 3)], [(2000, 3, 2, 19, "rademacher")], 19, 1
    rows = []
    for case in grid:
        rows.append(measure(*case, replicates, rounds))
        print(rows[-1], flush=True)
    return {"speed": rows, "memory": [memory(*case) for case in large]}


def render(result: dict[str, Any]) -> str:
    names = [key.removesuffix("_ratio") for key in result["speed"][0] if key.endswith("_ratio")]
    speed = {
        "n": "n", "dim": "d", "order": "r", "form": "form", "bare_ms": "bare products (ms)",
        "rademacher_ms": "rademacher (ms)", **{f"{name}_ratio": f"{name} / bare" for name in names},
        "chosen": "auto is", "first_call_s": "first call (s)",
    }  # fmt: skip
    memory = {
        "n": "n", "dim": "d", "order": "r", "method": "method", "extra_mib": "extra memory (MiB)",
        "seconds": "first call (s)",
    }  # fmt: skip
    return (
        f"# Speed of the tests\n\n{result['cpu']}, {result['cores']} cores, jax {result['versions']['jax']}, float32, "
        f"{result['speed'][0]['replicates']} replicates, {result['date']}. Ratios are to the bare products in the same "
        "run.\n\n"
        + table(speed, result["speed"])
        + "\n## Peak memory beyond the draws\n\n"
        + table(memory, result["memory"])
    )


if __name__ == "__main__":
    main("speed_tests", run, render)
