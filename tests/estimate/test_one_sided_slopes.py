"""Derivatives at kinks are those of one side, for every number of a system and a strategy, exact and smooth.

Whole numbers lie on kinks and stairs: tensor parallelism of 8 in domains of 8, groups of one and two members,
tiles that just fit. Where several kinks meet, a derivative made of one side of each is that of no side.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import diffperf as dp
from diffperf.estimate.network.transfers import transfers
from diffperf.estimate.phases import estimate
from diffperf.quantity import locate, numeric, replace
from diffperf.relax import Exact, Relaxation, Smooth
from diffperf.report.tables import outputs
from diffperf.workload.collective import Collective
from diffperf.workload.configuration import Configuration

OUTPUTS = ("time", "memory.peak", "energy.total", "cost.run")
STEPS = np.array([1e-5, 1e-6, 1e-7])
JUMP = 5.0  # times that a difference grows from the first to the last step where the output jumps
# Of an elasticity; beside it, an absolute error of rounding, which grows as steps shrink.
RELATIVE, ROUNDING = 2e-5, 1e-13 / STEPS

DEEPSEEK = {"pp": 4, "dp": 64, "ep": 64, "global_batch": 1024, "precision": "fp8", "overlap_experts": True}
PAIRS = {
    # model, system, devices, phase, strategy
    "gpt3-training": ("gpt3-175b", "dgx-a100", 64, "training", {"tp": 8, "pp": 8, "global_batch": 64}),
    "gpt3-one-node": ("gpt3-22b", "dgx-a100", 8, "training", {"tp": 8, "global_batch": 4, "micro_batch": 4}),
    "llama-zero": ("llama-3-8b", "dgx-h100", 16, "training", {"tp": 2, "zero": "3", "global_batch": 64}),
    "mixtral-training": (
        "mixtral-8x7b", "mi300x-8", 64, "training", {"tp": 2, "pp": 4, "ep": 8, "global_batch": 64},
    ),
    "deepseek-training": ("deepseek-v3", "gb200-nvl72", 256, "training", DEEPSEEK),
    "llama-prefill": ("llama-3-70b", "dgx-h100", 8, "prefill", {"tp": 8, "global_batch": 4}),
    "l40s-prefill": ("llama-3-8b", "l40s-8", 1, "prefill", {}),
    "llama-decode": ("llama-3-70b", "dgx-h100", 8, "decode", {"tp": 8, "global_batch": 32}),
    "mixtral-decode": (
        "mixtral-8x7b", "hgx-h200", 8, "decode", {"tp": 4, "dp": 2, "ep": 2, "global_batch": 64},
    ),
    "matmulfree-decode": ("matmulfree-2.7b", "dgx-a100", 1, "decode", {"global_batch": 16}),
}  # fmt: skip
# What remains, with its cause.
EXEMPT = {
    # Tiles of experts that just fit only allow fewer ranks; of two nodes that a group spreads over, the
    # derivative is that of more.
    ("mixtral-training", "strategy.ep"),
}


class Slopes(NamedTuple):
    """Of outputs by the logarithm of inputs, relative to the outputs: (inputs, outputs); and differences on
    both sides at all steps: (steps, inputs, outputs).
    """

    paths: list[str]
    derivative: np.ndarray
    right: np.ndarray
    left: np.ndarray


def configuration_of(name: str, relax: Relaxation) -> tuple[Configuration, str]:
    model, system, devices, phase, table = PAIRS[name]
    return (
        Configuration(
            dp.load_model(model),
            dp.load_system(system, n_devices=devices),
            dp.load_strategy(table, n_devices=devices),
            relax,
        ),
        phase,
    )


def inputs_of(c: Configuration) -> dict[str, tuple]:
    return {path: of for path, of in numeric(c).items() if not path.startswith("model.")}


@functools.partial(jax.jit, static_argnames="phase")
def _moved(c: Configuration, growth, directions, phase: str):
    """Outputs at configurations whose inputs have grown, and their derivatives along directions."""
    inputs = inputs_of(c)

    def at(growth):
        values = {path: value * (1 + g) for (path, (_, value)), g in zip(inputs.items(), growth, strict=True)}
        found = outputs(estimate(replace(c, values), phase))
        return jnp.stack([found[path][1] for path in OUTPUTS])

    return jax.vmap(lambda point, along: jax.jvp(at, (point,), (along,)))(growth, directions)


def slopes(c: Configuration, phase: str) -> Slopes:
    paths = list(inputs_of(c))
    eye, none = np.eye(len(paths)), np.zeros((len(paths), len(paths)))
    values, derivative = jax.device_get(_moved(c, none, eye, phase))
    value = values[0]
    assert np.all(value > 0)

    def at(step: float) -> np.ndarray:
        return jax.device_get(_moved(c, step * eye, none, phase))[0]

    def differences(side: int) -> np.ndarray:
        """One-sided differences of second order."""
        return np.stack([side * (4 * at(side * h) - at(2 * side * h) - 3 * value) / (2 * h) for h in STEPS])

    return Slopes(paths, derivative / value, differences(1) / value, differences(-1) / value)


def disagreements(found: Slopes, c: Configuration) -> list[str]:
    """Derivatives that are neither those of a side nor the mean of both; a side on which the output jumps, or
    that lies outside the bounds of the input, has none.
    """
    inputs, wrong = inputs_of(c), []
    for i, path in enumerate(found.paths):
        declared, value = inputs[path]
        for o, name in enumerate(OUTPUTS):
            right, left, ours = found.right[:, i, o], found.left[:, i, o], found.derivative[i, o]
            sides = [side for side in (right, left) if abs(side[-1]) < JUMP * abs(side[0]) + 1e-6]
            if float(value) <= declared.bounds[0]:
                sides = [side for side in sides if side is not left]
            if len(sides) == 2:
                sides.append((right + left) / 2)
            allowed = RELATIVE * abs(ours) + ROUNDING
            if sides and not any(np.any(np.abs(side - ours) <= allowed) for side in sides):
                wrong.append(f"d log {name} / d log {path} = {ours:.6g}, right {right}, left {left}")
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("relax", [Exact(), Smooth(20.0)], ids=["exact", "smooth"])
def test_derivatives_are_those_of_one_side(name, relax):
    c, phase = configuration_of(name, relax)
    wrong = disagreements(slopes(c, phase), c)
    exempt = [path for pair, path in EXEMPT if pair == name]
    assert [line for line in wrong if not any(f"{path} =" in line for path in exempt)] == []


@pytest.mark.slow
def test_the_size_of_a_domain_that_a_group_fills():
    """NVLink domains of 8 with tensor parallelism of 8: fewer devices send the group over InfiniBand, more
    change little. A derivative of −0.57 once came from a minimum of protocols over nothing to send.
    """
    c, phase = configuration_of("gpt3-training", Exact())
    found = slopes(c, phase)
    size = found.paths.index("system.network.nvlink.size")
    assert found.derivative[size, 0] == pytest.approx(found.left[0, size, 0], rel=1e-4)
    assert -0.1 < found.derivative[size, 0] < -0.003


def test_a_wrong_derivative_is_found():
    c, _ = configuration_of("matmulfree-decode", Exact())
    paths = list(inputs_of(c))
    ours = np.full((len(paths), len(OUTPUTS)), 0.5)
    right, left = (np.tile(ours, (3, 1, 1)) for _ in range(2))
    assert disagreements(Slopes(paths, ours, right, left), c) == []
    right[:, 3], left[:, 3] = 0.4, 0.7
    assert len(disagreements(Slopes(paths, ours, right, left), c)) == len(OUTPUTS)


# --- the network alone, which most of the kinks are in

KINDS = ("all_reduce", "reduce_scatter", "all_to_all", "broadcast")


@jax.jit
def _seconds(system, degree, stride):
    """One run of each kind of collective on 100 MB."""
    collectives = [
        Collective(
            degree=degree, stride=stride, volume=jnp.asarray(1e8), name=kind, kind=kind, purpose="gradients"
        )
        for kind in KINDS
    ]
    return jnp.stack([timed.transfer.time for timed in transfers(collectives, system, Exact())])


@jax.jit
def _along(system, values, directions):
    """Seconds, and their derivatives along the logarithms of (degree, stride, size of a domain)."""

    def at(growth):
        degree, stride, size = values * (1 + growth)
        return _seconds(replace(system, {"network.nvlink.size": size}), degree, stride)

    return jax.vmap(lambda g, d: jax.jvp(at, (g,), (d,)))(directions[0], directions[1])


@pytest.mark.parametrize(
    ("degree", "stride"), [(8, 1), (2, 1), (1, 1), (1, 8), (16, 1), (2, 4), (4, 4), (8, 8), (64, 1), (2, 8)]
)
def test_collectives_on_kinks(degree, stride):
    """A group that fills a domain, or has one or two members in it, or begins to leave it."""
    system = dp.load_system("dgx-a100", n_devices=64)
    values, eye, none = np.array([degree, stride, 8.0]), np.eye(3), np.zeros((3, 3))
    seconds, ours = _along(system, values, (none, eye))
    h = 1e-6
    right, left = (
        (_along(system, values, (side * h * eye, none))[0] - seconds) / (side * h) for side in (1, -1)
    )
    whole = np.asarray(seconds).max(axis=0) + 1e-6
    for name, ours_of, right_of, left_of in zip(("degree", "stride", "size"), ours, right, left, strict=True):
        sides = (right_of, left_of, (right_of + left_of) / 2)
        if {"degree": degree, "stride": stride}.get(name) == 1:
            sides = (right_of,)
        error = np.min([np.abs(ours_of - side) for side in sides], axis=0)
        assert np.all(error < 1e-4 * np.abs(ours_of) + 1e-5 * whole), (name, ours_of, right_of, left_of)


def test_locating_inputs_by_path_is_consistent():
    """The paths that the tests above grow are those of the configuration."""
    c, _ = configuration_of("llama-decode", Exact())
    for path, (_, value) in inputs_of(c).items():
        assert locate(c, path)[0] is value
