"""Which strategies exist: what must divide what. One list, read by the loader (to explain) and by sweeps (to filter)."""

import dataclasses
import functools
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array

from diffperf.hardware.system import System
from diffperf.workload.model import Model
from diffperf.workload.strategy import Strategy


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

RULES = (
    Rule(
        ALWAYS,
        lambda m, n, s: _every([_divides(s.tp, layers.heads) for layers in m.layers]),
        lambda m, n, s: (
            "strategy.tp",
            f"{_n(s.tp)} for {_n(m.layers[0].heads)} attention heads",
            "a divisor of the heads",
            f"use one of {_divisors(m.layers[0].heads)}",
        ),
    ),
    Rule(
        ALWAYS,
        lambda m, n, s: _whole(s.tp) & _whole(s.pp) & _whole(s.dp) & _whole(s.virtual_stages) & _whole(s.micro_batch),
        lambda m, n, s: (
            "strategy.tp, pp, dp, virtual_stages, micro_batch",
            f"{_n(s.tp)}, {_n(s.pp)}, {_n(s.dp)}, {_n(s.virtual_stages)}, {_n(s.micro_batch)}",
            "whole numbers",
            f"choose degrees whose product is n_devices = {_n(n.n_devices)}",
        ),
    ),
    Rule(
        ALWAYS,
        lambda m, n, s: jnp.abs(s.devices - n.n_devices) <= 1e-4 * n.n_devices,
        lambda m, n, s: (
            "system.n_devices",
            f"{_n(n.n_devices)} devices for tp·pp·dp = {_n(s.tp)}·{_n(s.pp)}·{_n(s.dp)} = {_n(s.devices)}",
            "the product of the degrees",
            f"set the devices to {_n(s.devices)} or change a degree",
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
        lambda m, n, s: _every([layers.experts_per_token <= layers.experts for layers in m.layers]),
        lambda m, n, s: (
            "model.layers.experts_per_token",
            f"{_n(m.layers[0].experts_per_token)} of {_n(m.layers[0].experts)} experts",
            "no more experts per token than there are",
            f"use at most {_n(m.layers[0].experts)}",
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
    return functools.reduce(jnp.logical_and, conditions)


def feasible(model: Model, system: System, strategy: Strategy, phase: str = "training") -> Array:
    """Whether every rule of the phase holds; pure JAX."""
    return _every([rule.holds(model, system, strategy) for rule in RULES if phase in rule.phases])


def first_violation(model: Model, system: System, strategy: Strategy, phase: str = "training") -> tuple[str, str, str, str] | None:
    """(key, found, expected, remedy) of the first broken rule, or None."""
    for rule in RULES:
        if phase in rule.phases and not bool(rule.holds(model, system, strategy)):
            return rule.explain(model, system, strategy)
    return None
