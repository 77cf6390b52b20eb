"""Rules of attention: how heads and sequences are split, and which dimensions of heads exist."""

import math

from diffperf.workload.configuration import Configuration
from diffperf.workload.model import Model
from diffperf.workload.rules.verdict import Verdict, Violation, every
from diffperf.workload.rules.wording import show, use_nearest, use_one_of
from diffperf.workload.whole_numbers import Number, divides, divisors


def tensor_ranks_divide_heads(configuration: Configuration) -> Verdict:
    """Every tensor-parallel rank has the same whole number of attention heads (Megatron-LM, arXiv 1909.08053
    §3).
    """
    model, tp = configuration.model, configuration.strategy.tp

    def explain() -> Violation:
        return Violation(
            key="strategy.tp",
            found=f"{show(tp)} for {show(_heads_not_divided(model, tp))} attention heads",
            expected="a divisor of the heads",
            remedy=use_one_of(tp, divisors(common_heads(model))),
        )

    return Verdict(every(divides(tp, layers.heads) for layers in model.layers), explain)


def all_to_all_ranks_divide_heads(configuration: Configuration) -> Verdict:
    """All-to-all context parallelism gives ranks whole heads (DeepSpeed-Ulysses, arXiv 2309.14509 §3)."""
    model, strategy = configuration.model, configuration.strategy
    ranks = strategy.tp * strategy.cp

    def explain() -> Violation:
        return Violation(
            key="strategy.cp",
            found=f"{show(strategy.tp)}·{show(strategy.cp)} tensor- and context-parallel ranks for "
            f"{show(_heads_not_divided(model, ranks))} attention heads",
            expected="tp·cp a divisor of the heads, which all-to-all context parallelism shares out",
            remedy=use_nearest(
                "cp", strategy.cp, _possible_cp(model, strategy.tp), 'context_parallel "ring"'
            ),
        )

    shared = every(divides(ranks, layers.heads) for layers in model.layers)
    return Verdict((strategy.context_parallel.all_to_all < 0.5) | shared, explain)


def context_ranks_divide_sequence(configuration: Configuration) -> Verdict:
    """Every context-parallel rank has an equal part of each sequence, in whole tokens."""
    cp, length = configuration.strategy.cp, configuration.strategy.sequence_length

    def explain() -> Violation:
        return Violation(
            key="strategy.cp",
            found=f"{show(cp)} for sequences of {show(length)} tokens",
            expected="a divisor of the sequence length",
            remedy=use_one_of(cp, divisors(float(length))),
        )

    return Verdict(divides(cp, length), explain)


def key_value_heads_divide_heads(configuration: Configuration) -> Verdict:
    """Every key and value head serves the same number of query heads (grouped-query attention, arXiv
    2305.13245 §2.2).
    """
    model = configuration.model

    def explain() -> Violation:
        layers = next(layers for layers in model.layers if not bool(divides(layers.kv_heads, layers.heads)))
        return Violation(
            key="model.layers.kv_heads",
            found=f"{show(layers.kv_heads)} for {show(layers.heads)} heads",
            expected="a divisor of the heads, which share key and value heads evenly",
            remedy=use_one_of(layers.kv_heads, divisors(float(layers.heads))),
        )

    return Verdict(every(divides(layers.kv_heads, layers.heads) for layers in model.layers), explain)


def positions_fit_into_heads(configuration: Configuration) -> Verdict:
    """In latent attention a part of a head's dimensions carries positions (DeepSeek-V2, arXiv 2405.04434
    §2.1.3).
    """
    dimensions = [
        (layers.latent.rotary_dim, layers.head_dim)
        for layers in configuration.model.layers
        if layers.latent is not None
    ]

    def explain() -> Violation:
        rotary_dim, head_dim = next((rotary, head) for rotary, head in dimensions if rotary > head)
        return Violation(
            key="model.layers.latent.rotary_dim",
            found=f"{show(rotary_dim)} of a head's dimensions",
            expected="no more dimensions that carry positions than a head has",
            remedy=f"use at most {show(head_dim)}",
        )

    return Verdict(every(rotary_dim <= head_dim for rotary_dim, head_dim in dimensions), explain)


def common_heads(model: Model) -> int:
    """The greatest common divisor of the heads of all kinds of layers: ways to share heads divide it."""
    return math.gcd(*(round(float(layers.heads)) for layers in model.layers))


def _heads_not_divided(model: Model, ways: Number) -> float:
    """The heads of the first kind of layers whose heads cannot be split so many ways."""
    return next(float(layers.heads) for layers in model.layers if not bool(divides(ways, layers.heads)))


def _possible_cp(model: Model, tp: Number) -> list[int]:
    """The context-parallel degrees that share out the heads of a tensor-parallel rank."""
    heads = common_heads(model)
    return [cp for cp in divisors(heads) if heads % (round(float(tp)) * cp) == 0]
