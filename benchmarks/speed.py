"""How fast jaxpsd is beside other libraries, a plain NumPy script and the bare matrix products, in one run.

Needs `pip install -r benchmarks/requirements.txt`; a library that is not there is left out. All compute the same
numbers from the same draws in single precision, which is checked, by a user's calls after warming up, taking turns.
Run with `python -m benchmarks.speed`.
"""

from collections.abc import Callable
from importlib import import_module
from itertools import combinations_with_replacement
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxpsd
from benchmarks._harness import interleaved_times, main, table
from benchmarks.speed_psd import bare_product
from benchmarks.speed_tests import bare_products
from jaxpsd._core.checks import check_samples

Call = Callable[[], Any]


def logdensity(x: jax.Array) -> jax.Array:
    return -0.5 * jnp.sum(x**2)


# --- the kernel Stein discrepancy of other libraries ------------------------------------------------------


def of_sgmcmcjax(x: jax.Array) -> Call:
    imq_ksd = import_module("sgmcmcjax.ksd").imq_KSD
    return lambda: imq_ksd(x, -x)


def of_coreax(x: jax.Array) -> Call:
    kernels, metrics, data = (import_module(f"coreax.{name}") for name in ("kernels", "metrics", "data"))
    # With this length its kernel is (1 + ‖x − y‖²)^{−½}. Larger blocks make it slower.
    kernel = kernels.SteinKernel(kernels.PCIMQKernel(length_scale=0.5**0.5), score_function=lambda x: -x)
    metric = metrics.KSD(kernel)
    compute = jax.jit(lambda points: metric.compute(points, points, block_size=max(1, len(x) // 40)))
    points = data.Data(x)
    return lambda: compute(points)


def of_ksd_metric(x: jax.Array) -> Call:
    stein, kernel, target = (import_module(f"ksd_metric.{name}") for name in ("stein", "kernel", "target"))
    if len(x) > 3000:
        raise MemoryError("It holds the derivatives of all pairs at once.")
    ksd = stein.KernelSteinDiscrepancyJax(
        target.TargetDistributionJax(logdensity), kernel.KernelJax(lambda x, y: (1 + jnp.sum((x - y) ** 2)) ** -0.5)
    )
    return lambda: ksd.kernel_stein_discrepancy(x)


def of_stein_thinning(x: jax.Array) -> Call:
    stein, kernel = (import_module(f"stein_thinning.{name}") for name in ("stein", "kernel"))
    points = np.asarray(x)
    imq = kernel.make_imq(points, preconditioner="id")
    # Its KSD is the sequence over all first draws, at the cost of the last.
    return lambda: stein.ksd(lambda i, j: imq(points[i], points[j], -points[i], -points[j]), len(points))[-1]


def of_goodpoints(x: jax.Array) -> Call:
    stein, scalar, mmd = (
        import_module(f"goodpoints.jax.{name}") for name in ("kernel.precond_stein", "kernel.scalar", "mmd")
    )
    kernel = stein.PrecondSteinKernel(scalar.imq, np.eye(x.shape[1], dtype=np.float32), 1.0)
    points = kernel.prepare_input(x, -x)
    return lambda: jnp.sqrt(mmd.compute_mmd(kernel, points))


LIBRARIES: dict[str, Callable[[jax.Array], Call]] = {
    "SGMCMCJax": of_sgmcmcjax,
    "coreax": of_coreax,
    "ksd-metric": of_ksd_metric,
    "stein-thinning": of_stein_thinning,
    "goodpoints": of_goodpoints,
}


def kernel_discrepancies(n: int, dim: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of the IMQ KSD, and how many times as long others take."""
    x = jax.random.normal(jax.random.key(0), (n, dim))
    calls: dict[str, Call] = {"jaxpsd": lambda: jaxpsd.KSD()(-x, x)}
    for name, of_library in LIBRARIES.items():
        try:
            calls[name] = of_library(x)
        except (ImportError, MemoryError):
            continue
    # The bare minimum: three n × n inner products over coordinates.
    products = jax.jit(lambda x: x @ x.T + (2 * x) @ x.T + (3 * x) @ x.T)
    values = {name: float(call()) for name, call in calls.items()}
    np.testing.assert_allclose(list(values.values()), values["jaxpsd"], rtol=2e-3, err_msg=str(values))
    times = interleaved_times({**calls, "bare": lambda: products(x)}, rounds=rounds)
    ratios = {name: times[name] / times["jaxpsd"] for name in calls if name != "jaxpsd"}
    ours = times["jaxpsd"]
    return {"n": n, "dim": dim, "jaxpsd_ms": 1e3 * ours, "over_bare": ours / times["bare"], **ratios}


# --- the PSD of a plain script ----------------------------------------------------------------------------


def script_features(x: np.ndarray, s: np.ndarray, order: int) -> np.ndarray:
    """Stein features of all monomials, one after the other, in the manner of a paper's script."""
    n, dim = x.shape
    columns = []
    for degree in range(1, order + 1):
        for chosen in combinations_with_replacement(range(dim), degree):
            alpha = np.bincount(chosen, minlength=dim)
            column = np.zeros(n, x.dtype)
            for k in np.flatnonzero(alpha):
                lower, lowest = alpha.copy(), alpha.copy()
                lower[k] -= 1
                column += alpha[k] * np.prod(x**lower, axis=1) * s[:, k]
                if alpha[k] > 1:
                    lowest[k] -= 2
                    column += alpha[k] * (alpha[k] - 1) * np.prod(x**lowest, axis=1)
            columns.append(column)
    return np.stack(columns, axis=1)


def script_value(x: np.ndarray, s: np.ndarray, order: int) -> float:
    return float(np.sqrt((script_features(x, s, order).mean(axis=0) ** 2).sum()))


def script_test(x: np.ndarray, s: np.ndarray, order: int, replicates: int) -> float:
    """The p-value, a replicate at a time."""
    tau = script_features(x, s, order)
    rng = np.random.default_rng(0)
    observed = (tau.mean(axis=0) ** 2).sum()
    signs = (rng.choice(np.array([-1, 1], x.dtype), len(x)) for _ in range(replicates))
    exceeding = sum(((v @ tau / len(x)) ** 2).sum() >= observed for v in signs)
    return (1 + exceeding) / (1 + replicates)


def polynomial_discrepancies(n: int, dim: int, order: int, replicates: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of the value and of the test; ratios to the bare products, and of the script to ours."""
    x = jax.random.normal(jax.random.key(0), (n, dim))
    points, psd, key = np.asarray(x), jaxpsd.PSD(order), jax.random.key(1)
    np.testing.assert_allclose(psd(-x, x), script_value(points, -points, order), rtol=1e-3)
    form = psd._choose_form(check_samples(x), num_replicates=replicates)
    bare = bare_products(n, dim, order, replicates, form)
    times = interleaved_times(
        {
            "value": lambda: psd(-x, x),
            "test": lambda: jaxpsd.gof_test(key, psd, -x, x, method="rademacher", num_replicates=replicates).p_value,
            **bare,
        },
        rounds=5 * rounds,
    )
    script = interleaved_times(
        {
            "value": lambda: script_value(points, -points, order),
            "test": lambda: script_test(points, -points, order, replicates),
        },
        rounds=rounds,
    )
    product = bare_product(n, dim, order)
    return {
        "n": n, "dim": dim, "order": order, "value_ms": 1e3 * times["value"],
        "value_over_bare": None if product is None else times["value"] / product,
        "script_over_value": script["value"] / times["value"], "test_ms": 1e3 * times["test"],
        "test_over_bare": times["test"] / min(times[name] for name in bare),
        "script_over_test": script["test"] / times["test"],
    }  # fmt: skip


# --- many sets --------------------------------------------------------------------------------------------


def many_sets(count: int, n: int, dim: int) -> dict[str, Any]:
    """Milliseconds for all sets: by one call, and one after the other."""
    sets = jax.random.normal(jax.random.key(0), (count, n, dim))
    few = sets[: max(1, count // 32)]
    times = interleaved_times(
        {
            "values": lambda: jaxpsd.discrepancies(jaxpsd.PSD(2), -sets, sets),
            "few, one by one": lambda: [jaxpsd.PSD(2)(-each, each) for each in few],
            "tests": lambda: jaxpsd.gof_tests(jax.random.key(1), jaxpsd.PSD(2), -sets, sets).p_value,
        },
        rounds=2,
    )
    return {
        "sets": count, "n": n, "dim": dim, "values_ms": 1e3 * times["values"], "tests_ms": 1e3 * times["tests"],
        "one_by_one": times["few, one by one"] * count / len(few) / times["values"],
    }  # fmt: skip


# --- what is looked at anyway -----------------------------------------------------------------------------


def of_blackjax(chains: jax.Array) -> Call:
    diagnostics = import_module("blackjax.diagnostics")
    both = jax.jit(lambda x: (diagnostics.effective_sample_size(x), diagnostics.potential_scale_reduction(x)))
    return lambda: both(chains)


def of_arviz(chains: jax.Array) -> Call:
    arviz = import_module("arviz")
    draws = arviz.convert_to_dataset({"x": np.asarray(chains)})
    return lambda: arviz.summary(draws)


SUMMARIES: dict[str, Callable[[jax.Array], Call]] = {"BlackJAX": of_blackjax, "ArviZ": of_arviz}


def reports(chains: int, length: int, dim: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of a report, of the test in it, and of what other libraries say of the same chains."""
    x = jax.random.normal(jax.random.key(0), (chains, length, dim))
    key = jax.random.key(1)
    calls: dict[str, Call] = {
        "report": lambda: jaxpsd.diagnose(key, logdensity, x, chains=True, progress=False),
        "without": lambda: jaxpsd.diagnose(key, logdensity, x, chains=True, second_opinion=False, progress=False),
        "test": lambda: jaxpsd.adaptive_test(key, logdensity, x, chains=True).p_value,
    }
    for name, of_library in SUMMARIES.items():
        try:
            calls[name] = of_library(x)
        except ImportError:
            continue
    times = interleaved_times(calls, rounds=rounds)
    return {"chains": chains, "length": length, "dim": dim, **{name: 1e3 * each for name, each in times.items()}}


def run(smoke: bool) -> dict[str, Any]:
    if smoke:
        return {
            "kernel": [kernel_discrepancies(100, 3, 1)],
            "polynomial": [polynomial_discrepancies(200, 3, 2, 20, 1)],
            "sets": [many_sets(4, 50, 2)],
            "reports": [reports(2, 50, 2, 1)],
        }
    kernel = [kernel_discrepancies(n, 10, rounds) for n, rounds in ((1000, 5), (3000, 2), (10_000, 1))]
    sizes = ((1000, 5, 2), (10_000, 10, 2), (10_000, 10, 3), (1000, 20, 4))
    polynomial = [polynomial_discrepancies(*size, 500, 1) for size in sizes]
    return {
        "kernel": kernel,
        "polynomial": polynomial,
        "sets": [many_sets(4096, 1000, 10)],
        "reports": [reports(4, *size, 3) for size in ((1000, 5), (10_000, 10), (1000, 50))],
    }


def render(result: dict[str, Any]) -> str:
    names = [name for name in LIBRARIES if any(name in row for row in result["kernel"])]
    kernel = {
        "n": "n", "dim": "d", "jaxpsd_ms": "jaxpsd (ms)", "over_bare": "/ bare products",
        **{name: f"{name} / jaxpsd" for name in names},
    }  # fmt: skip
    polynomial = {
        "n": "n", "dim": "d", "order": "r", "value_ms": "value (ms)", "value_over_bare": "/ bare product",
        "script_over_value": "NumPy script / jaxpsd", "test_ms": "test (ms)", "test_over_bare": "/ bare products",
        "script_over_test": "NumPy script / jaxpsd",
    }  # fmt: skip
    sets = {
        "sets": "sets", "n": "n", "dim": "d", "values_ms": "all values (ms)", "one_by_one": "one by one / together",
        "tests_ms": "all tests (ms)",
    }  # fmt: skip
    names = [name for name in SUMMARIES if any(name in row for row in result["reports"])]
    reports = {
        "chains": "chains", "length": "draws each", "dim": "d", "report": "diagnose (ms)",
        "without": "without moved draws (ms)", "test": "adaptive_test (ms)", **{name: f"{name} (ms)" for name in names},
    }  # fmt: skip
    return (
        f"# Speed beside others\n\n{result['cpu']}, {result['cores']} cores, jax {result['versions']['jax']}, float32, "
        f"{result['date']}. Ratios are from one run, calls taking turns.\n\n"
        "## The IMQ KSD by other libraries\n\n"
        + table(kernel, result["kernel"])
        + "\nAll give the same number. stein-thinning returns the KSD of all first draws on the way; ksd-metric holds "
        "all pairs in memory.\n\n## The PSD, and its test with 500 replicates\n\n"
        + table(polynomial, result["polynomial"])
        + "\n## Many sample sets, order 2\n\n"
        + table(sets, result["sets"])
        + "\n## Reports beside what is looked at anyway\n\n"
        + table(reports, result["reports"])
        + "\nBlackJAX: effective sample sizes and R-hat, jitted. ArviZ: `summary`. Independent draws of a Gaussian.\n"
    )


if __name__ == "__main__":
    main("speed", run, render)
