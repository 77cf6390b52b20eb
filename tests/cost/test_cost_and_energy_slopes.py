"""Slopes of cost, energy and emissions by every number and every choice, against differences in float64.

Choices are moved from what they are towards equal weights of all alternatives, and not the other way, because
no weight is negative. The estimates are smooth: their derivatives are those of both sides. Degrees of layouts
are no whole numbers here, where groups begin to leave a domain: `tests/estimate/test_one_sided_slopes.py` has
those.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import diffperf as dp
from diffperf.estimate.phases import estimate
from diffperf.hardware.designed_accelerator import design_of, system_of
from diffperf.load import load_technology
from diffperf.quantity import Choice, Quantity, numeric, replace, walk
from diffperf.relax import Smooth
from diffperf.report.tables import outputs
from diffperf.workload.configuration import Configuration

OUTPUTS = ("energy.total", "cost.manufacturing", "cost.capital", "cost.rate", "cost.run", "cost.emissions")
STEPS = (
    1e-3,
    2e-4,
    4e-5,
    8e-6,
    1.6e-6,
)  # shares of a number; errors of rounding grow where those of curves shrink
TOLERANCE = 1e-5  # of the slope
ROUNDING = 1e-13  # of the output, over the step
SHARPNESS = 20.0
LEAST = 2.3e-3  # of the upper bound: what a number that is 0 is moved to, within its bounds
OFF_KINKS = 1.037  # times every number of a layout
# Stages take whole layers where the embedding and the head count as none, or as one.
MIXED = {"embedding_in_split": np.array([0.7, 0.3]), "loss_in_split": np.array([0.6, 0.4])}
NOT_MOVED = (
    # 0 stands for a number that is not given.
    "design.power_limit",
    "strategy.first_stage_layers",
    "strategy.last_stage_layers",
    "strategy.zero_ranks",
    # What a library lacks takes forever: a share of it has a slope that no difference meets.
    "collectives.alternative",
    "collectives.inner_alternative",
)


def designed(system, technology):
    """An accelerator that is designed, with memory and storage: its design and technology, and its system."""
    design = replace(design_of(system, technology), {"storage_stacks": 1.5, "dies": 2.5})
    parts = {"design": design, "technology": technology, "system": system}

    def of(parts):
        return system_of(parts["design"], parts["technology"], parts["system"])

    return parts, of


CASES = {
    # What is moved and the system that comes of it; model, phase, layout.
    "designed-decode": (
        lambda: designed(dp.load_system("dgx-h100", n_devices=8), load_technology("n4-hbm3-hbs")),
        ("llama-2-70b", "decode", {"tp": 8, "global_batch": 32}),
    ),
    "shipped-training": (
        lambda: ({"system": dp.load_system("dgx-h100", n_devices=1024)}, lambda parts: parts["system"]),
        ("gpt3-175b", "training", {"tp": 8, "pp": 8, "dp": 16, "global_batch": 512, "zero": "1"}),
    ),
}


def inputs_of(parts: dict) -> list[tuple[str, str, Quantity | Choice, Any]]:
    """Part, path, declaration and value of everything that is moved."""
    leaves = [(name, *leaf) for name, part in parts.items() for leaf in walk(part)]
    return [leaf for leaf in leaves if not f"{leaf[0]}.{leaf[1]}".endswith(NOT_MOVED)]


def moved(parts: dict, growth) -> dict:
    """All numbers and choices of the parts, each moved by its share."""
    values = {name: {} for name in parts}
    for (name, path, declared, value), share in zip(inputs_of(parts), growth, strict=True):
        if isinstance(declared, Quantity):
            base = value if float(value) != 0 else LEAST * declared.bounds[1]
            values[name][path] = base * (1 + share)
        else:
            even = np.ones_like(value.array) / value.array.shape[-1]
            values[name][path] = value.array + share * (even - value.array)
    return {name: replace(part, values[name]) for name, part in parts.items()}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_slopes_of_cost_and_energy_are_those_of_differences(case):
    make, (model, phase, layout) = CASES[case]
    parts, system_after = make()
    model = dp.load_model(model)
    whole = dp.load_strategy(layout, n_devices=float(parts["system"].n_devices))
    between = {path: OFF_KINKS * value for path, (_, value) in numeric(whole).items()}
    parts["strategy"] = replace(whole, between | MIXED)
    count = len(inputs_of(parts))

    def at(growth):
        after = moved(parts, growth)
        configuration = Configuration(model, system_after(after), after["strategy"], Smooth(SHARPNESS))
        report = outputs(estimate(configuration, phase))
        return jnp.stack([report[path][1] for path in OUTPUTS])

    @jax.jit
    def along(points, directions):
        """Outputs at points, and their derivatives along directions: one program for both."""
        return jax.vmap(lambda point, direction: jax.jvp(at, (point,), (direction,)))(points, directions)

    eye, none = np.eye(count), np.zeros((count, count))
    values, slopes = jax.device_get(along(none, eye))

    is_choice = np.array([[isinstance(declared, Choice)] for _, _, declared, _ in inputs_of(parts)])

    def differences(step: float) -> np.ndarray:
        """Central differences of fourth order; of choices, forward differences of third order."""

        def after(steps: int) -> np.ndarray:
            return np.asarray(along(steps * step * eye, none)[0])

        one, two, four = after(1), after(2), after(4)
        forward = (32 * one - 12 * two + four - 21 * values) / (12 * step)
        central = (8 * (one - after(-1)) - (two - after(-2))) / (12 * step)
        return np.where(is_choice, forward, central)

    allowed = TOLERANCE * np.abs(slopes)
    right = np.zeros(slopes.shape, dtype=bool)
    for step in STEPS:
        right |= np.abs(differences(step) - slopes) <= allowed + ROUNDING * np.abs(values) / step
    wrong = [
        f"{name}.{path}: {output}"
        for (name, path, *_), row in zip(inputs_of(parts), right, strict=True)
        for output, agrees in zip(OUTPUTS, row, strict=True)
        if not agrees
    ]
    assert not wrong, wrong
    assert np.count_nonzero(slopes) > count
