"""What an accelerator is made of and what the pieces cost: process, dies, stacks, package. Formulas are in `diffperf.cost`."""

import equinox as eqx

from diffperf.quantity import Label, Scalar, Weights, choice, label, quantity


class Process(eqx.Module):
    """A silicon process as a foundry sells it."""

    name: Label = label("node")
    wafer_price: Scalar = quantity("USD", "one processed 300 mm wafer", bounds=(100, 1e6), kind="price")
    defect_density: Scalar = quantity(
        "1/mm^2", "killer defects per die area", bounds=(1e-5, 1e-1), kind="price"
    )
    clustering: Scalar = quantity(
        "", "clustering parameter of the negative binomial yield", bounds=(0.5, 100), kind="price"
    )


class Packaging(eqx.Module):
    """Prices and yields of assembling dies and memory stacks into a package."""

    name: Label = label("identifier")
    substrate_price: Scalar = quantity("USD/mm^2", "organic substrate", bounds=(1e-5, 1), kind="price")
    c4_bump_price: Scalar = quantity("USD/mm^2", "C4 bumps, per area bumped", bounds=(1e-5, 1), kind="price")
    micro_bump_price: Scalar = quantity(
        "USD/mm^2", "micro-bumps onto an interposer, per area bumped", bounds=(1e-5, 1), kind="price"
    )
    organic_bonding_yield: Scalar = quantity(
        "", "yield of bonding one piece onto the substrate", bounds=(0.5, 1), kind="price"
    )
    interposer_bonding_yield: Scalar = quantity(
        "", "yield of bonding one piece onto the interposer", bounds=(0.5, 1), kind="price"
    )
    package_area_factor: Scalar = quantity(
        "", "substrate area per area of what it carries", bounds=(1, 20), kind="price"
    )
    interposer_area_factor: Scalar = quantity(
        "", "interposer area per area of dies and stacks", bounds=(1, 5), kind="price"
    )
    interposer: Process


class Package(eqx.Module):
    """Dies and memory stacks on an organic substrate or a silicon interposer."""

    process: Process
    packaging: Packaging
    technology: Weights = choice("organic", "interposer", doc="what the dies are bonded on")
    dies: Scalar = quantity("", "compute dies per package", bounds=(1, 64), integer=True)
    die_area: Scalar = quantity("mm^2", "area of one compute die", bounds=(10, 1500))
    memory_stacks: Scalar = quantity("", "memory stacks on the package", bounds=(0, 64), integer=True)
    stack_area: Scalar = quantity("mm^2", "footprint of one memory stack", bounds=(1, 400))
    memory_price: Scalar = quantity("USD/byte", "device memory", bounds=(1e-11, 1e-6), kind="price")
    assembly_price: Scalar = quantity(
        "USD", "test, assembly and everything else in the package", bounds=(1, 1e5), kind="price"
    )
