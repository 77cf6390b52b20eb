"""The manifest of a results folder: which sweep it holds, in a form that people and other tools read."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from diffperf.errors import ConfigError
from diffperf.explore.sweep.axis import Axis, ConfigAxis
from diffperf.explore.sweep.kept_reader import ORDERS
from diffperf.explore.sweep.part_files import write_whole
from diffperf.explore.sweep.point_estimates import recorded_outputs
from diffperf.explore.sweep.space import Space
from diffperf.explore.sweep.sweep_plan import SweepPlan, releases
from diffperf.quantity import walk

FILE = "manifest.json"
SCHEMA = 1  # of the folder; other schemas are refused
# Keys that change while a sweep is running, that which tells a folder of checkpoints, and that which says no
# more than that something differs.
_STATE = ("computed_in", "complete", "temporary", "digest")
_MOST_DIFFERENCES = 3  # that an error names


def manifest_of(plan: SweepPlan, computed_in: str, complete: bool = False) -> dict[str, Any]:
    """The manifest of a sweep as it was asked for, which computes in a precision: "float32", or "float64"
    where single precision overflows too."""
    space, parts = plan.space, plan.parts
    paths = recorded_outputs(space)
    return {
        "schema": SCHEMA,
        "releases": releases(),
        "name": space.name,
        "phase": space.phase,
        "points": space.size,
        "parts": {"count": len(parts.starts), "points": parts.part, "chunk": parts.chunk},
        "kept": ["summaries", "table"] if plan.table else ["summaries"],
        "precision": plan.rules.dtype.name,
        "rank_by": space.rank_by,
        "order": ORDERS[space.descending],
        "top": space.top,
        "best_by": list(space.best_by),
        "best_per_value": space.best_per_value,
        "pareto": [path for path, _ in space.objectives],
        "histograms": list(space.histograms),
        "where": [constraint.text for constraint in space.where],
        "axes": {axis.path: _axis(axis) for axis in space.axes},
        "outputs": {path: space.outputs[path].unit for path in paths},
        "inputs": _inputs(space),
        "digest": plan.digest,
        "computed_in": computed_in,
        "complete": complete,
    }


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Writes the manifest of a folder."""
    text = json.dumps(manifest, indent=1) + "\n"
    write_whole(folder / FILE, lambda stream: stream.write(text.encode()))


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a folder, None where there is none.

    **Raises:** `ConfigError` where it cannot be read, or is of another schema.
    """
    path = folder / FILE
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        schema = manifest["schema"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        remedy = "delete this file to go on: finished parts are known without it"
        raise ConfigError(path, "", "a damaged file", "the manifest of a sweep", remedy) from None
    if schema != SCHEMA:
        remedy = "name another folder (--results)"
        raise ConfigError(path, "schema", schema, f"{SCHEMA}, which this release writes", remedy)
    return {"temporary": False, **manifest}


def differences(manifest: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """Differences of the sweep of one manifest from that of another, in words; empty where there is none."""
    ours, theirs = dict(_flat(expected)), dict(_flat(manifest))
    changed = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key) and key not in _STATE]
    if not changed and manifest.get("digest") != expected["digest"]:
        return "values on its axes, or numbers in its configs, are others"
    texts = [f"{key} is {_shown(theirs.get(key))}, not {_shown(ours.get(key))}" for key in changed]
    more = f" and {len(texts) - _MOST_DIFFERENCES} more" if len(texts) > _MOST_DIFFERENCES else ""
    return ", ".join(texts[:_MOST_DIFFERENCES]) + more


def _axis(axis: Axis | ConfigAxis) -> dict[str, Any]:
    """An axis: its unit, its dimension, and its values in short; the digest tells all of them."""
    unit = getattr(axis.declared, "unit", "")
    if axis.labels is not None:
        return {"dimension": axis.dimension, "values": list(axis.labels)}
    values = axis.values if len(axis) <= 16 else axis.values[[0, -1]]
    return {"dimension": axis.dimension, "unit": unit, "count": len(axis), "values": values.tolist()}


def _inputs(space: Space) -> dict[str, Any]:
    """All inputs that are no axes, by path, in internal units."""
    varied = {axis.path for axis in space.axes} | {f"strategy.{name}" for name in space.derived}
    varied |= {"design.voltage"} & {f"design.{name}" for name in space.derived}
    parts = {axis.part + "." for axis in space.axes if isinstance(axis, ConfigAxis)}
    return {
        path: jax.tree.map(lambda leaf: np.asarray(leaf, float).tolist(), _array(value))
        for path, _, value in walk(space.inputs)
        if path not in varied and not path.startswith(tuple(parts))
    }


def _array(value: Any) -> Any:
    """The numbers of an input: of weights over alternatives, each weight."""
    leaves = jax.tree.leaves(value)
    return leaves[0] if len(leaves) == 1 else leaves


def _flat(manifest: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The entries of a manifest by their dotted keys; inputs by their own paths."""
    for key, value in manifest.items():
        if isinstance(value, Mapping):
            yield from _flat(value, "" if key == "inputs" else f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _shown(value: Any) -> str:
    """A value in an error: short, and as JSON writes it."""
    text = "missing" if value is None else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"
