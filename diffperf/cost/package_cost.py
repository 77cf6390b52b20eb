"""Cost of a package: dies and memory stacks on an organic substrate or a silicon interposer.

Formulas: Chiplet Actuary (Feng and Ma, DAC 2022, §3), chip-last assembly, micro-bumps paid per chip. Memory
stacks are pieces like dies that come tested: they add to the area, to the bonding steps, and to what a failed
assembly wastes.
"""

import equinox as eqx

from diffperf.cost.silicon import at_least, die_yield, raw_die_price
from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.package import Package
from diffperf.quantity import Declared, Scalar, output
from diffperf.relax import Relaxation, choose

# Substrate layers for the links between several pieces, after Chiplet Actuary (class OS in package.py of
# github.com/Yinxiao-Feng/chiplet-actuary): the price per area is 1.5 times that under a single piece, 1.75
# times where the substrate is larger than 17 mm × 17 mm, and twice where it is larger than 30 mm × 30 mm.
_LAYERS_FOR_LINKS = 0.5
_LAYERS_FOR_SIZE = 0.25  # at each of the two areas
_MEDIUM_SUBSTRATE = 17.0 * 17.0  # mm²
_LARGE_SUBSTRATE = 30.0 * 30.0  # mm²


class PackageCost(Declared):
    """USD per good package, in parts that add up."""

    dies: Scalar = output("USD", "compute dies, working or not, and their bumps")
    defective_dies: Scalar = output("USD", "compute dies that do not work")
    memory: Scalar = output("USD", "memory stacks")
    package: Scalar = output("USD", "substrate and interposer")
    defective_packages: Scalar = output("USD", "substrates and interposers lost in assembly")
    wasted_pieces: Scalar = output("USD", "good dies and memory stacks lost in assembly")
    assembly: Scalar = output("USD", "test and assembly")

    @property
    def total(self) -> Scalar:
        """USD per good package."""
        pieces = self.dies + self.defective_dies + self.memory
        return pieces + self.package + self.defective_packages + self.wasted_pieces + self.assembly


class _Carrier(eqx.Module):
    """The carrier that pieces are bonded onto, and what bonding loses."""

    bumps: Scalar  # USD
    price: Scalar  # USD of a carrier that pieces are bonded onto
    lost: Scalar  # USD of the carriers lost per good package
    pieces_lost: Scalar  # sets of pieces lost per good package


def carried_area(package: Package) -> Scalar:
    """mm² of all dies and memory stacks."""
    return package.dies * package.die_area + package.memory_stacks * package.stack_area


def interposer_area(package: Package) -> Scalar:
    """mm² of the silicon interposer, if the package has one."""
    return carried_area(package) * package.packaging.interposer_area_factor


def package_cost(accelerator: Accelerator, relax: Relaxation) -> PackageCost:
    """Manufacturing cost of one accelerator package, by parts."""
    package = accelerator.package
    raw = package.dies * raw_die_price(package.die_area, package.process)
    defective = raw * (1 / die_yield(package.die_area, package.process) - 1)
    memory = accelerator.device_memory.capacity * package.memory_price
    carrier = choose(
        package.technology,
        {"organic": lambda: _organic_substrate(package, relax), "interposer": lambda: _interposer(package)},
    )
    return PackageCost(
        dies=raw + carrier.bumps,
        defective_dies=defective,
        memory=memory,
        package=carrier.price,
        defective_packages=carrier.lost,
        wasted_pieces=(raw + carrier.bumps + defective + memory) * carrier.pieces_lost,
        assembly=package.assembly_price,
    )


def _pieces(package: Package) -> Scalar:
    """Number of dies and memory stacks that are bonded."""
    return package.dies + package.memory_stacks


def _organic_substrate(package: Package, relax: Relaxation) -> _Carrier:
    """Pieces bonded directly onto an organic substrate; a bond that fails loses the substrate and all
    pieces."""
    rules, area, pieces = package.packaging, carried_area(package), _pieces(package)
    substrate_area = rules.package_area_factor * area
    sizes = (_MEDIUM_SUBSTRATE, _LARGE_SUBSTRATE)
    layers_for_size = [_LAYERS_FOR_SIZE * relax.step(substrate_area / size - 1) for size in sizes]
    several = relax.step(pieces - 1.5)  # halfway between one piece and two
    layers = 1 + several * (_LAYERS_FOR_LINKS + layers_for_size[0] + layers_for_size[1])
    substrate = substrate_area * rules.substrate_price * layers
    loss = 1 / at_least(rules.organic_bonding_yield**pieces) - 1
    return _Carrier(
        bumps=area * rules.c4_bump_price, price=substrate, lost=substrate * loss, pieces_lost=loss
    )


def _interposer(package: Package) -> _Carrier:
    """Pieces bonded onto a silicon interposer, which is bonded onto an organic substrate.

    The interposer is lost with its own defects, with a failed bond of a piece, and with a failed bond onto
    the substrate; the pieces with either bond, the substrate with the last.
    """
    rules, area = package.packaging, interposer_area(package)
    interposer = raw_die_price(area, rules.interposer) + area * rules.c4_bump_price
    substrate = rules.package_area_factor * area * rules.substrate_price
    works = die_yield(area, rules.interposer)
    pieces_bond = at_least(rules.interposer_bonding_yield ** _pieces(package))
    interposer_bonds = rules.organic_bonding_yield
    return _Carrier(
        bumps=carried_area(package) * rules.micro_bump_price,
        price=interposer + substrate,
        lost=interposer * (1 / at_least(works * pieces_bond * interposer_bonds) - 1)
        + substrate * (1 / interposer_bonds - 1),
        pieces_lost=1 / (pieces_bond * interposer_bonds) - 1,
    )
