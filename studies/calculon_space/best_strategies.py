"""The best strategies of a sweep, of parts of its space, and for every value of an option."""

from typing import Any

import numpy as np
from strategies import Layout
from strategy_space import FURTHER, GATHERED, SEARCH, Columns, Row

from diffperf.explore.sweep.sweep_result import SweepResult

GIB = 2**30


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
