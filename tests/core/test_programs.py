"""Programs are used again only while the functions they came from mean the same."""

import functools
import gc
import os
import subprocess
import sys
import weakref
from types import ModuleType, SimpleNamespace

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


def test_methods_and_callables_that_change_are_seen():
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


def test_attributes_of_modules_and_classes_that_change_are_seen():
    settings = ModuleType("settings")
    settings.scale = 1.0

    class Model:
        scale = 1.0

    def target(x):
        return -0.5 * jnp.sum(x**2) * settings.scale * Model.scale

    assert first_score(target) == -1
    settings.scale = 5.0
    assert first_score(target) == -5
    Model.scale = 2.0
    assert first_score(target) == -10


@pytest.mark.parametrize("kind", ["kernel", "functions", "features", "stein kernel", "likelihood", "fn"])
def test_other_functions_of_the_users_are_never_stale_either(kind):
    settings = SimpleNamespace(scale=1.0)
    x = jnp.linspace(-1, 1, 12).reshape(6, 2)

    def value():
        if kind == "kernel":
            return jaxpsd.KSD(kernel).v_statistic(-x, x)
        if kind == "functions":
            return jaxpsd.SteinDiscrepancy(functions).v_statistic(-x, x)
        if kind == "features":
            return jaxpsd.discrepancies(jaxpsd.FeatureDiscrepancy(features), -x[None], x[None])[0] ** 2
        if kind == "stein kernel":
            return jaxpsd.KernelDiscrepancy(stein_kernel).v_statistic(-x, x)
        if kind == "fn":
            return jaxpsd.corrected_expectation(lambda x: settings.scale**2 * (1 + x[0]), -x, x).sample_mean
        key = jax.random.key(0)
        return jaxpsd.minibatch_score(key, lambda m: 0.0 * m.sum(), likelihood, jnp.ones(5), x, batch_size=3)[0, 0]

    kernel = lambda x, y: settings.scale**2 * jnp.exp(-jnp.sum((x - y) ** 2))  # noqa: E731
    functions = lambda x: settings.scale * x**2  # noqa: E731
    features = lambda x, s: settings.scale * (1 + x * s)  # noqa: E731
    stein_kernel = lambda x, s, y, u: settings.scale**2 * jnp.sum(s * u)  # noqa: E731
    likelihood = lambda m, batch: settings.scale**2 * m[0] * batch.sum()  # noqa: E731
    before = value()
    settings.scale = 3.0
    np.testing.assert_allclose(value(), 9 * before, rtol=1e-5)


@pytest.mark.parametrize("kind", ["function", "lambda", "method", "partial", "rules", "loop", "data"])
def test_what_computes_the_same_is_compiled_once(compilations, kind):
    data = np.linspace(-1, 1, 50).astype(np.float32)

    class Model:
        def logdensity(self, x):
            return -0.5 * jnp.sum(x**2)

    def target(scale):
        return {
            "function": lambda: target_function,
            "lambda": lambda: lambda x: -0.5 * jnp.sum(x**2),
            "method": lambda: Model().logdensity,
            "partial": lambda: Partial(lambda scale, x: -scale * jnp.sum(x**2), jnp.float32(scale)),
            "rules": lambda: lambda x: -jnp.sum(jax.nn.relu(x) ** 2),
            "loop": lambda: lambda x: -jax.lax.fori_loop(0, 3, lambda _, y: y + jnp.sum(x**2), 0.0),
            "data": lambda: lambda x: -jnp.sum((scale * data - x[0]) ** 2) - x[1] ** 2,
        }[kind]()

    def target_function(x):
        return -0.5 * jnp.sum(x**2)

    first_score(target(1.0))
    compiled = compilations.count
    for scale in (2.0, 3.0):
        first_score(target(scale))
    assert compilations.count == compiled


def count_traces(most):
    chex.clear_trace_counter()
    return chex.assert_max_traces(lambda x, scale=1.0: -0.5 * scale * jnp.sum(x**2), n=most)


def test_functions_that_are_called_back_are_told_apart():
    def target(factor):
        @jax.custom_jvp
        def logdensity(x):
            return -0.5 * jnp.sum(x**2)

        @logdensity.defjvp
        def _(primals, tangents):
            shape = jax.ShapeDtypeStruct((), jnp.float32)
            called_back = jax.pure_callback(lambda: np.float32(factor), shape, vmap_method="sequential")
            return logdensity(*primals), -called_back * jnp.sum(primals[0] * tangents[0])

        return logdensity

    for factor in (1.0, 3.0, 1.0):
        assert first_score(target(factor)) == -factor


def test_a_jitted_function_is_traced_once():
    target = jax.jit(count_traces(1))
    for _ in range(3):
        first_score(target)


def test_numbers_that_differ_in_kind_or_sign_are_told_apart():
    for power, expected in ((2, -1.0), (2.0, -1.0), (True, -0.5), (3, -1.5)):
        assert first_score(lambda x, power=power: -0.5 * jnp.sum(x**power)) == expected
    for zero in (0.0, -0.0):
        infinite = first_score(lambda x, zero=zero: jnp.sum(x / jnp.where(x > 5, x, jnp.copysign(1.0, zero))))
        assert infinite == np.copysign(1, zero)


def test_arrays_of_a_partial_may_change():
    for scale in (1.0, 4.0):
        assert first_score(Partial(lambda scale, x: -0.5 * scale * jnp.sum(x**2), jnp.float32(scale))) == -scale


def test_partials_with_other_arguments_will_do():
    for kind in (Partial, functools.partial):
        target = kind(lambda how, count, x: -0.5 * jnp.sum(x[:count] ** 2) if how == "start" else 0.0, "start", 1)
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
    target = wrap(lambda x: -jnp.sum((data - x[None]) ** 2))
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
