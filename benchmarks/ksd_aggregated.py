"""KSD aggregated over bandwidths, on the examples of Schrab, Guedj and Gretton (2022), beside what they report.

Their KSDAgg combines inverse multiquadric kernels of several widths by the smallest p-value, at a level found by
bisection; ours combines by the harmonic mean. Figures of theirs are from the results that they publish with their code
(github.com/antoninschrab/ksdagg-paper), 200 repeats: the wild bootstrap with 2,000 + 2,000 replicates over ten widths
from 1/d to the largest distance between draws, over d; and a parametric bootstrap, which draws from the target, with
500 + 500 replicates over widths of median · 2^i. Ours has 500 replicates and signs throughout.

- Gamma: shape 5 and scale 5; 500 draws with the shape 5 + s.
- Restricted Boltzmann machine: theirs, of one seed, with 50 visible and 40 hidden units; 1000 draws of the machine
  whose weights have noise of standard deviation σ.

Run with `python -m benchmarks.ksd_aggregated`; interrupted, it goes on where it stopped.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxpsd
from benchmarks._harness import Pieces, interval, main_of_pieces, table
from benchmarks._rivals import REPLICATES, aggregated_ksd
from benchmarks.paper import rbm
from jaxpsd._core.checks import check_samples
from jaxpsd._stein.pairs import median_distance

ALPHA, REPEATS, MACHINES, THEIRS = 0.05, 200, 60, 200
SHAPES, PERTURBATIONS = (0.0, 0.1, 0.2, 0.3, 0.4), (0.0, 0.01, 0.02, 0.03)
TEN, DOUBLING, MEDIAN = "ten widths", "median · 2^i", "median width"
POWERS = {"gamma": range(11), "machine": range(-20, 1)}

PUBLISHED = {
    "gamma": {
        TEN: (0.02, 0.17, 0.43, 0.75, 0.915), DOUBLING: (0.04, 0.175, 0.495, 0.82, 0.945),
        MEDIAN: (0.035, 0.175, 0.455, 0.78, 0.93),
    },
    "machine": {
        TEN: (0.06, 0.31, 0.99, 1.0), DOUBLING: (0.07, 0.345, 0.995, 1.0), MEDIAN: (0.055, 0.21, 0.795, 1.0),
    },
}  # fmt: skip


def ten_widths(x: jax.Array) -> list[jax.Array]:
    """From 1 to the largest distance, and at least 2, in equal ratios, over the dimension."""
    few = x[:500]
    products = few @ few.T
    squares = jnp.diag(products)
    longest = jnp.sqrt(jnp.max(squares[:, None] + squares[None] - 2 * products))
    return [jnp.maximum(longest, 2.0) ** (k / 9) / x.shape[1] for k in range(10)]


def p_values(example: str, key: jax.Array, scores: jax.Array, x: jax.Array) -> jax.Array:
    """Of both collections, and of the median width alone."""
    median = median_distance(check_samples(x), None)
    doubling = [2.0**i * median for i in POWERS[example]]
    several = [aggregated_ksd([jaxpsd.IMQ(c) for c in widths])(key, scores, x) for widths in (ten_widths(x), doubling)]
    options = {"method": "rademacher", "num_replicates": REPLICATES}
    return jnp.stack([*several, jaxpsd.gof_test(key, jaxpsd.KSD(jaxpsd.IMQ(median)), scores, x, **options).p_value])


def judged(example: str, keys: jax.Array, scores: jax.Array, x: jax.Array) -> dict[str, float]:
    """Share of rejections over all sets of draws; the adaptive test, too, which looks at the scores."""
    p = jax.jit(partial(jax.lax.map, lambda given: p_values(example, *given)))((keys, scores, x))
    ours = [
        float(jaxpsd.adaptive_test(*given, method="rademacher").p_value) for given in zip(keys, scores, x, strict=True)
    ]
    together = np.column_stack([np.asarray(p), np.array(ours)])
    if not np.isfinite(together).all():
        raise FloatingPointError("A test gave something that is not a finite number.")
    shares = map(float, (together <= ALPHA).mean(axis=0))
    return dict(zip((TEN, DOUBLING, MEDIAN, "adaptive"), shares, strict=True))


def gamma(shift: float, n: int, repeats: int) -> dict[str, float]:
    draws, signs = jax.random.split(jax.random.key(0), (2, repeats))
    x = jax.vmap(lambda key: 5 * jax.random.gamma(key, 5 + shift, (n, 1)))(draws)
    return judged("gamma", signs, 4 / x - 1 / 5, x)


def machine(perturbation: float, n: int, sweeps: int, repeats: int) -> dict[str, float]:
    # The published machine, in the order in which it was drawn.
    generator = np.random.RandomState(0)
    weights = 2.0 * generator.randint(0, 2, (rbm.VISIBLE, rbm.HIDDEN)) - 1
    b, c = generator.randn(rbm.VISIBLE), generator.randn(rbm.HIDDEN)
    noise = generator.randn(rbm.VISIBLE, rbm.HIDDEN)
    weights, noise, b, c = (jnp.asarray(each, jnp.float32) for each in (weights, noise, b, c))
    draws, signs = jax.random.split(jax.random.key(0), (2, repeats))
    perturbed = weights + perturbation * noise
    x = jax.jit(partial(jax.lax.map, lambda key: rbm.gibbs(key, perturbed, b, c, n, sweeps)))(draws)
    return judged("machine", signs, jax.vmap(lambda x: rbm.score(x, weights, b, c))(x), x)


def pieces(smoke: bool) -> Pieces:
    if smoke:
        return {"gamma, 0.0": partial(gamma, 0.0, 60, 2), "machine, 0.0": partial(machine, 0.0, 60, 5, 2)}
    found: dict[str, Any] = {f"gamma, {shift}": partial(gamma, shift, 500, REPEATS) for shift in SHAPES}
    for sigma in PERTURBATIONS:
        found[f"machine, {sigma}"] = partial(machine, sigma, rbm.N, rbm.SWEEPS, MACHINES)
    return found


def rows_of(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for name, shares in results.items():
        example, size = name.split(", ")
        place = (SHAPES if example == "gamma" else PERTURBATIONS).index(float(size))
        for test, share in shares.items():
            published = PUBLISHED[example].get(test)
            cells = {"example": example, "size": float(size), "test": test, "share": share}
            rows.append(cells | {"published": None if published is None else published[place]})
    return rows


def render(results: Mapping[str, Any]) -> str:
    apart = []
    for row in rows_of(results):
        if row["published"] is not None:
            repeats = REPEATS if row["example"] == "gamma" else MACHINES
            ours, theirs = interval(row["share"], repeats), interval(row["published"], THEIRS)
            if ours[1] < theirs[0] or theirs[1] < ours[0]:
                apart.append(f"{row['example']} {row['size']}, {row['test']}")
    columns = {"example": "example", "size": "s or σ", "test": "test", "share": "rejected", "published": "published"}
    return "\n".join(
        [
            "# Aggregated KSD",
            "",
            f"Share of rejections at the 5% level, {REPEATS} repeats (the machine: {MACHINES}), beside those of "
            f"Schrab, Guedj and Gretton ({THEIRS} repeats): ten widths by signs as here, others by exact draws.",
            "",
            f"95% intervals of both shares do not meet: {'; '.join(apart) or 'nowhere'}.",
            "",
            table(columns, rows_of(results)),
        ]
    )


if __name__ == "__main__":
    main_of_pieces("ksd_aggregated", pieces, render)
