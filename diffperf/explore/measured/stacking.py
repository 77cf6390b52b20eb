"""Columns of measured rows as stacked inputs of the estimator: numbers, choices as weights, systems, strategies."""

import dataclasses
from collections.abc import Callable, Hashable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from diffperf.explore.measured.platforms import stacked_systems
from diffperf.explore.measured.table import Row
from diffperf.hardware.formats import PRECISIONS
from diffperf.hardware.system import System
from diffperf.quantity import Scalar, Weights
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


def weights(chosen: Sequence[str], names: Sequence[str]) -> Weights:
    """One-hot weights over `names`, a row for each chosen name."""
    return Weights(np.eye(len(names))[[names.index(name) for name in chosen]], tuple(names))


def switch(on: np.ndarray) -> Weights:
    """Weights over off and on, a row for each entry of `on`: 0 and 1, or false and true."""
    return Weights(np.eye(2)[on.astype(int)], ("off", "on"))


def precision(rows: Sequence[Row], column: str) -> Weights:
    """Weights over the number formats, from a column that names one."""
    return one_of(rows, column, PRECISIONS)


def one_of(rows: Sequence[Row], column: str, names: Sequence[str]) -> Weights:
    """Weights over `names`, from a column that holds one of them."""
    return weights([row[column] for row in rows], names)


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
