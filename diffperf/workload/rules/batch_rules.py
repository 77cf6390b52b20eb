"""Rules of the batch: how the sequences of a step, or of what is served at once, are shared by replicas."""

from diffperf.workload.configuration import Configuration
from diffperf.workload.rules.verdict import Verdict, Violation
from diffperf.workload.rules.wording import nearest_multiples, several, show
from diffperf.workload.whole_numbers import divides, reaches


def replicas_divide_training_batch(configuration: Configuration) -> Verdict:
    """Every data-parallel rank works through the same number of whole micro-batches in a training step."""
    strategy = configuration.strategy
    unit = strategy.dp * strategy.micro_batch

    def explain() -> Violation:
        degrees = f"{show(strategy.dp)}·{show(strategy.micro_batch)}"
        return Violation(
            key="strategy.global_batch",
            found=f"{several(strategy.global_batch, 'sequence')} for dp·micro_batch = {degrees}",
            expected="a multiple of dp·micro_batch",
            remedy=f"use {nearest_multiples(strategy.global_batch, unit)}",
        )

    return Verdict(divides(unit, strategy.global_batch) & reaches(strategy.micro_batches, 1.0), explain)


def every_replica_serves_a_sequence(configuration: Configuration) -> Verdict:
    """In inference every data-parallel replica serves at least one sequence."""
    strategy = configuration.strategy

    def explain() -> Violation:
        return Violation(
            key="strategy.global_batch",
            found=f"{several(strategy.global_batch, 'sequence')} for {several(strategy.dp, 'replica')}",
            expected="at least one sequence per replica",
            remedy=f"use at least {show(strategy.dp)}, or a smaller dp",
        )

    return Verdict(reaches(strategy.global_batch, strategy.dp), explain)
