"""Rules of the degrees of parallelism: they are whole, multiply to the devices, and share evenly."""

import math
from collections.abc import Callable

from diffperf import units
from diffperf.hardware.system import System
from diffperf.relax import larger
from diffperf.workload.configuration import Configuration
from diffperf.workload.rules.attention_rules import common_heads
from diffperf.workload.rules.verdict import Verdict, Violation, every
from diffperf.workload.rules.wording import nearest, several, show, use_one_of
from diffperf.workload.strategy import Strategy
from diffperf.workload.whole_numbers import divides, divisors, equals, is_whole

_DEGREES = ("tp", "pp", "dp", "cp", "ep", "virtual_stages", "micro_batch")


def degrees_are_whole(configuration: Configuration) -> Verdict:
    """Degrees of parallelism, chunks of a stage and sequences of a micro-batch are whole numbers."""
    strategy = configuration.strategy

    def explain() -> Violation:
        broken = [name for name in _DEGREES if not bool(is_whole(getattr(strategy, name)))]
        if broken == ["dp"] and (violation := _degree_that_leaves_no_whole_dp(configuration)) is not None:
            return violation
        return Violation(
            key="strategy." + ", ".join(broken),
            found=", ".join(f"{name} {show(getattr(strategy, name))}" for name in broken),
            expected=_whole_product(configuration.system),
            remedy="change a degree",
        )

    return Verdict(every(is_whole(getattr(strategy, name)) for name in _DEGREES), explain)


def _whole_product(system: System) -> str:
    """The expected values of the degrees, in words."""
    return f"whole numbers whose product is n_devices = {show(system.n_devices)}"


def _degree_that_leaves_no_whole_dp(configuration: Configuration) -> Violation | None:
    """The degree to change where dp is not whole: dp is commonly not given, but what the other degrees leave.

    None where no change of a single degree would do.
    """
    model, system, strategy = configuration.model, configuration.system, configuration.strategy
    degrees = {name: round(float(getattr(strategy, name))) for name in ("tp", "pp", "cp")}
    allowed: dict[str, Callable[[int], bool]] = {
        "tp": lambda tp: common_heads(model) % tp == 0,
        "pp": lambda pp: pp * float(strategy.virtual_stages) <= float(model.depth),
        "cp": lambda cp: float(strategy.sequence_length) % cp == 0,
    }
    for name, degree in degrees.items():
        devices = float(system.n_devices) / (math.prod(degrees.values()) // degree)
        if devices == round(devices):
            possible = filter(allowed[name], divisors(devices))
            left = f"dp = {show(strategy.dp)} of {several(system.n_devices, 'device')}"
            return Violation(
                key=f"strategy.{name}",
                found=f"{degree}, which leaves {left}",
                expected=_whole_product(system),
                remedy=f"use {name} {nearest(degree, possible)}",
            )
    return None


def degrees_multiply_to_devices(configuration: Configuration) -> Verdict:
    """The degrees of parallelism use every device of the system exactly once."""
    system, strategy = configuration.system, configuration.strategy

    def explain() -> Violation:
        degrees = "·".join(show(degree) for degree in (strategy.tp, strategy.pp, strategy.dp, strategy.cp))
        product = f"tp·pp·dp·cp = {degrees} = {show(strategy.devices)}"
        return Violation(
            key="system.n_devices",
            found=f"{several(system.n_devices, 'device')} for {product}",
            expected="the product of the degrees",
            remedy=f"set the devices to {show(strategy.devices)} or {_fitting_degree(system, strategy)}",
        )

    return Verdict(equals(strategy.devices, system.n_devices), explain)


def _fitting_degree(system: System, strategy: Strategy) -> str:
    """The change of a single degree that makes the product of the degrees the number of devices."""
    for name in ("dp", "pp", "tp", "cp"):
        degree = float(system.n_devices * getattr(strategy, name) / strategy.devices)
        if degree == round(degree):
            return f"{name} to {units.plain(degree)}"
    return "change a degree"


def zero_ranks_divide_replicas(configuration: Configuration) -> Verdict:
    """Groups of ranks that share optimizer, gradients or weights are all of one size.

    PyTorch FSDP calls groups of fewer than all ranks hybrid sharding (arXiv 2304.11277 §3.2.2).
    """
    strategy = configuration.strategy

    def explain() -> Violation:
        possible = use_one_of(strategy.zero_ranks, divisors(float(strategy.replicas)))
        return Violation(
            key="strategy.zero_ranks",
            found=f"{show(strategy.zero_ranks)} of {show(strategy.replicas)} "
            "data- and context-parallel ranks",
            expected="a divisor of the ranks that share",
            remedy=f"{possible}, or 0 for all",
        )

    # 0 stands for all ranks; the divisor is kept above 0 where the quotient is not looked at.
    divided = divides(larger(strategy.zero_ranks, 1.0), strategy.replicas)
    return Verdict((strategy.zero_ranks <= 0) | divided, explain)
