"""NumPyro: from a fitted `MCMC` or `SVI` to a log-density and draws, both in unconstrained space.

Scores exist where parameters may take any real value, so draws of a positive, bounded, simplex or correlation parameter
are mapped to the whole real line, as NumPyro's own samplers do, and the log-density has the Jacobian of that map.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from jaxpsd._core.checks import check_key, check_positive_integer
from jaxpsd._core.dimensions import Dimensions
from jaxpsd._core.draws import Draws, join_draws, names_of, ravel
from jaxpsd._core.origins import Kind, Origin
from jaxpsd._core.types import LogDensityFn, PyTree

try:
    from numpyro import handlers
    from numpyro.distributions import biject_to, transforms
    from numpyro.infer import MCMC, SVI, Predictive
    from numpyro.infer.autoguide import AutoGuide, AutoLaplaceApproximation
    from numpyro.infer.util import log_density, potential_energy, unconstrain_fn
except ImportError as error:
    error.add_note("`from_numpyro` needs NumPyro: pip install 'jaxpsd[numpyro]'.")
    raise


def from_numpyro(mcmc: MCMC, *args: Any, **kwargs: Any) -> tuple[LogDensityFn, Draws]:
    """Turn a fitted `MCMC` into its log-density and draws, in unconstrained space.

    Parameters
    ----------
    mcmc
        After `mcmc.run(…)`.
    args, kwargs
        What the model was run with; by default what `mcmc.run` was given.

    Returns
    -------
    tuple
        The log-density of a dictionary of unconstrained parameters, and the draws, with their chains, names, axes
        named after plates, and how many transitions diverged. Plates have no labels: `samples.with_coords` adds them.

    Examples
    --------
    >>> import jax
    >>> import numpyro
    >>> import numpyro.distributions as dist
    >>> from numpyro.infer import MCMC, NUTS
    >>> import jaxpsd
    >>> def model():
    ...     numpyro.sample("mu", dist.Normal(0, 1))
    ...     numpyro.sample("tau", dist.LogNormal(0, 1))
    >>> mcmc = MCMC(NUTS(model), num_warmup=200, num_samples=500, progress_bar=False)
    >>> mcmc.run(jax.random.key(0))
    >>> logdensity, samples = jaxpsd.from_numpyro(mcmc)
    >>> samples.names
    ('mu', 'log tau')
    >>> bool(jaxpsd.diagnose(jax.random.key(1), logdensity, samples).reject)
    False
    """
    if not isinstance(mcmc, MCMC):
        raise TypeError(f"`mcmc` must be a numpyro.infer.MCMC; got {type(mcmc).__name__}.")
    model = getattr(mcmc.sampler, "model", None)
    if model is None:
        raise ValueError(
            "This sampler was given a potential and no model. Pass its negative and the draws themselves: "
            "`lambda z: -potential_fn(z)` and `mcmc.get_samples(group_by_chain=True)` with chains=True."
        )
    if not args and not kwargs:
        args, kwargs = getattr(mcmc, "_args", ()), getattr(mcmc, "_kwargs", {})
    try:
        constrained = mcmc.get_samples(group_by_chain=True)
    except Exception as error:
        error.add_note("jaxpsd: `from_numpyro` takes an MCMC that has been run.")
        raise
    num_chains = next(iter(constrained.values())).shape[0]
    origin = Origin.of_transitions(Kind.MCMC, "NumPyro", mcmc.get_extra_fields().get("diverging"))
    return _unconstrain(model, args, kwargs, join_draws(constrained), num_chains, origin)


@overload
def from_numpyro_svi(
    rng_key: PRNGKeyArray,
    svi: SVI,
    svi_state_or_params: Any,
    *args: Any,
    num_samples: int = 1000,
    return_log_q: Literal[False] = False,
    **kwargs: Any,
) -> tuple[LogDensityFn, Draws]: ...
@overload
def from_numpyro_svi(
    rng_key: PRNGKeyArray,
    svi: SVI,
    svi_state_or_params: Any,
    *args: Any,
    num_samples: int = 1000,
    return_log_q: Literal[True],
    **kwargs: Any,
) -> tuple[LogDensityFn, tuple[Draws, jax.Array]]: ...
def from_numpyro_svi(
    rng_key: PRNGKeyArray,
    svi: SVI,
    svi_state_or_params: Any,
    *args: Any,
    num_samples: int = 1000,
    return_log_q: bool = False,
    **kwargs: Any,
) -> tuple[LogDensityFn, Draws | tuple[Draws, jax.Array]]:
    """Turn a guide fitted by `SVI` into the log-density of the model, and draws from the guide.

    Parameters
    ----------
    rng_key
        A key of `jax.random`.
    svi
        The `SVI` that was run, with any guide.
    svi_state_or_params
        What `svi.run` returned, the state of `svi.update`, or a dictionary of parameters.
    args, kwargs
        Data and other arguments of the model.
    num_samples
        How many draws to take.
    return_log_q
        Whether to return a pair (draws, log q), as `compare_approximations` takes it, in the place of the draws: with
        the log-density of the guide at each of them, in unconstrained space too.

    Returns
    -------
    tuple
        The log-density of a dictionary of unconstrained parameters, and the draws, with their names, and axes named
        after plates.

    Examples
    --------
    A mean-field guide of two parameters with correlation 0.9 is too narrow by a factor of √(1 − 0.9²):

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import numpyro
    >>> import numpyro.distributions as dist
    >>> from numpyro.infer import SVI, Trace_ELBO
    >>> from numpyro.infer.autoguide import AutoNormal
    >>> import jaxpsd
    >>> def model():
    ...     numpyro.sample("beta", dist.MultivariateNormal(jnp.zeros(2), jnp.array([[1.0, 0.9], [0.9, 1.0]])))
    >>> svi = SVI(model, AutoNormal(model), numpyro.optim.Adam(0.01), Trace_ELBO())
    >>> fit = svi.run(jax.random.key(0), 2000, progress_bar=False)
    >>> logdensity, samples = jaxpsd.from_numpyro_svi(jax.random.key(1), svi, fit)
    >>> bool(jaxpsd.diagnose(jax.random.key(2), logdensity, samples).reject)
    True
    """
    check_key(rng_key)
    if not isinstance(svi, SVI):
        raise TypeError(f"`svi` must be a numpyro.infer.SVI; got {type(svi).__name__}.")
    count = check_positive_integer(num_samples, "num_samples")
    params = _get_params(svi, svi_state_or_params)
    guide, model = svi.guide, handlers.substitute(svi.model, data=params)
    is_laplace, log_q = isinstance(guide, AutoLaplaceApproximation), None
    if return_log_q and not is_laplace:
        drawn, log_q = _draw_with_density(rng_key, guide, params, args, kwargs, count)
    elif isinstance(guide, AutoGuide):
        drawn = guide.sample_posterior(rng_key, params, *args, sample_shape=(count,), **kwargs)
    else:
        drawn = Predictive(guide, params=params, num_samples=count)(rng_key, *args, **kwargs)
    origin = Origin(Kind.LAPLACE if is_laplace else Kind.VARIATIONAL, "NumPyro")
    logdensity, draws = _unconstrain(model, args, kwargs, drawn, 1, origin)
    if not return_log_q:
        return logdensity, draws
    if isinstance(guide, AutoLaplaceApproximation):
        # As a program it is its mode alone; the Gaussian is made of it afterwards, in unconstrained space.
        return logdensity, (draws, guide.get_posterior(params).log_prob(ravel(draws.positions)))
    assert log_q is not None
    return logdensity, (draws, log_q + _log_jacobians(logdensity, model, args, kwargs, drawn, draws))


def _draw_with_density(
    rng_key: PRNGKeyArray, guide: Any, params: dict[str, Any], args: tuple, kwargs: dict[str, Any], count: int
) -> tuple[dict[str, jax.Array], jax.Array]:
    """Draws of all sites of a guide, and its log-density at them, in the space of the sites."""

    def draw(key: PRNGKeyArray) -> tuple[dict[str, jax.Array], jax.Array]:
        log_q, trace = log_density(handlers.seed(guide, key), args, kwargs, params)
        sites = {name: site["value"] for name, site in trace.items() if site["type"] in ("sample", "deterministic")}
        return sites, jnp.asarray(log_q)

    return jax.jit(jax.vmap(draw))(jax.random.split(rng_key, count))


def _log_jacobians(
    logdensity: LogDensityFn,
    model: Callable[..., Any],
    args: tuple,
    kwargs: dict[str, Any],
    drawn: Mapping[str, jax.Array],
    draws: Draws,
) -> jax.Array:
    """By how much log-densities change on the way to unconstrained space: as the model's does."""
    seeded = handlers.seed(model, rng_seed=0)

    def change(position: PyTree, sites: PyTree) -> jax.Array:
        return jnp.asarray(logdensity(position)) - log_density(seeded, args, kwargs, sites)[0]

    return jax.jit(jax.vmap(change))(draws.positions, {name: drawn[name] for name in draws.positions})


def _get_params(svi: SVI, given: Any) -> dict[str, Any]:
    """Parameters of the guide, from whatever holds them."""
    if isinstance(given, Mapping):
        return dict(given)
    if hasattr(given, "params"):
        return given.params
    try:
        return svi.get_params(given)
    except Exception as error:
        raise TypeError(
            "`svi_state_or_params` must be what `svi.run` returned, a state of `svi`, or a dictionary of parameters; "
            f"got {type(given).__name__}."
        ) from error


def _unconstrain(
    model: Callable[..., Any],
    args: tuple,
    kwargs: dict[str, Any],
    drawn: Mapping[str, jax.Array],
    num_chains: int,
    origin: Origin,
) -> tuple[LogDensityFn, Draws]:
    """The log-density in unconstrained space, and the draws of the model's latent sites there."""
    sites = _find_sites(model, args, kwargs, {name: values[0] for name, values in drawn.items()})
    for name in sites:
        if name not in drawn:
            raise ValueError(f"There are no draws of {name!r}, which the model samples.")
    latent = {name: jnp.asarray(drawn[name]) for name in sites}
    seeded = handlers.seed(model, rng_seed=0)
    positions = jax.jit(jax.vmap(lambda draw: unconstrain_fn(seeded, args, kwargs, draw)))(latent)

    def logdensity(position: PyTree) -> jax.Array:
        return -jnp.asarray(potential_energy(seeded, args, kwargs, position))

    dimensions = Dimensions.of({name: _name_axes(site, positions[name].ndim - 1) for name, site in sites.items()}, {})
    labels = {name: _name_unconstrained(name, site["fn"].support) for name, site in sites.items()}
    names = names_of(positions, labels, dimensions)
    # Jitted, as a promise that neither model nor data will change.
    return jax.jit(logdensity), Draws(positions, num_chains, names, origin, dimensions)


def _find_sites(
    model: Callable[..., Any], args: tuple, kwargs: dict[str, Any], values: dict[str, jax.Array]
) -> dict[str, Any]:
    """Where the model samples its continuous parameters; what has no score is refused."""
    # Discrete sites that were summed out have no draws to stand for them, hence a seed.
    trace = handlers.trace(handlers.seed(handlers.substitute(model, data=values), rng_seed=0))
    sites = {}
    for name, site in trace.get_trace(*args, **kwargs).items():
        if site["type"] == "plate":
            size, subsample = site["args"]
            if subsample is not None and subsample < size:
                raise ValueError(
                    f"The plate {name!r} takes {subsample} of {size} observations, so that the density is random. Pass "
                    "a model of all data, or score the draws with `minibatch_score`."
                )
        if site["type"] != "sample" or site["is_observed"]:
            continue
        if site["fn"].support.is_discrete:
            raise ValueError(
                f"The site {name!r} is discrete and has no score. Sum it out of the model, so that the density of the "
                "continuous parameters remains."
            )
        sites[name] = site
    if not sites:
        raise ValueError("The model samples no parameters.")
    return sites


def _name_axes(site: Mapping[str, Any], count: int) -> list[str]:
    """Axes of a site after its plates, which count them from the last one of a batch; others as ArviZ names them."""
    plates = {len(site["fn"].batch_shape) + frame.dim: frame.name for frame in site["cond_indep_stack"]}
    # These two are the axes that all variables have.
    named = {axis: plate for axis, plate in plates.items() if plate not in ("chain", "draw")}
    return [named.get(axis, f"{site['name']}_dim_{axis}") for axis in range(count)]


def _name_unconstrained(name: str, support: Any) -> str:
    """What an unconstrained parameter is in terms of the constrained one."""
    transform = biject_to(support)
    while isinstance(transform, transforms.IndependentTransform):
        transform = transform.base_transform
    prefixes = {
        transforms.IdentityTransform: "",
        transforms.ExpTransform: "log ",
        transforms.SigmoidTransform: "logit ",
    }
    return next((prefix for kind, prefix in prefixes.items() if isinstance(transform, kind)), "unconstrained ") + name
