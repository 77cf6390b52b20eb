"""Inference: prefill of the prompts, decode of one token, and a whole generation from the first to the last
token.
"""

import dataclasses
import functools
import itertools
import operator

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.cost.ownership import Cost, run_cost
from diffperf.estimate.energy import Energy, energy, energy_beside_work, transfer_energy
from diffperf.estimate.exposure import Earlier, LayerCompute, Traffic, Window, exposed, exposed_of_layer
from diffperf.estimate.kernels.clock import Clock, OutsideKernels, clock_under_limit
from diffperf.estimate.kernels.evaluation import TimedOperators, evaluate
from diffperf.estimate.kernels.machine import Machine
from diffperf.estimate.kernels.roofline import Work
from diffperf.estimate.network.transfers import TimedCollective, Transfer, transfers
from diffperf.estimate.phase_tables import PhaseTables, collective_table, operator_table
from diffperf.hardware.system import System
from diffperf.quantity import Scalar, output
from diffperf.relax import Exact, Relaxation, larger, smaller
from diffperf.report.tables import Readable
from diffperf.workload.assembly import inference_operators
from diffperf.workload.collective import LAYER_PURPOSES, by_part
from diffperf.workload.collectives import boundary_transfer, layer_collectives
from diffperf.workload.configuration import Configuration
from diffperf.workload.layer_operators import TokenPass
from diffperf.workload.memory import Memory, inference_memory, inference_residency
from diffperf.workload.model import Model
from diffperf.workload.stages import one_stage, stage_layers
from diffperf.workload.strategy import Strategy

# Parts of the time of a pass that operators add up to: fields of `PassTime`.
_OPERATOR_PARTS: tuple[str, ...] = ("matmul", "attention", "elementwise", "head")


class PassTime(eqx.Module):
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


class PassReport(Readable):
    """One pass: the prefill of all prompts, or the decode of one token of every sequence."""

    time: Scalar = output("s", "latency of the pass, until the last micro-batch has left the pipeline")
    tokens_per_second: Scalar = output("token/s", "tokens per second in steady state, one pass after another")
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
    breakdown: PassTime
    memory: Memory
    energy: Energy
    cost: Cost


class GenerationReport(Readable):
    """Prompts in, outputs out: latency, throughput, memory, energy and cost."""

    time: Scalar = output("s", "latency of the batch, from its prompts to its last token")
    time_to_first_token: Scalar = output("s", "time to first token")
    time_per_output_token: Scalar = output("s", "time per output token")
    tokens_per_second: Scalar = output("token/s", "output tokens per second of one batch after another")
    power: Scalar = output("W", "average power per device")
    prefill_clock: Scalar = output(
        "", "clock of the prefill of prompts under its limits, over the clock of the peak rates"
    )
    decode_clock: Scalar = output(
        "", "clock of decode passes under its limits, over the clock of the peak rates"
    )
    prefill_frequency: Scalar = output(
        "Hz", "clock of the prefill; 0 where the accelerator's boost clock is not published"
    )
    decode_frequency: Scalar = output(
        "Hz", "clock of decode passes; 0 where the accelerator's boost clock is not published"
    )
    tokens_per_joule: Scalar = output("token/J", "output tokens per joule")
    cost_per_million_tokens: Scalar = output("USD", "cost per million output tokens")
    prefill: PassTime
    decode: PassTime
    memory: Memory
    energy: Energy
    cost: Cost


class TimedPass(eqx.Module):
    """A pass with all that it is made of: its operators and collectives, and the parts of its time that sum
    them.

    - `busy`: seconds that the pass keeps the busiest stage of the pipeline busy: what a pass takes where one
      follows another. Without a pipeline that is its time.
    - `exposed`: seconds of the pass by the purpose of collectives.
    """

    breakdown: PassTime
    busy: Scalar
    clock: Clock
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


def prefill(model: Model, system: System, strategy: Strategy, relax: Relaxation | None = None) -> PassReport:
    """The prompts of all sequences at once, up to the first output token of each.

    Of prompts whose beginning is cached (`cached_share`), the rest is computed; rates count all tokens.

    - `relax`: how max, min, ceil and step are evaluated; `Exact()` if None.

    **Returns:** the latency of the pass in seconds by part, the memory of a device in bytes, and energy in
    joules, power in watts and cost in USD. Every field of the report is declared with its unit.

    **Raises:** `ConfigError` for a layout that is not possible, if called as `dp.prefill` with numbers and an
    exact `relax`. Inside jit, grad and vmap nothing is checked.
    """
    c = _configuration(model, system, strategy, relax)
    tokens = strategy.global_batch * strategy.sequence_length
    return _pass_report(c, timed_phase(c, "prefill")["breakdown"], tokens)


def decode(model: Model, system: System, strategy: Strategy, relax: Relaxation | None = None) -> PassReport:
    """One decode pass, at the mean context of the generation: a token of every sequence, or as many as a
    step adds where tokens are drafted.

    - `relax`: how max, min, ceil and step are evaluated; `Exact()` if None.

    **Returns:** as `prefill`.

    **Raises:** `ConfigError` for a layout that is not possible, if called as `dp.decode` with numbers and an
    exact `relax`. Inside jit, grad and vmap nothing is checked.
    """
    c = _configuration(model, system, strategy, relax)
    tokens = strategy.global_batch * strategy.tokens_per_step
    return _pass_report(c, timed_phase(c, "decode")["breakdown"], tokens)


def generate(
    model: Model, system: System, strategy: Strategy, relax: Relaxation | None = None
) -> GenerationReport:
    """Prefill, then the decode passes of `output_length` − 1 tokens over a growing context.

    With speculative decoding or multi-token prediction a pass verifies `draft_tokens` drafted tokens and
    adds `tokens_per_step` (arXiv 2211.17192 §3; DeepSeek-V3, arXiv 2412.19437 §2.2).

    The sum over the passes is a closed form: attention, which alone depends on the context, is evaluated at
    a few contexts that stand for all (`diffperf.workload.growing_context`).

    - `relax`: how max, min, ceil and step are evaluated; `Exact()` if None.

    **Returns:** the latency in seconds, that of prefill and of a mean decode pass by part, the memory of a
    device in bytes, and energy in joules, power in watts and cost in USD. Every field of the report is
    declared with its unit.

    **Raises:** `ConfigError` for a layout that is not possible, if called as `dp.generate` with numbers and
    an exact `relax`. Inside jit, grad and vmap nothing is checked.
    """
    c = _configuration(model, system, strategy, relax)
    return generation_report(c, timed_phase(c, "generate"))


def generation_report(c: Configuration, timed: dict[str, TimedPass]) -> GenerationReport:
    """The report of a generation from its timed passes, "prefill" and the mean "decode"."""
    first, each = timed["prefill"], timed["decode"]
    passes = (c.strategy.output_length - 1) / c.strategy.tokens_per_step
    time = first.breakdown.total + passes * each.breakdown.total
    spent = first.energy + each.energy * passes
    tokens = c.strategy.global_batch * c.strategy.output_length
    cost = run_cost(c.system, time, spent.total, c.relax)
    return GenerationReport(
        time=time,
        time_to_first_token=first.breakdown.total,
        time_per_output_token=each.breakdown.total / c.strategy.tokens_per_step,
        tokens_per_second=tokens / time,
        power=spent.total / (time * c.system.n_devices),
        prefill_clock=first.clock.of_peak,
        decode_clock=each.clock.of_peak,
        prefill_frequency=c.system.accelerator.boost_clock * first.clock.of_peak,
        decode_frequency=c.system.accelerator.boost_clock * each.clock.of_peak,
        tokens_per_joule=tokens / spent.total,
        cost_per_million_tokens=cost.run / tokens * 1e6,
        prefill=first.breakdown,
        decode=each.breakdown,
        memory=inference_memory(c),
        energy=spent,
        cost=cost,
    )


def inference_tables(configuration: Configuration, phase: str) -> dict[str, PhaseTables]:
    """The operators and collectives of an inference phase, by the field of its report that they add up to.

    **Raises:** `KeyError` for a phase that is none of inference.
    """
    timed = timed_phase(configuration.for_inference(), phase)
    return {field: one_pass.tables for field, one_pass in timed.items()}


def timed_phase(c: Configuration, phase: str) -> dict[str, TimedPass]:
    """The timed passes of an inference phase, by the field of its report that they add up to.

    **Raises:** `KeyError` for a phase that is none of inference.
    """
    if phase == "generate":
        timed = timed_passes(
            c, {"prefill": prompt_pass(c), "decode": token_pass(c, c.strategy.output_length)}
        )
        return timed | {"decode": _with_drafts(c, timed["decode"])}
    if phase == "decode":
        return {"breakdown": _with_drafts(c, timed_passes(c, {"decode": token_pass(c)})["decode"])}
    if phase == "prefill":
        return timed_passes(c, {"breakdown": prompt_pass(c)})
    raise KeyError(f'"{phase}" is no phase of inference; expected prefill, decode or generate')


def drafting_time(
    c: Configuration, token: Float[Array, "*batches"], drafts: Scalar, sequences: Float[Array, "*batches"]
) -> Float[Array, "*batches"]:
    """Seconds of a decode step beside its pass, where each of `drafts` tokens takes `token` seconds to draft.

    Engines that draft run their steps one after another: the host looks at every sequence in between.
    """
    verifying = c.system.stack.draft_step + c.system.stack.draft_sequence * sequences
    return drafts * token + smaller(drafts, 1.0) * verifying


def drafted_token_time(
    given_share: Scalar, one_pass: Float[Array, "*batches"], module: Float[Array, "*batches"]
) -> Float[Array, "*batches"]:
    """Seconds to draft a token: a given share of those of a decode pass, or those of a module of multi-token
    prediction, which is a layer and the vocabulary projection (DeepSeek-V3, arXiv 2412.19437 §2.2).
    """
    return jnp.where(given_share > 0, given_share * one_pass, module)


def _with_drafts(c: Configuration, timed: TimedPass) -> TimedPass:
    """A decode pass with the drafting of the tokens that it verifies.

    A module that drafts works on one token of each sequence, the pass on the drafted ones too: reading its
    weights takes as long for either, and where products take longer than that, the module is too slow here.
    The energy of drafting is that of a pass in the same time.
    """
    strategy, one = c.strategy, timed.breakdown
    module = (one.total - one.head - one.host) / c.model.depth + one.head
    token = drafted_token_time(strategy.draft_share, one.total, module)
    drafted = strategy.draft_tokens * token
    drafting = drafting_time(c, token, strategy.draft_tokens, strategy.replica_sequences)
    host = drafting - drafted
    return dataclasses.replace(
        timed,
        breakdown=dataclasses.replace(one, drafting=drafting),
        busy=timed.busy + drafting,
        energy=timed.energy * (1 + drafted / one.total) + energy_beside_work(c, host, host, timed.clock),
    )


def sequence_parts(c: Configuration) -> Scalar:
    """Parts in which the sequences of a replica pass the pipeline: one for each stage, as far as there are
    sequences.
    """
    return c.relax.maximum(c.relax.minimum(c.strategy.pp, c.strategy.replica_sequences), 1.0)


def prompt_parts(c: Configuration) -> Scalar:
    """Parts in which the prompts of a replica pass the pipeline: those of their sequences, or more of them
    where an engine puts so many tokens into a pass at most. Without a pipeline all pass at once.
    """
    strategy = c.strategy
    tokens = strategy.replica_sequences * strategy.prefilled_length
    parts = c.relax.maximum(sequence_parts(c), tokens / c.system.stack.pass_tokens)
    alone = one_stage(strategy, c.relax)
    return alone + (1 - alone) * parts


def submissions(c: Configuration) -> Scalar:
    """Number of times that an engine hands prompts of a replica to the pipeline, which is empty between
    them.
    """
    strategy = c.strategy
    tokens = strategy.replica_sequences * strategy.prefilled_length
    return c.relax.maximum(tokens / c.system.stack.submitted_tokens, 1.0)


def prompt_pass(c: Configuration) -> TokenPass:
    """One part of the prompts of a replica, without what of them is cached. A part of a prompt counts as so
    much of a sequence.
    """
    strategy = c.strategy
    sequences = strategy.replica_sequences / prompt_parts(c)
    return TokenPass(
        sequences=sequences,
        queries=strategy.prefilled_length,
        context=strategy.sequence_length,
        serving=True,
    )


def token_pass(c: Configuration, outputs: Scalar | None = None) -> TokenPass:
    """One token of every sequence of a part of those of a replica, and the drafted ones after it, at the mean
    context of the generation.

    Token i of the o − 1 after the first attends to the prompt, i − 1 outputs and itself. Of d drafted tokens
    in passes that add t tokens each, the last of pass k attends to the prompt, 1 + (k − 1)·t outputs and d
    tokens; of all (o − 1) / t passes that is the prompt, o / 2 and d − (t − 1) / 2 tokens on average. With
    `outputs` the pass is the mean of all passes of a generation of so many tokens.
    """
    strategy = c.strategy
    beside_one = strategy.draft_tokens - (strategy.tokens_per_step - 1) / 2
    # Less than half a token would be left only where steps add more than they draft, which a rule refuses.
    prompt = larger(strategy.sequence_length + beside_one, 0.5)
    return TokenPass(
        sequences=strategy.replica_sequences / sequence_parts(c),
        queries=1 + strategy.draft_tokens,
        context=prompt + strategy.output_length / 2,
        outputs=outputs,
        generating=True,
        serving=True,
    )


def timed_passes(c: Configuration, passes: dict[str, TokenPass]) -> dict[str, TimedPass]:
    """Passes through all stages, one stage after the other, by name; all kernels and collectives are
    evaluated at once.
    """
    machine = Machine.of(c.system, c.strategy, c.relax, serving=True, residency=inference_residency(c))
    operators = {name: inference_operators(c, tokens) for name, tokens in passes.items()}
    requests = {
        name: [*layer_collectives(c, tokens), boundary_transfer(c, tokens, c.strategy.pp - 1)]
        for name, tokens in passes.items()
    }
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
    clock = _clock(c, machine, tokens, _PassWork.of(timed), network)
    timed = clock.slow_all(timed)
    work = _PassWork.of(timed)
    exposed_times = _exposed_times(c, tokens, work, network)
    one = _micro_batch_time(c, tokens, work, exposed_times)
    parts = sequence_parts(c) if tokens.generating else prompt_parts(c)
    busy, queue = _in_pipeline(c, tokens, one, parts)
    breakdown = dataclasses.replace(one, pipeline_queue=queue)
    # An average device does its stage's share of the whole model's work.
    share = parts / c.strategy.pp
    done, moved = work.of_layers(c.model.depth) * share, network.moved * share
    waiting = larger(breakdown.total - host_time(c, tokens) - done.time, 0.0)
    return TimedPass(
        breakdown=breakdown,
        busy=busy,
        clock=clock,
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
    - `moved`: the transfers of all layers and between the stages together.
    """

    in_layer: dict[str, Traffic]
    handed_on: Traffic
    moved: Transfer

    @classmethod
    def of(cls, collectives: list[TimedCollective], c: Configuration) -> "_PassNetwork":
        """The communication of the collectives of a pass, added up by purpose."""
        nothing = Transfer.nothing(c.system)
        sent: dict[str, Transfer] = dict.fromkeys((*LAYER_PURPOSES, "pipeline"), nothing)
        for timed in collectives:
            purpose = timed.collective.purpose
            sent[purpose] = sent[purpose] + timed.transfer * timed.collective.forward
        of_layer = functools.reduce(operator.add, (sent[purpose] for purpose in LAYER_PURPOSES))
        return cls(
            in_layer={purpose: Traffic.of(sent[purpose]) for purpose in LAYER_PURPOSES},
            handed_on=Traffic.of(sent["pipeline"]),
            moved=of_layer * c.model.depth + sent["pipeline"],
        )


def _clock(
    c: Configuration, machine: Machine, tokens: TokenPass, allowed: _PassWork, network: _PassNetwork
) -> Clock:
    """The clock that the limits leave a pass, from its work at the clock that software allows.

    Kernels that slow down hide hardly more of the communication: its waits are those at the allowed clock.
    """
    depth = c.model.depth
    waits = exposed_of_layer(network.in_layer, allowed.compute(c), c, generating=tokens.generating)
    beside = OutsideKernels(
        waiting=depth * functools.reduce(operator.add, waits.values()),
        active=host_time(c, tokens),
        energy=functools.reduce(operator.add, transfer_energy(network.moved, c.system)),
    )
    return clock_under_limit(allowed.of_layers(depth), machine, beside=beside)


def _exposed_times(
    c: Configuration, tokens: TokenPass, work: _PassWork, network: _PassNetwork
) -> dict[str, Scalar]:
    """Seconds that communication adds to the work of a pass, by purpose."""
    depth, compute = c.model.depth, work.compute(c)
    of_layer = exposed_of_layer(network.in_layer, compute, c, generating=tokens.generating)
    earlier = Earlier(others=[traffic * depth for traffic in network.in_layer.values()])
    pipeline = exposed(network.handed_on, compute.whole * depth, c.strategy.overlap_transfers, c, earlier)
    return {purpose: depth * time for purpose, time in of_layer.items()} | {"pipeline": pipeline}


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
    launching = nothing if tokens.generating else c.relax.excess(launch_time(c), one.total)
    return dataclasses.replace(one, host=host_time(c, tokens) + launching)


def _in_pipeline(c: Configuration, tokens: TokenPass, one: PassTime, parts: Scalar) -> tuple[Scalar, Scalar]:
    """Seconds that the passes of all `parts` keep the busiest stage busy, and for which the last of them
    waits for those before it.

    Prompts enter one micro-batch after another, and the last waits for those before it; those that an
    engine does not submit together wait until the pipeline is empty. A token of a sequence follows its
    last: a micro-batch comes back when it has left the pipeline, and when the busiest stage has
    served the others.
    """
    stage = _longest_stage(c, one)
    if tokens.generating:
        busy = c.relax.maximum(parts * stage, one.total)
        return busy, busy - one.total
    emptied = (submissions(c) - 1) * (one.total - stage)
    return parts * stage + emptied, (parts - 1) * stage + emptied


def host_time(c: Configuration, tokens: TokenPass) -> Scalar:
    """Seconds for which devices wait for the host in one pass: of the engine's step, and of each sequence."""
    stack = c.system.stack
    return stack.engine_step + stack.engine_sequence * tokens.sequences


def launch_time(c: Configuration) -> Scalar:
    """Seconds of the host to launch the kernels of a pass over prompts, which no recorded graph holds."""
    return c.model.depth * c.system.stack.prompt_launch


def _longest_stage(c: Configuration, one: PassTime) -> Scalar:
    """Seconds that a micro-batch keeps the busiest stage of the pipeline: the fullest, or the last, which has
    the vocabulary projection.
    """
    stages = stage_layers(c.model, c.strategy, c.relax)
    per_layer = (one.total - one.head - one.pipeline_transfers - one.host) / c.model.depth
    longest = c.relax.maximum(stages.middle * per_layer, stages.last * per_layer + one.head) + one.host
    alone = one_stage(c.strategy, c.relax)
    return alone * one.total + (1 - alone) * longest


def _configuration(
    model: Model, system: System, strategy: Strategy, relax: Relaxation | None
) -> Configuration:
    """The configuration of an inference phase, driven by the system's inference stack."""
    relax = Exact() if relax is None else relax
    return Configuration(model=model, system=system, strategy=strategy, relax=relax).for_inference()


def _pass_report(c: Configuration, timed: TimedPass, tokens: Scalar) -> PassReport:
    """The report of a pass that works on `tokens` tokens of all replicas."""
    time = timed.breakdown.total
    return PassReport(
        time=time,
        tokens_per_second=tokens / timed.busy,
        power=timed.energy.total / (time * c.system.n_devices),
        clock=timed.clock.of_peak,
        frequency=c.system.accelerator.boost_clock * timed.clock.of_peak,
        voltage=timed.clock.voltage,
        breakdown=timed.breakdown,
        memory=inference_memory(c),
        energy=timed.energy,
        cost=run_cost(c.system, time, timed.energy.total, c.relax),
    )
