"""Rows of tables as inputs of the estimator, with a leading axis."""

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from diffperf.explore.measured.platforms import Platforms, Software
from diffperf.explore.measured.table import Row
from diffperf.hardware.formats import PRECISIONS
from diffperf.hardware.system import System
from diffperf.quantity import Scalar, Weights
from diffperf.workload.strategy import Strategy

# Other names of number formats: those of PyTorch, of vLLM and TensorRT-LLM, and of llama.cpp.
_FORMAT_NAMES = {
    "float32": "fp32", "f32": "fp32", "float16": "fp16", "f16": "fp16", "half": "fp16", "bfloat16": "bf16",
    "e4m3": "fp8", "float8_e4m3fn": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "w4a16": "int4",
}  # fmt: skip

# By column, the estimator's values for a row. Beside measured columns: "excess", bytes of memory beyond the
# device's capacity where positive, and "possible", 1 for a layout that exists and 0 for one that does not.
Outputs = dict[str, Scalar]


def _no_structure(row: Row) -> Hashable:
    return ()


@dataclasses.dataclass(frozen=True)
class Evaluator:
    """Functions by which the estimator evaluates the rows of one kind of table.

    - `unrepresentable`: why the estimator cannot represent a row, in a few words; None for a row that it can.
    - `stack`: inputs of `estimate` for several rows, with a leading axis.
    - `estimate`: the outputs for the inputs of one row, without that axis.
    - `structure`: what decides, beside the structure of the system, which compiled program a row needs.
    """

    unrepresentable: Callable[[Row], str | None]
    stack: Callable[[Sequence[Row], Platforms], tuple]
    estimate: Callable[..., Outputs]
    structure: Callable[[Row], Hashable] = _no_structure


def numbers(rows: Sequence[Row], column: str) -> Any:
    """The values of a column of numbers, (rows,): NumPy arrays, which fields of modules take for JAX's."""
    return np.array([row[column] for row in rows], dtype=float)


def weights(chosen: Sequence[str], names: Sequence[str]) -> Weights:
    """One-hot weights over `names`, (rows, names), from the chosen name of each row."""
    one_hot: Any = np.eye(len(names))[[names.index(name) for name in chosen]]
    return Weights(one_hot, tuple(names))


def switch(on: np.ndarray) -> Weights:
    """One-hot weights over ("off", "on"), (rows, 2), from a number or a truth value for each row."""
    one_hot: Any = np.eye(2)[on.astype(int)]
    return Weights(one_hot, ("off", "on"))


def one_of(rows: Sequence[Row], column: str, names: Sequence[str]) -> Weights:
    """One-hot weights over `names`, (rows, names), from a column that holds one of these names."""
    return weights([row[column] for row in rows], names)


def format_name(text: str) -> str:
    """The name that `diffperf.hardware.formats` has for a number format that a table names."""
    name = text.strip().lower().replace("-", "_")
    return _FORMAT_NAMES.get(name, name)


def precision(rows: Sequence[Row], column: str) -> Weights:
    """One-hot weights over the number formats, from a column that names one of them."""
    return weights([format_name(row[column]) for row in rows], PRECISIONS)


def unknown_precision(row: Row, *columns: str) -> str | None:
    """The first number format in some columns that is unknown, as a reason to skip the row."""
    unknown = (row[column] for column in columns if format_name(row[column]) not in PRECISIONS)
    return next((f"precision {name}" for name in unknown), None)


def first_reason(*reasons: str | bool | None) -> str | None:
    """The first of several reasons to skip a row that holds."""
    return next((reason for reason in reasons if isinstance(reason, str) and reason), None)


def software_of(row: Row, platforms: Platforms) -> Software | None:
    """The software that drove a row; None where the system's own did."""
    column, text = row.software
    accelerator = platforms[row["hardware"]].accelerator
    return platforms.software(
        column,
        text,
        accelerator,
        model=row.values.get("model") or "",
        served=has_clients(row),
        trained=row.kind == "training",
    )


def has_clients(row: Row) -> bool:
    """Whether a row is of a server with clients, who keep a number of requests in flight, and not of a run of
    one batch from end to end.
    """
    if row.kind == "inference":
        return row["batch"] is None and row["concurrency"] is not None
    return row.kind in ("serving", "energy")


def system_of(row: Row, platforms: Platforms) -> System:
    """The system that a row ran on, with the number of devices of its file."""
    return platforms.system(row["hardware"], software_of(row, platforms))


def systems_of(rows: Sequence[Row], platforms: Platforms) -> System:
    """The systems that several rows ran on as one, with a leading axis.

    All have one structure (levels of memory, tiers of network).

    The rows say how many devices there are, and how many are in a node; rows of kernels are of one device.
    """
    keys = [(row["hardware"], row.software, row.values.get("model")) for row in rows]
    distinct = {key: index for index, key in enumerate(dict.fromkeys(keys))}
    example = {distinct[key]: row for key, row in zip(keys, rows, strict=True)}
    loaded = [system_of(example[index], platforms) for index in range(len(distinct))]
    which = np.array([distinct[key] for key in keys])
    systems = jax.tree.map(lambda *leaves: np.stack(leaves)[which], *loaded)
    sizes = _tier_sizes(rows, systems, platforms)
    values = [value.astype(systems.n_devices.dtype) for value in (_devices(rows, "n_devices"), *sizes)]
    return eqx.tree_at(lambda s: [s.n_devices, *(tier.size for tier in s.network)], systems, values)


def _devices(rows: Sequence[Row], column: str) -> Float[np.ndarray, " rows"]:
    """A column of numbers of devices, NaN for an empty cell.

    Tables of kernels, measured on one device, do not have it.
    """
    return np.array([row.values.get(column, 1.0) for row in rows], dtype=float)


def _tier_sizes(rows: Sequence[Row], systems: System, platforms: Platforms) -> list[np.ndarray]:
    """Devices in a domain of each network tier: in the tier that is the node, those of the node.

    Tiers inside the node have at most as many. Where a row does not say the devices of a node, all tiers
    keep their own.
    """
    in_node, sizes = _devices(rows, "devices_per_node"), []
    nodes = [platforms[row["hardware"]].node for row in rows]
    for index, tier in enumerate(systems.network):
        is_node = np.array([node == index for node in nodes]) & ~np.isnan(in_node)
        inside_node = np.array([node is not None and index < node for node in nodes]) & ~np.isnan(in_node)
        own = np.asarray(tier.size)
        sizes.append(np.select([is_node, inside_node], [in_node, np.minimum(own, in_node)], own))
    return sizes


def stacked_strategy(rows: Sequence[Row], **fields: Any) -> Strategy:
    """Strategies of the given fields, each with a leading axis; all other fields have their defaults."""
    given, plain = Strategy(**fields), Strategy()
    return jax.tree.map(
        lambda leaf, default: jnp.broadcast_to(leaf, (len(rows), *default.shape)), given, plain
    )
