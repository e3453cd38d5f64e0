"""Settings and fixtures for all tests."""

import gc
import itertools
import os
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np
import pytest

DATA = Path(__file__).parent / "data"


# Most of the time goes into compiling programs that run once: they need not be fast. The scheduled workflow sets the
# variable to 0, and runs what users run.
fast_compilation = os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1") == "1"
jax.config.update("jax_disable_most_optimizations", fast_compilation)
if fast_compilation and jaxlib.version.__version_info__ <= (0, 11, 0):
    # Makes compiling without optimisation another three times as fast. Later versions do not know it, and give up.
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")

# What one process has compiled, others need not: workers, notebooks, scripts, and the next run.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "programs"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)

# For the tests of draws that are spread over devices; all others use the first.
jax.config.update("jax_num_cpu_devices", 8)


def pytest_collection_finish():
    """What has been imported stays, and need not be looked through for garbage again and again; the rest but seldom."""
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)


# Compiled programs are kept as long as the process lives, and Linux maps only so many pieces of code, 65,530 for one
# process. What is forgotten has to be traced and compiled again, so that nothing is before it has to be.
_MOST_PIECES = 45_000
_TESTS_BETWEEN_LOOKS = 20
_PIECES = Path("/proc/self/maps")
_tests_run = itertools.count(1)


@pytest.fixture(autouse=True)
def _not_too_many_programs():
    yield
    is_time_to_look = next(_tests_run) % _TESTS_BETWEEN_LOOKS == 0 and _PIECES.exists()
    if is_time_to_look and _PIECES.read_bytes().count(b"\n") > _MOST_PIECES:
        jax.clear_caches()


@pytest.fixture
def optimised():
    """Compile with optimisation, as users do: for what runs longer than that takes."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", fast_compilation)


@pytest.fixture(autouse=True)
def _no_broadcasting_by_accident(request):
    """Broadcasting is an error, but where other libraries take part."""
    others = request.module.__name__.removeprefix("tests.") in (
        "test_numpyro",
        "test_blackjax",
        "test_pymc",
        "test_doors",
    )
    with jax.numpy_rank_promotion("allow" if others else "raise"):
        yield


@pytest.fixture
def x64():
    """Run in double precision."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=sorted(path.stem for path in DATA.glob("*.npz")))
def reference(request):
    """Samples, scores and values from the published NumPy implementation, one target each."""
    with np.load(DATA / f"{request.param}.npz") as file:
        return {"name": request.param, **file}


@pytest.fixture
def normal_draws():
    """Draws from a standard normal, with its scores."""
    x = jax.random.normal(jax.random.key(0), (200, 3))
    return x, -x


@pytest.fixture(scope="session")
def chain():
    """AR(1) chains (chains, draws, dim) with standard normal margins, by correlation, shape and seed."""

    # One program for each shape, whatever the seed.
    @partial(jax.jit, static_argnums=(1, 2))
    def from_key(key, rho, shape):
        noise = jax.random.normal(key, (shape[1], shape[0], shape[2]))
        step = lambda x, e: (rho * x + jnp.sqrt(1 - rho**2) * e,) * 2  # noqa: E731
        _, draws = jax.lax.scan(step, noise[0], noise)
        return jnp.swapaxes(draws, 0, 1)

    def autoregressive(rho, shape, seed=0):
        return from_key(jax.random.key(seed), rho, shape)

    return autoregressive


class Compilations:
    """Counts the programs that JAX compiles."""

    def __init__(self):
        self.count = 0

    def __call__(self, event, duration, **_):
        self.count += event == "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def compilations():
    counter = Compilations()
    jax.monitoring.register_event_duration_secs_listener(counter)
    yield counter
    # Older versions of JAX go on telling it, which does no harm.
    getattr(jax.monitoring, "unregister_event_duration_listener", lambda _: None)(counter)
