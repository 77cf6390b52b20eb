"""How benchmarks ran the kernels that they timed."""

import dataclasses
import functools

from diffperf.errors import ConfigError
from diffperf.explore.measured.table import Row
from diffperf.load import config_root, display, read_toml

# Seconds of a run after which the device is throttled as far as it will be.
_SUSTAINED = 1e6


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """How a benchmark ran each kernel.

    - `runs`: how often on end, up to the middle of the timed runs, whose mean is reported; `sustained`:
      whether without a pause before.
    - `replay_start`: seconds from one replay of a recorded graph of kernels to the next, and `weights`: the
      most kernels in a graph, each with weights of its own.
    """

    source: str = ""
    runs: float = 10.0  # an estimate, for benchmarks of which nothing is known
    sustained: bool = False
    replay_start: float = 0.0
    weights: float = 1.0


@functools.cache
def benchmarks() -> tuple[Benchmark, ...]:
    """The shipped benchmarks. Raises `ConfigError` for a key that is unknown."""
    path = config_root() / "measurements" / "benchmarks.toml"
    try:
        return tuple(Benchmark(**table) for table in read_toml(path)["benchmark"])
    except TypeError as why:
        expected = ", ".join(field.name for field in dataclasses.fields(Benchmark))
        raise ConfigError(display(path), "benchmark", str(why), expected, "correct the key") from None


def benchmark_of(row: Row) -> Benchmark:
    """The benchmark that a row is from, or one of which nothing is known."""
    source = row["source"] or ""
    known = (benchmark for benchmark in benchmarks() if source.startswith(benchmark.source))
    return next(known, Benchmark())


def duration_and_runs(row: Row) -> tuple[float, float]:
    """For how many seconds, and how often the kernel of a row ran on end, of which one is 0."""
    if row["duration_s"]:
        return row["duration_s"], 0.0
    benchmark = benchmark_of(row)
    return (_SUSTAINED, 0.0) if benchmark.sustained else (0.0, benchmark.runs)
