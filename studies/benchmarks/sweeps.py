"""How fast a sweep without a table is, beside the estimator alone: the cost of keeping what a space asks for.

The estimator alone evaluates every point of a chunk, chunk after chunk, and throws the outputs away. The
sweep keeps the best, the best of the values of two inputs, the Pareto front of three outputs and a histogram.
Both use all cores, in turns; of the turns, the fastest count, since other processes disturb them. Ratios are
those of rates, and of seconds of the cores.

    python studies/benchmarks/sweeps.py [--quick] [--points N] [--out DIR]
"""

import itertools
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))
import jax
import numpy as np
from reporting import Table, parse_options, publish

from diffperf.explore.sweep.device_sizes import usual_chunk, usual_threads
from diffperf.explore.sweep.part_program import PartProgram
from diffperf.explore.sweep.part_threads import parts_by_threads
from diffperf.explore.sweep.point_estimates import compile_chunk_program
from diffperf.explore.sweep.space import Space
from diffperf.explore.sweep.space_file import load_space
from diffperf.explore.sweep.sweep_plan import SweepPlan

KEPT = {"pareto": ["time", "cost.run", "memory.peak"], "best_by": ["strategy.tp", "strategy.micro_batch"]}
GPT3 = {"model": "gpt3-175b", "system": "dgx-a100", "rank_by": "cost.run", **KEPT}
STRATEGIES = [
    {"path": "system.n_devices", "values": [256, 384, 512, 768, 1024, 1536]},
    {"path": "strategy.tp", "powers_of_two": {"from": 1, "to": 8}},
    {"path": "strategy.pp", "divisors_of": "model.depth"},
    {"path": "strategy.virtual_stages", "values": [1, 2, 3, 4]},
    {"path": "strategy.micro_batch", "powers_of_two": {"from": 1, "to": 8}},
    {"path": "strategy.recompute", "values": ["none", "selective", "full"]},
    {"path": "strategy.attention", "values": ["standard", "flash"]},
    {"path": "strategy.zero", "values": ["0", "1"]},
]
TURNS = 3
MOST_CHUNKS = 48  # that the estimator alone evaluates in a turn
SPAN = {"from": "1 TB/s", "to": "4 TB/s"}


def spaces(points: int) -> dict[str, Space]:
    """Returns spaces of about so many points: one of strategies, of which few are possible and fit memory,
    and one of hardware, of which all do, so that nothing can be left out.
    """
    strategies = load_space(
        GPT3
        | {
            "strategy": {"global_batch": 1536},
            "axis": [*STRATEGIES, {"path": "hbm.bandwidth", "linear": SPAN | {"points": points // 55_296}}],
        }
    )
    side = round((points / 8) ** 0.5)
    hardware = load_space(
        GPT3
        | {
            "set": {"system.n_devices": 256, "hbm.capacity": "800 GB"},
            "strategy": {"pp": 8, "global_batch": 1536, "attention": "flash", "recompute": "selective"},
            "axis": [
                {"path": "strategy.tp", "values": [4, 8]},
                {"path": "strategy.micro_batch", "powers_of_two": {"from": 1, "to": 8}},
                {"path": "hbm.bandwidth", "linear": SPAN | {"points": side}},
                {"path": "nvlink.bandwidth", "log": {"from": "100 GB/s", "to": "900 GB/s", "points": side}},
            ],
        }
    )
    return {"strategies": strategies, "hardware, all fitting": hardware}


def evaluate_alone(space: Space, program: Any) -> int:
    """Evaluates chunks of a space on all cores, with the outputs of a sweep's table. Returns their points."""
    chunk = usual_chunk()
    starts = list(itertools.islice(range(0, space.size - chunk, chunk), MOST_CHUNKS))

    def evaluate(start: int) -> None:
        jax.block_until_ready(program(np.asarray(space.digits(start), np.int32)))

    with ThreadPoolExecutor(usual_threads()) as pool:
        list(pool.map(evaluate, starts))
    return len(starts) * chunk


def sweep_points(space: Space, program: PartProgram) -> int:
    """Sweeps a space with a compiled program, and returns its points."""
    rules, starts = program.plan.rules, list(program.plan.parts.starts)
    total = rules.empty()
    for _, part in parts_by_threads(program, starts, usual_threads(), lambda points: None):
        total = rules.merge([total, part.summary])
    return space.size


def rates(work: Callable[[], int]) -> tuple[float, float]:
    """Returns points a second, and points per second of the cores."""
    began, cores = time.perf_counter(), time.process_time()
    points = work()
    return points / (time.perf_counter() - began), points / (time.process_time() - cores)


def memory() -> float:
    """Returns the most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def measured(name: str, space: Space, turns: int) -> dict[str, Any]:
    """Returns the row of a space: both rates, their ratios, and by how much the sweep's memory grew."""
    alone = compile_chunk_program(space, usual_chunk(), np.float32, space.regions[0])
    summaries = PartProgram.compile(SweepPlan.of(space, np.float32, usual_chunk(), False))
    engine, sweep, before = [], [], 0.0
    for _ in range(turns):
        engine.append(rates(lambda: evaluate_alone(space, alone)))
        sweep.append(rates(lambda: sweep_points(space, summaries)))
        before = before or memory()
    (engine_rate, engine_cores), (sweep_rate, sweep_cores) = (
        [max(column) for column in zip(*found, strict=True)] for found in (engine, sweep)
    )
    return {
        "space": name,
        "points": space.size,
        "engine": engine_rate,
        "sweep": sweep_rate,
        "ratio": sweep_rate / engine_rate,
        "ratio_cores": sweep_cores / engine_cores,
        "memory": (memory() - before) / 1e6,
    }


def main() -> None:
    """Runs the study."""
    more = {"type": int, "help": "points of each space, about [20,000,000]"}
    options = parse_options(__doc__, "sweeps", "fewer points, once", float64=True, points=more)
    points, turns = (2_000_000, 1) if options.quick else (options.points or 20_000_000, TURNS)
    rows = [measured(name, space, turns) for name, space in spaces(points).items()]
    columns = {
        "space": ("", ""),
        "points": ("points", ",.0f"),
        "engine": ("estimator alone, per second", ",.0f"),
        "sweep": ("sweep, per second", ",.0f"),
        "ratio": ("ratio", ".2f"),
        "ratio_cores": ("ratio per core-second", ".2f"),
        "memory": ("memory after turn 1, MB", ",.0f"),
    }
    title = f"float32, {jax.devices()[0].device_kind}, all cores"
    publish(options.out, [Table("sweeps", title, columns, rows)])


if __name__ == "__main__":
    main()
