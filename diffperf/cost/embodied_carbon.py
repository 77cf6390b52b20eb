"""CO2e of making a package: the wafers of its dies and carrier, and its memory.

What a package emits adds up as what it costs does: wafers, dies that do not work, stacks that assembly loses.
So the formulas are those of `diffperf.cost.package_cost`, with the carbon of a wafer in place of its price.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from diffperf.cost.package_cost import assembled_cost
from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.package import Package
from diffperf.hardware.packaging import Packaging
from diffperf.hardware.process import Process
from diffperf.quantity import Scalar
from diffperf.relax import Relaxation

# What is bought by a price that says nothing about carbon: the work of assembly and tests, bumps, bonds and
# the organic substrate, whose emissions are a few per cent of a package's (an estimate) and not counted.
_UNCOUNTED = (
    "substrate_price", "c4_bump_price", "micro_bump_price", "placement_price", "assembly_price",
    "tester_price",
)  # fmt: skip


def package_carbon(accelerator: Accelerator, relax: Relaxation) -> Scalar:
    """kg of CO2e of making one good package with its memory.

    **Source:** carbon per area of wafers and per byte of memory, over yields: Gupta et al., ACT (ISCA 2022).
    """
    package = accelerator.package
    memory = accelerator.device_memory.capacity * package.memory_carbon
    storage = accelerator.storage_capacity * package.storage_carbon
    return assembled_cost(_priced_in_carbon(package), memory, storage, relax).total


def _priced_in_carbon(package: Package) -> Package:
    """The package with kg of CO2e in place of USD."""
    dies = tuple(dataclasses.replace(die, process=_in_carbon(die.process)) for die in package.dies)
    return dataclasses.replace(
        package,
        dies=dies,
        packaging=_packaging_in_carbon(package.packaging),
        board_price=jnp.zeros_like(package.board_price),
    )


def _packaging_in_carbon(packaging: Packaging) -> Packaging:
    """The packaging of which only the wafers of its layers emit anything."""
    layers = {
        name: dataclasses.replace(layer, process=_in_carbon(layer.process))
        for name in ("interposer", "fan_out", "bridge")
        for layer in [getattr(packaging, name)]
    }
    bonds = {
        name: dataclasses.replace(bond, price=jnp.zeros_like(bond.price))
        for name in ("micro_bumps", "hybrid_bonds")
        for bond in [getattr(packaging, name)]
    }
    free = jax.tree.map(jnp.zeros_like, {name: getattr(packaging, name) for name in _UNCOUNTED})
    return dataclasses.replace(packaging, **layers, **bonds, **free)


def _in_carbon(process: Process) -> Process:
    """The process with the CO2e of a wafer in kg as the price of a wafer."""
    wafer = math.pi / 4 * process.wafer_diameter**2  # mm²
    return dataclasses.replace(process, wafer_price=process.carbon * wafer)
