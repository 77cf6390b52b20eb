"""Contributions of several changes on the way from one configuration to another.

The contribution of a change is its Shapley value: the mean of what it does over all orders in which the
changes can be made. Contributions add up to the whole difference, and do not depend on an order.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import equinox as eqx
import jax
import numpy as np

from diffperf.explore.points import outputs_at
from diffperf.hardware.system import System
from diffperf.workload.configuration import Configuration

MOST_CHANGES = 10  # whose every combination is evaluated: 1,024

# The parts of a system that may change one at a time, each with its fields: of the accelerator, of the
# system.
SYSTEM_PARTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "memory": (("memory",), ()),
    "compute": (
        (
            *("compute_units", "matrix", "vector", "kernel_latency", "attention", "cluster"),
            *("tiles_at_once", "split_latency", "unit_bandwidth"),
        ),
        (),
    ),
    "power": (
        (
            *("compute_energy", "vector_energy", "static_power", "active_power", "waiting_share"),
            *("power_limit", "power_exponent", "power_window"),
            *("clock_limit", "boost_clock", "base_clock"),
        ),
        (),
    ),
    "network": ((), ("network",)),
    "software": ((), ("stack", "inference_stack")),
    "price": (("package", "purchase_price", "priced_manufacturing", "rent"), ("prices", "host")),
    "host and size": ((), ("n_devices", "host_bandwidth", "host_memory_bandwidth", "reliability")),
}

Change = Callable[[Configuration], Configuration]


@dataclasses.dataclass(frozen=True)
class Attribution:
    """An output before and after some changes, and what each of them adds to it."""

    before: float
    after: float
    contributions: dict[str, float]


def shapley(value_of: Callable[[frozenset[int]], float], players: int) -> np.ndarray:
    """The Shapley value of every player of a game, (players,): from the value of every subset of players."""
    worth = {
        frozenset(chosen): value_of(frozenset(chosen))
        for size in range(players + 1)
        for chosen in itertools.combinations(range(players), size)
    }
    shares = np.zeros(players)
    for subset, value in worth.items():
        for player in range(players):
            if player not in subset:
                orders = math.factorial(len(subset)) * math.factorial(players - len(subset) - 1)
                shares[player] += orders / math.factorial(players) * (worth[subset | {player}] - value)
    return shares


def attributed(
    configuration: Configuration, changes: Mapping[str, Change], phase: str, output: str
) -> Attribution:
    """Contribution of every change of a configuration to an output."""
    made = list(changes.values())

    def value_of(chosen: frozenset[int]) -> float:
        changed = configuration
        for place in sorted(chosen):
            changed = made[place](changed)
        return float(outputs_at(changed, {}, phase)[output][0])

    shares = shapley(value_of, len(made))
    before, after = value_of(frozenset()), value_of(frozenset(range(len(made))))
    return Attribution(before, after, dict(zip(changes, shares.tolist(), strict=True)))


def changes_between(before: Configuration, after: Configuration) -> dict[str, Change]:
    """The changes that lead from one configuration to another: the parts of the system that differ, the
    strategy and the model.
    """
    changes: dict[str, Change] = {
        name: _part_of_system(after.system, *fields)
        for name, fields in SYSTEM_PARTS.items()
        if _differ(_fields(before.system, *fields), _fields(after.system, *fields))
    }
    for name in ("strategy", "model"):
        part = getattr(after, name)
        if _differ(getattr(before, name), part):
            changes[name] = lambda c, name=name, part=part: dataclasses.replace(c, **{name: part})
    return changes


def _fields(system: System, of_accelerator: Sequence[str], of_system: Sequence[str]) -> list:
    return [
        *(getattr(system.accelerator, name) for name in of_accelerator),
        *(getattr(system, name) for name in of_system),
    ]


def _part_of_system(system: System, of_accelerator: Sequence[str], of_system: Sequence[str]) -> Change:
    """The change to a part of another system."""

    def changed(c: Configuration) -> Configuration:
        accelerator = dataclasses.replace(
            c.system.accelerator, **{name: getattr(system.accelerator, name) for name in of_accelerator}
        )
        parts = {name: getattr(system, name) for name in of_system}
        return dataclasses.replace(c, system=dataclasses.replace(c.system, accelerator=accelerator, **parts))

    return changed


def _differ(ours: eqx.Module | list, theirs: eqx.Module | list) -> bool:
    """Whether two trees differ in their structure or in any number."""
    if jax.tree.structure(ours) != jax.tree.structure(theirs):
        return True
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return not all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)
