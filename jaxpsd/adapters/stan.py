"""Stan: scores and draws in unconstrained space, from CmdStan's files, a BridgeStan model or a PyStan fit.

Nothing is imported here: models are known by their methods.
"""

from collections.abc import Callable, Iterable, Sequence
from glob import glob
from math import ceil, prod
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from jaxpsd._core.draws import Draws, evenly_spaced
from jaxpsd._core.origins import Kind, Origin
from jaxpsd.adapters.arviz import chains_first, get_group, origin_of
from jaxpsd.adapters.columns import LOOKED_AT, draws_of_columns, find_prefixes
from jaxpsd.adapters.stan_files import read_diagnostics

_TAKES = "`from_stan` takes CmdStan's diagnostic files, a BridgeStan model with draws, or a PyStan model with its fit"


def from_stan(
    source: Any, draws: Any = None, *, unconstrained: bool = False, warmup: bool = False, progress: bool = True
) -> tuple[Draws, Draws]:
    """Take scores and draws in unconstrained space from Stan.

    Parameters
    ----------
    source
        One of: the names of CmdStan's diagnostic files (`output diagnostic_file=…`; CmdStanPy's
        `save_latent_dynamics=True`), one for each chain, or a pattern such as "out/*diagnostic*.csv"; a BridgeStan
        model; what PyStan's `stan.build` returned.
    draws
        With a BridgeStan model, draws of its parameters: ArviZ data, or an array (draws, dim) or (chains, draws, dim)
        in the order of `param_names()`. With a PyStan model, its fit.
    unconstrained
        Whether an array has draws in unconstrained space already.
    warmup
        Whether to keep draws of warm-up, where files have some.
    progress
        Whether to show a progress bar, where a model has to be asked about every draw.

    Returns
    -------
    tuple
        The scores and the draws, with their chains and names, and how many transitions diverged.

    Notes
    -----
    The gradients in files are checked: the mean of (x − mean)·∇log p is −1 for draws of p, and files in which it is
    far from that are refused. In files, parameters have the names of the constrained ones, although they are not. What
    they are is seen from the draws in the output file of the run, "log tau" for example, where that lies beside the
    diagnostic file, as both do in CmdStanPy's `output_dir`. Where it does not, names are such as "unconstrained tau".

    Examples
    --------
    A model is whatever has the two methods, here of a standard normal distribution:

    >>> import jax
    >>> import numpy as np
    >>> import jaxpsd
    >>> class Model:
    ...     def param_unconstrain(self, theta):
    ...         return theta
    ...     def log_density_gradient(self, theta):
    ...         return -0.5 * theta @ theta, -theta
    >>> x = np.random.default_rng(0).normal(size=(4, 250, 2))
    >>> scores, samples = jaxpsd.from_stan(Model(), x, progress=False)
    >>> bool(jaxpsd.adaptive_test(jax.random.key(0), scores, samples).reject)
    False
    """
    if _has(source, "param_unconstrain", "log_density_gradient"):
        return _from_bridgestan(source, draws, unconstrained=unconstrained, progress=progress)
    if _has(source, "unconstrain_pars", "grad_log_prob"):
        return _from_pystan(source, draws, progress=progress)
    if _has(source, "constrained_param_names", "num_chains"):
        raise TypeError(f"{_TAKES}: gradients are the model's. Pass both, `from_stan(model, fit)`; got a fit alone.")
    if draws is not None:
        raise TypeError(f"{_TAKES}; got {type(source).__name__} with draws.")
    return read_diagnostics(_find_files(source), warmup=warmup)


def _has(value: Any, *names: str) -> bool:
    return all(hasattr(value, name) for name in names)


def _find_files(source: Any) -> list[Path]:
    """Files by name, or by patterns in the order of their names."""
    given = [source] if isinstance(source, str | PathLike) else source
    if not isinstance(given, list | tuple) or not all(isinstance(each, str | PathLike) for each in given):
        raise TypeError(f"{_TAKES}; got {type(source).__name__}.")
    found = []
    for each in given:
        paths = [each] if Path(each).is_file() else sorted(glob(str(each)))
        if not paths:
            raise FileNotFoundError(f"There is no file {each}.")
        found += map(Path, paths)
    if not found:
        raise ValueError("There are no files: `from_stan` was given an empty list.")
    return found


# --- models -----------------------------------------------------------------------------------------------


def _from_bridgestan(model: Any, draws: Any, *, unconstrained: bool, progress: bool) -> tuple[Draws, Draws]:
    if draws is None:
        raise TypeError(f"{_TAKES}; got a model alone. Pass its draws, `from_stan(model, draws)`.")
    values, num_chains, origin = _read_draws(model, draws)
    known = [str(name) for name in model.param_names()] if _has(model, "param_names") else None
    if not unconstrained and known is not None and values.shape[1] != len(known):
        raise ValueError(
            f"`draws` must have {len(known)} columns, as `param_names()` has names; got {values.shape[1]}. Draws that "
            "are unconstrained already are passed with unconstrained=True."
        )

    def ask(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x = theta if unconstrained else np.asarray(model.param_unconstrain(theta))
        return x, np.asarray(model.log_density_gradient(x)[1])

    x, scores = _ask_all(ask, values, progress=progress)
    names, prefixes = [f"x.{k + 1}" for k in range(x.shape[1])], {}
    if _has(model, "param_unc_names"):
        names = [str(name) for name in model.param_unc_names()]
        some = evenly_spaced(len(x), LOOKED_AT)
        constrained = None if unconstrained else values[some]
        if unconstrained and _has(model, "param_constrain"):
            constrained = np.stack([np.asarray(model.param_constrain(row)) for row in x[some]])
        by_name = {} if known is None or constrained is None else dict(zip(known, constrained.T, strict=True))
        prefixes = find_prefixes(names, x[some], by_name)
    return tuple(draws_of_columns(rows, names, num_chains, origin, prefixes) for rows in (scores, x))  # pyright: ignore


def _read_draws(model: Any, draws: Any) -> tuple[np.ndarray, int, Origin]:
    """Draws as rows in the order of the model's parameters, how many chains they are of, and where they came from."""
    if hasattr(draws, "shape"):
        array = np.asarray(draws, dtype=float)
        if array.ndim not in (2, 3) or not array.size:
            raise ValueError(f"`draws` must be (draws, dim) or (chains, draws, dim); got shape {array.shape}.")
        num_chains = array.shape[0] if array.ndim == 3 else 1
        return np.ascontiguousarray(array.reshape(-1, array.shape[-1])), num_chains, Origin(library="Stan")
    posterior = draws if "chain" in getattr(draws, "dims", ()) else get_group(draws, "posterior")
    origin = Origin(library="Stan") if posterior is draws else origin_of(draws, library="Stan")
    columns = []
    variables = list(dict.fromkeys(str(name).partition(".")[0] for name in model.param_names()))
    for name in variables:
        if name not in posterior.data_vars:
            raise ValueError(
                f"There are no draws of {name!r}, which the model has; there are {list(posterior)!s:.200}."
            )
        values = chains_first(posterior[name])
        # Stan counts the first index first.
        backwards = (0, 1, *reversed(range(2, values.ndim)))
        columns.append(values.transpose(backwards).reshape(-1, prod(values.shape[2:])))
    return np.concatenate(columns, axis=1), int(posterior.sizes["chain"]), origin


def _from_pystan(model: Any, fit: Any, *, progress: bool) -> tuple[Draws, Draws]:
    if not _has(fit, "num_chains", "num_samples"):
        raise TypeError(f"{_TAKES}; got a model with {type(fit).__name__}. Pass what `model.sample(…)` returned.")
    num_warmup = ceil(fit.num_warmup / fit.num_thin) if fit.save_warmup else 0
    dims = dict(zip(fit.param_names, fit.dims, strict=True))

    def by_chain(name: str) -> np.ndarray:
        """Draws of a parameter as rows, chain by chain; PyStan puts chains side by side."""
        values = np.asarray(fit[name])
        shape = dims.get(name, [])
        values = values.reshape(*shape, -1, fit.num_chains)[..., num_warmup:, :]
        return np.moveaxis(values, (-1, -2), (0, 1)).reshape(-1, *shape)

    constrained = {name: by_chain(name) for name in fit.param_names}

    def ask(index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x = model.unconstrain_pars({name: values[index].tolist() for name, values in constrained.items()})
        return np.asarray(x), np.asarray(model.grad_log_prob(x))

    x, scores = _ask_all(ask, np.arange(len(next(iter(constrained.values())))), progress=progress)
    flat = {
        ".".join(map(str, (name, *(k + 1 for k in place)))): values[:, *place]
        for name, values in constrained.items()
        for place in _stan_order(dims[name])
    }
    # Parameters come before what is computed from them. Where transforms change their number, as that of a simplex
    # does, it is not known which unconstrained ones belong to which.
    if len(model.constrain_pars(x[0].tolist(), include_tparams=False, include_gqs=False)) == x.shape[1]:
        names = list(flat)[: x.shape[1]]
        prefixes = find_prefixes(names, x, flat)
    else:
        names, prefixes = [f"x.{k + 1}" for k in range(x.shape[1])], {}
    origin = Origin.of_transitions(Kind.MCMC, "Stan", by_chain("divergent__"), by_chain("accept_stat__"))
    return tuple(draws_of_columns(rows, names, fit.num_chains, origin, prefixes) for rows in (scores, x))  # pyright: ignore


def _stan_order(shape: Sequence[int]) -> Iterable[tuple[int, ...]]:
    """Places of the entries of an array, the first index first."""
    return (place[::-1] for place in np.ndindex(*reversed(shape)))


def _ask_all(ask: Callable[..., Any], rows: np.ndarray, *, progress: bool) -> tuple[np.ndarray, np.ndarray]:
    """What the model says of each draw, one after the other."""
    # Here, because `import jaxpsd` needs no progress bars.
    from tqdm import tqdm

    said = [ask(row) for row in tqdm(rows, desc="scores", disable=not progress, leave=False)]
    x, scores = (np.stack(each) for each in zip(*said, strict=True))
    return x, scores
