"""Assembly of a package: prices and yields of carriers, bonds, tests and assembly.

The formulas that turn these numbers into costs are in `diffperf.cost.package_cost`.
"""

from diffperf.hardware.process import Process
from diffperf.quantity import Declared, Label, Scalar, Weights, label, quantity, switch


class Layer(Declared):
    """A layer between pieces and substrate: a silicon interposer, a redistribution layer, or bridges."""

    name: Label = label("identifier of the layer, such as silicon-interposer")
    process: Process
    area_factor: Scalar = quantity(
        "",
        "area of the layer over the area of the dies and memory stacks that it connects",
        bounds=(0.01, 5),
        kind="price",
    )
    bonding_yield: Scalar = quantity(
        "",
        "yield of bonding one piece (die, memory stack) onto the layer",
        bounds=(0.5, 1),
        kind="price",
    )
    embedding_yield: Scalar = quantity(
        "", "yield of embedding one bridge in a substrate", bounds=(0.5, 1), default=1.0, kind="price"
    )


class Bond(Declared):
    """A way of stacking one die onto another."""

    name: Label = label("identifier of the bond between stacked dies, such as hybrid")
    price: Scalar = quantity(
        "USD/mm^2",
        "price of bonding a die onto another, through-silicon vias included, per area of the upper die",
        bounds=(0, 10),
        kind="price",
    )
    bonding_yield: Scalar = quantity(
        "", "yield of bonding one die onto another", bounds=(0.5, 1), kind="price"
    )


class Packaging(Declared):
    """Prices and yields of testing dies and of assembling dies and memory stacks into a package."""

    name: Label = label("identifier of the packaging, such as cowos-s")
    substrate_price: Scalar = quantity(
        "USD/mm^2", "price of organic substrate per area", bounds=(1e-5, 1), kind="price"
    )
    package_area_factor: Scalar = quantity(
        "",
        "substrate area over the area of what the substrate carries (dies and stacks, or a layer)",
        bounds=(1, 20),
        kind="price",
    )
    c4_bump_price: Scalar = quantity(
        "USD/mm^2", "price of C4 bumps per bumped area", bounds=(1e-5, 1), kind="price"
    )
    micro_bump_price: Scalar = quantity(
        "USD/mm^2", "price of micro-bumps onto a layer per bumped area", bounds=(1e-5, 1), kind="price"
    )
    organic_bonding_yield: Scalar = quantity(
        "",
        "yield of bonding one piece (die, memory stack, layer) onto a substrate",
        bounds=(0.5, 1),
        kind="price",
    )
    interposer: Layer
    fan_out: Layer
    bridge: Layer
    micro_bumps: Bond
    hybrid_bonds: Bond
    # Pitches and currents are estimates: C4 bumps are 100 to 180 µm apart, micro-bumps of interposers 40 to
    # 55 µm; electromigration limits currents to some 0.1 and 0.02 A.
    c4_pitch: Scalar = quantity("mm", "distance between C4 bumps", bounds=(0.01, 1), default=0.13)
    micro_bump_pitch: Scalar = quantity(
        "mm", "distance between micro-bumps", bounds=(0.001, 0.5), default=0.045
    )
    c4_current: Scalar = quantity("A", "current that a C4 bump may carry", bounds=(1e-3, 10), default=0.1)
    micro_bump_current: Scalar = quantity(
        "A", "current that a micro-bump may carry", bounds=(1e-4, 10), default=0.02
    )
    placement_price: Scalar = quantity(
        "USD",
        "price of picking, placing and bonding one piece (die, memory stack)",
        bounds=(0, 1e3),
        default=0.0,
        kind="price",
    )
    assembly_price: Scalar = quantity(
        "USD/mm^2",
        "price of assembly per area of the dies and memory stacks that the carrier holds",
        bounds=(0, 10),
        default=0.0,
        kind="price",
    )
    tester_price: Scalar = quantity(
        "USD/s", "price of the time of a tester", bounds=(0, 10), default=0.0, kind="price"
    )
    die_test: Scalar = quantity(
        "s/mm^2",
        "time to test a die on the wafer, per area",
        bounds=(0, 1e3),
        default=0.0,
        kind="price",
    )
    coverage: Scalar = quantity(
        "",
        "share of the defective dies that the test on the wafer rejects; the rest fails in the package",
        bounds=(0, 1),
        default=1.0,
        kind="price",
    )
    package_test: Scalar = quantity(
        "s/mm^2",
        "time to test a package, burn-in included, per area of its dies",
        bounds=(0, 1e3),
        default=0.0,
        kind="price",
    )
    substrate_design: Scalar = quantity(
        "USD/mm^2",
        "price of designing a substrate, per area",
        bounds=(0, 1e6),
        default=0.0,
        kind="price",
    )
    substrate_tooling: Scalar = quantity(
        "USD",
        "price of designing a substrate of any area: tools and qualification",
        bounds=(0, 1e9),
        default=0.0,
        kind="price",
    )
    bumps_per_design: Weights = switch(
        "micro-bumps paid once for each kind of die instead of for each die, as Chiplet Actuary counts them",
        default="off",
    )
