"""How much work goes into compiling a program: no more than it saves.

XLA may take a second to optimise a program that runs for a millisecond. On processors it can leave that out, which
changes results by rounding alone. What a program has to do is seen in what it computes, so that the same call is always
compiled in the same way.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from math import prod
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.extend import core
from jaxtyping import PRNGKeyArray

Options = dict[str, bool | int]

# Numbers that a program computes on its way, up to which it is compiled with such options; and the same for programs of
# reports, which are made once where tests are made often. Measured: compiling takes a fifth of the time and running up
# to five times as much; or half of it, and running as much on one core, but there is one core only; or three quarters
# of it, and running as much. Parts of a program are not compiled by themselves: putting them together takes more than
# it saves.
_FEW_FUSIONS: Options = {"xla_cpu_use_fusion_emitters": False}
_QUICK: Options = _FEW_FUSIONS | {"xla_cpu_parallel_codegen_split_count": 1}
_LEVELS: tuple[tuple[int, int, Options], ...] = (
    (2**22, 2**28, _QUICK | {"xla_backend_optimization_level": 0}),
    (2**25, 2**32, _QUICK | {"xla_backend_optimization_level": 1}),
    (2**28, 2**32, _FEW_FUSIONS),
)

# A loop that ends by what it computes is taken to be so long.
_UNKNOWN_LENGTH = 100

# Structures and shapes of arguments that a program remembers.
_MOST_SIGNATURES = 1024


def as_array(value: Any, dtype: Any = None) -> jax.Array:
    """A value as an array of JAX's; unlike `jnp.asarray`, without compiling a program for each shape.

    It may share memory with an array of NumPy's, which must not be changed any more.
    """
    return value if isinstance(value, jax.Array) else jax.device_put(np.asarray(value, dtype))


def as_arrays_together(values: Any) -> Any:
    """As `as_array`, of all leaves, in one transfer for those that are not with JAX yet."""
    leaves, treedef = jax.tree.flatten(values)
    elsewhere = [k for k, leaf in enumerate(leaves) if not isinstance(leaf, jax.Array)]
    for k, array in zip(elsewhere, jax.device_put([np.asarray(leaves[k]) for k in elsewhere]), strict=True):
        leaves[k] = array
    return jax.tree.unflatten(treedef, leaves)


_is_for_a_report: ContextVar[bool] = ContextVar("is_for_a_report", default=False)


@contextmanager
def for_a_report() -> Iterator[None]:
    """All programs that are called within are called seldom."""
    before = _is_for_a_report.set(True)
    try:
        yield
    finally:
        _is_for_a_report.reset(before)


class compile_by_work:
    """As `jax.jit`, but what takes longer to compile than to run is compiled quickly.

    Only where it is called with known values on processors: a program that is part of another is compiled like that.
    What is called `seldom`, or `for_a_report`, may run longer for being compiled sooner.
    """

    def __init__(self, function: Callable[..., Any], *, seldom: bool = False, **options: Any) -> None:
        self.__doc__, self.__name__ = function.__doc__, function.__name__
        self._compile = partial(jax.jit, function, **options)
        self._usual, self._quick = self._compile(), dict[int, Callable[..., Any]]()
        self._seldom = seldom
        self._chosen: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *args: Any) -> Any:
        leaves, treedef = jax.tree.flatten(args)
        if jax.default_backend() != "cpu" or _is_traced(leaves):
            return self._usual(*args)
        signature = _is_for_a_report.get(), treedef, *map(np.shape, leaves)
        program = self._chosen.get(signature)
        if program is None:
            if len(self._chosen) >= _MOST_SIGNATURES:
                self._chosen.clear()
            program = self._chosen[signature] = self._choose(args)
        return program(*args)

    def lower(self, *args: Any) -> Any:
        """As that of `jax.jit`: the program as it is where there is much to do."""
        return self._usual.lower(*args)

    def _choose(self, args: tuple[Any, ...]) -> Callable[..., Any]:
        # JAX keeps what it has traced, for whichever program is chosen.
        amount = work(self._usual.trace(*args).jaxpr.jaxpr)
        is_seldom = self._seldom or _is_for_a_report.get()
        limits = [most_of_a_report if is_seldom else most for most, most_of_a_report, _ in _LEVELS]
        level = next((level for level, most in enumerate(limits) if amount <= most), None)
        if level is None:
            return self._usual
        if level not in self._quick:
            self._quick[level] = self._compile(compiler_options=_usable(_LEVELS[level][-1]))
        return self._quick[level]


def work(jaxpr: core.Jaxpr) -> int:
    """How many numbers a program computes on its way, those of loops as often as they run."""
    return sum(map(_work_of_equation, jaxpr.eqns))


def _work_of_equation(equation: core.JaxprEqn) -> int:
    options = jax.tree.leaves(list(equation.params.values()))
    bodies = [body for each in options if isinstance(body := getattr(each, "jaxpr", each), core.Jaxpr)]
    if not bodies:
        return sum(prod(getattr(variable.aval, "shape", ())) for variable in equation.outvars)
    length = {"scan": equation.params.get("length", 1), "while": _UNKNOWN_LENGTH}.get(equation.primitive.name, 1)
    return length * sum(map(work, bodies))


def _is_traced(leaves: list[Any]) -> bool:
    """Whether a program is to be part of another, be it that all of its arguments are known."""
    if any(isinstance(leaf, Tracer) for leaf in leaves):
        return True
    # Inside `jit` whatever is done with known arrays is traced.
    return isinstance(lax.stop_gradient(_one()), Tracer)


@cache
def _one() -> jax.Array:
    with jax.ensure_compile_time_eval():
        return jax.device_put(np.float32(1))


def _usable(options: Options) -> Options:
    """Those that this version of XLA has; none where users have set any of them themselves."""
    if any(option in os.environ.get("XLA_FLAGS", "") for option in options):
        return {}
    return {option: value for option, value in options.items() if _is_known(option, value)}


@cache
def _is_known(option: str, value: bool | int) -> bool:
    """Whether this version of XLA has an option."""
    try:
        jax.jit(lambda: np.float32(0), compiler_options={option: value})()
    except jax.errors.JaxRuntimeError:
        return False
    return True


@partial(compile_by_work, static_argnums=1)
def split_key(rng_key: PRNGKeyArray, count: int = 2) -> tuple[PRNGKeyArray, ...]:
    """As `jax.random.split`, in one program."""
    return tuple(jax.random.split(rng_key, count))


@compile_by_work
def key_of(rng_key: PRNGKeyArray, *numbers: int) -> PRNGKeyArray:
    """As `jax.random.fold_in` of one number after the other, in one program."""
    for number in numbers:
        rng_key = jax.random.fold_in(rng_key, number)
    return rng_key
