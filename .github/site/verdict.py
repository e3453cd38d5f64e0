"""The picture at the top of the README: `python .github/site/verdict.py` draws it.

It shows the README's first example: a sampler whose step is too long for one of two parameters.
"""

import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
from matplotlib.figure import Figure

import jaxpsd
from jaxpsd import plots


def logdensity(x: jax.Array) -> jax.Array:
    """Two parameters, one three times as wide as the other."""
    return -0.5 * (x[0] ** 2 + (x[1] / 3) ** 2)


def langevin(rng_key: jax.Array, step_size: float) -> jax.Array:
    """Unadjusted Langevin dynamics."""

    def step(x: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = x + 0.5 * step_size * jax.grad(logdensity)(x) + jnp.sqrt(step_size) * jax.random.normal(key, x.shape)
        return x, x

    return jax.lax.scan(step, jnp.zeros(2), jax.random.split(rng_key, 20_000))[1]


def main(folder: Path) -> None:
    """Draw the picture into a folder."""
    draws, names = langevin(jax.random.key(0), 1.0), ("alpha", "beta")
    report = jaxpsd.diagnose(jax.random.key(1), logdensity, draws, names=names)
    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.3))
    plots.draws(logdensity, draws[::40], label="some of the draws", ax=left)
    left.set(xlabel=names[0], ylabel=names[1])
    # Above the contours, as beside.
    left.legend(loc="lower left", bbox_to_anchor=(0, 1), frameon=False, fontsize="small", markerscale=3)
    plots.errors(report, ax=right)
    # Lines do not break within an interval.
    words = textwrap.fill(report.verdict.replace(" … ", "\N{NO-BREAK SPACE}…\N{NO-BREAK SPACE}"), 100)
    figure.suptitle(words, fontsize=9.5, x=0.01, ha="left", family="monospace")
    figure.savefig(folder / "verdict.png", dpi=96)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "docs" / "images")
