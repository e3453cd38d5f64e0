"""How often the tests reject wrong draws, at the 5% level: the adaptive test beside all that it could be replaced by.

Single wrong moments, wrong shapes, the cases of the paper's Figure 1, and its restricted Boltzmann machine. The rivals
are every order of the paper's PSD and of the orthonormal one, which a user would have to choose in advance, an earlier
recipe for an adaptive test, PSD in the metric of its estimated covariance, and KSD of one kernel and of several. Run
with `python -m benchmarks.power`; interrupted, it goes on where it stopped.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks._draws import (
    Draw,
    correlated,
    equicorrelated,
    laplace,
    normal,
    scaled,
    shifted,
    skewed,
    student,
    widened,
)  # fmt: skip
from benchmarks._harness import Pieces, main_of_pieces, table
from benchmarks._rivals import BANDWIDTHS, RIVALS, Test, adaptive, names_of
from benchmarks.paper import rbm

# Of up to 1000 draws, of more, and of machines.
REPEATS, FEWER, MACHINES = 300, 150, 100
ALPHA = 0.05


class Case(NamedTuple):
    """Draws of a Gaussian target: n of them, in so many dimensions, and what is to be multiplied for the scores."""

    draw: Draw
    n: int
    dim: int
    precision: Callable[[int], np.ndarray] = np.eye


def half_correlated(dim: int) -> np.ndarray:
    """The precision of a Gaussian with unit variances whose correlations are all ½."""
    return np.linalg.inv(0.5 * np.eye(dim) + 0.5 * np.ones((dim, dim)))


def wide(dim: int) -> np.ndarray:
    """That of a Gaussian with the variance of Student's t with five degrees of freedom."""
    return 0.6 * np.eye(dim)


def cases() -> dict[str, Case]:
    found = {
        "mean off by 0.5": Case(shifted(0.5), 100, 5),
        "mean off by 0.12": Case(shifted(0.12), 1000, 5),
        "one variance 1.5": Case(widened(1.5), 100, 5),
        "one variance 1.25": Case(widened(1.25), 1000, 10),
        "all sds 1.05": Case(scaled(1.05), 1000, 5),
        "all sds 0.95": Case(scaled(0.95), 1000, 5),
        "all sds 1.03": Case(scaled(1.03), 1000, 20),
        "one correlation 0.15": Case(correlated(0.15), 1000, 10),
        "all sds 1.1, correlations ½": Case(equicorrelated(0.5, 1.1), 300, 3, half_correlated),
        "correlations 0.35 for ½": Case(equicorrelated(0.35), 300, 3, half_correlated),
        "Laplace": Case(laplace, 300, 3),
        "Student-t": Case(student, 500, 5, wide),
        "one skewed coordinate": Case(skewed(16.0), 1000, 5),
    }
    for dim in (1, 5, 10, 20):
        found |= {
            f"paper: null, d = {dim}": Case(normal, 1000, dim),
            f"paper: variance 1.7, d = {dim}": Case(widened(1.7), 1000, dim),
            f"paper: student-t, d = {dim}": Case(student, 2000, dim, wide),
            f"paper: laplace, d = {dim}": Case(laplace, 1000, dim),
        }
    return found


def judge(tests: Mapping[str, Test]) -> Callable[[jax.Array, jax.Array, jax.Array], np.ndarray]:
    """A program from keys, scores and draws (repeats, n, dim) to p-values (repeats, tests)."""

    def once(given: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        return jnp.concatenate([jnp.atleast_1d(test(*given)) for test in tests.values()])

    program = jax.jit(lambda *given: jax.lax.map(once, given))
    return lambda *given: np.asarray(program(*given))


def row(p: np.ndarray, tests: Iterable[str], n: int, dim: int) -> dict[str, Any]:
    if not np.isfinite(p).all():
        raise FloatingPointError("A test gave something that is not a finite number.")
    shares = map(float, (p <= ALPHA).mean(axis=0))
    return {"n": n, "dim": dim, "repeats": len(p), "shares": dict(zip(names_of(list(tests)), shares, strict=True))}


def of_cases(chosen: Mapping[str, Case], repeats: int) -> dict[str, Any]:
    """Cases of one size, for which tests are compiled once; there the adaptive test takes scores as linear."""
    tests = {"adaptive": adaptive, **RIVALS}
    judged, found = judge(tests), {}
    for seed, (name, case) in enumerate(chosen.items()):
        draws, signs = jax.random.split(jax.random.key(seed), (2, repeats))
        x = jax.jit(jax.vmap(lambda key, case=case: case.draw(key, case.n, case.dim)))(draws)
        scores = -x @ jnp.asarray(case.precision(case.dim), x.dtype)
        found[name] = row(judged(signs, scores, x), tests, case.n, case.dim)
    return found


def of_machine(perturbation: float, n: int, sweeps: int, repeats: int) -> dict[str, Any]:
    """The paper's restricted Boltzmann machine, a new one each time; its scores are not linear, and so looked at."""

    def draw(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        keys = jax.random.split(key, 5)
        weights = jax.random.rademacher(keys[0], (rbm.VISIBLE, rbm.HIDDEN), jnp.float32)
        b, c = jax.random.normal(keys[1], (rbm.VISIBLE,)), jax.random.normal(keys[2], (rbm.HIDDEN,))
        perturbed = weights + perturbation * jax.random.normal(keys[3], weights.shape)
        x = rbm.gibbs(keys[4], perturbed, b, c, n, sweeps)
        return x, rbm.score(x, weights, b, c)

    draws, signs = jax.random.split(jax.random.key(0), (2, repeats))
    x, scores = jax.jit(partial(jax.lax.map, draw))(draws)
    ours = np.array([float(adaptive(*given)) for given in zip(signs, scores, x, strict=True)])
    p = np.column_stack([ours, judge(RIVALS)(signs, scores, x)])
    return {f"{MACHINE}, σ = {perturbation}": row(p, ["adaptive", *RIVALS], n, rbm.VISIBLE)}


MACHINE = "paper: Boltzmann machine"


def pieces(smoke: bool) -> Pieces:
    if smoke:
        return {
            "n = 60, d = 2": partial(
                of_cases, {"Laplace": Case(laplace, 60, 2), "paper: null": Case(normal, 60, 2)}, 3
            ),
            MACHINE: partial(of_machine, 0.01, 60, 5, 2),
        }
    sizes: dict[tuple[int, int], dict[str, Case]] = {}
    for name, case in cases().items():
        sizes.setdefault((case.n, case.dim), {})[name] = case
    found: dict[str, Any] = {
        f"n = {n}, d = {dim}": partial(of_cases, chosen, REPEATS if n <= 1000 else FEWER)
        for (n, dim), chosen in sizes.items()
    }
    # The paper's smallest perturbation, at which most tests find everything, and half of it.
    for perturbation in (0.02, 0.01):
        found[f"{MACHINE}, σ = {perturbation}"] = partial(of_machine, perturbation, rbm.N, rbm.SWEEPS, MACHINES)
    return found


def rows_of(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each case with the best of all other tests, and what the adaptive one lacks of it."""
    rows = []
    for name, found in (case for piece in results.values() for case in piece.items()):
        shares = found["shares"]
        cells = {"case": name.split(", d = ")[0], **found, **shares}
        if "null" not in name:
            others = {test: share for test, share in shares.items() if test != "adaptive"}
            best = max(others, key=lambda test: others[test])
            cells |= {"best": f"{best} ({others[best]:.2f})", "loss": others[best] - shares["adaptive"]}
        rows.append(cells)
    return rows


def render(results: Mapping[str, Any]) -> str:
    rows = rows_of(results)
    names = names_of(["old adaptive", "adaptive", *(test for test in RIVALS if test != "old adaptive")])
    columns = {"case": "case", "dim": "d", "n": "n", **{name: name for name in names}}
    columns |= {"best": "best other", "loss": "best − adaptive"}
    shown = [{key: f"{cell:.2f}" if isinstance(cell, float) else cell for key, cell in row.items()} for row in rows]
    worst = max((row for row in rows if "loss" in row), key=lambda row: row["loss"])
    factors = ", ".join(f"{factor:g}" for factor in BANDWIDTHS)
    return "\n".join(
        [
            "# Power of the tests",
            "",
            f"Share of rejections at the 5% level, Rademacher signs, {REPEATS} repeats (n = 2000: {FEWER}, the "
            f"machine: {MACHINES}), good to ±{1.96 * (0.25 / REPEATS) ** 0.5:.2f} at most with {REPEATS}.",
            "",
            "- raw, orthonormal: PSD of orders 1 to 4, as in the paper and in the coordinates of the target.",
            "- old adaptive: the smaller p-value of raw order 4 and of the largest standardised feature up to order 2.",
            "- reweighted: raw order 2 in the metric of its estimated covariance.",
            f"- KSDs: aggregated over {len(BANDWIDTHS)} Gaussian kernels, {factors} median distances wide.",
            "",
            f"The adaptive test lacks most, {worst['loss']:.2f}, of the best other one for {worst['case']} "
            f"(d = {worst['dim']}). The best is known only afterwards.",
            "",
            table(columns, shown),
        ]
    )


if __name__ == "__main__":
    main_of_pieces("power", pieces, render)
