"""Functions of the user's as data: what they compute, and the arrays that they refer to.

A compiled program must never be used for a function that has changed since, and what a Python function refers to
cannot be known by looking at it: globals, attributes of modules and objects, data changed in place. So a function is
traced whenever the user passes it. What it computes is an `Expression`, compared by its structure; the arrays that it
refers to become arguments. A `Traced` function is a pytree of both, and is passed to programs like any other argument:
where JAX finds an equal expression it runs the program that it has, and else compiles another.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.extend import core
from jax.tree_util import register_dataclass

from jaxpsd._core.types import PyTree, static


@register_dataclass
@dataclass(frozen=True, eq=False)
class Traced:
    """A function of one draw, or of a few, as a pytree: call it like the function it was traced from.

    It computes an expression with the arrays that it refers to, its constants, and returns `size` numbers.
    """

    constants: list[Any]
    expression: "Expression" = static()
    in_tree: Any = static()
    out_tree: Any = static()
    size: int = static()

    def __call__(self, *arguments: PyTree) -> Any:
        leaves, in_tree = jax.tree.flatten(arguments)
        assert in_tree == self.in_tree, f"Traced for arguments of structure {self.in_tree}, called with {in_tree}."
        return jax.tree.unflatten(self.out_tree, self.expression.evaluate(iter(self.constants), leaves))


def trace(function: Callable[..., Any], *arguments: PyTree, is_gradient: bool = False) -> Traced:
    """Trace a function with arguments of given shapes and types.

    A gradient shows in what it computes which rules for derivatives it has followed: those need not be compared.
    """
    # A function of its own, since JAX remembers what it has traced by the function's identity.
    jaxpr, shapes = jax.make_jaxpr(lambda *given: function(*given), return_shape=True)(*arguments)
    constants: list[Any] = []
    expression = Expression(jaxpr, constants, is_gradient)
    size = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    return Traced(constants, expression, jax.tree.structure(arguments), jax.tree.structure(shapes), size)


class Expression:
    """What a function computes, without the arrays that it refers to; equal where the computation is the same.

    has_rules
        Whether it brings derivatives of its own making (`jax.custom_jvp`, `jax.custom_vjp`). Those cannot be compared,
        so that it equals no other, unless they are inside `jax.jit`, which is traced once for all.
    """

    def __init__(self, traced: core.ClosedJaxpr, constants: list[Any], is_gradient: bool):
        """Take a traced function apart; the arrays that it refers to are appended to `constants`."""
        constants += traced.consts
        jaxpr, self.has_rules, self._is_gradient = traced.jaxpr, False, is_gradient
        given = [*jaxpr.constvars, *jaxpr.invars]
        # Variables are named by their place.
        place: dict[Any, int] = {variable: k for k, variable in enumerate(given)}

        def name(atom: Any) -> Any:
            if not isinstance(atom, core.Literal):
                return place[atom]
            # By its bits: 0 is not −0, and NaN is NaN.
            return _Compared((atom.aval, np.asarray(atom.val).tobytes()), atom.val)

        # How each operation is performed, on which variables, and which it makes.
        self._steps, structure = [], []
        for equation in jaxpr.eqns:
            inputs, first = tuple(map(name, equation.invars)), len(place)
            place.update((variable, first + k) for k, variable in enumerate(equation.outvars))
            # A function under `jax.jit` has arrays of its own, which are arguments of the whole.
            is_jit = equation.primitive.name in ("jit", "pjit")
            inner = Expression(equation.params["jaxpr"], constants, is_gradient) if is_jit else None
            # Not the equation itself, which would keep those arrays.
            how = inner.evaluate if inner else partial(_perform, equation.primitive, equation.params)
            self._steps.append((how, inputs, range(first, len(place))))
            # Of a function with derivatives of its own making, a gradient shows what those are.
            is_followed = is_gradient and equation.primitive.name.startswith(("custom_jvp", "custom_vjp"))
            params = sorted(equation.params.items())
            options = inner or tuple(
                (key, self._comparable(value)) for key, value in params if not (is_followed and _is_function(value))
            )
            structure.append((equation.primitive, inputs, tuple(out.aval for out in equation.outvars), options))
        self._num_constants, self._results = len(jaxpr.constvars), tuple(map(name, jaxpr.outvars))
        self._structure = tuple(each.aval for each in given), self._num_constants, tuple(structure), self._results
        self._hash = hash(self._structure)

    def _comparable(self, option: Any) -> Any:
        """An option of an operation: bodies of loops and branches by their structure, others by type and value."""
        if isinstance(option, core.ClosedJaxpr):
            constants: list[Any] = []
            body = Expression(option, constants, self._is_gradient)
            self.has_rules = self.has_rules or body.has_rules
            return body, tuple(_Compared(id(constant), constant) for constant in constants)
        if isinstance(option, core.Jaxpr):
            return self._comparable(core.ClosedJaxpr(option, ()))
        if isinstance(option, tuple | list):
            return type(option), tuple(map(self._comparable, option))
        self.has_rules = self.has_rules or _is_function(option)
        try:
            hash(option)
        except TypeError:
            return _Compared(id(option), option)
        # 1 is neither True nor 1.0.
        return type(option), option

    def evaluate(self, constants: Iterator[Any], arguments: Sequence[Any]) -> list[Any]:
        """Compute, with arrays for the constants in the order in which they were found."""
        values = dict(enumerate([*(next(constants) for _ in range(self._num_constants)), *arguments]))

        def read(name: Any) -> Any:
            return name.value if isinstance(name, _Compared) else values[name]

        for how, inputs, outputs in self._steps:
            values.update(zip(outputs, how(constants, [read(name) for name in inputs]), strict=True))
        return [read(name) for name in self._results]

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Expression) or self._hash != other._hash:
            return False
        return self is other or self._structure == other._structure


def _is_function(option: Any) -> bool:
    return (callable(option) or hasattr(option, "call_wrapped")) and not isinstance(option, type)


def _perform(primitive: Any, params: dict[str, Any], _: Iterator[Any], arguments: Sequence[Any]) -> Sequence[Any]:
    """One operation, which refers to no arrays: evaluated like an expression."""
    bound: Any = primitive.get_bind_params(params)
    # Before version 0.10, JAX has the functions that an operation calls apart from its options.
    functions, options = bound if isinstance(bound, tuple) else ((), bound)
    results = primitive.bind(*functions, *arguments, **options)
    return results if primitive.multiple_results else [results]


@dataclass(frozen=True)
class _Compared:
    """A value that is compared by a key: its bits, or, where it cannot be compared, that it is the same object."""

    key: Any
    value: Any = field(compare=False)
