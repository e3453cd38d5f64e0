"""BlackJAX: states, and what the sampler says of its transitions, to draws that know their chains and divergences.

Nothing is imported here: states are named tuples with the fields `position` and, mostly, `logdensity`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpsd._core.checks import check_same_shapes, shapes_of
from jaxpsd._core.draws import Draws, join_draws
from jaxpsd._core.origins import UNKNOWN, Kind, Origin
from jaxpsd._core.states import positions_in
from jaxpsd._core.types import PyTree, Target

# Chains without an accept step.
_UNADJUSTED = ("IntegratorState", "SGNHTState", "ContourSGLDState")


def from_blackjax(
    states: PyTree, infos: Any = None, *, target: Target | None = None, chain_axis: int | None = None
) -> tuple[Any, Draws]:
    """Take draws, with their chains and divergences, from the states of a sampler; and scores where states have them.

    Parameters
    ----------
    states
        States of a sampler as `lax.scan` stacks them: (draws, …), or (draws, chains, …) where a step moves several
        chains.
    infos
        What the sampler said of each transition, stacked in the same way: divergences and acceptance are taken from it.
    target
        The log-density, if the states have no gradients of it (`logdensity_grad`).
    chain_axis
        Which of the two leading axes, 0 or 1, is that of chains; by default the shorter one.

    Returns
    -------
    tuple
        The target: scores, unless another was given; and the draws.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> from typing import NamedTuple
    >>> import jaxpsd
    >>> class HMCState(NamedTuple):
    ...     position: jax.Array
    ...     logdensity: jax.Array
    ...     logdensity_grad: jax.Array
    >>> x = jax.random.normal(jax.random.key(0), (500, 4, 2))
    >>> states = HMCState(x, -0.5 * jnp.sum(x**2, axis=-1), -x)
    >>> scores, samples = jaxpsd.from_blackjax(states)
    >>> samples.num_chains, samples.num_draws
    (4, 2000)
    >>> bool(jaxpsd.adaptive_test(jax.random.key(1), scores, samples).reject)
    False
    """
    fields = getattr(states, "_fields", ())
    positions = positions_in(states, "states")
    if positions is states:
        raise TypeError(
            f"`states` must be states of a sampler, with a field `position`; got {type(states).__name__}. Positions "
            "themselves need no adapter: pass them to `diagnose` as (chains, draws, …)."
        )
    if not jax.tree.leaves(positions):
        raise ValueError("`states` hold no positions: there are no arrays in them.")
    axis = _axis_of_chains(states, infos, positions, chain_axis)

    def in_order(tree: PyTree) -> PyTree:
        """Chains one after the other."""
        if axis is None:
            return jax.tree.map(jnp.asarray, tree)
        return join_draws(jax.tree.map(lambda leaf, axis=axis: jnp.moveaxis(jnp.asarray(leaf), axis, 0), tree))

    num_chains = 1 if axis is None else np.shape(jax.tree.leaves(positions)[0])[axis]
    samples = Draws(in_order(positions), num_chains, origin=_origin(states, infos))
    if target is not None:
        return target, samples
    if "logdensity_grad" not in fields:
        raise ValueError(f"{type(states).__name__} has no gradients; pass the log-density as `target`.")
    check_same_shapes(states.logdensity_grad, positions, "Gradients must have the shape of the positions")
    return Draws(in_order(states.logdensity_grad), num_chains), samples


# What is said of each transition by one number.
_PER_TRANSITION = ("is_divergent", "acceptance_rate", "is_accepted", "energy_change")


def _axis_of_chains(states: PyTree, infos: Any, positions: PyTree, asked: int | None) -> int | None:
    """Which of two leading axes is that of chains; None where there is only that of draws."""
    told = [getattr(states, "logdensity", None), *(getattr(infos, name, None) for name in _PER_TRANSITION)]
    shape = next((np.shape(values) for values in told if values is not None), None)
    if shape is None:
        # Without a number for each state, only the user knows whether there are chains.
        shape = np.shape(jax.tree.leaves(positions)[0])[: 1 if asked is None else 2]
    if any(np.shape(leaf)[: len(shape)] != shape for leaf in jax.tree.leaves(positions)):
        raise ValueError(
            f"`states` and `infos` must be of the same transitions: positions of shape {shapes_of(positions)!s:.100} "
            f"have no leading axes {shape}."
        )
    if len(shape) == 1 and asked is None:
        return None
    if len(shape) != 2 or asked not in (None, 0, 1):
        raise ValueError(
            f"`states` must be (draws, …), or (draws, chains, …) with a `chain_axis` of 0 or 1; their leading axes are "
            f"{shape}, with chain_axis={asked!r}."
        )
    if asked is None and shape[0] == shape[1]:
        raise ValueError(f"`states` are {shape}: say by `chain_axis`, 0 or 1, which axis is that of chains.")
    return int(np.argmin(shape)) if asked is None else asked


def _origin(states: PyTree, infos: Any) -> Origin:
    diverged, rate = (getattr(infos, name, None) for name in ("is_divergent", "acceptance_rate"))
    if type(states).__name__ in _UNADJUSTED:
        kind = Kind.SG_MCMC
    elif "logdensity" in states._fields:
        kind = Kind.MCMC
    else:
        return UNKNOWN
    return Origin.of_transitions(kind, "BlackJAX", diverged, rate)
