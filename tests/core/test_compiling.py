"""How much work goes into compiling a program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpsd
from jaxpsd._core import compiling
from jaxpsd._core.compiling import compile_by_work, for_a_report, key_of, split_key, work

X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)


@pytest.fixture
def quick(monkeypatch):
    """As users have it, who have set no options of XLA's."""
    monkeypatch.setenv("XLA_FLAGS", "")


def work_of(function, *args):
    return work(jax.make_jaxpr(function)(*args).jaxpr)


def test_work_is_how_many_numbers_are_computed():
    assert work_of(lambda x: jnp.sin(x) + 1, X) == 2 * X.size
    assert work_of(lambda x: x @ x.T, X) == X.size + len(X) ** 2
    assert work_of(jax.jit(jnp.sin), X) == X.size


def test_work_of_a_loop_is_that_of_all_its_turns():
    step = lambda carry, _: (jnp.sin(carry), None)  # noqa: E731
    assert work_of(lambda x: jax.lax.scan(step, x, length=7)[0], X) == 7 * X.size
    unknown = work_of(lambda x: jax.lax.while_loop(lambda x: x[0, 0] < 1, lambda x: x + 1, x), X)
    assert unknown > 50 * X.size


@pytest.mark.parametrize(("length", "level"), [(10, 0), (10**4, 1), (10**5, 2), (10**8, None)])
def test_the_more_work_the_more_is_optimised(quick, length, level):
    shape = jax.ShapeDtypeStruct((1000,), jnp.float32)
    program = compile_by_work(lambda x: jax.lax.fori_loop(0, length, lambda _, y: jnp.sin(y), x))
    chosen = program._choose((shape,))
    assert chosen is (program._usual if level is None else program._quick[level])


def test_what_is_seldom_called_is_optimised_less(quick):
    shape = jax.ShapeDtypeStruct((1000,), jnp.float32)
    function = lambda x: jax.lax.fori_loop(0, 10**5, lambda _, y: jnp.sin(y), x)  # noqa: E731
    seldom, often = compile_by_work(function, seldom=True), compile_by_work(function)
    assert seldom._choose((shape,)) is seldom._quick[0]
    assert often._choose((shape,)) is often._quick[2]


def test_programs_that_a_report_calls_are_optimised_less(quick):
    shape = jax.ShapeDtypeStruct((1000,), jnp.float32)
    program = compile_by_work(lambda x: jax.lax.fori_loop(0, 10**5, lambda _, y: jnp.sin(y), x))
    with for_a_report():
        assert program._choose((shape,)) is program._quick[0]
    assert program._choose((shape,)) is program._quick[2]


def test_what_a_report_has_compiled_is_its_own(quick):
    program = compile_by_work(jnp.sin)
    with for_a_report():
        program(X)
    program(X)
    assert len(program._chosen) == 2


def test_effort_changes_results_by_rounding_alone(quick):
    def function(x):
        return jnp.exp(-(x**2)).sum(axis=0), jnp.linalg.eigh(x.T @ x)

    found = compile_by_work(function)
    jax.tree.map(lambda ours, plain: np.testing.assert_allclose(ours, plain, rtol=1e-4), found(X), jax.jit(function)(X))
    assert list(found._chosen.values()) == [found._quick[0]]


def test_programs_may_be_parts_of_others(quick):
    double = compile_by_work(lambda x: 2 * x)
    np.testing.assert_array_equal(jax.jit(double)(X), 2 * X)
    # Values are known, and yet all that is done with them becomes part of the whole.
    np.testing.assert_array_equal(jax.jit(lambda y: double(X) + y)(X), 3 * X)
    np.testing.assert_array_equal(jax.vmap(lambda y: double(X) + y)(X[None])[0], 3 * X)
    np.testing.assert_array_equal(jax.grad(lambda y: double(y).sum())(X), np.full_like(X, 2))


def test_a_discrepancy_of_known_draws_may_be_part_of_a_program(quick):
    value = jaxpsd.PSD(2)(-X, X)
    np.testing.assert_allclose(jax.jit(lambda a: a * jaxpsd.PSD(2)(-X, X))(2.0), 2 * value, rtol=1e-4)


def test_options_that_xla_does_not_know_are_left_out_one_by_one(quick):
    known = {"xla_backend_optimization_level": 0}
    assert compiling._usable(known | {"xla_no_such_option": True}) == known


def test_what_users_have_set_is_left_alone(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=1")
    assert compiling._usable({"xla_backend_optimization_level": 0, "xla_cpu_parallel_codegen_split_count": 1}) == {}


def test_what_is_remembered_does_not_grow_without_end(quick, monkeypatch):
    monkeypatch.setattr(compiling, "_MOST_SIGNATURES", 2)
    double = compile_by_work(lambda x: 2 * x)
    for length in range(1, 6):
        double(np.ones(length, np.float32))
    assert len(double._chosen) <= 2


def test_keys_are_made_as_ever():
    key = jax.random.key(3)
    expected = jax.random.fold_in(jax.random.fold_in(key, 5), 7)
    assert (jax.random.key_data(key_of(key, 5, 7)) == jax.random.key_data(expected)).all()


def test_keys_are_split_as_ever():
    for key in (jax.random.key(3), jax.random.PRNGKey(3)):
        for ours, theirs in zip(split_key(key, 3), jax.random.split(key, 3), strict=True):
            assert (jax.random.bits(ours) == jax.random.bits(theirs)).all()
