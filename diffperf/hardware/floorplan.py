"""An accelerator from silicon node, die area, memory and power limit, by the figures of its family.

A `Family` says how many transistors and how much energy a compute unit takes per operation it can do in a
cycle; a `ComputeUnit` says how many operations that are. A `Floorplan` says what a package offers. What PHYs,
caches and uncore leave of the dies is filled with compute units, and the power limit sets the clock.
"""

import dataclasses
from typing import Any

import equinox as eqx

from diffperf.errors import ARGUMENTS, ConfigError
from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.chip import ChipDesign, chip, filled_units, unit_rate
from diffperf.hardware.designed_accelerator import accelerator_of
from diffperf.hardware.formats import PRECISIONS
from diffperf.hardware.node import Node
from diffperf.hardware.operating_point import LEAST_VOLTAGE
from diffperf.hardware.technology import LinkTechnology, MemoryTechnology, Technology
from diffperf.quantity import Declared, Label, Scalar, is_traced, label, quantity, real, replace

# The highest supply voltage that products reach, over the nominal one (an estimate: boost clocks).
TOP_VOLTAGE = 1.25
_LEAST_SHARE = 1e-9  # of PHYs on the dies with compute units, to divide by


class ComputeUnit(Declared):
    """Published operations per cycle and private memory of one compute unit (SM, CU, MXU) of a generation."""

    matrix_flops: Scalar = quantity(
        "", "dense bf16 matrix FLOP that a compute unit does in a cycle", bounds=(1, 1e7)
    )
    vector_flops: Scalar = quantity(
        "",
        "vector FLOP that a compute unit does in a cycle, in units of 32 bits: fp64 counts twice",
        bounds=(1, 1e6),
    )
    private_memory: Scalar = quantity(
        "byte", "registers, shared memory and first cache of a compute unit", bounds=(0, 1e9)
    )
    working_share: Scalar = quantity(
        "", "compute units at work over those on the dies", bounds=(0.1, 1), default=1.0
    )


class Family(Declared):
    """Area and power of the compute units of a family of accelerators per operation of a cycle, referred to
    N7.
    """

    name: Label = label("identifier of the family of accelerators, such as nvidia-datacenter")
    matrix_transistors: Scalar = quantity(
        "", "transistors of logic per bf16 matrix FLOP that a unit can do in a cycle", bounds=(1e3, 1e7)
    )
    vector_transistors: Scalar = quantity(
        "", "transistors of logic per vector FLOP that a unit can do in a cycle", bounds=(1e3, 1e8)
    )
    matrix_energy: Scalar = quantity(
        "J/FLOP", "energy of a bf16 matrix FLOP on N7 at nominal voltage", bounds=(1e-15, 1e-10)
    )
    vector_energy: Scalar = quantity(
        "J/FLOP",
        "energy per vector FLOP that a unit can do, spent in every cycle on N7 at nominal voltage",
        bounds=(1e-15, 1e-9),
    )
    clock: Scalar = quantity("Hz", "clock of the family on N7 at nominal voltage", bounds=(1e8, 1e10))
    uncore_fraction: Scalar = quantity(
        "", "share of a die that is neither compute, cache nor PHY, by family", bounds=(0.01, 0.8)
    )


class Floorplan(Declared):
    """Published figures of a package: dies with compute units, memory stacks, network and power."""

    die_area: Scalar = quantity("mm^2", "area of one die with compute units", bounds=(1, 7e4))
    dies: Scalar = quantity("", "dies with compute units on a package", bounds=(1, 128), integer=True)
    cache: Scalar = quantity(
        "byte", "capacity of shared caches on the dies with compute units", bounds=(1e5, 1e11)
    )
    memory_stacks: Scalar = quantity("", "memory stacks of a package", bounds=(1, 64), integer=True)
    network_bandwidth: Scalar = quantity(
        "byte/s", "scale-up network bandwidth of a package per direction", bounds=(1e8, 1e14)
    )
    power_limit: Scalar = quantity("W", "power that a package is cooled for", bounds=(1, 1e5))
    io_share: Scalar = quantity(
        "",
        "share of PHYs and uncore that is on the dies with compute units, the rest on other dies",
        bounds=(0, 1),
        default=1.0,
    )


class Blueprint(eqx.Module):
    """Parts of a package: floorplan, compute units, silicon node, memory, links to other packages and between
    its dies.
    """

    plan: Floorplan
    unit: ComputeUnit
    node: Node
    memory: MemoryTechnology
    link: LinkTechnology
    die_to_die: LinkTechnology


def accelerator_of_blueprint(blueprint: Blueprint, family: Family, template: Accelerator) -> Accelerator:
    """The accelerator that a blueprint comes to; its `compute_units` are those at work.

    `template` gives efficiencies, the levels of memory, and the ratios between formats.

    **Raises:** `ConfigError` for a power limit that the package exceeds at any clock (`check_power_limit`).
    """
    own_template = with_unit(template, blueprint.unit, family)
    design, technology = design_of_blueprint(blueprint, family, own_template)
    check_power_limit(design, technology, own_template)
    return accelerator_of(design, technology, own_template)


def design_of_blueprint(
    blueprint: Blueprint, family: Family, template: Accelerator
) -> tuple[ChipDesign, Technology]:
    """The design that fills the dies of a blueprint with compute units, and its technology.

    The design's voltage is the highest that products reach; its power limit lowers it.
    """
    plan, unit, node = blueprint.plan, blueprint.unit, blueprint.node
    technology = technology_of(blueprint, family, template)
    design = ChipDesign(
        compute_units=real(1.0),
        cache=plan.cache,
        memory_stacks=plan.memory_stacks,
        network_bandwidth=plan.network_bandwidth,
        dies=plan.dies,
        voltage=TOP_VOLTAGE * node.nominal_voltage,
        power_limit=plan.power_limit,
    )
    units = filled_units(plan.die_area, design, technology, template)
    # Power of clocks and instructions goes with units: their number gives it per area of the die.
    switching = (
        unit.vector_flops * family.vector_energy * node.switching_energy * family.clock * node.gate_speed
    )
    active_density = units * switching / (plan.dies * plan.die_area)
    technology = dataclasses.replace(technology, active_density=active_density)
    return dataclasses.replace(design, compute_units=units), technology


def technology_of(blueprint: Blueprint, family: Family, template: Accelerator) -> Technology:
    """The technology of a family's compute units on a node, but for the power of clocks and instructions.

    Area of a unit = (matrix FLOP · their transistors + vector FLOP · theirs) / logic density
    + private memory / SRAM density, with defective units' area added to those at work.
    """
    plan, unit, node = blueprint.plan, blueprint.unit, blueprint.node
    memory, link = blueprint.memory, blueprint.link
    logic = unit.matrix_flops * family.matrix_transistors + unit.vector_flops * family.vector_transistors
    private = unit.private_memory / node.sram_density
    area = (logic / node.logic_density + private) / unit.working_share
    rate = unit.matrix_flops * family.clock * node.gate_speed
    figures: dict[str, Any] = {field.name: getattr(node, field.name) for field in dataclasses.fields(Node)}
    figures["name"] = family.name
    # PHYs on other dies take neither area nor edge; their bandwidth per mm² is as good as unlimited.
    share, per_mm = plan.io_share, 1 / (plan.io_share + _LEAST_SHARE)
    return Technology(
        **figures,
        compute_density=rate / area,
        speed=rate / unit_rate(template),
        uncore_fraction=family.uncore_fraction * plan.io_share,
        compute_energy=family.matrix_energy * node.switching_energy,
        active_density=real(0.0),
        limit_share=real(1.0),  # the energies of a family are those of work that a package is cooled for
        memory=dataclasses.replace(
            memory, phy_area=memory.phy_area * share, phy_edge=memory.phy_edge * share
        ),
        link=dataclasses.replace(
            link, area_density=link.area_density * per_mm, edge_density=link.edge_density * per_mm
        ),
        die_to_die=blueprint.die_to_die,
        unit_sram_share=private / (private + logic / node.logic_density),
        node=node.name,
    )


def with_unit(template: Accelerator, unit: ComputeUnit, family: Family) -> Accelerator:
    """The template with compute units of a generation, at the family's clock on N7."""
    units = template.compute_units
    rate, vector = units * unit.matrix_flops * family.clock, units * unit.vector_flops * family.clock
    scale = rate / template.matrix.bf16.rate
    rates = {f"matrix.{name}.rate": getattr(template.matrix, name).rate * scale for name in PRECISIONS}
    return replace(template, rates | {"vector": vector})


def check_power_limit(
    design: ChipDesign, technology: Technology, template: Accelerator, file: str = ARGUMENTS
) -> None:
    """Refuses a power limit below what the package draws without a clock: static power, memory and links.

    Traced numbers are not checked.

    **Raises:** `ConfigError`, in one line.
    """
    made = chip(design, technology, template)
    if is_traced(made.power) or is_traced(design.power_limit):
        return
    if float(design.power_limit) > 0 and float(made.power) > 1.001 * float(design.power_limit):
        raise ConfigError(
            file,
            "power_limit",
            f"{float(design.power_limit):g} W",
            f"more than the {float(made.power):.0f} W that the package draws at its least clock and "
            f"{LEAST_VOLTAGE:g} V",
            "raise the limit, or take fewer memory stacks, less network bandwidth or less silicon",
        )
