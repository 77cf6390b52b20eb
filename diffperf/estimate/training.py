"""One training step: a pipeline of transformer layers over micro-batches, then gradient reduction and the optimizer."""

import equinox as eqx
import jax.numpy as jnp

from diffperf.cost.ownership import Cost, run_cost
from diffperf.estimate.collectives import Group, Transfer, place, several
from diffperf.estimate.elementwise import stream_work
from diffperf.estimate.energy import Energy, energy
from diffperf.estimate.gemm import gemm_work
from diffperf.estimate.layer import LayerWork, average_layer, layer_backward, layer_forward, recomputed
from diffperf.estimate.machine import Machine, Work
from diffperf.hardware.accelerator import width
from diffperf.hardware.system import System
from diffperf.quantity import Scalar, output
from diffperf.relax import Exact, Relaxation, choose
from diffperf.report.tables import Readable
from diffperf.workload.memory import Memory, stage_parameters, training_memory
from diffperf.workload.model import Model
from diffperf.workload.operators import concatenate, head
from diffperf.workload.strategy import Strategy


class StepTime(eqx.Module):
    """Where a training step goes, seen by the slowest pipeline stage. Adds up to the step time."""

    matmul: Scalar = output("s", "linear layers", table="gemm")
    attention: Scalar = output("s", "attention cores", table="attention")
    elementwise: Scalar = output("s", "norms, activations, residuals")
    recompute: Scalar = output("s", "recomputed activations")
    head: Scalar = output("s", "vocabulary projection and loss", table="gemm")
    tensor_parallel: Scalar = output("s", "tensor-parallel communication", table="collectives")
    pipeline_bubble: Scalar = output("s", "pipeline bubble")
    pipeline_transfers: Scalar = output("s", "transfers between pipeline stages", table="collectives")
    data_parallel: Scalar = output("s", "gradient reduction that nothing hides", table="collectives")
    optimizer: Scalar = output("s", "optimizer")

    @property
    def total(self) -> Scalar:
        compute = self.matmul + self.attention + self.elementwise + self.recompute + self.head
        return compute + self.tensor_parallel + self.pipeline_bubble + self.pipeline_transfers + self.data_parallel + self.optimizer


class TrainingReport(Readable):
    """A training step: time, memory, energy and cost."""

    time: Scalar = output("s", "step time")
    tokens_per_second: Scalar = output("token/s", "tokens per second")
    mfu: Scalar = output("", "model FLOPs utilization (attention not masked, recomputation not counted)")
    hfu: Scalar = output("", "hardware FLOPs utilization (FLOPs executed)")
    power: Scalar = output("W", "average power per device")
    breakdown: StepTime
    memory: Memory
    energy: Energy
    cost: Cost


def model_flops(model: Model, tokens: Scalar, context: Scalar) -> Scalar:
    """FLOPs of one training pass over `tokens` tokens: three times the forward's GEMMs, attention over the whole context.

    Korthikanti et al. (arXiv 2205.05198, Appendix A): 72·b·s·l·h²·(1 + s/6h + V/12hl) for a plain GPT.
    """
    layers = sum(
        kind.count
        * (
            2 * model.hidden * kind.head_dim * (2 * kind.heads + 2 * kind.kv_heads)
            + 2 * model.hidden * kind.ffn * (2 + kind.gated[1]) * kind.experts_per_token
            + 4 * context * kind.heads * kind.head_dim
        )
        for kind in model.layers
    )
    return 3 * tokens * (layers + 2 * model.embedding_parameters)


def _head_work(model: Model, strategy: Strategy, machine: Machine, tokens: Scalar) -> Work:
    """Vocabulary projection, forward and backward, and the cross-entropy in fp32.

    The loss moves 24 bytes per logit: cast (2 + 4), maximum (4), exponential and sum (4 + 4), gradient (4 + 2).
    """
    gemms = head(model, strategy.tp, tokens)
    loss = jnp.reshape(24 / machine.width * tokens * model.vocabulary / strategy.tp, (1,))
    return gemm_work(concatenate(gemms, gemms.backward), machine).total() + stream_work(loss, machine).total()


class LayerStep(eqx.Module):
    """What an average layer takes of a device for one micro-batch: both passes."""

    forward: LayerWork
    backward: LayerWork
    again: Work  # recomputation

    @property
    def work(self) -> Work:
        return self.forward.total + self.backward.total + self.again


def _layer_step(model: Model, strategy: Strategy, machine: Machine) -> LayerStep:
    """An average layer of the model."""
    sequences, length = strategy.micro_batch, strategy.sequence_length

    def both_passes(kind):
        forward = layer_forward(kind, model, strategy, machine, sequences, length, length)
        backward = layer_backward(kind, model, strategy, machine, sequences, length)
        return forward, backward, recomputed(forward, strategy)

    return LayerStep(*average_layer(model, both_passes))


class Communication(eqx.Module):
    """What the devices of a training step tell each other."""

    layer: Transfer  # tensor-parallel, for one layer and micro-batch
    gradients: Transfer  # data-parallel, per step
    embedding: Transfer  # between the stages that share a tied embedding, per step
    boundary: Transfer  # one way across a boundary between pipeline stages, for one micro-batch


def _communication(model: Model, system: System, strategy: Strategy, parameters: Scalar, relax: Relaxation) -> Communication:
    """Tensor parallelism all-reduces the residual stream twice a pass, or moves as many bytes in reduce-scatters and gathers with
    sequence parallelism (arXiv 2205.05198 §4.2.2); full recomputation repeats the forward ones.

    Gradients are all-reduced, or under ZeRO-1 reduce-scattered and the weights all-gathered (arXiv 1910.02054 §7); a tied
    embedding's between the first and the last stage (arXiv 1909.08053 §5). Across a boundary, each tensor-parallel rank sends its
    share (arXiv 2104.04473 §4.1).
    """
    bytes_, gradient_bytes = width(strategy.precision), width(strategy.gradient_precision)
    residual = strategy.micro_batch * strategy.sequence_length * model.hidden * bytes_
    outside = strategy.tp * strategy.dp  # devices of a pipeline stage
    ends = relax.minimum(strategy.pp, 2.0)
    gradients, weights = parameters * gradient_bytes, parameters * bytes_

    layer, whole, embedding = several(
        Group.all_reduce,
        system,
        relax,
        (strategy.tp, 1.0, residual),
        (strategy.dp, strategy.tp, gradients),
        (ends, outside * strategy.pp / ends, model.embedding_parameters / strategy.tp * gradient_bytes),
    )

    def in_shares():
        scattered, gathered = several(
            Group.all_gather, system, relax, (strategy.dp, strategy.tp, gradients), (strategy.dp, strategy.tp, weights)
        )
        return scattered + gathered

    return Communication(
        layer=layer * (2 * (2 + strategy.recompute[2])),
        gradients=choose(strategy.zero, [lambda: whole, in_shares]),
        embedding=embedding * model.tied_embeddings[1],
        boundary=place(system, strategy.pp, outside, relax).send(residual / strategy.tp),
    )


def _optimizer_work(parameters: Scalar, strategy: Strategy, machine: Machine) -> Work:
    """Adam: gradients read for the norm and for the update, optimizer state read and written, weights written."""
    owned = parameters * choose(strategy.zero, [lambda: jnp.ones_like(strategy.dp), lambda: 1 / strategy.dp])
    bytes_ = owned * (2 * width(strategy.gradient_precision) + 2 * strategy.optimizer_bytes + machine.width)
    return stream_work(jnp.reshape(bytes_ / machine.width, (1,)), machine).total()


def training_step(model: Model, system: System, strategy: Strategy, relax: Relaxation | None = None) -> TrainingReport:
    """One optimizer step over `strategy.global_batch` sequences.

    The slowest stage works through all micro-batches; filling and draining the pipeline adds (p − 1)/v micro-batches of a stage
    (1F1B, and interleaved with v chunks: arXiv 2104.04473 §2.2). Vocabulary projection and loss are on the last stage.
    """
    relax = Exact() if relax is None else relax
    machine = Machine.of(system, strategy, relax)
    tokens = strategy.micro_batch * strategy.sequence_length
    micro_batches, chunks = strategy.micro_batches, strategy.virtual_stages

    layer = _layer_step(model, strategy, machine)
    head_work = _head_work(model, strategy, machine, tokens)
    stage_layers = relax.ceil(model.depth / (strategy.pp * chunks)) * chunks
    passes = micro_batches * stage_layers  # layers that the slowest stage runs in a step

    parameters = stage_parameters(model, strategy, relax)
    told = _communication(model, system, strategy, parameters, relax)
    transfers = told.boundary * (2 * chunks * micro_batches)  # every chunk boundary, once forward and once backward
    reduction = told.gradients
    hidden_under = stage_layers * (layer.backward.total.time + layer.again.time)
    exposed = choose(strategy.overlap_gradients, [lambda: reduction.time, lambda: relax.excess(reduction.time, hidden_under)])
    optimizer = _optimizer_work(parameters, strategy, machine)

    breakdown = StepTime(
        matmul=passes * (layer.forward.matmul.time + layer.backward.matmul.time),
        attention=passes * (layer.forward.attention.time + layer.backward.attention.time),
        elementwise=passes * (layer.forward.elementwise.time + layer.backward.elementwise.time),
        recompute=passes * layer.again.time,
        head=micro_batches * head_work.time,
        tensor_parallel=passes * told.layer.time,
        pipeline_bubble=(strategy.pp - 1) / chunks * stage_layers * (layer.work.time + told.layer.time),
        pipeline_transfers=transfers.time,
        data_parallel=exposed + told.embedding.time,
        optimizer=optimizer.time,
    )
    per_device = micro_batches * model.depth / strategy.pp  # layers that an average device runs in a step
    work = layer.work * per_device + head_work * (micro_batches / strategy.pp) + optimizer
    sent = told.layer * per_device + transfers + reduction + told.embedding * (2 / strategy.pp)
    return _report(model, system, strategy, machine, breakdown, work, sent)


def _report(
    model: Model, system: System, strategy: Strategy, machine: Machine, breakdown: StepTime, work: Work, sent: Transfer
) -> TrainingReport:
    """The report of a step: `work` and `sent` are those of an average device."""
    time, length = breakdown.total, strategy.sequence_length
    tokens = strategy.global_batch * length
    spent = energy(system, strategy.precision, work, sent, time)
    available = time * strategy.devices * machine.matrix.rate
    return TrainingReport(
        time=time,
        tokens_per_second=tokens / time,
        mfu=model_flops(model, tokens, length) / available,
        hfu=work.flops * strategy.devices / available,
        power=spent.total / (time * system.n_devices),
        breakdown=breakdown,
        memory=training_memory(model, system, strategy, machine.relax),
        energy=spent,
        cost=run_cost(system, time, spent.total, machine.relax),
    )
