"""What an output hangs on: exact elasticities of an estimate with respect to every input, ranked."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from diffperf.errors import ConfigError, did_you_mean
from diffperf.estimate.phases import estimate
from diffperf.explore.inputs import report_outputs
from diffperf.hardware.system import System
from diffperf.quantity import Quantity, numeric
from diffperf.relax import Exact, Relaxation
from diffperf.report.tables import outputs
from diffperf.workload.configuration import Configuration
from diffperf.workload.model import Model
from diffperf.workload.strategy import Strategy

GROUPS = ("system", "strategy", "model")


@dataclasses.dataclass(frozen=True)
class Sensitivity:
    """How one input moves the output.

    - `path`, `declared`, `value`: the input; the value in its declared unit.
    - `elasticity`: d log(output) / d log(input): +1 % of the input changes the output by this many percent.
    """

    path: str
    declared: Quantity
    value: float
    elasticity: float


@partial(jax.jit, static_argnames=("phase", "output"))
def _elasticities(varied: dict[str, Any], fixed: dict[str, Any], phase: str, output: str, relax: Relaxation):
    """The output, and in the shape of `varied` its derivative by the relative growth of each leaf (scale-free)."""

    def grown(growth):
        scaled = jax.tree.map(lambda leaf, relative: leaf * (1 + relative), varied, growth)
        return outputs(estimate(Configuration(**scaled, **fixed, relax=relax), phase))[output][1]

    return jax.value_and_grad(grown)(jax.tree.map(jnp.zeros_like, varied))


def sensitivities(
    model: Model,
    system: System,
    strategy: Strategy,
    phase: str = "training",
    output: str = "time",
    *,
    relax: Relaxation | None = None,
    groups: tuple[str, ...] = ("system",),
) -> list[Sensitivity]:
    """Elasticities of an output (a path into the report) for every number of the groups, the largest first.

    `groups` are of "system" (hardware and prices), "strategy" and "model". Exact by default; `relax=Smooth(sharpness)` spreads
    what sits at a kink, such as two terms of a roofline that are equally slow, over both sides.

    **Raises:** `ConfigError` for an output the phase does not report, or one that is zero.
    """
    relax = Exact() if relax is None else relax
    inputs = Configuration(model, system, strategy, relax)
    known = report_outputs(inputs, phase)
    if output not in known:
        raise ConfigError(
            "command line",
            "output",
            f'"{output}"',
            f"an output of {phase}",
            did_you_mean(output, list(known)),
        )
    parts = {group: getattr(inputs, group) for group in GROUPS}
    varied = {group: part for group, part in parts.items() if group in groups}
    fixed = {group: part for group, part in parts.items() if group not in groups}
    at, slopes = jax.device_get(_elasticities(varied, fixed, phase, output, relax))
    if at == 0:
        raise ConfigError(
            "command line", "output", f"{output} = 0", "an output that is not zero", "ask for another one"
        )
    found = [
        Sensitivity(f"{group}.{path}", declared, float(value), float(numeric(slopes[group])[path][1] / at))
        for group, part in varied.items()
        for path, (declared, value) in numeric(part).items()
    ]
    return sorted(found, key=lambda one: -abs(one.elasticity))
