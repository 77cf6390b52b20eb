"""Which strategies exist: what must divide what. One list, read by the loader (to explain) and by sweeps (to filter)."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable

import jax.numpy as jnp
from jaxtyping import Array

from diffperf.hardware.system import System
from diffperf.relax import larger
from diffperf.workload.model import Layers, Mixture, Model
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


def _divisors(number: Array) -> list[int]:
    whole = round(float(number))
    small = [d for d in range(1, math.isqrt(whole) + 1) if whole % d == 0]
    return sorted({*small, *(whole // d for d in small)})


def _nearest(found: Array, possible: Iterable[float]) -> str:
    """The possible values on either side of one that is not, the nearer first: "8 or 6" for 7."""
    value, possible = float(found), sorted(possible)
    around = [p for p in possible if p > value][:1] + [p for p in possible if p < value][-1:]
    return " or ".join(f"{p:g}" for p in sorted(around, key=lambda p: abs(p - value)))


def _one_of(found: Array, possible: list[int], limit: int = 64) -> str:
    """What to use in place of a value that is not possible: all that is, up to a limit, and what is nearest."""
    if len(possible) == 1:
        return f"use {possible[0]}"
    listed = ", ".join(str(p) for p in possible if p <= limit)
    return f"use one of {listed} (nearest: {_nearest(found, possible)})"


def _use(name: str, found: Array, possible: Iterable[float], otherwise: str) -> str:
    """The nearest possible values of a field, where there are any, or something else to change."""
    return f"use {name} {near}, or {otherwise}" if (near := _nearest(found, possible)) else f"use {otherwise}"


def _multiples(found: Array, unit: Array) -> str:
    """The multiples of a unit on either side of a number, the nearer first."""
    times = max(1, math.floor(float(found) / float(unit)))
    return _nearest(
        found, [times * float(unit), (times + 1) * float(unit)] if found > unit else [float(unit)]
    )


ALWAYS = ("training", "prefill", "decode", "generate")
TRAINING = ("training",)
_DEGREES = ("tp", "pp", "dp", "cp", "ep", "virtual_stages", "micro_batch")


def _latents(model: Model) -> list[Layers]:
    """Layers with latent attention."""
    return [layers for layers in model.layers if layers.latent is not None]


def _mixtures(model: Model) -> list[Mixture]:
    return [layers.mixture for layers in model.layers if layers.mixture is not None]


def _experts(model: Model) -> float:
    """Experts of the first layer that has any."""
    return float(next((mixture.experts for mixture in _mixtures(model)), 1.0))


def _common_heads(model: Model) -> int:
    """What every layer's heads are a multiple of: ways to share heads divide it."""
    return math.gcd(*(round(float(layers.heads)) for layers in model.layers))


def _common_experts(model: Model) -> int:
    """What the experts of every layer that has any are a multiple of; 1 without experts."""
    return math.gcd(*(round(float(mixture.experts)) for mixture in _mixtures(model))) or 1


def _heads_that_need(model: Model, ways: Array) -> float:
    """Heads of the first layer whose heads cannot be split so many ways, else of the first layer."""
    heads = [float(layers.heads) for layers in model.layers]
    return next((number for number in heads if not bool(_divides(ways, jnp.asarray(number)))), heads[0])


def _not_whole(model: Model, system: System, strategy: Strategy) -> tuple[str, str, str, str]:
    """Which degrees are not whole; where it is what the others leave for dp, which of them to change."""
    broken = [name for name in _DEGREES if not bool(_whole(getattr(strategy, name)))]
    given = {name: round(float(getattr(strategy, name))) for name in ("tp", "pp", "cp")}
    expected = f"whole numbers whose product is n_devices = {_n(system.n_devices)}"
    fits = {
        "tp": lambda tp: _common_heads(model) % tp == 0,
        "pp": lambda pp: pp * float(strategy.virtual_stages) <= float(model.depth),
        "cp": lambda cp: float(strategy.sequence_length) % cp == 0,
    }
    for name, degree in given.items() if broken == ["dp"] else ():
        left = float(system.n_devices) / (math.prod(given.values()) // degree)
        if left == round(left):
            found = f"{degree}, which leaves dp = {_n(strategy.dp)} of {_n(system.n_devices)} devices"
            return (
                f"strategy.{name}",
                found,
                expected,
                f"use {name} {_nearest(degree, filter(fits[name], _divisors(left)))}",
            )
    found = ", ".join(f"{name} {_n(getattr(strategy, name))}" for name in broken)
    return "strategy." + ", ".join(broken), found, expected, "change a degree"


def _fitting_degree(system: System, strategy: Strategy) -> str:
    """Which one degree would make the product the devices."""
    for name in ("dp", "pp", "tp", "cp"):
        left = float(system.n_devices * getattr(strategy, name) / strategy.devices)
        if left == round(left):
            return f"{name} to {left:g}"
    return "change a degree"


def _head_shares(model: Model, strategy: Strategy) -> list[int]:
    """Context-parallel degrees that share out the heads of a tensor-parallel rank."""
    heads = _common_heads(model)
    return [cp for cp in _divisors(heads) if heads % (round(float(strategy.tp)) * cp) == 0]


def _expert_shares(model: Model, strategy: Strategy) -> list[int]:
    """Expert-parallel degrees that share out experts and the devices of a stage."""
    devices = round(float(strategy.tp * strategy.replicas))
    return [
        ep
        for ep in _divisors(_common_experts(model))
        if devices % (round(float(strategy.experts_tp)) * ep) == 0
    ]


def _even_stages(model: Model, strategy: Strategy) -> list[int]:
    """Even numbers of stages that have a layer, and two micro-batches, each."""
    most = min(float(model.depth), float(strategy.micro_batches) / 2)
    return list(range(2, math.floor(most) + 1, 2))


def _fewer_chunks(model: Model, strategy: Strategy) -> str:
    """The most stages, and the most chunks of each, that have a layer."""
    stages, chunks = (
        math.floor(float(model.depth / degree)) for degree in (strategy.virtual_stages, strategy.pp)
    )
    return f"pp {max(stages, 1)}" + (
        f" or virtual_stages {chunks}" if chunks and float(strategy.virtual_stages) > 1 else ""
    )


RULES = (
    Rule(
        ALWAYS,
        lambda m, n, s: _every([_divides(s.tp, layers.heads) for layers in m.layers]),
        lambda m, n, s: (
            "strategy.tp",
            f"{_n(s.tp)} for {_n(_heads_that_need(m, s.tp))} attention heads",
            "a divisor of the heads",
            _one_of(s.tp, _divisors(_common_heads(m))),
        ),
    ),
    Rule(
        ALWAYS,
        lambda m, n, s: _every([_whole(getattr(s, name)) for name in _DEGREES]),
        _not_whole,
    ),
    Rule(
        ALWAYS,
        lambda m, n, s: jnp.abs(s.devices - n.n_devices) <= 1e-4 * n.n_devices,
        lambda m, n, s: (
            "system.n_devices",
            f"{_n(n.n_devices)} devices for tp·pp·dp·cp = {_n(s.tp)}·{_n(s.pp)}·{_n(s.dp)}·{_n(s.cp)} = {_n(s.devices)}",
            "the product of the degrees",
            f"set the devices to {_n(s.devices)} or {_fitting_degree(n, s)}",
        ),
    ),
    Rule(
        ALWAYS,
        lambda m, n, s: (
            (s.context_parallel.all_to_all < 0.5)
            | _every([_divides(s.tp * s.cp, layers.heads) for layers in m.layers])
        ),
        lambda m, n, s: (
            "strategy.cp",
            f"{_n(s.tp)}·{_n(s.cp)} tensor- and context-parallel ranks for {_n(_heads_that_need(m, s.tp * s.cp))} attention heads",
            "tp·cp a divisor of the heads, which all-to-all context parallelism shares out",
            _use("cp", s.cp, _head_shares(m, s), 'context_parallel "ring"'),
        ),
    ),
    Rule(
        ALWAYS,
        lambda m, n, s: _divides(s.cp, s.sequence_length),
        lambda m, n, s: (
            "strategy.cp",
            f"{_n(s.cp)} for sequences of {_n(s.sequence_length)} tokens",
            "a divisor of the sequence length",
            _one_of(s.cp, _divisors(s.sequence_length)),
        ),
    ),
    Rule(
        ALWAYS,
        lambda m, n, s: _every([_divides(layers.kv_heads, layers.heads) for layers in m.layers]),
        lambda m, n, s: (
            "model.layers.kv_heads",
            f"{_n(m.layers[0].kv_heads)} for {_n(m.layers[0].heads)} heads",
            "a divisor of the heads, which share key and value heads evenly",
            _one_of(m.layers[0].kv_heads, _divisors(m.layers[0].heads)),
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
        lambda m, n, s: _every([layers.latent.rotary_dim <= layers.head_dim for layers in _latents(m)]),
        lambda m, n, s: (
            "model.layers.latent.rotary_dim",
            f"{_n(max(float(layers.latent.rotary_dim) for layers in _latents(m)))} of a head's dimensions",
            "no more dimensions that carry positions than a head has",
            f"use at most {_n(min(float(layers.head_dim) for layers in _latents(m)))}",
        ),
    ),
    Rule(
        ALWAYS,
        lambda m, n, s: _every([_divides(s.ep, mixture.experts) for mixture in _mixtures(m)] or [s.ep <= 1]),
        lambda m, n, s: (
            "strategy.ep",
            f"{_n(s.ep)} for {_n(_experts(m))} experts"
            if _mixtures(m)
            else f"{_n(s.ep)} for a model without experts",
            "a divisor of the experts",
            _one_of(s.ep, _divisors(_common_experts(m))),
        ),
    ),
    Rule(
        ALWAYS,
        lambda m, n, s: _divides(s.experts_tp * s.ep, s.tp * s.replicas),
        lambda m, n, s: (
            "strategy.ep",
            f"{_n(s.experts_tp)}·{_n(s.ep)} ranks of the experts for tp·cp·dp = {_n(s.tp * s.replicas)} devices of a stage",
            "expert_tp·ep a divisor of the devices of a stage",
            _use("ep", s.ep, _expert_shares(m, s), "an expert_tp that shares them evenly"),
        ),
    ),
    Rule(
        TRAINING,
        lambda m, n, s: (s.zero_ranks <= 0) | _divides(larger(s.zero_ranks, 1.0), s.replicas),
        lambda m, n, s: (
            "strategy.zero_ranks",
            f"{_n(s.zero_ranks)} of {_n(s.replicas)} data- and context-parallel ranks",
            "a divisor of the ranks that share",
            f"{_one_of(s.zero_ranks, _divisors(s.replicas))}, or 0 for all",
        ),
    ),
    Rule(
        TRAINING,
        lambda m, n, s: (s.virtual_stages <= 1) | (s.schedule["1f1b"] > 0.5),
        lambda m, n, s: (
            "strategy.virtual_stages",
            f"{_n(s.virtual_stages)} chunks per stage with schedule {SCHEDULES[int(jnp.argmax(s.schedule))]}",
            "one chunk per stage: only 1f1b interleaves",
            'set virtual_stages to 1 or schedule to "1f1b"',
        ),
    ),
    Rule(
        TRAINING,
        lambda m, n, s: (
            (s.schedule.dualpipe < 0.5)
            | (_divides(jnp.asarray(2.0), s.pp) & (s.micro_batches >= 2 * s.pp * (1 - 1e-6)))
        ),
        lambda m, n, s: (
            "strategy.schedule",
            f"dualpipe with {_n(s.pp)} stages and {_n(s.micro_batches)} micro-batches",
            "an even number of stages, and two micro-batches for each (arXiv 2412.19437 §3.2.1)",
            _use("pp", s.pp, _even_stages(m, s), "a larger global_batch or another schedule"),
        ),
    ),
    Rule(
        ALWAYS,
        lambda m, n, s: s.pp * s.virtual_stages <= m.depth * (1 + 1e-6),
        lambda m, n, s: (
            "strategy.pp",
            f"{_n(s.pp)} stages of {_n(s.virtual_stages)} chunks for {_n(m.depth)} layers",
            "at least one layer per chunk",
            f"use at most {_n(m.depth)} chunks in all: {_fewer_chunks(m, s)}",
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
            f"use {_multiples(s.global_batch, s.dp * s.micro_batch)}",
        ),
    ),
    Rule(
        TRAINING,
        lambda m, n, s: (s.virtual_stages <= 1) | _divides(s.pp, s.micro_batches),
        lambda m, n, s: (
            "strategy.virtual_stages",
            f"{_n(s.micro_batches)} micro-batches for {_n(s.pp)} interleaved stages",
            "a multiple of pp micro-batches (arXiv 2104.04473 §2.2)",
            f"use a global_batch of {_multiples(s.global_batch, s.dp * s.micro_batch * s.pp)}, or set virtual_stages to 1",
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


def broken(model: Model, system: System, strategy: Strategy, phase: str = "training") -> Array:
    """How many rules of the phase do not hold; pure JAX."""
    return sum(jnp.where(rule.holds(model, system, strategy), 0, 1) for rule in RULES if phase in rule.phases)


def first_violation(
    model: Model, system: System, strategy: Strategy, phase: str = "training"
) -> tuple[str, str, str, str] | None:
    """(key, found, expected, remedy) of the first broken rule, or None."""
    for rule in RULES:
        if phase in rule.phases and not bool(rule.holds(model, system, strategy)):
            return rule.explain(model, system, strategy)
    return None
