"""The phases an estimate can be asked for, by name."""

import equinox as eqx

from diffperf.estimate.inference import decode, generate, prefill
from diffperf.estimate.training import training_step
from diffperf.workload.configuration import Configuration

PHASES = {"training": training_step, "prefill": prefill, "decode": decode, "generate": generate}


def estimate(configuration: Configuration, phase: str) -> eqx.Module:
    """The report of a phase of a configuration. Raises `KeyError` for a name that is not in `PHASES`."""
    c = configuration
    return PHASES[phase](c.model, c.system, c.strategy, c.relax)
