"""Choosing a setting by `tune`: is the choice as good as the grid's, and at what price.

Each problem has true errors of all settings: root mean squared errors of means and standard deviations, in units of the
target, of full runs that are repeated often, against a truth by quadrature, long NUTS or in closed form. `tune` is run
with ten keys, each for a third of the grid's gradient evaluations. Run with `python -m benchmarks.tune`.
"""

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np

import jaxpsd
from benchmarks._harness import Pieces, best_time, main_of_pieces, table
from jaxpsd.demo import STEP_SIZES, log_likelihood, log_posterior, log_prior, observations

CHAINS = 4
# The part of a run that is not looked at, in tuning and in full runs.
BURN_IN = 0.25


def true_errors(
    step: Callable[..., Any],
    begin: Callable[..., Any],
    sizes: jax.Array,
    num_steps: int,
    keys: jax.Array,
    truth: tuple[np.ndarray, np.ndarray],
    origin: jax.Array,
) -> list[float]:
    """Root mean squared errors, over runs of some chains, of all means and standard deviations, for each step size.

    `step(size, key, state)` and `begin(size, key)` make chains; the true means are about the origin.
    """

    @jax.jit
    def moments(sizes: jax.Array, keys: jax.Array) -> tuple[jax.Array, jax.Array]:
        def runs(size: jax.Array) -> tuple[jax.Array, jax.Array]:
            run = partial(one_chain, partial(step, size), partial(begin, size), origin, num_steps)

            def chains(key: jax.Array) -> tuple[jax.Array, jax.Array]:
                first, second = jax.tree.map(
                    lambda leaf: leaf.mean(axis=0), jax.vmap(run)(jax.random.split(key, CHAINS))
                )
                return first, jnp.sqrt(second - first**2)

            return jax.vmap(chains)(keys)

        return jax.lax.map(runs, sizes)

    means, sds = (np.asarray(leaf, np.float64) for leaf in moments(sizes, keys))
    errors = np.concatenate([(means - truth[0]) / truth[1], sds / truth[1] - 1], axis=-1)
    squares = (errors**2).mean(axis=(1, 2))
    return [float(square) ** 0.5 if math.isfinite(square) else math.inf for square in squares]


def one_chain(
    step: Callable[..., Any], begin: Callable[..., Any], origin: jax.Array, num_steps: int, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Means of deviations from an origin, and of their squares, over a chain after burn-in."""
    start_key, burn_key, key = jax.random.split(key, 3)

    def move(carry: Any, key: jax.Array) -> tuple[Any, None]:
        state, first, second = carry
        state, position = step(key, state)
        x = position - origin
        return (state, first + x, second + x**2), None

    def run(state: Any, key: jax.Array, count: int) -> Any:
        # Sums of sums, for the digits.
        def lap(carry: Any, key: jax.Array) -> tuple[Any, None]:
            state, first, second = carry
            (state, a, b), _ = jax.lax.scan(move, (state, zero, zero), jax.random.split(key, 100))
            return (state, first + a, second + b), None

        zero = jnp.zeros_like(origin)
        return jax.lax.scan(lap, (state, zero, zero), jax.random.split(key, max(1, count // 100)))[0]

    state, *_ = run(begin(start_key), burn_key, int(BURN_IN * num_steps))
    kept = num_steps - int(BURN_IN * num_steps)
    _, first, second = run(state, key, kept)
    count = 100 * max(1, kept // 100)
    return first / count, second / count


def compared(
    choose: Mapping[str, Callable[..., jaxpsd.Tuning]], keys: jax.Array, errors: np.ndarray, within: float
) -> dict[str, Any]:
    """How often choices by each objective are good, at what price; and those of the whole grid by the same objective.

    `choose[objective](key, **options)` is a call of `tune`. The grid is one round of full runs, with other keys. An
    ideal random search draws a third of the settings, and always finds the best of them.
    """
    good = errors <= (1 + within) * errors.min()
    count, num_good = len(errors), int(good.sum())
    drawn = max(1, count // 3)
    found, labels = {}, ()
    for objective, call in choose.items():
        tunings, grid = [], []
        for tune_key, grid_key in jax.vmap(jax.random.split)(keys):
            tunings.append(call(tune_key))
            # A quarter of a budget is for new draws of the winner.
            whole = 4 / 3 * tunings[-1].grid_price
            grid.append(call(grid_key, budget=whole, keep=1 / count).best_place)
        labels = tunings[0].labels
        places = [tuning.best_place for tuning in tunings]
        same = [place == other for place, other in zip(places, grid, strict=True)]
        found[objective] = {
            "chosen": places,
            "within": float(np.mean(good[places])),
            "same_or_within": float(np.mean(good[places] | same)),
            "worst_ratio": float((errors[places] / errors.min()).max()),
            "price": float(max(tuning.spent / tuning.grid_price for tuning in tunings)),
            "grid": {
                "chosen": grid,
                "within": float(np.mean(good[grid])),
                "worst_ratio": float((errors[grid] / errors.min()).max()),
            },
        }
    return {
        "errors": [float(error) for error in errors],
        "labels": list(labels),
        "tolerance": within,
        "num_good": num_good,
        "random_search": 1 - math.comb(count - num_good, drawn) / math.comb(count, drawn),
        "tune": found,
    }


# --- the mixture posterior --------------------------------------------------------------------------------


def mixture_truth(data: jax.Array) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations by quadrature."""
    axis = jnp.linspace(-5, 5, 801)
    points = jnp.stack(jnp.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    logs = np.asarray(jax.lax.map(partial(log_posterior, data), points, batch_size=4096), np.float64)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    x = np.asarray(points, np.float64)
    mean = weights @ x
    return mean, np.sqrt(weights @ (x - mean) ** 2)


def mixture(data_set: int, num_steps: int, num_keys: int, num_runs: int) -> dict[str, Any]:
    data = observations(jax.random.key(data_set))
    density = jax.tree_util.Partial(log_posterior, data)
    gradient = blackjax.sgmcmc.gradients.grad_estimator(log_prior, lambda theta, x: log_likelihood(x[None], theta), 100)
    # BlackJAX moves by ε∇ + √(2ε) noise.
    sizes = [size / 2 for size in STEP_SIZES]
    algorithm = blackjax.sgld(gradient)
    scale = jnp.sqrt(jnp.array([10.0, 1.0]))

    def step(size: jax.Array, key: jax.Array, theta: jax.Array) -> tuple[jax.Array, jax.Array]:
        batch_key, key = jax.random.split(key)
        theta = algorithm.step(key, theta, data[jax.random.randint(batch_key, (10,), 0, 100)], size)
        return theta, theta

    def begin(key: jax.Array) -> jax.Array:
        return scale * jax.random.normal(key, (2,))

    keys = jax.random.split(jax.random.key(1000 + data_set), num_runs)

    errors = np.array(
        true_errors(
            step, lambda _, key: begin(key), jnp.array(sizes), num_steps, keys, mixture_truth(data), jnp.zeros(2)
        )
    )

    def choose(key: jax.Array, objective: str, **options: Any) -> jaxpsd.Tuning:
        start_key, key = jax.random.split(key)
        return jaxpsd.tune(
            key, density, lambda _: blackjax.sgld(gradient), sizes, num_steps=num_steps, data=data, batch_size=10,
            positions=jax.vmap(begin)(jax.random.split(start_key, CHAINS)), gradients=0.1, objective=objective,
            burn_in=BURN_IN, **options,
        )  # fmt: skip

    by_objective = {name: partial(choose, objective=name) for name in ("bias", "error")}
    return compared(by_objective, jax.random.split(jax.random.key(2000 + data_set), num_keys), errors, 0.1)


# --- logistic regression with many observations -----------------------------------------------------------


DIM, BATCH_SIZES = 10, (100, 300, 1000)


def normal_prior(beta: jax.Array) -> jax.Array:
    return -0.5 * jnp.sum(beta**2) / 100


def bernoulli(beta: jax.Array, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    x, y = batch
    logits = x @ beta
    return jnp.sum(y * logits - jnp.logaddexp(0, logits))


def logistic(num_observations: int, num_steps: int, num_keys: int, num_runs: int, num_nuts: int) -> dict[str, Any]:
    keys = jax.random.split(jax.random.key(5), 6)
    x = jax.random.normal(keys[0], (num_observations, DIM))
    beta = jnp.linspace(-1, 1, DIM)
    y = (jax.random.uniform(keys[1], (num_observations,)) < jax.nn.sigmoid(x @ beta)).astype(jnp.float32)
    data = (x, y)

    def density(at: jax.Array) -> jax.Array:
        return normal_prior(at) + bernoulli(at, data)

    mode = beta
    for _ in range(10):
        mode = mode - jnp.linalg.solve(jax.hessian(density)(mode), jax.grad(density)(mode))
    covariance = jnp.linalg.inv(-jax.hessian(density)(mode))
    truth = nuts_truth(density, mode, covariance, num_nuts, keys[2])

    unit = float(jnp.diag(covariance).mean())
    settings = [
        {"step_size": float(f"{unit * share:.3g}"), "batch_size": size}
        for size in BATCH_SIZES
        for share in np.geomspace(0.003, 1.0, 8)
    ]

    def step(key: jax.Array, at: jax.Array, setting: dict[str, Any]) -> tuple[jax.Array, jax.Array]:
        batch_key, noise_key = jax.random.split(key)
        size = setting["batch_size"]
        chosen = jax.random.randint(batch_key, (size,), 0, num_observations)
        gradient = jax.grad(normal_prior)(at) + num_observations / size * jax.grad(bernoulli)(
            at, (x[chosen], y[chosen])
        )
        noise = jax.random.normal(noise_key, at.shape)
        at = at + 0.5 * setting["step_size"] * gradient + jnp.sqrt(setting["step_size"]) * noise
        return at, at

    factor = jnp.linalg.cholesky(covariance)

    def begin(key: jax.Array) -> jax.Array:
        return mode + 2 * factor @ jax.random.normal(key, (DIM,))

    errors = []
    for size in BATCH_SIZES:
        # As many gradient evaluations for each setting.
        length = int(num_steps * np.mean(BATCH_SIZES) / size)
        move = lambda share, key, at, size=size: step(key, at, {"step_size": share, "batch_size": size})  # noqa: E731
        sizes = jnp.array([each["step_size"] for each in settings if each["batch_size"] == size])
        run_keys = jax.random.split(keys[3], num_runs)
        errors += true_errors(move, lambda _, key: begin(key), sizes, length, run_keys, truth, mode)
    posterior = jaxpsd.Minibatches(normal_prior, bernoulli, data, batch_size=1000, control_variate=mode)

    def choose(key: jax.Array, **options: Any) -> jaxpsd.Tuning:
        return jaxpsd.tune(
            key, posterior, step, settings, positions=jax.vmap(begin)(jax.random.split(key, CHAINS)),
            num_steps=num_steps, gradients=lambda setting: setting["batch_size"], score_gradients=2000,
            objective="error", burn_in=BURN_IN, **options,
        )  # fmt: skip

    return compared({"error": choose}, jax.random.split(keys[4], num_keys), np.array(errors), 0.1)


def nuts_truth(
    density: Callable[..., Any], mode: jax.Array, covariance: jax.Array, num_draws: int, key: jax.Array
) -> tuple[np.ndarray, np.ndarray]:
    """Means about the mode, and standard deviations, by NUTS with the covariance at the mode as its metric."""
    nuts = blackjax.nuts(density, 0.7, covariance)

    @jax.jit
    def run(key: jax.Array) -> jax.Array:
        def step(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
            state, _ = nuts.step(key, state)
            return state, state.position - mode

        return jax.lax.scan(step, nuts.init(mode), jax.random.split(key, num_draws))[1]

    draws = np.asarray(run(key), np.float64)[num_draws // 20 :]
    return draws.mean(axis=0), draws.std(axis=0)


# --- an ill-conditioned Gaussian --------------------------------------------------------------------------


def gaussian(name: str, dim: int, num_steps: int, num_keys: int, num_runs: int) -> dict[str, Any]:
    """Variances from 0.01 to 1; chains start far out."""
    variances = jnp.geomspace(0.01, 1.0, dim)

    def density(x: jax.Array) -> jax.Array:
        return -0.5 * jnp.sum(x**2 / variances)

    def build(size: Any) -> Any:
        if name == "MALA":
            return blackjax.mala(density, size)
        return blackjax.mclmc(density, L=math.sqrt(dim) / 2, step_size=size)

    sizes = np.geomspace(0.0005, 0.02, 10) if name == "MALA" else np.geomspace(0.05, 3.0, 10)
    sizes = [float(f"{size:.3g}") for size in sizes]

    def begin(size: Any, key: jax.Array) -> Any:
        start_key, key = jax.random.split(key)
        return build(size).init(2 * jnp.sqrt(variances) * jax.random.normal(start_key, (dim,)), rng_key=key)

    def step(size: Any, key: jax.Array, state: Any) -> tuple[Any, jax.Array]:
        state, _ = build(size).step(key, state)
        return state, state.position

    keys = jax.random.split(jax.random.key(6), num_runs)

    truth = np.zeros(dim), np.sqrt(np.asarray(variances, np.float64))
    errors = np.array(true_errors(step, begin, jnp.array(sizes), num_steps, keys, truth, jnp.zeros(dim)))

    def choose(key: jax.Array, **options: Any) -> jaxpsd.Tuning:
        starts = 2 * jnp.sqrt(variances) * jax.random.normal(key, (CHAINS, dim))
        return jaxpsd.tune(
            key, density, build, sizes, positions=starts, num_steps=num_steps, objective="error", burn_in=BURN_IN,
            **options,
        )  # fmt: skip

    return compared({"error": choose}, jax.random.split(jax.random.key(7), num_keys), errors, 0.2)


# --- time -------------------------------------------------------------------------------------------------


def together(num_settings: int, num_steps: int, dim: int) -> dict[str, Any]:
    """Seconds of `tune` for so many settings, and for one alone that runs as far, when all is compiled."""

    def density(x: jax.Array) -> jax.Array:
        return -0.5 * jnp.sum(x**2)

    def seconds(sizes: np.ndarray) -> dict[str, float]:
        budget = 3 * CHAINS * num_steps * len(sizes)

        def once() -> jaxpsd.Tuning:
            return jaxpsd.tune(
                jax.random.key(0), density, lambda size: blackjax.mala(density, size), list(sizes),
                positions=jnp.zeros((CHAINS, dim)), num_steps=num_steps, budget=budget, objective="bias",
            )  # fmt: skip

        start = time.perf_counter()
        once()
        cold = time.perf_counter() - start
        times, spent = [], 0.0
        for _ in range(3):
            start = time.perf_counter()
            spent = once().spent
            times.append(time.perf_counter() - start)
        return {"cold": cold, "warm": min(times), "gradients": spent, "settings": len(sizes)}

    rows = [seconds(np.geomspace(0.05, 1.0, count)) for count in (1, num_settings)]
    for row in rows:
        row["per_setting"] = row["warm"] / row["settings"]
        row["per_million"] = 1e6 * row["warm"] / row["gradients"]
    return {"rows": rows}


def kernels(sizes: tuple[int, ...]) -> dict[str, Any]:
    """Seconds of one discrepancy of draws with their scores: the orthonormal PSD, and the quadratic KSD."""
    rows = []
    for n in sizes:
        x = jax.random.normal(jax.random.key(0), (n, 2))
        affine = jaxpsd.Affine(jnp.zeros(2), jnp.ones(2))
        psd, ksd = jaxpsd.PSD(2, basis="hermite", transform=affine), jaxpsd.KSD()
        times = [best_time(lambda each=each, x=x: each(-x, x)) for each in (psd, ksd)]
        rows.append({"draws": n, "psd": times[0], "ksd": times[1], "ratio": times[1] / times[0]})
    return {"rows": rows}


# --- all of it --------------------------------------------------------------------------------------------


def pieces(smoke: bool) -> Pieces:
    if smoke:
        return {
            "mixture 0": partial(mixture, 0, 4000, 1, 2),
            "logistic": partial(logistic, 1000, 400, 1, 2, 40),
            "MALA": partial(gaussian, "MALA", 4, 2000, 1, 2),
            "MCLMC": partial(gaussian, "MCLMC", 4, 2000, 1, 2),
            "together": partial(together, 6, 1000, 2),
            "kernels": partial(kernels, (100,)),
        }
    return {
        "logistic": partial(logistic, 100_000, 2000, 10, 10, 1000),
        "logistic, 8,000 steps": partial(logistic, 100_000, 8000, 10, 10, 1000),
        "MALA": partial(gaussian, "MALA", 100, 20_000, 10, 10),
        "MCLMC": partial(gaussian, "MCLMC", 100, 20_000, 10, 10),
        "MCLMC, 50,000 steps": partial(gaussian, "MCLMC", 100, 50_000, 10, 10),
        "together": partial(together, 200, 2000, 10),
        "kernels": partial(kernels, (1000, 4000, 16_000)),
        **{f"mixture {k}": partial(mixture, k, 20_000, 10, 25) for k in range(4)},
    }


def _rows(found: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    return found[name]["rows"] if name in found else []


def render(found: Mapping[str, Any]) -> str:
    problems = {name: piece for name, piece in found.items() if "tune" in piece}
    rows = [
        {
            "problem": name, "objective": objective, "settings": len(piece["errors"]), "keys": len(result["chosen"]),
            "tolerance": f"{piece['tolerance']:.0%}", "within": result["within"],
            "same_or_within": result["same_or_within"], "worst": result["worst_ratio"], "price": result["price"],
            "grid": result["grid"]["within"], "grid_worst": result["grid"]["worst_ratio"],
            "random": piece["random_search"], "good": piece["num_good"],
        }
        for name, piece in problems.items()
        for objective, result in piece["tune"].items()
    ]  # fmt: skip
    details = [
        {
            "problem": name, "setting": label, "true": error,
            **{objective: result["chosen"].count(k) for objective, result in piece["tune"].items()},
            **{f"{objective} grid": result["grid"]["chosen"].count(k) for objective, result in piece["tune"].items()},
        }
        for name, piece in problems.items()
        for k, (label, error) in enumerate(zip(piece["labels"], piece["errors"], strict=True))
    ]  # fmt: skip
    return "\n".join(
        [
            "# Choosing a setting",
            "",
            "True errors are root mean squared errors of means and standard deviations, in units of the target, over "
            "repeated full runs of four chains. Mixture: SGLD of BlackJAX, 8 step sizes, 20,000 steps, truth by "
            "quadrature. Logistic: SGLD, 100,000 observations, 10 coefficients, 8 step sizes × 3 batch sizes, 2,000 "
            "steps at the mean price unless it says more, scores from mini-batches of 1,000 with a control variate, "
            "truth by NUTS. MALA and MCLMC of BlackJAX: a Gaussian in 100 dimensions, variances .01 to 1, 10 step "
            "sizes, 20,000 steps unless it says more. The grid runs every setting to the end, and chooses by the same "
            "objective. Random search is an ideal one: it draws a third of the settings, and always finds the best of "
            "them.",
            "",
            table(
                {
                    "problem": "problem", "objective": "objective", "settings": "settings", "keys": "keys",
                    "tolerance": "tolerance", "good": "settings within", "within": "choices within",
                    "same_or_within": "within, or as the grid", "grid": "the grid's within",
                    "random": "random search within", "worst": "worst choice / least error",
                    "grid_worst": "the grid's worst / least error", "price": "share of the grid's price",
                },
                rows,
            ),
            "## All settings",
            "",
            "How often each was chosen, and its true error.",
            "",
            table(
                {
                    "problem": "problem", "setting": "setting", "true": "true error", "bias": "chosen, by bias",
                    "bias grid": "of the whole grid", "error": "chosen, by error", "error grid": "of the whole grid ",
                },
                details,
            ),
            "## Many settings at once",
            "",
            "MALA in 10 dimensions, four chains; seconds of a whole call when all is compiled.",
            "",
            table(
                {
                    "settings": "settings", "warm": "seconds", "per_setting": "seconds a setting",
                    "per_million": "seconds a million gradients", "gradients": "gradients", "cold": "first call",
                },
                _rows(found, "together"),
            ),
            "## KSD instead of PSD",
            "",
            "Seconds of one value from draws and scores in two dimensions.",
            "",
            table({"draws": "draws", "psd": "PSD", "ksd": "KSD", "ratio": "KSD / PSD"}, _rows(found, "kernels")),
        ]
    )  # fmt: skip


if __name__ == "__main__":
    main_of_pieces("tune", pieces, render)
