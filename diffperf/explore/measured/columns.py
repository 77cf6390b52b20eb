"""Columns of a table of measurements: the contents of their cells, and how they are declared.

Cells are bare numbers in SI units, `true`/`false`, or names; an empty cell is an unknown value.
"""

import dataclasses
import math
from typing import Any

from diffperf.quantity import Choice, Quantity, declaration


@dataclasses.dataclass(frozen=True)
class Column:
    """Contents of the cells of one column.

    - `declared`: a number (`Quantity`), or one of several names (`Choice`, whose off and on are written
      `false` and `true`); None for any text.
    - `needed`: whether the table has to have the column, and every row a value in it.
    - `default`: the value of an empty cell.
    - `measured`: whether the column holds results of measurements, which the estimator predicts.
    """

    declared: Quantity | Choice | None = None
    needed: bool = True
    default: Any = None
    measured: bool = False

    @property
    def expected(self) -> str:
        """The contents that a cell should have, for error messages."""
        match self.declared:
            case Quantity(unit=unit, bounds=(low, high), integer=integer):
                kind = "a whole number" if integer else f"a bare number in {unit}" if unit else "a number"
                return f"{kind} above 0" if math.isinf(high) else f"{kind} from {low:g} to {high:g}"
            case Choice(alternatives=("off", "on")):
                return "true or false"
            case Choice(alternatives=names):
                return "one of " + ", ".join(names)
        return "a name"


def field_column(
    cls: type, name: str, low: float | None = None, *, needed: bool = True, default: Any = None
) -> Column:
    """A column that is a field of a module, with the field's declaration; `low` replaces its least value."""
    declared = declaration(cls.__dataclass_fields__[name])
    if low is not None and isinstance(declared, Quantity):
        declared = dataclasses.replace(declared, bounds=(low, declared.bounds[1]))
    return Column(declared, needed=needed, default=default)


def _declared_number(unit: str, bounds: tuple[float, float], *, integer: bool) -> Quantity:
    """The declaration of a number that is no field of a module."""
    return Quantity(unit=unit, doc="", bounds=bounds, log=True, integer=integer, kind="input")


def count_column(high: float = 1e9, low: float = 1, *, needed: bool = True, default: Any = None) -> Column:
    """A column of whole numbers."""
    return Column(_declared_number("", (low, high), integer=True), needed=needed, default=default)


def number_column(unit: str, low: float, high: float, *, needed: bool = True, default: Any = None) -> Column:
    """A column of numbers, whole or not, of a quantity that is given rather than measured."""
    return Column(_declared_number(unit, (low, high), integer=False), needed=needed, default=default)


def measured_column(unit: str) -> Column:
    """A column of measured values, which are positive."""
    above_zero = (math.ulp(0.0), math.inf)
    return Column(_declared_number(unit, above_zero, integer=False), needed=False, measured=True)


def text_column(default: Any = None) -> Column:
    """A column of texts that a table need not have."""
    return Column(needed=False, default=default)


FLAG = Choice(("off", "on"), "")  # a declaration of truth values
