"""How often the tests reject correct draws at the 5% level, and how often they find a wrong mean in dependent ones.

Independent draws of Gaussian targets: the adaptive test and every order of both bases, by dimension and number of
draws; then every other method. AR(1) chains with the right margins, method "auto". And the adaptive test on targets
that are not Gaussian: exact draws, independent and in chains, and chains of a sampler that is exact. Run with
`python -m benchmarks.level`; interrupted, it goes on where it stopped.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

import jaxpsd
from benchmarks._harness import Pieces, in_one_program, main_of_pieces, table
from benchmarks._rivals import ORDERS, REPLICATES, effective_draws, names_of, orthonormal_orders, raw_orders
from benchmarks._targets import Target, autoregressive, gaussian, targets

ALPHA = 0.05

# The parameters that "auto" would take for an autocorrelation time of one.
METHODS: dict[str, dict[str, Any]] = {
    "multinomial": {},
    "markov": {"flip_probability": 0.05},
    "block": {"block_length": 20},
}


def interval(repeats: int) -> tuple[float, float]:
    """Where the share of rejections of a 5% test lies, but for once in 10⁴."""
    low, high = scipy.stats.binom.interval(1 - 1e-4, repeats, ALPHA)
    return low / repeats, high / repeats


def uniformity(p: np.ndarray) -> float | None:
    """How well p-values fit a uniform distribution, by Kolmogorov and Smirnov."""
    return float(scipy.stats.kstest(p, "uniform").pvalue) if len(p) else None


# --- independent draws of a Gaussian ----------------------------------------------------------------------


def p_values_of(test: Any, repeats: int, n: int, dim: int) -> np.ndarray:
    """One row of p-values for each set of independent draws."""

    def once(key: jax.Array) -> jax.Array:
        draw, sign = jax.random.split(key)
        x = jax.random.normal(draw, (n, dim))
        return jnp.atleast_1d(test(sign, -x, x))

    return in_one_program(once, 1000 * dim + n, repeats)


def adaptive(key: jax.Array, s: jax.Array, x: jax.Array) -> jax.Array:
    return jaxpsd.adaptive_test(key, s, x, method="rademacher", num_replicates=REPLICATES).p_value


def independent(n: int, dim: int, repeats: int) -> dict[str, Any]:
    """Rademacher signs: the adaptive test, and each order."""
    tests = {"adaptive": adaptive, "orthonormal": orthonormal_orders, "raw": raw_orders}

    def together(key: jax.Array, s: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.concatenate([jnp.atleast_1d(test(key, s, x)) for test in tests.values()])

    shares = (p_values_of(together, repeats, n, dim) <= ALPHA).mean(axis=0)
    return {"dim": dim, "n": n, "repeats": repeats, **dict(zip(names_of(list(tests)), map(float, shares), strict=True))}


def by_method(method: str, n: int, dim: int, repeats: int, asymptotic_orders: Iterable[int]) -> list[dict[str, Any]]:
    """Another method on independent draws, a row for each statistic."""
    found: dict[str, np.ndarray] = {}
    if method == "asymptotic":
        for order in asymptotic_orders:

            def asymptotic(key, s, x, order=order):
                null = jax.random.normal(jax.random.fold_in(key, 1), x.shape)
                test = partial(jaxpsd.gof_test, key, jaxpsd.PSD(order), s, x, method="asymptotic", num_replicates=1000)
                return jnp.stack([test().p_value, test(null_samples=null, null_target=-null).p_value])

            p = p_values_of(asymptotic, repeats, n, dim)
            found |= {f"raw {order}": p[:, 0], f"raw {order}, null_samples": p[:, 1]}
    else:
        options = {"method": method, "num_replicates": REPLICATES, **METHODS[method]}

        def several(key: jax.Array, s: jax.Array, x: jax.Array) -> jax.Array:
            orders = jaxpsd.gof_test(key, jaxpsd.PSD(ORDERS[-1]), s, x, orders=ORDERS, **options).p_value
            return jnp.append(orders, jaxpsd.adaptive_test(key, s, x, **options).p_value)

        found = dict(zip([*names_of(["raw"]), "adaptive"], p_values_of(several, repeats, n, dim).T, strict=True))
    return [
        {
            "method": method, "dim": dim, "statistic": label, "n": n, "repeats": repeats,
            "level": float((p <= ALPHA).mean()),
            "uniformity_p": uniformity(p), "small_uniformity_p": uniformity(2 * p[p <= 0.5]),
        }
        for label, p in found.items()
    ]  # fmt: skip


# --- chains of a Gaussian ---------------------------------------------------------------------------------


def dependent(chains: int, length: int, rho: float, shift: float, dim: int, repeats: int) -> dict[str, Any]:
    """Rejections of `method="auto"`, of correct AR(1) chains or of some whose first mean is off by `shift`."""
    keys = jax.random.split(jax.random.key(round(1000 * rho) + chains), repeats)
    draw = jax.jit(partial(autoregressive, rho=rho, chains=chains, n=length, dim=dim))
    p, times, methods = [], [], []
    for k in range(repeats):
        start, sign = jax.random.split(keys[k])
        x = draw(start).at[..., 0].add(shift)
        result = jaxpsd.gof_test(sign, jaxpsd.PSD(4), gaussian, x, orders=ORDERS, num_replicates=REPLICATES)
        ours = jaxpsd.adaptive_test(sign, gaussian, x, num_replicates=REPLICATES)
        p.append([*np.asarray(result.p_value), float(ours.p_value)])
        times.append(result.autocorrelation_time)
        methods.append(result.method)
    shares = (np.array(p) <= ALPHA).mean(axis=0)
    return {
        "chains": chains, "length": length, "rho": rho, "shift": shift, "dim": dim, "repeats": repeats,
        "effective": chains * length * (1 - rho) / (1 + rho),
        **dict(zip([*names_of(["raw"]), "adaptive"], map(float, shares), strict=True)),
        "time": (1 + rho) / (1 - rho), "measured_time": float(np.mean(times)),
        "methods": ", ".join(f"{methods.count(each)} {each}" for each in sorted(set(methods))),
    }  # fmt: skip


# --- other targets ----------------------------------------------------------------------------------------

CHAINS, LENGTH, ACCEPTANCE = 4, 500, 0.7


def step_size_of(target: Target, dim: int) -> tuple[float, float]:
    """The largest of some step sizes of MALA that accepts as often as it should, and how often; from exact draws."""
    x = target.draws(jax.random.normal(jax.random.key(5), (2000, dim)))
    keys = jax.random.split(jax.random.key(6), len(x))

    @jax.jit
    def acceptance(size: jax.Array) -> jax.Array:
        kernel = blackjax.mala(target.logdensity, size)
        return jax.vmap(lambda key, x: kernel.step(key, kernel.init(x))[1].acceptance_rate)(keys, x).mean()

    for size in np.geomspace(4, 0.004, 31):
        share = float(acceptance(jnp.float32(size)))
        if share >= ACCEPTANCE:
            return float(size), share
    raise ValueError("MALA accepts too seldom at the smallest step size tried.")


def mala(target: Target, size: float, dim: int, length: int) -> Callable[[jax.Array], jax.Array]:
    """Chains of Metropolis-adjusted Langevin steps that start from exact draws, and so are exact throughout."""
    kernel = blackjax.mala(target.logdensity, size)

    def chain(key: jax.Array) -> jax.Array:
        start, run = jax.random.split(key)

        def step(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
            state, _ = kernel.step(key, state)
            return state, state.position

        state = kernel.init(target.draws(jax.random.normal(start, (dim,))))
        return jax.lax.scan(step, state, jax.random.split(run, length))[1]

    return lambda key: jax.vmap(chain)(jax.random.split(key, CHAINS))


def of_target(name: str, dim: int, kind: str, length: int, repeats: int) -> dict[str, Any]:
    """The adaptive test as users call it, which sees how dependent the draws are and how linear the scores."""
    target, row = targets()[name], {}
    if kind.startswith("n = "):
        n = int(kind.removeprefix("n = "))

        def draw(key: jax.Array) -> jax.Array:
            return target.draws(jax.random.normal(key, (n, dim)))
    elif kind.startswith("ρ = "):
        rho = float(kind.removeprefix("ρ = "))

        def draw(key: jax.Array) -> jax.Array:
            return target.draws(autoregressive(key, rho, CHAINS, length, dim))
    else:
        size, share = step_size_of(target, dim)
        draw, row = mala(target, size, dim, length), {"step_size": size, "acceptance": share}
    # Cells of the same normal variables would err together.
    draws, signs = jax.random.split(jax.random.key(zlib.crc32(f"{name}, {dim}, {kind}".encode())), (2, repeats))
    # Arrays of NumPy: to take those of JAX apart is a program of its own, which takes long to compile.
    sets = np.asarray(jax.jit(jax.vmap(draw))(draws))
    rejected, effective, without = [], [], []
    for k, x in enumerate(sets):
        result = jaxpsd.adaptive_test(signs[k], target.logdensity, x, num_replicates=REPLICATES)
        rejected.append(bool(result.reject))
        effective.append(effective_draws(result, x.size // dim))
        without.append([any(said.startswith(part) for said in result.left_out) for part in ("skewness", "tails")])
    skewness, tails = np.mean(without, axis=0)
    return {
        "target": name, "dim": dim, "draws": kind, "repeats": repeats, "adaptive": float(np.mean(rejected)),
        "effective": float(np.median(effective)), "without_skewness": float(skewness), "without_tails": float(tails),
        **row,
    }  # fmt: skip


# --- everything -------------------------------------------------------------------------------------------

DIMENSIONS, COUNTS = (1, 2, 5, 10, 20, 50), (50, 100, 200, 300, 1000)
INDEPENDENT, CHAINED = ("n = 50", "n = 100", "n = 300", "n = 1000"), ("ρ = 0.5", "ρ = 0.9", "MALA")
# In many dimensions, the chains of a real sampler alone, or none.
KINDS = {1: INDEPENDENT + CHAINED, 3: INDEPENDENT + CHAINED, 10: CHAINED[-1:], 20: INDEPENDENT, 50: INDEPENDENT}
OTHERS = ("heavy tails", "skewed", "logistic", "bimodal", "banana", "funnel")
REPEATS, FEWER, WRONG = 1000, 400, 200


def pieces(smoke: bool) -> Pieces:
    if smoke:
        return {
            "independent: d = 2, n = 50": partial(independent, 50, 2, 3),
            "method: multinomial, d = 2": partial(by_method, "multinomial", 50, 2, 3, ()),
            "method: asymptotic, d = 2": partial(by_method, "asymptotic", 50, 2, 3, (1,)),
            "correct chains: 2 × 50, ρ = 0.5": partial(dependent, 2, 50, 0.5, 0.0, 2, 2),
            "wrong chains: 2 × 50, ρ = 0.5": partial(dependent, 2, 50, 0.5, 0.5, 2, 2),
            "target: funnel, d = 2, MALA": partial(of_target, "funnel", 2, "MALA", 50, 2),
            "target: logistic, d = 1, ρ = 0.5": partial(of_target, "logistic", 1, "ρ = 0.5", 50, 2),
        }
    found: dict[str, Any] = {}
    for dim in DIMENSIONS:
        for n in COUNTS:
            found[f"independent: d = {dim}, n = {n}"] = partial(independent, n, dim, REPEATS)
    for method in (*METHODS, "asymptotic"):
        for dim in (1, 5, 10):
            found[f"method: {method}, d = {dim}"] = partial(by_method, method, 1000, dim, REPEATS, ORDERS[:3])
    for rho in (0.5, 0.9, 0.97):
        for chains in (1, 4):
            length = 2000 // chains
            title = f"correct chains: {chains} × {length}, ρ = {rho}"
            found[title] = partial(dependent, chains, length, rho, 0.0, 5, REPEATS)
    # An effective sample size of 200, and a mean that is off by half a standard deviation.
    for chains, length, rho in ((1, 600, 0.5), (4, 950, 0.9), (1, 3800, 0.9), (1, 13_134, 0.97)):
        title = f"wrong chains: {chains} × {length}, ρ = {rho}"
        found[title] = partial(dependent, chains, length, rho, 0.5, 5, WRONG)
    for name in OTHERS:
        for dim, kinds in KINDS.items():
            if dim >= targets()[name].fewest:
                for kind in kinds:
                    found[f"target: {name}, d = {dim}, {kind}"] = partial(of_target, name, dim, kind, LENGTH, FEWER)
    return found


def section(results: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """All rows of the pieces whose names start so."""
    found = [rows for piece, rows in results.items() if piece.startswith(f"{name}: ")]
    return [row for rows in found for row in (rows if isinstance(rows, list) else [rows])]


def marked(row: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Shares in bold where a 5% test would not be, but for once in 10⁴."""
    low, high = interval(row["repeats"])

    def text(share: float) -> str:
        return f"{share:.3f}" if low <= share <= high else f"**{share:.3f}**"

    return {**row, **{key: text(row[key]) for key in keys if key in row}}


def render(results: Mapping[str, Any]) -> str:
    names = ["adaptive", *names_of(["orthonormal", "raw"])]
    raw = names_of(["raw"])
    independent_columns = {"dim": "d", "n": "n", **{name: name for name in names}}
    method_columns = {
        "method": "method", "dim": "d", "statistic": "statistic", "level": "rejected",
        "uniformity_p": "uniformity (Kolmogorov–Smirnov p)", "small_uniformity_p": "the same, of p-values ≤ ½",
    }  # fmt: skip
    chain_columns = {
        "chains": "chains", "length": "draws each", "rho": "autocorrelation", "effective": "effective draws",
        **{name: name for name in raw}, "adaptive": "adaptive", "time": "τ", "measured_time": "τ measured",
        "methods": "methods chosen",
    }  # fmt: skip
    target_columns = {
        "target": "target", "dim": "d", "draws": "draws", "adaptive": "adaptive", "effective": "effective draws",
        "without_skewness": "without skewness", "without_tails": "without tails", "step_size": "step size",
        "acceptance": "accepted",
    }  # fmt: skip
    low, high = interval(REPEATS)
    others = section(results, "target")
    off = [row for row in others if row["effective"] >= 50 and not 0.02 <= row["adaptive"] <= 0.08]
    said = "; ".join(f"{row['target']}, d = {row['dim']}, {row['draws']}: {row['adaptive']:.3f}" for row in off)
    return "\n".join(
        [
            "# Level of the tests",
            "",
            "Share of rejections at the 5% level. In bold, what a 5% test would show once in 10⁴ cells: outside "
            f"{low:.4f} … {high:.4f} with {REPEATS} repeats.",
            "",
            f"## Independent draws of a Gaussian, Rademacher signs, {REPEATS} repeats",
            "",
            table(independent_columns, [marked(row, names) for row in section(results, "independent")]),
            f"## Other methods, n = 1000, {REPEATS} repeats",
            "",
            table(method_columns, [marked(row, ["level"]) for row in section(results, "method")]),
            f"## Correct AR(1) chains, d = 5, {REPEATS} repeats",
            "",
            table(chain_columns, [marked(row, [*raw, "adaptive"]) for row in section(results, "correct chains")]),
            f"## AR(1) chains with one mean off by half a standard deviation, {WRONG} repeats",
            "",
            table(chain_columns, section(results, "wrong chains")),
            f"## Other targets, {FEWER} repeats",
            "",
            f"Independent draws, {CHAINS} chains of {LENGTH} by mapping AR(1) chains of normal variables, and as many "
            "of MALA. Effective draws are the median of what the test measures; the last shares say how often it left "
            f"a part out for want of draws. Outside 2–8% with at least 50 effective draws: {said or 'none'}.",
            "",
            table(target_columns, [marked(row, ["adaptive"]) for row in others]),
        ]
    )


if __name__ == "__main__":
    main_of_pieces("level", pieces, render)
