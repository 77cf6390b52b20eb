"""CO2e of making a package: against a count by hand, and against published footprints."""

import math

import jax
import pytest

from diffperf.cost.embodied_carbon import package_carbon
from diffperf.cost.wafers import dies_per_wafer
from diffperf.cost.yields import die_yield
from diffperf.hardware.accelerator import Accelerator
from diffperf.load import load, load_system
from diffperf.quantity import real, replace
from diffperf.relax import Exact

# What is neither memory nor circuits, a third, of a board of eight H100 (NVIDIA, HGX H100 PCF Summary): kg a
# device.
BOARD_AND_COOLER = 54


@jax.jit
def carbon(accelerator: Accelerator):
    return package_carbon(accelerator, Exact())


def test_a_die_on_an_organic_substrate_by_hand():
    """A graphics card's die: the wafer's CO2e over its working dies, over the bonds that hold, and memory on
    the board, which no bond of the package loses."""
    card = load(Accelerator, "rtx-3090")
    (die,) = card.package.dies
    plain = replace(card, {"package.dies.compute.spare_units": 0.0, "package.packaging.coverage": 1.0})
    wafer = math.pi * 150**2 * float(die.process.carbon)
    works = float(die_yield(die.area, die.process))
    made = wafer / float(dies_per_wafer(die.area, die.process)) / works
    memory = float(card.device_memory.capacity * card.package.memory_carbon)
    bonded = float(card.package.packaging.organic_bonding_yield)
    assert float(carbon(plain)) == pytest.approx(made / bonded + memory, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        (
            "h100-sxm5-80gb",
            1312 / 8,
        ),  # NVIDIA, HGX H100 PCF Summary, which the figure by GB is from
        ("a100-sxm4-40gb", 127.6),  # Falk et al. (2025), by ISO 14040, cradle to gate
    ],
)
def test_published_footprints(name, published):
    made = float(carbon(load(Accelerator, name))) + BOARD_AND_COOLER
    assert made == pytest.approx(published, rel=0.1)


def test_slopes_are_those_of_differences():
    """By the area of a die, the carbon of its wafers and that of memory."""
    accelerator = load_system("dgx-h100").accelerator
    paths = ("package.dies.compute.area", "package.dies.compute.process.carbon", "package.memory_carbon")

    def at(path: str, value):
        return package_carbon(replace(accelerator, {path: value}), Exact())

    for path in paths:
        value = float(_value(accelerator, path))
        slope = float(jax.grad(lambda x, path=path: at(path, x))(real(value)))
        step = 1e-4 * value
        difference = float(at(path, value + step) - at(path, value - step)) / (2 * step)
        assert slope > 0
        assert slope == pytest.approx(difference, rel=1e-6)


def _value(accelerator: Accelerator, path: str):
    package = accelerator.package
    return {
        "package.dies.compute.area": package.dies[0].area,
        "package.dies.compute.process.carbon": package.dies[0].process.carbon,
        "package.memory_carbon": package.memory_carbon,
    }[path]
