"""Conditions on the cells of tables of measurements, which choose the rows that a command uses.

`framework=vllm*` keeps the rows whose cell begins with vllm, `experts>0` those with a larger number.
"""

import dataclasses
import fnmatch
import operator
import re
from collections.abc import Callable, Mapping, Sequence

from diffperf.errors import ARGUMENTS, ConfigError, did_you_mean
from diffperf.explore.measured.table import Measurements

_WRITTEN = re.compile(r"\s*(?P<column>\w+)\s*(?P<relation>!=|<=|>=|=|<|>)\s*(?P<wanted>.*?)\s*")
_ORDERS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclasses.dataclass(frozen=True)
class Condition:
    """A condition on the cell of a row in one column.

    - `text`: the condition as it was written, for messages.
    - `relation`: "=" or "!=" for one or none of several texts, "<", "<=", ">" or ">=" for a number.
    - `texts`: the texts, in which `*` and `?` stand for any characters and for one.
    - `number`: the number that the cell is compared with; None where texts are.
    """

    text: str
    column: str
    relation: str
    texts: tuple[str, ...] = ()
    number: float | None = None

    @classmethod
    def parse(cls, text: str, file: str = ARGUMENTS) -> "Condition":
        """The condition that a text writes; `file` is what holds the text. Raises `ConfigError`."""

        def wrong(expected: str, remedy: str) -> ConfigError:
            return ConfigError(file, "--where", f'"{text}"', expected, remedy)

        match = _WRITTEN.fullmatch(text)
        if match is None:
            raise wrong("COLUMN=TEXT, COLUMN!=TEXT or COLUMN<NUMBER", 'write "framework=vllm*", for example')
        column, relation, wanted = match["column"], match["relation"], match["wanted"]
        if relation not in _ORDERS:
            return cls(text, column, relation, tuple(part.strip().lower() for part in wanted.split(",")))
        try:
            return cls(text, column, relation, number=float(wanted))
        except ValueError:
            raise wrong(f"a number after {relation}", "compare texts with = or !=") from None

    def holds(self, cells: Mapping[str, str]) -> bool:
        """Whether the cells of a row meet the condition; no cell that is not a number meets an order."""
        cell = cells.get(self.column, "")
        if self.number is not None:
            try:
                return _ORDERS[self.relation](float(cell), self.number)
            except ValueError:
                return False
        is_wanted = any(fnmatch.fnmatchcase(cell.lower(), pattern) for pattern in self.texts)
        return is_wanted == (self.relation == "=")


def where(table: Measurements, texts: Sequence[str], file: str = ARGUMENTS) -> Measurements:
    """The table with only those rows that meet every condition, rows that cannot be read among them.

    `file` is what holds the conditions, for error messages. **Raises:** `ConfigError` for a text that is no
    condition, a column that the table does not have, and conditions that no row meets.
    """
    conditions = [Condition.parse(text, file) for text in texts]
    for condition in conditions:
        if condition.column not in table.columns:
            remedy = did_you_mean(condition.column, table.columns)
            raise ConfigError(file, "--where", f'"{condition.column}"', f"a column of {table.file}", remedy)

    def kept(cells: Mapping[str, str]) -> bool:
        return all(condition.holds(cells) for condition in conditions)

    rows = [row for row in table.rows if kept(row.cells)]
    faults = [fault for fault in table.faults if kept(fault.cells)]
    if not rows and not faults:
        found = " and ".join(condition.text for condition in conditions)
        expected = f"conditions that some row of {table.file} meets"
        raise ConfigError(file, "--where", f'"{found}", which no row meets', expected, "leave one out")
    return dataclasses.replace(table, rows=rows, faults=faults)
