"""Compile a computation once for each log-density, and never use the program of another one.

A compiled program holds the log-density as it was when it was traced. It may be used again only while the
function, and everything that it refers to, is the same. Where that cannot be told, nothing is kept.
"""

import dis
import sysconfig
import weakref
from collections.abc import Callable, Hashable, Iterator
from functools import lru_cache, partial
from hashlib import blake2b
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

JittedFunction = type(jax.jit(lambda: None))

Build = Callable[..., Any]
"""`build(functions…)` gives the function to compile; `functions` are the user's, or None."""

_programs: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()


def compiled(
    build: Build, key: Any, *functions: Callable[..., Any] | None, variant: Hashable = None
) -> Callable[..., Any]:
    """`jax.jit(build(*functions))`, kept while the functions live and refer to the same objects.

    `key` and `variant` tell apart what is built from the same functions. Methods and callable objects may change their
    state unseen, and are compiled at every call; `jax.jit` around them says that they will not.
    """
    # The first function owns the programs, so that they and the data they hold go when it goes: they must not hold it.
    owner = next((each for each in functions if each is not None), key)
    try:
        referred_to = (each for function in functions for each in _referred_to(function, seen=[]))
        references = [each for each in referred_to if each is not owner]
    except _Unknown:
        return jax.jit(build(*functions))
    programs = _programs.setdefault(owner, {})
    others = tuple(each for each in functions if each is not owner)
    kept, program = programs.get((key, variant, others), (None, None))
    if program is None or not _same(kept, references):
        program = jax.jit(build(*(weakref.proxy(each) if each is owner else each for each in functions)))
        programs[key, variant, others] = references, program
    return program


class _Unknown(Exception):
    """Something is referred to that may change without a trace."""


_UNCHANGING = (
    type(None), bool, int, float, complex, str, bytes, range, slice, type, np.generic, np.dtype, np.ufunc,
    ModuleType, CodeType, BuiltinFunctionType, JittedFunction, jax.custom_jvp, jax.custom_vjp, type(Ellipsis),
)  # fmt: skip


def _referred_to(value: object, seen: list[object]) -> Iterator[object]:
    """All that a function's result may depend on beside its arguments; arrays of NumPy by content."""
    if isinstance(value, Tracer):
        # Programs outlive the trace that this belongs to.
        raise _Unknown
    if isinstance(value, (*_UNCHANGING, jax.Array)):
        yield value
        return
    if isinstance(value, np.ndarray) and value.dtype != object:
        yield blake2b(value.tobytes()).digest(), value.shape, value.dtype.str
        return
    if any(value is each for each in seen):
        return
    seen.append(value)
    for part in _parts(value):
        yield from _referred_to(part, seen)


def _parts(value: object) -> Iterator[object]:
    if isinstance(value, tuple | list):
        yield len(value)
        yield from value
    elif isinstance(value, dict):
        yield len(value)
        for item in value.items():
            yield from item
    elif isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, FunctionType):
        for cell in value.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # A variable that is not bound yet.
                yield None
        yield from (value.__defaults__, value.__kwdefaults__)
        if not _is_installed(value.__globals__.get("__file__")):
            yield from (value.__globals__.get(name) for name in _global_names(value.__code__))
        # Code is compared too: a function may be defined anew, with another body.
        yield value.__code__
    else:
        raise _Unknown


def _same(one: list[Any], two: list[Any]) -> bool:
    return len(one) == len(two) and all(
        a is b or (isinstance(a, tuple | int | float | str) and type(a) is type(b) and a == b)
        for a, b in zip(one, two, strict=True)
    )


@lru_cache(maxsize=1024)
def _global_names(code: CodeType) -> tuple[str, ...]:
    names = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names.update(_global_names(constant))
    return tuple(sorted(names))


@lru_cache(maxsize=1024)
def _is_installed(file: str | None) -> bool:
    """Whether a module belongs to a library, whose own globals are not the user's variables."""
    libraries = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return file is not None and file.startswith(tuple(libraries))
