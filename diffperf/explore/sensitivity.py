"""Sensitivities: exact elasticities of an output of an estimate with respect to every input, ranked.

Derivatives of numbers that vary continuously; for whole numbers, estimates with one more and one less.
"""

import dataclasses
from collections.abc import Collection
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.compiler import stored
from diffperf.errors import ARGUMENTS, ConfigError
from diffperf.estimate.phases import estimate
from diffperf.explore.inputs import checked_output
from diffperf.explore.whole_steps import whole_numbers, whole_steps
from diffperf.flat_program import flattened_calls
from diffperf.quantity import Quantity, numeric
from diffperf.relax import Exact, Relaxation
from diffperf.report.tables import outputs
from diffperf.shared_values import compute_once
from diffperf.workload.configuration import Configuration

GROUPS = ("system", "strategy", "model")  # of inputs: the parts of a configuration that hold numbers
SLOPE = "slope"  # a derivative; other kinds are the steps of `diffperf.explore.whole_steps`


@dataclasses.dataclass(frozen=True)
class Sensitivity:
    """Effect of one input on an output.

    - `path`, `declared`, `value`: the input, and its value in internal units.
    - `elasticity`: d log(output) / d log(input): 1 % more of the input changes the output by this many per
      cent. Of a whole number it is the change with one more or one less (or with a tile of 128 more or
      less of a length or a dimension that is whole tiles), Δ log(output) / Δ log(input).
    - `derivative`: "slope", or the step that the number was changed by, such as "+1" or "−128".
    """

    path: str
    declared: Quantity
    value: float
    elasticity: float
    derivative: str = SLOPE


def sensitivities(
    configuration: Configuration,
    phase: str = "training",
    output: str = "time",
    *,
    groups: Collection[str] = ("system",),
    file: str = ARGUMENTS,
) -> list[Sensitivity]:
    """Elasticities of an output with respect to every number of some groups of inputs, the largest first.

    Numbers that are whole in reality have two, from estimates with one more and one less (see
    `whole_steps`), unless the relaxation is smooth.

    **Arguments:**

    - `configuration`: the point at which to differentiate. With an exact relaxation the derivative at a
      kink, such as two terms of a roofline that are equally slow, is that of one side; `Smooth(sharpness)`
      shares it out over both.
    - `phase`, `output`: the phase, and the path of the output in its report.
    - `groups`: some of "system" (hardware and prices), "strategy" and "model".

    **Raises:** `ConfigError` that names `file` for an output that the phase does not report, or that is zero.
    """
    checked_output(configuration, phase, output, file)
    parts: dict[str, eqx.Module] = {group: getattr(configuration, group) for group in GROUPS}
    varied = {group: part for group, part in parts.items() if group in groups}
    fixed = {group: part for group, part in parts.items() if group not in groups}
    value, slopes = jax.device_get(_elasticities(varied, fixed, phase, output, configuration.relax))
    if value == 0:
        raise ConfigError(
            file, "output", f"{output} = 0", "an output that is not zero", "ask for another output"
        )
    exact = isinstance(configuration.relax, Exact)
    stepped = whole_numbers(configuration) if exact else {}
    results = []
    for group, part in varied.items():
        slope_at = numeric(slopes[group])
        for path, (declared, number) in numeric(part).items():
            if f"{group}.{path}" not in stepped:
                elasticity = float(slope_at[path][1] / value)
                results.append(Sensitivity(f"{group}.{path}", declared, float(number), elasticity))
    if exact:
        steps = whole_steps(configuration, phase, output, tuple(varied))
        results += [
            Sensitivity(
                path=each.path,
                declared=each.declared,
                value=each.value,
                elasticity=each.elasticity,
                derivative=each.step,
            )
            for each in steps
        ]
    return sorted(results, key=lambda sensitivity: -abs(sensitivity.elasticity))


@stored("phase", "output")
def _elasticities(
    varied: dict[str, Any], fixed: dict[str, Any], phase: str, output: str, relax: Relaxation
) -> tuple[Float[Array, ""], dict[str, Any]]:
    """The output, and in the shape of `varied` its derivative by the relative growth of each leaf.

    A relative growth has no unit, so that inputs of very different magnitude keep their precision in float32.
    """

    def output_grown(growth: dict[str, Any]) -> Float[Array, ""]:
        scaled = jax.tree.map(lambda leaf, relative: leaf * (1 + relative), varied, growth)
        return outputs(estimate(Configuration(**scaled, **fixed, relax=relax), phase))[output][1]

    gradient = compute_once(jax.value_and_grad(flattened_calls(output_grown)))
    return gradient(jax.tree.map(jnp.zeros_like, varied))
