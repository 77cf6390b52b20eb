"""The values of a table's cells: numbers, names and truth values, checked by their columns."""

import math
import re
from typing import Any

from diffperf.errors import did_you_mean
from diffperf.explore.measured.columns import Column
from diffperf.quantity import Choice, Quantity

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_NOT_FINITE = ("nan", "inf", "infinity")


class BadCell(Exception):
    """A cell that makes its row unusable: what it holds, why that is wrong, and what to do about it."""

    def __init__(self, column: str, found: str, reason: str, expected: str, remedy: str):
        super().__init__(column, found, reason, expected, remedy)
        self.column, self.found, self.reason = column, found, reason
        self.expected, self.remedy = expected, remedy


def cell_value(name: str, column: Column, text: str) -> Any:
    """The value of a cell, or the column's default for an empty cell. Raises `BadCell`."""
    if not text:
        if column.needed:
            raise BadCell(
                column=name,
                found="an empty cell",
                reason="missing",
                expected=column.expected,
                remedy="fill it in or drop the row",
            )
        return column.default
    match column.declared:
        case Choice() as choice:
            return _choice(name, column, choice, text.lower())
        case Quantity() as quantity:
            return _number(name, column, quantity, text)
    return text


def _choice(name: str, column: Column, choice: Choice, text: str) -> bool | str:
    """One of the alternatives of a choice; a truth value where they are off and on."""
    is_switch = choice.alternatives == ("off", "on")
    names = ("false", "true") if is_switch else choice.alternatives
    if text not in names:
        hint = did_you_mean(text, list(names))
        raise BadCell(
            column=name, found=f'"{text}"', reason="unknown value", expected=column.expected, remedy=hint
        )
    return text == "true" if is_switch else text


def _number(name: str, column: Column, quantity: Quantity, text: str) -> float:
    """A finite number within its declared range."""

    def bad(reason: str, remedy: str) -> BadCell:
        return BadCell(column=name, found=f'"{text}"', reason=reason, expected=column.expected, remedy=remedy)

    if text.lower().lstrip("+-") in _NOT_FINITE:
        raise bad("not a finite number", "leave the cell empty where nothing is known")
    if not _NUMBER.fullmatch(text):
        if _NUMBER.match(text):
            raise bad("a unit in the cell", "write the SI value alone")
        raise bad("not a number", "correct it or leave it empty")
    number, (low, high) = float(text), quantity.bounds
    if number < 0:
        raise bad("negative", "correct it or leave it empty")
    if not low <= number <= high or math.isinf(number):
        raise bad("out of range", "check the value and its unit")
    if quantity.integer and number != round(number):
        raise bad("not whole", "round it")
    return number
