"""Technologies: what a silicon node, its memory generation and its links give per mm², per volt and per
FLOP."""

import dataclasses
from typing import Any, ClassVar

from diffperf.hardware.memory_level import Prefetch
from diffperf.hardware.node import Node
from diffperf.quantity import Declared, Label, Scalar, Weights, choice, label, quantity


class MemoryTechnology(Declared):
    """A generation of memory, and the PHY on the die that drives a stack.

    Of memory without stacks, a "stack" is one package (GDDR, LPDDR) or one module on a channel (DDR).
    """

    name: Label = label("generation of memory, such as hbm2e")
    stack_capacity: Scalar = quantity("byte", "capacity of one memory stack", bounds=(1e8, 1e12))
    stack_bandwidth: Scalar = quantity("byte/s", "bandwidth of one memory stack", bounds=(1e10, 1e13))
    stack_area: Scalar = quantity("mm^2", "footprint of one memory stack on the package", bounds=(0, 400))
    phy_area: Scalar = quantity("mm^2", "die area of the PHY of one memory stack", bounds=(0.1, 100))
    phy_edge: Scalar = quantity("mm", "die edge that the PHY of one memory stack occupies", bounds=(0.1, 50))
    energy: Scalar = quantity("J/byte", "energy to move one byte from a memory stack", bounds=(1e-13, 1e-9))
    latency: Scalar = quantity(
        "s", "time from a request to a memory stack to the first byte", bounds=(1e-9, 1e-4)
    )
    price: Scalar = quantity("USD/byte", "price of memory per byte", bounds=(1e-11, 1e-6), kind="price")
    placement: Weights = choice(
        "package",
        "board",
        doc="place of a memory stack: the carrier of the package, onto which it is bonded, or the board",
        default="package",
    )
    carbon: Scalar = quantity(
        "kg/byte",
        "CO2e of making memory, per byte",
        bounds=(1e-12, 1e-7),
        default=0.861e-9,  # HBM3, as in `diffperf.hardware.package`
        kind="price",
    )
    # An estimate: the 1,024 bits of HBM2 to HBM3E with check bits, commands and strobes.
    bumps: Scalar = quantity(
        "", "bumps of a die for the signals of one memory stack", bounds=(1, 1e5), default=1700.0
    )
    prefetch: Prefetch | None = None

    @classmethod
    def inconsistency(cls, values: dict[str, Any]) -> tuple[str, str, str, str] | None:
        """What is wrong with the numbers together: (key, found, expected, remedy), None for nothing."""
        if float(values["placement"].package) > 0 and float(values["stack_area"]) == 0:
            expected = "more than 0 mm^2 of a stack that is bonded onto the package"
            return "stack_area", "0 mm^2", expected, 'say placement = "board" for memory on the board'
        return None


class LinkTechnology(Declared):
    """A generation of links between packages, or between the dies of one package, and its PHY."""

    name: Label = label("generation of links between packages or dies, such as nvlink3 or ucie-advanced")
    area_density: Scalar = quantity(
        "byte/s/mm^2", "bandwidth of links per direction and PHY area", bounds=(1e8, 1e13)
    )
    edge_density: Scalar = quantity(
        "byte/s/mm", "bandwidth of links per direction and die edge", bounds=(1e8, 1e14)
    )
    energy: Scalar = quantity("J/byte", "energy to move one byte over a link", bounds=(1e-13, 1e-8))
    latency: Scalar = quantity(
        "s",
        "time that both PHYs of a link and the way between them add to a message",
        bounds=(1e-11, 1e-5),
    )
    price: Scalar = quantity(
        "USD*s/byte",
        "price of cables, modules and retimers of a link, per bandwidth and direction",
        bounds=(0, 1e-6),
        kind="price",
    )
    bump_bandwidth: Scalar = quantity(
        "byte/s",
        "bandwidth of links per direction and bump of signals",
        bounds=(1e7, 1e12),
        default=3.125e9,  # lanes of 100 Gbit/s with two differential pairs
    )


class Technology(Node):
    """A silicon node with what a family of accelerators makes of it, and the memory and links that go with
    them.

    A file names its node (`node = "n7"`) and takes from there what it does not give itself.
    """

    BASE: ClassVar = ("node", Node)  # the key that names another module, and the class of that module

    name: Label = label("identifier of the technology, such as n7-hbm2e")
    compute_density: Scalar = quantity(
        "FLOP/s/mm^2", "bf16 matrix rate per area of compute units at nominal voltage", bounds=(1e9, 1e14)
    )
    speed: Scalar = quantity(
        "", "clock at nominal voltage over the clock of the template accelerator", bounds=(0.1, 10)
    )
    uncore_fraction: Scalar = quantity(
        "", "share of the die area that is neither compute, cache nor PHY", bounds=(0.01, 0.8)
    )
    compute_energy: Scalar = quantity(
        "J/FLOP", "energy of one bf16 FLOP at nominal voltage", bounds=(1e-15, 1e-10)
    )
    active_density: Scalar = quantity(
        "W/mm^2",
        "power of clocks and instructions of a working die per area at nominal voltage",
        bounds=(1e-4, 5),
    )
    limit_share: Scalar = quantity(
        "",
        "power for which a package is cooled over its power with all units at their peak rates",
        bounds=(0.1, 1),
    )
    memory: MemoryTechnology
    link: LinkTechnology
    die_to_die: LinkTechnology  # between the dies of a package of several
    storage: MemoryTechnology | None = None  # beside device memory, for `storage_stacks` of a design
    unit_sram_share: Scalar = quantity(
        "",
        "share of the area of compute units that registers and private memory take",
        bounds=(0.001, 0.9),
        # Derived: 448 KiB of registers and shared memory in an SM of the A100 (NVIDIA A100 whitepaper) at the
        # SRAM density of N7 take 0.6 of 3.8 mm²; the H100's 512 KiB take 0.5 of 3.4 mm².
        default=0.15,
    )
    node: Label = label("identifier of the silicon node of a technology, such as n7", default="")


def moved(technology: Technology, node: Node) -> Technology:
    """The technology with its family of accelerators carried from its own node to another.

    Logic shrinks by the ratio of logic densities, private memory by that of SRAM densities, PHYs by that of
    PHY densities. Clocks rise by the ratio of gate speeds, energies per FLOP follow the ratio of switching
    energies; the power of clocks and instructions follows the transistors, their rate and their energy.
    Memory stacks, the reach of links and the shares of a family stay. Moved to its own node, a technology
    is unchanged.
    """
    logic = node.logic_density / technology.logic_density
    sram = node.sram_density / technology.sram_density
    phy = node.phy_density / technology.phy_density
    speed = node.gate_speed / technology.gate_speed
    energy = node.switching_energy / technology.switching_energy
    share = technology.unit_sram_share
    unit_area = (1 - share) / logic + share / sram  # of a compute unit over its area on the own node
    figures = {field.name: getattr(node, field.name) for field in dataclasses.fields(Node)}

    def with_denser_phy(memory: MemoryTechnology) -> MemoryTechnology:
        return dataclasses.replace(memory, phy_area=memory.phy_area / phy)

    def with_denser_lanes(link: LinkTechnology) -> LinkTechnology:
        return dataclasses.replace(link, area_density=link.area_density * phy)

    return dataclasses.replace(
        technology,
        **figures | {"name": technology.name},
        node=node.name,
        compute_density=technology.compute_density * speed / unit_area,
        speed=technology.speed * speed,
        compute_energy=technology.compute_energy * energy,
        active_density=technology.active_density * speed * energy / unit_area,
        unit_sram_share=share / sram / unit_area,
        memory=with_denser_phy(technology.memory),
        storage=None if technology.storage is None else with_denser_phy(technology.storage),
        link=with_denser_lanes(technology.link),
        die_to_die=with_denser_lanes(technology.die_to_die),
    )
