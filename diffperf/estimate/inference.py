"""Inference: prefill of the prompt, decode of one token, and a whole generation from first to last token."""

import equinox as eqx
import jax.numpy as jnp

from diffperf.cost.ownership import Cost, run_cost
from diffperf.estimate.collectives import place
from diffperf.estimate.energy import Energy, energy
from diffperf.estimate.gemm import gemm_work
from diffperf.estimate.layer import average_layer, layer_forward
from diffperf.estimate.machine import Machine
from diffperf.hardware.system import System
from diffperf.quantity import Scalar, output
from diffperf.relax import Exact, Relaxation
from diffperf.report.tables import Readable
from diffperf.workload.memory import Memory, inference_memory
from diffperf.workload.model import Model
from diffperf.workload.operators import head
from diffperf.workload.strategy import Strategy


class PassTime(eqx.Module):
    """Where one pass through the model goes. Adds up to its time."""

    matmul: Scalar = output("s", "linear layers", table="gemm")
    attention: Scalar = output("s", "attention cores", table="attention")
    elementwise: Scalar = output("s", "norms, activations, residuals")
    head: Scalar = output("s", "vocabulary projection", table="gemm")
    tensor_parallel: Scalar = output("s", "tensor-parallel communication", table="collectives")
    pipeline_transfers: Scalar = output("s", "transfers between pipeline stages", table="collectives")

    @property
    def total(self) -> Scalar:
        return self.matmul + self.attention + self.elementwise + self.head + self.tensor_parallel + self.pipeline_transfers


class PassReport(Readable):
    """One pass: the prefill of all prompts, or the decode of one token of every sequence."""

    time: Scalar = output("s", "time of the pass")
    tokens_per_second: Scalar = output("token/s", "tokens per second")
    power: Scalar = output("W", "average power per device")
    breakdown: PassTime
    memory: Memory
    energy: Energy
    cost: Cost


class GenerationReport(Readable):
    """Prompts in, outputs out: latency, throughput, memory, energy and cost."""

    time: Scalar = output("s", "latency, first to last token")
    time_to_first_token: Scalar = output("s", "time to first token")
    time_per_output_token: Scalar = output("s", "time per output token")
    tokens_per_second: Scalar = output("token/s", "output tokens per second")
    power: Scalar = output("W", "average power per device")
    tokens_per_joule: Scalar = output("token/J", "output tokens per joule")
    cost_per_million_tokens: Scalar = output("USD", "cost per million output tokens")
    prefill: PassTime
    decode: PassTime
    memory: Memory
    energy: Energy
    cost: Cost


def _pass(model: Model, system: System, strategy: Strategy, queries: Scalar, context: Scalar, relax: Relaxation):
    """One pass of `queries` tokens of every sequence through all stages, one after the other: (PassTime, Energy)."""
    machine = Machine.of(system, strategy, relax)
    sequences = strategy.global_batch / strategy.dp
    residual = sequences * queries * model.hidden * machine.width

    forward = average_layer(model, lambda kind: layer_forward(kind, model, strategy, machine, sequences, queries, context))
    head_work = gemm_work(head(model, strategy.tp, sequences), machine).total()
    # Two all-reduces a layer, one after attention and one after the MLP (arXiv 1909.08053 §3).
    tensor_parallel = place(system, strategy.tp, 1.0, relax).all_reduce(residual) * (2 * model.depth)
    transfers = place(system, strategy.pp, strategy.tp * strategy.dp, relax).send(residual / strategy.tp) * (strategy.pp - 1)

    layers = forward * model.depth
    breakdown = PassTime(
        matmul=layers.matmul.time,
        attention=layers.attention.time,
        elementwise=layers.elementwise.time,
        head=head_work.time,
        tensor_parallel=tensor_parallel.time,
        pipeline_transfers=transfers.time,
    )
    share = 1 / strategy.pp  # of the whole model's work that an average device does
    work, sent = (layers.total + head_work) * share, tensor_parallel * share + transfers * share
    return breakdown, energy(system, strategy.precision, work, sent, breakdown.total)


def _report(breakdown: PassTime, spent: Energy, tokens: Scalar, model, system, strategy, relax) -> PassReport:
    time = breakdown.total
    return PassReport(
        time=time,
        tokens_per_second=tokens / time,
        power=spent.total / (time * system.n_devices),
        breakdown=breakdown,
        memory=inference_memory(model, system, strategy, relax),
        energy=spent,
        cost=run_cost(system, time, spent.total, relax),
    )


def prefill(model: Model, system: System, strategy: Strategy, relax: Relaxation | None = None) -> PassReport:
    """The prompts of all sequences at once, up to each one's first output token."""
    relax = Exact() if relax is None else relax
    length = strategy.sequence_length
    breakdown, spent = _pass(model, system, strategy, length, length, relax)
    return _report(breakdown, spent, strategy.global_batch * length, model, system, strategy, relax)


def decode(model: Model, system: System, strategy: Strategy, relax: Relaxation | None = None) -> PassReport:
    """One token of every sequence, at the mean context of the generation."""
    relax = Exact() if relax is None else relax
    breakdown, spent = _pass(model, system, strategy, jnp.ones_like(strategy.tp), _mean_context(strategy), relax)
    return _report(breakdown, spent, strategy.global_batch, model, system, strategy, relax)


def _mean_context(strategy: Strategy) -> Scalar:
    """Mean context of the decode passes: token i of the o − 1 after the first attends to the prompt, i − 1 outputs and itself."""
    return strategy.sequence_length + strategy.output_length / 2


def generate(model: Model, system: System, strategy: Strategy, relax: Relaxation | None = None) -> GenerationReport:
    """Prefill, then `output_length` − 1 decode passes over a growing context.

    Decode time is affine in the context as long as no operator changes what bounds it, so the sum over the passes is their
    number times the pass at the mean context (a closed form, exact in that case).
    """
    relax = Exact() if relax is None else relax
    length = strategy.sequence_length
    first, first_energy = _pass(model, system, strategy, length, length, relax)
    each, each_energy = _pass(model, system, strategy, jnp.ones_like(strategy.tp), _mean_context(strategy), relax)
    passes = strategy.output_length - 1
    time = first.total + passes * each.total
    spent = Energy(
        *(getattr(first_energy, part) + passes * getattr(each_energy, part) for part in ("compute", "memory", "network", "static"))
    )
    tokens = strategy.global_batch * strategy.output_length
    cost = run_cost(system, time, spent.total, relax)
    return GenerationReport(
        time=time,
        time_to_first_token=first.total,
        time_per_output_token=each.total,
        tokens_per_second=tokens / time,
        power=spent.total / (time * system.n_devices),
        tokens_per_joule=tokens / spent.total,
        cost_per_million_tokens=cost.run / tokens * 1e6,
        prefill=first,
        decode=each,
        memory=inference_memory(model, system, strategy, relax),
        energy=spent,
        cost=cost,
    )
