"""One training step: a pipeline of transformer layers over micro-batches, then gradient reduction and the
optimizer.
"""

import functools
import operator

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.cost.ownership import Cost, run_cost
from diffperf.estimate.energy import Energy, energy, transfer_energy
from diffperf.estimate.exposure import Earlier, Traffic, Window, exposed
from diffperf.estimate.kernels.clock import Clock, OutsideKernels, clock_beside_waits
from diffperf.estimate.kernels.evaluation import TimedOperators, evaluate
from diffperf.estimate.kernels.machine import Machine
from diffperf.estimate.kernels.roofline import Work
from diffperf.estimate.network.transfers import TimedCollective, Transfer, transfers
from diffperf.estimate.phase_tables import PhaseTables, collective_table, operator_table
from diffperf.estimate.stage_time import LayerStep, LayerWaits, LayerWork, NetworkStep, SlowestStage
from diffperf.hardware.formats import PRECISIONS
from diffperf.hardware.system import System
from diffperf.quantity import Scalar, Weights, output
from diffperf.relax import Exact, Relaxation, absent, inverse, larger
from diffperf.report.tables import Readable
from diffperf.workload.assembly import training_operators
from diffperf.workload.collective import by_part
from diffperf.workload.collectives import late_exchange, training_collectives
from diffperf.workload.configuration import Configuration
from diffperf.workload.memory import Memory, stage_activation_bytes, training_memory
from diffperf.workload.model import Model
from diffperf.workload.model_flops import hardware_flops, model_flops
from diffperf.workload.passes import training_pass
from diffperf.workload.schedule import bubble, stage_messages
from diffperf.workload.stage_parameters import StageParameters, owned_parameters, stage_parameters
from diffperf.workload.stages import layers_of_model, over_kinds
from diffperf.workload.strategy import Strategy


class StepTime(Readable):
    """Seconds of a training step by part, seen by the slowest pipeline stage. The parts add up to the step
    time.
    """

    matmul: Scalar = output("s", "time of linear layers", table="gemm")
    attention: Scalar = output("s", "time of attention cores", table="attention")
    elementwise: Scalar = output("s", "time of norms, activations and residuals")
    recompute: Scalar = output("s", "time of recomputed activations")
    host: Scalar = output("s", "time for which devices wait for the host")
    head: Scalar = output("s", "time of the vocabulary projection and the loss", table="gemm")
    tensor_parallel: Scalar = output(
        "s", "exposed time of tensor-parallel communication", table="collectives"
    )
    context_parallel: Scalar = output(
        "s", "exposed time of context-parallel communication", table="collectives"
    )
    expert_parallel: Scalar = output(
        "s", "exposed time of the all-to-alls that bring tokens to experts and back", table="collectives"
    )
    pipeline_bubble: Scalar = output("s", "time of the pipeline bubble")
    pipeline_transfers: Scalar = output(
        "s", "exposed time of transfers between pipeline stages", table="collectives"
    )
    data_parallel: Scalar = output("s", "exposed time of data-parallel communication", table="collectives")
    offload: Scalar = output("s", "exposed time of transfers to and from host memory")
    optimizer: Scalar = output("s", "time of the optimizer step")

    @property
    def total(self) -> Scalar:
        """Seconds of the step: all parts together."""
        compute = self.matmul + self.attention + self.elementwise + self.recompute + self.host + self.head
        layer_network = self.tensor_parallel + self.context_parallel + self.expert_parallel
        network = layer_network + self.pipeline_transfers + self.data_parallel
        return compute + network + self.pipeline_bubble + self.offload + self.optimizer


class TrainingReport(Readable):
    """A training step: time, memory, energy and cost."""

    time: Scalar = output("s", "step time")
    tokens_per_second: Scalar = output("token/s", "tokens per second")
    mfu: Scalar = output("", "model FLOPs utilization (no causal mask in attention, without recomputation)")
    hfu: Scalar = output("", "hardware FLOPs utilization (no causal mask in attention, with recomputation)")
    power: Scalar = output("W", "average power per device")
    clock: Scalar = output(
        "", "clock of the compute units under its limits, over the clock of the peak rates"
    )
    frequency: Scalar = output(
        "Hz", "clock of the compute units; 0 where the accelerator's boost clock is not published"
    )
    voltage: Scalar = output(
        "", "supply voltage of the compute units, over that at the clock of the peak rates"
    )
    breakdown: StepTime
    memory: Memory
    energy: Energy
    cost: Cost


class TimedStep(eqx.Module):
    """A training step with all that it is made of: its operators and collectives, and the report that sums
    them.

    - `layer_passes`: passes, forward and backward together, of a micro-batch through a layer of each kind
      on the slowest stage.
    - `heads`, `embeddings`: micro-batches whose vocabulary projection the last stage computes, and whose
      tokens it embeds.
    - `exposed`: seconds of the step by the purpose of collectives.
    """

    report: TrainingReport
    operators: TimedOperators
    collectives: list[TimedCollective]
    layer_passes: Float[Array, " kinds"]
    heads: Scalar
    embeddings: Scalar
    exposed: dict[str, Scalar]

    @property
    def tables(self) -> PhaseTables:
        """The operators and collectives as tables, whose times add up to the report's breakdown."""
        counts = {"layer": self.layer_passes, "micro-batch": self.heads, "step": 1.0}

        def runs(timed: TimedCollective) -> Scalar:
            """Number of times that a collective runs in the step."""
            collective = timed.collective
            if collective.per == "step":
                return jnp.asarray(collective.forward, self.heads.dtype)
            if collective.per == "micro-batch":
                count = self.embeddings if collective.purpose == "embeddings" else self.heads
                return count * collective.forward
            of_kinds = jnp.asarray(collective.by_kind, self.heads.dtype)
            return over_kinds(self.layer_passes, of_kinds) * collective.in_layer

        return PhaseTables(
            operators=operator_table(self.operators, counts, trained=True),
            collectives=collective_table(self.collectives, runs, self.exposed),
        )


def training_step(
    model: Model, system: System, strategy: Strategy, relax: Relaxation | None = None
) -> TrainingReport:
    """One optimizer step over `strategy.global_batch` sequences.

    The slowest stage works through all micro-batches; filling and draining the pipeline leaves it idle for
    the schedule's bubble. Vocabulary projection and loss are on the last stage, with the modules of
    multi-token prediction.

    - `relax`: how max, min, ceil and step are evaluated; `Exact()` if None.

    **Returns:** the step's time in seconds by part, the memory of the fullest device in bytes, and energy in
    joules, power in watts and cost in USD. Every field of the report is declared with its unit.

    **Raises:** `ConfigError` for a layout that is not possible, if called as `dp.training_step` with numbers
    and an exact `relax`. Inside jit, grad and vmap nothing is checked.
    """
    relax = Exact() if relax is None else relax
    return timed_step(Configuration(model=model, system=system, strategy=strategy, relax=relax)).report


def timed_step(c: Configuration) -> TimedStep:
    """The step of a configuration, with all that it is made of."""
    c = c.for_training()
    parameters = stage_parameters(c.model, c.strategy, c.relax)
    owned = owned_parameters(c.strategy, parameters, c.relax)
    device = _DeviceShare.of(c)
    collectives = _timed_collectives(c, parameters)
    network = NetworkStep.of(collectives, c)
    sent = network.sent(device.layers, device.heads, c.strategy.pp)
    machine = Machine.of(_computing_system(c), c.strategy, c.relax)
    operators = evaluate(training_operators(c, owned), machine)
    work = _StepWork.of(operators)
    clock = _clock(c, machine, work, device, network, sent)
    work, operators = work.at(clock), clock.slow_all(operators)
    slowest = _SlowestWork.of(c, work, network)
    exposed_times = _exposed_times(c, network, slowest)
    breakdown = _breakdown(c, slowest, exposed_times, owned)
    return TimedStep(
        report=_report(c, breakdown, device.work(work), sent, clock),
        operators=operators,
        collectives=collectives,
        layer_passes=slowest.passes,
        heads=slowest.heads,
        embeddings=c.strategy.micro_batches * slowest.stage.embeddings,
        exposed=exposed_times,
    )


# Values of the labels of the head with its loss, and of the optimizer.
_OUTSIDE_LAYERS = ({"per": "micro-batch"}, {"per": "step"})


class _StepWork(eqx.Module):
    """What operators take: of one micro-batch in a layer of every kind, of one vocabulary projection with its
    loss, and of the optimizer step.
    """

    layer: LayerWork
    head: Work
    optimizer: Work

    @classmethod
    def of(cls, operators: TimedOperators) -> "_StepWork":
        """What the operators of a step take at their clock."""
        head, optimizer = operators.totals(_OUTSIDE_LAYERS).unstacked()
        return cls(layer=LayerWork.of(operators), head=head, optimizer=optimizer)

    def at(self, clock: Clock) -> "_StepWork":
        """The same at a clock, from what operators take at the clock that software allows."""
        return _StepWork(
            layer=self.layer.at(clock), head=clock.slow(self.head), optimizer=clock.slow(self.optimizer)
        )

    def head_wait(self, c: Configuration) -> Scalar:
        """Seconds for which a vocabulary projection waits for the host, which launches the kernels of
        embeddings, head and loss as it does those of layers.
        """
        return c.relax.excess(c.system.stack.head_launch, self.head.time)


class _DeviceShare(eqx.Module):
    """The share of an average device in a step: layers of each kind, and heads with the modules of
    multi-token prediction, each as often as it runs for a micro-batch.
    """

    layers: Float[Array, " kinds"]
    heads: Scalar

    @classmethod
    def of(cls, c: Configuration) -> "_DeviceShare":
        """The model's layers and its head spread evenly over the stages of a pipeline."""
        heads = c.strategy.micro_batches / c.strategy.pp
        return cls(layers=layers_of_model(c.model) * heads, heads=heads)

    def work(self, work: _StepWork) -> Work:
        """The work of the device in a step, the optimizer included."""
        in_layers = jax.tree.map(lambda number: over_kinds(self.layers, number), work.layer.whole)
        return in_layers + work.head * self.heads + work.optimizer


def _clock(
    c: Configuration,
    machine: Machine,
    allowed: _StepWork,
    device: _DeviceShare,
    network: NetworkStep,
    sent: Transfer,
) -> Clock:
    """The clock that the limits leave an average device, from what operators take at the clock that software
    allows.

    The power limit averages over tens of milliseconds: over waits within a micro-batch, but not over the
    bubble of a pipeline or an exchange of gradients after the passes, in which a device draws less.
    """
    sending = functools.reduce(operator.add, transfer_energy(sent, c.system))

    def beside(clock: Clock | None) -> OutsideKernels:
        work = allowed if clock is None else allowed.at(clock)
        waits = LayerWaits.of(c, LayerStep.of(work.layer, c), network)
        waiting = over_kinds(device.layers, waits.total) + device.heads * work.head_wait(c)
        return OutsideKernels(waiting=waiting, active=jnp.zeros_like(waiting), energy=sending)

    at_ends = device.heads * network.at_ends.time
    return clock_beside_waits(device.work(allowed).with_wait(at_ends), machine, beside)


def _timed_collectives(c: Configuration, parameters: StageParameters) -> list[TimedCollective]:
    """The collectives of a step of a device that holds `parameters`, each with the time of one run."""
    collectives = training_collectives(c, training_pass(c.strategy), parameters)
    return transfers(collectives, c.system, c.relax, c.system.stack.network_efficiency)


class _SlowestWork(eqx.Module):
    """What the slowest stage of the pipeline computes in a step.

    - `layer`, `stage`: one micro-batch in a layer of each kind, and in the stage.
    - `passes`: passes, forward and backward together, of a micro-batch through a layer of each kind.
    - `heads`: vocabulary projections with their losses; each takes `head` seconds beside `head_wait` seconds
      for which it waits for the host.
    - `optimizer`: seconds of the optimizer step.
    - `compute`: all passes through layers.
    """

    layer: LayerStep
    stage: SlowestStage
    passes: Float[Array, " kinds"]
    heads: Scalar
    head: Scalar
    head_wait: Scalar
    optimizer: Scalar
    compute: Window

    @classmethod
    def of(cls, c: Configuration, work: _StepWork, network: NetworkStep) -> "_SlowestWork":
        """The work of the slowest stage from that of the operators and the transfers of a step."""
        layer, head_wait = LayerStep.of(work.layer, c), work.head_wait(c)
        stage = SlowestStage.of(c, layer, network, work.head.time + head_wait)
        passes = c.strategy.micro_batches * stage.layers
        return cls(
            layer=layer,
            stage=stage,
            passes=passes,
            heads=c.strategy.micro_batches * stage.head,
            head=work.head.time,
            head_wait=head_wait,
            optimizer=work.optimizer.time,
            compute=layer.compute.whole.in_layers(passes),
        )


def _exposed_times(c: Configuration, network: NetworkStep, slowest: _SlowestWork) -> dict[str, Scalar]:
    """Seconds that communication adds to the work of the slowest stage in a step, by purpose."""
    strategy, stage = c.strategy, slowest.stage
    in_layers = {purpose: over_kinds(slowest.passes, time) for purpose, time in stage.exposed.items()}
    in_layers["expert parallelism"] = in_layers["expert parallelism"] + stage.uncovered
    in_layers["embeddings"] = strategy.micro_batches * stage.embeddings * network.totals["embeddings"].time
    in_layers["vocabulary projection"] = slowest.heads * network.totals["vocabulary projection"].time
    handed_on = Traffic.of(network.totals["pipeline"])
    earlier = Earlier(others=[traffic * strategy.micro_batches for traffic in stage.traffic])
    pipeline = exposed(handed_on, slowest.compute, strategy.overlap_transfers, c, earlier)
    stalls = {"pipeline": pipeline + _stalled_by_messages(c, network)}
    return in_layers | stalls | _data_parallel(c, network, stage)


def _stalled_by_messages(c: Configuration, network: NetworkStep) -> Scalar:
    """Seconds of a step for which messages between pipeline stages stall both of them, whatever their
    size.
    """
    stalls = network.crosses_tiers * stage_messages(c.strategy, c.relax)
    return stalls * c.system.stack.message_stall


def _breakdown(
    c: Configuration, slowest: _SlowestWork, exposed_times: dict[str, Scalar], owned: Scalar
) -> StepTime:
    """The time of a step by part; `owned` are the parameters that a device's optimizer updates."""
    layer, passes, heads = slowest.layer, slowest.passes, slowest.heads
    host = over_kinds(passes, slowest.stage.waits) + heads * slowest.head_wait + c.system.stack.step_overhead
    offloaded_activations, offloaded_states = _host_transfers(c, owned)  # s
    return StepTime(
        matmul=over_kinds(passes, layer.compute.matmul.time),
        attention=over_kinds(passes, layer.compute.attention.time),
        elementwise=over_kinds(passes, layer.elementwise),
        recompute=over_kinds(passes, layer.recomputed),
        host=host,
        head=heads * slowest.head,
        **by_part(exposed_times),
        pipeline_bubble=bubble(slowest.stage.micro_batch, c.strategy, c.relax),
        offload=c.relax.excess(offloaded_activations, slowest.compute.time) + offloaded_states,
        optimizer=slowest.optimizer,
    )


# Share of the compute units that computation keeps where an accelerator has hardly more of them than the
# dispatch to experts asks for (an estimate).
_LEAST_LEFT = 0.1


def _computing_system(c: Configuration) -> System:
    """The system with the compute units that are left for computation.

    Where the dispatch to experts hides under other work, it keeps compute units of its own, and kernels
    are launched for the rest (DeepSeek-V3: 20 of 132, arXiv 2412.19437 §3.2.2 and §3.5.1).
    """
    system, strategy = c.system, c.strategy
    routes = any(kind.mixture is not None for kind in c.model.layers)
    if absent(system.stack.exchange_units) or not routes or not strategy.overlap_experts.possible["on"]:
        return system
    exchanges = strategy.overlap_experts.on * c.relax.has_others(strategy.ep)
    taken = exchanges * system.stack.exchange_units / system.accelerator.compute_units
    left = larger(1 - taken, _LEAST_LEFT)

    def rates(system: System) -> list:
        """Values of a system that are proportional to the number of its compute units."""
        accelerator = system.accelerator
        formats = [getattr(accelerator.matrix, name).rate for name in PRECISIONS]
        return [accelerator.compute_units, accelerator.vector, *formats]

    return eqx.tree_at(rates, system, [left * rate for rate in rates(system)])


def _data_parallel(c: Configuration, network: NetworkStep, stage: SlowestStage) -> dict[str, Scalar]:
    """Seconds of a step that the exchange of gradients and weights adds, by purpose: exposed, or slowing what
    hides it.

    Gradients are reduced under the backward pass of the last micro-batch, or of every micro-batch where
    ZeRO shards them. Weights are gathered under the forward pass of the first micro-batch, or under both
    passes of every one where ZeRO shards them too. What layers and stages send comes first, then weights.
    """
    strategy = c.strategy
    weights, gradients, embedding, handed_on = (
        Traffic.of(network.totals[purpose])
        for purpose in ("weights", "gradients", "tied embedding", "pipeline")
    )
    in_pass = [traffic * 0.5 for traffic in (*stage.traffic, handed_on * inverse(strategy.micro_batches))]
    # 1 where weights are gathered for both passes of every micro-batch, 0 for the first forward pass alone.
    both = strategy.shards_weights

    def window(time: Scalar) -> Window:
        """A window of so many seconds of both passes, or of one alike."""
        return Window(time=time, memory=stage.memory_share * time)

    gathered = 1 + both * (strategy.micro_batches - 1)  # micro-batches
    of_weights = exposed(
        weights,
        window(gathered * (stage.forward + both * stage.backward)),
        _hidden_by_passes(strategy.overlap_weights, c),
        c,
        Earlier(others=[traffic * (gathered * (1 + both)) for traffic in in_pass]),
    )
    reduced = strategy.gradient_reductions  # micro-batches
    of_gradients = exposed(
        gradients,
        window(reduced * stage.backward),
        _hidden_by_passes(strategy.overlap_gradients, c),
        c,
        Earlier(
            others=[traffic * reduced for traffic in in_pass],
            in_group=[weights * (both / (1 + both))],
        ),
    )
    return {"weights": of_weights, "gradients": of_gradients, "tied embedding": embedding.time}


def _hidden_by_passes(overlap: Weights, c: Configuration) -> Weights:
    """Whether passes hide gradients or weights: as the strategy says, but for software that exchanges them
    after the passes.
    """
    if not c.system.stack.whole_gradients.possible["on"]:
        return overlap
    hidden = overlap.on * (1 - late_exchange(c))
    return Weights(jnp.stack([1 - hidden, hidden]), overlap.alternatives)


def _host_transfers(c: Configuration, owned: Scalar) -> tuple[Scalar, Scalar]:
    """Seconds of a step to carry activations to host memory and back; and for the optimizer in host memory
    to carry gradients and weights, and to update.

    The host's processors read gradients and optimizer states and write states and weights at the rate of
    their memory (ZeRO-Offload, arXiv 2101.06840 §4.3 and §5.1).
    """
    strategy, byte_time = c.strategy, c.system.host_byte_time
    kept = stage_activation_bytes(c) * strategy.micro_batches
    activations = 2 * strategy.offload_activations * kept
    carried = strategy.gradient_width + strategy.kept_weight_width
    updated = carried + 2 * strategy.optimizer_bytes
    parameters = owned * strategy.offload_optimizer
    return activations * byte_time, parameters * (carried * byte_time + updated * c.system.host_update_time)


def _report(
    c: Configuration, breakdown: StepTime, work: Work, sent: Transfer, clock: Clock
) -> TrainingReport:
    """The report of a step, in which an average device does `work` at a clock, and sends `sent`."""
    strategy, time = c.strategy, breakdown.total
    tokens = strategy.global_batch * strategy.sequence_length
    spent = energy(c, work, sent, time, clock, waiting=larger(time - work.time, 0.0))
    available = time * strategy.devices * c.system.accelerator.matrix_rate(strategy.precision)
    return TrainingReport(
        time=time,
        tokens_per_second=tokens / time,
        mfu=model_flops(c.model, tokens, strategy.sequence_length) / available,
        hfu=hardware_flops(c.model, strategy) / available,
        power=spent.total / (time * c.system.n_devices),
        clock=clock.of_peak,
        frequency=c.system.accelerator.boost_clock * clock.of_peak,
        voltage=clock.voltage,
        breakdown=breakdown,
        memory=training_memory(c),
        energy=spent,
        cost=run_cost(c.system, time, spent.total, c.relax),
    )
