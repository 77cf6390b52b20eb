"""From a technology and a few design numbers to an accelerator: area, die edge, power, bandwidths,
capacities.

A `ChipDesign` says how many compute units, how much cache, how many memory stacks, how much network
bandwidth, on how many dies, at which voltage. The microarchitecture (FLOPs per unit and cycle, private memory
per unit, efficiencies) is that of a template accelerator.
"""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.hardware.accelerator import Accelerator, MatrixFormats
from diffperf.hardware.attention_kernels import AttentionKernels
from diffperf.hardware.formats import PRECISIONS
from diffperf.hardware.memory_level import MemoryLevel
from diffperf.hardware.operating_point import operating_point
from diffperf.hardware.package import Package
from diffperf.hardware.system import System
from diffperf.hardware.technology import Technology
from diffperf.quantity import Declared, Label, Scalar, locate, output, quantity, replace
from diffperf.relax import larger
from diffperf.trees import stack_trees

# Share of a die's edge that memory and network PHYs may take; the rest feeds power, host and die-to-die links
# (an estimate: GA100 spends two of its four sides on HBM and one on NVLink).
USABLE_EDGE = 0.75

# Times of attention kernels that compute units spend on their own work.
_UNIT_TIMES = (
    "head_latency", "row_latency", "bf16.tile_latency", "bf16.group_latency", "fp8.tile_latency",
    "fp8.group_latency",
)  # fmt: skip


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


class Chip(Declared):
    """The floorplan of one die of a design, the die's edge, and the power of the package."""

    compute_area: Scalar = output("mm^2", "area of the compute units of one die")
    cache_area: Scalar = output("mm^2", "area of the cache of one die")
    memory_area: Scalar = output("mm^2", "area of the memory PHY of one die")
    network_area: Scalar = output("mm^2", "area of the network PHY of one die")
    uncore_area: Scalar = output("mm^2", "area of everything else on one die")
    die_area: Scalar = output("mm^2", "area of one die")
    reticle: Scalar = output("", "area of one die over the area that one exposure of a scanner covers")
    carried_area: Scalar = output("mm^2", "area of all dies and memory stacks of the package")
    shoreline: Scalar = output("", "die edge that PHYs need over the die edge that PHYs may take")
    clock: Scalar = output("", "clock over the clock of the template accelerator")
    voltage: Scalar = output("V", "supply voltage of the compute dies under the power limit")
    power: Scalar = output("W", "power of the package at peak compute and memory rates")


def chip(design: ChipDesign, technology: Technology, template: Accelerator) -> Chip:
    """Area (mm²), edge and power (W) of a design.

    Areas add up from densities; uncore takes a fixed share of the die, and die-to-die links add a share where
    there are several dies.
    """
    # Density is given at the clock of the template: a faster process shrinks the area per rate, not per unit.
    unit_area = unit_rate(template) * technology.speed / technology.compute_density
    compute = design.compute_units * unit_area / design.dies
    cache = design.cache / technology.sram_density / design.dies
    memory = design.memory_stacks * technology.memory.phy_area / design.dies
    network = design.network_bandwidth / technology.link.area_density / design.dies
    used = compute + cache + memory + network
    die = used / (1 - technology.uncore_fraction) * _die_to_die_factor(design.dies, technology)
    edge = (
        design.memory_stacks * technology.memory.phy_edge
        + design.network_bandwidth / technology.link.edge_density
    ) / design.dies
    point = operating_point(
        design.voltage,
        design.power_limit,
        technology,
        lambda voltage, clock: _peak_power(design, voltage, clock, die, technology, template),
    )
    return Chip(
        compute_area=compute,
        cache_area=cache,
        memory_area=memory,
        network_area=network,
        uncore_area=die - used,
        die_area=die,
        reticle=die / technology.process.reticle,
        carried_area=design.dies * die + design.memory_stacks * technology.memory.stack_area,
        shoreline=edge / (4 * jnp.sqrt(die) * USABLE_EDGE),  # of a square die
        clock=point.clock * technology.speed,
        voltage=point.voltage,
        power=point.power,
    )


def unit_rate(template: Accelerator) -> Scalar:
    """bf16 FLOP/s of one compute unit of the template."""
    return template.matrix.bf16.rate / template.compute_units


def paths_in_proportion_to_units(accelerator: Accelerator) -> list[str]:
    """The numbers of an accelerator that `accelerator_of` scales with its compute units, by path: arithmetic
    rates, capacity and bandwidth of the innermost memory, and the bandwidth of the last cache, of which every
    unit has a port.
    """
    inner = accelerator.memory[0].name
    paths = [f"matrix.{name}.rate" for name in PRECISIONS]
    paths += ["vector", f"memory.{inner}.capacity", f"memory.{inner}.bandwidth"]
    if accelerator.last_cache > 0:
        paths.append(f"memory.{accelerator.memory[accelerator.last_cache].name}.bandwidth")
    return paths


def _die_to_die_factor(dies: Scalar, technology: Technology) -> Scalar:
    """The area of a die with its die-to-die links over the area without them: 1 for a single die."""
    several = jnp.clip(dies - 1, 0.0, 1.0)
    return 1 + several * technology.die_to_die_fraction


def _peak_power(
    design: ChipDesign,
    voltage: Scalar,
    clock: Scalar,
    die_area: Scalar,
    technology: Technology,
    template: Accelerator,
) -> Scalar:
    """W for which a package is cooled: a share of what it would draw at peak compute, memory and network
    rates, which no work asks for at once.

    `clock` is over that at nominal voltage. The energy of a switched gate scales with V² (its capacitance is
    charged to V), static power with V (an estimate: a leakage current that does not change).
    """
    relative = voltage / technology.nominal_voltage
    rate = design.compute_units * unit_rate(template) * clock * technology.speed
    peak = (
        rate * technology.compute_energy * relative**2
        + _active_power(design, voltage, clock, die_area, technology)
        + design.memory_stacks * technology.memory.stack_bandwidth * technology.memory.energy
        + design.network_bandwidth * technology.link.energy
        + design.dies * die_area * technology.static_density * relative
    )
    return technology.limit_share * peak


def _active_power(
    design: ChipDesign, voltage: Scalar, clock: Scalar, die_area: Scalar, technology: Technology
) -> Scalar:
    """W of a working package beside arithmetic and data movement, in proportion to f·V²."""
    switching = clock * (voltage / technology.nominal_voltage) ** 2
    return design.dies * die_area * technology.active_density * switching


def accelerator_of(design: ChipDesign, technology: Technology, template: Accelerator) -> Accelerator:
    """The accelerator of a design: the template's microarchitecture with the design's counts, clock,
    memory and package.

    Rates follow the clock, and so do latencies that are cycles: of caches, of the pipelines of GEMMs, and of
    compute units in attention.
    """
    made = chip(design, technology, template)
    scale = design.compute_units / template.compute_units * made.clock
    relative = made.voltage / technology.nominal_voltage
    own_clock = made.clock / technology.speed
    return Accelerator(
        name=Label("design"),
        compute_units=design.compute_units,
        matrix=_with_clocked_formats(template.matrix, scale, made.clock),
        vector=template.vector * scale,
        memory=_memory_of(design, made, technology, template),
        compute_energy=technology.compute_energy * relative**2,
        vector_energy=template.vector_energy * relative**2,
        static_power=design.dies * made.die_area * technology.static_density * relative,
        active_power=_active_power(design, made.voltage, own_clock, made.die_area, technology),
        waiting_share=template.waiting_share,
        power_limit=made.power,
        power_exponent=template.power_exponent,
        power_window=template.power_window,
        kernel_latency=template.kernel_latency,
        attention=_with_clocked_units(template.attention, made.clock),
        cluster=template.cluster,
        package=_package_of(design, made, technology, template),
        purchase_price=template.purchase_price,
        priced_manufacturing=template.priced_manufacturing,
    )


def _with_clocked_formats(formats: MatrixFormats, scale: Scalar, clock: Scalar) -> MatrixFormats:
    """Matrix formats whose rates are multiplied by `scale`, and whose pipelines run at `clock` over the
    template's.
    """
    values = {}
    for name in PRECISIONS:
        own = getattr(formats, name)
        values |= {f"{name}.rate": own.rate * scale, f"{name}.k_latency": own.k_latency / clock}
    return replace(formats, values)


def _with_clocked_units(attention: AttentionKernels, clock: Scalar) -> AttentionKernels:
    """Attention kernels whose compute units run at `clock` over the template's.

    Fixed times of a whole call, which wait for device memory, stay.
    """

    return replace(attention, {path: locate(attention, path)[0] / clock for path in _UNIT_TIMES})


def _memory_of(
    design: ChipDesign, made: Chip, technology: Technology, template: Accelerator
) -> tuple[MemoryLevel, ...]:
    """The memory levels of a design: private memory scaled with the units, the design's cache, its stacks as
    device memory, and the template's other levels.

    The bandwidth of a cache is that of its ports, one for a compute unit, and its energy that of the process:
    both are scaled or replaced. The latency of a cache is a number of cycles.
    """
    levels, cache, device = list(template.memory), template.last_cache, template.device_level
    scale = design.compute_units / template.compute_units * made.clock
    for index, kind in enumerate(template.memory_kinds):
        if kind == "cache":
            levels[index] = dataclasses.replace(levels[index], latency=levels[index].latency / made.clock)
    levels[0] = dataclasses.replace(
        levels[0],
        capacity=levels[0].capacity * design.compute_units / template.compute_units,
        bandwidth=levels[0].bandwidth * scale,
    )
    levels[cache] = dataclasses.replace(
        levels[cache],
        capacity=design.cache,
        bandwidth=template.memory[cache].bandwidth * scale,
        energy=technology.sram_energy * (made.voltage / technology.nominal_voltage) ** 2,
    )
    levels[device] = dataclasses.replace(
        levels[device],
        capacity=design.memory_stacks * technology.memory.stack_capacity,
        bandwidth=design.memory_stacks * technology.memory.stack_bandwidth,
        latency=technology.memory.latency,
        energy=technology.memory.energy,
    )
    return tuple(levels)


def _package_of(design: ChipDesign, made: Chip, technology: Technology, template: Accelerator) -> Package:
    """The package of a design: dies of the technology and its memory stacks in the template's packaging.

    A design has one kind of die, the template's first. Units and channels keep their spare ones in proportion
    to those at work.
    """
    package = template.package
    compute = package.dies[0]
    units = design.compute_units / design.dies * compute.units / (compute.units - compute.spare_units)
    die = dataclasses.replace(
        compute,
        process=technology.process,
        count=design.dies,
        area=made.die_area,
        d2d_share=jnp.zeros_like(made.die_area),  # counted in the area of the die
        bond="none",
        units=units,
        spare_units=units * compute.spare_units / compute.units,
        units_share=made.compute_area / made.die_area,
        channels_share=made.memory_area / made.die_area,
    )
    return dataclasses.replace(
        package,
        dies=(die,),
        memory_stacks=design.memory_stacks,
        stack_area=technology.memory.stack_area,
        memory_price=technology.memory.price,
    )


def system_of(design: ChipDesign, technology: Technology, template: System) -> System:
    """The template system with the accelerators of a design, whose innermost tier runs at the design's
    bandwidth."""
    innermost, *outer = template.network
    tier = eqx.tree_at(
        lambda tier: (tier.bandwidth, tier.energy),
        innermost,
        (design.network_bandwidth, technology.link.energy),
    )
    accelerator = accelerator_of(design, technology, template.accelerator)
    return eqx.tree_at(
        lambda system: (system.accelerator, system.network), template, (accelerator, (tier, *outer))
    )


def design_of(system: System, technology: Technology) -> ChipDesign:
    """The design numbers of an existing system, at nominal voltage: the start of a search."""
    accelerator = system.accelerator
    dies = stack_trees(accelerator.package.dies)
    return ChipDesign(
        compute_units=accelerator.compute_units,
        cache=accelerator.memory[accelerator.last_cache].capacity,
        memory_stacks=jnp.maximum(accelerator.package.memory_stacks, 1.0),
        network_bandwidth=system.network[0].bandwidth,
        dies=jnp.sum(dies.count * dies.bond.none),
        voltage=technology.nominal_voltage,
    )


def filled_units(
    die_area: Scalar, design: ChipDesign, technology: Technology, template: Accelerator
) -> Scalar:
    """The number of compute units with which the dies of a design have `die_area` mm² each.

    The inverse of `chip` in the number of units: what PHYs, cache, uncore and die-to-die links leave, and at
    least a thousandth of the dies where they leave nothing. The `compute_units` of the design do not matter.
    """
    usable = die_area * (1 - technology.uncore_fraction) / _die_to_die_factor(design.dies, technology)
    others = (
        design.cache / technology.sram_density
        + design.memory_stacks * technology.memory.phy_area
        + design.network_bandwidth / technology.link.area_density
    ) / design.dies
    compute = larger(usable - others, 1e-3 * die_area) * design.dies
    return compute * technology.compute_density / (unit_rate(template) * technology.speed)


def split_die(
    die_area: Scalar,
    fractions: Float[Array, "4"],
    dies: Scalar,
    voltage: Scalar,
    technology: Technology,
    template: Accelerator,
) -> ChipDesign:
    """The design whose dies of `die_area` mm² are split by `fractions`: compute, cache, memory PHY, network
    PHY.

    The inverse of `chip`: the area that is neither uncore nor die-to-die links is divided by the fractions,
    which add up to 1, and every part holds as much as its density allows.
    """
    usable = dies * die_area * (1 - technology.uncore_fraction) / _die_to_die_factor(dies, technology)
    compute, cache, memory, network = usable * fractions
    return ChipDesign(
        compute_units=compute * technology.compute_density / (unit_rate(template) * technology.speed),
        cache=cache * technology.sram_density,
        memory_stacks=memory / technology.memory.phy_area,
        network_bandwidth=network * technology.link.area_density,
        dies=dies,
        voltage=voltage,
    )
