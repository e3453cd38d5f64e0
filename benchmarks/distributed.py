"""Chains on many hosts, tested together where they are: an example to start from.

Every process runs the same script, samples its own chains, and keeps them. Only sums travel.

On one machine, with two processes of two virtual devices each:

    for process in 0 1; do
        python -m benchmarks.distributed --coordinator localhost:12345 --processes 2 --process $process --devices 2 &
    done; wait

Under SLURM, with a task for each GPU or for each node, processes find each other:

    srun --ntasks-per-node=4 --gpus-per-task=1 python -m benchmarks.distributed --auto

On a TPU pod, from any machine that can reach it:

    gcloud compute tpus tpu-vm ssh NAME --worker=all --command="python -m benchmarks.distributed --auto"
"""

import argparse
import json

import jax
import jax.numpy as jnp

import jaxpsd


def logdensity(x: jax.Array) -> jax.Array:
    return -0.5 * jnp.sum(x**2)


def own_chains(keys: jax.Array, num_draws: int) -> jax.Array:
    """Stands for a sampler: autocorrelated chains (chains, draws, 3) of the target, a little too wide."""

    def chain(key: jax.Array) -> jax.Array:
        noise = jax.random.normal(key, (num_draws, 3))
        return jax.lax.scan(lambda x, e: (0.7 * x + 0.51**0.5 * e,) * 2, noise[0], noise)[1]

    return 1.1 * jax.vmap(chain)(keys)


def results(samples: jax.Array) -> dict[str, object]:
    """What every process computes, and sees."""
    key = jax.random.key(1)
    test = jaxpsd.gof_test(key, jaxpsd.PSD(2), logdensity, samples)
    return {
        "PSD": float(jaxpsd.PSD(2, transform="standardize")(logdensity, samples)),
        "KSD": float(jaxpsd.KSD()(logdensity, samples)),
        "test": test.to_dict(),
        "replicates": test.replicates.tolist(),
        "adaptive": jaxpsd.adaptive_test(key, logdensity, samples).to_dict(),
        "largest moment error": jaxpsd.moment_table(key, logdensity, samples).labels[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--auto", action="store_true", help="let JAX find the other processes: SLURM, TPU pods, MPI")
    parser.add_argument("--coordinator", help="address of process 0, such as localhost:12345")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--process", type=int, default=0)
    parser.add_argument("--devices", type=int, help="virtual devices of this process, on a CPU")
    parser.add_argument("--chains", type=int, default=2, help="of each device")
    parser.add_argument("--draws", type=int, default=500, help="of each chain")
    options = parser.parse_args()
    if options.devices:
        jax.config.update("jax_num_cpu_devices", options.devices)
    if options.auto:
        jax.distributed.initialize()
    elif options.processes > 1:
        jax.distributed.initialize(options.coordinator, options.processes, options.process)
    keys = jax.random.split(jax.random.key(0), options.chains * jax.device_count())
    own = keys.reshape(jax.process_count(), -1)[jax.process_index()]
    samples = jaxpsd.spread(own_chains(own, options.draws))
    found = results(samples)
    if jax.process_index() == 0:
        print(json.dumps({"shape": samples.shape, "devices": jax.device_count(), **found}))


if __name__ == "__main__":
    main()
