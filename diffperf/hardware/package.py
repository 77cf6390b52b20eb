"""The package of an accelerator: its kinds of dies, its stacks, and the carrier that holds them.

The formulas that turn prices and yields into costs are in `diffperf.cost`.
"""

from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from diffperf import units
from diffperf.hardware.packaging import Packaging
from diffperf.hardware.process import Process
from diffperf.quantity import AnyArray, Declared, Label, Scalar, Weights, choice, label, quantity

# The shorter side of a memory stack over the root of its area: HBM2's is 7.75 mm × 11.87 mm.
_STACK_SIDE = 0.8


class Die(Declared):
    """A kind of die of a package: compute, input and output, SRAM, or all in one."""

    name: Label = label("identifier of the kind of die within its package, such as compute")
    process: Process
    count: Scalar = quantity("", "dies of this kind per package", bounds=(1, 128), integer=True)
    area: Scalar = quantity("mm^2", "area of one die without its die-to-die interfaces", bounds=(1, 7e4))
    d2d_share: Scalar = quantity(
        "",
        "area that die-to-die interfaces add to a die, over the area of the rest",
        bounds=(0, 1),
        default=0.0,
    )
    aspect: Scalar = quantity("", "width of the die over its height", bounds=(0.1, 10), default=1.0)
    exposure: Weights = choice(
        "reticle",
        "stitched",
        "wafer",
        doc="exposure of a die: within one reticle, in several stitched fields, or as a whole wafer",
        default="reticle",
    )
    bond: Weights = choice(
        "none",
        "micro_bumps",
        "hybrid_bonds",
        doc="bond that stacks a die onto the dies below; without a bond the carrier holds the die itself",
        default="none",
    )
    units: Scalar = quantity(
        "",
        "identical compute units on one die, spare ones included",
        bounds=(1, 1e6),
        default=1.0,
        integer=True,
    )
    spare_units: Scalar = quantity(
        "", "compute units of one die that may be defective", bounds=(0, 1e6), default=0.0, integer=True
    )
    units_share: Scalar = quantity(
        "", "share of the die area that the compute units take", bounds=(0, 0.8), default=0.0
    )
    channels: Scalar = quantity(
        "",
        "identical memory channels on one die, spare ones included",
        bounds=(1, 1e4),
        default=1.0,
        integer=True,
    )
    spare_channels: Scalar = quantity(
        "", "memory channels of one die that may be defective", bounds=(0, 1e4), default=0.0, integer=True
    )
    channels_share: Scalar = quantity(
        "", "share of the die area that the memory channels take", bounds=(0, 0.19), default=0.0
    )
    lower_value: Scalar = quantity(
        "",
        "value of a die with too many defective compute units, sold in a lower grade, over the full grade's",
        bounds=(0, 1),
        default=0.0,
        kind="price",
    )

    @classmethod
    def inconsistency(cls, values: dict[str, Any]) -> tuple[str, str, str, str] | None:
        """What is wrong with the numbers together: (key, found, expected, remedy), None for nothing."""
        area = float(values["area"]) * (1 + float(values["d2d_share"]))
        reticle = float(values["process"].reticle)
        if area > reticle and float(values["exposure"].reticle) == 1.0:
            limit = f"at most {reticle:g} mm^2, the reticle of {values['process'].name}"
            remedy = 'split the die, or say exposure = "stitched" or "wafer"'
            return "area", f"a die of {units.show(area, 'mm^2')}", limit, remedy
        for part in ("units", "channels"):
            spare, count = (float(values[key]) for key in (f"spare_{part}", part))
            if spare > 0 and spare >= count:
                key = f"spare_{part}"
                return key, f"{spare:g} spare of {count:g}", "fewer than there are", f"give {part} in all"
        return None


def total_area(die: Die) -> Float[AnyArray, "*kinds"]:
    """mm² of one die with its die-to-die interfaces; the numbers of the die may have an axis of kinds."""
    return die.area * (1 + die.d2d_share)


class Package(Declared):
    """Dies, memory stacks and stacks of storage on a carrier."""

    dies: tuple[Die, ...]
    packaging: Packaging
    carrier: Weights = choice(
        "organic",
        "fan_out",
        "interposer",
        "bridge",
        doc="carrier that dies and memory stacks are bonded onto",
    )
    memory_stacks: Scalar = quantity("", "memory stacks of the package", bounds=(0, 64), integer=True)
    stack_area: Scalar = quantity("mm^2", "footprint of one memory stack", bounds=(1, 400))
    memory_price: Scalar = quantity(
        # 0 where device memory is SRAM, which the price of the dies includes.
        "USD/byte",
        "price of device memory per byte",
        bounds=(0, 1e-6),
        kind="price",
    )
    memory_carbon: Scalar = quantity(
        "kg/byte",
        "CO2e of making device memory, per byte",
        bounds=(1e-12, 1e-9),
        # Derived: 42 % of the 1,312 kg of a board of eight H100, each with 80 GB of HBM3 (NVIDIA, HGX H100
        # PCF Summary).
        default=0.861e-9,
        kind="price",
    )
    memory_placement: Weights = choice(
        "package",
        "board",
        doc="place of device memory: the carrier, with which it is lost in assembly, or the board",
        default="package",
    )
    storage_stacks: Scalar = quantity(
        "",
        "stacks of storage of the package, beside memory stacks",
        bounds=(0, 64),
        default=0.0,
        integer=True,
    )
    storage_placement: Weights = choice(
        "package",
        "board",
        doc="place of storage: the carrier, with which it is lost in assembly, or the board",
        default="package",
    )
    storage_area: Scalar = quantity("mm^2", "footprint of one stack of storage", bounds=(0, 400), default=0.0)
    storage_price: Scalar = quantity(
        "USD/byte", "price of storage per byte", bounds=(0, 1e-6), default=0.0, kind="price"
    )
    storage_carbon: Scalar = quantity(
        "kg/byte", "CO2e of making storage, per byte", bounds=(0, 1e-9), default=0.0, kind="price"
    )
    order: Weights = choice(
        "chip_last",
        "chip_first",
        doc="order of assembly: pieces onto a finished layer (last), or a layer over the pieces (first)",
        default="chip_last",
    )
    board_price: Scalar = quantity(
        "USD",
        "price of what an accelerator is sold with beyond the package: board, regulators, cooler",
        bounds=(0, 1e5),
        default=0.0,
        kind="price",
    )

    @classmethod
    def inconsistency(cls, values: dict[str, Any]) -> tuple[str, str, str, str] | None:
        """What is wrong with the pieces together: (key, found, expected, remedy), None for nothing."""
        # NumPy's arrays come here. With an axis, even of one kind, results are arrays as well.
        dies = jax.tree.map(np.atleast_1d, values["dies"])
        if not any(np.any(die.bond["none"] > 0) for die in dies):
            expected, remedy = "one or more on the carrier", 'say bond = "none" for the dies at the bottom'
            return "dies", "only dies that are stacked on other dies", expected, remedy
        stacks = float(np.max(values["memory_stacks"] * values["memory_placement"].package))
        side = _STACK_SIDE * float(np.sqrt(np.min(values["stack_area"])))
        edge = _edge_on_carrier(dies)
        if stacks * side > edge:
            found = f"{stacks:g} memory stacks, {stacks * side:.0f} mm side by side"
            expected = f"at most {edge // side:.0f}, along the {edge:.0f} mm of the dies' edges"
            return "memory_stacks", found, expected, "take fewer stacks, or more and larger dies"
        return None


def _edge_on_carrier(dies: tuple[Die, ...]) -> float:
    """mm of edge of all dies that the carrier itself holds."""
    edges = [die.count * die.bond.none * 4 * np.sqrt(total_area(die)) for die in dies]
    return float(np.max(np.sum(np.asarray(edges), axis=0)))
