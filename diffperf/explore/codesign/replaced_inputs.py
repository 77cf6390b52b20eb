"""The numbers of a template that a design replaces by its own: to set or to vary them would change nothing of
the design, though it changes the baseline that the design is compared with.
"""

from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from diffperf.errors import ConfigError
from diffperf.explore.codesign.variables import Candidate
from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.chip import chip
from diffperf.hardware.designed_accelerator import system_of
from diffperf.hardware.system import System
from diffperf.quantity import locate

# Where a design has what the template's accelerator has under a path; parts that depend on the template's
# names are added in `_own_paths`.
_OF_ACCELERATOR = {
    "compute_energy": "technology.compute_energy",
    "static_power": "technology.static_density",
    "active_power": "technology.active_density",
    "power_limit": "design.power_limit",
    "package.memory_stacks": "design.memory_stacks",
    "package.stack_area": "technology.memory.stack_area",
    "package.memory_price": "technology.memory.price",
    "package.memory_carbon": "technology.memory.carbon",
    "package.storage_stacks": "design.storage_stacks",
    "package.storage_area": "technology.storage.stack_area",
    "package.storage_price": "technology.storage.price",
    "package.storage_carbon": "technology.storage.carbon",
}


def refuse_replaced_input(candidate: Candidate, path: str, file: str, key: str) -> None:
    """Raises `ConfigError` that names `file` and `key` for the full path of a number of the template that the
    design replaces by its own.
    """
    if not _is_replaced(candidate, path):
        return
    own = _own_path(candidate, path)
    remedy = f'write "{own}"' if own else "name a number of the design (design.…) or of its technology"
    found = f'"{path}" of the template, which the design replaces'
    raise ConfigError(file, key, found, "an input of the design", remedy)


def _is_replaced(candidate: Candidate, path: str) -> bool:
    """Whether nothing that the design comes to depends on an input of the template."""
    if not path.startswith("system."):
        return False
    # No number stays one that is computed from NaN.
    leaf = jax.tree.map(lambda number: jnp.full_like(number, jnp.nan), locate(candidate, path)[0])
    changed = eqx.tree_at(lambda tree: locate(tree, path)[0], candidate, leaf)
    template, technology = changed.system, changed.technology
    made = (
        system_of(changed.design, technology, template),
        chip(changed.design, technology, template.accelerator),
    )
    return not any(np.isnan(number).any() for number in jax.tree.leaves(made))


def _own_path(candidate: Candidate, path: str) -> str:
    """The path under which the design or its technology has what the template has at a path; empty where it
    has no such number.
    """
    for prefix, own in _own_paths(candidate.system):
        if path == prefix or path.startswith(f"{prefix}."):
            whole = own + path.removeprefix(prefix)
            break
    else:
        return ""
    try:
        return whole if locate(candidate, whole)[1] is not None else ""
    except KeyError:
        return ""


def _own_paths(system: System) -> Iterator[tuple[str, str]]:
    """Paths of a template, or what they begin with, each with its place in a design or its technology."""
    prefix = "system.accelerator."
    yield from ((prefix + path, own) for path, own in _OF_ACCELERATOR.items())
    yield from ((f"{prefix}{path}", own) for path, own in _of_memory(system.accelerator))
    compute = system.accelerator.package.dies[0].name
    yield f"{prefix}package.dies.{compute}.process", "technology.process"
    yield f"{prefix}package.dies.{compute}.count", "design.dies"
    innermost = system.network[0].name
    yield f"system.network.{innermost}.bandwidth", "design.network_bandwidth"
    yield f"system.network.{innermost}.energy", "technology.link.energy"


def _of_memory(accelerator: Accelerator) -> Iterator[tuple[str, str]]:
    """The same for the memory levels of an accelerator, from its own path on."""
    cache = f"memory.{accelerator.memory[accelerator.last_cache].name}"
    yield f"{cache}.capacity", "design.cache"
    yield f"{cache}.energy", "technology.sram_energy"
    for level in accelerator.memory:
        if level.kind == "storage" or level is accelerator.device_memory:
            own = "technology.storage" if level.kind == "storage" else "technology.memory"
            yield f"memory.{level.name}.capacity", f"{own}.stack_capacity"
            yield f"memory.{level.name}.bandwidth", f"{own}.stack_bandwidth"
            yield f"memory.{level.name}", own
