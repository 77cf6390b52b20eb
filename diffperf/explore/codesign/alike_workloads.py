"""Workloads that differ in numbers alone are evaluated together: one traced estimate, mapped over these
numbers, in place of a copy of the estimate for each.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from diffperf.quantity import Weights, is_traced
from diffperf.workload.configuration import Configuration


def of_each(
    function: Callable[[Configuration, str], Any],
    configurations: Sequence[Configuration],
    phases: Sequence[str],
) -> list[Any]:
    """The results of a function of a configuration and a phase, for configurations with their phases.

    Configurations of one structure, with the same choices, are evaluated by one mapped call. A program then
    has the operations of one workload, whatever their number: that of eight services is traced and compiled
    in a quarter of the time.
    """
    alike: dict[Hashable, list[int]] = {}
    for place, (configuration, phase) in enumerate(zip(configurations, phases, strict=True)):
        alike.setdefault(_kind(configuration, phase), []).append(place)
    results: dict[int, Any] = {}
    for places in alike.values():
        chosen = [configurations[place] for place in places]
        each = _mapped(lambda one, phase=phases[places[0]]: function(one, phase), chosen)
        results |= zip(places, each, strict=True)
    return [results[place] for place in range(len(configurations))]


def _mapped(function: Callable[[Configuration], Any], alike: Sequence[Configuration]) -> list[Any]:
    """The results for configurations that differ in numbers alone; equal numbers stay out of the mapping."""
    structure = jax.tree.structure(alike[0])
    columns = list(zip(*map(jax.tree.leaves, alike), strict=True))
    differs = [any(not _equal(column[0], other) for other in column) for column in columns]
    if not any(differs):
        return [function(alike[0])] * len(alike)
    stacked = [jnp.stack(column) for column, differing in zip(columns, differs, strict=True) if differing]

    def of_one(own: list[Any]) -> Any:
        numbers = iter(own)
        leaves = [
            next(numbers) if differing else column[0]
            for column, differing in zip(columns, differs, strict=True)
        ]
        return function(jax.tree.unflatten(structure, leaves))

    results, made = jax.tree.flatten(jax.vmap(of_one)(stacked))
    return [made.unflatten(each) for each in zip(*map(jnp.unstack, results), strict=True)]


def _kind(configuration: Configuration, phase: str) -> Hashable:
    """Key that configurations share if they are evaluated together. Choices count with their weights: an
    alternative without weight is not computed.
    """
    leaves, structure = jax.tree.flatten(configuration)
    nodes = jax.tree.leaves(configuration, is_leaf=lambda node: isinstance(node, Weights))
    choices = tuple(
        None if is_traced(node.array) else np.asarray(node.array).tobytes()
        for node in nodes
        if isinstance(node, Weights)
    )
    kinds = tuple((np.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)
    return phase, structure, choices, kinds


def _equal(one: Any, other: Any) -> bool:
    """Whether two numbers are known to be equal: one value, or equal constants."""
    if one is other:
        return True
    return not (is_traced(one) or is_traced(other)) and np.array_equal(one, other)
