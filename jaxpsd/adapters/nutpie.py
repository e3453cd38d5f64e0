"""nutpie: unconstrained draws and gradients, as the sampler has stored them.

Nothing is imported here: a trace is ArviZ's, whichever version made it.
"""

import re
from itertools import groupby
from math import prod
from typing import Any, NamedTuple

import numpy as np

from jaxpsd._core.dimensions import NO_DIMENSIONS
from jaxpsd._core.draws import Draws, names_of
from jaxpsd.adapters.arviz import chains_first, get_group, origin_of, read_dimensions
from jaxpsd.adapters.value_names import split_value_name

_DRAWS, _GRADIENT, _PARAMETERS = "unconstrained_draw", "gradient", "unconstrained_parameter"

# An entry of an array: beta_0, or beta_0.1 with two axes.
_ENTRY = re.compile(r"(?P<variable>.+)_(?P<place>\d+(\.\d+)*)")


def from_nutpie(trace: Any) -> tuple[Draws, Draws]:
    """Take the scores and the draws in unconstrained space that nutpie has stored on its way.

    Parameters
    ----------
    trace
        What `nutpie.sample(model, store_unconstrained=True, store_gradient=True)` returned, or `arviz.from_netcdf` has
        read.

    Returns
    -------
    tuple
        The scores and the draws, with their chains, names, dimensions and coordinates, and how many transitions
        diverged.

    Examples
    --------
    >>> import jax
    >>> import numpy as np
    >>> import xarray
    >>> import jaxpsd
    >>> x = np.random.default_rng(0).normal(size=(4, 500, 2))
    >>> dims = ("chain", "draw", "unconstrained_parameter")
    >>> names = {"unconstrained_parameter": ["mu", "tau_log__"]}
    >>> stats = xarray.Dataset({"unconstrained_draw": (dims, x), "gradient": (dims, -x)}, names)
    >>> scores, samples = jaxpsd.from_nutpie({"sample_stats": stats})
    >>> samples.names
    ('mu', 'log tau')
    >>> bool(jaxpsd.adaptive_test(jax.random.key(0), scores, samples).reject)
    False
    """
    stats = get_group(trace, "sample_stats")
    missing = [name for name in (_DRAWS, _GRADIENT) if name not in stats.data_vars]
    if missing:
        raise ValueError(
            f"`trace` has no {' and no '.join(missing)} among its sample_stats. Sample again with "
            "`nutpie.sample(model, store_unconstrained=True, store_gradient=True)`; of a PyMC model, `from_pymc(model, "
            "trace)` takes the draws as they are."
        )
    x, scores = (chains_first(stats[name]) for name in (_DRAWS, _GRADIENT))
    if x.ndim != 3 or x.shape != scores.shape:
        raise ValueError(
            f"{_DRAWS} and {_GRADIENT} must be (chain, draw, parameter); got {x.shape} and {scores.shape}."
        )
    origin, (num_chains, _, dim) = origin_of(trace, "sample_stats", "nutpie"), x.shape
    x, scores = x.reshape(-1, dim), scores.reshape(-1, dim)
    if _PARAMETERS not in stats.coords:
        return Draws(scores, num_chains, origin=origin), Draws(x, num_chains, origin=origin)
    try:
        posterior = get_group(trace, "posterior")
    except ValueError:
        posterior = None
    variables = _variables([str(name) for name in stats[_PARAMETERS].values], posterior)
    stored = {} if posterior is None else {
        variable.name: variable.stored for variable in variables if variable.stored in posterior.data_vars
    }  # fmt: skip
    dimensions = read_dimensions(posterior, stored) if stored else NO_DIMENSIONS
    drawn, scored = (
        {variable.name: rows[:, variable.columns].reshape(-1, *variable.shape) for variable in variables}
        for rows in (x, scores)
    )
    labels = names_of(drawn, {variable.name: variable.label for variable in variables}, dimensions)
    return (
        Draws(scored, num_chains, labels, origin, dimensions),
        Draws(drawn, num_chains, labels, origin, dimensions),
    )


def has_gradients(stats: Any) -> bool:
    """Whether nutpie has stored what it takes."""
    return all(name in stats.data_vars for name in (_DRAWS, _GRADIENT))


class _Variable(NamedTuple):
    """A variable among the unconstrained parameters: which they are, and what it is called here, there and in words."""

    name: str
    stored: str
    label: str
    columns: slice
    shape: tuple[int, ...]


def _variables(names: list[str], posterior: Any) -> list[_Variable]:
    """Entries of one array, one after the other, put together again."""

    def split(name: str) -> tuple[str, tuple[int, ...]]:
        found = _ENTRY.fullmatch(name)
        if found is None or (posterior is not None and name in posterior.data_vars):
            return name, ()
        return found["variable"], tuple(map(int, found["place"].split(".")))

    variables, start = [], 0
    for stored, entries in groupby(map(split, names), key=lambda entry: entry[0]):
        places = [place for _, place in entries]
        shape = tuple(k + 1 for k in places[-1])
        if places == list(np.ndindex(*shape)):
            name, label = split_value_name(stored)
            variables.append(_Variable(name, stored, label, slice(start, start + prod(shape)), shape))
        else:
            # Names that only look like those of entries.
            variables += [
                _Variable(names[k], names[k], names[k], slice(k, k + 1), ()) for k in range(start, start + len(places))
            ]
        start += len(places)
    return variables
