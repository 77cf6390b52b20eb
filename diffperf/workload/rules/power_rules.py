"""The rule of the power limit of a device."""

import jax.numpy as jnp

from diffperf import units
from diffperf.workload.configuration import Configuration
from diffperf.workload.rules.verdict import Verdict, Violation


def limit_exceeds_idle_power(configuration: Configuration) -> Verdict:
    """The power limit leaves something beyond what the idle device draws at any load."""
    accelerator = configuration.system.accelerator

    def explain() -> Violation:
        idle = units.show(float(accelerator.static_power), "W")
        return Violation(
            key="system.accelerator.power_limit",
            found=units.show(float(accelerator.power_limit), "W"),
            expected=f"more than the {idle} that the idle device draws (static_power)",
            remedy="raise the limit",
        )

    # Loaded systems may have leaves of NumPy.
    return Verdict(jnp.greater(accelerator.power_limit, accelerator.static_power), explain)
