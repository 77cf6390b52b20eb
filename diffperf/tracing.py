"""Whether and how JAX traces a function, and names that traced values carry."""

import contextlib
import gc
from collections.abc import Iterator

import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.core import Tracer
from jaxtyping import Array

# The name that programs give the slopes of `kept_slope`.
KEPT_SLOPE = "kept slope"


def kept_slope(slope: Array) -> Array:
    """The slope itself, under a name by which `diffperf.shared_values` knows it.

    A derivative that is written out multiplies a change by a slope. In a gradient the forward pass can
    compute the slope, and the backward pass needs nothing else: kept as it is, the slope takes the place of
    the several values that it is made of, which would have to last until then.
    """
    return checkpoint_name(slope, KEPT_SLOPE)


def is_staged() -> bool:
    """Whether JAX writes operations into a program, as within `jax.jit`, instead of running them at once."""
    return isinstance(jnp.asarray(0.0), Tracer)


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """A block in which Python does not search for cycles of unused objects.

    Tracing an estimate makes hundreds of thousands of objects, nearly all of which are needed until the
    program is compiled. Searching all of them for unused ones, many times, takes a quarter of the time.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
