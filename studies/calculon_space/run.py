"""GPT-3 175B on 4,096 A100: the whole strategy space of Calculon's search, estimated by a sweep.

Calculon (Isaev et al., SC 2023) enumerates all strategies of this case for its Figure 5. Every option of its
search that has a counterpart here is an axis; the others are in the table of options. Both estimates are of
one model, but not of one machine: Calculon leaves out embeddings and vocabulary projection and has its own
efficiencies. Like Calculon's, the sweep has fp16 gradients and attention that writes its scores.

    python studies/calculon_space/run.py [--quick] [--out DIR]
"""

import dataclasses
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import diffperf as dp
from diffperf.explore.sweep.device_sizes import usual_chunk, usual_threads
from diffperf.explore.sweep.part_program import PartProgram
from diffperf.explore.sweep.part_threads import parts_by_threads
from diffperf.explore.sweep.space_file import load_space
from diffperf.explore.sweep.sweep_plan import SweepPlan
from diffperf.explore.sweep.sweep_result import SweepResult
from diffperf.report.plots import BLUE, GREY, INK, ORANGE, RED

sys.path.append(str(Path(__file__).parents[1]))
from reporting import Table, figure_style, parse_options, publish, read_rows
from strategies import Layout, Search, calculon_executions, layouts, mapped_points

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
# Configurations per core-second of Calculon's search of this case with its logging silenced, measured by this
# project on a machine of the kind that the sweep was first run on; and those of them that are feasible.
CALCULON_RATE, CALCULON_FEASIBLE_RATE = 2495, 680
# "up to 45 minutes but often much less", on all cores of a machine: the paper's searches in general, by
# executor.py of github.com/calculon-ai/sc23 (commit 14ab4bf).
PUBLISHED_SECONDS = 45 * 60
GIB = 2**30

Row = dict[str, Any]
Columns = Mapping[str, np.ndarray]  # of all points of a sweep, by the path of the input or output


# --- spaces


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


# --- the best strategies


def sequences_per_second(tokens_per_second: Any) -> Any:
    """Sequences a second, which Calculon calls the sample rate."""
    return tokens_per_second / SEARCH.sequence


def best_index(columns: Columns, mask: np.ndarray | None = None) -> int:
    """The index of the strategy with the most tokens a second, of those that a mask leaves."""
    rates = columns["tokens_per_second"]
    return int(np.argmax(rates if mask is None else np.where(mask, rates, -np.inf)))


def strategy_row(columns: Columns, index: int) -> Row:
    """The cells of a strategy: its fields, and what is estimated of it."""
    field = {path.removeprefix("strategy."): values[index] for path, values in columns.items()}
    overlaps = [name for name in ("tensor", "gradients") if field[f"overlap_{name}"] == "on"]
    offloads = [name for name in ("activations", "optimizer") if field[f"offload_{name}"] > 0]
    sequence_parallel = "off" if field["sequence_parallel"] == "off" else "on, kept split"
    if field[GATHERED] > 0:
        sequence_parallel = "on, kept gathered"
    return {
        **{name: float(field[name]) for name in Layout._fields},
        "recompute": str(field["recompute"]),
        "zero": str(field["zero"]),
        "sequence_parallel": sequence_parallel,
        "overlaps": ", ".join(overlaps) or "none",
        "offloads": ", ".join(offloads) or "none",
        "order": str(field["order"]).replace("-cp", ""),
        "time": float(field["time"]),
        "rate": sequences_per_second(float(field["tokens_per_second"])),
        "mfu": float(field["mfu"]),
        "peak_gib": float(field["memory.peak"]) / GIB,
    }


STRATEGY_COLUMNS = {
    "tp": ("tp", ".0f"),
    "pp": ("pp", ".0f"),
    "dp": ("dp", ".0f"),
    "global_batch": ("batch", ".0f"),
    "virtual_stages": ("chunks", ".0f"),
    "micro_batch": ("micro", ".0f"),
    "recompute": ("recompute", ""),
    "zero": ("zero", ""),
    "sequence_parallel": ("sequence parallel", ""),
    "overlaps": ("overlaps", ""),
    "offloads": ("offloads", ""),
    "order": ("order", ""),
    "time": ("step s", ".3f"),
    "rate": ("seq/s", ".1f"),
    "mfu": ("MFU", ".1%"),
    "peak_gib": ("GiB", ".1f"),
}


def ten_best(columns: Columns) -> list[Row]:
    """The ten best strategies of different degrees, chunks, micro-batches and recomputation."""
    chosen: dict[tuple, Row] = {}
    for index in np.argsort(-columns["tokens_per_second"], kind="stable"):
        row = strategy_row(columns, int(index))
        chosen.setdefault(tuple(row[name] for name in (*Layout._fields, "recompute")), row)
        if len(chosen) == 10:
            break
    return list(chosen.values())


def restrictions(columns: Columns) -> dict[str, np.ndarray | None]:
    """Parts of the space by name: which of its strategies they have."""
    field = {path.removeprefix("strategy."): values for path, values in columns.items()}
    in_node = field["tp"] <= 8
    no_tensor_overlap = field["overlap_tensor"] == "off"
    no_overlap = no_tensor_overlap & (field["overlap_gradients"] == "off")
    all_on_device = (field["offload_activations"] == 0) & (field["offload_optimizer"] == 0)
    unsharded = field["zero"] == "0"
    return {
        "whole space": None,
        "tp within a node (8)": in_node,
        "no overlap of tp between nodes": no_tensor_overlap | in_node,
        "tp not overlapped": no_tensor_overlap,
        "no overlap": no_overlap,
        "no host memory": all_on_device,
        "optimizer not sharded": unsharded,
        "no sequence parallelism": field["sequence_parallel"] == "off",
        "no recomputation": field["recompute"] == "none",
        "full recomputation": field["recompute"] == "full",
        "no interleaving": field["virtual_stages"] == 1,
        "micro-batch of 1": field["micro_batch"] == 1,
        "no pipeline": field["pp"] == 1,
        "Megatron-LM of 2022": in_node & no_overlap & all_on_device & unsharded,
    }


def restricted_rows(columns: Columns) -> list[Row]:
    """The best strategy of every restriction that leaves any."""
    best = float(np.max(columns["tokens_per_second"]))
    rows = []
    for name, mask in restrictions(columns).items():
        count = len(columns["time"]) if mask is None else int(mask.sum())
        if count:
            row = strategy_row(columns, best_index(columns, mask))
            of_best = row["rate"] / sequences_per_second(best)
            rows.append({"restriction": name, "count": count, "of_best": of_best, **row})
    return rows


# --- beside Calculon


def published_rows() -> list[Row]:
    """GPT-3 175B on 64 A100: as measured, as Calculon estimates it, and as we do."""
    rows = []
    for case in read_rows(Path(__file__).parent / "published.csv"):
        fields: Row = {name: float(case[name]) for name in ("tp", "pp", "virtual_stages", "micro_batch")}
        fields |= {"global_batch": float(case["global_batch"]), "recompute": case["recompute"]}
        fields |= {"sequence_parallel": case["sequence_parallel"] == "on", "overlap_gradients": False} | FIXED
        report = dp.estimate(
            MODEL,
            SYSTEM,
            devices=float(case["devices"]),
            **fields,
        ).report
        measured, calculon = float(case["measured_s"]), float(case["calculon_s"])
        scaled = float(case["global_batch"]) * SEARCH.devices / float(case["devices"])  # sequences
        rows.append(
            {
                "case": case["case"],
                "measured": measured,
                "calculon": calculon,
                "ours": float(report.time),
                "calculon_error": calculon / measured - 1,
                "our_error": float(report.time) / measured - 1,
                "measured_rate": scaled / measured,
                "source": case["source"],
            }
        )
    return rows


PUBLISHED_COLUMNS = {
    "case": ("64 A100, tp 8, pp 8, 3 chunks", ""),
    "measured": ("measured s", ".2f"),
    "calculon": ("Calculon s", ".2f"),
    "ours": ("ours s", ".2f"),
    "calculon_error": ("Calculon's error", "+.1%"),
    "our_error": ("our error", "+.1%"),
    "measured_rate": ("measured seq/s × 4,096/64", ".0f"),
}

OPTION_COLUMNS = {
    "calculon": ("Calculon", ""),
    "values": ("its values", ""),
    "ours": ("diffperf", ""),
    "our_values": ("our values", ""),
}
NONE = "no counterpart"
OPTIONS = (
    ("tensor_par", "divisors of devices, heads, hidden", "tp", "the same"),
    ("pipeline_par", "divisors of devices and blocks", "pp", "the same"),
    ("data_par", "the rest of the devices", "dp", "the same"),
    ("batch_size", "largest multiple of data_par to 2,340", "global_batch", "the same"),
    ("microbatch_size", "divisors of a replica's batch", "micro_batch", "the same"),
    (
        "pipeline_interleaving",
        "divisors of a stage's blocks",
        "virtual_stages",
        "the same; above 1, micro-batches must be a multiple of pp",
    ),
    ("activation_recompute", "none, attn_only, full", "recompute", "none, selective, full"),
    ("optimizer_sharding", "off, on", "zero", "0, 1"),
    (
        "tensor_par_comm_type",
        "ar, p2p_rs_ag; rs_ag",
        "sequence_parallel",
        "off; on (ranks share transfers between stages always)",
    ),
    ("seq_par_ag_redo", "off, on", "stack.gathered_inputs", "1, 0"),
    ("tensor_par_overlap", "none; ring, pipe", "overlap_tensor", "off; on"),
    ("data_par_overlap", "off, on", "overlap_gradients, overlap_weights", "off, on"),
    ("activations_offload", "off, on", "offload_activations", "0, 1"),
    ("optimizer_offload", "off, on", "offload_optimizer", "0, 1 (updated by the host)"),
    ("weight_offload", "off, on", NONE, "weights stay on the device"),
    ("fused_activation", "off, on", NONE, "the software stack's"),
    (
        "{tensor,pipeline,data}_par_net",
        "NVLink or InfiniBand, each",
        "order",
        "3 orders of groups, which say what a node holds",
    ),
    (NONE, "", "attention, zero, schedule", "flash; 2, 3; zero_bubble, dualpipe: in the second sweep"),
    (NONE, "", "cp, context_parallel, schedule gpipe", "not varied"),
    (NONE, "", "recompute_share, recompute_*, shares of offload_*", "not varied: all or nothing"),
    (NONE, "", "zero_ranks, overlap_transfers", "not varied"),
    (NONE, "", "layers of stages: balanced_head, *_stage_layers, *_in_split", "not varied"),
)


@dataclasses.dataclass(frozen=True)
class Counts:
    """How many strategies the space has in each tool's terms.

    - `layouts`: degrees with batch, chunks and micro-batches.
    - `calculon`: executions of Calculon's search, as for Figure 5; `fused` with fused activations alone;
      `listed` without batches above the limit, which `all_executions.py` leaves out.
    - `ours`: points in our terms.
    """

    layouts: int
    calculon: int
    fused: int
    listed: int
    ours: int


def counts_of(chosen: list[Layout], offloads: tuple[int, ...], orders: Sequence[str]) -> Counts:
    """Counts the strategies of layouts by loops of Python's, without the sweep."""
    within = [layout for layout in chosen if layout.global_batch <= SEARCH.largest_batch]
    return Counts(
        layouts=len(chosen),
        calculon=calculon_executions(chosen),
        fused=calculon_executions(chosen, activations_fused=(True,)),
        listed=calculon_executions(within),
        ours=mapped_points(chosen, offloads, len(orders)),
    )


def speed_rows(counts: Counts, sweeps: Mapping[str, SweepResult], cores: float | None) -> list[Row]:
    """How many strategies each search has, and how long it takes; `cores` are the seconds of the cores for
    the first sweep, where they were measured."""
    rows = [
        {
            "search": name,
            "points": result.points,
            "feasible": result.feasible,
            "fitting": result.fitting,
            "seconds": result.seconds,
            "compiling": result.compile_seconds,
        }
        for name, result in sweeps.items()
    ]
    if cores is not None:
        rows[0] |= {"rate": rows[0]["points"] / cores, "fitting_rate": rows[0]["fitting"] / cores}
    return [
        *rows,
        {
            "search": f"Calculon, at its measured rate on {usual_threads()} cores",
            "points": counts.calculon,
            "seconds": counts.calculon / CALCULON_RATE / usual_threads(),
            "rate": CALCULON_RATE,
            "fitting_rate": CALCULON_FEASIBLE_RATE,
        },
        {"search": "Calculon, published: at most, often much less", "seconds": PUBLISHED_SECONDS},
    ]


SPEED_COLUMNS = {
    "search": (f"search, {usual_threads()} threads", ""),
    "points": ("strategies", ",.0f"),
    "feasible": ("obey rules", ",.0f"),
    "fitting": ("fit memory", ",.0f"),
    "seconds": ("seconds", ",.1f"),
    "compiling": ("compiling s", ".1f"),
    "rate": ("a core-second", ",.0f"),
    "fitting_rate": ("fitting a core-second", ",.0f"),
}


def further_rows(result: SweepResult) -> list[Row]:
    """The best strategy for every value of the options that Calculon lacks."""
    best = max(result.best["tokens_per_second"].to_pylist())
    rows = []
    for path, table in result.best_by.items():
        columns = {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}
        for index in range(table.num_rows):
            row = strategy_row(columns, index)
            others = [f"{name} {columns[f'strategy.{name}'][index]}" for name in FURTHER]
            row |= {"restriction": f"{path.removeprefix('strategy.')} {columns[path][index]}"}
            row |= {"further": ", ".join(others), "of_best": row["rate"] / sequences_per_second(best)}
            rows.append(row)
    return rows


# --- the check


def estimated_alone(columns: Columns, index: int) -> tuple[str, float]:
    """The command that estimates a strategy of the sweep alone, and the step time that it prints."""
    fields = {
        path.removeprefix("strategy."): values[index]
        for path, values in columns.items()
        if path.startswith("strategy.")
    } | FIXED
    gathered = float(columns[GATHERED][index])
    switches = {name: value == "on" for name, value in fields.items() if value in ("on", "off")}
    numbers = {name: float(value) for name, value in fields.items() if not isinstance(value, str)}
    texts = {name: value for name, value in fields.items() if name not in (*switches, *numbers)}
    given: Row = numbers | switches | texts
    report = dp.estimate(
        MODEL,
        SYSTEM,
        devices=SEARCH.devices,
        set={"stack.gathered_inputs": gathered},
        **given,
    ).report
    flags = [f"--{name} {value:g}" for name, value in numbers.items()]
    flags += [f"--{'' if on else 'no-'}{name}" for name, on in switches.items()]
    flags += [f"--{name} {value}" for name, value in texts.items()]
    flags.append(f"--set stack.gathered_inputs={gathered:g}")
    words = " ".join(flags).replace("stack.gathered_inputs", "stack.gathered%inputs").replace("_", "-")
    command = f"diffperf estimate {MODEL} {SYSTEM} --devices {SEARCH.devices} {words.replace('%', '_')}"
    return command, float(report.time)


# --- figure


def draw_distribution(axes: Axes, columns: Columns, rows: Sequence[Row], published: Sequence[Row]) -> None:
    """Draws how the rates of all strategies that fit are distributed, with some of the best."""
    rates = sequences_per_second(columns["tokens_per_second"])
    axes.hist(rates, bins=40, color=BLUE)
    axes.set_yscale("log")
    axes.set_xlabel("sequences a second")
    axes.set_ylabel("strategies that fit memory")
    axes.set_title("All strategies that fit memory")
    by_name = {row["restriction"]: row["rate"] for row in rows}
    lines = {
        "best": (by_name["whole space"], RED, "-"),
        "best with tp within a node": (by_name["tp within a node (8)"], ORANGE, "-"),
        "best without any overlap": (by_name["no overlap"], INK, ":"),
        "measured on 64 A100, times 64": (published[-1]["measured_rate"], INK, "--"),
    }
    for label, (rate, colour, style) in lines.items():
        axes.axvline(rate, color=colour, linestyle=style, linewidth=1.6, label=f"{label}: {rate:.0f}")
    axes.legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncol=2, frameon=False)


def draw_degrees(figure: Figure, axes: Axes, columns: Columns) -> None:
    """Draws the best rate of every pair of tensor- and pipeline-parallel degrees."""
    tensor, pipeline = (columns[f"strategy.{name}"] for name in ("tp", "pp"))
    degrees = [np.unique(values) for values in (tensor, pipeline)]
    grid = np.full([len(values) for values in degrees], np.nan)
    for row, tp in enumerate(degrees[0]):
        for column, pp in enumerate(degrees[1]):
            mask = (tensor == tp) & (pipeline == pp)
            if mask.any():
                rate = columns["tokens_per_second"][best_index(columns, mask)]
                grid[row, column] = sequences_per_second(rate)
    image = axes.imshow(grid, origin="lower", cmap="Blues", aspect="auto", vmin=0)
    middle = 0.6 * np.nanmax(grid)
    for (row, column), rate in np.ndenumerate(grid):
        text, colour = ("–", GREY) if math.isnan(rate) else (f"{rate:.0f}", "white" if rate > middle else INK)
        axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=9)
    measured = (8, 8)  # tp and pp of the runs of published.csv
    row, column = (list(values).index(degree) for values, degree in zip(degrees, measured, strict=True))
    axes.plot(column, row, "s", markersize=34, fillstyle="none", color=ORANGE)
    axes.set_yticks(range(len(degrees[0])), [f"{degree:g}" for degree in degrees[0]])
    axes.set_xticks(range(len(degrees[1])), [f"{degree:g}" for degree in degrees[1]])
    axes.set_ylabel("tensor parallelism")
    axes.set_xlabel("pipeline stages (orange: degrees of the measured run)")
    axes.set_title("The best of each pair of degrees, sequences a second")
    figure.colorbar(image, ax=axes)


def draw(columns: Columns, rows: Sequence[Row], published: Sequence[Row]) -> Figure:
    """Draws the distribution of all strategies, and the best by degrees."""
    with figure_style():
        figure = Figure(figsize=(14, 5), layout="constrained")
        left, right = figure.subplots(1, 2)
        draw_distribution(left, columns, rows, published)
        draw_degrees(figure, right, columns)
    return figure


# --- finding


def describe(
    counts: Counts,
    speeds: Sequence[Row],
    best: Sequence[Row],
    restricted: Sequence[Row],
    published: Sequence[Row],
    further: Sequence[Row],
) -> str:
    """Writes what the tables show."""
    part = "they are" if further else "a part of them is"
    ours, calculon = speeds[0], next(row for row in speeds if row["search"].startswith("Calculon"))
    first = best[0]
    by_name: Callable[[str], Row] = {row["restriction"]: row for row in restricted}.__getitem__
    in_node, outside = by_name("tp within a node (8)"), by_name("no overlap of tp between nodes")
    plain = by_name("no overlap")
    rate = published[-1]["measured_rate"]
    errors = {name: max(abs(row[name]) for row in published) for name in ("calculon_error", "our_error")}
    measured = ""
    if "rate" in ours:
        times = ours["rate"] / CALCULON_RATE
        measured = f", and {ours['rate']:,.0f} a core-second without it, {times:.0f} times Calculon's rate"
        measured += (
            f" (of strategies that fit memory {ours['fitting_rate']:,.0f} and {CALCULON_FEASIBLE_RATE})"
        )
    sentences = [
        f"Calculon's search of GPT-3 175B on {SEARCH.devices:,} A100 has {counts.layouts} layouts and"
        f" {counts.calculon:,} executions, by the loops of its source ({counts.fused:,} with fused"
        f" activations alone, {counts.listed:,} without batches above {SEARCH.largest_batch:,}). In our"
        f" terms {part} {ours['points']:,} points: several of its executions are one of ours. Of these,"
        f" {ours['feasible']:,} obey our rules and {ours['fitting']:,} fit memory.",
        f"All points take {ours['seconds']:.0f} s with a table of them all, after {ours['compiling']:.0f} s"
        f" of compiling{measured}. At {CALCULON_RATE:,} executions a core-second, measured on a machine of"
        f" the same kind, Calculon takes {calculon['seconds'] / 60:.0f} min on {usual_threads()} cores."
        f" Published is only that its searches take up to {PUBLISHED_SECONDS / 60:.0f} min on all cores of a"
        " machine, often much less; the paper's best rate and time are in no public text that we could read.",
        f"Our best trains {first['rate']:.0f} sequences a second ({first['mfu']:.1%} MFU):"
        f" tp {first['tp']:.0f}, pp {first['pp']:.0f}, dp {first['dp']:.0f}, micro-batches of"
        f" {first['micro_batch']:.0f}, recomputation {first['recompute']}, ZeRO {first['zero']}, overlap of"
        f" {first['overlaps']}, in host memory {first['offloads']}; a step of {first['time']:.2f} s and"
        f" {first['peak_gib']:.0f} GiB. With tensor parallelism within nodes the best is"
        f" {in_node['rate']:.0f} ({in_node['of_best'] - 1:+.0%}), without its overlap between nodes"
        f" {outside['rate']:.0f} ({outside['of_best'] - 1:+.0%}), without any overlap {plain['rate']:.0f}"
        f" ({plain['of_best'] - 1:+.0%}).",
        "For the two measured runs of this model on 64 A100 Calculon is within"
        f" {errors['calculon_error']:.1%} and we are within {errors['our_error']:.1%}; the faster one, were"
        f" it to scale, would train {rate:.0f} sequences a second on {SEARCH.devices:,}.",
    ]
    if further:
        top = max(further, key=lambda row: row["rate"])
        wide = speeds[1]
        sentences.append(
            f"With options that Calculon lacks ({wide['points']:,} points, {wide['seconds']:.0f} s) the best"
            f" is {top['rate']:.0f} sequences a second ({top['rate'] / first['rate'] - 1:+.1%}):"
            f" {top['further']}, tp {top['tp']:.0f}, pp {top['pp']:.0f}."
        )
    return " ".join(sentences)


def main() -> None:
    """Runs the study."""
    options = parse_options(
        __doc__, "calculon_space", "nothing in host memory, one order of groups, none of our further options"
    )
    offloads, orders = ((0,), ORDERS[:1]) if options.quick else ((0, 1), ORDERS)
    chosen = layouts(SEARCH)
    counts = counts_of(chosen, offloads, orders)
    space = space_of(chosen, offloads, orders)
    result, columns = sweep_all(space)
    assert result.points == counts.ours, (result.points, counts.ours)  # counted without the sweep
    sweeps = {"all counterparts": result}
    further: list[Row] = []
    if not options.quick:
        wider = dp.sweep(space_of(chosen, offloads, orders, further=True), double=True).result
        sweeps["and options Calculon lacks"] = wider
        further = further_rows(wider)
    cores = None if options.quick else core_seconds(space)
    command, alone = estimated_alone(columns, index := best_index(columns))
    assert math.isclose(alone, columns["time"][index], rel_tol=1e-9), (alone, columns["time"][index])
    best, restricted, published = ten_best(columns), restricted_rows(columns), published_rows()
    speeds = speed_rows(counts, sweeps, cores)
    option_rows = [dict(zip(OPTION_COLUMNS, row, strict=True)) for row in OPTIONS]
    leading = {"restriction": ("restriction", ""), "count": ("strategies", ",.0f")}
    compared = {"of_best": ("of the best", ".1%")}
    short = {
        name: STRATEGY_COLUMNS[name]
        for name in STRATEGY_COLUMNS
        if name not in ("order", "dp", "global_batch")
    }
    tables = [
        Table("options", "Options of Calculon's search and of diffperf", OPTION_COLUMNS, option_rows),
        Table("speed", "Searches of GPT-3 175B on 4,096 A100", SPEED_COLUMNS, speeds),
        Table(
            "best",
            "The ten best, of degrees, chunks, micro-batches and recomputation",
            STRATEGY_COLUMNS,
            best,
        ),
        Table("restrictions", "The best of parts of the space", leading | compared | short, restricted),
        Table(
            "further",
            "The best for every value of options that Calculon lacks",
            {"restriction": ("of all with", ""), "further": ("options", "")} | compared | short,
            further,
        ),
        Table("published", "Measured runs beside both estimates", PUBLISHED_COLUMNS, published),
    ]
    print(f"The best alone takes {alone:.4f} s, as in the sweep:\n{command}\n")
    finding = describe(counts, speeds, best, restricted, published, further)
    publish(options.out, tables, finding, {"figure": draw(columns, restricted, published)})


if __name__ == "__main__":
    main()
