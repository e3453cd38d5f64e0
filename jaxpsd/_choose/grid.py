"""A sampler run over a grid of settings."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxpsd._core.checks import check_key
from jaxpsd._core.types import PyTree


def sample_grid(
    rng_key: PRNGKeyArray,
    sampler: Callable[[PRNGKeyArray, Any], PyTree],
    grid: Iterable[Any],
    *,
    done: dict[Any, PyTree] | None = None,
    progress: bool = True,
) -> dict[Any, PyTree]:
    """Run a sampler at each step size, or each value of any other setting, for `rank` to choose from.

    Parameters
    ----------
    rng_key
        A key of `jax.random`, split for the runs.
    sampler
        `sampler(rng_key, step_size)` returns draws.
    grid
        The step sizes.
    done
        Draws of an earlier call that was interrupted, by step size. New draws are added as they come, so that another
        call with the same dictionary goes on where the last one stopped, and gives the same draws.
    progress
        Whether to show a progress bar.

    Returns
    -------
    dict
        The draws for each step size.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> def logdensity(x):
    ...     return -0.5 * jnp.sum(x**2)
    >>> def unadjusted_langevin(rng_key, step_size):
    ...     def step(x, key):
    ...         noise = jnp.sqrt(step_size) * jax.random.normal(key, x.shape)
    ...         x = x + 0.5 * step_size * jax.grad(logdensity)(x) + noise
    ...         return x, x
    ...     return jax.lax.scan(step, jnp.zeros(2), jax.random.split(rng_key, 5000))[1]
    >>> key = jax.random.key(0)
    >>> draws = jaxpsd.sample_grid(key, jax.jit(unadjusted_langevin), [1.0, 0.2, 0.0001], progress=False)
    >>> jaxpsd.rank(key, jaxpsd.PSD(2), logdensity, draws).best
    0.2
    """
    check_key(rng_key)
    if not callable(sampler):
        raise TypeError(f"`sampler` must be a function of a key and a step size; got {type(sampler).__name__}.")
    if done is not None and not isinstance(done, dict):
        raise TypeError(f"`done` must be a dictionary of draws by step size; got {type(done).__name__}.")
    if not isinstance(grid, Iterable):
        raise TypeError(f"`grid` must be the values to run the sampler at; got {type(grid).__name__}.")
    # The elements of a JAX array cannot be looked up in a dictionary, as numbers can.
    values = [np.asarray(value)[()] if isinstance(value, jax.Array) else value for value in grid]
    try:
        # NaN, not a number, differs from itself.
        differ = len(set(values)) == len(values) and all(value == value for value in values)
    except (TypeError, ValueError):
        differ = False
    if not values or not differ:
        raise ValueError(f"`grid` must be one or more values that differ from each other; got {values!r:.100}.")
    from tqdm import tqdm  # Not needed by most, and slow to import.

    draws = {} if done is None else done
    bar = tqdm(values, disable=not progress, desc="sampling")
    for value, key in zip(bar, jax.random.split(rng_key, len(values)), strict=False):
        if value in draws:
            continue
        bar.set_postfix_str(f"{value!s:.100}")
        try:
            # Work that JAX has only promised would be counted as done.
            draws[value] = jax.block_until_ready(sampler(key, value))
        except Exception as error:
            error.add_note(f"jaxpsd: the sampler was run at {value!r:.100}.")
            raise
    return {value: draws[value] for value in values}
