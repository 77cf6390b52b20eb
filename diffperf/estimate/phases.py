"""The phases that an estimate can be asked for, by name."""

import equinox as eqx

from diffperf.estimate.inference import decode, generate, inference_tables, prefill
from diffperf.estimate.phase_tables import PhaseTables
from diffperf.estimate.training import timed_step, training_step
from diffperf.traced_once import traced_once
from diffperf.workload.configuration import Configuration

PHASES = {"training": training_step, "prefill": prefill, "decode": decode, "generate": generate}


@traced_once
def estimate(configuration: Configuration, phase: str) -> eqx.Module:
    """The report of a phase of a configuration.

    **Raises:** `KeyError` for a name that is not in `PHASES`.
    """
    c = configuration
    return PHASES[phase](c.model, c.system, c.strategy, c.relax)


def phase_tables(configuration: Configuration, phase: str) -> dict[str, PhaseTables]:
    """The operators and collectives of a phase by the field of its report that they add up to.

    That is "breakdown" for training and for a phase of one pass; a generation has "prefill" and "decode".

    **Raises:** `KeyError` for a name that is not in `PHASES`.
    """
    if phase == "training":
        return {"breakdown": timed_step(configuration).tables}
    return inference_tables(configuration, phase)
