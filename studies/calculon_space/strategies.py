"""The strategies that Calculon's search enumerates, and how many points they are in each tool's terms.

The search is that of Calculon (Isaev et al., SC 2023, doi 10.1145/3581784.3607102), as its source has it at
github.com/calculon-ai/calculon: the loops of `calculon/llm/optimal_execution.py` (commit 1886c88) and
`calculon/llm/all_executions.py` (260ebe4), which call `get_all_tensor_parallelisms` and the functions below
it in `calculon/llm/llm.py` (0384d1e).
"""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from diffperf.workload.whole_numbers import divisors

NETWORKS = 2  # NVLink and InfiniBand: systems/a100_80g.json of calculon-ai/calculon (commit 4f81f02)


@dataclasses.dataclass(frozen=True)
class Search:
    """What Calculon's search is asked: devices, the largest batch, and the dimensions that restrict degrees.

    The defaults are those of Figure 5 of the paper: `createAllExecutionsTask` is called with 4,096 devices
    and batches of at most 2,340 in `fig5/__init__.py` of github.com/calculon-ai/sc23 (commit 3911e10); the
    model is `examples/models/gpt3-175B.json` (commit 01e8ac0).
    """

    devices: int = 4096
    largest_batch: int = 2340
    blocks: int = 96
    hidden: int = 12288
    heads: int = 96
    sequence: int = 2048


class Layout(NamedTuple):
    """The numbers of a strategy, under diffperf's names of its fields."""

    tp: int
    pp: int
    dp: int
    global_batch: int
    virtual_stages: int
    micro_batch: int


def layouts(search: Search) -> list[Layout]:
    """All layouts of a search, from the factorizations of its devices.

    The batch is the largest multiple of dp up to the limit, and dp where that is above the limit
    (`get_batch_size` of `optimal_execution.py`).
    """
    return [
        Layout(tp, pp, dp, batch, chunks, micro_batch)
        for tp, pp, dp in _degrees(search)
        for batch in [max(search.largest_batch // dp, 1) * dp]
        for chunks in (divisors(search.blocks // pp) if pp > 1 else [1])
        for micro_batch in divisors(batch // dp)
        if micro_batch * search.sequence % tp == 0
    ]


def _degrees(search: Search) -> Iterator[tuple[int, int, int]]:
    """The ways to divide the devices into tp · pp · dp that Calculon looks at.

    Its pipelines divide the smaller of the devices left and the blocks; this leaves out no divisor of both.
    """
    for tp in divisors(search.devices):
        if search.hidden % tp or search.heads % tp:
            continue
        left = search.devices // tp
        for pp in divisors(min(left, search.blocks)):
            if left % pp == 0 and search.blocks % pp == 0:
                yield tp, pp, left // pp


def calculon_executions(chosen: list[Layout], activations_fused: tuple[bool, ...] = (True, False)) -> int:
    """How many executions Calculon's search has for these layouts, on a system with host memory.

    The loops over options of `all_executions.py`: a group of one device has no network, overlap or sharding.
    """
    total = 0
    for layout in chosen:
        groups = sum(degree > 1 for degree in (layout.tp, layout.pp, layout.dp))
        tensor_overlaps = ("none", "ring", "pipe") if layout.tp > 1 else ("none",)
        on_or_off = (True, False) if layout.dp > 1 else (False,)
        same_for_all = NETWORKS**groups * len(tensor_overlaps) * len(activations_fused)
        same_for_all *= len(on_or_off) ** 2  # optimizer_sharding, data_par_overlap
        for recompute in ("full", "attn_only", "none"):
            # Full recomputation gathers again and keeps nothing to offload beside its checkpoints.
            choice = 1 if recompute == "full" else 2
            communication = 2 + choice  # ar, p2p_rs_ag; rs_ag, with seq_par_ag_redo or without
            offloads = 2 * 2 * choice  # weight_offload, optimizer_offload; activations_offload
            total += same_for_all * communication * offloads
    return total


def mapped_points(chosen: list[Layout], offloads: tuple[int, ...], orders: int) -> int:
    """How many points these layouts are in diffperf's terms: what the constraints of the sweep must leave.

    `offloads` are the shares of activations and of the optimizer that may be in host memory, `orders` how
    many orders of the groups are looked at.
    """
    total = 0
    for layout in chosen:
        replicated = 2 if layout.dp > 1 else 1  # with and without: ZeRO 1, overlap of gradients
        split = 2 if layout.tp > 1 else 1  # with and without overlap of tensor parallelism
        # Data parallelism may be outermost, inside pipeline stages or inside tensor-parallel groups.
        different = 1 + (layout.dp > 1) * ((layout.pp > 1) + (layout.tp > 1))
        options = replicated**2 * split * min(different, orders)
        for recompute in ("none", "selective", "full"):
            kept_inputs = 2 if recompute == "full" else 3  # sequence parallelism off; on, gathered or split
            offloaded_activations = 1 if recompute == "full" else len(offloads)
            total += options * kept_inputs * offloaded_activations * len(offloads)
    return total
