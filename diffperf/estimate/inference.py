"""Inference: prefill of the prompts, decode of one token, and a whole generation from the first to the last
token.
"""

from diffperf.cost.ownership import Cost, run_cost
from diffperf.estimate.drafting import with_drafts
from diffperf.estimate.energy import Energy
from diffperf.estimate.pass_time import PassTime, TimedPass, timed_passes
from diffperf.estimate.phase_tables import PhaseTables
from diffperf.hardware.system import System
from diffperf.quantity import Scalar, output
from diffperf.relax import Exact, Relaxation
from diffperf.report.tables import Readable
from diffperf.workload.configuration import Configuration
from diffperf.workload.memory import Memory, inference_memory
from diffperf.workload.model import Model
from diffperf.workload.passes import prompt_pass, token_pass
from diffperf.workload.strategy import Strategy


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
        return timed | {"decode": with_drafts(c, timed["decode"])}
    if phase == "decode":
        return {"breakdown": with_drafts(c, timed_passes(c, {"decode": token_pass(c)})["decode"])}
    if phase == "prefill":
        return timed_passes(c, {"breakdown": prompt_pass(c)})
    raise KeyError(f'"{phase}" is no phase of inference; expected prefill, decode or generate')


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
