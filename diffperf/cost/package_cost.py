"""Packages: dies and memory stacks on an organic substrate or a silicon interposer.

Formulas: Chiplet Actuary (Feng and Ma, DAC 2022, §3), chip-last assembly, micro-bumps paid per chip. Memory stacks are pieces
like dies that come tested: they add to area, bonding steps and to what a failed assembly wastes.
"""

import equinox as eqx

from diffperf.cost.silicon import at_least, die_yield, raw_die_price
from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.package import Package
from diffperf.quantity import Scalar, output
from diffperf.relax import Relaxation, choose


class PackageCost(eqx.Module):
    """USD per good package."""

    dies: Scalar = output("USD", "dies, working or not")
    defective_dies: Scalar = output("USD", "dies that do not work")
    memory: Scalar = output("USD", "memory stacks")
    package: Scalar = output("USD", "substrate, interposer and bumps")
    defective_packages: Scalar = output("USD", "substrates and interposers lost in assembly")
    wasted_pieces: Scalar = output("USD", "good dies and stacks lost in assembly")
    assembly: Scalar = output("USD", "test and assembly")

    @property
    def total(self) -> Scalar:
        parts = (
            self.dies,
            self.defective_dies,
            self.memory,
            self.package,
            self.defective_packages,
            self.wasted_pieces,
            self.assembly,
        )
        return sum(parts)


def carried_area(package: Package) -> Scalar:
    """mm² of dies and memory stacks."""
    return package.dies * package.die_area + package.memory_stacks * package.stack_area


def interposer_area(package: Package) -> Scalar:
    """mm² of the silicon interposer, were it one."""
    return carried_area(package) * package.packaging.interposer_area_factor


def package_cost(accelerator: Accelerator, relax: Relaxation) -> PackageCost:
    """Manufacturing cost of one accelerator package with its breakdown."""
    package = accelerator.package
    rules = package.packaging
    raw = package.dies * raw_die_price(package.die_area, package.process)
    defective = raw * (1 / die_yield(package.die_area, package.process) - 1)
    memory = accelerator.device_memory.capacity * package.memory_price
    pieces = package.dies + package.memory_stacks
    area = carried_area(package)

    def organic():
        substrate_area = rules.package_area_factor * area
        # Several chips need more substrate layers, the larger the more.
        several = relax.step(pieces - 1.5)
        layers = 1 + several * (
            0.5 + 0.25 * relax.step(substrate_area / 289 - 1) + 0.25 * relax.step(substrate_area / 900 - 1)
        )
        substrate = substrate_area * rules.substrate_price * layers
        loss = 1 / at_least(rules.organic_bonding_yield**pieces) - 1
        return area * rules.c4_bump_price, substrate, substrate * loss, loss

    def interposer():
        plate = interposer_area(package)
        silicon = raw_die_price(plate, rules.interposer) + plate * rules.c4_bump_price
        substrate = rules.package_area_factor * plate * rules.substrate_price
        y1 = die_yield(plate, rules.interposer)
        y2 = at_least(rules.interposer_bonding_yield**pieces)
        y3 = rules.organic_bonding_yield
        lost = silicon * (1 / at_least(y1 * y2 * y3) - 1) + substrate * (1 / y3 - 1)
        return area * rules.micro_bump_price, silicon + substrate, lost, 1 / (y2 * y3) - 1

    bumps, carrier, lost_carriers, loss = choose(
        package.technology, {"organic": organic, "interposer": interposer}
    )
    return PackageCost(
        dies=raw + bumps,
        defective_dies=defective,
        memory=memory,
        package=carrier,
        defective_packages=lost_carriers,
        wasted_pieces=(raw + bumps + defective + memory) * loss,
        assembly=package.assembly_price,
    )
