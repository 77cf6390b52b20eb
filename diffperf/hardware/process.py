"""A silicon process as a foundry sells it: prices of wafers, masks and designs, defects, geometry, carbon.

The formulas that turn these numbers into yields, costs and emissions are in `diffperf.cost`.
"""

from diffperf.quantity import Declared, Label, Scalar, Weights, choice, label, quantity


class Process(Declared):
    """A silicon process as a foundry sells it."""

    name: Label = label("identifier of the silicon process, such as tsmc-n7")
    wafer_price: Scalar = quantity("USD", "price of one processed wafer", bounds=(100, 1e6), kind="price")
    defect_density: Scalar = quantity(
        "1/mm^2", "killer defects per area of a die", bounds=(1e-7, 1e-1), kind="price"
    )
    clustering: Scalar = quantity(
        "", "clustering parameter of the negative binomial yield of dies", bounds=(0.5, 100), kind="price"
    )
    yield_model: Weights = choice(
        "negative_binomial",
        "poisson",
        "murphy",
        "seeds",
        doc="formula for the share of dies without a defect",
        default="negative_binomial",
    )
    critical_share: Scalar = quantity(
        "", "share of the die area in which a defect is fatal", bounds=(0.01, 1), default=1.0, kind="price"
    )
    line_yield: Scalar = quantity(
        "", "share of started wafers that leave the line", bounds=(0.1, 1), default=1.0, kind="price"
    )
    wafer_diameter: Scalar = quantity(
        "mm", "diameter of the wafer", bounds=(100, 500), default=300.0, kind="price"
    )
    # Scribe lane and edge loss: Chiplet Actuary (Feng and Ma, DAC 2022), parameter.ini.
    scribe_lane: Scalar = quantity(
        "mm", "distance between neighbouring dies of a wafer", bounds=(0, 2), default=0.2, kind="price"
    )
    edge_loss: Scalar = quantity(
        "mm", "width of the rim of a wafer without dies", bounds=(0, 20), default=5.0, kind="price"
    )
    reticle: Scalar = quantity(
        "mm^2",
        "largest area that one exposure of a scanner covers",
        bounds=(50, 1e5),
        default=858.0,  # 26 mm × 33 mm, the full field of ASML's scanners
        kind="price",
    )
    stitching_yield: Scalar = quantity(
        "",
        "yield of joining one more exposure field to a die that is larger than the reticle",
        bounds=(0.1, 1),
        default=1.0,
        kind="price",
    )
    module_design: Scalar = quantity(
        "USD/mm^2",
        "price of designing and verifying the modules of a die, per area",
        bounds=(0, 1e8),
        default=0.0,
        kind="price",
    )
    chip_design: Scalar = quantity(
        "USD/mm^2",
        "price of putting modules together into a die, per area of the die",
        bounds=(0, 1e8),
        default=0.0,
        kind="price",
    )
    carbon: Scalar = quantity(
        "kg/mm^2",
        "CO2e of making a wafer of the process, with its materials and gases, per area of the wafer",
        bounds=(1e-5, 0.05),
        default=1.44e-2,  # 7 nm: imec.netzero, as facebookresearch/ACT gives it
        kind="price",
    )
    masks: Scalar = quantity(
        "USD", "price of one mask set with its tape-out", bounds=(0, 1e10), default=0.0, kind="price"
    )
    ip: Scalar = quantity(
        "USD", "price of the licensed blocks of one die design", bounds=(0, 1e10), default=0.0, kind="price"
    )
