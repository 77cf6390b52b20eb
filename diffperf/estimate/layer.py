"""What transformer layers take of a device: first the tables of all they ask for, then one evaluation of each kind of kernel.

A program's compilation and its derivatives cost as much as the expressions in it, so all matrix products of a phase are one
table, and so are all element-wise kernels and all attention cores, whatever layers and passes they belong to.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.estimate.kernels.attention import (
    context_passes,
    context_work,
    generation_work,
    softmax_elements,
)
from diffperf.estimate.kernels.elementwise import as_fused, stream_work
from diffperf.estimate.kernels.gemm import gemm_work
from diffperf.estimate.kernels.roofline import Machine, Work, together
from diffperf.quantity import Scalar
from diffperf.relax import choose
from diffperf.workload.model import Layers, Model
from diffperf.workload.operators import (
    AttentionCore,
    Gemms,
    attention_core,
    elementwise_backward,
    elementwise_forward,
    linear_layers,
    recurrence_kernels,
)
from diffperf.workload.strategy import Strategy


class LayerWork(eqx.Module):
    """Work by class of operator."""

    matmul: Work
    attention: Work
    elementwise: Work

    @property
    def total(self) -> Work:
        return self.matmul + self.attention + self.elementwise

    def __add__(self, other: "LayerWork") -> "LayerWork":
        return jax.tree.map(jnp.add, self, other)

    def __mul__(self, count: Scalar) -> "LayerWork":
        return LayerWork(self.matmul * count, self.attention * count, self.elementwise * count)


class LayerStep(eqx.Module):
    """What an average layer takes of a device for one micro-batch: both passes."""

    forward: LayerWork
    backward: LayerWork
    weight_gradients: Work  # the part of the backward pass that no other layer waits for
    again: Work  # recomputation

    @property
    def work(self) -> Work:
        return self.forward.total + self.backward.total + self.again


class LayerTables(eqx.Module):
    """What layers of one structure ask for; the leading axis of all runs over their kinds."""

    share: Float[Array, " kinds"]  # of the model's layers that are of a kind
    linear: Gemms
    core: AttentionCore | None  # none where a recurrence takes its place
    scores: Gemms | None  # of standard attention
    softmax: tuple[
        Float[Array, "kinds 2"], Float[Array, "kinds 2"]
    ]  # of standard attention or a recurrence, each pass
    forward: Float[Array, "kinds kernels"]
    backward: Float[Array, "kinds kernels"]

    def average(self, work: Work) -> Work:
        """Of a layer, from the work of the operators of every kind: [..., kinds, operators]."""
        return jax.tree.map(lambda leaf: jnp.sum(leaf * self.share, axis=-1), work.total())


def layer_tables(
    model: Model,
    strategy: Strategy,
    sequences: Scalar,
    queries: Scalar,
    context: Scalar,
    *,
    generating: bool = False,
) -> list[LayerTables]:
    """`queries` new tokens of each of `sequences` sequences in layers of every structure."""
    tokens = sequences * queries / strategy.cp

    def of(layers: Layers) -> LayerTables:
        if layers.recurrence is None:
            core = attention_core(layers, strategy, sequences, queries, context, generating=generating)
            scores = core.gemms
            softmax = tuple(
                softmax_elements(core, layers.dropout.on, backward=backward) for backward in (False, True)
            )
        else:
            core, scores, softmax = (
                None,
                None,
                tuple(recurrence_kernels(layers, strategy, sequences, queries)),
            )
        return LayerTables(
            layers.count / model.depth,
            linear_layers(layers, model.hidden, strategy, tokens),
            core,
            scores,
            softmax,
            elementwise_forward(layers, model, strategy, tokens),
            elementwise_backward(layers, model, strategy, tokens),
        )

    return [jax.vmap(of)(group) for group in model.kinds]


def _attention(strategy: Strategy, standard, fused) -> Work:
    """By weights over the kernels, each evaluated as far as it may have weight."""
    return choose(strategy.attention, {"standard": standard, "flash": fused})


def _ring(strategy: Strategy, machine: Machine) -> Work | float:
    """What a ring of context-parallel ranks adds to fused attention: a kernel for every block of keys and values but the first."""
    each = machine.accelerator.attention.latency + machine.kernel_overhead
    return strategy.context_parallel.ring * (strategy.cp - 1) * each


def _sum(works: list) -> LayerWork | Work:
    return jax.tree.map(lambda *leaves: sum(leaves), *works)


def training_layers(
    model: Model, strategy: Strategy, machine: Machine, gemms: dict[str, Gemms], streams: dict[str, Array]
) -> tuple[LayerStep, dict[str, Work], dict[str, Work]]:
    """Both passes of one micro-batch through an average layer; and what other GEMMs and element-wise kernels take, by name."""
    length = strategy.sequence_length
    groups = list(enumerate(layer_tables(model, strategy, strategy.micro_batch, length, length)))
    fused_bytes, standard = as_fused(machine), strategy.attention.possible("standard")
    for i, layers in groups:
        gemms = gemms | {
            f"forward {i}": layers.linear,
            f"inputs {i}": layers.linear.input_gradient,
            f"weights {i}": layers.linear.weight_gradient,
        }
        streams = streams | {
            f"forward {i}": layers.forward * fused_bytes,
            f"backward {i}": layers.backward * fused_bytes,
        }
        if standard and layers.scores is not None:
            gemms |= {f"scores {i}": layers.scores, f"gradients of scores {i}": layers.scores.backward}
        if standard or layers.core is None:
            streams |= {f"softmax {i}": layers.softmax[0], f"gradients of softmax {i}": layers.softmax[1]}
    products, moved = together(gemm_work, machine, gemms), together(stream_work, machine, streams)
    attending = {i: layers.core for i, layers in groups if layers.core is not None}
    cores = (
        together(context_passes, machine, attending)
        if attending and strategy.attention.possible("flash")
        else {}
    )

    def attention(i: int, layers: LayerTables, backward: bool) -> Work:
        which = "gradients of " if backward else ""
        if layers.core is None:
            return layers.average(moved[f"{which}softmax {i}"])

        def fused():
            work = jax.tree.map(lambda leaf: jnp.sum(leaf * layers.share, axis=-1), cores[i][int(backward)])
            return Work(
                work.time + (1 + backward) * _ring(strategy, machine) * jnp.sum(layers.share),
                work.flops,
                work.traffic,
            )

        return _attention(
            strategy,
            lambda: (
                layers.average(products[f"{which}scores {i}"]) + layers.average(moved[f"{which}softmax {i}"])
            ),
            fused,
        )

    def layer_pass(i: int, layers: LayerTables, backward: bool) -> LayerWork:
        parts = ("inputs", "weights") if backward else ("forward",)
        matmul = _sum([layers.average(products[f"{part} {i}"]) for part in parts])
        elementwise = (
            layers.average(moved[f"{'backward' if backward else 'forward'} {i}"])
            * machine.elementwise_kernels
        )
        return LayerWork(matmul, attention(i, layers, backward), elementwise)

    forward, backward = (
        _sum([layer_pass(i, layers, which) for i, layers in groups]) for which in (False, True)
    )
    weights = _sum([layers.average(products[f"weights {i}"]) for i, layers in groups])
    return LayerStep(forward, backward, weights, recomputed(forward, strategy)), products, moved


def recomputed(forward: LayerWork, strategy: Strategy) -> Work:
    """What the backward pass computes again: nothing, the attention core, or everything, in the layers that do so.

    FlashAttention's backward kernel recomputes the core by itself, so selective recomputation adds nothing to it. A recurrence
    counts as the core of its layers, and keeps what it wrote under FlashAttention.
    """
    nothing = jax.tree.map(jnp.zeros_like, forward.attention)

    def selective():
        return choose(strategy.attention, {"standard": lambda: forward.attention, "flash": lambda: nothing})

    return (
        choose(
            strategy.recompute,
            {"none": lambda: nothing, "selective": selective, "full": lambda: forward.total},
        )
        * strategy.recompute_share
    )


class Pass(eqx.Module):
    """New tokens of every sequence that one pass serves.

    - `generating`: each follows a context in the cache, rather than standing in a prompt.
    - `gathered`: tokens whose logits are needed, of all sequences.
    """

    sequences: Scalar
    queries: Scalar
    context: Scalar
    generating: bool = eqx.field(static=True)


def inference_layers(
    model: Model, strategy: Strategy, machine: Machine, passes: dict[str, Pass], gemms: dict[str, Gemms]
) -> tuple[dict[str, LayerWork], dict[str, Work]]:
    """Several passes through an average layer, each forward alone; and what other GEMMs take, by name."""
    standard, fused = strategy.attention.possible("standard"), strategy.attention.possible("flash")
    tables = {
        (name, i): layers
        for name, one in passes.items()
        for i, layers in enumerate(
            layer_tables(model, strategy, one.sequences, one.queries, one.context, generating=one.generating)
        )
    }
    streams = {}
    for key, layers in tables.items():
        attends = layers.core is not None
        gemms = (
            gemms
            | {("linear", key): layers.linear}
            | ({("scores", key): layers.scores} if standard and attends else {})
        )
        streams[key] = layers.forward * as_fused(machine)
        streams |= {("softmax", key): layers.softmax[0]} if standard or not attends else {}
    products, moved = together(gemm_work, machine, gemms), together(stream_work, machine, streams)
    kernels = {True: generation_work, False: context_work}
    cores = {}
    for generating in {one.generating for one in passes.values()} if fused else ():
        attending = {key: layers.core for key, layers in tables.items() if layers.core is not None}
        of_kernel = {key: core for key, core in attending.items() if passes[key[0]].generating == generating}
        cores |= together(kernels[generating], machine, of_kernel) if of_kernel else {}

    def layer(key, layers: LayerTables) -> LayerWork:
        recurrence = lambda: layers.average(moved["softmax", key])  # noqa: E731
        standard = lambda: layers.average(products["scores", key]) + layers.average(moved["softmax", key])  # noqa: E731
        fused = lambda: jax.tree.map(lambda leaf: jnp.sum(leaf * layers.share, axis=-1), cores[key])  # noqa: E731
        attention = recurrence() if layers.core is None else _attention(strategy, standard, fused)
        elementwise = layers.average(moved[key]) * machine.elementwise_kernels
        return LayerWork(layers.average(products["linear", key]), attention, elementwise)

    works = {
        name: _sum([layer(key, layers) for key, layers in tables.items() if key[0] == name])
        for name in passes
    }
    return works, products
