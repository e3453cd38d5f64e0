"""A script as users write it; pyright reads it, to see that the package's types serve them."""

import jax
import jax.numpy as jnp
import numpy as np

import jaxpsd


def logdensity(x: jax.Array) -> jax.Array:
    return -0.5 * jnp.sum(x**2)


def script() -> None:
    key = jax.random.key(0)
    samples = jax.random.normal(key, (4, 500, 3))

    value: float = float(jaxpsd.PSD(order=2, transform="standardize")(logdensity, samples))
    from_scores: jax.Array = jaxpsd.KSD(jaxpsd.IMQ(c=1.0))(np.asarray(-samples), np.asarray(samples))
    test: jaxpsd.GofResult = jaxpsd.gof_test(key, jaxpsd.PSD(2), logdensity, samples, method="auto", num_replicates=200)
    rejected: bool = bool(test.reject) or bool(jaxpsd.adaptive_test(key, logdensity, samples).reject)
    table: jaxpsd.MomentTable = jaxpsd.moment_table(key, logdensity, samples, names=["a", "b", "c"])
    best = jaxpsd.rank(key, jaxpsd.PSD(2), logdensity, {"good": samples, "wide": 2 * samples}).best
    report: jaxpsd.Report = jaxpsd.diagnose(key, logdensity, samples)
    checked: jaxpsd.Report = jaxpsd.check(key, logdensity, sample=lambda key, n: jax.random.normal(key, (n, 3)))
    text: str = report.verdict + checked.verdict
    init, update, merge, result = jaxpsd.stream(jaxpsd.PSD(2), num_replicates=100)
    first = update(init(key, samples[0, 0]), logdensity, samples[0])
    finished = result(merge(first, init(key, samples[0, 0], start=500)))
    values: jax.Array = jaxpsd.discrepancies(jaxpsd.PSD(2), logdensity, [samples[0], samples[1, :100]])
    scores = jaxpsd.score(jax.jit(logdensity), samples)
    affine: jaxpsd.Affine = jaxpsd.Affine.fit(samples, "whiten")
