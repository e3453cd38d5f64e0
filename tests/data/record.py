"""Make the recorded files of other libraries again: `python tests/data/record.py` where these are installed."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "adapters"))

import numpy as np  # noqa: E402
import stan_files  # noqa: E402
from eight_schools import EFFECTS, ERRORS, STAN, logdensity, pymc_model  # noqa: E402

NUM_CHAINS, NUM_DRAWS = 2, 100


def record_nutpie():
    import nutpie

    compiled = nutpie.compile_pymc_model(pymc_model())
    options = {"store_unconstrained": True, "store_gradient": True, "progress_bar": False, "seed": 1, "cores": 1}
    trace = nutpie.sample(compiled, draws=NUM_DRAWS, tune=300, chains=NUM_CHAINS, **options)
    stats = trace.sample_stats[["unconstrained_draw", "gradient", "diverging", "mean_tree_accept"]]
    write({"posterior": trace.posterior, "sample_stats": stats}, "nutpie.nc")


def record_pymc():
    import pymc

    options = {"progressbar": False, "random_seed": 1, "cores": 1, "idata_kwargs": {"include_transformed": True}}
    with pymc_model():
        idata = pymc.sample(NUM_DRAWS, tune=300, chains=NUM_CHAINS, **options)
    stats = idata.sample_stats[["diverging", "acceptance_rate"]]
    write({"posterior": idata.posterior, "sample_stats": stats}, "pymc.nc")


def write(groups, name):
    import xarray

    tree = xarray.DataTree.from_dict(groups)
    small = {path: {variable: {"zlib": True} for variable in node.data_vars} for path, node in tree.subtree_with_keys}
    small = {f"/{path}".replace("/.", "/"): encoding for path, encoding in small.items() if encoding}
    tree.to_netcdf(HERE / name, engine="h5netcdf", encoding=small)


def record_stan():
    import jax
    import stan

    data = {"y": EFFECTS.tolist(), "sigma": ERRORS.tolist()}
    fit = stan.build(STAN, data=data, random_seed=1).sample(
        num_chains=NUM_CHAINS, num_samples=NUM_DRAWS, num_warmup=300
    )
    # (parameter, draw, chain), as the sampler wrote them.
    drawn = np.concatenate([fit["mu"], np.log(fit["tau"]), fit["z"]])
    drawn = drawn.reshape(10, NUM_DRAWS, NUM_CHAINS)
    columns = ["mu", "tau", *(f"z.{k}" for k in range(1, 9))]
    with jax.enable_x64(True):
        split = {"mu": drawn[0], "tau": drawn[1], "z": np.moveaxis(drawn[2:], 0, -1)}
        scores = jax.vmap(jax.vmap(jax.grad(logdensity)))(split)
    scores = np.concatenate([scores["mu"][None], scores["tau"][None], np.moveaxis(np.asarray(scores["z"]), -1, 0)])
    for chain in range(NUM_CHAINS):
        stan_files.write_diagnostics(
            HERE / f"stan_diagnostic_{chain + 1}.csv", columns, drawn[:, :, chain].T, scores[:, :, chain].T
        )


if __name__ == "__main__":
    record_nutpie()
    record_pymc()
    record_stan()
