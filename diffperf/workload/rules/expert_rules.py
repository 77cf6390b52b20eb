"""Rules of mixtures of experts: how many experts a token visits, and how experts are split over devices."""

import math

from diffperf.workload.configuration import Configuration
from diffperf.workload.model import Mixture, Model
from diffperf.workload.rules.verdict import Verdict, Violation, every
from diffperf.workload.rules.wording import show, use_nearest, use_one_of
from diffperf.workload.strategy import Strategy
from diffperf.workload.whole_numbers import divides, divisors


def tokens_visit_existing_experts(configuration: Configuration) -> Verdict:
    """A token visits no more experts than its layer has."""
    mixtures = _mixtures(configuration.model)

    def explain() -> Violation:
        mixture = next(mixture for mixture in mixtures if mixture.experts_per_token > mixture.experts)
        return Violation(
            key="model.layers.mixture.experts_per_token",
            found=f"{show(mixture.experts_per_token)} of {show(mixture.experts)} experts",
            expected="no more experts per token than there are",
            remedy=f"use at most {show(mixture.experts)}",
        )

    return Verdict(every(mixture.experts_per_token <= mixture.experts for mixture in mixtures), explain)


def expert_ranks_divide_experts(configuration: Configuration) -> Verdict:
    """Every expert-parallel rank has the same whole number of experts (GShard, arXiv 2006.16668 §3.2)."""
    model, ep = configuration.model, configuration.strategy.ep
    mixtures = _mixtures(model)

    def explain() -> Violation:
        undivided = (mixture.experts for mixture in mixtures if not bool(divides(ep, mixture.experts)))
        experts = f"{show(next(undivided))} experts" if mixtures else "a model without experts"
        return Violation(
            key="strategy.ep",
            found=f"{show(ep)} for {experts}",
            expected="a divisor of the experts",
            remedy=use_one_of(ep, divisors(common_experts(model))),
        )

    conditions = [divides(ep, mixture.experts) for mixture in mixtures]
    return Verdict(every(conditions or [ep <= 1]), explain)


def expert_ranks_divide_stage(configuration: Configuration) -> Verdict:
    """The devices of a pipeline stage are whole copies of the expert-parallel ranks (MoE Parallel Folding,
    arXiv 2504.14960).
    """
    model, strategy = configuration.model, configuration.strategy
    devices = strategy.tp * strategy.replicas

    def explain() -> Violation:
        return Violation(
            key="strategy.ep",
            found=f"{show(strategy.experts_tp)}·{show(strategy.ep)} ranks of the experts for "
            f"tp·cp·dp = {show(devices)} devices of a stage",
            expected="expert_tp·ep a divisor of the devices of a stage",
            remedy=use_nearest(
                "ep", strategy.ep, _possible_ep(model, strategy), "an expert_tp that shares them evenly"
            ),
        )

    return Verdict(divides(strategy.experts_tp * strategy.ep, devices), explain)


def _mixtures(model: Model) -> list[Mixture]:
    """The mixtures of the kinds of layers that have experts."""
    return [layers.mixture for layers in model.layers if layers.mixture is not None]


def common_experts(model: Model) -> int:
    """The greatest common divisor of the experts of all kinds of layers that have any; 1 without experts."""
    return math.gcd(*(round(float(mixture.experts)) for mixture in _mixtures(model))) or 1


def _possible_ep(model: Model, strategy: Strategy) -> list[int]:
    """The expert-parallel degrees that share out both the experts and the devices of a stage."""
    devices, experts_tp = round(float(strategy.tp * strategy.replicas)), round(float(strategy.experts_tp))
    return [ep for ep in divisors(common_experts(model)) if devices % (experts_tp * ep) == 0]
