"""What several tests need: inputs drawn in their documented ranges, compiled estimators, and access by dotted path."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import diffperf as dp
from diffperf.quantity import Quantity, numeric, replace, walk

# Compiled once for all tests: inputs are traced, so that any numbers and choices of one structure share a program.
training = jax.jit(dp.training_step)
generate = jax.jit(dp.generate)


@functools.cache
def quantities_of(cls: type[eqx.Module]) -> dict[str, Quantity]:
    """The declared numeric fields of a module class by name."""
    fields = {name: field.metadata.get("quantity") for name, field in cls.__dataclass_fields__.items()}
    return {name: declared for name, declared in fields.items() if declared is not None}


def outputs(report: eqx.Module) -> dict[str, jax.Array]:
    """Every number of a report by dotted path."""
    return {path: value for path, _, value in walk(report)}


def units_of(report: eqx.Module) -> dict[str, str]:
    """The declared unit of every number of a report by dotted path."""
    return {path: declared.unit for path, declared, _ in walk(report)}


def leaves(module: eqx.Module) -> tuple[list[str], np.ndarray]:
    """The numeric inputs of a module: paths and values."""
    inputs = numeric(module)
    return list(inputs), np.array([float(value) for _, value in inputs.values()])


def with_leaves(module: eqx.Module, paths: list[str], values) -> eqx.Module:
    """The module with its numeric inputs replaced; `values` may be traced."""
    return replace(module, dict(zip(paths, values, strict=True)))


def draw(module: eqx.Module, rng: np.random.Generator, count: int, shrink: float = 0.0) -> np.ndarray:
    """`count` random designs, (count, inputs): every numeric input uniform in its documented range, on its declared scale.

    `shrink` moves the ends of the range towards the value the module has, by that fraction.
    """
    columns = []
    for declared, value in numeric(module).values():
        scale, back = (np.log, np.exp) if declared.log else (lambda x: x, lambda x: x)
        low, high, here = scale(declared.bounds[0]), scale(declared.bounds[1]), scale(float(value))
        low, high = low + shrink * (here - low), high + shrink * (here - high)
        columns.append(back(rng.uniform(low, high, count)))
    return np.stack(columns, axis=1)


def cast(tree, dtype):
    """The tree with all leaves of one float type."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), tree)
