"""The accelerator and the system that a chip design comes to, by a template's microarchitecture.

Rates and capacities follow the design's counts and clock; FLOPs per unit and cycle, private memory per unit
and efficiencies are the template's.
"""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.chip import (
    Chip,
    ChipDesign,
    active_power,
    chip,
    links_between_dies,
    silicon_area,
)
from diffperf.hardware.clocked_accelerator import at_clock
from diffperf.hardware.die_to_die import DieToDieLinks
from diffperf.hardware.formats import PRECISIONS
from diffperf.hardware.memory_level import Holdings, MemoryLevel
from diffperf.hardware.package import Die, Package
from diffperf.hardware.system import System
from diffperf.hardware.technology import MemoryTechnology, Technology
from diffperf.quantity import Label, Scalar, Weights, is_traced, replace
from diffperf.relax import larger
from diffperf.trees import stack_trees

# Stacks of storage that the memory level of a design has at least, so that its rates stay positive.
_LEAST_STACKS = 1e-3


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


def accelerator_of(design: ChipDesign, technology: Technology, template: Accelerator) -> Accelerator:
    """The accelerator of a design: the template's microarchitecture with the design's counts, clock,
    memory, storage and package.

    Rates and latencies that are cycles follow the clock (`at_clock`).
    """
    made = chip(design, technology, template)
    units, clocked = design.compute_units / template.compute_units, at_clock(template, made.clock)
    relative = made.voltage / technology.nominal_voltage
    own_clock = made.clock / technology.speed
    return Accelerator(
        name=Label("design"),
        compute_units=design.compute_units,
        matrix=replace(
            clocked.matrix,
            {f"{name}.rate": getattr(clocked.matrix, name).rate * units for name in PRECISIONS},
        ),
        vector=clocked.vector * units,
        memory=_memory_of(design, made, technology, clocked),
        compute_energy=technology.compute_energy * relative**2,
        vector_energy=template.vector_energy * relative**2,
        static_power=silicon_area(design, made.die_area) * technology.static_density * relative,
        active_power=active_power(design, made.voltage, own_clock, made.die_area, technology),
        waiting_share=template.waiting_share,
        power_limit=made.power,
        boost_clock=template.boost_clock * made.clock,
        base_clock=jnp.zeros_like(template.base_clock),  # of no product
        power_exponent=template.power_exponent,
        power_window=template.power_window,
        clock_limit=template.clock_limit,
        kernel_latency=template.kernel_latency,
        attention=clocked.attention,
        cluster=template.cluster,
        tiles_at_once=template.tiles_at_once,
        split_latency=template.split_latency,
        unit_bandwidth=template.unit_bandwidth,
        package=_package_of(design, made, technology, template),
        purchase_price=template.purchase_price,
        priced_manufacturing=template.priced_manufacturing,
    )


def _memory_of(
    design: ChipDesign, made: Chip, technology: Technology, template: Accelerator
) -> tuple[MemoryLevel, ...]:
    """The memory levels of a design: private memory scaled with the units, the design's cache, its stacks as
    device memory and storage, and the other levels of the template at the design's clock.

    The bandwidth of a cache is that of its ports, one for a compute unit, and its energy that of the process:
    both are scaled or replaced. Stacks of another die are reached over links between the dies.
    """
    levels, cache, device = list(template.memory), template.last_cache, template.device_level
    units = design.compute_units / template.compute_units
    levels[0] = dataclasses.replace(
        levels[0], capacity=levels[0].capacity * units, bandwidth=levels[0].bandwidth * units
    )
    levels[cache] = dataclasses.replace(
        levels[cache],
        capacity=design.cache + made.stacked_cache,
        bandwidth=template.memory[cache].bandwidth * units,
        energy=technology.sram_energy * (made.voltage / technology.nominal_voltage) ** 2,
    )
    links = links_between_dies(design, technology)
    levels[device] = _level_of_stacks(levels[device], design.memory_stacks, technology.memory, links)
    if technology.storage is None:
        return tuple(levels)
    stacks, storage = larger(design.storage_stacks, _LEAST_STACKS), technology.storage
    if "storage" not in template.memory_kinds:
        return (*levels, _level_of_stacks(_empty_storage(levels[device]), stacks, storage, links))
    own = template.memory_kinds.index("storage")
    levels[own] = _level_of_stacks(levels[own], stacks, storage, links)
    return tuple(levels)


def _level_of_stacks(
    level: MemoryLevel, stacks: Scalar, memory: MemoryTechnology, links: DieToDieLinks
) -> MemoryLevel:
    """A memory level that is made of stacks of a technology, beside the dies that the links connect.

    Of a byte, as of a request, the share `crossing` takes the way over a link.
    """
    return dataclasses.replace(
        level,
        capacity=stacks * memory.stack_capacity,
        bandwidth=stacks * memory.stack_bandwidth * links.delivered_share,
        latency=memory.latency + links.crossing * links.link.latency,
        energy=memory.energy + links.crossing * links.link.energy,
        prefetch=memory.prefetch,
    )


def _empty_storage(device_memory: MemoryLevel) -> MemoryLevel:
    """Storage beside device memory, as efficient, that holds what device memory lacks room for, the coldest
    tensors first.
    """
    return dataclasses.replace(
        device_memory,
        name=Label("storage"),
        kind="storage",
        holds=dataclasses.replace(Holdings(), fill="overflow"),
    )


def _package_of(design: ChipDesign, made: Chip, technology: Technology, template: Accelerator) -> Package:
    """The package of a design: dies of the technology and its memory stacks in the template's packaging.

    A design has one kind of compute die, the template's first, and SRAM dies on it where it stacks any. Units
    and channels keep their spare ones in proportion to those at work.
    """
    package, storage = template.package, technology.storage
    compute = package.dies[0]
    # A search may leave no unit that is not spare: a die then has a thousand times the units at work.
    working = larger(compute.units - compute.spare_units, 1e-3 * compute.units)
    units = design.compute_units / design.dies * compute.units / working
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
        dies=(die, *_stacked_dies(design, die)),
        memory_stacks=design.memory_stacks,
        memory_placement=technology.memory.placement,
        stack_area=technology.memory.stack_area,
        memory_price=technology.memory.price,
        memory_carbon=technology.memory.carbon,
        **{} if storage is None else _storage_pieces(design, storage),
    )


def _storage_pieces(design: ChipDesign, storage: MemoryTechnology) -> dict[str, Scalar | Weights]:
    """Package inputs that describe its stacks of storage."""
    return {
        "storage_stacks": design.storage_stacks,
        "storage_placement": storage.placement,
        "storage_area": storage.stack_area,
        "storage_price": storage.price,
        "storage_carbon": storage.carbon,
    }


def _stacked_dies(design: ChipDesign, compute: Die) -> tuple[Die, ...]:
    """The kind of SRAM dies that a design bonds onto its compute dies, none where it has none."""
    if not is_traced(design.stacked_dies) and not np.any(np.asarray(design.stacked_dies)):
        return ()
    none = jnp.zeros_like(design.dies)
    stacked = dataclasses.replace(
        compute,
        name=Label("stacked SRAM"),
        count=design.dies * design.stacked_dies,
        bond="hybrid_bonds",
        units=jnp.ones_like(design.dies),
        spare_units=none,
        units_share=none,
        channels=jnp.ones_like(design.dies),
        spare_channels=none,
        channels_share=none,
        lower_value=none,
    )
    return (stacked,)


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
    accelerator, storage = system.accelerator, technology.storage
    dies = stack_trees(accelerator.package.dies)
    return ChipDesign(
        compute_units=accelerator.compute_units,
        cache=accelerator.memory[accelerator.last_cache].capacity,
        memory_stacks=jnp.maximum(accelerator.package.memory_stacks, 1.0),
        network_bandwidth=system.network[0].bandwidth,
        dies=jnp.sum(dies.count * dies.bond.none),
        voltage=technology.nominal_voltage,
        storage_stacks=jnp.zeros_like(dies.count[0])
        if storage is None
        else accelerator.storage_capacity / storage.stack_capacity,
    )
