"""From a technology and a few design numbers to an accelerator: area, shoreline, power, bandwidths, capacities.

A `ChipDesign` says how many compute units, how much cache, how many memory stacks, how much network bandwidth, on how many dies, at
which voltage. The microarchitecture (FLOPs per unit and cycle, private memory per unit, efficiencies) is that of a template
accelerator.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.hardware.accelerator import Accelerator, MatrixFormats, MemoryLevel
from diffperf.hardware.formats import PRECISIONS
from diffperf.hardware.package import Package, Process
from diffperf.hardware.system import System
from diffperf.quantity import Label, Scalar, label, output, quantity


class MemoryTechnology(eqx.Module):
    """A generation of stacked memory, per stack, and the PHY on the die that drives it."""

    name: Label = label("generation, such as hbm2e")
    stack_capacity: Scalar = quantity("byte", "capacity of one stack", bounds=(1e8, 1e12))
    stack_bandwidth: Scalar = quantity("byte/s", "bandwidth of one stack", bounds=(1e10, 1e13))
    stack_area: Scalar = quantity("mm^2", "footprint of one stack", bounds=(1, 400))
    phy_area: Scalar = quantity("mm^2", "die area of one stack's PHY", bounds=(0.1, 100))
    phy_edge: Scalar = quantity("mm", "die edge one stack occupies", bounds=(0.1, 50))
    energy: Scalar = quantity("J/byte", "energy to move one byte", bounds=(1e-13, 1e-9))
    latency: Scalar = quantity("s", "time to the first byte", bounds=(1e-9, 1e-4))
    price: Scalar = quantity("USD/byte", "price of the memory", bounds=(1e-11, 1e-6), kind="price")


class LinkTechnology(eqx.Module):
    """A generation of off-package links and its PHY."""

    name: Label = label("generation, such as nvlink3")
    area_density: Scalar = quantity("byte/s/mm^2", "bandwidth per direction and PHY area", bounds=(1e8, 1e13))
    edge_density: Scalar = quantity("byte/s/mm", "bandwidth per direction and die edge", bounds=(1e8, 1e14))
    energy: Scalar = quantity("J/byte", "energy to move one byte", bounds=(1e-13, 1e-8))


class Technology(eqx.Module):
    """What a node gives per mm², per volt and per FLOP, and the memory and links that go with it."""

    name: Label = label("identifier, such as n7-hbm2e")
    process: Process
    compute_density: Scalar = quantity(
        "FLOP/s/mm^2", "bf16 matrix rate per area of compute units at nominal voltage", bounds=(1e9, 1e14)
    )
    speed: Scalar = quantity("", "clock at nominal voltage over the template's", bounds=(0.1, 10))
    sram_density: Scalar = quantity(
        "byte/mm^2", "cache per area, tags and routing included", bounds=(1e4, 1e8)
    )
    uncore_fraction: Scalar = quantity(
        "", "die area that is neither compute, cache nor PHY", bounds=(0.01, 0.8)
    )
    die_to_die_fraction: Scalar = quantity(
        "", "die area added by die-to-die links when there are several dies", bounds=(1e-3, 0.5)
    )
    nominal_voltage: Scalar = quantity("V", "supply voltage", bounds=(0.3, 1.5))
    threshold_voltage: Scalar = quantity("V", "threshold voltage", bounds=(0.05, 0.29))
    alpha: Scalar = quantity("", "velocity-saturation exponent", bounds=(1, 2))
    compute_energy: Scalar = quantity(
        "J/FLOP", "energy of one bf16 FLOP at nominal voltage", bounds=(1e-15, 1e-10)
    )
    sram_energy: Scalar = quantity("J/byte", "energy of one byte from the cache", bounds=(1e-14, 1e-9))
    static_density: Scalar = quantity(
        "W/mm^2", "static power per die area at nominal voltage", bounds=(1e-4, 5)
    )
    memory: MemoryTechnology
    link: LinkTechnology


class ChipDesign(eqx.Module):
    """The numbers an architect chooses, per package."""

    compute_units: Scalar = quantity("", "compute units", bounds=(1, 1e4), integer=True)
    cache: Scalar = quantity("byte", "last-level cache", bounds=(1e5, 1e11))
    memory_stacks: Scalar = quantity("", "memory stacks", bounds=(1, 64), integer=True)
    network_bandwidth: Scalar = quantity("byte/s", "scale-up bandwidth per direction", bounds=(1e9, 1e14))
    dies: Scalar = quantity("", "compute dies", bounds=(1, 16), integer=True)
    voltage: Scalar = quantity("V", "supply voltage", bounds=(0.3, 1.5))


class Chip(eqx.Module):
    """What a design takes: the floorplan of one die, its edge, and the package's power."""

    compute_area: Scalar = output("mm^2", "compute units, per die")
    cache_area: Scalar = output("mm^2", "cache, per die")
    memory_area: Scalar = output("mm^2", "memory PHY, per die")
    network_area: Scalar = output("mm^2", "network PHY, per die")
    uncore_area: Scalar = output("mm^2", "everything else, per die")
    die_area: Scalar = output("mm^2", "die area")
    carried_area: Scalar = output("mm^2", "dies and memory stacks, per package")
    shoreline: Scalar = output("", "die edge that PHYs need over the edge there is")
    clock: Scalar = output("", "clock over the template's")
    power: Scalar = output("W", "power at peak compute and memory rates")


# Share of a die's edge that memory and network PHYs may take; the rest feeds power, host and die-to-die links (an estimate: GA100
# spends two of its four sides on HBM and one on NVLink).
USABLE_EDGE = 0.75


def clock(voltage: Scalar, technology: Technology) -> Scalar:
    """Clock over the nominal clock, alpha-power law: f ∝ (V − Vt)^α / V (Sakurai and Newton, IEEE JSSC 1990)."""
    drive = jnp.maximum(voltage - technology.threshold_voltage, 1e-3)
    nominal = technology.nominal_voltage - technology.threshold_voltage
    return (drive / nominal) ** technology.alpha * technology.nominal_voltage / voltage


def chip(design: ChipDesign, technology: Technology, template: Accelerator) -> Chip:
    """Area, edge and power of a design.

    Areas add up from densities; uncore takes a fixed fraction of the die. Dynamic energy scales with V² and static power with V.
    """
    voltage = design.voltage / technology.nominal_voltage
    speed = clock(design.voltage, technology) * technology.speed
    unit_rate = template.matrix.bf16.rate / template.compute_units
    # Density is given at the template's clock: a faster process shrinks the area per rate, not per unit.
    unit_area = unit_rate * technology.speed / technology.compute_density
    several = jnp.clip(design.dies - 1, 0.0, 1.0)

    compute = design.compute_units * unit_area / design.dies
    cache = design.cache / technology.sram_density / design.dies
    memory = design.memory_stacks * technology.memory.phy_area / design.dies
    network = design.network_bandwidth / technology.link.area_density / design.dies
    used = compute + cache + memory + network
    die = used / (1 - technology.uncore_fraction) * (1 + several * technology.die_to_die_fraction)

    edge = (
        design.memory_stacks * technology.memory.phy_edge
        + design.network_bandwidth / technology.link.edge_density
    ) / design.dies
    rate = design.compute_units * unit_rate * speed
    power = (
        rate * technology.compute_energy * voltage**2
        + design.memory_stacks * technology.memory.stack_bandwidth * technology.memory.energy
        + design.network_bandwidth * technology.link.energy
        + design.dies * die * technology.static_density * voltage
    )
    return Chip(
        compute_area=compute,
        cache_area=cache,
        memory_area=memory,
        network_area=network,
        uncore_area=die - used,
        die_area=die,
        carried_area=design.dies * die + design.memory_stacks * technology.memory.stack_area,
        shoreline=edge / (4 * jnp.sqrt(die) * USABLE_EDGE),
        clock=speed,
        power=power,
    )


def accelerator_of(design: ChipDesign, technology: Technology, template: Accelerator) -> Accelerator:
    """The accelerator a design is: the template's microarchitecture with the design's counts, clock, memory and package."""
    made = chip(design, technology, template)
    scale = design.compute_units / template.compute_units * made.clock
    voltage = design.voltage / technology.nominal_voltage
    innermost, *middle, device = template.memory
    cache = middle[-1]
    private = _scaled(innermost, capacity=design.compute_units / template.compute_units, bandwidth=scale)
    # A cache's bandwidth is that of its ports, one a compute unit, and its energy that of the process.
    shared = eqx.tree_at(
        lambda level: (level.capacity, level.bandwidth, level.energy),
        cache,
        (design.cache, cache.bandwidth * scale, technology.sram_energy * voltage**2),
    )
    stacks, generation = design.memory_stacks, technology.memory
    memory = MemoryLevel(
        device.name,
        stacks * generation.stack_capacity,
        stacks * generation.stack_bandwidth,
        generation.latency,
        generation.energy,
        device.efficiency,
    )
    package = template.package
    return Accelerator(
        name="design",
        compute_units=design.compute_units,
        matrix=_sped_up(template.matrix, scale),
        vector=template.vector * scale,
        memory=(private, *middle[:-1], shared, memory),
        compute_energy=technology.compute_energy * voltage**2,
        static_power=design.dies * made.die_area * technology.static_density * voltage,
        power_limit=made.power,
        kernel_latency=template.kernel_latency,
        attention=template.attention,
        cluster=template.cluster,
        package=Package(
            technology.process,
            package.packaging,
            package.technology,
            design.dies,
            made.die_area,
            stacks,
            generation.stack_area,
            generation.price,
            package.assembly_price,
        ),
    )


def _sped_up(formats: MatrixFormats, scale: Scalar) -> MatrixFormats:
    rates = lambda formats: [getattr(formats, name).rate for name in PRECISIONS]  # noqa: E731
    return eqx.tree_at(rates, formats, [rate * scale for rate in rates(formats)])


def _scaled(level: MemoryLevel, *, capacity: Scalar, bandwidth: Scalar) -> MemoryLevel:
    return eqx.tree_at(
        lambda m: (m.capacity, m.bandwidth), level, (level.capacity * capacity, level.bandwidth * bandwidth)
    )


def system_of(design: ChipDesign, technology: Technology, template: System) -> System:
    """The template system with its accelerators replaced by the design, and its innermost tier run at the design's bandwidth."""
    inner, *outer = template.network
    tier = eqx.tree_at(
        lambda t: (t.bandwidth, t.energy), inner, (design.network_bandwidth, technology.link.energy)
    )
    accelerator = accelerator_of(design, technology, template.accelerator)
    return eqx.tree_at(lambda s: (s.accelerator, s.network), template, (accelerator, (tier, *outer)))


def design_of(system: System, technology: Technology) -> ChipDesign:
    """The design numbers of an existing system, at nominal voltage: where a search starts."""
    accelerator = system.accelerator
    return ChipDesign(
        compute_units=accelerator.compute_units,
        cache=accelerator.memory[-2].capacity,
        memory_stacks=jnp.maximum(accelerator.package.memory_stacks, 1.0),
        network_bandwidth=system.network[0].bandwidth,
        dies=accelerator.package.dies,
        voltage=technology.nominal_voltage,
    )


def split_die(
    die_area: Scalar,
    fractions: Float[Array, "4"],
    dies: Scalar,
    voltage: Scalar,
    technology: Technology,
    template: Accelerator,
) -> ChipDesign:
    """The design whose dies of `die_area` mm² are split by `fractions` (compute, cache, memory PHY, network PHY; on the simplex).

    The inverse view of `chip`: what is not uncore or die-to-die links is divided, and each share buys what its density gives.
    """
    several = jnp.clip(dies - 1, 0.0, 1.0)
    usable = (
        dies * die_area * (1 - technology.uncore_fraction) / (1 + several * technology.die_to_die_fraction)
    )
    unit_rate = template.matrix.bf16.rate / template.compute_units
    return ChipDesign(
        compute_units=usable * fractions[0] * technology.compute_density / (unit_rate * technology.speed),
        cache=usable * fractions[1] * technology.sram_density,
        memory_stacks=usable * fractions[2] / technology.memory.phy_area,
        network_bandwidth=usable * fractions[3] * technology.link.area_density,
        dies=dies,
        voltage=voltage,
    )


def interpolate(technologies: Sequence[Technology], weights: Float[Array, " nodes"]) -> Technology:
    """The technology between nodes: the weighted geometric mean of every number; one-hot weights give a node itself."""

    def mean(*leaves: Array) -> Array:
        return jnp.exp(sum(weights[i] * jnp.log(leaf) for i, leaf in enumerate(leaves)))

    return jax.tree.map(mean, *technologies)


__all__ = [
    "Chip",
    "ChipDesign",
    "LinkTechnology",
    "MemoryTechnology",
    "Technology",
    "accelerator_of",
    "chip",
    "clock",
    "design_of",
    "interpolate",
    "split_die",
    "system_of",
]
