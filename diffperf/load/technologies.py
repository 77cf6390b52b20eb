"""Technologies from their parts: a family of accelerators on a node of any age, with any memory and links."""

import dataclasses
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from diffperf.errors import ARGUMENTS
from diffperf.hardware.node import Node, matured, node_at
from diffperf.hardware.technology import LinkTechnology, MemoryTechnology, Technology, moved
from diffperf.load.checks import checked_number
from diffperf.load.files import available
from diffperf.load.systems import load
from diffperf.quantity import Quantity, declaration


def load_nodes() -> tuple[Node, ...]:
    """All shipped silicon nodes, their features increasing: the table that `node_at` interpolates."""
    nodes = [load(Node, name) for name in available("nodes")]
    return tuple(sorted(nodes, key=lambda node: float(node.feature)))


def load_node(node: str | float, file: str = ARGUMENTS, key: str = "node") -> Node:
    """A silicon node by its name ("n5"), or by its feature ("5 nm", or 5 in nm) on or between shipped ones.

    **Raises:** `ConfigError` that names `file` and `key`, for an unknown name and for a feature outside 1 to
    28 nm.
    """
    if isinstance(node, str) and not node.strip()[:1].isdigit():
        return load(Node, node, asked_by=(file, key))
    declared = declaration(next(field for field in dataclasses.fields(Node) if field.name == "feature"))
    assert isinstance(declared, Quantity)
    text = node if isinstance(node, str) else f"{node} {declared.unit}"
    return node_at(load_nodes(), jnp.asarray(checked_number(declared, text, file, key), float))


def load_technology(
    name: str | Path,
    *,
    node: str | float | None = None,
    age: float | None = None,
    memory: str | None = None,
    link: str | None = None,
    die_to_die: str | None = None,
    storage: str | None = None,
    file: str = ARGUMENTS,
) -> Technology:
    """A technology by the name of a shipped config or the path of a TOML file, with other parts where given.

    **Arguments:**

    - `node`: the silicon node that the technology's family of accelerators moves to (as of `load_node`).
    - `age`: seconds since the start of volume production on that node, in place of the defects and prices of
      the process's own file.
    - `memory`, `link`, `die_to_die`, `storage`: names of configs in configs/memories and configs/links;
      storage is a second memory, of `storage_stacks` of a design. Their PHYs are those on the technology's
      own node, and move to another one with it.

    **Raises:** `ConfigError`, in one line.
    """
    technology: Technology = load(Technology, name, asked_by=(file, "technology"))
    parts = {
        "memory": (MemoryTechnology, memory),
        "storage": (MemoryTechnology, storage),
        "link": (LinkTechnology, link),
        "die_to_die": (LinkTechnology, die_to_die),
    }
    loaded: dict[str, Any] = {
        key: load(cls, part, asked_by=(file, key)) for key, (cls, part) in parts.items() if part is not None
    }
    technology = dataclasses.replace(technology, **loaded)
    if node is not None:
        technology = moved(technology, load_node(node, file))
    if age is not None:
        technology = matured(technology, jnp.asarray(age, float))
    return technology
