"""Every benchmark runs, at toy size."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# What scripts share, and an example that is tried by a test of its own.
SHARED, EXAMPLES = "_", ("distributed",)
SCRIPTS = sorted(
    path.stem
    for path in (ROOT / "benchmarks").glob("*.py")
    if not path.stem.startswith(SHARED) and path.stem not in EXAMPLES
)


# These take longest to compile, and are run on a schedule.
LONG = (
    "baselines", "bases", "calibration", "explain", "ksd_aggregated", "level", "minibatch", "power", "precision",
    "scale", "speed", "speed_baselines", "speed_psd", "speed_tests",
)  # fmt: skip


@pytest.mark.parametrize(
    "script", [pytest.param(script, marks=pytest.mark.slow if script in LONG else ()) for script in SCRIPTS]
)
def test_the_benchmark_runs(script):
    # That it runs is the question, not how fast.
    environment = {**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    command = [sys.executable, "-m", f"benchmarks.{script}", "--smoke"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# The paper's experiments; those that compile in seconds, and the others.
QUICK = ("rosenbrock",)
PAPER = sorted(
    [
        *QUICK,
        "gof",
        "gof_asymptotic",
        "kanagawa",
        "logistic_big",
        "logistic_sparse",
        "mean_shift",
        "rbm",
        "runtime",
        "sgld",
        "transforms",
    ],
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in PAPER]
)
def test_the_experiment_runs(name):
    environment = {**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    command = [sys.executable, "-m", "benchmarks.paper", name, "--smoke"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("script", SCRIPTS)
def test_its_results_are_committed(script):
    result = json.loads((ROOT / "benchmarks" / "results" / f"{script}.json").read_text())
    assert {"date", "versions", "cpu", "cores"} <= set(result)


def test_tables_of_speed_in_the_readme_are_those_of_the_results():
    readme, results = ((ROOT / name).read_text() for name in ("README.md", "benchmarks/results/speed.md"))
    section = readme.split("## Speed")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    assert rows
    assert set(rows) <= set(results.splitlines())
