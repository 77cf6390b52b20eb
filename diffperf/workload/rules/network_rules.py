"""The rule of the reach of a system's network."""

from diffperf.workload.configuration import Configuration
from diffperf.workload.rules.verdict import Verdict, Violation
from diffperf.workload.rules.wording import show
from diffperf.workload.whole_numbers import reaches


def network_reaches_all_devices(configuration: Configuration) -> Verdict:
    """A domain of the outermost network tier has room for all devices of the system."""
    system = configuration.system
    outermost = system.network[-1]

    def explain() -> Violation:
        return Violation(
            key="system.n_devices",
            found=f"{show(system.n_devices)} devices",
            expected=f"at most the {show(outermost.size)} of network.{outermost.name}, the outermost tier",
            remedy=f"use fewer devices, or give network.{outermost.name} a larger size or a tier outside it",
        )

    return Verdict(reaches(outermost.size, system.n_devices), explain)
