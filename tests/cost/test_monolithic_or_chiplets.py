"""The study of one die against chiplets: crossovers, volumes and slopes against formulas by hand."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import study_module

economics = study_module("monolithic_or_chiplets", "economics")
Kind, Production = economics.Kind, economics.Production

# Chiplet Actuary's parameter.ini: USD a wafer, defects per cm², USD of design for 300 mm².
NODES = {"14": (3984.0, 0.08, 106e6), "7": (9346.0, 0.09, 298e6), "5": (16988.0, 0.11, 542e6)}
LAYERS = {"FO": (1200.0, 0.05, 3, 1.2, 0.98), "SI": (1937.0, 0.06, 6, 1.1, 0.95)}


def wafer_share(area, wafer, defects, clustering):
    """(USD of a die, share that works): §3 of the paper; 300 mm wafers, 5 mm of edge, lanes of 0.2 mm."""
    outer = area + 2 * 0.2 * np.sqrt(area) + 0.2**2
    count = math.pi * 145**2 / outer - math.pi * 290 / np.sqrt(2 * outer)
    return wafer / count, (1 + defects / 100 * area / clustering) ** -clustering


def by_hand(kind, modules):
    """USD of making a system of `modules` mm² by the paper's formulas, chip-last, in plain NumPy."""
    wafer, defects, _ = NODES[kind.node]
    chip = modules / kind.chips * (1.1 if kind.chips > 1 else 1.0)
    raw, works = wafer_share(chip, wafer, defects, 10)
    silicon, carried = kind.chips * raw / works, kind.chips * chip
    if kind.packaging == "OS":
        dense = np.where(4 * carried > 900, 2.0, np.where(4 * carried > 289, 1.75, 1.5))
        substrate = 4 * carried * 0.005 * (dense if kind.chips > 1 else 1.0)
        return (silicon + 0.005 * carried + substrate) / 0.99**kind.chips
    wafer, defects, clustering, scale, bonding = LAYERS[kind.packaging]
    area = scale * carried
    layer, works = wafer_share(area, wafer, defects, clustering)
    bonds, last = bonding**kind.chips, 0.99
    layer, substrate = layer + 0.005 * area, 4 * area * 0.005
    return layer / (works * bonds * last) + substrate / last + (silicon + 0.01 * carried) / (bonds * last)


def design_by_hand(kind, modules):
    """USD of design on an organic substrate, every chip of its own: §3.3 of the paper."""
    price = NODES[kind.node][2]
    chip = modules / kind.chips * (1.1 if kind.chips > 1 else 1.0)
    interface = 0.5 * price / 300 * 20 if kind.chips > 1 else 0.0
    chips = kind.chips * (0.3 * price / 300 * chip + 0.2 * price)
    substrate = 4 * kind.chips * chip
    layers = 1.0 if kind.chips == 1 else 2.0 if substrate > 900 else 1.75 if substrate > 289 else 1.5
    return 0.5 * price / 300 * modules + interface + chips + substrate * 3e3 * layers + 3e5


def crossing_by_brute_force(kind, volume=np.inf, step=0.01):
    """The last area of a fine grid at which one die is cheaper, and the next: by hand."""
    areas, one_die = np.arange(100.0, 900.0 + step / 2, step), Kind(kind.node, "OS", 1)
    extra = by_hand(kind, areas) - by_hand(one_die, areas)
    if np.isfinite(volume):
        design = [design_by_hand(kind, area) - design_by_hand(one_die, area) for area in areas]
        extra = extra + np.array(design) / volume
    dearer = np.flatnonzero(extra >= 0)
    assert len(dearer), "chiplets are cheaper everywhere"
    return (areas[dearer[-1]], areas[dearer[-1] + 1]) if dearer[-1] + 1 < len(areas) else None


@pytest.mark.slow
@pytest.mark.parametrize("split", economics.SPLITS, ids=str)
def test_crossovers_of_manufacturing(split):
    found, expected = economics.crossover(economics.pair_of(split)), crossing_by_brute_force(split)
    if expected is None:
        assert found is None
    else:
        assert expected[0] <= found <= expected[1]
        # A root, not a jump of the price of a substrate.
        assert by_hand(split, found) == pytest.approx(by_hand(Kind(split.node, "OS", 1), found), rel=1e-9)


@pytest.mark.parametrize("node", ["7", "5"])
@pytest.mark.parametrize("volume", [2e6, 1e7])
def test_crossovers_with_design(node, volume):
    split = Kind(node, "OS", 3)
    low, high = crossing_by_brute_force(split, volume, step=0.1)
    assert low <= economics.crossover(economics.pair_of(split), Production(1 / volume)) <= high


def test_brute_force_sees_a_wrong_price(monkeypatch):
    """The tests above can fail: 1 % more defects move every crossover by far more than the grid's step."""
    wafer, defects, design = NODES["5"]
    monkeypatch.setitem(NODES, "5", (wafer, 1.01 * defects, design))
    split = Kind("5", "OS", 2)
    low, _ = crossing_by_brute_force(split)
    assert economics.crossover(economics.pair_of(split)) - low > 1.0


def test_break_even_volume():
    """At that volume, making and designing cost the same; an area without a saving has none."""
    split, one_die = Kind("5", "OS", 2), Kind("5", "OS", 1)
    for area, pays in ((800.0, True), (150.0, False)):
        prices = [economics.price(kind.package(), jnp.asarray(area)) for kind in (one_die, split)]
        volume = float(economics.break_even_volume(*prices))
        design = design_by_hand(split, area) - design_by_hand(one_die, area)
        assert np.isfinite(volume) == pays
        if pays:
            saved = by_hand(one_die, area) - by_hand(split, area)
            assert volume == pytest.approx(design / saved, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("split", [Kind("5", "SI", 3), Kind("7", "FO", 2), Kind("14", "OS", 5)], ids=str)
def test_elasticities_are_those_of_crossovers_found_again(split):
    pair, change = economics.pair_of(split), 1e-4
    slopes = economics.elasticities(pair, economics.crossover(pair))
    # Where every price rises alike, nothing moves.
    by = dict(zip(economics.FACTORS, slopes, strict=True))
    assert by["wafer price"] + by["carrier prices"] == pytest.approx(0, abs=1e-9)
    for index, slope in enumerate(slopes):
        factors = np.ones((2, len(slopes)))
        factors[:, index] += (change, -change)
        more, less = (economics.crossover(pair, Production(factors=row)) for row in factors)
        assert slope == pytest.approx(math.log(more / less) / (2 * change), rel=1e-5)


def test_slopes_in_area():
    kind, step = Kind("5", "FO", 3), 1e-3
    slope = float(economics.slopes(kind.package(), jnp.asarray(600.0)).sum())
    difference = (by_hand(kind, 600 + step) - by_hand(kind, 600 - step)) / (2 * step)
    assert slope == pytest.approx(float(difference), rel=1e-6)


@pytest.mark.parametrize("chips", [2, 3, 5])
def test_crossovers_fall_with_the_node_and_rise_with_the_package(chips):
    """As published: chiplets pay sooner on advanced nodes, later in advanced packages."""
    area = {
        (node, packaging): economics.crossover(economics.pair_of(Kind(node, packaging, chips))) or math.inf
        for node in NODES
        for packaging in ("OS", "FO", "SI")
    }
    assert area["5", "OS"] < area["7", "OS"] < area["14", "OS"]
    assert area["5", "OS"] < area["5", "FO"] < area["5", "SI"]
