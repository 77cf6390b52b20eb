"""One transformer layer on one device: forward, backward, recomputation, and the tensor-parallel communication around it."""

import equinox as eqx
import jax
import jax.numpy as jnp

from diffperf.estimate.attention import attention_backward, attention_forward
from diffperf.estimate.elementwise import layer_stream_work
from diffperf.estimate.gemm import gemm_work
from diffperf.estimate.machine import Machine, Work
from diffperf.quantity import Scalar
from diffperf.relax import choose
from diffperf.workload.model import Layers, Model
from diffperf.workload.operators import attention_core, elementwise_backward, elementwise_forward, linear_layers
from diffperf.workload.strategy import Strategy


class LayerWork(eqx.Module):
    """Work by class of operator."""

    matmul: Work
    attention: Work
    elementwise: Work

    @property
    def total(self) -> Work:
        return self.matmul + self.attention + self.elementwise

    def __mul__(self, count: Scalar) -> "LayerWork":
        return LayerWork(self.matmul * count, self.attention * count, self.elementwise * count)


def layer_forward(
    layers: Layers,
    model: Model,
    strategy: Strategy,
    machine: Machine,
    sequences: Scalar,
    queries: Scalar,
    context: Scalar,
) -> LayerWork:
    """`queries` new tokens of each of `sequences` sequences through one layer.

    Training and prefill have queries = context, decode has one query.
    """
    tokens = sequences * queries
    core = attention_core(layers, strategy.tp, sequences, queries, context)
    return LayerWork(
        gemm_work(linear_layers(layers, model.hidden, strategy.tp, tokens), machine).total(),
        attention_forward(core, layers.dropout[1], machine, strategy.attention),
        layer_stream_work(elementwise_forward(layers, model, strategy, tokens), machine).total(),
    )


def layer_backward(
    layers: Layers, model: Model, strategy: Strategy, machine: Machine, sequences: Scalar, queries: Scalar
) -> LayerWork:
    """Gradients of inputs and weights."""
    tokens = sequences * queries
    core = attention_core(layers, strategy.tp, sequences, queries, queries)
    return LayerWork(
        gemm_work(linear_layers(layers, model.hidden, strategy.tp, tokens).backward, machine).total(),
        attention_backward(core, layers.dropout[1], machine, strategy.attention),
        layer_stream_work(elementwise_backward(layers, model, strategy, tokens), machine).total(),
    )


def recomputed(forward: LayerWork, strategy: Strategy) -> Work:
    """What the backward pass computes again: nothing, the attention core, or everything.

    FlashAttention's backward kernel recomputes the core by itself, so selective recomputation adds nothing to it.
    """
    nothing = jax.tree.map(jnp.zeros_like, forward.attention)

    def selective():
        return choose(strategy.attention, [lambda: forward.attention, lambda: nothing])

    return choose(strategy.recompute, [lambda: nothing, selective, lambda: forward.total])


def average_layer(model: Model, work_of, *args) -> tuple:
    """`work_of(layers, *args)` averaged over all layers of the model, its kinds evaluated on one stacked axis."""
    layers = model.stacked_layers
    share = layers.count / model.depth
    per_kind = jax.vmap(lambda kind: work_of(kind, *args))(layers)
    return jax.tree.map(lambda leaf: jnp.tensordot(share, leaf, axes=1), per_kind)
