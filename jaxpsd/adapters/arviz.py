"""ArviZ: draws from an `InferenceData`, a `DataTree` or a `Dataset`, whichever ArviZ made it.

Nothing is imported here: all of them give variables by name, with dimensions `chain` and `draw`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxpsd._core.draws import Draws
from jaxpsd._core.types import Target


def from_arviz(
    data: Any,
    target: Target | None = None,
    *,
    group: str = "posterior",
    var_names: Sequence[str] | None = None,
    scores: str = "scores",
) -> tuple[Any, Draws]:
    """Take draws, and scores where there are some, from ArviZ data.

    Parameters
    ----------
    data
        An `InferenceData` (ArviZ 0.x), a `DataTree` (ArviZ 1.x), or an xarray `Dataset` with dimensions chain and draw.
    target
        The log-density of a dictionary of variables. It must be that of the variables as they are in the data: where
        those are constrained, as tau > 0, a log-density of log tau will not do.
    group
        Which group has the draws.
    var_names
        Which variables to take; all by default.
    scores
        Which group has the scores, if there is no `target`, with the same variables.

    Returns
    -------
    tuple
        The target, and the draws with their chains and names.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import numpy as np
    >>> import xarray
    >>> import jaxpsd
    >>> draws = np.random.default_rng(0).normal(size=(4, 250))
    >>> data = {"posterior": xarray.Dataset({"mu": (("chain", "draw"), draws)})}
    >>> target, samples = jaxpsd.from_arviz(data, lambda p: -0.5 * p["mu"] ** 2)
    >>> samples.num_chains, samples.names
    (4, ('mu',))
    """
    dataset = _group(data, group)
    names = [str(name) for name in dataset.data_vars] if var_names is None else list(var_names)
    for name in names:
        if name not in dataset.data_vars:
            raise ValueError(f"The group {group!r} has no variable {name!r}; it has {', '.join(dataset.data_vars)}.")
    if not names:
        raise ValueError(f"The group {group!r} has no variables.")
    draws = Draws({name: _flat(dataset[name], name) for name in names}, int(dataset.sizes["chain"]))
    if target is not None:
        return target, draws
    try:
        scored = _group(data, scores)
    except ValueError as error:
        raise ValueError(f"Give the log-density as `target`, or data with a group {scores!r} of scores.") from error
    for name in names:
        if name not in scored.data_vars:
            raise ValueError(f"The group {scores!r} has no score of {name!r}.")
    return Draws({name: _flat(scored[name], name) for name in names}, draws.num_chains), draws


def _group(data: Any, name: str) -> Any:
    """One group as a dataset."""
    if hasattr(data, "data_vars") and "chain" in getattr(data, "dims", ()):
        return data
    try:
        group = data[name]
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise ValueError(
            f"There is no group {name!r} in {type(data).__name__}; `data` must be an InferenceData, a DataTree, or a "
            "Dataset with dimensions chain and draw."
        ) from error
    # A node of a tree holds its variables in a dataset.
    group = getattr(group, "dataset", group)
    if not hasattr(group, "data_vars"):
        raise ValueError(f"The group {name!r} must be a Dataset; got {type(group).__name__}.")
    if "chain" not in group.dims or "draw" not in group.dims:
        raise ValueError(f"The group {name!r} must have dimensions chain and draw; it has {', '.join(group.dims)}.")
    return group


def by_chain_and_draw(variable: Any) -> np.ndarray:
    """The values of a variable, chains and draws first, in whatever order it has its dimensions."""
    return np.asarray(variable.transpose("chain", "draw", ...))


def _flat(variable: Any, name: str) -> np.ndarray:
    values = by_chain_and_draw(variable)
    if not np.issubdtype(values.dtype, np.floating):
        raise TypeError(f"{name!r} must be floating point; it is {values.dtype}. Discrete parameters have no score.")
    return values.reshape(-1, *values.shape[2:])
