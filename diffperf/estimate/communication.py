"""What the devices of a training step tell each other, and how long it takes on the network if nothing hides it."""

import functools
import operator

import equinox as eqx
import jax.numpy as jnp

from diffperf.estimate.network.collectives import Group, Request, Transfer, transfers
from diffperf.hardware.formats import width
from diffperf.hardware.system import System
from diffperf.quantity import Scalar
from diffperf.relax import Relaxation, choose, larger
from diffperf.workload.memory import StageParameters, zero_ranks
from diffperf.workload.model import Layers, Model
from diffperf.workload.operators import expert_load, routed_tokens
from diffperf.workload.schedule import copies
from diffperf.workload.strategy import ORDERS, Strategy


class Communication(eqx.Module):
    """All of a step's. Per layer: of an average one, for one micro-batch and both passes, recomputation included."""

    tensor: Transfer  # tensor-parallel, per layer
    context: Transfer  # context-parallel, per layer
    experts: Transfer  # tokens to experts and back, per layer
    gradients: Transfer  # data-parallel, per step
    weights: Transfer  # gathered from those who own them (ZeRO), per step
    embedding: Transfer  # between the stages that share a tied embedding, per step
    boundary: Transfer  # one way across a boundary between pipeline stages, for one micro-batch
    leaves: Scalar  # 1 where a boundary between pipeline stages leaves the innermost tier of the network, 0 where none does


def strides(strategy: Strategy) -> dict[str, Scalar]:
    """How many devices lie between neighbours of each group, by the order of the groups."""
    found = {}
    for name in ("tp", "cp", "dp", "pp"):
        of_orders = []
        for order in (text.split("-") for text in ORDERS):
            inside = order[: order.index(name)]
            of_orders.append(
                functools.reduce(
                    operator.mul, [getattr(strategy, other) for other in inside], jnp.ones_like(strategy.tp)
                )
            )
        found[name] = jnp.sum(strategy.order.array * jnp.stack(of_orders))
    return found


def _replica_stride(strategy: Strategy, apart: dict[str, Scalar]) -> Scalar:
    """Between context- and data-parallel ranks as one group: evenly over all that they span."""
    return larger(apart["cp"] * strategy.cp, apart["dp"] * strategy.dp) / strategy.replicas


def _average(model: Model, of) -> Scalar:
    """Over the layers of a model."""
    return sum(kind.count * of(kind) for kind in model.layers) / model.depth


def _reductions(layers: Layers) -> Scalar:
    """All-reduces of the residual stream in one pass of a layer: after attention, and after an MLP or shared experts that do not
    stand beside it."""
    if layers.mixture is None:
        return 2 - layers.parallel.on
    return 1 + jnp.where(layers.mixture.shared_ffn > 0, 1 - layers.parallel.on, 0.0)


def _kv_elements(layers: Layers, strategy: Strategy) -> Scalar:
    """Elements per token of keys and values on a tensor-parallel rank; a recurrence passes on its state alone."""
    if layers.recurrence is not None:
        return 0.0 * layers.heads
    if layers.latent is None:
        return 2 * layers.kv_heads_on_rank(strategy.tp) * layers.head_dim
    return layers.heads / strategy.tp * (layers.head_dim + layers.value_dim)


def _query_elements(layers: Layers, strategy: Strategy) -> Scalar:
    """Elements per token of queries and outputs on a tensor-parallel rank."""
    if layers.recurrence is not None:
        return 0.0 * layers.heads
    return layers.heads / strategy.tp * (layers.head_dim + layers.value_dim)


def communication(
    model: Model, system: System, strategy: Strategy, parameters: StageParameters, relax: Relaxation
) -> Communication:
    """Every group's, each kind of collective evaluated once for all groups.

    - Tensor parallelism all-reduces the residual stream twice a pass, or moves as many bytes in reduce-scatters and gathers with
      sequence parallelism (arXiv 2205.05198 §4.2.2); full recomputation repeats the forward ones.
    - Context parallelism passes keys and values around a ring, with their gradients on the way back (arXiv 2310.01889), or
      exchanges heads for tokens before and after attention (arXiv 2309.14509).
    - Experts get tokens by all-to-all and give them back by another (arXiv 2006.16668), padded to their capacity, or as many as the
      busiest device gets; their tensor-parallel ranks gather them.
    - Gradients are all-reduced, or reduce-scattered to their owners and weights gathered from them (ZeRO, arXiv 1910.02054 §7): a
      step's at once, from stage 2 on gradients, and at stage 3 weights too, layer by layer for every micro-batch, and the weights
      for either pass. Ranks that share in groups (hybrid: arXiv 2304.11277 §3.2.2) all-reduce their parts between the groups.
    - A tied embedding's gradients go between the first and the last stage (arXiv 1909.08053 §5). Across a boundary between stages
      each tensor-parallel rank sends its share (arXiv 2104.04473 §4.1).
    """
    apart, element = strides(strategy), strategy.activation_width
    residual = strategy.tokens * model.hidden * element
    gradient, weight = width(strategy.gradient_precision), strategy.kept_weight_width
    again = strategy.recompute.full * strategy.recompute_share
    ends = relax.minimum(strategy.pp, 2.0)
    between = apart["pp"] * strategy.pp / ends

    mixtures = [kind for kind in model.layers if kind.mixture is not None]
    # Parts of a stage that the same ranks hold: parameters, of both stages with DualPipe, ranks, how far apart.
    twice = copies(strategy)
    held = {"dense": (twice * parameters.dense, strategy.replicas, _replica_stride(strategy, apart))}
    kv = _average(model, lambda kind: _kv_elements(kind, strategy))
    requests = {
        "tensor": Request(Group.all_reduce, strategy.tp, apart["tp"], residual),
        "embedding": Request(
            Group.all_reduce, ends, between, model.embedding_parameters / strategy.tp * gradient
        ),
        "boundary": Request(Group.send, strategy.pp, apart["pp"], residual / strategy.tp),
        "ring": Request(Group.send, strategy.cp, apart["cp"], strategy.tokens * element * kv),
    }
    if strategy.context_parallel.possible("all_to_all"):
        each = (
            kv + _average(model, lambda kind: _query_elements(kind, strategy))
        ) / 2  # before attention, and after
        requests["heads"] = Request(
            Group.all_to_all, strategy.cp, apart["cp"], strategy.tokens * element * each
        )
    if mixtures:
        held["experts"] = (
            twice * parameters.experts,
            strategy.expert_replicas,
            apart["tp"] * strategy.experts_tp * strategy.ep,
        )
        routed = (
            sum(kind.count * routed_tokens(kind, strategy, strategy.tokens) for kind in mixtures)
            / model.depth
        )
        volume = routed * expert_load(strategy) * model.hidden * element
        visited = sum(kind.count * kind.mixture.experts_per_token for kind in mixtures) / sum(
            kind.count for kind in mixtures
        )
        apart_experts, once = apart["tp"] * strategy.experts_tp, system.stack.routed_once_per_domain
        requests["dispatch"] = Request(Group.all_to_all, strategy.ep, apart_experts, volume, visited, once)
        requests["gather"] = Request(
            Group.all_gather, strategy.experts_tp, apart["tp"], volume * strategy.experts_tp
        )

    units = 1 + strategy.zero["3"] * (
        model.depth / strategy.pp - 1
    )  # collectives in which ZeRO moves a stage's parameters
    for name, (size, ranks, stride) in held.items():
        if strategy.zero.possible("0"):
            requests[f"all {name}"] = Request(Group.all_reduce, ranks, stride, size * gradient)
        if strategy.zero.possible("1", "2", "3"):
            some = zero_ranks(strategy, ranks, relax)
            requests[f"own {name}"] = Request(Group.reduce_scatter, some, stride, size * gradient / units)
            requests[f"others' {name}"] = Request(Group.reduce_scatter, some, stride, size * weight / units)
            requests[f"across {name}"] = Request(
                Group.all_reduce, ranks / some, stride * some, size * gradient / some
            )
    found = transfers(system, relax, requests, system.stack.network_efficiency)

    def total(which: str) -> Transfer:
        return functools.reduce(operator.add, [found[f"{which} {name}"] for name in held])

    def at_once() -> tuple[Transfer, Transfer]:
        return total("all"), Transfer.nothing(system)

    def in_shares() -> tuple[Transfer, Transfer]:
        every = 1 + (strategy.zero["2"] + strategy.zero["3"]) * (strategy.micro_batches - 1)
        both = 1 + strategy.zero["3"] * (2 * strategy.micro_batches - 1)
        return total("own") * (units * every) + total("across"), total("others'") * (units * both)

    gradients, weights = choose(strategy.zero, {"0": at_once, "1": in_shares, "2": in_shares, "3": in_shares})
    context = {
        "ring": lambda: found["ring"] * ((strategy.cp - 1) * (3 + again)),
        "all_to_all": lambda: found["heads"] * (2 * (2 + again)),
    }
    there_and_back = found["dispatch"] + found["gather"] if mixtures else Transfer.nothing(system)
    return Communication(
        tensor=found["tensor"] * ((2 + again) * _average(model, _reductions)),
        context=choose(strategy.context_parallel, context),
        experts=there_and_back * (2 * (2 + again)),
        gradients=gradients,
        weights=weights,
        embedding=found["embedding"] * model.tied_embeddings.on,
        boundary=found["boundary"],
        leaves=relax.minimum(
            (strategy.pp - 1) * jnp.sum(found["boundary"].sent[1:]) * strategy.tp / residual, 1.0
        ),
    )
