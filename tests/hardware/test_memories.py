"""Memory and link technologies against the standards that they follow."""

import itertools

import pytest

from diffperf.errors import ConfigError
from diffperf.hardware.technology import LinkTechnology, MemoryTechnology
from diffperf.load import available, load

# Bits of data of a stack, a chip or a channel, and Gbit/s a pin: JEDEC's standards (LPDDR6: 24 bits, 8/9 of
# them data). HBM2E, HBM3 and HBM3E run below the standard's rate in shipped accelerators.
STANDARDS = {
    "hbm2": (1024, 2.0, 1.0),
    "hbm2e": (1024, 3.6, 0.88),
    "hbm3": (1024, 6.4, 0.82),
    "hbm3e": (1024, 9.2, 0.85),
    "hbm4": (2048, 8.0, 1.0),
    "hbm4e": (2048, 10.0, 1.0),
    "gddr6": (32, 16.0, 1.0),
    "gddr7": (32, 32.0, 1.0),
    "lpddr5": (32, 6.4, 1.0),
    "lpddr5x": (32, 8.533, 1.0),
    "lpddr6": (24 * 8 / 9, 14.4, 1.0),
    "ddr5": (64, 6.4, 1.0),
}


# Memories without a standard, whose figures are estimates of research.
RESEARCH = {"hbs", "cryo-dram"}


def test_every_memory_has_a_standard():
    assert set(available("memories")) == set(STANDARDS) | RESEARCH


@pytest.mark.parametrize("name", STANDARDS)
def test_bandwidth_is_the_standards(name):
    bits, gigabits, shipped = STANDARDS[name]
    bandwidth = float(load(MemoryTechnology, name).stack_bandwidth)
    assert bandwidth / (bits * gigabits * 1e9 / 8) == pytest.approx(shipped, abs=0.01)


def test_stacks_are_on_the_package_and_all_other_memory_on_the_board():
    stacked = {name for name in STANDARDS if name.startswith("hbm")} | RESEARCH
    for name in available("memories"):
        assert float(load(MemoryTechnology, name).placement.package) == (name in stacked)


def test_a_stack_on_the_package_has_an_area():
    table = {"extends": "lpddr5x", "placement": "package"}
    with pytest.raises(ConfigError, match='say placement = "board"'):
        load(MemoryTechnology, table)


def test_generations_of_hbm_improve():
    names = ("hbm2", "hbm2e", "hbm3", "hbm3e", "hbm4", "hbm4e")
    for older, newer in itertools.pairwise(load(MemoryTechnology, name) for name in names):
        assert newer.stack_bandwidth > older.stack_bandwidth
        assert newer.stack_capacity >= older.stack_capacity
        assert newer.energy <= older.energy


def test_links_by_reach():
    """Between dies of a package links are denser and take less energy than off it; NVLink doubles."""
    off_package = [load(LinkTechnology, name) for name in ("nvlink3", "nvlink4", "nvlink5")]
    for older, newer in itertools.pairwise(off_package):
        assert float(newer.edge_density / older.edge_density) == pytest.approx(2, rel=0.05)
    within = [load(LinkTechnology, name) for name in ("ucie-standard", "ucie-advanced")]
    assert all(float(link.energy) < 0.1 * float(off_package[-1].energy) for link in within)
    assert float(within[1].energy) * 1e12 == pytest.approx(8 * 0.25)  # UCIe 1.0 white paper: 0.25 pJ/bit
    assert all(link.latency <= 2e-9 for link in within)
