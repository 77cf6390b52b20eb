"""The parts of a sweep by threads of this process, which share its compiled programs."""

import concurrent.futures
import itertools
import threading
from collections.abc import Callable, Generator

from diffperf.explore.sweep.part_program import Part, PartProgram


def parts_by_threads(
    program: PartProgram, missing: list[int], threads: int, progress: Callable[[int], None]
) -> Generator[tuple[int, Part], None, None]:
    """Results of parts, with the numbers of their first points, as threads finish them."""
    stopped = threading.Event()

    def done(points: int) -> None:
        if stopped.is_set():
            raise concurrent.futures.CancelledError
        progress(points)

    def finish(start: int) -> tuple[int, Part]:
        return start, program.finish(start, done)

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        waiting: set[concurrent.futures.Future[tuple[int, Part]]] = set()
        try:
            starts = iter(missing)
            waiting |= {pool.submit(finish, start) for start in itertools.islice(starts, threads + 1)}
            while waiting:
                ended, waiting = concurrent.futures.wait(
                    waiting, return_when=concurrent.futures.FIRST_COMPLETED
                )
                # What is finished is kept before an exception ends the sweep.
                for future in sorted(ended, key=lambda future: future.exception() is not None):
                    yield future.result()
                    waiting |= {pool.submit(finish, start) for start in itertools.islice(starts, 1)}
        finally:
            stopped.set()  # threads end with their chunk
            for future in waiting:
                future.cancel()
