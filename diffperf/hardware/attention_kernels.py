"""What the fused attention kernels of an accelerator reach, and what they cost whatever their size."""

import dataclasses
from typing import Any

import equinox as eqx
import jax

from diffperf.quantity import Scalar, quantity


class AttentionFormat(eqx.Module):
    """What differs between the fused attention kernels for different formats of the KV cache."""

    efficiency: Scalar = quantity(
        "",
        "reachable fraction of the matrix rate in fused attention, softmax aside",
        bounds=(0.05, 1.0),
        calibratable=True,
    )
    tile_latency: Scalar = quantity(
        "s",
        "time of a compute unit on a tile of queries beside its products: first loads, last stores",
        bounds=(1e-9, 1e-4),
        default=3e-6,
        calibratable=True,
    )
    group_latency: Scalar = quantity(
        "s",
        "the same in generation, for the query heads that share a KV head, few as they may be",
        bounds=(1e-9, 1e-4),
        default=3e-6,
        calibratable=True,
    )


class AttentionKernels(eqx.Module):
    """The fused attention kernels: what they read and multiply is in 16-bit formats and wider, or in fp8.

    Two kernels share the work. The context kernel (training, prefill) gives a compute unit a tile of queries of one head; the
    generation kernel gives it a sequence's KV head, or a split of its context, with all query heads that share it.
    """

    bf16: AttentionFormat
    fp8: AttentionFormat
    backward_efficiency: Scalar = quantity(
        "",
        "the backward kernel's share of that efficiency",  # FlashAttention-2 (arXiv 2307.08691 §4.1): 63 % for the forward's 73 %
        bounds=(0.05, 2.0),
        default=0.86,
        calibratable=True,
    )
    softmax_flops: Scalar = quantity(
        "",
        "vector operations, fp32, that the softmax takes per score: exponential, maximum, scale, sum, conversion",
        bounds=(0.1, 1e3),
        default=23.0,  # an exponential on the special-function units counts for 16 on H100 (arXiv 2407.08608 §3.1), the rest for 8
    )
    latency: Scalar = quantity(
        "s",
        "time of the shortest attention call beyond that of any kernel: its preparations",
        bounds=(1e-9, 1e-3),
        default=3e-6,
        calibratable=True,
    )
    head_latency: Scalar = quantity(
        "s",
        "the same in generation, for a query head that shares its KV head with none that its kernel processes together",
        bounds=(1e-9, 1e-4),
        default=1.6e-6,
        calibratable=True,
    )
    row_latency: Scalar = quantity(
        "s",
        "the same in generation per query of such a group, where they are many",
        bounds=(1e-12, 1e-5),
        default=1.2e-7,
        calibratable=True,
    )
    split_latency: Scalar = quantity(
        "s",
        "time to combine the results of a context that is split over compute units",
        bounds=(1e-9, 1e-3),
        default=2e-6,
    )

    @classmethod
    def complete(cls, table: dict[str, Any]) -> dict[str, Any]:
        """The table with both formats: what they differ in, written beside them, holds for both; fp8 is as bf16 in all that it does
        not give."""
        formats = ("bf16", "fp8")
        if not all(isinstance(table.get(name, {}), dict) for name in formats):
            return table
        own = {field.name for field in dataclasses.fields(AttentionFormat)}
        common = {key: value for key, value in table.items() if key in own}
        shared = {key: value for key, value in table.items() if key not in own and key not in formats}
        wide = {**common, **table.get("bf16", {})}
        return {"bf16": wide, "fp8": {**wide, **table.get("fp8", {})}, **shared}

    def of(self, fp8: Scalar) -> AttentionFormat:
        """The mixture of formats for a share of fp8."""
        return jax.tree.map(lambda wide, narrow: wide + fp8 * (narrow - wide), self.bf16, self.fp8)
