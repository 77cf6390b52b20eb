"""The parts of a sweep as tasks of Dask workers: processes of this machine, or those of a cluster.

A worker compiles the program of a sweep once and keeps it. Parts whose worker dies are given to another one.
They come back to this process, which writes and merges them: workers need no file system in common.
"""

import contextlib
import dataclasses
import itertools
import pickle
import threading
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import jax

from diffperf.compiler import compile_quickly
from diffperf.errors import ConfigError
from diffperf.explore.sweep.constraint import parse_constraint
from diffperf.explore.sweep.designed_points import made
from diffperf.explore.sweep.part_program import Part, PartProgram
from diffperf.explore.sweep.sweep_plan import SweepPlan, releases

if TYPE_CHECKING:
    from distributed import Client

_PATIENCE = 5  # seconds that a scheduler has to answer, and another one to have a worker
_RETRIES = 3  # of a part that fails on a worker, or whose worker dies
_AHEAD = 2  # parts that wait at every thread of a worker, so that none is ever idle


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Processes or scheduler that estimate the parts of a sweep.

    - `workers`: processes to start on this machine; 0 where there is a scheduler.
    - `scheduler`: address of a running Dask scheduler, such as "tcp://10.0.0.1:8786"; empty for none.
    - `asked_by`: what errors call the source of these.
    """

    workers: int
    scheduler: str
    asked_by: str

    @contextlib.contextmanager
    def client(self) -> Iterator["Client"]:
        """A connection to workers that compute as this process does.

        **Raises:** `ConfigError` where there are none, or they have other releases.
        """
        distributed = self._distributed()
        with contextlib.ExitStack() as stack:
            address = self.scheduler or stack.enter_context(_local_cluster(self.workers))
            try:
                client = stack.enter_context(distributed.Client(address, timeout=_PATIENCE))
                client.wait_for_workers(1 if self.scheduler else self.workers, timeout=6 * _PATIENCE)
            except (OSError, ValueError, RuntimeError, ImportError):
                remedy = "start one (`dask scheduler`, `dask worker ADDRESS`), or correct the address"
                expected = "the address of a Dask scheduler that has workers"
                raise ConfigError(self.asked_by, "scheduler", f'"{address}"', expected, remedy) from None
            self._check_workers(client)
            yield client

    def _distributed(self) -> Any:
        """The package that runs clusters."""
        try:
            import distributed
        except ModuleNotFoundError:
            key = "scheduler" if self.scheduler else "workers"
            remedy = "pip install 'diffperf[cluster]'"
            raise ConfigError(self.asked_by, key, "no package distributed", "Dask", remedy) from None
        return distributed

    def _check_workers(self, client: "Client") -> None:
        """Refuses workers whose results would have other bytes. **Raises:** `ConfigError`."""
        ours, remedy = releases(), "install the same releases on all machines"
        try:
            answers: Any = client.run(worker_releases)
        except ModuleNotFoundError as problem:
            expected = "diffperf on every worker"
            raise ConfigError(self.asked_by, "scheduler", str(problem), expected, remedy) from None
        for address, theirs in answers.items():
            for name in ours:
                if theirs[name] != ours[name]:
                    found = f'{name} "{theirs[name]}" on {address}'
                    raise ConfigError(self.asked_by, "scheduler", found, f'"{ours[name]}" as here', remedy)


def parts_by_cluster(
    client: "Client", plan: SweepPlan, missing: list[int], progress: Callable[[int], None]
) -> Generator[tuple[int, Part], None, None]:
    """Results of parts, with the numbers of their first points, as workers finish them."""
    from distributed import as_completed

    # A task of its own: each worker gets the plan once, and again should the worker that held it die.
    shared = client.submit(bytes, pack(plan), retries=_RETRIES)
    starts, numbers = iter(missing), dict[Any, int]()

    def submit(start: int) -> Any:
        future = client.submit(finish_part, shared, plan.digest, start, pure=False, retries=_RETRIES)
        numbers[future.key] = start
        return future

    threads: Any = client.nthreads()
    submitted = max(1, sum(threads.values())) * _AHEAD
    waiting = as_completed([submit(start) for start in itertools.islice(starts, submitted)])
    try:
        for future in waiting:
            start = numbers.pop(future.key)
            yield start, _result(future)
            progress(plan.parts.size(start))
            future.release()
            for start in itertools.islice(starts, 1):
                waiting.add(submit(start))
    finally:
        client.cancel([*waiting.futures, shared])


def _result(future: Any) -> Part:
    """The result of a task. **Raises:** `ConfigError` where workers or the scheduler are lost."""
    from distributed import KilledWorker
    from distributed.client import FutureCancelledError

    remedy = "start the workers again, and the same sweep: it goes on from its finished parts"
    try:
        return future.result()
    except KilledWorker:
        found, expected = "a part whose workers died one after the other", "workers with memory enough"
    except FutureCancelledError:
        found, expected = "no scheduler any more", "one that runs as long as the sweep"
    raise ConfigError("workers", "", found, expected, remedy)


def pack(plan: SweepPlan) -> bytes:
    """A plan to send to workers. Constraints go by their texts: what they compute is made of closures."""
    space = dataclasses.replace(plan.space, where=())
    plain = dataclasses.replace(plan, rules=dataclasses.replace(plan.rules, space=space))
    return pickle.dumps((plain, [constraint.text for constraint in plan.space.where]))


def unpack(content: bytes) -> SweepPlan:
    """The plan that was packed, with all its digits whether JAX's x64 mode is on or not."""
    with jax.enable_x64(True):
        plan, texts = pickle.loads(content)
    inputs = made(plan.space.inputs)
    where = tuple(parse_constraint(text, inputs, "space", "where") for text in texts)
    space = dataclasses.replace(plan.space, where=where)
    return dataclasses.replace(plan, rules=dataclasses.replace(plan.rules, space=space))


# What runs on workers.

_programs: dict[str, PartProgram] = {}
_compiling = threading.Lock()


def worker_releases() -> dict[str, str]:
    """The releases that a worker computes with; it compiles as this process does from now on."""
    compile_quickly()
    return releases()


def finish_part(plan: bytes, digest: str, start: int) -> Part:
    """Result of a part of a packed plan, by the program of this process, which the first part of a sweep
    compiles.
    """
    with _compiling, jax.enable_x64(True):
        if digest not in _programs:
            _programs.clear()
            _programs[digest] = PartProgram.compile(unpack(plan))
        program = _programs[digest]
    return program.finish(start)


@contextlib.contextmanager
def _local_cluster(workers: int) -> Iterator[str]:
    """The address of a scheduler with so many workers, all processes of this machine.

    They are started by commands, and not as copies of this process, which would run the caller's script
    again.
    """
    from distributed.deploy.subprocess import SubprocessCluster

    options: Any = {"threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
    cluster: Any = SubprocessCluster(n_workers=workers, **options)
    with cluster:
        yield cluster.scheduler_address
