"""Settings of the interpreter while JAX traces a function."""

import contextlib
import gc
from collections.abc import Iterator


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
