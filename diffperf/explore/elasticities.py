"""Exact elasticities of every output of a report with respect to every number of hardware and layout, by one
compiled program.

`diffperf.explore.sensitivity` asks for one output and differentiates backwards. Here all outputs are wanted
at once, again and again at changed numbers: derivatives run forwards, along all inputs in one batch, which
takes half as long to compile and a few milliseconds to run.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from diffperf.compiler import stored
from diffperf.estimate.phases import estimate
from diffperf.quantity import Quantity, numeric, replace
from diffperf.report.tables import outputs
from diffperf.workload.configuration import Configuration

GROUPS = ("system", "strategy")  # of inputs: the parts of a configuration that are varied


@dataclasses.dataclass(frozen=True)
class Elasticities:
    """How the inputs of a configuration move the outputs of its report.

    - `inputs`: the declaration and the value of each varied input, by path.
    - `outputs`: the value of each output, by path.
    - `slopes`: d output / d log(input), (inputs, outputs), in the order of the two tables.
    """

    inputs: dict[str, tuple[Quantity, float]]
    outputs: dict[str, float]
    slopes: Float[np.ndarray, "inputs outputs"]

    def of(self, output: str) -> dict[str, float]:
        """d log(output) / d log(input) by the input's path; all are 0 for an output that is 0."""
        value = self.outputs[output]
        column = self.slopes[:, list(self.outputs).index(output)]
        shares = column / value if value else np.zeros_like(column)
        return dict(zip(self.inputs, shares.tolist(), strict=True))


def elasticities(configuration: Configuration, phase: str) -> Elasticities:
    """The elasticities of all outputs of a phase, at a configuration with exact or smooth relaxation."""
    inputs = _varied(configuration)
    directions = np.eye(len(inputs))
    values, slopes = jax.device_get(_evaluate(configuration, jnp.asarray(directions, dtype=float), phase))
    return Elasticities(
        inputs={path: (declared, float(value)) for path, (declared, value) in inputs.items()},
        outputs={path: float(value) for path, value in values.items()},
        slopes=np.stack([slopes[path] for path in values], axis=-1),
    )


def _varied(configuration: Configuration) -> dict[str, tuple[Quantity, Array]]:
    """The declaration and the value of each input that is varied, by path."""
    return {
        f"{group}.{path}": found
        for group in GROUPS
        for path, found in numeric(getattr(configuration, group)).items()
    }


@stored("phase", optimized=False)
def _evaluate(
    configuration: Configuration, directions: Float[Array, "inputs inputs"], phase: str
) -> tuple[dict[str, Float[Array, ""]], dict[str, Float[Array, " inputs"]]]:
    """The outputs of a phase by path, and their derivatives along directions of relative growth of the
    inputs.
    """
    inputs = {path: value for path, (_, value) in _varied(configuration).items()}

    def grown(growth: list[Array]) -> dict[str, Array]:
        values = {path: value * (1 + g) for (path, value), g in zip(inputs.items(), growth, strict=True)}
        report = estimate(replace(configuration, values), phase)
        return {path: value for path, (_, value) in outputs(report).items()}

    still = [jnp.zeros_like(value) for value in inputs.values()]

    def along(direction: Float[Array, " inputs"]) -> dict[str, Array]:
        return jax.jvp(grown, (still,), (list(direction),))[1]

    return grown(still), jax.vmap(along)(directions)
