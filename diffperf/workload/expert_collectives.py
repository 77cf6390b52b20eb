"""The collectives of expert parallelism: tokens on their way to experts and back."""

import functools

import jax.numpy as jnp

from diffperf.quantity import Scalar
from diffperf.relax import inverse, smaller
from diffperf.workload.collective import (
    Collective,
    average_of_layers,
    destinations_reached,
    relative_by_kind,
)
from diffperf.workload.configuration import Configuration
from diffperf.workload.expert_tokens import expert_load, routed_tokens
from diffperf.workload.model import Layers
from diffperf.workload.passes import TokenPass


def expert_parallel_collectives(c: Configuration, tokens: TokenPass) -> list[Collective]:
    """Tokens go to experts by one all-to-all and come back by another (GShard, arXiv 2006.16668), each in a
    number format of its own, with their gradients likewise on the way back through the layers.

    They are padded to the experts' capacity, or as many as the busiest device gets. The tensor-parallel
    ranks of an expert gather them, and reduce what they made of them: a copy for each of a token's experts,
    or one for all that these ranks hold, as the stack sends tokens.
    """
    strategy, model = c.strategy, c.model
    mixtures = [(kind, kind.mixture) for kind in model.layers if kind.mixture is not None]
    if not mixtures:
        return []
    elements, runs = _routed_elements(c, tokens)
    ways = (
        ("dispatch to experts", "gathering of experts' tokens", strategy.dispatch_width),
        ("combination of experts' results", "reduction of experts' results", strategy.combine_width),
    )
    stride = strategy.stride_of("tp")
    moved = functools.partial(
        Collective,
        purpose="expert parallelism",
        forward=runs,
        backward=runs,
        by_kind=relative_by_kind(model, _routes),
    )
    layers = sum(kind.count for kind, _ in mixtures)

    def mean(number: str) -> Scalar:
        """The mean of a number of the mixtures over the layers that have one."""
        return jnp.asarray(sum(kind.count * getattr(mixture, number) for kind, mixture in mixtures)) / layers

    copies, groups, visited = map(mean, ("experts_per_token", "groups", "groups_visited"))
    once = c.system.stack.routed_once_per_domain
    # Of the copies of a token, those that are gathered.
    distinct = smaller(destinations_reached(strategy.ep, copies, groups, visited) * inverse(copies), 1.0)
    gathered = elements * (1 + once * (distinct - 1))
    collectives = []
    for exchange, gathering, width in ways:
        collectives += [
            moved(
                name=exchange,
                kind="all_to_all",
                degree=strategy.ep,
                stride=strategy.expert_stride,
                volume=elements * width,
                copies=copies,
                once=once,
                groups=groups,
                groups_visited=visited,
            ),
            moved(
                name=gathering,
                kind="all_gather",
                degree=strategy.experts_tp,
                stride=stride,
                volume=gathered * width * strategy.experts_tp,
            ),
        ]
    return collectives


def _routed_elements(c: Configuration, tokens: TokenPass) -> tuple[Scalar, Scalar]:
    """Elements that a device sends to experts in a layer that has any, and how often an average layer does.

    Serving, an average layer sends the mean over all layers, and the ranks of a tensor-parallel group all
    have their group's tokens: nothing is dispatched where the experts' ranks are among them.
    """
    strategy, model = c.strategy, c.model
    rank_tokens = tokens.tokens_on_rank(strategy)

    def routed(kind: Layers) -> Scalar:
        load = expert_load(strategy, kind.mixture if tokens.serving else None)
        return routed_tokens(kind, strategy, rank_tokens) * load * _routes(kind)

    elements = average_of_layers(model, routed) * model.hidden
    if not tokens.serving:
        return elements / model.routed_share, model.routed_share
    beyond_group = c.relax.excess(strategy.experts_tp * strategy.ep / strategy.tp, 1.0)
    return elements, c.relax.minimum(1.0, beyond_group)


def _routes(kind: Layers) -> Scalar:
    """1 for layers with experts, 0 for others."""
    return jnp.full_like(kind.heads, float(kind.mixture is not None))
