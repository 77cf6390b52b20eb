"""Inference: prefill of the prompt, decode of one token, and a whole generation from first to last token."""

import equinox as eqx
import jax.numpy as jnp

from diffperf.cost.ownership import Cost, run_cost
from diffperf.estimate.communication import strides
from diffperf.estimate.energy import Energy, energy
from diffperf.estimate.kernels.roofline import Machine, Work
from diffperf.estimate.layer import LayerWork, Pass, inference_layers
from diffperf.estimate.network.collectives import Group, Request, Transfer, transfers
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
        return (
            self.matmul
            + self.attention
            + self.elementwise
            + self.head
            + self.tensor_parallel
            + self.pipeline_transfers
        )


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


def _passes(
    model: Model, system: System, strategy: Strategy, passes: dict[str, Pass], relax: Relaxation
) -> dict[str, tuple[PassTime, Energy]]:
    """Passes through all stages, one after the other, by name: where their time goes, and their energy."""
    machine = Machine.of(system, strategy, relax)
    logits = head(model, strategy.tp, strategy.global_batch / strategy.dp)  # of one token of every sequence
    layers, gemms = inference_layers(model, strategy, machine, passes, {"head": logits})
    apart = strides(strategy)
    residuals = {
        name: one.sequences * one.queries * model.hidden * machine.activation for name, one in passes.items()
    }
    # Two all-reduces a layer, one after attention and one after the MLP (arXiv 1909.08053 §3).
    requests = {}
    for name, bytes_ in residuals.items():
        requests[f"tensor {name}"] = Request(Group.all_reduce, strategy.tp, apart["tp"], bytes_)
        requests[f"boundary {name}"] = Request(Group.send, strategy.pp, apart["pp"], bytes_ / strategy.tp)
    found, logits = transfers(system, relax, requests), gemms["head"].total()

    def one(name: str) -> tuple[PassTime, Energy]:
        tensor = found[f"tensor {name}"] * (2 * model.depth)
        return _pass(
            model, system, strategy, layers[name] * model.depth, logits, tensor, found[f"boundary {name}"]
        )

    return {name: one(name) for name in passes}


def _pass(
    model: Model,
    system: System,
    strategy: Strategy,
    layers: LayerWork,
    logits: Work,
    tensor_parallel: Transfer,
    send: Transfer,
) -> tuple[PassTime, Energy]:
    """One pass from the work of all layers and the communication between them."""
    transfers = send * (strategy.pp - 1)
    breakdown = PassTime(
        matmul=layers.matmul.time,
        attention=layers.attention.time,
        elementwise=layers.elementwise.time,
        head=logits.time,
        tensor_parallel=tensor_parallel.time,
        pipeline_transfers=transfers.time,
    )
    share = 1 / strategy.pp  # of the whole model's work that an average device does
    work, sent = (layers.total + logits) * share, tensor_parallel * share + transfers * share
    return breakdown, energy(system, strategy.precision, work, sent, breakdown.total)


def _prompt(strategy: Strategy) -> Pass:
    """The prompts of all sequences of a replica."""
    return Pass(
        strategy.global_batch / strategy.dp,
        strategy.sequence_length,
        strategy.sequence_length,
        generating=False,
    )


def _token(strategy: Strategy) -> Pass:
    """One token of every sequence of a replica, at the mean context of the generation.

    Token i of the o − 1 after the first attends to the prompt, i − 1 outputs and itself.
    """
    context = strategy.sequence_length + strategy.output_length / 2
    return Pass(strategy.global_batch / strategy.dp, jnp.ones_like(strategy.tp), context, generating=True)


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
    breakdown, spent = _passes(model, system, strategy, {"prefill": _prompt(strategy)}, relax)["prefill"]
    tokens = strategy.global_batch * strategy.sequence_length
    return _report(breakdown, spent, tokens, model, system, strategy, relax)


def decode(model: Model, system: System, strategy: Strategy, relax: Relaxation | None = None) -> PassReport:
    """One token of every sequence, at the mean context of the generation."""
    relax = Exact() if relax is None else relax
    breakdown, spent = _passes(model, system, strategy, {"decode": _token(strategy)}, relax)["decode"]
    return _report(breakdown, spent, strategy.global_batch, model, system, strategy, relax)


def generate(
    model: Model, system: System, strategy: Strategy, relax: Relaxation | None = None
) -> GenerationReport:
    """Prefill, then `output_length` − 1 decode passes over a growing context.

    Decode time is affine in the context as long as no operator changes what bounds it, so the sum over the passes is their
    number times the pass at the mean context (a closed form, exact in that case).
    """
    relax = Exact() if relax is None else relax
    both = _passes(model, system, strategy, {"prefill": _prompt(strategy), "decode": _token(strategy)}, relax)
    (first, first_energy), (each, each_energy) = both["prefill"], both["decode"]
    passes = strategy.output_length - 1
    time = first.total + passes * each.total
    spent = Energy(
        *(
            getattr(first_energy, part) + passes * getattr(each_energy, part)
            for part in ("compute", "memory", "network", "static")
        )
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
