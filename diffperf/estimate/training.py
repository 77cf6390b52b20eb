"""One training step: a pipeline of transformer layers over micro-batches, then gradient reduction and the
optimizer.
"""

import equinox as eqx
import jax.numpy as jnp

from diffperf.cost.ownership import Cost, run_cost
from diffperf.estimate.energy import Energy, energy
from diffperf.estimate.exposure import LayerCompute, exposed, exposed_of_layer
from diffperf.estimate.kernels.clock import Clock, clock_under_limit
from diffperf.estimate.kernels.evaluation import TimedOperators, evaluate, total
from diffperf.estimate.kernels.machine import Machine
from diffperf.estimate.kernels.roofline import Work, waiting
from diffperf.estimate.network.transfers import TimedCollective, Transfer, transfers
from diffperf.estimate.phase_tables import PhaseTables, collective_table, operator_table
from diffperf.hardware.system import System
from diffperf.quantity import Scalar, output
from diffperf.relax import Exact, Relaxation, inverse, larger
from diffperf.report.tables import Readable
from diffperf.workload.assembly import training_operators, training_pass
from diffperf.workload.collectives import training_collectives
from diffperf.workload.configuration import Configuration
from diffperf.workload.memory import Memory, stage_activation_bytes, training_memory
from diffperf.workload.model import Model
from diffperf.workload.model_flops import model_flops
from diffperf.workload.schedule import StagePass, bubble, stage_layers
from diffperf.workload.stage_parameters import owned_parameters, stage_parameters
from diffperf.workload.strategy import Strategy


class StepTime(eqx.Module):
    """Where a training step goes, seen by the slowest pipeline stage. The parts add up to the step time."""

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
        layer_network = self.tensor_parallel + self.context_parallel + self.expert_parallel
        network = layer_network + self.pipeline_transfers + self.data_parallel
        return compute + network + self.pipeline_bubble + self.offload + self.optimizer


class TrainingReport(Readable):
    """A training step: time, memory, energy and cost."""

    time: Scalar = output("s", "step time")
    tokens_per_second: Scalar = output("token/s", "tokens per second")
    mfu: Scalar = output("", "model FLOPs utilization (attention not masked, recomputation not counted)")
    hfu: Scalar = output("", "hardware FLOPs utilization (FLOPs executed)")
    power: Scalar = output("W", "average power per device")
    clock: Scalar = output(
        "", "clock of the compute units that the power limit leaves, over the clock of the peak rates"
    )
    breakdown: StepTime
    memory: Memory
    energy: Energy
    cost: Cost


class TimedStep(eqx.Module):
    """A training step with all that it is made of: its operators and collectives, and the report that sums
    them.

    - `layer_passes`: passes, forward and backward together, of a micro-batch through a layer on the
      slowest stage.
    - `exposed`: seconds of the step by the purpose of collectives.
    """

    report: TrainingReport
    operators: list[TimedOperators]
    collectives: list[TimedCollective]
    layer_passes: Scalar
    micro_batches: Scalar
    recomputed: Scalar
    exposed: dict[str, Scalar]

    @property
    def tables(self) -> PhaseTables:
        """The operators and collectives as tables, whose times add up to the report's breakdown."""
        counts = {"layer": self.layer_passes, "micro-batch": self.micro_batches, "step": 1.0}

        def runs(timed: TimedCollective) -> Scalar:
            if timed.collective.per == "step":
                return jnp.asarray(timed.collective.forward, self.layer_passes.dtype)
            return self.layer_passes * timed.in_layer(self.recomputed)

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
    """
    relax = Exact() if relax is None else relax
    return timed_step(Configuration(model=model, system=system, strategy=strategy, relax=relax)).report


def timed_step(c: Configuration) -> TimedStep:
    """The step of a configuration, with all that it is made of."""
    strategy, relax, machine = c.strategy, c.relax, Machine.of(c.system, c.strategy, c.relax)
    parameters = stage_parameters(c.model, strategy, relax)
    owned = owned_parameters(strategy, parameters, relax)
    operators = training_operators(c, owned)
    collectives = training_collectives(c, training_pass(strategy), parameters)
    offloaded_activations, offloaded_states = _host_transfers(c, owned)  # s

    timed_operators = evaluate(operators, machine)
    clock = clock_under_limit(_LayerStep.of(timed_operators, machine).work, machine)
    timed_operators = clock.slow_all(timed_operators)
    timed_collectives = transfers(collectives, c.system, relax, c.system.stack.network_efficiency)
    network = _Network.of(timed_collectives, c)
    layer, head = _LayerStep.of(timed_operators, machine), _sum_per("micro-batch", timed_operators, machine)
    optimizer = _sum_per("step", timed_operators, machine)
    layer_exposed = exposed_of_layer(network.layer_times, layer.compute, strategy, relax)
    stage = _Stage.of(c, layer, layer_exposed, network, head)
    passes = strategy.micro_batches * (stage.last_layers + c.model.mtp_layers)
    compute = passes * layer.work.time
    pipeline = exposed(network.totals["pipeline"].time, compute, strategy.overlap_transfers, relax)
    exposed_times = {purpose: passes * time for purpose, time in layer_exposed.items()}
    exposed_times |= {"pipeline": pipeline} | _data_parallel(c, network, layer, stage)
    breakdown = StepTime(
        matmul=passes * layer.compute.matmul,
        attention=passes * layer.compute.attention,
        elementwise=passes * layer.elementwise,
        recompute=passes * layer.recomputed,
        host=passes * stage.waits + c.system.stack.step_overhead,
        head=strategy.micro_batches * head.time,
        tensor_parallel=exposed_times["tensor parallelism"],
        context_parallel=exposed_times["context parallelism"],
        expert_parallel=exposed_times["expert parallelism"],
        pipeline_bubble=bubble(stage.micro_batch, strategy, relax),
        pipeline_transfers=pipeline,
        data_parallel=exposed_times["gradients"] + exposed_times["weights"] + exposed_times["tied embedding"],
        offload=relax.excess(offloaded_activations, compute) + offloaded_states,
        optimizer=optimizer.time,
    )
    # An average device runs its share of the model's layers, and of the head and the multi-token prediction
    # on the last stage.
    layers = strategy.micro_batches * (c.model.depth + c.model.mtp_layers) / strategy.pp
    done = layer.work * layers + head * (strategy.micro_batches / strategy.pp) + optimizer
    sent = network.sent(layers, strategy.pp)
    return TimedStep(
        report=_report(c, machine, breakdown, done, sent, clock),
        operators=timed_operators,
        collectives=timed_collectives,
        layer_passes=passes,
        micro_batches=strategy.micro_batches,
        recomputed=network.recomputed,
        exposed=exposed_times,
    )


def _sum_per(per: str, operators: list[TimedOperators], machine: Machine) -> Work:
    """The work of all operators that run once for each micro-batch, or once for each step."""
    return total((timed.once() for timed in operators if timed.operators.per == per), machine)


class _LayerStep(eqx.Module):
    """What an average layer takes of a device for one micro-batch."""

    forward: Scalar  # s of the forward pass
    backward: Scalar  # s of the backward pass, without what it recomputes
    weight_gradients: Scalar  # s of the part of the backward pass that no other stage waits for
    recomputed: Scalar  # s
    elementwise: Scalar  # s in both passes
    compute: LayerCompute  # in both passes
    work: Work  # of both passes, with what is recomputed

    @classmethod
    def of(cls, operators: list[TimedOperators], machine: Machine) -> "_LayerStep":
        layer = [timed for timed in operators if timed.operators.per == "layer"]
        works = [(timed.operators, timed.once()) for timed in layer]

        def time(part: str = "", directions: tuple[str, ...] = ("forward", "backward", "weights")) -> Scalar:
            """Seconds of the operators of a part of the time (of all parts by default) in some directions."""
            chosen = (
                work.time
                for group, work in works
                if part in ("", group.part) and group.direction in directions
            )
            return sum(chosen, start=jnp.zeros_like(machine.kernel_overhead))

        recomputed = total(
            (work * group.recomputed for group, work in works if group.direction == "forward"), machine
        )
        whole = total((work for _, work in works), machine) + recomputed
        return cls(
            forward=time(directions=("forward",)),
            backward=time(directions=("backward", "weights")),
            weight_gradients=time(directions=("weights",)),
            recomputed=recomputed.time,
            elementwise=time(part="elementwise"),
            compute=LayerCompute(
                matmul=time(part="matmul"), attention=time(part="attention"), whole=whole.time
            ),
            work=whole,
        )


class _Network(eqx.Module):
    """What collectives take: totals by purpose, of an average layer and micro-batch, and of the step."""

    layer: dict[str, Transfer]
    totals: dict[str, Transfer]
    recomputed: Scalar  # share of forward passes that the backward pass repeats with their communication
    crosses_tiers: (
        Scalar  # 1 where a boundary between pipeline stages leaves the innermost network tier, else 0
    )

    @classmethod
    def of(cls, collectives: list[TimedCollective], c: Configuration) -> "_Network":
        strategy = c.strategy
        recomputed = strategy.recompute.full * strategy.recompute_share
        nothing = Transfer.nothing(c.system)
        layer: dict[str, Transfer] = dict.fromkeys(
            ("tensor parallelism", "context parallelism", "expert parallelism"), nothing
        )
        totals: dict[str, Transfer] = dict.fromkeys(
            ("pipeline", "gradients", "weights", "tied embedding"), nothing
        )
        outside = jnp.zeros_like(strategy.pp)
        for timed in collectives:
            purpose = timed.collective.purpose
            if timed.collective.per == "layer":
                layer[purpose] = layer[purpose] + timed.transfer * timed.in_layer(recomputed)
            else:
                totals[purpose] = totals[purpose] + timed.transfer * timed.collective.forward
            if purpose == "pipeline":  # share of a message that leaves the innermost tier
                outside = jnp.sum(timed.transfer.sent[1:]) / timed.collective.volume
        crosses = c.relax.minimum((strategy.pp - 1) * outside, 1.0)
        return cls(layer=layer, totals=totals, recomputed=recomputed, crosses_tiers=crosses)

    @property
    def layer_times(self) -> dict[str, Scalar]:
        """Seconds of an average layer's collectives by purpose, were they not hidden."""
        return {purpose: transfer.time for purpose, transfer in self.layer.items()}

    def sent(self, layers: Scalar, stages: Scalar) -> Transfer:
        """What an average device sends in a step in which it runs `layers` layers; two of the pipeline's
        `stages` share a tied embedding.
        """
        in_layers = [transfer * layers for transfer in self.layer.values()]
        embedding = self.totals["tied embedding"] * (2 / stages)
        result = embedding + self.totals["pipeline"] + self.totals["gradients"] + self.totals["weights"]
        for transfer in in_layers:
            result = result + transfer
        return result


class _Stage(eqx.Module):
    """The slowest pipeline stage."""

    layers: Scalar  # layers of the fullest stage
    last_layers: Scalar  # layers after whose time the last stage ends: its own, or those that it waits for
    forward: Scalar  # s of one layer and micro-batch, with exposed communication
    backward: Scalar  # s, likewise, with what is recomputed
    waits: Scalar  # s that a layer waits for the host in both passes
    micro_batch: StagePass

    @classmethod
    def of(
        cls,
        c: Configuration,
        layer: _LayerStep,
        exposed_times: dict[str, Scalar],
        network: _Network,
        head: Work,
    ) -> "_Stage":
        """Half of the exposed communication is in either pass.

        The host launches kernels before the device needs them, and the device waits where its queue runs
        empty: a pass takes the longer of both, nearly.
        """
        half = sum(exposed_times.values()) / 2
        forward, backward = layer.forward + half, layer.backward + layer.recomputed + half
        launch, routing = _host_waits(c, network)
        forward_wait = waiting(forward, launch) + routing
        backward_wait = waiting(backward, (1 + network.recomputed) * launch)
        fullest, last = stage_layers(c.model, c.strategy, c.relax)
        # Where other stages take longer than the last, it waits for them as if it had more layers.
        layer_time = layer.work.time + 2 * half + forward_wait + backward_wait
        head_layers = head.time * c.strategy.balanced_head.on * inverse(layer_time)
        return cls(
            layers=fullest,
            last_layers=larger(last, c.relax.excess(fullest, head_layers)),
            forward=forward,
            backward=backward,
            waits=forward_wait + backward_wait,
            micro_batch=StagePass(
                forward=fullest * (forward + forward_wait),
                backward=fullest * (backward + backward_wait),
                weight_gradients=fullest * layer.weight_gradients,
            ),
        )


def _host_waits(c: Configuration, network: _Network) -> tuple[Scalar, Scalar]:
    """Seconds that the host takes to launch one pass of a layer, and that a forward pass waits for the host's
    routing.

    The host reads how many tokens go to each expert before it sizes the experts' kernels; experts of a set
    capacity do not need that.
    """
    stack, strategy = c.system.stack, c.strategy
    tensor_parallel = c.relax.minimum(strategy.tp - 1, 1.0)
    stalls = network.crosses_tiers * tensor_parallel * strategy.tp * stack.rank_stall
    routing = c.model.routed_share * stack.routing_wait
    return stack.host_launch + stalls, jnp.where(strategy.capacity_factor > 0, 0.0, routing)


def _data_parallel(
    c: Configuration, network: _Network, layer: _LayerStep, stage: _Stage
) -> dict[str, Scalar]:
    """Seconds of a step that the exchange of gradients and weights adds, by purpose: exposed, or slowing what
    hides it.

    Gradients are reduced under the backward pass of the last micro-batch, or of every micro-batch where
    ZeRO shards them. Weights are gathered under the forward pass of the first micro-batch, or under both
    passes of every one where ZeRO shards them too.
    """
    strategy, further = c.strategy, c.strategy.micro_batches - 1
    forward, backward = stage.layers * stage.forward, stage.layers * stage.backward
    under_backward = (1 + strategy.shards_gradients * further) * backward
    under_both = forward + strategy.shards_weights * backward
    hiding = {
        "gradients": (under_backward, strategy.overlap_gradients),
        "weights": ((1 + strategy.shards_weights * further) * under_both, strategy.overlap_weights),
    }
    result = {"tied embedding": network.totals["tied embedding"].time}
    for purpose, (hidden_under, overlap) in hiding.items():
        time = network.totals[purpose].time
        remaining = exposed(time, hidden_under, overlap, c.relax)
        # What hides communication shares the device with it, and slows down.
        result[purpose] = remaining + c.system.stack.overlap_contention * (time - remaining)
    return result


def _host_transfers(c: Configuration, owned: Scalar) -> tuple[Scalar, Scalar]:
    """Seconds of a step to carry activations to host memory and back; and for the optimizer in host memory
    gradients and weights.
    """
    strategy, byte_time = c.strategy, c.system.host_byte_time
    kept = stage_activation_bytes(c) * strategy.micro_batches
    activations = 2 * strategy.offload_activations * kept
    state_bytes = strategy.gradient_width + strategy.kept_weight_width
    states = owned * strategy.offload_optimizer * state_bytes
    return activations * byte_time, states * byte_time


def _report(
    c: Configuration, machine: Machine, breakdown: StepTime, work: Work, sent: Transfer, clock: Clock
) -> TrainingReport:
    """The report of a step, in which an average device does `work` at a clock, and sends `sent`."""
    strategy, time = c.strategy, breakdown.total
    tokens = strategy.global_batch * strategy.sequence_length
    spent = energy(c, work, sent, time, clock, waiting=larger(time - work.time, 0.0))
    available = time * strategy.devices * machine.matrix.format.rate
    return TrainingReport(
        time=time,
        tokens_per_second=tokens / time,
        mfu=model_flops(c.model, tokens, strategy.sequence_length) / available,
        hfu=work.flops * strategy.devices / available,
        power=spent.total / (time * c.system.n_devices),
        clock=inverse(clock.slowdown),
        breakdown=breakdown,
        memory=training_memory(c),
        energy=spent,
        cost=run_cost(c.system, time, spent.total, c.relax),
    )
