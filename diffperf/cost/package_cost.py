"""Cost of a package: several kinds of dies, some stacked on others, and memory stacks on a carrier.

The carrier is an organic substrate, a redistribution layer, a silicon interposer, or bridges.

Formulas: Chiplet Actuary (Feng and Ma, DAC 2022, §3) for carriers and for what a failed assembly wastes.
Memory stacks are pieces like dies that come tested: they add to the area, to the bonding steps, and to what a
failed assembly wastes. Memory on the board does none of this: a package is assembled and tested before it is
soldered to the board, and no source of this repository says what soldering costs or loses. Stacked dies,
bridges, tests and the work of assembly follow the same scheme.
"""

import equinox as eqx
import jax.numpy as jnp

from diffperf.cost.die_cost import DieCosts, die_costs
from diffperf.cost.wafers import raw_die_price
from diffperf.cost.yields import die_yield
from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.package import Die, Package, total_area
from diffperf.hardware.packaging import Layer, Packaging
from diffperf.quantity import Scalar, output
from diffperf.relax import Relaxation, choose, larger
from diffperf.report.tables import Readable
from diffperf.trees import stack_trees

# Substrate layers for the links between several pieces, after Chiplet Actuary (class OS in package.py of
# github.com/Yinxiao-Feng/chiplet-actuary): the price per area is 1.5 times that under a single piece, 1.75
# times where the substrate is larger than 17 mm × 17 mm, and twice where it is larger than 30 mm × 30 mm.
_LAYERS_FOR_LINKS = 0.5
_LAYERS_FOR_SIZE = 0.25  # at each of the two areas
_MEDIUM_SUBSTRATE = 17.0 * 17.0  # mm²
_LARGE_SUBSTRATE = 30.0 * 30.0  # mm²


# mm² of the smallest die there may be: a search may move the weight of all dies of a package onto bonds to
# other dies, of which then none is on the carrier.
_LEAST_AREA = 1.0

# Bonds that hardly ever hold cost a finite fortune, which the losses of dies multiply (an estimate).
_LEAST_ASSEMBLED = 1e-2


class PackageCost(Readable):
    """USD per good package, in parts that add up."""

    dies: Scalar = output("USD", "dies, working or not, and the bumps of dies and memory stacks")
    defective_dies: Scalar = output("USD", "dies that do not work, and their tests")
    die_test: Scalar = output("USD", "tests of the dies that are used, on the wafer")
    memory: Scalar = output("USD", "memory stacks, and storage")
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
    """Number, area and price of the dies and stacks that one carrier holds, without memory on the board."""

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
    memory = accelerator.device_memory.capacity * package.memory_price
    storage = accelerator.storage_capacity * package.storage_price
    return assembled_cost(package, memory, storage, relax)


def assembled_cost(package: Package, memory: Scalar, storage: Scalar, relax: Relaxation) -> PackageCost:
    """Manufacturing cost of a package whose memory and storage cost `memory` and `storage` USD, by parts."""
    packaging, die = package.packaging, stack_trees(package.dies)
    dies = die_costs(die, packaging)
    raw, tests, defective = (jnp.sum(dies.count * usd) for usd in (dies.raw, dies.test, dies.defective))
    stacking = _stacking(die, dies, packaging)
    assembly = _assembly(dies, package)
    bonded = memory * package.memory_placement.package + storage * package.storage_placement.package
    price = raw + tests + defective + stacking + bonded + assembly
    pieces = carried_pieces(dies, package, price)
    layers = _made_layers(package, pieces)
    carrier = choose(
        package.carrier,
        {
            "organic": lambda: _organic_substrate(pieces, packaging, relax),
            "fan_out": lambda: _on_layer(pieces, layers["fan_out"], package),
            "interposer": lambda: _on_layer(pieces, layers["interposer"], package),
            "bridge": lambda: _on_bridges(pieces, layers["bridge"], packaging, relax),
        },
    )
    return PackageCost(
        dies=raw + carrier.bumps,
        defective_dies=defective,
        die_test=tests,
        memory=memory + storage,
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
    area, per_design = carried_area(package), package.packaging.bumps_per_design.on
    repeated = jnp.sum((1 - dies.stacked) * (dies.count - 1) * dies.area)  # mm² beyond one die of each kind
    return Pieces(
        count=pieces_on_carrier(package),
        area=area,
        bumped=area - per_design * repeated,
        price=price,
        working=_assembled(jnp.exp(jnp.sum(dies.count * jnp.log(dies.working)))),
    )


def carried_area(package: Package) -> Scalar:
    """mm² of the dies and stacks that the carrier of a package holds, at least the smallest die."""
    dies = sum(die.count * die.bond.none * total_area(die) for die in package.dies)
    memory, storage = _bonded_stacks(package)
    return larger(dies + (memory * package.stack_area + storage * package.storage_area), _LEAST_AREA)


def pieces_on_carrier(package: Package) -> Scalar:
    """Number of dies and stacks that the carrier of a package holds."""
    dies = sum(die.count * die.bond.none for die in package.dies)
    memory, storage = _bonded_stacks(package)
    return dies + memory + storage


def _bonded_stacks(package: Package) -> tuple[Scalar, Scalar]:
    """Number of stacks of memory and of storage that are bonded onto the carrier, not on the board."""
    memory = package.memory_stacks * package.memory_placement.package
    return memory, package.storage_stacks * package.storage_placement.package


def layer_area(package: Package, carrier: str) -> Scalar:
    """mm² of the layer of a package with that carrier: "fan_out", "interposer", or all bridges together."""
    return getattr(package.packaging, carrier).area_factor * carried_area(package)


def _stacking(die: Die, dies: DieCosts, packaging: Packaging) -> Scalar:
    """USD of bonding stacked dies onto others, with the dies that failed bonds lose.

    Dies on the carrier share the stacked ones equally. A stack is tested before it goes onto the carrier; a
    failed bond loses the whole stack.
    """
    micro, hybrid = packaging.micro_bumps, packaging.hybrid_bonds
    per_area = die.bond.micro_bumps * micro.price + die.bond.hybrid_bonds * hybrid.price
    bonds = dies.count * dies.area * per_area
    log_yields = jnp.log(micro.bonding_yield), jnp.log(hybrid.bonding_yield)
    log_yield = die.bond.micro_bumps * log_yields[0] + die.bond.hybrid_bonds * log_yields[1]
    stacks = larger(jnp.sum(dies.count * (1 - dies.stacked)), 1.0)
    stack_yield = larger(jnp.exp(jnp.sum(dies.count * log_yield) / stacks), _LEAST_ASSEMBLED)
    price = jnp.sum(dies.count * (dies.raw + dies.test + dies.defective) + bonds)
    return jnp.sum(bonds) + price * (1 / stack_yield - 1)


def _assembly(dies: DieCosts, package: Package) -> Scalar:
    """USD of assembling and testing a package: by pieces and area on the carrier, and by area of the dies."""
    packaging = package.packaging
    memory, storage = _bonded_stacks(package)
    pieces = jnp.sum(dies.count * (1 - dies.stacked)) + memory + storage
    test = packaging.package_test * packaging.tester_price * jnp.sum(dies.count * dies.area)
    return pieces * packaging.placement_price + carried_area(package) * packaging.assembly_price + test


# --- carriers


def _organic_substrate(pieces: Pieces, packaging: Packaging, relax: Relaxation) -> _Carrier:
    """Pieces bonded directly onto an organic substrate; a bond that fails loses the substrate and all
    pieces."""
    bonds = _all_bonds(packaging.organic_bonding_yield, pieces.count)
    loss = 1 / _assembled(bonds * pieces.working) - 1
    bumps, substrate = pieces.area * packaging.c4_bump_price, _substrate_price(pieces, packaging, relax)
    return _Carrier(bumps, substrate, substrate * loss, (pieces.price + bumps) * loss)


def _assembled(share: Scalar) -> Scalar:
    """`share` of packages that assembly does not lose, not less than a floor that is safe to divide by."""
    return larger(share, _LEAST_ASSEMBLED)


def _all_bonds(bonding_yield: Scalar, count: Scalar) -> Scalar:
    """Share of packages in which `count` bonds all hold: y^n, as an exponential, faster than a power."""
    return _assembled(jnp.exp(count * jnp.log(bonding_yield)))


def _substrate_price(pieces: Pieces, packaging: Packaging, relax: Relaxation) -> Scalar:
    """USD of an organic substrate, with more layers for the links between several pieces."""
    area = packaging.package_area_factor * pieces.area
    return area * packaging.substrate_price * substrate_layers(area, pieces.count, relax)


def substrate_layers(area: Scalar, pieces: Scalar, relax: Relaxation) -> Scalar:
    """Layers of an organic substrate of `area` mm² that links `pieces`, over those under a single piece."""
    sizes = (_MEDIUM_SUBSTRATE, _LARGE_SUBSTRATE)
    layers_for_size = [_LAYERS_FOR_SIZE * relax.step(area / size - 1) for size in sizes]
    several = relax.step(pieces - 1.5)  # halfway between one piece and two
    return 1 + several * (_LAYERS_FOR_LINKS + layers_for_size[0] + layers_for_size[1])


class _MadeLayer(eqx.Module):
    """An interposer, a redistribution layer or a bridge as it comes from its wafer."""

    layer: Layer
    area: Scalar  # mm²
    price: Scalar  # USD, working or not
    works: Scalar  # share that works


def _made_layers(package: Package, pieces: Pieces) -> dict[str, _MadeLayer]:
    """The layers of the carriers that a package may have, by carrier.

    All are computed together on one axis, so that the formulas of a wafer are traced once. There is one
    bridge for every piece but the first.
    """
    possible = package.carrier.possible
    names = [name for name in ("fan_out", "interposer", "bridge") if possible[name]]
    if not names:
        return {}
    layers = [getattr(package.packaging, name) for name in names]
    stacked = stack_trees(layers)
    shared = [larger(pieces.count - 1, 1.0) if name == "bridge" else 1.0 for name in names]
    area = stacked.area_factor * pieces.area / jnp.stack([jnp.asarray(share) for share in shared])
    prices, shares = raw_die_price(area, stacked.process), die_yield(area, stacked.process)
    return {
        name: _MadeLayer(layer, area[index], prices[index], shares[index])
        for index, (name, layer) in enumerate(zip(names, layers, strict=True))
    }


def _on_layer(pieces: Pieces, made: _MadeLayer, package: Package) -> _Carrier:
    """Pieces on a silicon interposer or a redistribution layer, which is bonded onto an organic substrate.

    The layer is lost with its own defects, with a failed bond of a piece, and with a failed bond onto the
    substrate; the pieces with either bond, the substrate with the last. Where the layer is made over the
    pieces (chip-first), nothing is bonded onto it, and its own defects lose the pieces.
    """
    packaging = package.packaging
    price = made.price + made.area * packaging.c4_bump_price
    substrate = packaging.package_area_factor * made.area * packaging.substrate_price
    bumps = pieces.bumped * packaging.micro_bump_price
    bonds = _all_bonds(made.layer.bonding_yield, pieces.count)
    last = _assembled(packaging.organic_bonding_yield * pieces.working)
    layers_made, sets_of_pieces = choose(
        package.order,
        {
            "chip_last": lambda: (1 / _assembled(made.works * bonds * last), 1 / _assembled(bonds * last)),
            "chip_first": lambda: (1 / _assembled(made.works * last), 1 / _assembled(made.works * last)),
        },
    )
    lost = price * (layers_made - 1) + substrate * (1 / last - 1)
    return _Carrier(bumps, price + substrate, lost, (pieces.price + bumps) * (sets_of_pieces - 1))


def _on_bridges(pieces: Pieces, made: _MadeLayer, packaging: Packaging, relax: Relaxation) -> _Carrier:
    """Pieces on an organic substrate with embedded silicon bridges, one for every piece but the first.

    An estimate of assembly (after Intel's EMIB): a substrate is tested with its bridges before pieces are
    bonded, and a failed bond loses all of it. The bridges are made of tested dies of a layer's process.
    """
    bridges = larger(pieces.count - 1, 0.0)
    embedded = _all_bonds(made.layer.embedding_yield, bridges)
    carrier = bridges * made.price / made.works + _substrate_price(pieces, packaging, relax)
    bumped = pieces.area * packaging.c4_bump_price + bridges * made.area * packaging.micro_bump_price
    bonds = _assembled(_all_bonds(made.layer.bonding_yield, pieces.count) * pieces.working)
    lost = carrier * (1 / _assembled(embedded * bonds) - 1)
    return _Carrier(bumped, carrier, lost, (pieces.price + bumped) * (1 / bonds - 1))
