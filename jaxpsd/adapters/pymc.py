"""PyMC: from a model, and draws from it, to a log-density and draws, both in unconstrained space.

PyMC samples there too: each random variable has a value variable, such as tau_log__ of tau, and the log-density of a
model is that of its value variables, with the Jacobians. PyMC's own bridge makes a JAX function of it.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxpsd._core.checks import check_key, check_positive_integer
from jaxpsd._core.dimensions import Dimensions
from jaxpsd._core.draws import Draws, names_of
from jaxpsd._core.origins import Kind, Origin
from jaxpsd._core.types import LogDensityFn, PyTree
from jaxpsd.adapters.arviz import chains_first, get_group, origin_of
from jaxpsd.adapters.value_names import keeps_axes, label_of


@overload
def from_pymc(model: Any, idata: None = None) -> tuple[LogDensityFn, None]: ...
@overload
def from_pymc(model: Any, idata: Any) -> tuple[LogDensityFn, Draws]: ...
def from_pymc(model: Any, idata: Any = None) -> tuple[LogDensityFn, Draws | None]:
    """Turn a model, and draws from its posterior, into a log-density and draws in unconstrained space.

    Parameters
    ----------
    model
        A `pymc.Model`.
    idata
        What `pymc.sample` returned, by any of its samplers, or a file of it that ArviZ has read. Transformed variables
        are taken where it has them (`idata_kwargs={"include_transformed": True}`); otherwise draws are mapped by the
        transforms of the model.

    Returns
    -------
    tuple
        The log-density of a dictionary of unconstrained parameters; and the draws, with their chains, names, dimensions
        and coordinates, and how many transitions diverged, or None without `idata`.

    Examples
    --------
    >>> import jax
    >>> import pymc as pm  # doctest: +SKIP
    >>> import jaxpsd
    >>> with pm.Model() as model:  # doctest: +SKIP
    ...     mu = pm.Normal("mu", 0, 1)
    ...     tau = pm.LogNormal("tau", 0, 1)
    ...     idata = pm.sample()
    >>> logdensity, samples = jaxpsd.from_pymc(model, idata)  # doctest: +SKIP
    >>> samples.names  # doctest: +SKIP
    ('mu', 'log tau')
    """
    if not isinstance(model, _load().Model):
        raise TypeError(f"`model` must be a pymc.Model; got {type(model).__name__}.")
    _check_continuous(model)
    logdensity = _logdensity(model)
    if idata is None:
        return logdensity, None
    posterior = get_group(idata, "posterior")
    stored = {str(name): chains_first(values) for name, values in posterior.data_vars.items()}
    flat = {name: values.reshape(-1, *values.shape[2:]) for name, values in stored.items()}
    return logdensity, _draws(model, flat, int(posterior.sizes["chain"]), origin_of(idata))


def from_pymc_vi(rng_key: PRNGKeyArray, approx: Any, *, num_samples: int = 1000) -> tuple[LogDensityFn, Draws]:
    """Turn a fitted approximation into the log-density of its model, and draws from the approximation.

    Parameters
    ----------
    rng_key
        A key of `jax.random`.
    approx
        What `pymc.fit` returned, by ADVI or otherwise.
    num_samples
        How many draws to take.

    Returns
    -------
    tuple
        The log-density of a dictionary of unconstrained parameters; and the draws, with their names, dimensions and
        coordinates.

    Examples
    --------
    >>> import jax
    >>> import pymc as pm  # doctest: +SKIP
    >>> import jaxpsd
    >>> with pm.Model():  # doctest: +SKIP
    ...     pm.MvNormal("beta", [0, 0], [[1, 0.9], [0.9, 1]])
    ...     approx = pm.fit()
    >>> logdensity, samples = jaxpsd.from_pymc_vi(jax.random.key(0), approx)  # doctest: +SKIP
    >>> jaxpsd.diagnose(jax.random.key(1), logdensity, samples).reject  # doctest: +SKIP
    True
    """
    check_key(rng_key)
    if not isinstance(approx, _load().Approximation):
        raise TypeError(f"`approx` must be what pymc.fit returned; got {type(approx).__name__}.")
    count, model = check_positive_integer(num_samples, "num_samples"), approx.model
    _check_continuous(model)
    seed = int(jax.random.randint(rng_key, (), 0, 2**31 - 1))
    drawn = approx.sample(count, random_seed=seed, return_inferencedata=False)
    values = {variable.name: np.asarray(drawn.get_values(variable.name)) for variable in model.value_vars}
    return _logdensity(model), _draws(model, values, 1, Origin(Kind.VARIATIONAL, "PyMC"))


class _PyMC(NamedTuple):
    """What is used of PyMC."""

    Model: Any
    Approximation: Any
    jaxified: Any
    clone_replace: Any


@cache
def _load() -> _PyMC:
    # In a thread of its own, which knows nothing of a `jax.enable_x64` around this call.
    with ThreadPoolExecutor(1) as thread:
        precision = thread.submit(jax.config.read, "jax_enable_x64").result()
    try:
        return _PyMC(
            import_module("pymc").Model,
            import_module("pymc.variational.opvi").Approximation,
            import_module("pymc.sampling.jax").get_jaxified_graph,
            import_module("pytensor.graph.replace").clone_replace,
        )
    except ImportError as error:
        error.add_note("`from_pymc` needs PyMC: pip install 'jaxpsd[pymc]'.")
        raise
    finally:
        # PyTensor's bridge switches to double precision when it is imported, which is for the user to decide.
        jax.config.update("jax_enable_x64", precision)


def _check_continuous(model: Any) -> None:
    """Refuse what has no score, or nothing at all."""
    for variable in model.free_RVs:
        if not np.issubdtype(variable.type.dtype, np.floating):
            raise ValueError(
                f"{variable.name!r} is discrete and has no score. Sum it out of the model (pymc_extras.marginalize), "
                "so that the density of the continuous parameters remains."
            )
    if not model.free_RVs:
        raise ValueError("The model samples no parameters.")


def _logdensity(model: Any) -> LogDensityFn:
    names = [model.values_to_rvs[variable].name for variable in model.value_vars]
    function = _load().jaxified(inputs=model.value_vars, outputs=[model.logp()])

    def logdensity(position: PyTree) -> jax.Array:
        with _whatever_precision():
            return jnp.asarray(function(*(position[name] for name in names))[0])

    # Jitted, as a promise that neither model nor data will change.
    return jax.jit(logdensity)


@contextmanager
def _whatever_precision() -> Iterator[None]:
    """PyTensor asks for double precision all over its graphs; JAX gives what it has, and says so each time."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Explicitly requested dtype", UserWarning)
        yield


def _draws(model: Any, stored: Mapping[str, np.ndarray], num_chains: int, origin: Origin) -> Draws:
    """Draws of all value variables, by the names of the parameters that they stand for."""
    variables = {variable.name: model.rvs_to_values[variable].name for variable in model.free_RVs}
    missing = [name for name, value in variables.items() if value not in stored]
    mapped = _transformed(model, stored, missing) if missing else {}
    positions = {name: mapped[name] if name in mapped else stored[value] for name, value in variables.items()}
    transforms = {variable.name: model.rvs_to_transforms[variable] for variable in model.free_RVs}
    kinds = {name: getattr(transform, "name", "") if transform else "" for name, transform in transforms.items()}
    dims = {
        name: [dim or f"{name}_dim_{k}" for k, dim in enumerate(model.named_vars_to_dims[name])]
        for name in variables
        if name in model.named_vars_to_dims and keeps_axes(kinds[name])
    }
    coords = {dim: labels for dim, labels in model.coords.items() if labels is not None}
    dimensions = Dimensions.of(dims, coords)
    labels = names_of(positions, {name: label_of(name, kind) for name, kind in kinds.items()}, dimensions)
    return Draws(positions, num_chains, labels, origin, dimensions)


def _transformed(model: Any, stored: Mapping[str, np.ndarray], names: Sequence[str]) -> dict[str, np.ndarray]:
    """Draws of parameters as the transforms of the model map them, which may depend on other parameters."""
    by_name = {variable.name: variable for variable in model.free_RVs}
    absent = [name for name in by_name if name not in stored]
    if absent:
        raise ValueError(
            f"There are no draws of {absent[0]!r}, which the model samples; there are {list(stored)!s:.200}."
        )
    inputs = {name: variable.type(name) for name, variable in by_name.items()}
    forward = [
        model.rvs_to_transforms[by_name[name]].forward(by_name[name], *by_name[name].owner.inputs) for name in names
    ]
    replaced = _load().clone_replace(forward, {variable: inputs[name] for name, variable in by_name.items()})
    function = _load().jaxified(inputs=list(inputs.values()), outputs=replaced)
    with jax.enable_x64(True):
        mapped = jax.vmap(function)(*(jnp.asarray(stored[name]) for name in inputs))
    return {name: np.asarray(values) for name, values in zip(names, mapped, strict=True)}
