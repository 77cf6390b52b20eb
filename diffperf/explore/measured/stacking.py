"""Columns of measured rows as stacked inputs of the estimator: numbers, choices as weights, systems, strategies."""

import dataclasses
from collections.abc import Callable, Hashable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from diffperf.explore.measured.platforms import stacked_systems
from diffperf.explore.measured.table import Row
from diffperf.hardware.accelerator import PRECISIONS
from diffperf.hardware.system import System
from diffperf.quantity import Scalar
from diffperf.workload.strategy import Strategy

Outputs = dict[
    str, Scalar
]  # by column; "excess" > 0 is out of memory, "possible" says whether the layout exists


@dataclasses.dataclass(frozen=True)
class Evaluator:
    """How one kind of table is evaluated: what it cannot represent is named, nothing is put in its place."""

    unrepresentable: Callable[[Row], str | None]
    stack: Callable[[Sequence[Row]], tuple]  # inputs of `estimate`, with a leading axis
    estimate: Callable[..., Outputs]  # of one row
    structure: Callable[[Row], Hashable] = (
        lambda row: ()
    )  # beside the system's: rows of one structure share a program


def numbers(rows: Sequence[Row], column: str) -> np.ndarray:
    return np.array([row[column] for row in rows], dtype=float)


def switch(on: np.ndarray) -> np.ndarray:
    return np.eye(2)[on.astype(int)]


def precision(rows: Sequence[Row], column: str) -> np.ndarray:
    return np.eye(len(PRECISIONS))[[PRECISIONS.index(row[column]) for row in rows]]


def one_of(rows: Sequence[Row], column: str, names: Sequence[str]) -> np.ndarray:
    return np.eye(len(names))[[names.index(row[column]) for row in rows]]


def lacking(row: Row, *columns: str) -> str | None:
    """The first number format among the columns that the estimator does not know."""
    return next((f"precision {row[column]}" for column in columns if row[column] not in PRECISIONS), None)


def first(*reasons: str | bool | None) -> str | None:
    return next((reason for reason in reasons if reason), None)


def systems_of(rows: Sequence[Row]) -> System:
    """The rows' systems; those of kernel tables, which name neither devices nor framework, are one device, bare."""
    runs = "n_devices" in rows[0].values
    one = np.ones(len(rows))
    devices, in_node = (numbers(rows, "n_devices"), numbers(rows, "devices_per_node")) if runs else (one, one)
    frameworks = [row.values.get("framework", row.values.get("library", "kernels")) for row in rows]
    return stacked_systems([row["hardware"] for row in rows], frameworks, devices, in_node)


def stacked_strategy(rows: Sequence[Row], **fields: np.ndarray) -> Strategy:
    """Strategies of the given fields, each with a leading axis; all other fields have their defaults."""
    given, plain = Strategy(**fields), Strategy()
    return jax.tree.map(
        lambda leaf, default: jnp.broadcast_to(leaf, (len(rows), *default.shape)), given, plain
    )
