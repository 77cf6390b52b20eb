"""Points of a space that designs its accelerators: a chip in a technology, in place of the system's own.

Such a space names a technology. Its points are candidates, as those of a design problem: the numbers of the
design and of the technology are inputs, and the accelerators of the system follow from them.
"""

import equinox as eqx
import jax
from jaxtyping import Array

from diffperf.estimate.phases import estimate
from diffperf.explore.codesign.variables import Candidate
from diffperf.explore.inputs import report_outputs
from diffperf.hardware.chip import Chip, ChipDesign, chip
from diffperf.hardware.designed_accelerator import design_of, system_of
from diffperf.hardware.system import System
from diffperf.hardware.technology import Technology
from diffperf.quantity import Quantity
from diffperf.report.tables import outputs
from diffperf.workload.configuration import Configuration
from diffperf.workload.model import Model
from diffperf.workload.strategy import Strategy

# What a point of a space is: a configuration, or a design from which one follows.
Inputs = Configuration | Candidate


class Made(eqx.Module):
    """Modules whose values constraints of a space with designs may name: inputs, designed system, and
    chip.
    """

    model: Model
    system: System
    strategy: Strategy
    design: ChipDesign
    technology: Technology
    chip: Chip


def candidate_of(configuration: Configuration, technology: Technology) -> Candidate:
    """The design that begins with the numbers of a system's accelerator, in a technology."""
    return Candidate(
        design=design_of(configuration.system, technology),
        model=configuration.model,
        system=configuration.system,
        strategy=configuration.strategy,
        technology=technology,
    )


def configuration_of(inputs: Inputs) -> Configuration:
    """The configuration of a point; that of a design has the accelerators that it comes to. Pure JAX."""
    if isinstance(inputs, Configuration):
        return inputs
    system = system_of(inputs.design, inputs.technology, inputs.system)
    return Configuration(inputs.model, system, inputs.strategy)


def made(inputs: Inputs) -> Configuration | Made:
    """Modules whose values constraints compare: the configuration of a point, and of a design its chip
    too. Pure JAX.
    """
    configuration = configuration_of(inputs)
    if isinstance(inputs, Configuration):
        return configuration
    return Made(
        model=configuration.model,
        system=configuration.system,
        strategy=configuration.strategy,
        design=inputs.design,
        technology=inputs.technology,
        chip=_chip(inputs),
    )


def reported(inputs: Inputs, phase: str) -> dict[str, tuple[Quantity, Array]]:
    """Every output of a phase with its declaration, by path; those of a design's chip begin with "chip."."""
    report = outputs(estimate(configuration_of(inputs), phase))
    return report if isinstance(inputs, Configuration) else report | _of_chip(inputs)


def declared_outputs(inputs: Inputs, phase: str) -> dict[str, Quantity]:
    """The declarations of `reported`, by path; nothing is computed but the design's accelerator."""
    declared = report_outputs(configuration_of(inputs), phase)
    if isinstance(inputs, Candidate):
        jax.eval_shape(
            lambda inputs: declared.update((path, each) for path, (each, _) in _of_chip(inputs).items()),
            inputs,
        )
    return declared


def _chip(inputs: Candidate) -> Chip:
    """The chip of a design."""
    return chip(inputs.design, inputs.technology, inputs.system.accelerator)


def _of_chip(inputs: Candidate) -> dict[str, tuple[Quantity, Array]]:
    """The outputs of a design's chip, by path."""
    return {f"chip.{path}": each for path, each in outputs(_chip(inputs)).items()}
