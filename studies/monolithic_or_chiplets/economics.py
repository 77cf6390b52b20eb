"""Costs of systems on one die or on several chiplets, and where the two cost the same.

Systems and their designs are those of `studies/chiplet_cost` with the parameters of Chiplet Actuary (Feng and
Ma, DAC 2022); every price comes from `diffperf.cost`. A crossover is a root of the difference of two prices
in the area of modules, found by Brent's method; its slopes come from the implicit function theorem.
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import brentq

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "chiplet_cost")]
import actuary  # pyright: ignore[reportMissingImports]  # in chiplet_cost, which is on the path
import systems  # pyright: ignore[reportMissingImports]  # likewise

from diffperf.hardware.package import Package
from diffperf.quantity import AnyArray, Scalar

PARAMETERS = actuary.CaseFile(Path(__file__).parents[1] / "chiplet_cost" / "published_cases.json")
SMALLEST, LARGEST = 100.0, 900.0  # mm² of modules
# Parts of the manufacturing cost, in the order of Chiplet Actuary.
PARTS = ("dies", "defective dies", "carrier", "lost carriers", "lost dies")
# What the factors of `scaled` multiply, in their order.
FACTORS = ("wafer price", "defect density", "interface area", "carrier prices", "assembly losses")


@dataclasses.dataclass(frozen=True)
class Kind:
    """A node, a packaging by Chiplet Actuary's name (OS, FO or SI), and a number of chips, 1 for one die."""

    node: str
    packaging: str
    chips: int

    def package(self) -> Package:
        """A system of the kind; its area is set by `sized`."""
        return systems.system(PARAMETERS, self.node, self.packaging, self.chips, LARGEST)


ONE_DIE = tuple(Kind(node, "OS", 1) for node in systems.NODES)
SPLITS = tuple(
    Kind(node, packaging, chips)
    for node in systems.NODES
    for packaging in actuary.CARRIERS
    for chips in systems.CHIPS
)


class Price(NamedTuple):
    """What a system costs.

    - parts: USD of making one, by `PARTS`.
    - design: USD of all designs, each chip being a design of its own.
    """

    parts: Float[Array, "*systems parts"]
    design: Float[Array, "*systems"]

    @property
    def manufacturing(self) -> Float[Array, "*systems"]:
        """USD of making one system."""
        return self.parts.sum(axis=-1)


def sized(package: Package, modules: Scalar) -> Package:
    """The system with `modules` mm² of modules, in equal parts on its chips."""
    return eqx.tree_at(lambda system: system.dies[0].area, package, modules / package.dies[0].count)


def scaled(package: Package, factors: Float[Array, " factors"]) -> Package:
    """The system with the inputs named by `FACTORS` multiplied; a loss is one minus a bonding yield.

    Carrier prices are those of substrates, bumps and the wafers of layers.
    """
    wafer, defects, interface, carrier, loss = factors

    def own(system: Package) -> Sequence[Any]:
        die, packaging = system.dies[0], system.packaging
        prices = packaging.substrate_price, packaging.c4_bump_price, packaging.micro_bump_price
        layers = packaging.interposer, packaging.fan_out
        wafers = [layer.process.wafer_price for layer in layers]
        yields = [packaging.organic_bonding_yield, *(layer.bonding_yield for layer in layers)]
        process = die.process.wafer_price, die.process.defect_density
        return *process, die.d2d_share, *prices, *wafers, *yields

    *multiplied, organic, interposer, fan_out = own(package)
    multipliers = (wafer, defects, interface, *[carrier] * 5)
    values = [number * factor for number, factor in zip(multiplied, multipliers, strict=True)]
    yields = [1 - loss * (1 - share) for share in (organic, interposer, fan_out)]
    return eqx.tree_at(own, package, [*values, *yields])


def _parts(package: Package, modules: Scalar) -> Float[Array, " parts"]:
    """USD of making one system, by `PARTS`."""
    return actuary.system_results(sized(package, modules))["cost_RE"]


def _design(package: Package, modules: Scalar, shared: Scalar) -> Scalar:
    """USD of all designs of a system; `shared` is 1 where its chips share one design, 0 where each has its
    own.
    """

    def total(alike: bool) -> Scalar:
        prices = systems.unit_cost(sized(package, modules), jnp.ones(()), alike)  # over a volume of one
        return prices["modules"] + prices["chips"] + prices["package"]

    own = total(alike=False)
    return own + shared * (total(alike=True) - own)


def price(package: Package, modules: Scalar) -> Price:
    """The price of one system with `modules` mm² of modules."""
    return Price(
        parts=_parts(package, modules),
        design=_design(package, modules, jnp.zeros(())),
    )


def slopes(package: Package, modules: Scalar) -> Float[Array, " parts"]:
    """USD of making one system for one mm² of modules more, by `PARTS`."""
    return jax.jacfwd(_parts, argnums=1)(package, modules)


@jax.jit
def prices(packages: Package, areas: Float[Array, " areas"]) -> Price:
    """Prices of all systems, whose numbers have a leading axis, at all areas: arrays (systems, areas)."""
    return jax.vmap(jax.vmap(price, in_axes=(None, 0)), in_axes=(0, None))(packages, areas)


# --- where chiplets cost as much as one die


class Pair(NamedTuple):
    """A system of chiplets and the same modules on one die."""

    chiplets: Package
    one_die: Package


def pair_of(split: Kind) -> Pair:
    """The chiplets of a kind and one die of the same node on an organic substrate."""
    return Pair(split.package(), Kind(split.node, "OS", 1).package())


class Production(NamedTuple):
    """How systems are made: one over the volume that design is divided over, whether the chips share one
    design (1 or 0), and the factors of `scaled`.
    """

    per_unit: Scalar | float = 0.0
    shared: Scalar | float = 0.0
    factors: Float[AnyArray, " factors"] = np.ones(len(FACTORS))


def difference(pair: Pair, modules: Scalar | float, production: Production) -> Scalar:
    """Cost of the chiplets of a pair over that of one die, less 1: 0 where they cost the same."""
    area, (per_unit, shared, factors) = jnp.asarray(modules), production

    def cost(package: Package) -> Scalar:
        made = scaled(package, jnp.asarray(factors))
        return _parts(made, area).sum() + per_unit * _design(made, area, jnp.asarray(shared))

    return cost(pair.chiplets) / cost(pair.one_die) - 1


_difference = jax.jit(difference)
_differences = jax.jit(jax.vmap(difference, in_axes=(None, 0, None)))
_gradient = jax.jit(jax.grad(difference, argnums=(1, 2)))


def crossover(pair: Pair, production: Production = Production(), step: float = 1.0) -> float | None:
    """mm² of modules from which on the chiplets of a pair are cheaper, up to the largest area.

    The sign of the difference changes for the last time between two of the areas `step` mm² apart; Brent's
    method finds the root there to 1e-10 mm². `None` where chiplets are dearer at the largest area; the
    smallest area where they always are cheaper.
    """
    areas = np.arange(SMALLEST, LARGEST + step / 2, step)
    cheaper = np.asarray(_differences(pair, areas, production)) < 0
    if not cheaper[-1]:
        return None
    changes = np.flatnonzero(cheaper[1:] != cheaper[:-1])
    if not len(changes):
        return SMALLEST

    def at(area: float) -> float:
        return float(_difference(pair, area, production))

    return cast(float, brentq(at, areas[changes[-1]], areas[changes[-1] + 1], xtol=1e-10))


def elasticities(
    pair: Pair, area: float, production: Production = Production()
) -> Float[np.ndarray, " factors"]:
    """Per cent by which a crossover at `area` moves where a factor rises by 1 %, for each of `FACTORS`.

    By the implicit function theorem, d log A / d log s = −(∂D/∂s) / (A · ∂D/∂A) of the difference D at 0.
    """
    by_area, by_production = _gradient(pair, area, production)
    return -np.asarray(by_production.factors) / (area * float(by_area))


def with_process(pair: Pair, node: str, *numbers: str) -> Pair:
    """The pair with these numbers of its process, such as wafer_price, replaced by those of another node."""
    process = PARAMETERS.node(node)

    def of(package: Package) -> list[Any]:
        return [getattr(package.dies[0].process, name) for name in numbers]

    values = [getattr(process, name) for name in numbers]
    return Pair(*(eqx.tree_at(of, package, values) for package in pair))


def break_even_volume(one_die: Price, chiplets: Price) -> Float[np.ndarray, "..."]:
    """Systems made from which on chiplets, each a design of its own, are cheaper.

    That is what their design costs more over what making them costs less; 0 where neither costs more,
    infinity where making them does not cost less.
    """
    design = np.asarray(chiplets.design) - np.asarray(one_die.design)
    saved = np.asarray(one_die.manufacturing) - np.asarray(chiplets.manufacturing)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(saved > 0, np.maximum(design, 0.0) / saved, np.inf)


def dies_without_interfaces(node: str, chips: int, modules: float) -> float:
    """USD of working dies of the modules alone, in `chips` equal parts, with their defects."""
    results = actuary.die_results(jnp.asarray(modules / chips), PARAMETERS.node(node))
    return chips * float(results["cost_KGD"])
