"""ArviZ: draws from an `InferenceData`, a `DataTree` or a `Dataset`, whichever ArviZ made it.

Nothing is imported here: all of them give variables by name, with dimensions `chain` and `draw`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jaxpsd._core.dimensions import Dimensions
from jaxpsd._core.draws import Draws
from jaxpsd._core.origins import UNKNOWN, Kind, Origin
from jaxpsd._core.types import Target

# What libraries call themselves in the attributes of a group, and what they are called.
_LIBRARIES = {"pymc": "PyMC", "numpyro": "NumPyro", "nutpie": "nutpie", "cmdstanpy": "Stan", "pystan": "Stan"}


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
        The target, and the draws with their chains, names, dimensions and coordinates, and how many transitions
        diverged.

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
    is_dataset = hasattr(data, "data_vars") and "chain" in getattr(data, "dims", ())
    dataset = data if is_dataset else get_group(data, group)
    draws = _read_draws(dataset, group, list(map(str, dataset.data_vars if var_names is None else var_names)))
    draws = replace(draws, origin=UNKNOWN if is_dataset else origin_of(data, group))
    if target is not None:
        return target, draws
    try:
        scored = get_group(data, scores)
    except ValueError as error:
        raise ValueError(f"Pass the log-density as `target`, or data with a group {scores!r} of scores.") from error
    return _read_draws(scored, scores, list(draws.positions)), draws


def get_group(data: Any, name: str) -> Any:
    """One group as a dataset."""
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
        raise ValueError(f"The group {name!r} must have dimensions chain and draw; it has {list(group.dims)!s:.100}.")
    return group


def _read_draws(dataset: Any, group: str, names: list[str]) -> Draws:
    if not names:
        raise ValueError(f"The group {group!r} has no variables.")
    positions = {}
    for name in names:
        if name not in dataset.data_vars:
            raise ValueError(f"The group {group!r} has no variable {name!r}; it has {list(dataset.data_vars)!s:.100}.")
        values = chains_first(dataset[name])
        if not np.issubdtype(values.dtype, np.floating):
            raise TypeError(f"{name!r} must be floating point, not {values.dtype}: discrete parameters have no score.")
        positions[name] = values.reshape(-1, *values.shape[2:])
    dimensions = read_dimensions(dataset, {name: name for name in names})
    return Draws(positions, int(dataset.sizes["chain"]), dimensions=dimensions)


def chains_first(variable: Any) -> np.ndarray:
    """The values of a variable, chains and draws first, in whatever order it has its dimensions."""
    return np.asarray(variable.transpose("chain", "draw", ...))


def read_dimensions(dataset: Any, variables: Mapping[str, str]) -> Dimensions:
    """Dimensions and coordinates of variables, by the names that they are to have."""
    dims = {
        name: [str(dim) for dim in dataset[stored].dims if dim not in ("chain", "draw")]
        for name, stored in variables.items()
    }
    used = {dim for names in dims.values() for dim in names}
    return Dimensions.of(dims, {dim: np.asarray(dataset[dim]) for dim in used if dim in dataset.coords})


def origin_of(data: Any, group: str = "posterior", library: str | None = None) -> Origin:
    """Where draws came from, by what the sampler has left beside them."""
    try:
        stats = get_group(data, "sample_stats").data_vars
    except ValueError:
        return Origin(library=library)
    if library is None:
        said = getattr(get_group(data, group), "attrs", {}).get("inference_library", "")
        library = _LIBRARIES.get(str(said).lower())
    rates = [name for name in ("acceptance_rate", "accept_prob", "mean_tree_accept") if name in stats]
    if "diverging" not in stats and not rates:
        return Origin(library=library)
    return Origin.of_transitions(Kind.MCMC, library, stats.get("diverging"), stats[rates[0]] if rates else None)
