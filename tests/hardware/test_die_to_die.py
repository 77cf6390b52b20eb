"""Links between the dies of a package: what crosses them, counted request by request, and what they take."""

import itertools

import numpy as np
import pytest

from diffperf.hardware.chip import chip, filled_units, links_between_dies
from diffperf.hardware.designed_accelerator import accelerator_of, design_of
from diffperf.hardware.technology import LinkTechnology
from diffperf.load import load, load_system, load_technology
from diffperf.quantity import replace

STACK = 408e9  # byte/s of a stack of HBM2E (configs/memories/hbm2e.toml)


@pytest.fixture(scope="module")
def parts():
    """A technology, a system, and a package of six stacks and two dies, whose links are as wide as needed."""
    technology, system = load_technology("n7-hbm2e"), load_system("dgx-a100", 8)
    design = replace(design_of(system, technology), {"dies": 2.0, "memory_stacks": 6.0})
    return technology, system.accelerator, design


def crossing_bytes(dies: int, stacks: int) -> float:
    """byte/s into one die from stacks of other dies, where every die asks all stacks alike: by counting."""
    beside = np.arange(stacks) * dies // stacks  # the die that a stack lies at
    asked = STACK / dies  # of a stack by each die
    return sum(asked for die, stack in itertools.product([0], range(stacks)) if beside[stack] != die)


@pytest.mark.parametrize(("dies", "stacks"), [(1, 6), (2, 6), (3, 6), (4, 8), (8, 8)])
def test_what_crosses_is_what_dies_ask_of_stacks_of_others(parts, dies, stacks):
    technology, _, design = parts
    links = links_between_dies(replace(design, {"dies": dies, "memory_stacks": stacks}), technology)
    assert float(links.needed) == pytest.approx(crossing_bytes(dies, stacks), rel=1e-6)
    assert float(links.bandwidth) == float(links.needed)
    assert float(links.delivered_share) == 1


def test_links_as_wide_as_needed_slow_nothing_and_others_in_proportion(parts):
    technology, template, design = parts
    needed = float(links_between_dies(design, technology).needed)
    full = float(accelerator_of(design, technology, template).device_memory.bandwidth)
    assert full == pytest.approx(6 * STACK, rel=1e-6)
    for share, delivered in ((0.25, 0.25), (0.5, 0.5), (1.0, 1.0), (3.0, 1.0)):
        chosen = replace(design, {"die_to_die_bandwidth": share * needed})
        made = accelerator_of(chosen, technology, template).device_memory
        assert float(made.bandwidth) == pytest.approx(delivered * full, rel=1e-5)
        area = float(chip(chosen, technology, template).die_to_die_area)
        assert area == pytest.approx(share * needed / 675e9, rel=1e-5)


def test_a_byte_pays_for_the_way_to_other_dies(parts):
    """Three of four bytes lie beside another of four dies: 0.75 × 2 pJ/byte and 0.75 × 2 ns of UCIe."""
    technology, template, design = parts
    one, four = (
        accelerator_of(replace(design, {"dies": dies}), technology, template).device_memory for dies in (1, 4)
    )
    assert float(four.energy - one.energy) == pytest.approx(0.75 * 2e-12, rel=1e-3)
    assert float(four.latency - one.latency) == pytest.approx(0.75 * 2e-9, rel=1e-3)


def test_a_single_die_has_no_links(parts):
    technology, template, design = parts
    for chosen in (0.0, 1e12):
        alone = replace(design, {"dies": 1.0, "die_to_die_bandwidth": chosen})
        made = chip(alone, technology, template)
        assert float(made.die_to_die_area) == float(made.die_to_die_power) == 0
        level = accelerator_of(alone, technology, template).device_memory
        assert float(level.bandwidth) == pytest.approx(6 * STACK, rel=1e-6)


def test_units_fill_what_links_leave(parts):
    """The inverse of `chip` in the number of units, whatever the links."""
    technology, template, design = parts
    for dies, chosen in ((1.0, 0.0), (2.0, 0.0), (4.0, 5e11)):
        wanted = replace(design, {"dies": dies, "die_to_die_bandwidth": chosen})
        made = chip(wanted, technology, template)
        units = filled_units(made.die_area, wanted, technology, template)
        assert float(units) == pytest.approx(float(wanted.compute_units), rel=1e-4)


def test_organic_packages_have_larger_links(parts):
    """Of UCIe, a standard package's links take 675 / 62.5 times the area and twice the energy."""
    technology, template, design = parts
    standard = load_technology("n7-hbm2e", die_to_die="ucie-standard")
    near, far = (chip(design, links, template) for links in (technology, standard))
    assert float(far.die_to_die_area / near.die_to_die_area) == pytest.approx(675 / 62.5, rel=1e-4)
    assert float(far.die_to_die_power / near.die_to_die_power) == pytest.approx(2, rel=1e-4)
    assert str(load(LinkTechnology, "ucie-standard").name) == str(standard.die_to_die.name)
