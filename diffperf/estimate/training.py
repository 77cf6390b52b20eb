"""One training step: a pipeline of transformer layers over micro-batches, then gradient reduction and the optimizer."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.cost.ownership import Cost, run_cost
from diffperf.estimate.communication import Communication, communication
from diffperf.estimate.energy import Energy, energy
from diffperf.estimate.kernels.roofline import Machine, Work, waiting
from diffperf.estimate.layer import LayerStep, training_layers
from diffperf.hardware.formats import width
from diffperf.hardware.system import System
from diffperf.quantity import Scalar, Weights, output
from diffperf.relax import Exact, Relaxation, absent, choose, inverse, larger, smaller
from diffperf.report.tables import Readable
from diffperf.workload.memory import (
    Memory,
    StageParameters,
    kept_share,
    stage_activation_bytes,
    stage_parameters,
    training_memory,
    zero_ranks,
)
from diffperf.workload.model import Model
from diffperf.workload.operators import Gemms, concatenate, head
from diffperf.workload.schedule import StagePass, bubble, stage_layers
from diffperf.workload.strategy import Strategy


class StepTime(eqx.Module):
    """Where a training step goes, seen by the slowest pipeline stage. Adds up to the step time."""

    matmul: Scalar = output("s", "linear layers", table="gemm")
    attention: Scalar = output("s", "attention cores", table="attention")
    elementwise: Scalar = output("s", "norms, activations, residuals")
    recompute: Scalar = output("s", "recomputed activations")
    host: Scalar = output("s", "waiting for the host")
    head: Scalar = output("s", "vocabulary projection and loss", table="gemm")
    tensor_parallel: Scalar = output("s", "tensor-parallel communication", table="collectives")
    context_parallel: Scalar = output("s", "exposed context-parallel communication", table="collectives")
    expert_parallel: Scalar = output("s", "tokens to experts and back", table="collectives")
    pipeline_bubble: Scalar = output("s", "pipeline bubble")
    pipeline_transfers: Scalar = output("s", "transfers between pipeline stages", table="collectives")
    data_parallel: Scalar = output("s", "exposed data-parallel communication", table="collectives")
    offload: Scalar = output("s", "exposed transfers to host memory")
    optimizer: Scalar = output("s", "optimizer")

    @property
    def total(self) -> Scalar:
        compute = self.matmul + self.attention + self.elementwise + self.recompute + self.host + self.head
        network = (
            self.tensor_parallel
            + self.context_parallel
            + self.expert_parallel
            + self.pipeline_transfers
            + self.data_parallel
        )
        return compute + network + self.pipeline_bubble + self.offload + self.optimizer


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

    Korthikanti et al. (arXiv 2205.05198, Appendix A): 72·b·s·l·h²·(1 + s/6h + V/12hl) for a plain GPT. Modules that predict
    further tokens count as well.
    """

    def forward(kind) -> Scalar:
        if kind.recurrence is not None:  # as many elements as tokens, and no scores
            return 2 * kind.active_matrices(model.hidden)
        seen = smaller(context * jnp.ones_like(kind.window), kind.window)
        return 2 * kind.active_matrices(model.hidden) + 2 * seen * kind.heads * (
            kind.head_dim + kind.value_dim
        )

    layers = sum(kind.count * forward(kind) for kind in model.layers)
    ahead = model.mtp_layers * (
        forward(model.layers[-1]) + 4 * model.hidden**2 + 2 * model.embedding_parameters
    )
    return 3 * tokens * (layers + 2 * model.embedding_parameters + ahead)


def _head_gemms(model: Model, strategy: Strategy) -> Gemms:
    """The vocabulary projection, both passes, and the projections of modules that predict further tokens."""
    logits, one = head(model, strategy.tp, strategy.tokens), jnp.ones_like(strategy.tokens)
    if absent(model.mtp_layers):
        return concatenate(logits, logits.backward)
    ahead = Gemms.table((strategy.tokens, model.hidden / strategy.tp, 2 * model.hidden, one))
    return concatenate(logits, logits.backward, ahead, ahead.backward)


class StepWork(eqx.Module):
    """What a device takes for one micro-batch, and for the optimizer."""

    layer: LayerStep
    head: Work
    optimizer: Work


def _step_work(model: Model, strategy: Strategy, machine: Machine, owned: Scalar) -> StepWork:
    """All kernels of a step, in one evaluation of each kind.

    The loss moves 24 bytes per logit: cast (2 + 4), maximum (4), exponential and sum (4 + 4), gradient (4 + 2). Adam reads
    gradients for the norm and for the update, reads and writes the optimizer state, and writes weights.
    """
    per_byte = inverse(machine.activation)
    loss = 24 * per_byte * strategy.tokens * model.vocabulary / strategy.tp
    adam = 2 * width(strategy.gradient_precision) + 2 * strategy.optimizer_bytes + strategy.kept_weight_width
    layer, gemms, streams = training_layers(
        model,
        strategy,
        machine,
        {"head": _head_gemms(model, strategy)},
        {"loss": loss, "optimizer": owned * (1 - strategy.offload_optimizer) * adam * per_byte},
    )
    times = jnp.concatenate([jnp.repeat(1 + model.mtp_layers, 3), jnp.repeat(model.mtp_layers, 3)])
    projections = _weighted(gemms["head"], times[: len(gemms["head"].time)])
    return StepWork(layer, projections + streams["loss"] * (1 + model.mtp_layers), streams["optimizer"])


def _weighted(work: Work, times: Float[Array, " operators"]) -> Work:
    """Of operators that each run some number of times."""
    return Work(work.time * times, work.flops * times, work.traffic * times).total()


def _exposed(communication: Scalar, hides: Scalar, overlap: Array, relax: Relaxation) -> Scalar:
    """What is left of communication that runs under `hides` seconds of computation where it may."""
    return choose(overlap, {"off": lambda: communication, "on": lambda: relax.excess(communication, hides)})


def _host_times(
    model: Model, system: System, strategy: Strategy, owned: Scalar, relax: Relaxation
) -> tuple[Scalar, Scalar]:
    """Seconds of a step to carry activations to host memory and back, and gradients there and weights back for its optimizer."""
    per_byte = inverse(system.host_bandwidth)
    kept = stage_activation_bytes(model, system, strategy, relax) * strategy.micro_batches
    carried = strategy.offload_activations * kept
    states = (
        owned * strategy.offload_optimizer * (width(strategy.gradient_precision) + strategy.kept_weight_width)
    )
    return 2 * carried * per_byte, states * per_byte


def _owned(strategy: Strategy, parameters: StageParameters, relax: Relaxation) -> Scalar:
    """Parameters that a device updates."""
    ranks = (
        zero_ranks(strategy, replicas, relax) for replicas in (strategy.replicas, strategy.expert_replicas)
    )
    return parameters.times(*(kept_share(strategy, 1, of) for of in ranks))


def training_step(
    model: Model, system: System, strategy: Strategy, relax: Relaxation | None = None
) -> TrainingReport:
    """One optimizer step over `strategy.global_batch` sequences.

    The slowest stage works through all micro-batches; filling and draining the pipeline leaves it idle for the schedule's bubble.
    Vocabulary projection and loss are on the last stage, with the modules that predict further tokens.
    """
    relax = Exact() if relax is None else relax
    machine = Machine.of(system, strategy, relax)
    micro_batches, chunks = strategy.micro_batches, strategy.virtual_stages

    parameters = stage_parameters(model, strategy, relax)
    owned = _owned(strategy, parameters, relax)
    work = _step_work(model, strategy, machine, owned)
    told = communication(model, system, strategy, parameters, relax)
    memory = training_memory(model, system, strategy, relax)

    fullest, last = stage_layers(model, strategy, relax)
    exposed = _layer_communication(told, work.layer, strategy, relax)
    stage, waits = _stage_pass(
        work.layer, exposed, fullest, *_launches(told, model, system, strategy, relax), strategy
    )
    # Where other stages take longer than the last, it waits for them as if it had more layers.
    of_layer = work.layer.work.time + exposed.total + waits
    last = larger(last, relax.excess(fullest, work.head.time * strategy.balanced_head.on * inverse(of_layer)))
    # Layers that the slowest stage runs in a step: modules that predict further tokens are on the last.
    passes = micro_batches * (last + model.mtp_layers)
    transfers = told.boundary * (
        2 * chunks * micro_batches
    )  # every chunk boundary, once forward and once backward
    data_parallel = _data_parallel(told, work.layer, exposed, fullest, system, strategy, relax)
    activations, states = _host_times(model, system, strategy, owned, relax)
    compute = passes * work.layer.work.time

    layer = work.layer
    breakdown = StepTime(
        matmul=passes * (layer.forward.matmul.time + layer.backward.matmul.time),
        attention=passes * (layer.forward.attention.time + layer.backward.attention.time),
        elementwise=passes * (layer.forward.elementwise.time + layer.backward.elementwise.time),
        recompute=passes * layer.again.time,
        host=passes * waits + system.stack.step_overhead,
        head=micro_batches * work.head.time,
        tensor_parallel=passes * exposed.tensor,
        context_parallel=passes * exposed.context,
        expert_parallel=passes * exposed.experts,
        pipeline_bubble=bubble(stage, strategy, relax),
        pipeline_transfers=_exposed(transfers.time, compute, strategy.overlap_transfers, relax),
        data_parallel=data_parallel,
        offload=relax.excess(activations, compute) + states,
        optimizer=work.optimizer.time,
    )
    per_device = micro_batches * model.depth / strategy.pp  # layers that an average device runs in a step
    ahead = micro_batches * model.mtp_layers / strategy.pp
    done = layer.work * (per_device + ahead) + work.head * (micro_batches / strategy.pp) + work.optimizer
    sent = (told.tensor + told.context + told.experts) * (per_device + ahead) + transfers
    sent = sent + told.gradients + told.weights + told.embedding * (2 / strategy.pp)
    return _report(model, system, strategy, machine, breakdown, memory, done, sent)


class _LayerTimes(eqx.Module):
    """Seconds of a layer and micro-batch, both passes, that communication takes and nothing hides."""

    tensor: Scalar
    context: Scalar
    experts: Scalar

    @property
    def total(self) -> Scalar:
        return self.tensor + self.context + self.experts


def _layer_communication(
    told: Communication, layer: LayerStep, strategy: Strategy, relax: Relaxation
) -> _LayerTimes:
    """Tensor-parallel communication hides under matrix products, the ring of keys and values under attention, the dispatch to
    experts under another micro-batch's layer."""
    matmul = layer.forward.matmul.time + layer.backward.matmul.time
    attention = layer.forward.attention.time + layer.backward.attention.time
    hidden = strategy.overlap_context.on * strategy.context_parallel.ring
    ring = Weights(jnp.stack([1 - hidden, hidden]), ("off", "on"))
    return _LayerTimes(
        _exposed(told.tensor.time, matmul, strategy.overlap_tensor, relax),
        _exposed(told.context.time, attention, ring, relax),
        _exposed(told.experts.time, layer.work.time, strategy.overlap_experts, relax),
    )


def _launches(
    told: Communication, model: Model, system: System, strategy: Strategy, relax: Relaxation
) -> tuple[Scalar, Scalar]:
    """Seconds that the host takes to launch the kernels of one pass of a layer, and that a forward pass waits for it to read how
    many tokens are routed to each expert; experts of a set capacity do not ask."""
    stack = system.stack
    stalls = told.leaves * relax.minimum(strategy.tp - 1, 1.0) * strategy.tp * stack.rank_stall
    return stack.host_launch + stalls, jnp.where(
        strategy.capacity_factor > 0, 0.0, model.routed_share * stack.routing_wait
    )


def _stage_pass(
    layer: LayerStep,
    exposed: _LayerTimes,
    layers: Scalar,
    launch: Scalar,
    routing: Scalar,
    strategy: Strategy,
) -> tuple[StagePass, Scalar]:
    """A stage's passes of one micro-batch, half of the communication in either; and how long each of its layers waits for the host.

    The host launches kernels ahead of the device, which waits where its queue runs empty: the longer of both, nearly.
    """
    half, again = exposed.total / 2, strategy.recompute.full * strategy.recompute_share
    forward, backward = layer.forward.total.time + half, layer.backward.total.time + layer.again.time + half
    waits = waiting(forward, launch) + routing, waiting(backward, (1 + again) * launch)
    stage = StagePass(
        layers * (forward + waits[0]), layers * (backward + waits[1]), layers * layer.weight_gradients.time
    )
    return stage, sum(waits)


def _data_parallel(
    told: Communication,
    layer: LayerStep,
    exposed: _LayerTimes,
    layers: Scalar,
    system,
    strategy: Strategy,
    relax: Relaxation,
) -> Scalar:
    """Seconds of a step that gradient reduction and weight gathering take and nothing hides, and by which they slow what does.

    Gradients are reduced under the backward pass of the last micro-batch, or of every one where ZeRO shards them. Weights are
    gathered under the forward pass of the first, or under both passes of every one where ZeRO shards them too.
    """
    each = strategy.zero["2"] + strategy.zero["3"]
    whole = 1 + strategy.zero["3"] * (strategy.micro_batches - 1)
    backward = layers * (layer.backward.total.time + layer.again.time + exposed.total / 2)
    forward = layers * (layer.forward.total.time + exposed.total / 2)
    under_backward = (1 + each * (strategy.micro_batches - 1)) * backward
    under_forward = whole * (forward + strategy.zero["3"] * backward)
    reduction = _exposed(told.gradients.time, under_backward, strategy.overlap_gradients, relax)
    gathering = _exposed(told.weights.time, under_forward, strategy.overlap_weights, relax)
    hidden = told.gradients.time + told.weights.time - reduction - gathering
    return reduction + gathering + system.stack.overlap_contention * hidden + told.embedding.time


def _report(
    model: Model,
    system: System,
    strategy: Strategy,
    machine: Machine,
    breakdown: StepTime,
    memory: Memory,
    work: Work,
    sent,
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
        memory=memory,
        energy=spent,
        cost=run_cost(system, time, spent.total, machine.relax),
    )
