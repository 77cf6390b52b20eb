"""Which strategies exist: what must divide what. One list, read by the loader (to explain) and by sweeps (to filter)."""

import dataclasses
import functools
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array

from diffperf.hardware.system import System
from diffperf.relax import larger
from diffperf.workload.model import Mixture, Model
from diffperf.workload.strategy import SCHEDULES, Strategy


@dataclasses.dataclass(frozen=True)
class Rule:
    """`holds(model, system, strategy)` is pure JAX; `explain` says (key, found, expected, remedy) in the words of the user."""

    phases: tuple[str, ...]
    holds: Callable[[Model, System, Strategy], Array]
    explain: Callable[[Model, System, Strategy], tuple[str, str, str, str]]


def _whole(x: Array) -> Array:
    return jnp.abs(x - jnp.round(x)) <= 1e-4 * jnp.maximum(jnp.abs(x), 1e-3)


def _divides(divisor: Array, number: Array) -> Array:
    return _whole(number / divisor)


def _n(x: Array) -> str:
    return f"{float(x):g}"


def _divisors(number: Array, limit: int = 64) -> str:
    whole = round(float(number))
    found = [str(d) for d in range(1, min(whole, limit) + 1) if whole % d == 0]
    return ", ".join(found)


ALWAYS = ("training", "prefill", "decode", "generate")
TRAINING = ("training",)
_DEGREES = ("tp", "pp", "dp", "cp", "ep", "virtual_stages", "micro_batch")


def _mixtures(model: Model) -> list[Mixture]:
    return [layers.mixture for layers in model.layers if layers.mixture is not None]


def _experts(model: Model) -> float:
    """Experts of the first layer that has any."""
    return float(next((mixture.experts for mixture in _mixtures(model)), 1.0))


def _heads_that_need(model: Model, ways: Array) -> float:
    """Heads of the first layer whose heads cannot be split so many ways, else of the first layer."""
    heads = [float(layers.heads) for layers in model.layers]
    return next((number for number in heads if not bool(_divides(ways, jnp.asarray(number)))), heads[0])


RULES = (
    Rule(
        ALWAYS,
        lambda m, n, s: _every([_divides(s.tp, layers.heads) for layers in m.layers]),
        lambda m, n, s: (
            "strategy.tp",
            f"{_n(s.tp)} for {_n(_heads_that_need(m, s.tp))} attention heads",
            "a divisor of the heads",
            f"use one of {_divisors(_heads_that_need(m, s.tp))}",
        ),
    ),
    Rule(
        ALWAYS,
        lambda m, n, s: _every([_whole(getattr(s, name)) for name in _DEGREES]),
        lambda m, n, s: (
            "strategy." + ", ".join(_DEGREES),
            ", ".join(_n(getattr(s, name)) for name in _DEGREES),
            "whole numbers",
            f"choose degrees whose product is n_devices = {_n(n.n_devices)}",
        ),
    ),
    Rule(
        ALWAYS,
        lambda m, n, s: jnp.abs(s.devices - n.n_devices) <= 1e-4 * n.n_devices,
        lambda m, n, s: (
            "system.n_devices",
            f"{_n(n.n_devices)} devices for tp·pp·dp·cp = {_n(s.tp)}·{_n(s.pp)}·{_n(s.dp)}·{_n(s.cp)} = {_n(s.devices)}",
            "the product of the degrees",
            f"set the devices to {_n(s.devices)} or change a degree",
        ),
    ),
    Rule(
        ALWAYS,
        lambda m, n, s: (s.context_parallel[1] < 0.5) | _every([_divides(s.tp * s.cp, layers.heads) for layers in m.layers]),
        lambda m, n, s: (
            "strategy.cp",
            f"{_n(s.tp)}·{_n(s.cp)} tensor- and context-parallel ranks for {_n(_heads_that_need(m, s.tp * s.cp))} attention heads",
            "tp·cp a divisor of the heads, which all-to-all context parallelism shares out",
            'use a smaller cp, or context_parallel "ring"',
        ),
    ),
    Rule(
        ALWAYS,
        lambda m, n, s: _divides(s.cp, s.sequence_length),
        lambda m, n, s: (
            "strategy.cp",
            f"{_n(s.cp)} for sequences of {_n(s.sequence_length)} tokens",
            "a divisor of the sequence length",
            f"use one of {_divisors(s.sequence_length)}",
        ),
    ),
    Rule(
        ALWAYS,
        lambda m, n, s: _every([_divides(layers.kv_heads, layers.heads) for layers in m.layers]),
        lambda m, n, s: (
            "model.layers.kv_heads",
            f"{_n(m.layers[0].kv_heads)} for {_n(m.layers[0].heads)} heads",
            "a divisor of the heads, which share key and value heads evenly",
            f"use one of {_divisors(m.layers[0].heads)}",
        ),
    ),
    Rule(
        ALWAYS,
        lambda m, n, s: _every([mixture.experts_per_token <= mixture.experts for mixture in _mixtures(m)]),
        lambda m, n, s: (
            "model.layers.mixture.experts_per_token",
            f"{_n(max(float(mixture.experts_per_token) for mixture in _mixtures(m)))} of {_n(_experts(m))} experts",
            "no more experts per token than there are",
            f"use at most {_n(_experts(m))}",
        ),
    ),
    Rule(
        ALWAYS,
        lambda m, n, s: _every([_divides(s.ep, mixture.experts) for mixture in _mixtures(m)] or [s.ep <= 1]),
        lambda m, n, s: (
            "strategy.ep",
            f"{_n(s.ep)} for {_n(_experts(m))} experts" if _mixtures(m) else f"{_n(s.ep)} for a model without experts",
            "a divisor of the experts",
            f"use one of {_divisors(_experts(m))}",
        ),
    ),
    Rule(
        ALWAYS,
        lambda m, n, s: _divides(s.experts_tp * s.ep, s.tp * s.replicas),
        lambda m, n, s: (
            "strategy.ep",
            f"{_n(s.experts_tp)}·{_n(s.ep)} ranks of the experts for tp·cp·dp = {_n(s.tp * s.replicas)} devices of a stage",
            "expert_tp·ep a divisor of the devices of a stage",
            f"use an expert_tp·ep of one of {_divisors(s.tp * s.replicas)}",
        ),
    ),
    Rule(
        TRAINING,
        lambda m, n, s: (s.zero_ranks <= 0) | _divides(larger(s.zero_ranks, 1.0), s.replicas),
        lambda m, n, s: (
            "strategy.zero_ranks",
            f"{_n(s.zero_ranks)} of {_n(s.replicas)} data- and context-parallel ranks",
            "a divisor of the ranks that share",
            f"use one of {_divisors(s.replicas)}, or 0 for all",
        ),
    ),
    Rule(
        TRAINING,
        lambda m, n, s: (s.virtual_stages <= 1) | (s.schedule[1] > 0.5),
        lambda m, n, s: (
            "strategy.virtual_stages",
            f"{_n(s.virtual_stages)} chunks per stage with schedule {SCHEDULES[int(jnp.argmax(s.schedule))]}",
            "one chunk per stage: only 1f1b interleaves",
            'set virtual_stages to 1 or schedule to "1f1b"',
        ),
    ),
    Rule(
        TRAINING,
        lambda m, n, s: (s.schedule[3] < 0.5) | (_divides(jnp.asarray(2.0), s.pp) & (s.micro_batches >= 2 * s.pp * (1 - 1e-6))),
        lambda m, n, s: (
            "strategy.schedule",
            f"dualpipe with {_n(s.pp)} stages and {_n(s.micro_batches)} micro-batches",
            "an even number of stages, and two micro-batches for each (arXiv 2412.19437 §3.2.1)",
            "change pp or global_batch, or use another schedule",
        ),
    ),
    Rule(
        ALWAYS,
        lambda m, n, s: s.pp * s.virtual_stages <= m.depth * (1 + 1e-6),
        lambda m, n, s: (
            "strategy.pp",
            f"{_n(s.pp)} stages of {_n(s.virtual_stages)} chunks for {_n(m.depth)} layers",
            "at least one layer per chunk",
            f"use at most {_n(m.depth)} chunks in all",
        ),
    ),
    Rule(
        ALWAYS,
        lambda m, n, s: (s.virtual_stages <= 1) | (s.pp > 1),
        lambda m, n, s: (
            "strategy.virtual_stages",
            f"{_n(s.virtual_stages)} chunks with one pipeline stage",
            "interleaving only where pp is above 1",
            "set virtual_stages to 1 or pp above 1",
        ),
    ),
    Rule(
        TRAINING,
        lambda m, n, s: _divides(s.dp * s.micro_batch, s.global_batch) & (s.micro_batches >= 1 - 1e-6),
        lambda m, n, s: (
            "strategy.global_batch",
            f"{_n(s.global_batch)} sequences for dp·micro_batch = {_n(s.dp)}·{_n(s.micro_batch)}",
            "a multiple of dp·micro_batch",
            f"use {_n(jnp.maximum(1, jnp.round(s.global_batch / (s.dp * s.micro_batch))) * s.dp * s.micro_batch)}",
        ),
    ),
    Rule(
        TRAINING,
        lambda m, n, s: (s.virtual_stages <= 1) | _divides(s.pp, s.micro_batches),
        lambda m, n, s: (
            "strategy.virtual_stages",
            f"{_n(s.micro_batches)} micro-batches for {_n(s.pp)} interleaved stages",
            "a multiple of pp micro-batches (arXiv 2104.04473 §2.2)",
            "change global_batch, micro_batch or pp, or set virtual_stages to 1",
        ),
    ),
    Rule(
        ("prefill", "decode", "generate"),
        lambda m, n, s: s.global_batch >= s.dp * (1 - 1e-6),
        lambda m, n, s: (
            "strategy.global_batch",
            f"{_n(s.global_batch)} sequences for {_n(s.dp)} replicas",
            "at least one sequence per replica",
            f"use at least {_n(s.dp)}, or a smaller dp",
        ),
    ),
)


def _every(conditions: list[Array]) -> Array:
    return functools.reduce(jnp.logical_and, conditions, jnp.asarray(True))


def feasible(model: Model, system: System, strategy: Strategy, phase: str = "training") -> Array:
    """Whether every rule of the phase holds; pure JAX."""
    return _every([rule.holds(model, system, strategy) for rule in RULES if phase in rule.phases])


def first_violation(model: Model, system: System, strategy: Strategy, phase: str = "training") -> tuple[str, str, str, str] | None:
    """(key, found, expected, remedy) of the first broken rule, or None."""
    for rule in RULES:
        if phase in rule.phases and not bool(rule.holds(model, system, strategy)):
            return rule.explain(model, system, strategy)
    return None
