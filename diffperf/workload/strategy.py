"""Strategy of a system's work: parallelism, schedule, batches, number formats, recomputation, offloading."""

import dataclasses
import functools
import operator
from typing import Any

import jax.numpy as jnp

from diffperf.hardware.formats import (
    PRECISIONS,
    STORED,
    STORED_BYTES,
    four_bit_floats,
    output_width,
    quantized_with_head,
    sixteen_bits_share,
    width,
)
from diffperf.quantity import Declared, Scalar, Weights, choice, declaration, quantity, switch
from diffperf.relax import larger
from diffperf.workload.generation_quantities import (
    cached_share,
    draft_share,
    draft_tokens,
    tokens_per_step,
)

# Orders of the parallel groups, nearest neighbours first. The first is Megatron-LM's default, the second that
# of its --use-tp-pp-dp-mapping; the others put data, pipeline or context neighbours closer together. Experts
# are laid out within the tensor-, context- and data-parallel ranks of a pipeline stage.
ORDERS = ("tp-cp-dp-pp", "tp-cp-pp-dp", "tp-dp-cp-pp", "tp-pp-cp-dp", "dp-tp-cp-pp", "cp-tp-dp-pp")

SCHEDULES = ("gpipe", "1f1b", "zero_bubble", "dualpipe")


def _recomputed(operators: str) -> Any:
    """Declares the share of a stage's layers whose backward pass recomputes a class of operators."""
    return quantity(
        "",
        f"share of a stage's layers that recompute {operators}, beside what `recompute` says",
        bounds=(0, 1),
        default=0,
        training_only=True,
    )


class Strategy(Declared):
    """The way in which a model's work is laid out on the devices of a system.

    Degrees are reals to the estimator; `diffperf.workload.rules` says which whole numbers are possible.
    Experts are laid out in a way of their own: the tp·cp·dp devices of a pipeline stage are `expert_tp` ×
    `ep` devices for each replica of the experts. In inference `global_batch` counts the sequences served
    at once, `sequence_length` the tokens of their prompts, `output_length` the tokens that they generate.
    Of requests that a server answers, `diffperf.workload.requests` says all this, and how tokens are drafted.
    """

    tp: Scalar = quantity(
        "",
        "tensor-parallel degree: number of devices that split every layer among them",
        bounds=(1, 1024),
        default=1,
        integer=True,
    )
    pp: Scalar = quantity(
        "",
        "pipeline stages: number of groups of devices that the layers are split over",
        bounds=(1, 512),
        default=1,
        integer=True,
    )
    dp: Scalar = quantity(
        "",
        "data-parallel degree: number of replicas of the model, which split the batch among them",
        bounds=(1, 1e5),
        default=1,
        integer=True,
    )
    cp: Scalar = quantity(
        "",
        "context-parallel degree: number of devices that split every sequence among them",
        bounds=(1, 1024),
        default=1,
        integer=True,
    )
    ep: Scalar = quantity(
        "",
        "expert-parallel degree: number of devices that split the experts of a layer among them",
        bounds=(1, 4096),
        default=1,
        integer=True,
    )
    expert_tp: Scalar = quantity(
        "",
        "tensor-parallel degree of the experts, 0 for the degree of all other layers",
        bounds=(0, 1024),
        default=0,
        integer=True,
    )
    virtual_stages: Scalar = quantity(
        "",
        "model chunks of each pipeline stage (interleaved 1F1B above 1)",
        bounds=(1, 64),
        default=1,
        integer=True,
        training_only=True,
    )
    micro_batch: Scalar = quantity(
        "",
        "sequences of a micro-batch on each data-parallel rank",
        bounds=(1, 4096),
        default=1,
        integer=True,
        training_only=True,
    )
    global_batch: Scalar = quantity(
        "", "sequences of a training step, or served at once", bounds=(1, 1e6), default=1, integer=True
    )
    sequence_length: Scalar = quantity(
        "", "tokens of a training sequence, or of a prompt", bounds=(1, 4e6), default=2048, integer=True
    )
    output_length: Scalar = quantity(
        "", "tokens generated for each sequence", bounds=(1, 1e6), default=200, integer=True
    )
    cached_share: Scalar = cached_share()
    tokens_per_step: Scalar = tokens_per_step()
    draft_tokens: Scalar = draft_tokens()
    draft_share: Scalar = draft_share()
    sequence_parallel: Weights = switch(
        "norms and dropouts split along the sequence over the tensor-parallel group",
        default=True,
        training_only=True,
    )
    context_parallel: Weights = choice(
        "ring",
        "all_to_all",
        doc="work of context-parallel ranks on a sequence: ring of keys and values, or exchange of heads",
        default="ring",
    )
    order: Weights = choice(
        *ORDERS,
        doc="order of the parallel groups, from the nearest neighbours to the farthest",
        default=ORDERS[0],
    )
    schedule: Weights = choice(
        *SCHEDULES, doc="pipeline schedule (zero_bubble: ZB-H1)", default="1f1b", training_only=True
    )
    balanced_head: Weights = switch(
        "last pipeline stage with fewer layers, to make up for the vocabulary projection", default=False
    )
    first_stage_layers: Scalar = quantity(
        "",
        "layers of the first pipeline stage, 0 for as many as the others",
        bounds=(0, 2000),
        default=0,
        integer=True,
        training_only=True,
    )
    last_stage_layers: Scalar = quantity(
        "",
        "layers of the last pipeline stage, 0 for as many as the others",
        bounds=(0, 2000),
        default=0,
        integer=True,
        training_only=True,
    )
    embedding_in_split: Weights = switch(
        "token embedding in place of a layer of the first pipeline stage", default=False, training_only=True
    )
    loss_in_split: Weights = switch(
        "vocabulary projection and loss in place of a layer of the last pipeline stage",
        default=False,
        training_only=True,
    )
    recompute: Weights = choice(
        "none",
        "selective",
        "full",
        doc="activations that the backward pass recomputes",
        default="none",
        training_only=True,
    )
    recompute_share: Scalar = quantity(
        "",
        "share of a stage's layers that recompute their activations",
        bounds=(0, 1),
        default=1,
        training_only=True,
    )
    recompute_norms: Scalar = _recomputed("norms")
    recompute_activation_functions: Scalar = _recomputed("the MLP's activation function (SwiGLU)")
    recompute_up_projections: Scalar = _recomputed("up-projections of latent attention, with rotations")
    recompute_attention: Scalar = _recomputed("attention cores that store their scores")
    recompute_mlp: Scalar = _recomputed("MLPs without experts")
    recompute_experts: Scalar = _recomputed("mixtures of experts, with dispatch and combination")
    early_routing_weights: Weights = switch(
        "router's weights applied before the experts' down projection, whose results need not be kept then",
        default=False,
        training_only=True,
    )
    attention: Weights = choice(
        "standard",
        "flash",
        doc="attention kernel: standard, which writes its scores to memory, or FlashAttention",
        default="flash",
    )
    zero: Weights = choice(
        "0", "1", "2", "3",
        doc="ZeRO stage: data-parallel ranks shard the optimizer state (1), gradients too (2), weights too "
        "(3: FSDP's full shard)",
        default="0",
        training_only=True,
    )  # fmt: skip
    zero_ranks: Scalar = quantity(
        "",
        "data-parallel ranks over which ZeRO shards (FSDP's hybrid shard), 0 for all",
        bounds=(0, 1e5),
        default=0,
        integer=True,
        training_only=True,
    )
    capacity_factor: Scalar = quantity(
        "",
        "most tokens of an expert, as a multiple of its even share (further tokens are dropped, free places "
        "padded); 0 for no limit",
        bounds=(0, 16),
        default=0,
    )
    expert_imbalance: Scalar = quantity(
        "",
        "load imbalance: tokens that the experts of the busiest device receive, over the mean over devices, "
        "if no token is dropped",
        bounds=(1, 64),
        default=1,
    )
    expert_popularity_spread: Scalar = quantity(
        "",
        "standard deviation of the number of tokens that served experts get, over its mean: with a larger "
        "one few tokens visit fewer experts, and the busiest of the devices that share the experts gets more "
        "tokens; 0 where all experts are as likely",
        bounds=(0, 3),
        # Calibrated on served runs of models with experts in aiconfigurator (silicon_sample.csv of
        # ai-dynamo/aiconfigurator) and in The ML.ENERGY Benchmark: for 0.7 the errors of times per token vary
        # least with the batch (studies/expert_popularity).
        default=0.7,
    )
    overlap_gradients: Weights = switch(
        "whether the gradient reduction runs under the backward pass", default=True, training_only=True
    )
    overlap_weights: Weights = switch(
        "whether the gathering of weights (ZeRO) runs under the passes before it",
        default=True,
        training_only=True,
    )
    overlap_tensor: Weights = switch(
        "whether tensor-parallel communication runs under the matrix products around it", default=False
    )
    overlap_context: Weights = switch(
        "whether the ring of keys and values (context parallelism) runs under attention", default=True
    )
    overlap_experts: Weights = switch(
        "whether the dispatch of tokens to experts runs under the products of another micro-batch",
        default=False,
    )
    overlap_transfers: Weights = switch(
        "whether transfers between pipeline stages run under computation", default=False
    )
    offload_activations: Scalar = quantity(
        "",
        "share of the activations that are kept in host memory",
        bounds=(0, 1),
        default=0,
        training_only=True,
    )
    offload_optimizer: Scalar = quantity(
        "",
        "share of the optimizer state that is kept in host memory and updated there",
        bounds=(0, 1),
        default=0,
        training_only=True,
    )
    precision: Weights = choice(*PRECISIONS, doc="number format of matrix operands", default="bf16")
    weight_precision: Weights = choice(
        "operands", *STORED,
        doc="number format of stored weights: the operands' own (in training at least 16 bits), or another",
        default="operands",
    )  # fmt: skip
    expert_precision: Weights = choice(
        "linear", *PRECISIONS,
        doc="number format of the operands of routed experts in inference: that of linear layers, or another",
        default="linear",
    )  # fmt: skip
    expert_weight_precision: Weights = choice(
        "operands", *STORED,
        doc="number format of stored weights of routed experts in inference: the experts' operands' own, "
        "or another",
        default="operands",
    )  # fmt: skip
    head_precision: Weights = choice(
        "checkpoint", "unquantized", "weights", *STORED,
        doc="number format of the stored vocabulary projection in inference: as checkpoints with the format "
        "of the weights have it (checkpoint), the operands' own, at least 16 bits (unquantized), that of "
        "all linear weights, or another",
        default="checkpoint",
    )  # fmt: skip
    activation_precision: Weights = choice(
        "operands", *PRECISIONS,
        doc="number format of activations between products: the operands' own (at least 16 bits), or another",
        default="operands",
    )  # fmt: skip
    unquantized_head: Weights = switch(
        "vocabulary projection with operands of at least 16 bits in training",
        default=False,
        training_only=True,
    )
    dispatch_precision: Weights = choice(
        "activations", *PRECISIONS,
        doc="number format of tokens on their way to experts: that of activations, or another",
        default="activations",
    )  # fmt: skip
    combine_precision: Weights = choice(
        "activations", *PRECISIONS,
        doc="number format of the results of experts on their way back: that of activations, or another",
        default="activations",
    )  # fmt: skip
    kept_activation_precision: Weights = choice(
        "activations", *PRECISIONS,
        doc="number format in which inputs of linear layers and of activation functions are kept for the "
        "backward pass: that of activations, or another",
        default="activations",
        training_only=True,
    )  # fmt: skip
    kv_precision: Weights = choice(*PRECISIONS, doc="number format of the KV cache", default="bf16")
    gradient_precision: Weights = choice(
        *PRECISIONS,
        doc="number format in which gradients are accumulated, and reduced unless another is given for that",
        default="fp32",
        training_only=True,
    )
    reduced_gradient_precision: Weights = choice(
        "accumulated", *PRECISIONS,
        doc="number format in which gradients are reduced between ranks: that in which they are "
        "accumulated, or another",
        default="accumulated",
        training_only=True,
    )  # fmt: skip
    gathered_weight_precision: Weights = choice(
        "stored", *PRECISIONS,
        doc="number format in which ranks that shard weights gather them: that in which they are stored in "
        "training, or another",
        default="stored",
        training_only=True,
    )  # fmt: skip
    optimizer_bytes: Scalar = quantity(
        "byte",
        "optimizer state of a parameter: Adam with fp32 master weights keeps 12 bytes",
        bounds=(0.1, 32),
        default=12,
        training_only=True,
    )

    @property
    def devices(self) -> Scalar:
        """Devices that the degrees multiply to."""
        return self.tp * self.pp * self.dp * self.cp

    @property
    def micro_batches(self) -> Scalar:
        """Micro-batches that each pipeline works through in one training step."""
        return self.global_batch / (self.dp * self.micro_batch)

    @property
    def replica_sequences(self) -> Scalar:
        """Sequences of a replica of the model: its part of the global batch."""
        return self.global_batch / self.dp

    @property
    def prefilled_length(self) -> Scalar:
        """Tokens of a prompt that its prefill computes: those that are not cached, and at least the last."""
        return larger(self.sequence_length * (1 - self.cached_share), 1.0)

    @property
    def tokens(self) -> Scalar:
        """Tokens of a micro-batch in a tensor-parallel group."""
        return self.micro_batch * self.sequence_length / self.cp

    @property
    def experts_tp(self) -> Scalar:
        """Tensor-parallel degree of the experts."""
        return jnp.where(self.expert_tp > 0, self.expert_tp, self.tp)

    @property
    def sequence_shards(self) -> Scalar:
        """Number of devices that split norms, dropouts and residuals along the sequence: tp with sequence
        parallelism, else 1 (arXiv 2205.05198 §4.2.2).
        """
        return self.sequence_parallel.off + self.sequence_parallel.on * self.tp

    @property
    def replicas(self) -> Scalar:
        """Ranks that hold the same weights: the context- and data-parallel ranks."""
        return self.dp * self.cp

    @property
    def expert_replicas(self) -> Scalar:
        """Ranks that hold the same experts."""
        return larger(self.tp * self.replicas / (self.experts_tp * self.ep), 1.0)

    def stride_of(self, group: str) -> Scalar:
        """Number of devices from one member of a group ("tp", "cp", "dp" or "pp") to the next, by the order
        of groups.
        """
        products = []
        for order in self.order.alternatives:
            groups = order.split("-")
            inside = [getattr(self, name) for name in groups[: groups.index(group)]]
            products.append(functools.reduce(operator.mul, inside, jnp.ones_like(self.tp)))
        return jnp.sum(self.order.array * jnp.stack(products))

    @property
    def replica_stride(self) -> Scalar:
        """Devices between neighbours of the ranks that hold the same weights.

        Context- and data-parallel ranks count as one group, spread evenly over all devices that they span.
        """
        span = larger(self.stride_of("cp") * self.cp, self.stride_of("dp") * self.dp)
        return span / self.replicas

    @property
    def expert_stride(self) -> Scalar:
        """Devices between neighbours of the ranks that share out the experts.

        These are the tensor-parallel ranks that do not share an expert, and where they are too few the
        context- and data-parallel ranks too, spread evenly over the devices that they span.
        """
        of_tensor_group = larger(self.tp / self.experts_tp, 1.0)
        within = self.stride_of("tp") * self.experts_tp
        return jnp.where(self.ep > of_tensor_group, self.replica_stride / of_tensor_group, within)

    @property
    def expert_replica_stride(self) -> Scalar:
        """Devices between neighbours of the ranks that hold the same experts."""
        return self.expert_stride * self.ep

    @property
    def may_shard(self) -> bool:
        """Whether any of the ZeRO stages that shard may have weight."""
        return any(self.zero.possible[stage] for stage in ("1", "2", "3"))

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
    def gradient_reductions(self) -> Scalar:
        """Times that a step reduces its gradients: once, or for every micro-batch where ZeRO shards them."""
        return 1 + self.shards_gradients * (self.micro_batches - 1)

    @property
    def kept_weight_width(self) -> Scalar:
        """Bytes of a weight in training."""
        return _either(self.weight_precision, output_width(self.precision))

    @property
    def served_weight_width(self) -> Scalar:
        """Bytes of a weight of a linear layer in inference."""
        return _either(self.weight_precision, width(self.precision))

    @property
    def expert_format(self) -> Weights:
        """Weights over the number formats of the operands of routed experts in inference."""
        given, own = self.expert_precision, self.expert_precision.without("linear")
        return Weights(own.array + given["linear"][..., None] * self.precision.array, own.alternatives)

    @property
    def expert_operands_wider_than_weights(self) -> Scalar:
        """Whether routed experts are stored in four-bit floating point and multiplied in 16 bits: 0 or 1 for
        a choice.
        """
        return four_bit_floats(self.expert_weight_precision) * sixteen_bits_share(self.expert_format)

    @property
    def served_expert_width(self) -> Scalar:
        """Bytes of a weight of a routed expert in inference."""
        own = _either(self.expert_precision, self.served_weight_width, "linear")
        return _either(self.expert_weight_precision, own)

    @property
    def served_head_width(self) -> Scalar:
        """Bytes of a weight of the vocabulary projection, and of the embedding, in inference."""
        head, quantized, wide = self.head_precision, self.served_weight_width, output_width(self.precision)
        by_file = quantized_with_head(self.weight_precision)
        checkpoint = by_file * quantized + (1 - by_file) * wide
        named = head["weights"] * quantized + head["checkpoint"] * checkpoint
        return named + _either(head, wide, "unquantized", "weights", "checkpoint")

    @property
    def gradient_width(self) -> Scalar:
        """Bytes of a gradient as it is accumulated."""
        return width(self.gradient_precision)

    @property
    def reduced_gradient_width(self) -> Scalar:
        """Bytes of a gradient as ranks reduce it."""
        return _either(self.reduced_gradient_precision, self.gradient_width, "accumulated")

    @property
    def gathered_weight_width(self) -> Scalar:
        """Bytes of a weight as ranks that shard weights gather it."""
        return _either(self.gathered_weight_precision, self.kept_weight_width, "stored")

    @property
    def dispatch_width(self) -> Scalar:
        """Bytes of an element of a token on its way to experts."""
        return _either(self.dispatch_precision, self.activation_width, "activations")

    @property
    def combine_width(self) -> Scalar:
        """Bytes of an element of an expert's result on its way back."""
        return _either(self.combine_precision, self.activation_width, "activations")

    @property
    def activation_width(self) -> Scalar:
        """Bytes of an element of an activation."""
        return _either(self.activation_precision, output_width(self.precision))

    @property
    def kept_activation_width(self) -> Scalar:
        """Bytes of an element of an input of a linear layer as it is kept for the backward pass."""
        return _either(self.kept_activation_precision, self.activation_width, "activations")


# The fields that say how a model is trained: no phase of inference may be given one of them.
TRAINING_FIELDS = frozenset(
    field.name
    for field in dataclasses.fields(Strategy)
    if (declared := declaration(field)) is not None and declared.training_only
)


# The fields that say how answers are generated. Training does not depend on them.
INFERENCE_FIELDS = frozenset(
    {
        "output_length",
        "cached_share",
        "tokens_per_step",
        "draft_tokens",
        "draft_share",
        "kv_precision",
        "expert_popularity_spread",
    }
)


def _either(weights: Weights, default: Scalar, name: str = "operands", *others: str) -> Scalar:
    """Bytes of an element, by weights over the default format, whose name is given, and all formats.

    `others` are further names that count nothing.
    """
    return weights[name] * default + weights.mean({**dict.fromkeys((name, *others), 0.0), **STORED_BYTES})
