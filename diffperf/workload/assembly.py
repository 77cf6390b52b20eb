"""The operators of a phase: every kernel that a device runs in a training step or an inference pass, each
listed once.

Reports sum these operators, listings show them, and calibration and validation evaluate the same ones.
"""

import dataclasses
from collections.abc import Iterable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.quantity import Scalar, Weights
from diffperf.relax import absent
from diffperf.workload.attention_operators import aligned_heads, attention_core, fused_softmax
from diffperf.workload.configuration import Configuration
from diffperf.workload.elementwise_operators import (
    elementwise_kernels,
    recurrence_kernels,
    scaled_rotary_kernels,
)
from diffperf.workload.expert_kernels import (
    clamp_kernels,
    expert_bias_kernels,
    expert_copies,
    local_expert_sorts,
    served_expert_copies,
    untuned_tiles,
)
from diffperf.workload.expert_tokens import busiest_experts, visited_share
from diffperf.workload.growing_context import context_nodes
from diffperf.workload.linear_layers import aligned_logits, linear_layers, vocabulary_projection
from diffperf.workload.model import Layers
from diffperf.workload.operators import AttentionCore, Gemms, Operators, Streams, operators_of
from diffperf.workload.passes import TokenPass, training_pass
from diffperf.workload.recomputation import Recomputation
from diffperf.workload.state_space_operators import state_space_operators

FUSED_KERNELS = ("context", "generation")  # the fused attention kernels, for prompts and for generated tokens


def training_operators(c: Configuration, owned_parameters: Scalar) -> list[Operators]:
    """All operators of a training step on one device, which updates `owned_parameters` parameters.

    Operators of layers run once for each layer of their kind, as pipeline stages hold different numbers of
    each kind.
    """
    layers = layer_operators(c, training_pass(c.strategy), trained=True)
    return [*layers, *_training_head(c), _optimizer(c, owned_parameters)]


def inference_operators(c: Configuration, tokens: TokenPass) -> list[Operators]:
    """All operators of one inference pass on one device."""
    logits = vocabulary_projection(c.model, c.strategy.tp, tokens.logits)
    return [
        *layer_operators(c, tokens, trained=False),
        operators_of(logits, part="head", per="micro-batch"),
    ]


def layer_operators(c: Configuration, tokens: TokenPass, *, trained: bool) -> list[Operators]:
    """The operators of a pass through the layers of every kind.

    In inference they stand for an average layer: each kind runs by its share of the layers. `trained` makes
    them those of one layer of each kind, and adds the backward pass, and what it recomputes of the forward
    pass.
    """
    operators: list[Operators] = []
    for structure, (layers, names) in enumerate(zip(c.model.kinds, c.model.kind_names, strict=True)):
        of_each_kind = jax.vmap(lambda kind: _operators_of_layer(kind, c, tokens, trained))(layers)
        repeated = Recomputation.of(c.strategy).of_layers(layers) if trained else None
        for group in of_each_kind:
            share = 0.0
            if repeated is not None and group.direction == "forward":
                share = repeated.of_operators(group.names, group.part, c.strategy.attention.standard)
            operators.append(dataclasses.replace(group, layers=names, recomputed=share, structure=structure))
    return operators


def _operators_of_layer(
    layers: Layers, c: Configuration, tokens: TokenPass, trained: bool
) -> list[Operators]:
    """The operators of layers of one kind."""
    strategy, share = c.strategy, 1.0 if trained else layers.count / c.model.depth
    rank_tokens, read, stretch = tokens.tokens_on_rank(strategy), None, None
    if layers.mixture is not None and not trained:
        idle = c.system.stack.reads_idle_experts.on * strategy.expert_format["fp8"]
        visited = visited_share(layers.mixture, strategy, rank_tokens, serving=True)
        read = visited + idle * (1 - visited)
        stretch = busiest_experts(layers.mixture, strategy, rank_tokens, visited, idle)
    up_projected = tokens.up_projected_tokens(strategy)
    linear = linear_layers(layers, c.model.hidden, strategy, rank_tokens, read, up_projected)
    if trained:
        linear = linear.with_separate_experts(c.system.stack.separate_experts.on)
    elif layers.mixture is not None:
        linear = linear.with_untuned_experts(untuned_tiles(layers.mixture, c, rank_tokens))
        linear = linear.with_random_experts()
    operators = [operators_of(linear, part="matmul", runs=share)]
    if stretch is not None:
        of_each = [stretch if role == "expert" else jnp.ones_like(stretch) for role in linear.roles]
        operators = [dataclasses.replace(operators[0], busiest=jnp.stack(of_each))]
    if trained:
        summed = linear.weight_gradient.added_to(strategy.gradient_width)
        gradients = {"backward": linear.input_gradient, "weights": summed}
        operators += [
            operators_of(table, part="matmul", runs=share, direction=direction)
            for direction, table in gradients.items()
        ]
    directions = ("forward", "backward") if trained else ("forward",)
    operators += _attention_of_layer(layers, c, tokens, share, directions)
    # The stack's kernels move `elementwise_traffic` times the bytes of Megatron-LM's fusions, in
    # `elementwise_kernels` times as many kernels.
    stack = c.system.stack
    size, number = stack.elementwise_traffic / stack.elementwise_kernels, stack.elementwise_kernels
    # In inference the stack says how many kernels bring tokens in the order of experts and back, for two.
    split = 1.0 if trained else stack.routing_kernels / 2
    for direction in directions:
        backward = direction == "backward"
        of_layer = elementwise_kernels(layers, c.model, strategy, rank_tokens, backward=backward)
        copies = (
            expert_copies(layers, c.model, strategy, rank_tokens, backward=backward)
            if trained
            else served_expert_copies(layers, c.model, strategy, rank_tokens, stack)
        )
        tables = ((of_layer, 1.0), (copies, split))
        operators += [
            operators_of(
                kernels * (size / times), part="elementwise", runs=share * number * times, direction=direction
            )
            for kernels, times in tables
            if kernels is not None
        ]
        if trained:
            operators += _unfused_operators(layers, c, rank_tokens, share, direction)
    return operators


def _unfused_operators(
    layers: Layers, c: Configuration, tokens: Scalar, share: Scalar | float, direction: str
) -> list[Operators]:
    """The operators of a pass in training that some stacks run by kernels of their own, where a model has
    them.
    """
    model, strategy, stack, backward = c.model, c.strategy, c.system.stack, direction == "backward"
    kernels: list[tuple[Scalar, tuple[Streams, Scalar]]] = []
    if layers.mixture is not None and stack.separate_expert_biases.possible["on"]:
        weight = stack.separate_expert_biases.on * layers.biases.on
        kernels.append((weight, expert_bias_kernels(layers, model, strategy, tokens, backward=backward)))
    if layers.mixture is not None and stack.separate_clamps.possible["on"]:
        weight = stack.separate_clamps.on * layers.clamped_activation.on * layers.gated.on
        kernels.append((weight, clamp_kernels(layers, strategy, tokens, backward=backward)))
    if layers.mixture is not None and stack.sorts_local_experts.possible["on"]:
        sorts, several = local_expert_sorts(layers, model, strategy, tokens, backward=backward)
        kernels.append((stack.sorts_local_experts.on, (sorts, several)))
    # Of models with experts alone, to spare all others the evaluation: no other shipped model scales them.
    scales = layers.mixture is not None and layers.attends and layers.latent is None
    if scales and stack.separate_scaled_rotary.possible["on"]:
        weight = stack.separate_scaled_rotary.on * layers.scaled_rotary.on
        kernels.append((weight, scaled_rotary_kernels(layers, model, strategy, tokens, backward=backward)))
    return [
        operators_of(table, part="elementwise", runs=share * weight * times, direction=direction)
        for weight, (table, times) in kernels
    ]


def _attention_of_layer(
    layers: Layers, c: Configuration, tokens: TokenPass, share: Scalar | float, directions: Iterable[str]
) -> list[Operators]:
    """The operators of a layer's attention core, or of the recurrence in its place."""
    strategy, trained = c.strategy, "backward" in directions
    if layers.attends:
        nodes = None
        if tokens.outputs is not None:
            prompt = tokens.context - tokens.outputs / 2
            nodes = context_nodes(prompt, tokens.outputs, layers.window)
        kernel = "generation" if tokens.generating else "context"
        return attention_operators(
            attention_core(layers, strategy, tokens),
            strategy.attention,
            Weights.only(kernel, FUSED_KERNELS, strategy.attention.array.dtype),
            element=strategy.activation_width,
            dropout=layers.dropout.on,
            fused_softmax=fused_softmax(layers, strategy, c.system.stack) if trained else None,
            matrix_units=aligned_heads(layers, strategy, c.system.stack) if trained else None,
            runs=share,
            directions=directions,
            nodes=nodes,
        )
    if layers.state_space is not None:
        return [
            operators_of(table, part="attention", runs=share, direction=direction)
            for direction in directions
            for table in state_space_operators(layers, strategy, tokens, backward=direction == "backward")
        ]
    return [
        operators_of(
            recurrence_kernels(layers, strategy, tokens, backward=direction == "backward"),
            part="attention",
            runs=share,
            direction=direction,
        )
        for direction in directions
    ]


def attention_operators(
    core: AttentionCore,
    attention: Weights,
    fused: Weights,
    *,
    element: Scalar,
    dropout: Scalar,
    fused_softmax: Scalar | None = None,
    matrix_units: Scalar | None = None,
    runs: Scalar | float = 1.0,
    directions: Iterable[str] = ("forward",),
    nodes: tuple[Float[Array, " nodes"], Float[Array, " nodes"]] | None = None,
) -> list[Operators]:
    """The operators of one attention core, by weights over how it is computed; those without weight are left
    out.

    - `attention`: weights over standard attention, which writes its scores to memory, and fused kernels
      ("flash").
    - `fused`: weights over `FUSED_KERNELS`, for fused attention's forward pass; its backward pass has one
      kernel.
    - `element`: bytes of an activation; `dropout`: weight of dropout on the scores.
    - `fused_softmax`: weight of one kernel for the softmax of standard attention, None for 1.
    - `matrix_units`: weight of the matrix units for the products of standard attention, None for 1.
    - `runs`, `directions`: see `Operators`.
    - `nodes`: contexts that stand for the growing context of a generation, and their shares of it; fused
      kernels are evaluated at each of them, standard attention, whose time is affine, at the core's own.
    """
    operators: list[Operators] = []
    contexts, shares = (core.context[..., None], jnp.ones(1, core.heads.dtype)) if nodes is None else nodes
    at_nodes = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[..., None], contexts.shape), core)
    at_nodes = dataclasses.replace(at_nodes, context=contexts)
    for direction in directions:
        backward = direction == "backward"
        if attention.possible["standard"]:
            products = core.products
            if matrix_units is not None:
                products = products.with_matrix_units(matrix_units)
            tables: list[Gemms | Streams] = (
                [products.input_gradient, products.weight_gradient] if backward else [products]
            )
            tables.append(core.softmax(element, dropout, backward=backward, fused=fused_softmax))
            operators += [
                operators_of(
                    table,
                    part="attention",
                    runs=attention.standard * runs,
                    direction=direction,
                )
                for table in tables
            ]
        for kernel in ("context",) if backward else FUSED_KERNELS:
            if attention.possible["flash"] and (backward or fused.possible[kernel]):
                weight = attention.flash if backward else attention.flash * fused[kernel]
                operators.append(
                    operators_of(
                        dataclasses.replace(at_nodes, backward=jnp.full_like(contexts, backward)),
                        part="attention",
                        runs=weight * runs * shares,
                        direction=direction,
                        kernel=f"{kernel} attention",
                        names=("attention core, backward" if backward else "attention core",) * shares.size,
                    )
                )
    return operators


def _training_head(c: Configuration) -> list[Operators]:
    """The vocabulary projection and the loss for one micro-batch, once for the model and once for each
    further token predicted.

    A module of multi-token prediction projects the residual stream and the next token's embedding together
    to the width of the model (DeepSeek-V3, arXiv 2412.19437 §2.2); its layer counts with the model's own
    layers.
    """
    model, strategy = c.model, c.strategy
    logits, of_logits = vocabulary_projection(model, strategy.tp, strategy.tokens), 1 + model.mtp_layers
    aligned = aligned_logits(model, strategy, c.system.stack)
    if aligned is None:
        products = [(logits, of_logits)]
    else:
        unaligned = logits.of_role("unaligned head")
        products = [(logits, of_logits * aligned), (unaligned, of_logits * (1 - aligned))]
    if not absent(model.mtp_layers):
        size = (strategy.tokens, model.hidden / strategy.tp, 2 * model.hidden, 1.0)
        products.append((Gemms.table({"multi-token prediction projection": size}), model.mtp_layers))
    operators = [
        operators_of(table, part="head", per="micro-batch", runs=runs, direction=direction)
        for projection, runs in products
        for table, direction in (
            (projection, "forward"),
            (projection.input_gradient, "backward"),
            (projection.weight_gradient.added_to(strategy.gradient_width), "weights"),
        )
    ]
    moved = c.system.stack.loss_traffic * strategy.tokens * model.vocabulary / strategy.tp
    loss = Streams.table({"loss": moved})
    return [*operators, operators_of(loss, part="head", per="micro-batch", runs=of_logits)]


def _optimizer(c: Configuration, owned_parameters: Scalar) -> Operators:
    """Adam's update of the parameters that a device owns and does not leave to its host.

    It reads gradients for their norm and for the update, reads and writes the optimizer state, and writes
    weights.
    """
    strategy = c.strategy
    moved = 2 * strategy.gradient_width + 2 * strategy.optimizer_bytes + strategy.kept_weight_width
    updated = owned_parameters * (1 - strategy.offload_optimizer)
    return operators_of(Streams.table({"optimizer update": updated * moved}), part="optimizer", per="step")
