"""The space of all strategies of Calculon's search in diffperf's terms, and the sweep over it."""

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from strategies import Layout, Search

import diffperf as dp
from diffperf.explore.sweep.device_sizes import usual_chunk, usual_threads
from diffperf.explore.sweep.part_program import PartProgram
from diffperf.explore.sweep.part_threads import parts_by_threads
from diffperf.explore.sweep.space_file import load_space
from diffperf.explore.sweep.sweep_plan import SweepPlan
from diffperf.explore.sweep.sweep_result import SweepResult

MODEL, SYSTEM = "gpt3-175b", "dgx-a100"
SEARCH = Search()
FIXED = {"attention": "standard", "precision": "fp16", "gradient_precision": "fp16"}
GATHERED = "system.stack.gathered_inputs"
# The orders that differ without context parallelism: data parallelism outside pipeline stages, inside them,
# and inside tensor-parallel groups.
ORDERS = ("tp-cp-dp-pp", "tp-cp-pp-dp", "dp-tp-cp-pp")
# Options with a single meaning where a group has one device or full recomputation keeps nothing, as in
# Calculon's loops.
WHERE = (
    "strategy.tp > 1 or strategy.overlap_tensor == 'off'",
    "strategy.dp > 1 or strategy.zero == '0'",
    "strategy.dp > 1 or strategy.overlap_gradients == 'off'",
    f"strategy.recompute != 'full' or {GATHERED} == 0",
    "strategy.recompute != 'full' or strategy.offload_activations == 0",
    "(strategy.tp > 1 and strategy.dp > 1) or strategy.order != 'dp-tp-cp-pp'",
    "(strategy.pp > 1 and strategy.dp > 1) or strategy.order != 'tp-cp-pp-dp'",
)
# Options that Calculon does not have, in a second sweep; its own are the first of each.
FURTHER = {
    "attention": ("standard", "flash"),
    "zero": ("0", "1", "2", "3"),
    "schedule": ("1f1b", "zero_bubble", "dualpipe"),
}
ONE_MEANING = (
    "strategy.schedule == '1f1b' or (strategy.pp > 1 and strategy.virtual_stages == 1)",
    "strategy.dp > 1 or strategy.zero == '0'",
)

Row = dict[str, Any]
Columns = Mapping[str, np.ndarray]  # of all points of a sweep, by the path of the input or output


def space_of(
    chosen: Sequence[Layout], offloads: Sequence[int], orders: Sequence[str], further: bool = False
) -> Row:
    """The space of some layouts with all options that Calculon has too, or also with those it lacks."""
    fields = {name: [getattr(layout, name) for layout in chosen] for name in Layout._fields}
    options = {
        "recompute": ["none", "selective", "full"],
        "zero": ["0", "1"],
        "overlap_tensor": ["off", "on"],
    }
    options |= {"offload_activations": offloads, "offload_optimizer": offloads, "order": orders}
    if further:
        options |= FURTHER
    axes = [
        {"zip": [_axis(f"strategy.{name}", values) for name, values in fields.items()]},
        {"zip": [_axis("strategy.sequence_parallel", ["off", "on", "on"]), _axis(GATHERED, [0, 0, 1])]},
        {"zip": [_axis(f"strategy.overlap_{what}", ["off", "on"]) for what in ("gradients", "weights")]},
        *(_axis(f"strategy.{name}", values) for name, values in options.items()),
    ]
    fixed = {name: value for name, value in FIXED.items() if name not in options}
    return {
        "model": MODEL,
        "system": SYSTEM,
        "rank_by": "tokens_per_second",
        "best_by": [f"strategy.{name}" for name in FURTHER] if further else [],
        "where": [*WHERE, *(ONE_MEANING if further else ())],
        "set": {"system.n_devices": SEARCH.devices},
        "strategy": fixed,
        "axis": axes,
    }


def _axis(path: str, values: Sequence[Any]) -> Row:
    """An axis over values that are written one by one."""
    return {"path": path, "values": list(values)}


def sweep_all(space: Row) -> tuple[SweepResult, Columns]:
    """Estimates a space in double precision. Returns its outcome and the columns of all points that fit."""
    with tempfile.TemporaryDirectory(prefix="calculon-space-") as folder:
        file = Path(folder) / "points.parquet"
        result = dp.sweep(space, out=file, double=True).result
        table = pq.read_table(file)
    columns = {name: table[name].to_numpy() for name in table.column_names}
    fitting = columns["feasible"] & columns["fits"]
    if "allowed" in columns:
        fitting &= columns["allowed"]
    assert int(fitting.sum()) == result.fitting
    return result, {name: values[fitting] for name, values in columns.items()}


def core_seconds(space: Row) -> float:
    """The time of the cores in which the points of a space are estimated, without compiling and without a
    table, in seconds. Other processes on the machine disturb it less than time on the clock."""
    plan = SweepPlan.of(load_space(space), np.float64, usual_chunk(), False)
    program, began = PartProgram.compile(plan), time.process_time()
    for _ in parts_by_threads(program, list(plan.parts.starts), usual_threads(), lambda points: None):
        pass
    return time.process_time() - began
