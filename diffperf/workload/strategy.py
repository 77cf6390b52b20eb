"""How the work is laid on the system: parallelism, schedule, batching, numerics, recomputation, what is kept where."""

import equinox as eqx
import jax.numpy as jnp

from diffperf.hardware.formats import PRECISION_BYTES, PRECISIONS, output_width, width
from diffperf.quantity import Scalar, Weights, choice, quantity, switch
from diffperf.relax import larger

_DEGREE = (1, 1e5)

# Which groups are the nearest neighbours, from the innermost out: Megatron-LM's default, with expert parallelism inside the
# data-parallel ranks; pipeline stages next to each other; and data parallelism innermost of all.
ORDERS = ("tp-cp-dp-pp", "tp-cp-pp-dp", "tp-dp-cp-pp", "tp-pp-cp-dp", "dp-tp-cp-pp", "cp-tp-dp-pp")

SCHEDULES = ("gpipe", "1f1b", "zero_bubble", "dualpipe")


class Strategy(eqx.Module):
    """Degrees are reals to the estimator; `diffperf.workload.rules` says which integers are possible.

    Experts are laid out apart from all else: the tp·cp·dp devices of a pipeline stage are `expert_tp` × `ep` × as many replicas as
    that leaves. In inference `global_batch` counts the sequences served at once, `sequence_length` their prompt, `output_length`
    what they generate.
    """

    tp: Scalar = quantity("", "tensor-parallel degree", bounds=(1, 1024), default=1, integer=True)
    pp: Scalar = quantity("", "pipeline stages", bounds=(1, 512), default=1, integer=True)
    dp: Scalar = quantity("", "data-parallel degree", bounds=_DEGREE, default=1, integer=True)
    cp: Scalar = quantity(
        "", "context-parallel degree: ways a sequence is split", bounds=(1, 1024), default=1, integer=True
    )
    ep: Scalar = quantity(
        "", "expert-parallel degree: ways the experts are split", bounds=(1, 4096), default=1, integer=True
    )
    expert_tp: Scalar = quantity(
        "",
        "tensor-parallel degree of the experts, 0 for that of all else",
        bounds=(0, 1024),
        default=0,
        integer=True,
    )
    virtual_stages: Scalar = quantity(
        "",
        "model chunks per pipeline stage (interleaved 1F1B above 1)",
        bounds=(1, 64),
        default=1,
        integer=True,
    )
    micro_batch: Scalar = quantity(
        "", "sequences per micro-batch and data-parallel rank", bounds=(1, 4096), default=1, integer=True
    )
    global_batch: Scalar = quantity(
        "", "sequences per step, or served at once", bounds=(1, 1e6), default=1, integer=True
    )
    sequence_length: Scalar = quantity(
        "", "tokens per training sequence, or per prompt", bounds=(1, 1e6), default=2048, integer=True
    )
    output_length: Scalar = quantity(
        "", "tokens generated per sequence", bounds=(1, 1e6), default=200, integer=True
    )
    sequence_parallel: Weights = switch(
        "shard norms and dropouts over the tensor-parallel group along the sequence", default=True
    )
    context_parallel: Weights = choice(
        "ring",
        "all_to_all",
        doc="how context-parallel ranks share a sequence: keys and values around a ring, or heads",
        default="ring",
    )
    order: Weights = choice(
        *ORDERS, doc="groups from the nearest neighbours to the farthest", default=ORDERS[0]
    )
    schedule: Weights = choice(
        *SCHEDULES, doc="order of passes in the pipeline (zero_bubble: ZB-H1)", default="1f1b"
    )
    balanced_head: Weights = switch(
        "the last stage holds fewer layers, by the time of the vocabulary projection", default=False
    )
    recompute: Weights = choice(
        "none", "selective", "full", doc="activations computed again in the backward pass", default="none"
    )
    recompute_share: Scalar = quantity(
        "", "share of the layers whose activations are", bounds=(0, 1), default=1
    )
    attention: Weights = choice(
        "standard", "flash", doc="attention kernel: materialized scores or FlashAttention", default="flash"
    )
    zero: Weights = choice(
        "0", "1", "2", "3",
        doc="ZeRO stage: data-parallel ranks share the optimizer state (1), gradients too (2), weights too (3: FSDP's full shard)",
        default="0",
    )  # fmt: skip
    zero_ranks: Scalar = quantity(
        "",
        "data-parallel ranks that share (FSDP's hybrid shard), 0 for all",
        bounds=(0, 1e5),
        default=0,
        integer=True,
    )
    capacity_factor: Scalar = quantity(
        "",
        "tokens an expert takes over its even share, others dropped and gaps padded; 0: all tokens",
        bounds=(0, 16),
        default=0,
    )
    expert_imbalance: Scalar = quantity(
        "",
        "tokens of the busiest device's experts over the mean, where none are dropped",
        bounds=(1, 64),
        default=1,
    )
    overlap_gradients: Weights = switch("gradient reduction runs under the backward pass", default=True)
    overlap_weights: Weights = switch(
        "gathering of weights (ZeRO) runs under the passes before it", default=True
    )
    overlap_tensor: Weights = switch(
        "tensor-parallel communication runs under the matrix products around it", default=False
    )
    overlap_context: Weights = switch("the ring of keys and values runs under attention", default=True)
    overlap_experts: Weights = switch(
        "dispatch to experts runs under another micro-batch's products", default=False
    )
    overlap_transfers: Weights = switch(
        "transfers between pipeline stages run under computation", default=False
    )
    offload_activations: Scalar = quantity(
        "", "share of the activations kept in host memory", bounds=(0, 1), default=0
    )
    offload_optimizer: Scalar = quantity(
        "", "share of the optimizer state kept in host memory, and updated there", bounds=(0, 1), default=0
    )
    precision: Weights = choice(*PRECISIONS, doc="format of matrix operands", default="bf16")
    weight_precision: Weights = choice(
        "operands", *PRECISIONS, doc="format weights are kept in: that of the operands (in training at least 16 bits), or another",
        default="operands",
    )  # fmt: skip
    activation_precision: Weights = choice(
        "operands", *PRECISIONS, doc="format of activations between products: that of the operands (at least 16 bits), or another",
        default="operands",
    )  # fmt: skip
    kv_precision: Weights = choice(*PRECISIONS, doc="format of the KV cache", default="bf16")
    gradient_precision: Weights = choice(
        *PRECISIONS, doc="format gradients are accumulated and reduced in", default="fp32"
    )
    optimizer_bytes: Scalar = quantity(
        "byte",
        "optimizer state per parameter: Adam with fp32 master weights keeps 12",
        bounds=(0.1, 32),
        default=12,
    )

    @property
    def devices(self) -> Scalar:
        return self.tp * self.pp * self.dp * self.cp

    @property
    def micro_batches(self) -> Scalar:
        """Micro-batches each pipeline works through in one training step."""
        return self.global_batch / (self.dp * self.micro_batch)

    @property
    def tokens(self) -> Scalar:
        """Tokens of a micro-batch in a tensor-parallel group."""
        return self.micro_batch * self.sequence_length / self.cp

    @property
    def experts_tp(self) -> Scalar:
        """Tensor-parallel degree of the experts."""
        return jnp.where(self.expert_tp > 0, self.expert_tp, self.tp)

    @property
    def replicas(self) -> Scalar:
        """Ranks that hold the same weights: context- and data-parallel ones."""
        return self.dp * self.cp

    @property
    def expert_replicas(self) -> Scalar:
        """Ranks that hold the same experts."""
        return larger(self.tp * self.replicas / (self.experts_tp * self.ep), 1.0)

    @property
    def shards_optimizer(self) -> Scalar:
        """Weight of the ZeRO stages that shard the optimizer state."""
        return self.zero["1"] + self.shards_gradients

    @property
    def shards_gradients(self) -> Scalar:
        """Weight of the ZeRO stages that shard gradients."""
        return self.zero["2"] + self.shards_weights

    @property
    def shards_weights(self) -> Scalar:
        """Weight of the ZeRO stage that shards weights."""
        return self.zero["3"]

    @property
    def kept_weight_width(self) -> Scalar:
        """Bytes of a weight in training."""
        return _either(self.weight_precision, output_width(self.precision))

    @property
    def served_weight_width(self) -> Scalar:
        """Bytes of a weight in inference."""
        return _either(self.weight_precision, width(self.precision))

    @property
    def activation_width(self) -> Scalar:
        """Bytes of an element of an activation."""
        return _either(self.activation_precision, output_width(self.precision))


def _either(weights: Weights, operands: Scalar) -> Scalar:
    """Bytes of an element, by weights over the operands' own format and all formats."""
    return weights["operands"] * operands + weights.mean({"operands": 0.0, **PRECISION_BYTES})
