"""Posteriors that `inference_gym` publishes with their means and standard deviations, as functions of a flat vector.

A model of the package has parameters in constrained space, such as positive scales, and bijectors to it from
unconstrained space. Here x is the unconstrained vector: its log-density has the Jacobian term, and `constrained(x)` is
the vector of parameters whose ground truth the package has.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from inference_gym import using_jax as gym
from jax.flatten_util import ravel_pytree

from benchmarks._public import MODELS
from benchmarks._public.known import Moments, PublicModel


def load(name: str) -> PublicModel:
    """The model that a class of the package has by default."""
    model = getattr(gym.targets, name)()
    zeros = jax.tree.map(lambda shape: jnp.zeros(tuple(shape)), model.event_shape, is_leaf=_is_shape)
    origin, unravel = ravel_pytree(zeros)
    structure = jax.tree.structure(zeros)
    bijectors = jax.tree.leaves(model.default_event_space_bijector, is_leaf=_is_bijector)
    transformation = model.sample_transformations["identity"]
    is_array = isinstance(transformation.ground_truth_mean, np.ndarray)

    def parameters(x: jax.Array) -> tuple[Any, jax.Array]:
        """In constrained space; and the logarithm of the Jacobian."""
        leaves = jax.tree.leaves(unravel(x))
        pairs = list(zip(bijectors, leaves, strict=True))
        jacobian = sum(bijector.forward_log_det_jacobian(leaf, event_ndims=leaf.ndim) for bijector, leaf in pairs)
        return jax.tree.unflatten(structure, [bijector.forward(leaf) for bijector, leaf in pairs]), jacobian

    def logdensity(x: jax.Array) -> jax.Array:
        theta, jacobian = parameters(x)
        return model.unnormalized_log_prob(theta) + jacobian

    def transformed(x: jax.Array) -> Any:
        value = transformation(parameters(x)[0])
        # A path may come as a tuple of its times, and its ground truth as one array.
        return jnp.stack(jax.tree.leaves(value)) if is_array and isinstance(value, tuple) else _by_name(value)

    def constrained(x: jax.Array) -> jax.Array:
        return ravel_pytree(transformed(x))[0]

    shown = jax.eval_shape(transformed, origin)
    return PublicModel(
        MODELS[name], logdensity, constrained, _names(zeros), _names(shown), _truth(transformation, shown),
        _places(constrained, len(origin)),
    )  # fmt: skip


def _truth(transformation: Any, shown: Any) -> Moments:
    def flat(tree: Any) -> np.ndarray:
        tree = _by_name(tree)
        shapes, expected = jax.tree.map(np.shape, tree), jax.tree.map(lambda leaf: leaf.shape, shown)
        if shapes != expected:
            raise ValueError(f"The ground truth is of {shapes}, parameters are {expected}.")
        return np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(tree)])

    mean, sd = flat(transformation.ground_truth_mean), flat(transformation.ground_truth_standard_deviation)
    error = transformation.ground_truth_mean_standard_error
    # Standard deviations come without one; that of a mean, as a share, is the larger one unless tails are heavy.
    share = np.zeros_like(sd) if error is None else flat(error) / sd
    return Moments(mean, sd, share, share)


def _places(constrained: Callable[[jax.Array], jax.Array], dim: int) -> np.ndarray:
    """Parameters that move just as an unconstrained coordinate does, and have its value."""
    x = jax.random.normal(jax.random.key(0), (dim,))
    derivative = np.asarray(jax.jacobian(constrained)(x))
    rows, columns = np.nonzero(derivative)
    place = np.full(dim, -1)
    place[columns] = rows
    same = np.isclose(np.asarray(constrained(x))[place], np.asarray(x), rtol=1e-6)
    return np.where(same & (derivative[place, np.arange(dim)] == 1), place, -1)


def _by_name(tree: Any) -> Any:
    """Named tuples and ordered dictionaries as plain ones, whose leaves JAX takes in the order of their names."""
    if hasattr(tree, "_asdict"):
        tree = tree._asdict()
    return {name: _by_name(part) for name, part in tree.items()} if isinstance(tree, Mapping) else tree


def _names(tree: Any) -> tuple[str, ...]:
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator=".") or "x"
        places = np.ndindex(leaf.shape) if leaf.shape else ()
        found += [f"{name}[{','.join(map(str, place))}]" for place in places] if leaf.shape else [name]
    return tuple(found)


def _is_shape(node: Any) -> bool:
    return hasattr(node, "as_list")


def _is_bijector(node: Any) -> bool:
    return hasattr(node, "forward_log_det_jacobian")
