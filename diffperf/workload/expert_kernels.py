"""Kernels around a layer's experts: copies, sorts, biases and clamps of the tokens that they compute on."""

import jax.numpy as jnp

from diffperf.hardware.formats import PRECISION_BYTES, fp8_share, same_width, sixteen_bits_share
from diffperf.quantity import Scalar
from diffperf.relax import inverse, larger, positive, smaller
from diffperf.software.stack import Stack
from diffperf.workload.configuration import Configuration
from diffperf.workload.elementwise_operators import streams_of_elements
from diffperf.workload.expert_tokens import expert_load, routed_tokens, tokens_of_set
from diffperf.workload.model import Layers, Mixture, Model
from diffperf.workload.operators import Streams
from diffperf.workload.strategy import Strategy


def expert_copies(
    layers: Layers, model: Model, strategy: Strategy, tokens: Scalar, *, backward: bool = False
) -> Streams | None:
    """The kernels of training that copy `tokens` tokens in the order of their experts, and back; None without
    experts. A rank copies its part of the tensor-parallel group's tokens, before it sends them.
    """
    if layers.mixture is None:
        return None
    copied = 2 * routed_tokens(layers, strategy, tokens) * model.hidden
    return streams_of_elements({"copy to experts": copied, "copy from experts": copied}, strategy, backward)


def served_expert_copies(
    layers: Layers, model: Model, strategy: Strategy, tokens: Scalar, stack: Stack
) -> Streams | None:
    """The kernels of inference that copy `tokens` tokens in the order of their experts, and add up the
    outputs of a token's experts; None without experts.

    Every rank of a tensor-parallel group has all of the group's tokens: it copies one row for each expert
    that it has a part of, reading each token once, and adds up as many rows of outputs to one for each token.

    With the stack's `rows_of_all_experts` the experts of the group's other ranks have rows as well: the
    products write zeros, of the inner width and of the hidden one, the activation function reads and writes
    them, and the sum reads them (`write_zeros_to_output` of fused_moe_kernel and `fused_experts_impl` in
    vLLM's fused_moe.py, github.com/vllm-project/vllm).
    """
    if layers.mixture is None:
        return None
    rows = routed_tokens(layers, strategy, tokens) * strategy.experts_tp
    copied = (rows + tokens) * model.hidden
    parts = smaller(strategy.ep, strategy.tp / strategy.experts_tp)  # of the experts, in the group
    others = stack.rows_of_all_experts.on * rows * larger(parts - 1, 0.0)
    inner, gate = layers.ffn / strategy.experts_tp, layers.gated.on
    zeros = (1 + gate) * inner + model.hidden  # that the products write
    activated = (2 + gate) * inner
    return streams_of_elements(
        {
            "copy to experts": copied + others * (zeros + activated),
            "copy from experts": copied + others * model.hidden,
        },
        strategy,
        backward=False,
    )


def untuned_tiles(mixture: Mixture, c: Configuration, tokens: Scalar) -> Scalar:
    """The share of the experts' products of inference that kernels multiply in tiles whose shapes are not
    tuned, where a tensor-parallel group has `tokens` tokens: 0 or 1 for definite choices.

    Engines ship tuned shapes for the experts of widespread models, whole or split by tensor parallelism, and
    multiply a device's part of experts that are spread over devices in default shapes. In 16 bits vLLM's
    default has 16 rows up to as many tokens as a device has experts, which serves few tokens well, and 64
    rows above; in fp8 it always has 64 (`get_default_config` in fused_moe.py, github.com/vllm-project/vllm).
    """
    strategy, relax = c.strategy, c.relax
    local = mixture.experts * inverse(strategy.ep)
    few = relax.step(local * inverse(positive(tokens_of_set(strategy, tokens))) - 1)
    stored = same_width(strategy.served_expert_width, PRECISION_BYTES["bf16"])
    sixteen_bits = jnp.where(stored, sixteen_bits_share(strategy.expert_format), 0.0)
    default = fp8_share(strategy.expert_format) + sixteen_bits * (1 - few)
    return relax.has_others(strategy.ep) * default


def local_expert_sorts(
    layers: Layers, model: Model, strategy: Strategy, tokens: Scalar, *, backward: bool = False
) -> tuple[Streams, Scalar]:
    """The kernels that sort the tokens on a device by its own experts, and back, and how many of them a pass
    has: two where a device has two experts or more, none where it has one.

    An all-to-all brings tokens in the order of the ranks that they come from. Megatron-Core's all-to-all
    dispatcher copies them in the order of the device's experts (`sort_chunks_by_idxs` in
    megatron/core/transformer/moe/token_dispatcher.py); DeepEP and HybridEP write them in that order when they
    arrive.
    """
    assert layers.mixture is not None
    on_device = routed_tokens(layers, strategy, tokens) * expert_load(strategy) * strategy.experts_tp
    copied = 2 * on_device * model.hidden
    several = larger(smaller(layers.mixture.experts / strategy.ep - 1, 1.0), 0.0)
    names = ("sort by local experts", "sort back by ranks")
    return streams_of_elements(dict.fromkeys(names, copied), strategy, backward), several


def expert_bias_kernels(
    layers: Layers, model: Model, strategy: Strategy, tokens: Scalar, *, backward: bool = False
) -> tuple[Streams, Scalar]:
    """The kernels that add the bias of an expert's second product, times the probability of the expert, and
    how many of them a pass has. The bytes are those of a mean kernel.

    Megatron-Core adds these biases for one expert after the other, with probabilities in fp32, and then puts
    the experts' outputs together (`TEGroupedMLP._apply_bias` in megatron/core/transformer/moe/experts.py).
    Forward there are two kernels for each expert, the product (writes fp32) and the sum (reads the output
    and fp32, writes fp32), then the concatenation and the conversion back. Backward there are five for each
    expert: the conversion of the sum's gradient, the gradients of probability and bias as products that are
    written in fp32 and then summed up; the gradient is converted once before, and put together once after.
    """
    assert layers.mixture is not None
    element, single = strategy.activation_width, PRECISION_BYTES["fp32"]
    on_device = routed_tokens(layers, strategy, tokens) * expert_load(strategy) * strategy.experts_tp
    experts = layers.mixture.experts / strategy.ep
    if backward:
        conversions, joined = 2 * (element + single), 2 * element
        gradients = 2 * (2 * single + single)  # a product reads and writes, its sum reads
        moved, kernels, suffix = conversions + joined + gradients, 5 * experts + 2, ", backward"
    else:
        product, added = single, element + 2 * single
        joined, converted = 2 * single, single + element
        moved, kernels, suffix = product + added + joined + converted, 2 * experts + 2, ""
    size = moved * on_device * model.hidden
    return Streams.table({f"biases of experts{suffix}": size / kernels}), kernels


# Kernels of Megatron-Core and PyTorch with the bytes that each reads and writes for an element in 16 bits; a
# Boolean mask has one byte.
_CLAMPS = (
    2 + 2,  # gates below the limit
    2 + 2,  # their factors within both limits
    4 + 4,  # both put together again
)

_CLAMPS_BACKWARD = (
    2 + 1,  # which gates are below the limit
    1 + 2 + 2,  # gradients of those, 0 for the others
    2 + 1,  # which factors are above the lower limit
    2 + 1,  # below the upper one
    1 + 1 + 1,  # and both
    1 + 2 + 2,  # gradients of those
    4 + 4,  # both put together
)


def clamp_kernels(
    layers: Layers, strategy: Strategy, tokens: Scalar, *, backward: bool = False
) -> tuple[Streams, Scalar]:
    """The kernels that clamp the inputs of the activation function of gated experts, and how many of them a
    pass has. The bytes are those of a mean kernel.

    Megatron-Core clamps gates and their factors one after the other and puts them together again, before the
    fused activation function (`weighted_bias_quick_geglu_impl` in
    megatron/core/fusions/fused_bias_geglu.py). Backward PyTorch compares each with each of its limits and
    selects gradients by the mask (`clamp_backward` in torch/csrc/autograd/FunctionsManual.cpp).
    """
    kernels = _CLAMPS_BACKWARD if backward else _CLAMPS
    elements = routed_tokens(layers, strategy, tokens) * expert_load(strategy) * layers.ffn
    number = jnp.full_like(elements, len(kernels))
    suffix = ", backward" if backward else ""
    return Streams.table({f"clamps of experts{suffix}": sum(kernels) * elements / number}), number
