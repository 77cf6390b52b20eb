"""The cost of designing a package and its dies once, and how products that share designs divide that cost.

Formulas: Chiplet Actuary (Feng and Ma, DAC 2022, §3.3): modules cost by area, a die costs by area and a fixed
part (masks, licensed blocks), a package costs by area and a fixed part. The design of a module, a die or a
package is paid for once and divided over every use in every product.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.cost.package_cost import carried_area, layer_area, pieces_on_carrier, substrate_layers
from diffperf.hardware.package import Die, Package, total_area
from diffperf.hardware.process import Process
from diffperf.quantity import AnyArray, Declared, Scalar, output, quantity
from diffperf.relax import Relaxation, choose, positive
from diffperf.report.tables import Readable
from diffperf.trees import stack_trees

_INTERFACE_MODULE = 20.0  # mm² that a die-to-die interface counts as in design: Chiplet Actuary, module.py


class Production(Declared):
    """Numbers of units that are made of a design."""

    volume: Scalar = quantity(
        "", "packages of a design that are made and sold", bounds=(1, 1e12), kind="price", integer=True
    )


class DesignCost(Readable):
    """USD of designing a package and its dies once, in parts that add up."""

    modules: Scalar = output("USD", "modules of all kinds of dies, designed and verified")
    interfaces: Scalar = output("USD", "die-to-die interfaces of all kinds of dies, designed and verified")
    chips: Scalar = output("USD", "kinds of dies, put together from their modules")
    masks: Scalar = output("USD", "mask sets and tape-outs of all kinds of dies")
    ip: Scalar = output("USD", "licensed blocks of all kinds of dies")
    package: Scalar = output("USD", "substrate, and layer or bridges")

    @property
    def total(self) -> Scalar:
        """USD of all designs."""
        return self.modules + self.interfaces + self.chips + self.masks + self.ip + self.package


def module_design(area: Float[AnyArray, "*modules"], process: Process) -> Float[Array, "*modules"]:
    """USD of designing and verifying a module of `area` mm²."""
    return jnp.asarray(area * process.module_design)


def chip_design(area: Float[AnyArray, "*dies"], process: Process) -> Float[Array, "*dies"]:
    """USD of a die of `area` mm² beyond its modules: putting them together, masks and licensed blocks."""
    return jnp.asarray(area * process.chip_design + process.masks + process.ip)


def interface_design(die: Die) -> Float[Array, "*dies"]:
    """USD of designing the die-to-die interface of a die, which is a module of 20 mm² whatever its area.

    A die without an area for such an interface has none.
    """
    area = die.area * die.d2d_share
    return module_design(jnp.where(area > 0, _INTERFACE_MODULE, 0.0), die.process)


def package_design(package: Package, relax: Relaxation) -> Scalar:
    """USD of designing a package beyond its dies: an organic substrate by area and layers, or a layer.

    A layer is designed like a die of its process. The substrate under a layer counts with the price of one
    piece per area, as in Chiplet Actuary.
    """
    packaging = package.packaging

    def organic() -> Scalar:
        area = packaging.package_area_factor * carried_area(package)
        layers = substrate_layers(area, pieces_on_carrier(package), relax)
        return area * packaging.substrate_design * layers + packaging.substrate_tooling

    def on_layer(name: str) -> Scalar:
        area = layer_area(package, name)
        substrate = packaging.package_area_factor * area * packaging.substrate_price
        return chip_design(area, getattr(packaging, name).process) + substrate

    def bridge() -> Scalar:
        bridges = chip_design(layer_area(package, "bridge"), packaging.bridge.process)
        return organic() + bridges

    return choose(
        package.carrier,
        {
            "organic": organic,
            "fan_out": lambda: on_layer("fan_out"),
            "interposer": lambda: on_layer("interposer"),
            "bridge": bridge,
        },
    )


def design_cost(package: Package, relax: Relaxation) -> DesignCost:
    """USD of designing a package and all its kinds of dies once, by parts."""
    die = stack_trees(package.dies)
    return DesignCost(
        modules=jnp.sum(module_design(die.area, die.process)),
        interfaces=jnp.sum(interface_design(die)),
        chips=jnp.sum(total_area(die) * die.process.chip_design),
        masks=jnp.sum(die.process.masks),
        ip=jnp.sum(die.process.ip),
        package=package_design(package, relax),
    )


def amortized(
    price: Float[AnyArray, " designs"],
    uses: Float[AnyArray, "designs products"],
    volume: Float[AnyArray, " products"],
) -> Float[Array, " products"]:
    """USD of design per unit of each product, where products share designs.

    - price: USD of each design (module, die or package).
    - uses: how often a unit of each product uses each design.
    - volume: units of each product that are sold.

    Every use of a design, in whatever product, bears the same share of its price.
    """
    return jnp.asarray(price / positive(uses @ volume)) @ uses
