"""Compiled programs for a page that must not wait: the first run of each happens in the background."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import jax

from diffperf.errors import ConfigError

Result = TypeVar("Result")

_FORGOTTEN = 5.0  # s after which a compilation that nobody asks for any more does not start


class Compiling(Exception):
    """The requested result has no compiled program yet; ask again later."""


class Programs:
    """Runs functions at once where their program is compiled; where it is not, compiles it in the
    background, one at a time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._compiler = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compiler")
        self._runs: dict[Any, Future] = {}  # first runs by program
        self._asked: dict[Any, float] = {}  # when somebody last asked for each

    def run(self, name: str, like: Any, function: Callable[[], Result]) -> Result:
        """The result of `function`, whose program is known by its name and by the structure of `like`.

        **Raises:** `Compiling` while the function runs for the first time in the background; whatever the
        function raises.
        """
        key = (name, jax.tree.structure(like), *map(jax.typeof, jax.tree.leaves(like)))
        with self._lock:
            self._asked[key] = time.monotonic()
            first = self._runs.get(key)
            if first is None or first.cancelled():
                self._cancel_forgotten()
                self._runs[key] = self._compiler.submit(function)
                raise Compiling(name)
        if not first.done():
            raise Compiling(name)
        problem = first.exception()
        if problem is not None and not isinstance(problem, ConfigError):
            with self._lock:  # the next question tries again
                self._runs.pop(key, None)
            raise problem
        return function()

    def close(self) -> None:
        """Starts no further compilation."""
        self._compiler.shutdown(wait=False, cancel_futures=True)

    def _cancel_forgotten(self) -> None:
        """Cancels compilations that have not started, and that nobody has asked for lately."""
        now = time.monotonic()
        for key, first in self._runs.items():
            if now - self._asked[key] > _FORGOTTEN:
                first.cancel()
