"""Every benchmark runs, at toy size."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpsd
from benchmarks import _zoo
from benchmarks._public import judging
from benchmarks._public.known import Moments
from benchmarks._zoo import reading
from jaxpsd._explain.phrases import correlation_error, mean_error, sd_error

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
    "baselines", "bases", "calibration", "explain", "ksd_aggregated", "level", "level_gaussian", "minibatch", "power",
    "precision", "public_posteriors", "relax", "scale", "speed", "speed_baselines", "speed_psd", "speed_tests", "truth",
    "tune",
)  # fmt: skip

# What a benchmark takes that the tests do not install.
NEEDS = {"public_posteriors": "inference_gym"}


@pytest.mark.parametrize(
    "script", [pytest.param(script, marks=pytest.mark.slow if script in LONG else ()) for script in SCRIPTS]
)
def test_the_benchmark_runs(script):
    if script in NEEDS and importlib.util.find_spec(NEEDS[script]) is None:
        pytest.skip(f"{NEEDS[script]} is not installed")
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


@pytest.mark.parametrize(
    "dim", [pytest.param(dim, marks=() if dim <= 2 else pytest.mark.slow) for dim in _zoo.DIMS if dim <= 20]
)
def test_exact_draws_of_known_targets_have_the_mean_and_covariance_that_are_called_true(dim):
    n = 20_000
    for target in _zoo.targets(dim).values():
        x = target.exact(jax.random.key(0), n)
        s = np.asarray(jax.vmap(jax.grad(target.logdensity))(x), np.float64)
        y = np.asarray(x, np.float64) - target.mean
        # Means and variances, and Stein's identity E[s] = 0, E[(x − μ)s] = −1, which ties draws to the log-density.
        for values in (y, y**2 - target.sd**2, s, y * s + 1):
            z = values.mean(axis=0) / values.std(axis=0) * n**0.5
            # About 650 comparisons: correct draws fail once in 1,500 runs, as far as means are normal.
            assert np.abs(z).max() < 5, target.name


def test_sentences_are_understood_as_they_are_printed():
    names = ("mu", "log_tau", "eta0")
    claim = reading.understand(mean_error("0.71·mu − 0.7·eta0", -0.23, (-0.3, -0.1)), names)
    assert claim.quantity == "mean"
    assert claim.value == -0.23
    np.testing.assert_array_equal(claim.of, [0.71, 0, -0.7])
    # Digits leave 0.005 open.
    np.testing.assert_allclose(claim.ends, [-0.305, -0.095])
    claim = reading.understand(sd_error("log_tau", 0.62, (0.6, 0.65)), names)
    assert (claim.quantity, claim.value) == ("standard deviation", np.log(0.62))
    np.testing.assert_allclose(np.exp(claim.ends), [0.595, 0.655])
    claim = reading.understand(correlation_error(("mu", "eta0"), -0.1, 0.45, 0.05), names)
    assert (claim.quantity, claim.value, *claim.of) == ("correlation", 0.45, 0, 2)
    np.testing.assert_allclose(claim.ends, [0.395, 0.505])


def test_a_verdict_is_understood_as_it_is_printed():
    key = jax.random.key(0)
    x = jax.random.normal(key, (500, 2)) * jnp.array([[1.0, 0.6]])
    report = jaxpsd.diagnose(key, lambda x: -0.5 * jnp.sum(x**2), x, names=("mu", "tau"))
    verdict = reading.understand_verdict(report.verdict)
    assert verdict.kind == "not from the target"
    assert verdict.named == report.findings[0].text
    assert verdict.judgement.startswith("They are not good enough")
    np.testing.assert_allclose(reading.would_have_shown(report.caveats), report.detectable, rtol=0.1)


def test_moved_draws_are_understood_as_they_are_printed():
    for start, move in (
        ("the mean of tau moves up by 0.12 (± 0.03) standard deviations", reading.Move("mean", 1, 0.12)),
        ("the standard deviation of mu shrinks by 25% (± 3%)", reading.Move("standard deviation", 0, np.log(0.75))),
    ):
        assert (
            reading.understand_move(f"{start} when the draws follow the target for 10 transitions", ("mu", "tau"))
            == move
        )


@pytest.mark.parametrize(
    ("off", "sd_ratio", "accuracy", "expected"),
    [
        (0.05, 1.05, 0.0, True),
        (0.2, 1.0, 0.0, False),
        (0.0, 0.8, 0.0, False),
        # Four standard errors of what is called true reach across the tolerance.
        (0.09, 1.0, 0.005, None),
        (0.11, 1.0, 0.005, None),
        (0.2, 1.0, 0.005, False),
    ],
)
def test_errors_fit_a_tolerance_as_far_as_the_ground_truth_tells(off, sd_ratio, accuracy, expected):
    one = np.ones(2)
    truth = Moments(0 * one, one, accuracy * one, accuracy * one)
    assert judging.fits(np.array([0.0, off]), np.log([sd_ratio, 1.0]), truth) is expected


def test_an_interval_of_public_posteriors_is_held_to_the_truth():
    stated, ends = np.array([0.2, 0.2, np.nan]), np.array([[0.1, 0.1, 0.0], [0.3, 0.3, 0.0]])
    held = judging.hold(stated, ends, np.array([0.25, -0.2, 0.0]), np.zeros(3), ("a", "b", "c"))
    assert [held[key] for key in ("all", "stated", "covered", "signed", "sign right")] == [3, 2, 1, 2, 1]
    assert held["worst miss"]["name"] == "b"
