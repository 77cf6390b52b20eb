"""The package of an accelerator and the prices of its pieces: process, dies, memory stacks, substrate.

The formulas that turn prices and yields into costs are in `diffperf.cost`.
"""

from diffperf.quantity import Declared, Label, Scalar, Weights, choice, label, quantity


class Process(Declared):
    """A silicon process as a foundry sells it."""

    name: Label = label("identifier of the silicon process, such as tsmc-n7")
    wafer_price: Scalar = quantity(
        "USD", "price of one processed 300 mm wafer", bounds=(100, 1e6), kind="price"
    )
    defect_density: Scalar = quantity(
        "1/mm^2", "killer defects per area of a die", bounds=(1e-5, 1e-1), kind="price"
    )
    clustering: Scalar = quantity(
        "", "clustering parameter of the negative binomial yield of dies", bounds=(0.5, 100), kind="price"
    )


class Packaging(Declared):
    """Prices and yields of assembling dies and memory stacks into a package."""

    name: Label = label("identifier of the packaging, such as cowos-s")
    substrate_price: Scalar = quantity(
        "USD/mm^2", "price of organic substrate per area", bounds=(1e-5, 1), kind="price"
    )
    c4_bump_price: Scalar = quantity(
        "USD/mm^2", "price of C4 bumps per bumped area", bounds=(1e-5, 1), kind="price"
    )
    micro_bump_price: Scalar = quantity(
        "USD/mm^2", "price of micro-bumps onto an interposer per bumped area", bounds=(1e-5, 1), kind="price"
    )
    organic_bonding_yield: Scalar = quantity(
        "",
        "yield of bonding one piece (die, memory stack, interposer) onto a substrate",
        bounds=(0.5, 1),
        kind="price",
    )
    interposer_bonding_yield: Scalar = quantity(
        "", "yield of bonding one piece (die, memory stack) onto an interposer", bounds=(0.5, 1), kind="price"
    )
    package_area_factor: Scalar = quantity(
        "",
        "substrate area over the area of the dies and stacks, or of the interposer, on the substrate",
        bounds=(1, 20),
        kind="price",
    )
    interposer_area_factor: Scalar = quantity(
        "",
        "interposer area over the area of the dies and stacks on the interposer",
        bounds=(1, 5),
        kind="price",
    )
    interposer: Process


class Package(Declared):
    """Dies and memory stacks on an organic substrate or a silicon interposer."""

    process: Process
    packaging: Packaging
    technology: Weights = choice(
        "organic", "interposer", doc="carrier that dies and memory stacks are bonded onto"
    )
    dies: Scalar = quantity("", "compute dies per package", bounds=(1, 64), integer=True)
    die_area: Scalar = quantity("mm^2", "area of one compute die", bounds=(10, 1500))
    memory_stacks: Scalar = quantity("", "memory stacks on the package", bounds=(0, 64), integer=True)
    stack_area: Scalar = quantity("mm^2", "footprint of one memory stack", bounds=(1, 400))
    memory_price: Scalar = quantity(
        "USD/byte", "price of device memory per byte", bounds=(1e-11, 1e-6), kind="price"
    )
    assembly_price: Scalar = quantity(
        "USD", "price of test, assembly and everything else in the package", bounds=(1, 1e5), kind="price"
    )
