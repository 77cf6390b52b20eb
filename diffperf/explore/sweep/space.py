"""A space of configurations: axes over the inputs of an estimate, whose product is the points of a sweep.

Points are numbered, the last axis fastest, and never stored: a point is computed from its number, or from
its *digits*, its position on every axis.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from diffperf.explore.inputs import report_outputs
from diffperf.explore.plan.candidates import default_global_batch
from diffperf.quantity import Choice, Quantity, Weights, locate
from diffperf.workload.configuration import Configuration


@dataclasses.dataclass(frozen=True)
class Axis:
    """One input and the values it takes.

    - `values`: numbers in internal units, (values,), or weights over alternatives, (values, alternatives).
    - `labels`: for a choice, the name of each value.
    """

    path: str
    declared: Quantity | Choice
    values: Float[np.ndarray, " values"] | Float[np.ndarray, "values alternatives"]
    labels: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def value(self, digit: int | Int[Array, ""], dtype: np.dtype) -> Array | Weights:
        """The value at a position, as a leaf of a configuration; the position may be traced."""
        value = jnp.asarray(self.values, dtype)[digit]
        return Weights(value, self.declared.alternatives) if isinstance(self.declared, Choice) else value


@dataclasses.dataclass(frozen=True)
class Space:
    """Axes over a set of inputs.

    - `inputs`: the values of everything that is not an axis.
    - `derived`: fields of the strategy that neither the file gives nor an axis varies, and that follow from
      the other inputs of a point: "dp" (the devices that tp, pp and cp leave) and in training
      "global_batch" (one micro-batch per device).
    - `rank_by`: path of the output by which the best `top` points are kept; `descending` where more of it
      is better.
    """

    name: str
    inputs: Configuration
    phase: str
    axes: tuple[Axis, ...]
    derived: frozenset[str]
    rank_by: str
    descending: bool
    top: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of values on every axis."""
        return tuple(len(axis) for axis in self.axes)

    @property
    def size(self) -> int:
        """The number of points."""
        return math.prod(self.shape)

    @functools.cached_property
    def outputs(self) -> dict[str, Quantity]:
        """The declarations of what the phase reports, by path."""
        return report_outputs(self.inputs, self.phase)

    def digits(self, number: int) -> tuple[int, ...]:
        """The position on every axis of the point with this number."""
        result = []
        for length in reversed(self.shape):
            number, digit = divmod(number, length)
            result.append(digit)
        return tuple(reversed(result))

    def advance(self, digits: Int[Array, " axes"], offset: Int[Array, ""]) -> list[Int[Array, ""]]:
        """The digits of the point whose number is higher by `offset`, wrapped around at the end.

        Numbers of points overflow 32 bits in large spaces; their digits and the offset within a chunk do not.
        """
        result, carry = [], offset
        for axis in reversed(range(len(self.axes))):
            total = digits[axis] + carry
            result.append(total % len(self.axes[axis]))
            carry = total // len(self.axes[axis])
        return result[::-1]

    def point(self, digits: Sequence[int | Int[Array, ""]], base: Configuration) -> Configuration:
        """The configuration at a position on every axis; `base` is `self.inputs` in the precision to
        compute in."""
        dtype = base.strategy.tp.dtype
        values = [axis.value(digit, dtype) for axis, digit in zip(self.axes, digits, strict=True)]
        inputs = eqx.tree_at(lambda tree: [locate(tree, axis.path)[0] for axis in self.axes], base, values)
        if "dp" in self.derived:
            strategy = inputs.strategy
            left = inputs.system.n_devices / (strategy.tp * strategy.pp * strategy.cp)
            inputs = eqx.tree_at(lambda tree: tree.strategy.dp, inputs, jnp.maximum(left, 1.0))
        if "global_batch" in self.derived:
            batch = default_global_batch(inputs.system, inputs.strategy)
            inputs = eqx.tree_at(lambda tree: tree.strategy.global_batch, inputs, batch)
        return inputs
