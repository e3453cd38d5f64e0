"""Programs are used again only while the functions they came from mean the same."""

import functools
import gc
import os
import subprocess
import sys
import weakref
from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

import jaxpsd

X = jnp.ones((3, 2))


def first_score(target):
    return float(jaxpsd.score(target, X)[0, 0])


def in_notebook(code, **variables):
    """Run code as a notebook cell does, and return its global variables."""
    variables |= {"jnp": jnp, "jax": jax}
    exec(code, variables)
    return variables


def test_a_global_that_is_bound_anew_is_seen():
    cell = in_notebook("def target(x):\n    return -0.5 * jnp.sum(x**2) / scale", scale=1.0)
    assert first_score(cell["target"]) == -1
    cell["scale"] = 4.0
    assert first_score(cell["target"]) == -0.25


def test_a_global_of_a_helper_is_seen():
    code = "def helper(x):\n    return scale * x\ndef target(x):\n    return -0.5 * jnp.sum(helper(x) ** 2)"
    cell = in_notebook(code, scale=1.0)
    assert first_score(cell["target"]) == -1
    cell["scale"] = 2.0
    assert first_score(cell["target"]) == -4


def test_a_helper_that_is_defined_anew_is_seen():
    cell = in_notebook("def helper(x):\n    return x\ndef target(x):\n    return -0.5 * jnp.sum(helper(x) ** 2)")
    for factor in (2.0, 3.0, 4.0):
        exec(f"def helper(x):\n    return {factor} * x", cell)
        assert first_score(cell["target"]) == -(factor**2)


@pytest.mark.parametrize(
    ("data", "read", "change"),
    [
        ({"scale": 1.0}, "data['scale']", lambda data: data.update(scale=2.0)),
        ([1.0], "data[0]", lambda data: data.__setitem__(0, 2.0)),
        (np.ones(2), "data", lambda data: data.__imul__(2)),
        (SimpleNamespace(scale=1.0), "data.scale", lambda data: setattr(data, "scale", 2.0)),
    ],
    ids=["dict", "list", "array", "object"],
)
def test_data_changed_in_place_is_seen(data, read, change):
    cell = in_notebook(f"def target(x):\n    return -0.5 * jnp.sum({read} * x**2)", data=data)
    assert first_score(cell["target"]) == -1
    change(data)
    assert first_score(cell["target"]) == -2


def test_closures_and_defaults_that_change_are_seen():
    scale = 1.0

    def target(x, *, power=2):
        return -jnp.sum(x**power) / scale

    assert first_score(target) == -2
    scale = 2.0
    assert first_score(target) == -1
    target.__kwdefaults__ = {"power": 4}
    assert first_score(target) == -2


def test_methods_and_callables_are_compiled_anew():
    class Model:
        scale = 1.0

        def logdensity(self, x):
            return -0.5 * jnp.sum(x**2) / self.scale

        __call__ = logdensity

    model = Model()
    for target in (lambda: model.logdensity, lambda: model):
        model.scale = 1.0
        assert first_score(target()) == -1
        model.scale = 4.0
        assert first_score(target()) == -0.25


def count_traces(most):
    chex.clear_trace_counter()
    return chex.assert_max_traces(lambda x, scale=1.0: -0.5 * scale * jnp.sum(x**2), n=most)


def test_names_that_are_no_variables_do_not_matter():
    cell = in_notebook("def target(x):\n    return counted(x - x.mean() + x.mean())", counted=count_traces(1), mean=0)
    for cell["mean"] in range(3):
        first_score(cell["target"])


def test_arrays_of_a_partial_may_change_without_tracing():
    counted = count_traces(1)

    def target(scale, x):
        return counted(x, scale)

    for scale in (1.0, 4.0):
        assert first_score(Partial(target, jnp.float32(scale))) == -scale


def test_partials_with_other_arguments_are_kept_as_they_are():
    counted = count_traces(1)
    for kind in (Partial, functools.partial):
        chex.clear_trace_counter()
        target = kind(lambda how, count, x: counted(x[:count]) if how == "start" else 0.0, "start", 1)
        assert first_score(target) == first_score(target) == -1


def test_no_tracer_outlives_its_trace():
    for transform in (jax.jit, jax.grad, jax.vmap):
        argument = jnp.ones(2) if transform is jax.vmap else 2.0
        with jax.checking_leaks():
            transform(lambda scale: jaxpsd.PSD(2)(lambda x: -scale * jnp.sum(x**4), X))(argument)


@pytest.mark.parametrize("wrap", [lambda function: function, jax.jit], ids=["plain", "jitted"])
def test_programs_and_their_data_go_with_the_function(wrap):
    class Data(np.ndarray):
        """An array that can be watched."""

    data = np.ones((100, 2)).view(Data)
    watch = weakref.ref(data)
    target = wrap(lambda x: -jnp.sum((jnp.asarray(data) - x[None]) ** 2))
    jaxpsd.PSD(2)(target, X)
    del target, data
    gc.collect()
    assert watch() is None


@pytest.mark.slow
def test_programs_are_found_again_by_other_processes(tmp_path):
    script = """
import jax, jax.numpy as jnp, jaxpsd
x = jax.random.normal(jax.random.key(0), (50, 2))
logdensity = lambda x: -0.5 * jnp.sum(x**2)
jaxpsd.PSD(2)(logdensity, x)
jaxpsd.gof_test(jax.random.key(1), jaxpsd.PSD(2), logdensity, x, num_replicates=50)
"""
    environment = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    counts = []
    for _ in range(2):
        subprocess.run([sys.executable, "-c", script], env=environment, check=True, capture_output=True)
        counts.append(len(list(tmp_path.glob("*-cache"))))
    assert counts[0] > 0
    assert counts[1] == counts[0]
