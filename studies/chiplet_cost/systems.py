"""Chiplet Actuary's systems of one die or of equal chiplets, and what one costs to make and to design."""

import jax.numpy as jnp
from actuary import CaseFile
from jaxtyping import Array, Float

from diffperf.cost.design_cost import amortized, chip_design, interface_design, module_design, package_design
from diffperf.cost.package_cost import assembled_cost
from diffperf.hardware.package import Package, total_area
from diffperf.quantity import Scalar
from diffperf.relax import Exact

NODES = ("14", "7", "5")
CHIPS = (2, 3, 5)  # chiplets that one die is split into: Chiplet Actuary, Fig. 4
D2D_SHARE = 0.1  # of a chiplet's area: Chiplet Actuary, §4
# The volumes that Chiplet Actuary amortizes design over (exploration.py).
VOLUMES = (500_000.0, 2_000_000.0, 10_000_000.0)


def system(file: CaseFile, node: str, packaging: str, chips: int, area: float) -> Package:
    """A system of `area` mm² of modules on so many chips; one chip has no die-to-die interface."""
    case = {
        "node": node,
        "packaging": packaging,
        "n_chips": chips,
        "total_module_area_mm2": area,
        "d2d_area_fraction": D2D_SHARE if chips > 1 else 0.0,
    }
    return file.package(case, file.packaging("off"))


def manufacturing(package: Package) -> Scalar:
    """USD of making a system, which has no memory."""
    return assembled_cost(package, jnp.zeros(()), jnp.zeros(()), Exact()).total


def unit_cost(package: Package, volume: Float[Array, ""], alike: bool) -> dict[str, Scalar]:
    """USD of a system in production, its design divided over `volume`, by parts.

    `alike` chips share one design; otherwise each is a design of its own, as in Chiplet Actuary.
    """
    die = package.dies[0]
    designs = jnp.ones(()) if alike else die.count
    prices = {
        "modules": designs * module_design(die.area, die.process) + interface_design(die),
        "chips": designs * chip_design(total_area(die), die.process),
        "package": package_design(package, Exact()),
    }
    per_unit = {
        name: amortized(price[None], jnp.ones((1, 1)), volume[None])[0] for name, price in prices.items()
    }
    return {"manufacturing": manufacturing(package)} | per_unit
