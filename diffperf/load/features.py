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
from typing import Any, NamedTuple

from diffperf.errors import did_you_mean
from diffperf.load.checks import checked_number, shown
from diffperf.load.extending import Origin
from diffperf.load.files import available, config_root, display, read_toml
from diffperf.quantity import Quantity, declaration
from diffperf.software.stack import KERNELS_OF_PASS, MEASURED, Stack

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
# The number that grows with the kernels that the host launches for a layer's pass.
_LAUNCH_TIME = "host_launch"


@dataclasses.dataclass(frozen=True)
class Features:
    """What the file of a stack says under `features`.

    - `how`: the text of each of `FEATURES` that the file names.
    - `launches`: kernels that the host launches for a forward pass of a layer with tensor parallelism; those
      of Megatron-LM where the file does not say.
    - `software`: what the software of a measured stack is called; several stacks may be versions of one.
    - `fitted`: the names of the numbers that were fitted to runs of the stack.
    """

    how: dict[str, str]
    launches: float
    software: str
    fitted: tuple[str, ...]

    @classmethod
    def of(cls, table: Any, prefix: str, origin: Origin) -> "Features":
        """The features of a table, whose path in its file is `prefix`, with a dot at its end.

        **Raises:** `ConfigError` for a feature that does not exist, or that is not what the file says.
        """
        if not isinstance(table, dict):
            expected, remedy = "a table of features", "write it as a TOML table"
            raise origin.error(prefix.rstrip("."), shown(table), expected, remedy)
        how = dict(table)
        launches = how.pop("launches", KERNELS_OF_PASS)
        software, fitted = how.pop("software", ""), how.pop("fitted", [])
        if isinstance(launches, bool) or not isinstance(launches, int | float) or not launches > 0:
            expected, remedy = "a number of kernels above 0", "count those of a forward pass"
            raise origin.error(f"{prefix}launches", shown(launches), expected, remedy)
        if not isinstance(software, str):
            raise origin.error(f"{prefix}software", shown(software), "a text", "quote it")
        if not isinstance(fitted, list) or not all(_declared(key) for key in fitted):
            expected, remedy = "an array of names of numbers of the stack", 'write ["matrix_efficiency", …]'
            raise origin.error(f"{prefix}fitted", shown(fitted), expected, remedy)
        for key, value in how.items():
            if key not in FEATURES:
                expected, hint = f"one of {', '.join(FEATURES)}", did_you_mean(key, list(FEATURES))
                raise origin.error(prefix + key, f'unknown feature "{key}"', expected, hint)
            if value not in FEATURES[key]:
                expected = f"one of {', '.join(FEATURES[key])}"
                hint = did_you_mean(str(value), list(FEATURES[key]))
                raise origin.error(prefix + key, shown(value), expected, hint)
        return cls(how, float(launches), software, tuple(fitted))


class MeasuredStack(NamedTuple):
    """A shipped stack that was fitted to runs of its own.

    - `numbers`: the numbers that were fitted to runs of the stack, in internal units.
    """

    name: str
    features: Features
    numbers: dict[str, float]


@functools.cache
def measured_stacks() -> tuple[MeasuredStack, ...]:
    """The shipped training stacks that name their features and what was fitted to their runs.

    **Raises:** `ConfigError` for features that do not exist, and for a fitted number that the file lacks.
    """
    folder = config_root() / "stacks"
    stacks = (_measured_stack(folder / f"{name}.toml") for name in available("stacks"))
    return tuple(stack for stack in stacks if stack.numbers)


def _measured_stack(path: Path) -> MeasuredStack:
    """The stack of a file; it has no numbers where none was fitted."""
    table, origin = read_toml(path), Origin(display(path), path.parent)
    features = Features.of(table.get("features", {}), "features.", origin)
    if missing := [key for key in features.fitted if key not in table]:
        expected, remedy = "names of numbers in this file", "give the number or leave its name out"
        raise origin.error("features.fitted", shown(missing), expected, remedy)
    numbers = {key: _number(key, table[key], origin.file) for key in features.fitted}
    return MeasuredStack(path.stem, features, numbers)


def typical_numbers(features: Features, without: str = "") -> dict[str, float]:
    """The numbers, in internal units, of a stack with some features that nobody has measured.

    Each is the median over measured software of the geometric mean of that software's stacks; of an even
    number of software, the geometric mean of the middle two. A number that no measured software with the same
    feature has is left out. The launch time of a pass goes with the kernels that the host launches for it.

    `without` is a software that does not count, as if nobody had measured it.
    """
    logarithms: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for _, measured, numbers in measured_stacks():
        if measured.software == without:
            continue
        for key in numbers.keys() & DECIDED_BY.keys():
            feature = DECIDED_BY[key]
            # Two stacks that both lack the feature do not match: the text "" is no value of a feature.
            if feature is None or features.how.get(feature) == measured.how.get(feature, ""):
                kernels = features.launches / measured.launches if key == _LAUNCH_TIME else 1.0
                logarithms[key][measured.software].append(math.log(numbers[key] * kernels))
    return {
        key: math.exp(statistics.median(map(statistics.mean, of_software.values())))
        for key, of_software in logarithms.items()
    }


def with_typical_numbers(table: dict[str, Any], prefix: str, origin: Origin) -> dict[str, Any]:
    """The table of a stack, with typical numbers in place of those that it leaves out, if it names features
    and was not fitted to measured runs.

    **Raises:** `ConfigError` as `Features.of`.
    """
    if "features" not in table:
        return table
    features = Features.of(table["features"], f"{prefix}features.", origin)
    if table.get("basis") == MEASURED:
        return table
    typical = {key: _text(key, value) for key, value in typical_numbers(features).items()}
    return {**typical, **table}


def _number(key: str, value: Any, file: str) -> float:
    """A number of a stack in internal units. Raises `ConfigError`."""
    declared = _declared(key)
    assert declared is not None, "names of fitted numbers are checked"
    return checked_number(declared, value, file, key)


def _text(key: str, value: float) -> str | float:
    """A number of a stack as a file holds it."""
    declared = _declared(key)
    return f"{value!r} {declared.unit}" if declared is not None and declared.unit else value


def _declared(key: Any) -> Quantity | None:
    """The declaration of a number of a stack; None for what is no name of one."""
    field = next((field for field in dataclasses.fields(Stack) if field.name == key), None)
    declared = None if field is None else declaration(field)
    return declared if isinstance(declared, Quantity) else None
