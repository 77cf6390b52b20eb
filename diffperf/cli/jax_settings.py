"""JAX's settings for the command line: double precision, and compiled programs kept between runs."""

import jax

from diffperf.compiler import compile_quickly, user_folder


def configure_jax() -> None:
    """Sets double precision, and has programs compiled once per machine rather than once per command."""
    compile_quickly()
    jax.config.update("jax_enable_x64", True)
    folder = user_folder()
    jax.config.update("jax_compilation_cache_dir", folder and str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
