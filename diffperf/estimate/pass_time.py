"""One inference pass through the pipeline: its time, clock and energy, from its operators and collectives."""

import dataclasses
import functools
import itertools
import operator

import equinox as eqx
import jax.numpy as jnp

from diffperf.estimate.energy import Energy, energy, transfer_energy
from diffperf.estimate.exposure import Earlier, LayerCompute, Traffic, Window, exposed, exposed_of_layer
from diffperf.estimate.kernels.clock import Clock, OutsideKernels, clock_beside_waits
from diffperf.estimate.kernels.evaluation import TimedOperators, evaluate
from diffperf.estimate.kernels.machine import Machine
from diffperf.estimate.kernels.roofline import Work
from diffperf.estimate.network.transfers import TimedCollective, Transfer, transfers
from diffperf.estimate.phase_tables import PhaseTables, collective_table, operator_table
from diffperf.quantity import Scalar, output
from diffperf.relax import larger
from diffperf.report.tables import Readable
from diffperf.workload.assembly import inference_operators
from diffperf.workload.collective import LAYER_PURPOSES, by_part
from diffperf.workload.collectives import inference_collectives
from diffperf.workload.configuration import Configuration
from diffperf.workload.memory import inference_residency
from diffperf.workload.passes import TokenPass
from diffperf.workload.stages import one_stage, served_share_of_last, stage_layers

# Parts of the time of a pass that operators add up to: fields of `PassTime`.
_OPERATOR_PARTS: tuple[str, ...] = ("matmul", "attention", "elementwise", "head")
# Purposes of the collectives around the embeddings and the vocabulary projection.
_AT_ENDS: tuple[str, ...] = ("embeddings", "vocabulary projection")


class PassTime(Readable):
    """Seconds of one pass through the model, by part. The parts add up to the time of the pass."""

    matmul: Scalar = output("s", "time of linear layers", table="gemm")
    attention: Scalar = output("s", "time of attention cores", table="attention")
    elementwise: Scalar = output("s", "time of norms, activations and residuals")
    head: Scalar = output("s", "time of the vocabulary projection", table="gemm")
    tensor_parallel: Scalar = output(
        "s", "exposed time of tensor-parallel communication", table="collectives"
    )
    context_parallel: Scalar = output(
        "s", "exposed time of context-parallel communication", table="collectives"
    )
    expert_parallel: Scalar = output(
        "s", "exposed time of the all-to-alls that bring tokens to experts and back", table="collectives"
    )
    pipeline_transfers: Scalar = output(
        "s", "exposed time of transfers between pipeline stages", table="collectives"
    )
    pipeline_queue: Scalar = output(
        "s",
        "time for which a micro-batch waits for others in the pipeline: in prefill the last one, in decode "
        "any one until its next turn",
    )
    host: Scalar = output("s", "time of waits for the host: scheduling, sampling, launches of prompt kernels")
    drafting: Scalar = output(
        "s", "time of drafting the tokens that the pass verifies, the host's part in it included"
    )

    @property
    def total(self) -> Scalar:
        """Seconds of the pass: all parts together."""
        compute = self.matmul + self.attention + self.elementwise + self.head
        layer_network = self.tensor_parallel + self.context_parallel + self.expert_parallel
        waiting = self.pipeline_transfers + self.pipeline_queue + self.host
        return compute + layer_network + waiting + self.drafting


class TimedPass(eqx.Module):
    """A pass with all that it is made of: its operators and collectives, and the parts of its time that sum
    them.

    - `busy`: seconds that the pass keeps the busiest stage of the pipeline busy: what a pass takes where one
      follows another. Without a pipeline that is its time.
    - `exposed`: seconds of the pass by the purpose of collectives.
    - `throttling`: seconds by which the power limit lengthens linear layers and elementwise work.
    """

    breakdown: PassTime
    busy: Scalar
    clock: Clock
    throttling: Scalar
    energy: Energy
    operators: TimedOperators
    collectives: list[TimedCollective]
    depth: Scalar
    exposed: dict[str, Scalar]

    @property
    def tables(self) -> PhaseTables:
        """The operators and collectives as tables, whose times add up to the breakdown."""

        def runs(timed: TimedCollective) -> Scalar:
            per_layer = timed.collective.per == "layer"
            return timed.collective.forward * (self.depth if per_layer else jnp.ones_like(self.depth))

        return PhaseTables(
            operators=operator_table(
                self.operators, {"layer": self.depth, "micro-batch": 1.0}, trained=False
            ),
            collectives=collective_table(self.collectives, runs, self.exposed),
        )


def timed_passes(c: Configuration, passes: dict[str, TokenPass]) -> dict[str, TimedPass]:
    """Passes through all stages, one stage after the other, by name; all kernels and collectives are
    evaluated at once.
    """
    machine = Machine.of(c.system, c.strategy, c.relax, serving=True, residency=inference_residency(c))
    operators = {name: inference_operators(c, tokens) for name, tokens in passes.items()}
    requests = {name: inference_collectives(c, tokens) for name, tokens in passes.items()}
    timed = evaluate(
        [dataclasses.replace(group, of_pass=name) for name in passes for group in operators[name]], machine
    )
    sent = iter(transfers([one for group in requests.values() for one in group], c.system, c.relax))
    return {
        name: _timed_pass(
            c,
            machine,
            tokens,
            timed=timed.only({"of_pass": name}),
            collectives=list(itertools.islice(sent, len(requests[name]))),
        )
        for name, tokens in passes.items()
    }


def _timed_pass(
    c: Configuration,
    machine: Machine,
    tokens: TokenPass,
    *,
    timed: TimedOperators,
    collectives: list[TimedCollective],
) -> TimedPass:
    """One pass, from its collectives and its operators, timed at the clock that software allows."""
    network = _PassNetwork.of(collectives, c)
    allowed = _PassWork.of(timed)
    clock = _clock(c, machine, tokens, allowed, network)
    of_tokens = allowed.parts["matmul"].clocked + allowed.parts["elementwise"].clocked
    timed = clock.slow_all(timed)
    work = _PassWork.of(timed)
    exposed_times = _exposed_times(c, tokens, work, network)
    one = _micro_batch_time(c, tokens, work, exposed_times)
    busy, queue = _in_pipeline(c, tokens, one, network)
    breakdown = dataclasses.replace(one, pipeline_queue=queue)
    # An average device does its stage's share of the whole model's work.
    share = tokens.parts / c.strategy.pp
    done, moved = work.of_layers(c.model.depth) * share, network.moved * share
    waiting = larger(breakdown.total - host_time(c, tokens) - done.time, 0.0)
    return TimedPass(
        breakdown=breakdown,
        busy=busy,
        clock=clock,
        throttling=c.model.depth * (clock.slowdown - 1) * of_tokens,
        energy=energy(c, work=done, transfer=moved, time=breakdown.total, clock=clock, waiting=waiting),
        operators=timed,
        collectives=collectives,
        depth=c.model.depth,
        exposed=exposed_times,
    )


class _PassWork(eqx.Module):
    """The work of one pass: of an average layer by the part of the time, and of the vocabulary projection."""

    parts: dict[str, Work]
    head: Work

    @classmethod
    def of(cls, operators: TimedOperators) -> "_PassWork":
        """The work of the operators of a pass."""
        totals = operators.totals([{"part": part} for part in _OPERATOR_PARTS]).unstacked()
        works = dict(zip(_OPERATOR_PARTS, totals, strict=True))
        return cls(head=works.pop("head"), parts=works)

    @property
    def layer(self) -> Work:
        """The work of an average layer."""
        return functools.reduce(Work.__add__, self.parts.values())

    def at(self, clock: Clock) -> "_PassWork":
        """The work at a clock, from that at the clock that software allows."""
        return _PassWork(
            head=clock.slow(self.head), parts={part: clock.slow(work) for part, work in self.parts.items()}
        )

    def of_layers(self, depth: Scalar) -> Work:
        """The work of `depth` layers and the vocabulary projection."""
        return self.layer * depth + self.head

    def compute(self, c: Configuration) -> LayerCompute:
        """The work of an average layer beside which its communication runs."""
        windows = {part: Window.of(self.parts[part], c.system, c.relax) for part in ("matmul", "attention")}
        return LayerCompute(**windows, whole=Window.of(self.layer, c.system, c.relax))


class _PassNetwork(eqx.Module):
    """The communication of one pass.

    - `in_layer`: that of an average layer, by purpose; `handed_on`: that between pipeline stages.
    - `at_ends`: seconds of that around the embeddings and the vocabulary projection, by purpose.
    - `moved`: all transfers together.
    """

    in_layer: dict[str, Traffic]
    handed_on: Traffic
    at_ends: dict[str, Scalar]
    moved: Transfer

    @classmethod
    def of(cls, collectives: list[TimedCollective], c: Configuration) -> "_PassNetwork":
        """The communication of the collectives of a pass, added up by purpose."""
        nothing = Transfer.nothing(c.system)
        sent: dict[str, Transfer] = dict.fromkeys((*LAYER_PURPOSES, *_AT_ENDS, "pipeline"), nothing)
        for timed in collectives:
            purpose = timed.collective.purpose
            sent[purpose] = sent[purpose] + timed.transfer * timed.collective.forward
        of_layer = functools.reduce(operator.add, (sent[purpose] for purpose in LAYER_PURPOSES))
        outside = (*_AT_ENDS, "pipeline")
        return cls(
            in_layer={purpose: Traffic.of(sent[purpose]) for purpose in LAYER_PURPOSES},
            handed_on=Traffic.of(sent["pipeline"]),
            at_ends={purpose: sent[purpose].time for purpose in _AT_ENDS},
            moved=of_layer * c.model.depth + functools.reduce(operator.add, (sent[name] for name in outside)),
        )


def _clock(
    c: Configuration, machine: Machine, tokens: TokenPass, allowed: _PassWork, network: _PassNetwork
) -> Clock:
    """The clock that the limits leave a pass, from its work at the clock that software allows."""
    depth, at_ends = c.model.depth, functools.reduce(operator.add, network.at_ends.values())
    sending = functools.reduce(operator.add, transfer_energy(network.moved, c.system))

    def beside(clock: Clock | None) -> OutsideKernels:
        kernels = allowed if clock is None else allowed.at(clock)
        waits = exposed_of_layer(network.in_layer, kernels.compute(c), c, generating=tokens.generating)
        waiting = depth * functools.reduce(operator.add, waits.values())
        busy = kernels.of_layers(depth).time + at_ends + waiting
        return OutsideKernels(
            waiting=waiting + _launch_wait(c, tokens, busy),
            active=host_time(c, tokens),
            energy=sending,
        )

    return clock_beside_waits(allowed.of_layers(depth).with_wait(at_ends), machine, beside)


def _exposed_times(
    c: Configuration, tokens: TokenPass, work: _PassWork, network: _PassNetwork
) -> dict[str, Scalar]:
    """Seconds that communication adds to the work of a pass, by purpose."""
    depth, compute = c.model.depth, work.compute(c)
    of_layer = exposed_of_layer(network.in_layer, compute, c, generating=tokens.generating)
    earlier = Earlier(others=[traffic * depth for traffic in network.in_layer.values()])
    pipeline = exposed(network.handed_on, compute.whole * depth, c.strategy.overlap_transfers, c, earlier)
    in_layers = {purpose: depth * time for purpose, time in of_layer.items()}
    return in_layers | network.at_ends | {"pipeline": pipeline}


def _micro_batch_time(
    c: Configuration, tokens: TokenPass, work: _PassWork, exposed_times: dict[str, Scalar]
) -> PassTime:
    """The time of one pass by part, where no other micro-batch is in its way."""
    nothing = jnp.zeros_like(exposed_times["pipeline"])
    one = PassTime(
        **{part: c.model.depth * done.time for part, done in work.parts.items()},
        head=work.head.time,
        **by_part(exposed_times),
        pipeline_queue=nothing,
        host=nothing,
        drafting=nothing,
    )
    return dataclasses.replace(one, host=host_time(c, tokens) + _launch_wait(c, tokens, one.total))


def _launch_wait(c: Configuration, tokens: TokenPass, time: Scalar) -> Scalar:
    """Seconds for which a pass of `time` seconds waits for its launches; recorded graphs launch at once."""
    return jnp.zeros_like(time) if tokens.generating else c.relax.excess(launch_time(c), time)


def _in_pipeline(
    c: Configuration, tokens: TokenPass, one: PassTime, network: _PassNetwork
) -> tuple[Scalar, Scalar]:
    """Seconds that the passes of all parts keep the busiest stage busy, and for which the last of them
    waits for those before it.

    Prompts enter one micro-batch after another, and the last waits for those before it; those that an
    engine does not submit together wait until the pipeline is empty. A token of a sequence follows its
    last: a micro-batch comes back when it has left the pipeline, and when the busiest stage has
    served the others.
    """
    stage, parts = _longest_stage(c, one, network), tokens.parts
    if tokens.generating:
        busy = c.relax.maximum(parts * stage, one.total)
        return busy, busy - one.total
    emptied = (tokens.submissions - 1) * (one.total - stage)
    return parts * stage + emptied, (parts - 1) * stage + emptied


def _longest_stage(c: Configuration, one: PassTime, network: _PassNetwork) -> Scalar:
    """Seconds that a micro-batch keeps the busiest stage of the pipeline: the fullest before the last, or the
    last, which has the vocabulary projection.
    """
    stages = stage_layers(c.model, c.strategy, c.relax)
    before = larger(stages.first, stages.middle)
    last = stages.last * served_share_of_last(c.model, c.strategy, c.relax)
    embedding, gathering = network.at_ends["embeddings"], network.at_ends["vocabulary projection"]
    outside = one.head + embedding + gathering + one.pipeline_transfers + one.host
    per_layer = (one.total - outside) / c.model.depth
    at_end = one.head + gathering
    longest = c.relax.maximum(before * per_layer, last * per_layer + at_end) + one.host
    alone = one_stage(c.strategy, c.relax)
    return alone * one.total + (1 - alone) * longest


def fullest_share(c: Configuration) -> Scalar:
    """Layers of the fullest stage of a pipeline over those of a mean stage, at least 1; without a pipeline
    1.
    """
    stages = stage_layers(c.model, c.strategy, c.relax)
    return larger(larger(stages.first, stages.middle) * c.strategy.pp / c.model.depth, 1.0)


def host_time(c: Configuration, tokens: TokenPass) -> Scalar:
    """Seconds for which devices wait for the host in one pass: of the engine's step, and of each sequence."""
    stack = c.system.stack
    return stack.engine_step + stack.engine_sequence * tokens.sequences


def launch_time(c: Configuration) -> Scalar:
    """Seconds of the host to launch the kernels of a pass over prompts, which no recorded graph holds."""
    return c.model.depth * c.system.stack.prompt_launch
