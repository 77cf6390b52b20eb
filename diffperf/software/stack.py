"""What the software brings: launches, fusions, overlap, what it keeps in memory beside what a model needs."""

from typing import Any

import equinox as eqx

from diffperf.quantity import Label, Scalar, Weights, label, quantity, switch
from diffperf.software.collective_library import CollectiveLibrary


class Stack(eqx.Module):
    """What the software brings."""

    name: Label = label("identifier, such as megatron-lm")
    kernel_overhead: Scalar = quantity(
        "s", "time a kernel adds that no other kernel hides: launch, ramp, drain", bounds=(1e-8, 1e-3)
    )
    collective_overhead: Scalar = quantity(
        "s", "time a collective adds whatever its size: launch, ramp", bounds=(1e-8, 1e-2)
    )
    collectives: CollectiveLibrary
    memory_reserve: Scalar = quantity(
        "byte", "device memory taken by runtime and libraries", bounds=(1e3, 1e11)
    )
    dispatch: Scalar = quantity(
        "s",
        "time the host takes to launch the kernels of one pass of a layer in training: devices wait where they are quicker",
        bounds=(1e-9, 1e-1),
        default=1e-9,
    )
    rank_stall: Scalar = quantity(
        "s",
        "what every rank of a tensor-parallel group adds to `dispatch` where the pipeline leaves the innermost tier of the network",
        bounds=(1e-9, 1e-1),
        default=1e-9,
    )
    routing_wait: Scalar = quantity(
        "s",
        "time a pass forward of a layer with experts waits for the host to read how many tokens each gets, and to size its kernels",
        bounds=(1e-9, 1e-1),
        default=1e-9,
    )
    step_overhead: Scalar = quantity(
        "s",
        "time of a training step outside its passes and its optimizer: data, clipping, logging",
        bounds=(1e-9, 1e2),
        default=1e-9,
    )
    network_efficiency: Scalar = quantity(
        "",
        "share of the efficiency of tiers beyond the innermost that training runs of this stack reach: congestion, jitter",
        bounds=(0.01, 2.0),
        default=1.0,
    )
    balanced_head: Weights = switch(
        "measured runs that used it gave the last pipeline stage fewer layers for its vocabulary projection",
        default=False,
    )
    kept_activations: Scalar = quantity(
        "",
        "activations that a layer keeps for its backward pass, over those of Megatron-LM's fusions",
        bounds=(0.1, 10),
        default=1.0,
    )
    gathered_inputs: Scalar = quantity(
        "",
        "share of the inputs of column-parallel layers that are kept as gathered, not split along the sequence",
        bounds=(0, 1),
        default=0.0,
    )
    gradient_buffers: Scalar = quantity(
        "byte", "per parameter, gradients kept beside the accumulated ones", bounds=(0, 16), default=0.0
    )
    optimizer_buffers: Scalar = quantity(
        "byte",
        "per parameter, what its owner keeps beside the optimizer state in training",
        bounds=(0, 16),
        default=0.0,
    )
    training_buffers: Scalar = quantity(
        "byte", "buckets and workspaces of a training run", bounds=(0, 1e11), default=0.0
    )
    fragmentation: Scalar = quantity(
        "",
        "memory that the allocator takes from the device, over that of the tensors in it",
        bounds=(1, 3),
        default=1.0,
    )
    overlap_contention: Scalar = quantity(
        "",
        "share of hidden data-parallel communication's time by which the computation over it slows: they share the device",
        bounds=(1e-6, 1),
        default=1e-6,
    )
    elementwise_traffic: Scalar = quantity(
        "",
        "bytes that a layer's element-wise kernels move, over those of Megatron-LM's fusions",
        bounds=(0.1, 20),
        default=1.0,
    )
    elementwise_kernels: Scalar = quantity(
        "",
        "how many element-wise kernels a layer takes, over those of Megatron-LM's fusions",
        bounds=(0.1, 20),
        default=1.0,
    )
    separate_conversion: Scalar = quantity(
        "",
        "share of the conversions of activations to narrow formats that are kernels of their own, not part of the kernel before",
        bounds=(0, 1),
        default=1.0,
    )
    matrix_efficiency: Scalar = quantity(
        "",
        "share of the accelerator's efficiency in large GEMMs that this stack's kernels reach, in runs long enough to heat up",
        bounds=(0.05, 2.0),
        default=1.0,
    )
    attention_efficiency: Scalar = quantity(
        "",
        "share of the accelerator's fused-attention efficiency that its kernels reach",
        bounds=(0.05, 2),
        default=1.0,
    )
    grouped_heads: Scalar = quantity(
        "",
        "query heads sharing a KV head that its generation kernels process together at most; beyond, each is on its own",
        bounds=(1, 1e4),
        default=128,
        integer=True,
    )
    tensor_overlap: Weights = switch(
        "measured runs that used it hid tensor-parallel communication under the products around it",
        default=False,
    )
    expert_overlap: Weights = switch(
        "measured runs that used it hid the dispatch of tokens to experts under other work", default=False
    )
    dispatch_once: Scalar = quantity(
        "",
        "share of dispatches to experts that send a token once to a domain of the network, however many experts it visits there",
        bounds=(0, 1),
        default=0.0,
    )
    gradient_overlap: Weights = switch(
        "measured runs that used it reduced gradients under the backward pass", default=True
    )

    @classmethod
    def complete(cls, table: dict[str, Any]) -> dict[str, Any]:
        """The fields that a stack's file gives.

        The key `measured` is no field: it says what tables of measurements call the software, for
        `diffperf.explore.measured.names`.
        """
        return {key: value for key, value in table.items() if key != "measured"}
