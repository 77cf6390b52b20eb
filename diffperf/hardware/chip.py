"""A chip from a technology and a few design numbers: area, die edge, power, heat and bumps.

A `ChipDesign` says how many compute units, how much cache, how many stacks of memory and of storage, how much
network bandwidth, on how many dies, at which voltage. The microarchitecture (FLOPs per unit and cycle,
private memory per unit, efficiencies) is that of a template accelerator; `designed_accelerator` makes the
accelerator.
"""

import functools
import operator

import jax.numpy as jnp

from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.bumps import bumps_of_die
from diffperf.hardware.die_to_die import DieToDieLinks
from diffperf.hardware.operating_point import operating_point
from diffperf.hardware.technology import MemoryTechnology, Technology
from diffperf.quantity import Declared, Scalar, output, quantity
from diffperf.relax import larger
from diffperf.report.tables import Readable

# Share of a die's edge that PHYs of memory, network and other dies may take; the rest feeds power and host
# links (an estimate: GA100 spends two of its four sides on HBM and one on NVLink).
USABLE_EDGE = 0.75

# Density of SRAM dies over that of caches among logic. Derived: AMD's 3D V-Cache has 64 MiB on 41 mm² of N7
# (Wuu et al., ISSCC 2022) where `configs/nodes/n7.toml` has 0.735 MB/mm².
STACKED_DENSITY = 2.2


class ChipDesign(Declared):
    """The numbers that an architect chooses for a package."""

    compute_units: Scalar = quantity("", "compute units of the package", bounds=(1, 1e4), integer=True)
    cache: Scalar = quantity("byte", "capacity of the last-level cache of the package", bounds=(1e5, 1e11))
    memory_stacks: Scalar = quantity("", "memory stacks on the package", bounds=(1, 64), integer=True)
    network_bandwidth: Scalar = quantity(
        "byte/s", "scale-up network bandwidth of the package per direction", bounds=(1e9, 1e14)
    )
    dies: Scalar = quantity("", "compute dies of the package", bounds=(1, 16), integer=True)
    voltage: Scalar = quantity("V", "supply voltage of the compute dies", bounds=(0.3, 1.5))
    power_limit: Scalar = quantity(
        "W",
        "power that the package is cooled for, under which voltage and clock fall; 0 for as much as it draws",
        bounds=(0, 1e5),
        default=0.0,
    )
    stacked_dies: Scalar = quantity(
        "",
        "SRAM dies that are bonded onto each compute die, each as large, and extend the last-level cache",
        bounds=(0, 16),
        integer=True,
        default=0.0,
    )
    storage_stacks: Scalar = quantity(
        "",
        "stacks of storage on the package, beside memory stacks, of the technology's storage",
        bounds=(0, 64),
        integer=True,
        default=0.0,
    )
    die_to_die_bandwidth: Scalar = quantity(
        "byte/s",
        "bandwidth of the links of one die to the other dies of its package per direction; 0 for as much as "
        "the traffic with memory needs",
        bounds=(0, 1e14),
        default=0.0,
    )


class Chip(Readable):
    """The floorplan of one die of a design, the die's edge, and the power of the package."""

    compute_area: Scalar = output("mm^2", "area of the compute units of one die, with their memory")
    private_area: Scalar = output(
        "mm^2", "area of registers and private memory within the compute units of one die"
    )
    cache_area: Scalar = output("mm^2", "area of the cache of one die")
    memory_area: Scalar = output("mm^2", "area of the PHYs of memory and storage of one die")
    network_area: Scalar = output("mm^2", "area of the network PHY of one die")
    die_to_die_area: Scalar = output("mm^2", "area of the die-to-die links of one die")
    uncore_area: Scalar = output("mm^2", "area of everything else on one die")
    die_area: Scalar = output("mm^2", "area of one die")
    reticle: Scalar = output("", "area of one die over the area that one exposure of a scanner covers")
    carried_area: Scalar = output("mm^2", "area that all dies and stacks take on the carrier")
    stacked_cache: Scalar = output("byte", "capacity of the SRAM dies that are bonded onto compute dies")
    shoreline: Scalar = output("", "die edge that PHYs need over the die edge that PHYs may take")
    clock: Scalar = output("", "clock over the clock of the template accelerator")
    voltage: Scalar = output("V", "supply voltage of the compute dies under the power limit")
    power: Scalar = output("W", "power of the package at peak compute and memory rates")
    compute_power: Scalar = output("W", "part of the package's power that arithmetic at peak rates takes")
    active_power: Scalar = output(
        "W", "part of the package's power that clocks, instructions and SRAM of the working dies take"
    )
    memory_power: Scalar = output(
        "W", "part of the package's power that memory, storage and their PHYs take at full bandwidth"
    )
    network_power: Scalar = output(
        "W", "part of the package's power that network links and their PHYs take at full bandwidth"
    )
    die_to_die_power: Scalar = output(
        "W", "part of the package's power that links between dies take at full memory bandwidth"
    )
    static_power: Scalar = output("W", "part of the package's power that all dies leak")
    heat_flux: Scalar = output("W/mm^2", "power of the dies over the area of the compute dies")
    bumps: Scalar = output("", "bumps that one die needs for power and signals over those that fit under it")


def chip(design: ChipDesign, technology: Technology, template: Accelerator) -> Chip:
    """Area (mm²), edge and power (W) of a design.

    Areas add up from densities, power from parts; uncore takes a fixed share of the die.
    """
    # Density is given at the clock of the template: a faster process shrinks the area per rate, not per unit.
    unit_area = unit_rate(template) * technology.speed / technology.compute_density
    compute = design.compute_units * unit_area / design.dies
    cache = design.cache / technology.sram_density / design.dies
    stacks = _stacks(design, technology)
    memory = sum(count * stack.phy_area for count, stack in stacks) / design.dies
    network = design.network_bandwidth / technology.link.area_density / design.dies
    links = links_between_dies(design, technology)
    used = compute + cache + memory + network + links.area
    die = used / (1 - technology.uncore_fraction)
    edge = (
        sum(count * stack.phy_edge for count, stack in stacks)
        + design.network_bandwidth / technology.link.edge_density
    ) / design.dies + links.edge
    point = operating_point(
        design.voltage,
        design.power_limit,
        technology,
        lambda voltage, clock: functools.reduce(
            operator.add,
            _powers(
                design, voltage=voltage, clock=clock, die_area=die, technology=technology, template=template
            ).values(),
        ),
    )
    powers = _powers(
        design,
        voltage=point.voltage,
        clock=point.clock,
        die_area=die,
        technology=technology,
        template=template,
    )
    heat = larger(point.power - powers["memory_power"], 0.0) / design.dies
    return Chip(
        compute_area=compute,
        private_area=compute * technology.unit_sram_share,
        cache_area=cache,
        memory_area=memory,
        network_area=network,
        die_to_die_area=links.area,
        uncore_area=die - used,
        die_area=die,
        reticle=die / technology.process.reticle,
        carried_area=design.dies * die + sum(count * area_on_carrier(stack) for count, stack in stacks),
        stacked_cache=design.dies * design.stacked_dies * die * STACKED_DENSITY * technology.sram_density,
        shoreline=edge / (4 * jnp.sqrt(die) * USABLE_EDGE),  # of a square die
        clock=point.clock * technology.speed,
        voltage=point.voltage,
        power=point.power,
        **powers,
        heat_flux=heat / die,
        bumps=bumps_of_die(heat, point.voltage, die, signal_bumps(design, technology), template.package),
    )


def area_on_carrier(stack: MemoryTechnology) -> Scalar:
    """mm² that a stack takes on the carrier of a package: none on the board."""
    return stack.placement.package * stack.stack_area


def stacks_power(design: ChipDesign, technology: Technology) -> Scalar:
    """W of all stacks of memory and storage at their full bandwidth."""
    powers = [count * stack.stack_bandwidth * stack.energy for count, stack in _stacks(design, technology)]
    return sum(powers, jnp.zeros_like(design.memory_stacks))


def links_between_dies(design: ChipDesign, technology: Technology) -> DieToDieLinks:
    """The links between the dies of a design."""
    stacks = _stacks(design, technology)
    return DieToDieLinks(technology.die_to_die, design.dies, stacks, design.die_to_die_bandwidth)


def _stacks(design: ChipDesign, technology: Technology) -> list[tuple[Scalar, MemoryTechnology]]:
    """The stacks of a package: how many of memory, and of storage where the technology has any."""
    memory = (design.memory_stacks, technology.memory)
    return [memory] if technology.storage is None else [memory, (design.storage_stacks, technology.storage)]


def signal_bumps(design: ChipDesign, technology: Technology) -> Scalar:
    """Bumps of one die for the signals of memory, storage, network links and links to other dies."""
    stacks = sum(count * stack.bumps for count, stack in _stacks(design, technology))
    network = design.network_bandwidth / technology.link.bump_bandwidth
    return (stacks + network) / design.dies + links_between_dies(design, technology).bumps


def unit_rate(template: Accelerator) -> Scalar:
    """bf16 FLOP/s of one compute unit of the template."""
    return template.matrix.bf16.rate / template.compute_units


def _powers(
    design: ChipDesign,
    voltage: Scalar,
    clock: Scalar,
    die_area: Scalar,
    technology: Technology,
    template: Accelerator,
) -> dict[str, Scalar]:
    """W for which a package is cooled, by part as `Chip` names them: of each, a share of what it would draw
    at peak compute, memory and network rates, which no work asks for at once.

    `clock` is over that at nominal voltage. The energy of a switched gate scales with V² (its capacitance is
    charged to V), static power with V (an estimate: a leakage current that does not change).
    """
    relative = voltage / technology.nominal_voltage
    rate = design.compute_units * unit_rate(template) * clock * technology.speed
    peak = {
        "compute_power": rate * technology.compute_energy * relative**2,
        "active_power": active_power(design, voltage, clock, die_area, technology),
        "memory_power": stacks_power(design, technology),
        "network_power": design.network_bandwidth * technology.link.energy,
        "die_to_die_power": links_between_dies(design, technology).power,
        "static_power": silicon_area(design, die_area) * technology.static_density * relative,
    }
    return {part: technology.limit_share * power for part, power in peak.items()}


def silicon_area(design: ChipDesign, die_area: Scalar) -> Scalar:
    """mm² of all compute dies and of the SRAM dies bonded onto them."""
    return design.dies * (1 + design.stacked_dies) * die_area


def active_power(
    design: ChipDesign, voltage: Scalar, clock: Scalar, die_area: Scalar, technology: Technology
) -> Scalar:
    """W of a working package beside arithmetic and data movement, in proportion to f·V²."""
    switching = clock * (voltage / technology.nominal_voltage) ** 2
    return design.dies * die_area * technology.active_density * switching


def filled_units(
    die_area: Scalar, design: ChipDesign, technology: Technology, template: Accelerator
) -> Scalar:
    """The number of compute units with which the dies of a design have `die_area` mm² each.

    The inverse of `chip` in the number of units: what PHYs, cache, uncore and die-to-die links leave, and at
    least a thousandth of the dies where they leave nothing. The `compute_units` of the design do not matter.
    """
    usable = die_area * (1 - technology.uncore_fraction)
    others = (
        design.cache / technology.sram_density
        + sum(count * stack.phy_area for count, stack in _stacks(design, technology))
        + design.network_bandwidth / technology.link.area_density
    ) / design.dies + links_between_dies(design, technology).area
    compute = larger(usable - others, 1e-3 * die_area) * design.dies
    return compute * technology.compute_density / (unit_rate(template) * technology.speed)
