"""The TOML file of a space: axes over the inputs of an estimate, and the inputs that stay the same.

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
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from diffperf import units
from diffperf.errors import ARGUMENTS, did_you_mean
from diffperf.explore.inputs import check_phase, full_path, report_outputs
from diffperf.explore.reader import TableReader
from diffperf.explore.sweep.space import Axis, Space
from diffperf.hardware.system import System
from diffperf.load import (
    checked,
    declared_at,
    display,
    find,
    load_strategy,
    override,
    read_toml,
    refuse_training_fields,
)
from diffperf.quantity import Choice, Quantity, locate
from diffperf.report.tables import show
from diffperf.workload.configuration import Configuration
from diffperf.workload.model import Model
from diffperf.workload.whole_numbers import divisors

KEYS = ("model", "system", "phase", "rank_by", "order", "top", "set", "strategy", "axis")  # of the file
VALUES = ("values", "linear", "log", "powers_of_two", "divisors_of")  # ways to say what an axis takes
ORDERS = ("ascending", "descending")

# Outputs of which more is better, by the last name of their path; all others rank from the smallest.
_LARGEST_FIRST = ("tokens_per_second", "tokens_per_joule", "mfu", "hfu")

_MOST_TOP = 10_000  # best points that are kept, at most: they are held in memory
_MOST_VALUES = 10_000_000  # values of a linear or logarithmic axis, at most: they are held in memory


def load_space(source: Space | str | Path | Mapping[str, Any], file: str = ARGUMENTS, key: str = "") -> Space:
    """The space that a TOML file declares, by the file's path or the name of a shipped space, or its table.

    **Raises:** `ConfigError`, in one line.
    """
    if isinstance(source, Space):
        return source
    if isinstance(source, Mapping):
        return _Reader(file, Path(), dict(source)).space("space")
    path = find(str(source), "spaces", asked_by=(file, key))
    return _Reader(display(path), path.parent, read_toml(path)).space(path.stem)


class _Reader(TableReader):
    """Reads a space from the tables of its file."""

    def space(self, name: str) -> Space:
        """The whole space."""
        self.known_keys(self.table, KEYS, "", "a key of a space")
        model, system = self.config(Model, "model"), self.config(System, "system")
        phase = check_phase(self.table.get("phase", "training"), self.file, "phase")
        settings, prefix = self.settings(model, system), "strategy."
        of_strategy = {
            path.removeprefix(prefix): text for path, text in settings.items() if path.startswith(prefix)
        }
        strategy_table = self.sub_table("strategy") | of_strategy
        strategy = load_strategy(strategy_table, self.file)
        others = {path: text for path, text in settings.items() if not path.startswith(prefix)}
        inputs = override(Configuration(model, system, strategy), others, self.file)

        axes = self.axes(inputs)
        given = {*strategy_table, *(axis.path.removeprefix(prefix) for axis in axes)}
        refuse_training_fields(sorted(given), phase, self.file)
        follow = {"dp", "global_batch"} if phase == "training" else {"dp"}
        rank_by = self.rank_by(inputs, phase)
        return Space(
            name=name,
            inputs=inputs,
            phase=phase,
            axes=axes,
            derived=frozenset(follow - given),
            rank_by=rank_by,
            descending=self.order(rank_by) == "descending",
            top=self.top(),
        )

    def settings(self, model: Model, system: System) -> dict[str, Any]:
        """The values of the [set] table by full path, nested tables flattened."""
        inputs = Configuration(model, system, load_strategy({}, self.file))

        def flatten(table: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
            for key, value in table.items():
                path = prefix + key
                if "." in path:
                    path = full_path(inputs, path, self.file, f"set.{path}")
                if isinstance(value, dict) and not self.is_choice(inputs, path):
                    yield from flatten(value, path + ".")
                else:
                    yield full_path(inputs, path, self.file, f"set.{path}"), value

        return dict(flatten(self.sub_table("set"), ""))

    @staticmethod
    def is_choice(inputs: Configuration, path: str) -> bool:
        """Whether the path leads to a choice, whose value may be a table of weights."""
        try:
            return isinstance(locate(inputs, path)[1], Choice)
        except KeyError:
            return False

    def rank_by(self, inputs: Configuration, phase: str) -> str:
        """The path of the output that ranks the points."""
        path, known = self.table.get("rank_by", "time"), report_outputs(inputs, phase)
        if not isinstance(path, str):
            raise self.error("rank_by", repr(path), f"the path of one output of {phase}", 'write "time"')
        if path not in known:
            hint = did_you_mean(path, list(known))
            raise self.error("rank_by", f'"{path}"', f"an output of {phase}", hint)
        return path

    def order(self, rank_by: str) -> str:
        """Whether the smallest or the largest values of the output rank first."""
        usual = "descending" if rank_by.split(".")[-1] in _LARGEST_FIRST else "ascending"
        order = self.table.get("order", usual)
        if order not in ORDERS:
            raise self.error("order", f'"{order}"', " or ".join(ORDERS), did_you_mean(str(order), ORDERS))
        return order

    def top(self) -> int:
        """How many of the best points to keep."""
        return self.whole(
            self.table.get("top", 10), _MOST_TOP, "top", "say how many of the best points to keep"
        )

    def whole(self, value: Any, most: int, key: str, remedy: str) -> int:
        """A whole number from 1 to `most`."""
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise self.error(key, repr(value), f"a whole number from 1 to {most}", remedy)
        return value

    def axes(self, inputs: Configuration) -> tuple[Axis, ...]:
        """All axes, in the order of the file; no two vary the same input."""
        tables = self.tables("axis")
        axes = tuple(self.axis(inputs, table, f"axis[{index}]") for index, table in enumerate(tables))
        paths = [axis.path for axis in axes]
        for index, path in enumerate(paths):
            if path in paths[:index]:
                key = f"axis[{index}].path"
                raise self.error(key, f'"{path}" again', "an input of its own", "merge the two axes")
        return axes

    def axis(self, inputs: Configuration, table: dict[str, Any], key: str) -> Axis:
        """One axis from its table; `key` names the table in errors."""
        self.known_keys(table, ("path", *VALUES), f"{key}.", "a key of an axis")
        written = table.get("path", "no such key")
        if "path" not in table or not isinstance(written, str):
            raise self.error(f"{key}.path", repr(written), "a path into the inputs", 'write "strategy.tp"')
        path = full_path(inputs, written, self.file, f"{key}.path")
        declared = declared_at(inputs, path, self.file, f"{key}.path")
        kinds = [kind for kind in VALUES if kind in table]
        if len(kinds) != 1:
            found = " and ".join(kinds) or "no values"
            raise self.error(key, found, "one of " + ", ".join(VALUES), f"say once what values {path} takes")
        if isinstance(declared, Choice):
            return self.choice_axis(path, declared, table, key)
        numbers = getattr(self, kinds[0])(inputs, declared, table[kinds[0]], f"{key}.{kinds[0]}")
        return Axis(path, declared, np.array(numbers, dtype=float))

    def choice_axis(self, path: str, declared: Choice, table: dict[str, Any], key: str) -> Axis:
        """An axis over alternatives of a choice, or over weights of them."""
        if "values" not in table:
            expected = "values = [" + ", ".join(f'"{name}"' for name in declared.alternatives) + "]"
            kind = next(kind for kind in VALUES if kind in table)
            raise self.error(key, kind, expected, f"{path} is a choice: name its values")
        weights = self.checked_values(declared, table["values"], f"{key}.values")
        return Axis(path, declared, np.array(weights), tuple(show(value, declared) for value in weights))

    def checked_values(self, declared: Quantity | Choice, value: Any, key: str) -> list[Any]:
        """A list of at least one value, each checked against the declaration of the input."""
        if not isinstance(value, list) or not value:
            raise self.error(key, repr(value), "a list of values", "write them in brackets")
        return [checked(declared, item, self.file, f"{key}[{index}]") for index, item in enumerate(value)]

    # The numbers of an axis, by the key that says how they are written.

    def values(self, inputs: Configuration, declared: Quantity, value: Any, key: str) -> list[float]:
        """Numbers written one by one."""
        return self.checked_values(declared, value, key)

    def linear(self, inputs: Configuration, declared: Quantity, value: Any, key: str) -> np.ndarray:
        """Numbers of equal differences, ends included."""
        first, last, points = self.range(declared, value, key)
        return _whole(np.linspace(first, last, points), declared)

    def log(self, inputs: Configuration, declared: Quantity, value: Any, key: str) -> np.ndarray:
        """Numbers of equal ratios, ends included."""
        first, last, points = self.range(declared, value, key)
        if first <= 0:
            shown = units.show(first, declared.unit)
            raise self.error(f"{key}.from", shown, "more than 0 on a logarithmic axis", "use linear")
        return _whole(np.geomspace(first, last, points), declared)

    def powers_of_two(self, inputs: Configuration, declared: Quantity, value: Any, key: str) -> list[float]:
        """The first number, doubled until the last is reached."""
        first, last = self.ends(declared, value, key, ("from", "to"))
        if first <= 0:
            raise self.error(f"{key}.from", repr(value["from"]), "more than 0", "start at 1")
        doublings = math.floor(
            math.log2(last / first) + 1e-9
        )  # an exact power of two counts, whatever the rounding
        return [first * 2**doubling for doubling in range(doublings + 1)]

    def divisors_of(self, inputs: Configuration, declared: Quantity, value: Any, key: str) -> list[float]:
        """The whole divisors of a number."""
        number = self.number(inputs, value, key)
        # Above 1e12 the search for divisors, by trial up to the square root, takes seconds.
        if not 1 <= number <= 1e12 or number != round(number):
            raise self.error(key, f"{number:g}", "a whole number of at least 1", "name an input that is one")
        return [float(checked(declared, divisor, self.file, key)) for divisor in divisors(number)]

    def range(self, declared: Quantity, value: Any, key: str) -> tuple[float, float, int]:
        """The ends and the number of values of a linear or logarithmic axis."""
        first, last = self.ends(declared, value, key, ("from", "to", "points"))
        points = self.whole(value["points"], _MOST_VALUES, f"{key}.points", "say how many values to take")
        return first, last, points

    def ends(self, declared: Quantity, value: Any, key: str, keys: tuple[str, ...]) -> tuple[float, float]:
        """The smallest and the largest value, from a table that has exactly these keys."""
        if not isinstance(value, dict) or set(value) != set(keys):
            form = "{" + ", ".join(f"{name} = …" for name in keys) + "}"
            raise self.error(key, repr(value), f"a table with {', '.join(keys)}", f"write {form}")
        first, last = (
            float(checked(declared, value[end], self.file, f"{key}.{end}")) for end in ("from", "to")
        )
        if first > last:
            raise self.error(f"{key}.from", repr(value["from"]), f"at most to = {value['to']!r}", "swap them")
        return first, last

    def number(self, inputs: Configuration, value: Any, key: str) -> float:
        """A number, or the value at a path, of an input or of a property such as model.depth."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        parent, _, name = str(value).rpartition(".")
        try:
            node = locate(inputs, parent)[0]
            return float(getattr(node, name) if hasattr(node, name) else locate(inputs, str(value))[0])
        except (KeyError, TypeError):
            remedy = 'write "model.depth" or "system.n_devices"'
            raise self.error(key, repr(value), "a number or the path of one", remedy) from None


def _whole(numbers: np.ndarray, declared: Quantity) -> np.ndarray:
    """The numbers as they are; where the quantity is whole, rounded, and each number once."""
    return np.unique(np.round(numbers)) if declared.integer else numbers
