"""Several processes with devices of their own, as on several hosts."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


def outputs(commands):
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.distributed", *command], cwd=ROOT, env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for command in commands
    ]  # fmt: skip
    try:
        finished = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert all(process.returncode == 0 for process in processes), finished[-1][1][-3000:]
    return [out for out, _ in finished]


def free_port():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


@pytest.mark.slow
def test_two_processes_get_the_results_of_one():
    address = f"localhost:{free_port()}"
    apart = outputs(
        ["--coordinator", address, "--processes", "2", "--process", str(process), "--devices", "2"]
        for process in range(2)
    )
    # The same chains, in one process with one device.
    (together,) = outputs([["--chains", "8"]])
    apart, together = json.loads(apart[0].splitlines()[-1]), json.loads(together.splitlines()[-1])
    assert apart["devices"] == 4
    assert apart["shape"] == together["shape"] == [8, 500, 3]
    for name in ("PSD", "KSD"):
        assert apart[name] == pytest.approx(together[name], rel=1e-5)
    np.testing.assert_allclose(apart["replicates"], together["replicates"], rtol=2e-3, atol=1e-6)
    assert apart["test"]["autocorrelation_time"] == pytest.approx(together["test"]["autocorrelation_time"], rel=1e-4)
    for name in ("test", "adaptive"):
        assert apart[name]["p_value"] == together[name]["p_value"]
    assert apart["largest moment error"] == together["largest moment error"]
