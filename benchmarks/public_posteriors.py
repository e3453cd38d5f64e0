"""Whether statements hold on posteriors that others have published, with ground truths that others have computed.

Nine models of `inference_gym`, on JAX, each with draws of NUTS, of MALA and MCLMC at three step sizes, of a mean-field
Gaussian and of Pathfinder. All draws are of unconstrained positions x, whose log-density has the Jacobian term of the
model's bijectors. Three things are held to the truth:

Means of parameters. The ground truth is of parameters θ = f(x) in constrained space: means m and standard deviations
s. What draws have wrong is b = (mean of f over these draws − m) / s for each parameter, and b² its square. What the
library states of it is (plain mean − corrected mean) / s, by `corrected_expectation` of f, with its 95% interval; it is
not known where the library warns that it is not to be trusted.

Reports. `diagnose` speaks of the unconstrained coordinates, and of the very draws: errors of means and standard
deviations with 95% intervals, and whether all of them are within a tolerance of 0.1. Where a coordinate is a parameter
the truth is the published one; where it is the logarithm of one, or the like, it is that of a long NUTS run. Where such
a run contradicts what is published, it alone is called true, in either space, and the table of models says so. A
verdict is right if the errors of these draws are as it says, with four standard errors of the ground truth to either
side, and too close to call between. Intervals are allowed two such standard errors; those of standard deviations,
which are not published, are taken to be those of means.

Rankings. The choice of `rank` among the sets of a model, against the set of least error: the root mean square of errors
of means and of logarithms of standard deviations, in constrained space. A choice is wrong if its error is more than
twice the least, and more than 0.05.

Run with `pip install --pre -r benchmarks/requirements-public.txt` and `python -m benchmarks.public_posteriors`;
interrupted, it goes on where it stopped. Libraries that factorise matrices are slow where they share cores with others:
with `--one-by-one` under `taskset -c 0` it takes one core.
"""

import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks._harness import Pieces, main_of_pieces
from benchmarks._public import MODELS, SAMPLERS
from benchmarks._public.tables import draw, render


class Size(NamedTuple):
    """How much is drawn.

    warmup, num
        Warm-up and draws of each of four chains; there are as many independent draws as those of all chains.
    runs
        How many times as many draws a long run of NUTS has.
    """

    warmup: int
    num: int
    runs: int


SIZE, TOY = Size(1000, 500, 10), Size(60, 60, 2)

SIZES = {
    "BrownianMotionUnknownScalesMissingMiddleObservations": Size(1000, 500, 40),
    "SyntheticItemResponseTheory": Size(500, 500, 0),
}


def study(name: str, size: Size, only: tuple[str, ...] = SAMPLERS) -> dict[str, Any]:
    """Everything of one model: a row for each set of draws, and the ranking."""
    # Imported where it is needed: the tables and the picture do without.
    from benchmarks._public import judging, models, samplers, truth

    key = jax.random.key(zlib.crc32(name.encode()))
    nuts_key, draw_key, truth_key, sets_key, look_key, rank_key = jax.random.split(key, 6)
    model = models.load(name)
    start = time.perf_counter()
    nuts = samplers.warmed_up_nuts(nuts_key, model.logdensity, model.dim, size.warmup)
    states, drawn = nuts.run(draw_key, nuts.states, size.num)
    seconds = {"NUTS": time.perf_counter() - start}
    after = nuts._replace(states=states)
    true = truth.find_truth(truth_key, model, after, size.num, size.runs)
    model = replace(model, truth=true.constrained)
    scale, total = samplers.pooled_sd(drawn), samplers.CHAINS * size.num
    starts = nuts.states.position
    keys = dict(zip(("MALA", "MCLMC", "mean field", "Pathfinder"), jax.random.split(sets_key, 4), strict=True))
    makers: dict[str, Callable[[], dict[str, jax.Array]]] = {
        each: partial(samplers.at_three_steps, each, keys[each], model.logdensity, starts, scale, size.num)
        for each in ("MALA", "MCLMC")
    } | {
        "mean field": lambda: {
            "mean field": samplers.mean_field(keys["mean field"], model.logdensity, starts[0], scale, total)
        },
        "Pathfinder": lambda: {
            "Pathfinder": samplers.pathfinder(keys["Pathfinder"], model.logdensity, model.dim, total)
        },
    }
    sets, rows = {"NUTS": drawn}, []
    for maker, make in makers.items():
        if maker not in only:
            continue
        start = time.perf_counter()
        try:
            sets |= jax.block_until_ready(make())
        except Exception as error:
            # A sampler that fails on a model is something to record, and no reason to lose the others.
            rows.append({"set": maker, "refused": f"{maker} failed: {type(error).__name__}: {error}"[:300]})
        seconds[maker] = time.perf_counter() - start
    look_keys = jax.random.split(look_key, len(sets))
    start = time.perf_counter()
    for look, (label, x) in zip(look_keys, sets.items(), strict=True):
        rows.append({"set": label, **judging.judge(look, model, x, true.unconstrained)})
    seconds["reports"] = time.perf_counter() - start
    start = time.perf_counter()
    ranking = judging.judge_ranking(rank_key, model, sets, rows)
    seconds["ranking"] = time.perf_counter() - start
    return {
        "model": model.name, "dim": model.dim, "long run": int((model.place < 0).sum()),
        "long run off": None if np.isnan(true.off) else true.off,
        "contradicted": true.contradicted,
        "seconds": seconds, "rows": rows, "ranking": ranking,
    }  # fmt: skip


def piece(name: str, size: Size, only: tuple[str, ...] = SAMPLERS) -> dict[str, Any]:
    try:
        return study(name, size, only)
    except Exception as error:
        return {"model": MODELS[name], "failed": f"{type(error).__name__}: {error}"[:500]}


def pieces(smoke: bool) -> Pieces:
    if smoke:
        return {"Banana": partial(study, "Banana", TOY, ("MCLMC", "mean field"))}
    return {name: partial(piece, name, SIZES.get(name, SIZE)) for name in MODELS}


if __name__ == "__main__":
    main_of_pieces("public_posteriors", pieces, render, draw)
