"""A declared space of configurations: a TOML file of axes over the inputs of an estimate.

    model = "gpt3-175b"
    system = "dgx-a100"
    phase = "training"
    rank_by = "time"

    [set]
    "system.n_devices" = 64

    [strategy]
    global_batch = 64

    [[axis]]
    path = "strategy.tp"
    powers_of_two = {from = 1, to = 8}

    [[axis]]
    path = "system.accelerator.memory.hbm.bandwidth"
    linear = {from = "1 TB/s", to = "4 TB/s", points = 7}

The points are the product of the axes. They are numbered, the last axis fastest, and never stored: a point is computed
from its number.
"""

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from diffperf import units
from diffperf.errors import did_you_mean
from diffperf.explore.inputs import check_phase, full_path, report_outputs
from diffperf.explore.plan.candidates import default_global_batch, divisors
from diffperf.explore.reader import TableReader
from diffperf.hardware.system import System
from diffperf.load import checked, declared_at, display, find, load_strategy, override, read_toml
from diffperf.quantity import Choice, Quantity, locate
from diffperf.workload.configuration import Configuration
from diffperf.workload.model import Model

# What may stand in a space's file, and in one of its axes.
KEYS = ("model", "system", "phase", "rank_by", "order", "top", "set", "strategy", "axis")
VALUES = ("values", "linear", "log", "powers_of_two", "divisors_of")
ORDERS = ("ascending", "descending")

# Outputs of which more is better; all others rank from the smallest.
_LARGEST_FIRST = ("tokens_per_second", "tokens_per_joule", "mfu", "hfu")


@dataclasses.dataclass(frozen=True)
class Axis:
    """One input and the values it takes.

    - `values`: numbers in internal units, (n,), or weights over alternatives, (n, alternatives).
    - `labels`: for a choice, the name of each value.
    """

    path: str
    declared: Quantity | Choice
    values: np.ndarray
    labels: tuple[str, ...] | None = None

    def __len__(self):
        return len(self.values)


@dataclasses.dataclass(frozen=True)
class Space:
    """Axes over a set of inputs.

    - `inputs`: the values of everything that is not an axis.
    - `derived`: fields of the strategy that follow from the point, because nobody gave them: "dp" (the devices that tp and pp
      leave) and in training "global_batch" (one micro-batch per device).
    - `rank_by`, `descending`: the output whose best points are kept, `top` of them.
    """

    name: str
    inputs: Configuration
    phase: str
    axes: tuple[Axis, ...]
    derived: frozenset[str]
    rank_by: str
    descending: bool
    top: int

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(axis) for axis in self.axes)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def digits(self, number: int) -> tuple[int, ...]:
        """The position of a point on every axis."""
        result = []
        for length in reversed(self.shape):
            number, digit = divmod(number, length)
            result.append(digit)
        return tuple(reversed(result))

    def advance(self, digits: Int[Array, " axes"], offset: Int[Array, ""]) -> list[Int[Array, ""]]:
        """The position `offset` points further, wrapped around at the end. Small integers only, however large the space."""
        result, carry = [], offset
        for axis in reversed(range(len(self.axes))):
            total = digits[axis] + carry
            result.append(total % len(self.axes[axis]))
            carry = total // len(self.axes[axis])
        return result[::-1]

    def point(self, digits: list[Int[Array, ""]], base: Configuration) -> Configuration:
        """The inputs at a position; `base` is `self.inputs` in the precision to compute in."""
        dtype = base.strategy.tp.dtype
        values = [
            jnp.asarray(axis.values, dtype)[digit] for axis, digit in zip(self.axes, digits, strict=True)
        ]
        inputs = eqx.tree_at(lambda tree: [locate(tree, axis.path)[0] for axis in self.axes], base, values)
        if "dp" in self.derived:
            rest = inputs.system.n_devices / (inputs.strategy.tp * inputs.strategy.pp)
            inputs = eqx.tree_at(lambda tree: tree.strategy.dp, inputs, jnp.maximum(rest, 1.0))
        if "global_batch" in self.derived:
            batch = default_global_batch(inputs.system, inputs.strategy)
            inputs = eqx.tree_at(lambda tree: tree.strategy.global_batch, inputs, batch)
        return inputs

    @functools.cached_property
    def outputs(self) -> dict[str, Quantity]:
        """What the phase reports, by path."""
        return report_outputs(self.inputs, self.phase)


def load_space(name: str | Path) -> Space:
    """A space from a TOML file's path or the name of a shipped study.

    **Raises:** `ConfigError`, in one line.
    """
    path = find(str(name), "spaces")
    return _Reader(display(path), path.parent, read_toml(path)).space(path.stem)


class _Reader(TableReader):
    """Reads a space from the tables of one file."""

    def space(self, name: str) -> Space:
        self.known_keys(self.table, KEYS, "", "a key of a space")
        model, system = self.config(Model, "model"), self.config(System, "system")
        phase = check_phase(self.table.get("phase", "training"), self.file, "phase")
        strategy_table = self.sub_table("strategy")
        settings = self.settings(model, system)
        strategy_table |= {
            path.removeprefix("strategy."): text
            for path, text in settings.items()
            if path.startswith("strategy.")
        }
        strategy = load_strategy(strategy_table, self.file)
        others = {path: text for path, text in settings.items() if not path.startswith("strategy.")}
        inputs = override(Configuration(model, system, strategy), others, self.file)

        axes = self.axes(inputs)
        given = {*strategy_table, *(axis.path.removeprefix("strategy.") for axis in axes)}
        derived = frozenset({"dp"} | ({"global_batch"} if phase == "training" else set())) - given
        rank_by = self.rank_by(inputs, phase)
        order = self.table.get(
            "order", "descending" if rank_by.split(".")[-1] in _LARGEST_FIRST else "ascending"
        )
        if order not in ORDERS:
            raise self.error("order", f'"{order}"', " or ".join(ORDERS), did_you_mean(str(order), ORDERS))
        return Space(name, inputs, phase, axes, derived, rank_by, order == "descending", self.top())

    def settings(self, model: Model, system: System) -> dict[str, Any]:
        """The [set] table by full path, nested tables flattened."""
        inputs = Configuration(model, system, load_strategy({}, self.file))

        def flatten(table: dict[str, Any], prefix: str):
            for key, value in table.items():
                path = (
                    full_path(inputs, prefix + key, self.file, f"set.{prefix}{key}")
                    if "." in prefix + key
                    else prefix + key
                )
                if isinstance(value, dict) and not self.is_choice(inputs, path):
                    yield from flatten(value, path + ".")
                else:
                    yield full_path(inputs, path, self.file, f"set.{path}"), value

        return dict(flatten(self.sub_table("set"), ""))

    @staticmethod
    def is_choice(inputs: Configuration, path: str) -> bool:
        try:
            return isinstance(locate(inputs, path)[1], Choice)
        except KeyError:
            return False

    def rank_by(self, inputs: Configuration, phase: str) -> str:
        path, known = self.table.get("rank_by", "time"), report_outputs(inputs, phase)
        if path not in known:
            hint = did_you_mean(str(path), list(known))
            raise self.error("rank_by", f'"{path}"', f"an output of {phase}", hint)
        return path

    def top(self) -> int:
        top = self.table.get("top", 10)
        if isinstance(top, bool) or not isinstance(top, int) or not 1 <= top <= 10_000:
            raise self.error(
                "top", repr(top), "a whole number from 1 to 10000", "say how many of the best points to keep"
            )
        return top

    def axes(self, inputs: Configuration) -> tuple[Axis, ...]:
        axes = tuple(
            self.axis(inputs, table, f"axis[{index}]") for index, table in enumerate(self.tables("axis"))
        )
        paths = [axis.path for axis in axes]
        for index, path in enumerate(paths):
            if path in paths[:index]:
                raise self.error(
                    f"axis[{index}].path", f'"{path}" again', "an input of its own", "merge the two axes"
                )
        return axes

    def axis(self, inputs: Configuration, table: dict[str, Any], key: str) -> Axis:
        self.known_keys(table, ("path", *VALUES), f"{key}.", "a key of an axis")
        if not isinstance(table.get("path"), str):
            raise self.error(
                f"{key}.path",
                repr(table.get("path", "no such key")),
                "a path into the inputs",
                'write "strategy.tp"',
            )
        path = full_path(inputs, table["path"], self.file, f"{key}.path")
        declared = declared_at(inputs, path, self.file, f"{key}.path")
        kinds = [kind for kind in VALUES if kind in table]
        if len(kinds) != 1:
            found = " and ".join(kinds) or "no values"
            raise self.error(key, found, "one of " + ", ".join(VALUES), f"say once what values {path} takes")
        if isinstance(declared, Choice):
            return self.choices(path, declared, table, key)
        numbers = getattr(self, kinds[0])(inputs, declared, table[kinds[0]], f"{key}.{kinds[0]}")
        return Axis(path, declared, np.array(numbers, dtype=float))

    def choices(self, path: str, declared: Choice, table: dict[str, Any], key: str) -> Axis:
        if "values" not in table:
            expected = "values = [" + ", ".join(f'"{name}"' for name in declared.alternatives) + "]"
            raise self.error(
                key,
                next(kind for kind in VALUES if kind in table),
                expected,
                f"{path} is a choice: name its values",
            )
        items = self.items(table["values"], f"{key}.values")
        weights = [
            checked(declared, item, self.file, f"{key}.values[{index}]") for index, item in enumerate(items)
        ]
        return Axis(path, declared, np.array(weights), tuple(_name(declared, row) for row in weights))

    def items(self, value: Any, key: str) -> list[Any]:
        if not isinstance(value, list) or not value:
            raise self.error(key, repr(value), "a list of values", "write them in brackets")
        return value

    def values(self, inputs: Configuration, declared: Quantity, value: Any, key: str) -> list[float]:
        items = self.items(value, key)
        return [checked(declared, item, self.file, f"{key}[{index}]") for index, item in enumerate(items)]

    def linear(self, inputs: Configuration, declared: Quantity, value: Any, key: str) -> np.ndarray:
        first, last, points = self.range(declared, value, key)
        return _whole(np.linspace(first, last, points), declared)

    def log(self, inputs: Configuration, declared: Quantity, value: Any, key: str) -> np.ndarray:
        first, last, points = self.range(declared, value, key)
        if first <= 0:
            raise self.error(
                f"{key}.from",
                units.show(first, declared.unit),
                "more than 0 on a logarithmic axis",
                "use linear",
            )
        return _whole(np.geomspace(first, last, points), declared)

    def range(self, declared: Quantity, value: Any, key: str) -> tuple[float, float, int]:
        first, last = self.ends(declared, value, key, ("from", "to", "points"))
        points = value["points"]
        if isinstance(points, bool) or not isinstance(points, int) or not 1 <= points <= 10_000_000:
            raise self.error(
                f"{key}.points",
                repr(points),
                "a whole number from 1 to 10000000",
                "say how many values to take",
            )
        return first, last, points

    def ends(self, declared: Quantity, value: Any, key: str, keys: tuple[str, ...]) -> tuple[float, float]:
        if not isinstance(value, dict) or set(value) != set(keys):
            form = "{" + ", ".join(f"{name} = …" for name in keys) + "}"
            raise self.error(key, repr(value), f"a table with {', '.join(keys)}", f"write {form}")
        first, last = (checked(declared, value[end], self.file, f"{key}.{end}") for end in ("from", "to"))
        if first > last:
            raise self.error(f"{key}.from", repr(value["from"]), f"at most to = {value['to']!r}", "swap them")
        return first, last

    def powers_of_two(self, inputs: Configuration, declared: Quantity, value: Any, key: str) -> list[float]:
        first, last = self.ends(declared, value, key, ("from", "to"))
        if first <= 0:
            raise self.error(f"{key}.from", repr(value["from"]), "more than 0", "start at 1")
        return [first * 2**power for power in range(math.floor(math.log2(last / first) + 1e-9) + 1)]

    def divisors_of(self, inputs: Configuration, declared: Quantity, value: Any, key: str) -> list[float]:
        number = self.number(inputs, value, key)
        if not 1 <= number <= 1e12 or number != round(number):
            raise self.error(key, f"{number:g}", "a whole number of at least 1", "name an input that is one")
        return [checked(declared, divisor, self.file, key) for divisor in divisors(number)]

    def number(self, inputs: Configuration, value: Any, key: str) -> float:
        """A number, or the value at a path; what follows from the inputs, such as model.depth, counts as one."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        parent, _, name = str(value).rpartition(".")
        try:
            node = locate(inputs, parent)[0]
            return float(getattr(node, name) if hasattr(node, name) else locate(inputs, str(value))[0])
        except (KeyError, TypeError):
            raise self.error(
                key, repr(value), "a number or the path of one", 'write "model.depth" or "system.n_devices"'
            ) from None


def _whole(numbers: np.ndarray, declared: Quantity) -> np.ndarray:
    """Whole where the quantity is, each value once."""
    return np.unique(np.round(numbers)) if declared.integer else numbers


def _name(declared: Choice, weights: np.ndarray) -> str:
    if weights.max() == 1.0:
        return declared.alternatives[int(weights.argmax())]
    return " + ".join(
        f"{weight:g} {name}" for name, weight in zip(declared.alternatives, weights, strict=True) if weight
    )
