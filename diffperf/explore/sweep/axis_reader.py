"""One axis of a space from its table: the input that it varies, and the values that the input takes."""

import math
from typing import Any

import numpy as np

from diffperf import units
from diffperf.explore.codesign.variables import FEATURE
from diffperf.explore.inputs import full_path
from diffperf.explore.reader import TableReader
from diffperf.explore.sweep.axis import Axis
from diffperf.explore.sweep.designed_points import Inputs
from diffperf.load import checked, declared_at
from diffperf.quantity import Choice, Quantity, locate
from diffperf.report.tables import show
from diffperf.workload.configuration import Configuration
from diffperf.workload.whole_numbers import divisors

VALUES = ("values", "linear", "log", "powers_of_two", "divisors_of")  # ways to say what an axis takes

_MOST_VALUES = 10_000_000  # values of a linear or logarithmic axis, at most: they are held in memory


class AxisReader(TableReader):
    """Reads axes from the tables of a space's file."""

    def axis(self, inputs: Inputs, table: dict[str, Any], key: str, dimension: int) -> Axis:
        """One axis from its table, on a dimension of the space; `key` names the table in errors."""
        self.known_keys(table, ("path", *VALUES), f"{key}.", "a key of an axis")
        written = table.get("path", "no such key")
        if "path" not in table or not isinstance(written, str):
            raise self.error(f"{key}.path", repr(written), "a path into the inputs", 'write "strategy.tp"')
        self.refuse_unmade(inputs, written, f"{key}.path")
        path = self.whole_path(inputs, written, f"{key}.path")
        declared = declared_at(inputs, path, self.file, f"{key}.path")
        kinds = [kind for kind in VALUES if kind in table]
        if len(kinds) != 1:
            found = " and ".join(kinds) or "no values"
            raise self.error(key, found, "one of " + ", ".join(VALUES), f"say once what values {path} takes")
        if isinstance(declared, Choice):
            return self.choice_axis(path, declared, table, key, dimension)
        numbers = getattr(self, kinds[0])(inputs, declared, table[kinds[0]], f"{key}.{kinds[0]}")
        return Axis(path, declared, np.array(numbers, dtype=float), dimension)

    def whole_path(self, inputs: Inputs, path: str, key: str) -> str:
        """The whole path of the input that `path` means."""
        return full_path(inputs, path, self.file, key)

    def refuse_unmade(self, inputs: Inputs, path: str, key: str) -> None:
        """Refuses a number of a design where the space has none, and the feature of its node, which the
        figures of the node do not follow."""
        if path.split(".")[0] in ("design", "technology") and isinstance(inputs, Configuration):
            remedy = 'add technology = "…", see `diffperf list technology`'
            raise self.error(key, f'"{path}"', "a space that designs its accelerators", remedy)
        if path == FEATURE:
            remedy = 'write path = "technology.node", values = ["n7", "4 nm"]'
            raise self.error(key, f'"{path}"', "the node, with all its figures", remedy)

    def choice_axis(
        self, path: str, declared: Choice, table: dict[str, Any], key: str, dimension: int
    ) -> Axis:
        """An axis over alternatives of a choice, or over weights of them."""
        if "values" not in table:
            expected = "values = [" + ", ".join(f'"{name}"' for name in declared.alternatives) + "]"
            kind = next(kind for kind in VALUES if kind in table)
            raise self.error(key, kind, expected, f"{path} is a choice: name its values")
        weights = self.checked_values(declared, table["values"], f"{key}.values")
        labels = tuple(show(value, declared) for value in weights)
        return Axis(
            path=path, declared=declared, values=np.array(weights), dimension=dimension, labels=labels
        )

    def checked_values(self, declared: Quantity | Choice, value: Any, key: str) -> list[Any]:
        """A list of at least one value, each checked against the declaration of the input."""
        if not isinstance(value, list) or not value:
            raise self.error(key, repr(value), "a list of values", "write them in brackets")
        return [checked(declared, item, self.file, f"{key}[{index}]") for index, item in enumerate(value)]

    def refuse_repeated(self, axis: Axis, table: dict[str, Any], key: str) -> None:
        """Refuses a value that an axis by itself lists twice; of axes that vary together one may repeat."""
        distinct = [np.asarray(item).tobytes() for item in axis.values]
        if "values" in table and len(set(distinct)) < len(distinct):
            index = next(index for index, item in enumerate(distinct) if item in distinct[:index])
            found = f"{table['values'][index]!r} a second time"
            raise self.error(f"{key}.values[{index}]", found, "every value once", "leave it out")

    # The numbers of an axis, by the key that says how they are written.

    def values(self, inputs: Inputs, declared: Quantity, value: Any, key: str) -> list[float]:
        """Numbers written one by one."""
        return self.checked_values(declared, value, key)

    def linear(self, inputs: Inputs, declared: Quantity, value: Any, key: str) -> np.ndarray:
        """Numbers of equal differences, ends included."""
        first, last, points = self.range(declared, value, key)
        return _whole(np.linspace(first, last, points), declared)

    def log(self, inputs: Inputs, declared: Quantity, value: Any, key: str) -> np.ndarray:
        """Numbers of equal ratios, ends included."""
        first, last, points = self.range(declared, value, key)
        if first <= 0:
            shown = units.show(first, declared.unit)
            raise self.error(f"{key}.from", shown, "more than 0 on a logarithmic axis", "use linear")
        return _whole(np.geomspace(first, last, points), declared)

    def powers_of_two(self, inputs: Inputs, declared: Quantity, value: Any, key: str) -> list[float]:
        """The first number, doubled until the last is reached."""
        first, last = self.ends(declared, value, key, ("from", "to"))
        if first <= 0:
            raise self.error(f"{key}.from", repr(value["from"]), "more than 0", "start at 1")
        if not declared.unit and math.frexp(first)[0] != 0.5:
            below = 2.0 ** math.floor(math.log2(first))
            remedy = f"start at {units.plain(below)} or {units.plain(2 * below)}, or write values = […]"
            raise self.error(f"{key}.from", repr(value["from"]), "a power of two", remedy)
        # An exact power of two counts, whatever the rounding.
        doublings = math.floor(math.log2(last / first) + 1e-9)
        return [first * 2**doubling for doubling in range(doublings + 1)]

    def divisors_of(self, inputs: Inputs, declared: Quantity, value: Any, key: str) -> list[float]:
        """The whole divisors of a number."""
        number = self.number(inputs, value, key)
        # Above 1e12 the search for divisors, by trial up to the square root, takes seconds.
        if not 1 <= number <= 1e12 or number != round(number):
            raise self.error(
                key, units.plain(number), "a whole number of at least 1", "name an input that is one"
            )
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

    def number(self, inputs: Inputs, value: Any, key: str) -> float:
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
    """Each of the numbers once; where the quantity is whole, rounded."""
    return np.unique(np.round(numbers) if declared.integer else numbers)
