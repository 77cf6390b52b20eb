"""Fused attention kernels of an accelerator: the rates that they reach and their fixed times."""

import dataclasses
from collections.abc import Collection
from typing import Any

import jax

from diffperf.quantity import Declared, Scalar, quantity


class AttentionFormat(Declared):
    """The figures of fused attention kernels that depend on the format of the KV cache."""

    efficiency: Scalar = quantity(
        "",
        "fraction of the peak matrix rate that fused attention kernels reach, softmax aside",
        bounds=(0.05, 1.0),
        calibratable=True,
    )
    tile_latency: Scalar = quantity(
        "s",
        "time of a compute unit on a tile of queries beside matrix products: first loads, last stores",
        bounds=(1e-9, 1e-4),
        default=3e-6,
        calibratable=True,
    )
    group_latency: Scalar = quantity(
        "s",
        "fixed time of a compute unit on the query heads of a KV head beside matrix products, in generation",
        bounds=(1e-9, 1e-4),
        default=3e-6,
        calibratable=True,
    )


class AttentionKernels(Declared):
    """The fused attention kernels, which read and multiply either 16-bit and wider formats or fp8.

    Two kernels share the work. The context kernel (training, prefill) gives a compute unit a tile of queries
    of one head. The generation kernel gives a compute unit one KV head of a sequence, or a split of its
    context, with all query heads that share the KV head.
    """

    bf16: AttentionFormat
    fp8: AttentionFormat
    backward_efficiency: Scalar = quantity(
        "",
        "efficiency of the backward attention kernel over the efficiency of the forward kernel",
        bounds=(0.05, 2.0),
        default=0.86,  # FlashAttention-2 (arXiv 2307.08691 §4.1): 63 % of the peak backward, 73 % forward
        calibratable=True,
    )
    softmax_flops: Scalar = quantity(
        "",
        "fp32 operations of the softmax per attention score: exponential, maximum, scale, sum, conversion",
        bounds=(0.1, 1e3),
        # An exponential on the special-function units of H100 takes the time of 16 operations (arXiv
        # 2407.08608 §3.1); the other operations are an estimate.
        default=23.0,
    )
    latency: Scalar = quantity(
        "s",
        "fixed time of an attention call beyond the shortest time of a kernel: preparations",
        bounds=(1e-9, 1e-3),
        default=3e-6,
        calibratable=True,
    )
    head_latency: Scalar = quantity(
        "s",
        "fixed time of a compute unit on a single query head beside matrix products, in generation",
        bounds=(1e-9, 1e-4),
        default=1.6e-6,
        calibratable=True,
    )
    row_latency: Scalar = quantity(
        "s",
        "time of a compute unit for each of many queries of a KV head beside matrix products, in generation",
        bounds=(1e-12, 1e-5),
        default=1.2e-7,
        calibratable=True,
    )
    split_latency: Scalar = quantity(
        "s",
        "time to combine the partial results of an attention context that is split over compute units",
        bounds=(1e-9, 1e-3),
        default=2e-6,
    )

    @classmethod
    def complete(cls, table: dict[str, Any]) -> dict[str, Any]:
        """A configuration table with both formats, completed from a shorter one.

        A figure of `AttentionFormat` beside the formats holds for both of them; fp8 takes from bf16 what it
        does not give.
        """
        formats = ("bf16", "fp8")
        if not all(isinstance(table.get(name, {}), dict) for name in formats):
            return table
        by_format = {field.name for field in dataclasses.fields(AttentionFormat)}
        common = {key: value for key, value in table.items() if key in by_format}
        shared = {key: value for key, value in table.items() if key not in by_format and key not in formats}
        wide = {**common, **table.get("bf16", {})}
        return {"bf16": wide, "fp8": {**wide, **table.get("fp8", {})}, **shared}

    @classmethod
    def follows(cls, key: str, missing: Collection[str]) -> bool:
        """Whether a missing key follows from another one that is missing too: a figure of fp8 from bf16's."""
        name, _, figure = key.partition(".")
        return name == "fp8" and f"bf16.{figure}" in missing

    def mean(self, fp8: Scalar) -> AttentionFormat:
        """The mean of both formats for a share of fp8 between 0 and 1."""
        return jax.tree.map(lambda in_bf16, in_fp8: in_bf16 + fp8 * (in_fp8 - in_bf16), self.bf16, self.fp8)
