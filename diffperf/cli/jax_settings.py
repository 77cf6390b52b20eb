"""JAX's settings for the command line: double precision, and compiled programs kept between runs."""

import contextlib
import os
from pathlib import Path

import jax

from diffperf.compiler import compile_quickly


def compile_cache() -> Path | None:
    """The folder of compiled programs: $DIFFPERF_CACHE ("off" for none), by default in the user's cache."""
    chosen = os.environ.get("DIFFPERF_CACHE")
    if chosen is not None:
        return None if chosen in ("", "off") else Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "diffperf"


def configure_jax() -> None:
    """Sets double precision, and has programs compiled once per machine rather than once per command."""
    compile_quickly()
    jax.config.update("jax_enable_x64", True)
    folder = compile_cache()
    if folder is not None:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        folder = folder if os.access(folder, os.W_OK) else None
    jax.config.update("jax_compilation_cache_dir", folder and str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
