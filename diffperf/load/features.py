"""Numbers of a training stack that nobody has measured: those of measured stacks with the same features.

The file of a stack says under `features` how the software works. These features decide about numbers that
only measured runs give:

    [features]
    kernels = "eager"        # elementwise_traffic
    host = "launches"        # host_launch, head_launch
    sharding = "fsdp"        # collective_units

    launches = 31            # kernels of a forward pass of a layer, by which a launch time is scaled

A stack whose `basis` is measured runs lists there, under `fitted`, which of its numbers were fitted to its
own runs, and under `software` what it is called: stacks of the same software count once. All other stacks
with features take each number that their files leave out from the measured ones with the same feature;
`matrix_efficiency` and `attention_efficiency` from all of them. Where no measured stack has the feature, the
number has the default of `Stack`.

How far such numbers are off is the table `frameworks_left_out` of studies/stacks, which treats each software
in turn as if nobody had measured it.
"""

import dataclasses
import functools
import math
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from diffperf.errors import ConfigError, did_you_mean
from diffperf.load.checks import checked_number, shown
from diffperf.load.extending import Origin
from diffperf.load.files import available, config_root, display, read_toml
from diffperf.quantity import Quantity, declaration
from diffperf.software.stack import MEASURED, Stack

# The features, and what each may be.
FEATURES = {
    # Element-wise operations run as they are written (PyTorch without a compiler), in kernels that a library
    # has fused (Megatron, Transformer Engine), or in kernels that a compiler makes (XLA, Inductor).
    "kernels": ("eager", "fused", "compiled"),
    # The host launches every kernel, a graph of the kernels of a layer, or the program of a whole step.
    "host": ("launches", "graphs", "program"),
    # Data-parallel ranks hold whole layers (Megatron), gather each layer's weights before they use it (FSDP,
    # ZeRO stage 3), or a compiler places collectives, which units of their own drive (XLA on TPUs).
    "sharding": ("whole_layers", "fsdp", "xla"),
}
# The numbers that measured stacks give unmeasured ones, and the feature that decides about each; None for
# those that all measured stacks give.
DECIDED_BY = {
    "matrix_efficiency": None,
    "attention_efficiency": None,
    "elementwise_traffic": "kernels",
    "host_launch": "host",
    "head_launch": "host",
    "collective_units": "sharding",
}
_SOFTWARE, _FITTED, _LAUNCHES = "software", "fitted", "launches"
# The number that grows with the kernels of a layer's pass, and how many of these Megatron-LM launches with
# tensor parallelism: the sixteen that `diffperf.estimate.stage_time` counts.
_LAUNCH_TIME, _MEGATRONS_LAUNCHES = "host_launch", 16.0


@dataclasses.dataclass(frozen=True)
class MeasuredStack:
    """A shipped stack that was fitted to runs of its own.

    - `software`: what its software is called; several stacks may be versions of one.
    - `features`: text of each feature that the stack's file names.
    - `launches`: kernels that the host launches for a forward pass of a layer with tensor parallelism.
    - `fitted`: the numbers that were fitted to runs of the stack, in internal units.
    """

    name: str
    software: str
    features: dict[str, str]
    launches: float
    fitted: dict[str, float]


@functools.cache
def measured_stacks() -> tuple[MeasuredStack, ...]:
    """The shipped training stacks that name their features and what was fitted to their runs.

    **Raises:** `ConfigError` for features that do not exist, and for a fitted number that the file lacks.
    """
    folder = config_root() / "stacks"
    stacks = (_measured_stack(folder / f"{name}.toml") for name in available("stacks"))
    return tuple(stack for stack in stacks if stack is not None)


def _measured_stack(path: Path) -> MeasuredStack | None:
    """The measured stack of a file; None for a file without the numbers that were fitted."""
    table, origin = read_toml(path), Origin(display(path), path.parent)
    if _FITTED not in table.get("features", {}):
        return None
    features = checked_features(table["features"], "features.", origin)
    fitted = {}
    for key in table["features"][_FITTED]:
        if key not in table:
            expected, remedy = "the name of a number in this file", "give the number or leave its name out"
            raise origin.error(f"features.{_FITTED}", shown(key), expected, remedy)
        fitted[key] = checked_number(_declared(key), table[key], origin.file, key)
    launches = checked_launches(table["features"], "features.", origin)
    return MeasuredStack(path.stem, table["features"][_SOFTWARE], features, launches, fitted)


def checked_features(table: Any, prefix: str, origin: Origin) -> dict[str, str]:
    """The features of a stack by name, from the table `features` of its file.

    **Raises:** `ConfigError` for a feature that does not exist, or that is not what its text says.
    """
    if not isinstance(table, dict):
        expected = "a table of features"
        raise origin.error(prefix.rstrip("."), shown(table), expected, "write it as a TOML table")
    features = {key: value for key, value in table.items() if key not in (_SOFTWARE, _FITTED, _LAUNCHES)}
    for key, value in features.items():
        if key not in FEATURES:
            expected, hint = f"one of {', '.join(FEATURES)}", did_you_mean(key, list(FEATURES))
            raise origin.error(prefix + key, f'unknown feature "{key}"', expected, hint)
        if value not in FEATURES[key]:
            expected = f"one of {', '.join(FEATURES[key])}"
            hint = did_you_mean(str(value), list(FEATURES[key]))
            raise origin.error(prefix + key, shown(value), expected, hint)
    return features


def checked_launches(table: dict[str, Any], prefix: str, origin: Origin) -> float:
    """Kernels that the host launches for a forward pass of a layer, from the table `features` of a stack's
    file; those of Megatron-LM where it does not say.

    **Raises:** `ConfigError` for what is no number above 0.
    """
    launches = table.get(_LAUNCHES, _MEGATRONS_LAUNCHES)
    if isinstance(launches, bool) or not isinstance(launches, int | float) or not launches > 0:
        expected = "a number of kernels above 0"
        raise origin.error(prefix + _LAUNCHES, shown(launches), expected, "count those of a forward pass")
    return float(launches)


def typical_numbers(
    features: dict[str, str], launches: float = _MEGATRONS_LAUNCHES, without: str = ""
) -> dict[str, float]:
    """The numbers, in internal units, of a stack with some features that nobody has measured.

    Each is the median of the logarithms over measured software, each software with the mean of its stacks;
    one that no measured software with the same feature has is left out. The launch time of a pass goes with
    the kernels that the host launches for it.

    `without` is a software that does not count, as if nobody had measured it.
    """
    logarithms: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for stack in measured_stacks():
        if stack.software == without:
            continue
        for key in stack.fitted.keys() & DECIDED_BY.keys():
            feature = DECIDED_BY[key]
            if feature is None or features.get(feature) == stack.features.get(feature, ""):
                kernels = launches / stack.launches if key == _LAUNCH_TIME else 1.0
                logarithms[key][stack.software].append(math.log(stack.fitted[key] * kernels))
    return {
        key: math.exp(statistics.median(map(statistics.mean, of_software.values())))
        for key, of_software in logarithms.items()
    }


def with_typical_numbers(table: dict[str, Any], prefix: str, origin: Origin) -> dict[str, Any]:
    """The table of a stack, with typical numbers in place of those that it leaves out, if it names features
    and was not fitted to measured runs.

    **Raises:** `ConfigError` for features that do not exist.
    """
    if "features" not in table:
        return table
    features = checked_features(table["features"], f"{prefix}features.", origin)
    launches = checked_launches(table["features"], f"{prefix}features.", origin)
    if table.get("basis") == MEASURED:
        return table
    typical = {key: _text(key, value) for key, value in typical_numbers(features, launches).items()}
    return {**typical, **table}


def _text(key: str, value: float) -> str | float:
    """A number of a stack as a file holds it."""
    unit = _declared(key).unit
    return f"{value!r} {unit}" if unit else value


def _declared(key: str) -> Quantity:
    """The declaration of a number of a stack. Raises `ConfigError` for a name that is none."""
    fields = {field.name: field for field in dataclasses.fields(Stack)}
    declared = declaration(fields[key]) if key in fields else None
    if not isinstance(declared, Quantity):
        hint = did_you_mean(key, list(fields))
        raise ConfigError("configs/stacks", f"features.{_FITTED}", shown(key), "a number of Stack", hint)
    return declared
