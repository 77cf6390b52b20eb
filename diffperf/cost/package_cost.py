"""Cost of a package: several kinds of dies and memory stacks on an organic substrate, a redistribution layer, a
silicon interposer or bridges, with dies stacked on others.

Formulas: Chiplet Actuary (Feng and Ma, DAC 2022, §3) for carriers and for what a failed assembly wastes.
Memory stacks are pieces like dies that come tested: they add to the area, to the bonding steps, and to what a
failed assembly wastes. Stacked dies, bridges, tests and the work of assembly follow the same scheme.
"""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.cost.die_cost import DieCosts, die_costs, stacked_dies
from diffperf.cost.wafers import raw_die_price
from diffperf.cost.yields import at_least, die_yield
from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.package import Die, Package
from diffperf.hardware.packaging import Layer, Packaging
from diffperf.quantity import Declared, Scalar, output
from diffperf.relax import Relaxation, choose, larger, positive

# Substrate layers for the links between several pieces, after Chiplet Actuary (class OS in package.py of
# github.com/Yinxiao-Feng/chiplet-actuary): the price per area is 1.5 times that under a single piece, 1.75
# times where the substrate is larger than 17 mm × 17 mm, and twice where it is larger than 30 mm × 30 mm.
_LAYERS_FOR_LINKS = 0.5
_LAYERS_FOR_SIZE = 0.25  # at each of the two areas
_MEDIUM_SUBSTRATE = 17.0 * 17.0  # mm²
_LARGE_SUBSTRATE = 30.0 * 30.0  # mm²


class PackageCost(Declared):
    """USD per good package, in parts that add up."""

    dies: Scalar = output("USD", "dies, working or not, and the bumps of dies and memory stacks")
    defective_dies: Scalar = output("USD", "dies that do not work, and their tests")
    die_test: Scalar = output("USD", "tests of the dies that are used, on the wafer")
    memory: Scalar = output("USD", "memory stacks")
    stacking: Scalar = output("USD", "bonds between stacked dies, and what failed bonds lose")
    package: Scalar = output("USD", "substrate, interposer, redistribution layer or bridges")
    defective_packages: Scalar = output("USD", "substrates and layers lost in assembly")
    wasted_pieces: Scalar = output("USD", "good dies, memory stacks and work lost in assembly")
    assembly: Scalar = output("USD", "assembly, and the test of the package")
    board: Scalar = output("USD", "board, regulators and cooler that the package is sold with")

    @property
    def total(self) -> Scalar:
        """USD per good package."""
        pieces = self.dies + self.defective_dies + self.die_test + self.memory + self.stacking
        carrier = self.package + self.defective_packages + self.wasted_pieces
        return pieces + carrier + self.assembly + self.board


class Pieces(eqx.Module):
    """What a carrier holds."""

    count: Scalar  # dies and memory stacks that are bonded onto the carrier
    area: Scalar  # mm² of these dies and memory stacks
    bumped: Scalar  # mm² whose micro-bumps are paid for
    price: Scalar  # USD of all pieces, stacked ones included, and of their assembly, without bumps
    working: Scalar  # share of packages in which every die works that its test on the wafer let pass


class _Carrier(eqx.Module):
    """The carrier that pieces are bonded onto, and what bonding loses, in USD per good package."""

    bumps: Scalar
    price: Scalar  # of a carrier that pieces are bonded onto
    lost: Scalar  # of the carriers lost
    wasted: Scalar  # of the pieces lost


def package_cost(accelerator: Accelerator, relax: Relaxation) -> PackageCost:
    """Manufacturing cost of one accelerator package, by parts."""
    package = accelerator.package
    return assembled_cost(package, accelerator.device_memory.capacity * package.memory_price, relax)


def assembled_cost(package: Package, memory: Scalar, relax: Relaxation) -> PackageCost:
    """Manufacturing cost of a package whose memory stacks cost `memory` USD, by parts."""
    packaging, die = package.packaging, stacked_dies(package.dies)
    dies = die_costs(die, packaging)
    raw, tests, defective = (
        jnp.sum(dies.count * usd) for usd in (dies.raw, dies.test, dies.defective)
    )
    stacking = _stacking(die, dies, packaging)
    assembly = _assembly(dies, package)
    price = raw + tests + defective + stacking + memory + assembly
    pieces = carried_pieces(dies, package, price)
    carrier = choose(
        package.carrier,
        {
            "organic": lambda: _organic_substrate(pieces, packaging, relax),
            "fan_out": lambda: _on_layer(pieces, packaging.fan_out, package),
            "interposer": lambda: _on_layer(pieces, packaging.interposer, package),
            "bridge": lambda: _on_bridges(pieces, packaging, relax),
        },
    )
    return PackageCost(
        dies=raw + carrier.bumps,
        defective_dies=defective,
        die_test=tests,
        memory=memory,
        stacking=stacking,
        package=carrier.price,
        defective_packages=carrier.lost,
        wasted_pieces=carrier.wasted,
        assembly=assembly,
        board=package.board_price,
    )


# --- what the carrier holds


def carried_pieces(dies: DieCosts, package: Package, price: Scalar) -> Pieces:
    """The pieces on the carrier of a package, whose dies and memory stacks together cost `price` USD.

    The dies of a package all work with the product of their shares; the test of the package finds the others.
    """
    held = dies.count * (1 - dies.stacked)
    stacks_area = package.memory_stacks * package.stack_area
    per_design = package.packaging.bumps_per_design.on
    bumped = (held + per_design * (1 - dies.stacked - held)) * dies.area
    return Pieces(
        count=jnp.sum(held) + package.memory_stacks,
        area=jnp.sum(held * dies.area) + stacks_area,
        bumped=jnp.sum(bumped) + stacks_area,
        price=price,
        working=at_least(jnp.exp(jnp.sum(dies.count * jnp.log(dies.working)))),
    )


def carried_area(package: Package) -> Scalar:
    """mm² of the dies and memory stacks that the carrier of a package holds."""
    dies = sum(die.count * die.bond.none * die.total_area for die in package.dies)
    return dies + package.memory_stacks * package.stack_area


def substrate_area(package: Package) -> Scalar:
    """mm² of the organic substrate under the dies, the bridges, or the layer of a package."""
    packaging, weights = package.packaging, package.carrier
    over_carried = (
        weights.organic
        + weights.bridge
        + weights.fan_out * packaging.fan_out.area_factor
        + weights.interposer * packaging.interposer.area_factor
    )
    return packaging.package_area_factor * over_carried * carried_area(package)


def _stacking(die: Die, dies: DieCosts, packaging: Packaging) -> Scalar:
    """USD of bonding stacked dies onto others, with the dies that failed bonds lose.

    Dies on the carrier share the stacked ones equally. A stack is tested before it goes onto the carrier; a
    failed bond loses the whole stack.
    """
    micro, hybrid = packaging.micro_bumps, packaging.hybrid_bonds
    bonds = dies.count * dies.area * (die.bond.micro_bumps * micro.price + die.bond.hybrid_bonds * hybrid.price)
    log_yield = die.bond.micro_bumps * jnp.log(micro.bonding_yield) + die.bond.hybrid_bonds * jnp.log(
        hybrid.bonding_yield
    )
    stacks = larger(jnp.sum(dies.count * (1 - dies.stacked)), 1.0)
    stack_yield = at_least(jnp.exp(jnp.sum(dies.count * log_yield) / stacks))
    price = jnp.sum(dies.count * (dies.raw + dies.test + dies.defective) + bonds)
    return jnp.sum(bonds) + price * (1 / stack_yield - 1)


def _assembly(dies: DieCosts, package: Package) -> Scalar:
    """USD of assembling and testing a package: by pieces and area on the carrier, and by area of the dies."""
    packaging = package.packaging
    pieces = jnp.sum(dies.count * (1 - dies.stacked)) + package.memory_stacks
    test = packaging.package_test * packaging.tester_price * jnp.sum(dies.count * dies.area)
    return pieces * packaging.placement_price + carried_area(package) * packaging.assembly_price + test


# --- carriers


def _organic_substrate(pieces: Pieces, packaging: Packaging, relax: Relaxation) -> _Carrier:
    """Pieces bonded directly onto an organic substrate; a bond that fails loses the substrate and all
    pieces."""
    bonds = packaging.organic_bonding_yield**pieces.count
    loss = 1 / at_least(bonds * pieces.working) - 1
    bumps, substrate = pieces.area * packaging.c4_bump_price, _substrate_price(pieces, packaging, relax)
    return _Carrier(bumps, substrate, substrate * loss, (pieces.price + bumps) * loss)


def _substrate_price(pieces: Pieces, packaging: Packaging, relax: Relaxation) -> Scalar:
    """USD of an organic substrate, with more layers for the links between several pieces."""
    area = packaging.package_area_factor * pieces.area
    sizes = (_MEDIUM_SUBSTRATE, _LARGE_SUBSTRATE)
    layers_for_size = [_LAYERS_FOR_SIZE * relax.step(area / size - 1) for size in sizes]
    several = relax.step(pieces.count - 1.5)  # halfway between one piece and two
    layers = 1 + several * (_LAYERS_FOR_LINKS + layers_for_size[0] + layers_for_size[1])
    return area * packaging.substrate_price * layers


def _on_layer(pieces: Pieces, layer: Layer, package: Package) -> _Carrier:
    """Pieces on a silicon interposer or a redistribution layer, which is bonded onto an organic substrate.

    The layer is lost with its own defects, with a failed bond of a piece, and with a failed bond onto the
    substrate; the pieces with either bond, the substrate with the last. Where the layer is made over the
    pieces (chip-first), nothing is bonded onto it, and its own defects lose the pieces.
    """
    packaging, area = package.packaging, layer.area_factor * pieces.area
    price = raw_die_price(area, layer.process) + area * packaging.c4_bump_price
    substrate = packaging.package_area_factor * area * packaging.substrate_price
    bumps = pieces.bumped * packaging.micro_bump_price
    works = die_yield(area, layer.process)
    bonds = at_least(layer.bonding_yield**pieces.count)
    last = packaging.organic_bonding_yield * pieces.working
    layer_loss, pieces_loss = choose(
        package.order,
        {
            "chip_last": lambda: (1 / at_least(works * bonds * last), 1 / at_least(bonds * last)),
            "chip_first": lambda: (1 / at_least(works * last), 1 / at_least(works * last)),
        },
    )
    lost = price * (layer_loss - 1) + substrate * (1 / at_least(last) - 1)
    return _Carrier(bumps, price + substrate, lost, (pieces.price + bumps) * (pieces_loss - 1))


def _on_bridges(pieces: Pieces, packaging: Packaging, relax: Relaxation) -> _Carrier:
    """Pieces on an organic substrate in which silicon bridges are embedded, one for every piece but the first.

    An estimate of assembly (after Intel's EMIB): a substrate is tested with its bridges before pieces are
    bonded, and a failed bond loses all of it. The bridges are made of tested dies of a layer's process.
    """
    layer = packaging.bridge
    bridges = larger(pieces.count - 1, 0.0)
    area = positive(layer.area_factor * pieces.area / larger(bridges, 1.0))  # mm² of one bridge
    bridge = raw_die_price(area, layer.process) / die_yield(area, layer.process)
    embedded = at_least(layer.embedding_yield**bridges)
    carrier = bridges * bridge + _substrate_price(pieces, packaging, relax)
    bumped = pieces.area * packaging.c4_bump_price + bridges * area * packaging.micro_bump_price
    bonds = layer.bonding_yield**pieces.count * pieces.working
    lost = carrier * (1 / at_least(embedded * bonds) - 1)
    return _Carrier(bumped, carrier, lost, (pieces.price + bumped) * (1 / at_least(bonds) - 1))
