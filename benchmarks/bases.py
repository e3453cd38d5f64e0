"""Monomials beside Hermite polynomials: time of a value in both forms, and digits in single precision.

Calls take turns in one process. Digits are those of the discrepancy in the coordinates of the target, float32 against
float64 on the same draws. Run with `python -m benchmarks.bases`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxpsd
from benchmarks._harness import interleaved_times, main, table

BASES = ("monomial", "hermite")


def times(n: int, dim: int, order: int, form: str, rounds: int) -> dict[str, Any]:
    x = jax.random.normal(jax.random.key(0), (n, dim))
    scores = -x
    calls = {
        basis: lambda psd=jaxpsd.PSD(order, basis=basis, form=form): psd(scores, x)  # noqa: B008
        for basis in BASES
    }
    found = {f"{basis}_ms": 1e3 * seconds for basis, seconds in interleaved_times(calls, rounds=rounds).items()}
    ratio = found["hermite_ms"] / found["monomial_ms"]
    return {"n": n, "dim": dim, "order": order, "form": form, **found, "ratio": ratio}


def digits(n: int, dim: int, order: int, form: str) -> dict[str, Any]:
    """Relative error of float32, for logistic draws of a normal target with correlations and an offset."""
    rng = np.random.default_rng(0)
    root = np.linalg.cholesky(0.5 * np.eye(dim) + 0.5)
    x = 10 + rng.logistic(size=(n, dim)) * 0.55 @ root.T
    precision = np.linalg.inv(root @ root.T)
    row: dict[str, Any] = {"n": n, "dim": dim, "order": order, "form": form}
    for basis in BASES:
        psd, values = jaxpsd.PSD(order, basis=basis, form=form, transform="target"), []
        for dtype in (np.float32, np.float64):
            with jax.enable_x64(dtype == np.float64):
                draws = jnp.asarray(x.astype(np.float32), dtype)
                scores = jnp.asarray(-(np.asarray(draws, np.float64) - 10) @ precision, dtype)
                values.append(float(psd(scores, draws)))
        row[f"{basis}_error"] = abs(values[0] / values[1] - 1)
    return row


def run(smoke: bool) -> dict[str, Any]:
    timed = [
        (10_000, 10, 2, "primal"), (10_000, 10, 4, "primal"), (10_240, 20, 4, "primal"), (1_024_000, 10, 2, "primal"),
        (1000, 20, 4, "dual"), (2000, 100, 4, "dual"), (2000, 1000, 4, "dual"), (2000, 1000, 6, "dual"),
    ]  # fmt: skip
    told = [
        (1000, 5, 4, "primal"), (1000, 5, 4, "dual"), (100_000, 10, 2, "primal"), (100_000, 10, 4, "primal"),
        (2000, 50, 4, "dual"), (1000, 3, 6, "primal"), (1000, 3, 6, "dual"),
    ]  # fmt: skip
    rounds = 10
    if smoke:
        timed, told, rounds = [(50, 2, 2, "primal")], [(50, 2, 2, "dual")], 1
    rows = {"times": [], "digits": []}
    for case in timed:
        rows["times"].append(times(*case, rounds=rounds))
        print(rows["times"][-1], flush=True)
    for case in told:
        rows["digits"].append(digits(*case))
        print(rows["digits"][-1], flush=True)
    return rows


def render(result: dict[str, Any]) -> str:
    shape = {"n": "n", "dim": "d", "order": "r", "form": "form"}
    timed = {**shape, "monomial_ms": "monomials, ms", "hermite_ms": "Hermite, ms", "ratio": "Hermite / monomials"}
    told = {**shape, "monomial_error": "monomials", "hermite_error": "Hermite"}
    return (
        f"# Monomials and Hermite polynomials\n\nTime of a value from scores, best of ten rounds in which both take "
        f"turns, {result['date']}.\n\n{table(timed, result['times'])}\n\n"
        f"Relative error of single precision, in the coordinates of the target.\n\n{table(told, result['digits'])}"
    )


if __name__ == "__main__":
    main("bases", run, render)
