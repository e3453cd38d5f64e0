"""Programs that JAX has compiled, kept from one command to the next."""

import os
import sys
from pathlib import Path


def keep_programs() -> None:
    """Have JAX keep what it compiles in the user's cache directory, unless there is a place for it already."""
    import jax

    if jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    folder = _cache_directory() / "jaxpsd"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        # A home that cannot be written to.
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # Many programs that take little each.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _cache_directory() -> Path:
    """Where the system wants users to keep what can be made again."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
