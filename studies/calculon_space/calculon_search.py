"""Calculon's search beside ours: its options, how many strategies it has, and how long it takes."""

import dataclasses
from collections.abc import Mapping, Sequence

from strategies import Layout, calculon_executions, mapped_points
from strategy_space import SEARCH, Row

from diffperf.explore.sweep.device_sizes import usual_threads
from diffperf.explore.sweep.sweep_result import SweepResult

# Configurations per core-second of Calculon's search of this case with its logging silenced, measured by this
# project on a machine of the kind that the sweep was first run on; and those of them that are feasible.
CALCULON_RATE, CALCULON_FEASIBLE_RATE = 2495, 680
# "up to 45 minutes but often much less", on all cores of a machine: the paper's searches in general, by
# executor.py of github.com/calculon-ai/sc23 (commit 14ab4bf).
PUBLISHED_SECONDS = 45 * 60

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
