"""How the work is laid on the system: parallelism, batching, numerics, recomputation."""

import equinox as eqx

from diffperf.hardware.accelerator import PRECISIONS
from diffperf.quantity import Scalar, Weights, choice, quantity, switch

_DEGREE = (1, 1e5)


class Strategy(eqx.Module):
    """Degrees are reals to the estimator; `diffperf.workload.rules` says which integers are possible.

    In inference `global_batch` counts the sequences served at once, `sequence_length` their prompt, `output_length` what they
    generate.
    """

    tp: Scalar = quantity("", "tensor-parallel degree", bounds=(1, 1024), default=1, integer=True)
    pp: Scalar = quantity("", "pipeline stages", bounds=(1, 512), default=1, integer=True)
    dp: Scalar = quantity("", "data-parallel degree", bounds=_DEGREE, default=1, integer=True)
    virtual_stages: Scalar = quantity(
        "", "model chunks per pipeline stage (interleaved 1F1B above 1)", bounds=(1, 64), default=1, integer=True
    )
    micro_batch: Scalar = quantity(
        "", "sequences per micro-batch and data-parallel rank", bounds=(1, 4096), default=1, integer=True
    )
    global_batch: Scalar = quantity("", "sequences per step, or served at once", bounds=(1, 1e6), default=1, integer=True)
    sequence_length: Scalar = quantity(
        "", "tokens per training sequence, or per prompt", bounds=(1, 1e6), default=2048, integer=True
    )
    output_length: Scalar = quantity("", "tokens generated per sequence", bounds=(1, 1e6), default=200, integer=True)
    sequence_parallel: Weights = switch("shard norms and dropouts over the tensor-parallel group along the sequence", default=True)
    recompute: Weights = choice("none", "selective", "full", doc="activations computed again in the backward pass", default="none")
    attention: Weights = choice("standard", "flash", doc="attention kernel: materialized scores or FlashAttention", default="flash")
    zero: Weights = choice("0", "1", doc="ZeRO stage: 1 shards the optimizer state over data-parallel ranks", default="0")
    overlap_gradients: Weights = switch("gradient reduction runs under the backward pass", default=True)
    precision: Weights = choice(*PRECISIONS, doc="format of weights, activations and matrix operands", default="bf16")
    kv_precision: Weights = choice(*PRECISIONS, doc="format of the KV cache", default="bf16")
    gradient_precision: Weights = choice(*PRECISIONS, doc="format gradients are accumulated and reduced in", default="fp32")
    optimizer_bytes: Scalar = quantity(
        "byte", "optimizer state per parameter: Adam with fp32 master weights keeps 12", bounds=(0.1, 32), default=12
    )

    @property
    def devices(self) -> Scalar:
        return self.tp * self.pp * self.dp

    @property
    def micro_batches(self) -> Scalar:
        """Micro-batches each pipeline works through in one training step."""
        return self.global_batch / (self.dp * self.micro_batch)
