"""Effect of one more and one less of a whole-number input, by estimates with the changed number.

The derivative of an estimate by a whole number lives on plateaus of ceil: it says what a hundredth of a
compute unit is worth, not what one is. These are secants instead. Lengths and dimensions that are whole tiles
change by a tile: kernels pad one token more to as many.
"""

import dataclasses
import math
from collections.abc import Collection

import numpy as np

from diffperf.explore.points import outputs_at
from diffperf.hardware.designed_accelerator import paths_in_proportion_to_units
from diffperf.quantity import Quantity, numeric
from diffperf.workload.configuration import Configuration

UNITS = "system.accelerator.compute_units"
DEVICES = "system.n_devices"
DEGREES = ("strategy.tp", "strategy.cp", "strategy.pp", "strategy.dp")  # they multiply to the devices
# A tile: tokens, and columns of a matrix, that GEMM kernels work on at least (tiles of 128 × 128 of CUTLASS's
# default configurations, github.com/NVIDIA/cutlass). Inputs of several tiles change by one of them.
TILE = 128
_SEVERAL_TILES = 8 * TILE


@dataclasses.dataclass(frozen=True)
class WholeStep:
    """An estimate with one more or one less of an input.

    - `path`, `declared`, `value`: the input, and its value before.
    - `step`: the change, such as "+1" or "−128".
    - `elasticity`: relative change of the output over that of the input, in logarithms.
    """

    path: str
    declared: Quantity
    value: float
    step: str
    elasticity: float


def whole_numbers(configuration: Configuration) -> dict[str, tuple[Quantity, float]]:
    """The inputs that are whole numbers in reality and have a value of at least 1, by path."""
    return {
        path: (declared, float(value))
        for path, (declared, value) in numeric(configuration).items()
        if declared.integer and float(value) >= 1
    }


def changes_of(path: str, value: float) -> dict[str, float]:
    """The two changes of a whole-number input, by name: by a tile of 128 for lengths and dimensions of eight
    and more whole tiles, by one for all else.
    """
    tiles = not path.startswith("system.") and value >= _SEVERAL_TILES and value % TILE == 0
    size = TILE if tiles else 1
    return {f"+{size}": float(size), f"−{size}": float(-size)}


def tied_inputs(configuration: Configuration, path: str) -> list[str]:
    """The inputs that change in proportion to an input: with a compute unit, what it brings; with a degree,
    the devices that it takes.
    """
    if path in DEGREES:
        return [DEVICES]
    if path != UNITS:
        return []
    inside = paths_in_proportion_to_units(configuration.system.accelerator)
    return [f"system.accelerator.{name}" for name in inside]


def describe_kept_rates(given: Collection[str], name: str) -> list[str]:
    """A line where compute units of an accelerator of this name are given without what they bring; none
    where other inputs of it are given too. `given` are the paths of inputs.
    """
    rates = tuple(UNITS.replace("compute_units", part) for part in ("matrix.", "vector"))
    if UNITS not in given or any(path.startswith(rates) for path in given):
        return []
    return [
        f"Rates are kept: the FLOP/s of {name} are shared by other numbers of compute units, where"
        " sensitivity over ranges and breakeven scale them along"
    ]


def whole_steps(
    configuration: Configuration, phase: str, output: str, groups: tuple[str, ...] = ("system",)
) -> list[WholeStep]:
    """One more and one less of every whole-number input of some groups: what they do to an output."""
    return whole_steps_of_outputs(configuration, phase, (output,), groups).get(output, [])


def whole_steps_of_outputs(
    configuration: Configuration, phase: str, wanted: tuple[str, ...], groups: tuple[str, ...] = ("system",)
) -> dict[str, list[WholeStep]]:
    """One more and one less of every whole-number input of some groups, as far as bounds allow, by output.

    Of the wanted outputs, those are left out that the phase does not report, or that are 0.

    A compute unit brings its arithmetic rates, and its bandwidth to and bytes of the innermost memory; its
    port to the last cache too. Area, power and price stay. A degree brings the devices that it takes.
    """
    inputs = numeric(configuration)
    asked = [
        (path, declared, value, name, value + step)
        for path, (declared, value) in whole_numbers(configuration).items()
        if path.split(".")[0] in groups
        for name, step in changes_of(path, value).items()
        if max(declared.bounds[0], 1.0) <= value + step <= declared.bounds[1]
    ]
    if not asked:
        return {}
    changes: dict[str, np.ndarray] = {}
    for place, (path, _, value, _, after) in enumerate(asked):
        ratio = after / value
        for changed in (path, *tied_inputs(configuration, path)):
            own = float(inputs[changed][1])
            column = changes.setdefault(changed, np.full(len(asked) + 1, own))
            column[place] = own * ratio
    values_of_outputs = outputs_at(configuration, changes, phase)
    steps = {}
    for output in values_of_outputs.keys() & set(wanted):
        *changed_values, before = values_of_outputs[output].tolist()
        if before:
            steps[output] = [
                WholeStep(
                    path=path,
                    declared=declared,
                    value=value,
                    step=name,
                    elasticity=_elasticity(before, after, value, changed),
                )
                for (path, declared, value, name, changed), after in zip(asked, changed_values, strict=True)
            ]
    return steps


def _elasticity(before: float, after: float, old: float, new: float) -> float:
    """Δ log(output) / Δ log(input); for outputs that change their sign, relative to the output before."""
    grown = math.log(after / before) if after / before > 0 else after / before - 1
    return grown / math.log(new / old)
