"""Gradients with respect to every number of a system and a strategy against finite differences, in float64
and smooth mode.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import draw, leaves, with_leaves

import diffperf as dp
from diffperf.hardware.system import System
from diffperf.relax import Smooth
from diffperf.workload.strategy import Strategy

SHARPNESS = 20.0
# Rounding wants long steps, the bends of a staircase short ones: whichever serves a derivative best judges
# it.
STEPS = np.logspace(-2, -9, 15)
TOLERANCE = 1e-5  # of the derivative
ROUNDING = 1e-9  # of the output: what differences cannot resolve
OUTPUTS = ("time", "memory.peak", "energy.total", "cost.run")


def everything() -> Strategy:
    """A strategy in which all features of training count, of choices several."""
    return dp.load_strategy(
        {
            "tp": 8,
            "pp": 4,
            "dp": 8,
            "cp": 2,
            "ep": 8,
            "expert_tp": 2,
            "global_batch": 512,
            "micro_batch": 2,
            "zero_ranks": 4,
            "capacity_factor": 1.3,
            "recompute_share": 0.6,
            "offload_activations": 0.4,
            "offload_optimizer": 0.3,
            "zero": {"1": 0.2, "2": 0.2, "3": 0.6},
            "schedule": {"zero_bubble": 0.5, "dualpipe": 0.5},
            "context_parallel": {"ring": 0.5, "all_to_all": 0.5},
            "recompute": {"selective": 0.5, "full": 0.5},
            "order": {"tp-cp-dp-pp": 0.5, "dp-tp-cp-pp": 0.5},
            "attention": {"standard": 0.5, "flash": 0.5},
            "overlap_experts": True,
            "overlap_tensor": True,
            "balanced_head": True,
        }
    )


class Inputs(eqx.Module):
    """What an estimate is differentiated with respect to, besides the model."""

    system: System
    strategy: Strategy


@pytest.fixture(scope="module", params=["training", "generate", "experts"])
def problem(request, gpt, llama, system, strategy):
    """(inputs, paths, shipped values, outputs as a function of the values), all in float64."""
    phase, model, strategy = {
        "training": ("training", gpt, strategy),
        "generate": ("generate", llama, strategy),
        "experts": ("training", dp.load_model("deepseek-v3"), everything()),
    }[request.param]
    inputs = Inputs(system, strategy)
    rooms = ("strategy.", "system.network.", "system.host") if request.param == "experts" else ("system.",)
    paths, all_values = leaves(inputs)
    chosen = [path for path in paths if path.startswith(rooms)]
    values = np.array([value for path, value in zip(paths, all_values, strict=True) if path in chosen])

    def outputs(values):
        at = with_leaves(inputs, chosen, values)
        report = dp.PHASES[phase](model, at.system, at.strategy, Smooth(SHARPNESS))
        return jnp.stack([report.time, report.memory.peak, report.energy.total, report.cost.run])

    return inputs, chosen, values, outputs


def _gradient(outputs):
    """The outputs, and the gradient of their sum as weighted: ((outputs,), (inputs,))."""

    def of(x, weights):
        values, pull_back = jax.vjp(outputs, x)
        return values, pull_back(weights)[0]

    return jax.jit(of)


def _differences(outputs):
    """Central differences of fourth order in the logarithm of each input: (steps, inputs, outputs)."""

    def along(x, i, h):
        y = jax.vmap(lambda k: outputs(x.at[i].multiply(1 + k * h)))(jnp.array([-2.0, -1.0, 1.0, 2.0]))
        return (8 * (y[2] - y[1]) - (y[3] - y[0])) / (12 * h)

    def of(x):
        steps, inputs = jnp.meshgrid(jnp.asarray(STEPS), jnp.arange(x.size), indexing="ij")
        flat = jax.vmap(lambda input, step: along(x, input, step))(inputs.ravel(), steps.ravel())
        return flat.reshape(*steps.shape, -1)

    return jax.jit(of)


def _disagreements(derivatives, differences, values, paths):
    """Of derivatives (outputs, inputs) with the differences that suit them best, beyond tolerance: readable
    lines.
    """
    error = np.abs(differences - derivatives.T) - ROUNDING * np.abs(values)
    wrong = np.min(error, axis=0) > TOLERANCE * np.abs(derivatives.T)
    ours, theirs = derivatives / values[:, None], differences / values
    return [
        f"d log {OUTPUTS[o]} / d log {paths[i]} = {ours[o, i]}, not {theirs[:, i, o]}"
        for i, o in np.argwhere(wrong)
    ]


@pytest.mark.slow
def test_gradients_agree_with_differences(problem):
    inputs, paths, shipped, outputs = problem
    rng = np.random.default_rng(0)
    chosen = [leaves(inputs)[0].index(path) for path in paths]
    if "strategy.tp" in paths:
        # Whole degrees lie on the bends of staircases, which have no second derivative; far from here, steps
        # are many stairs long.
        points = [
            *draw(inputs, rng, 2, shrink=0.95)[:, chosen],
            *draw(inputs, rng, 2, shrink=0.85)[:, chosen],
        ]
    else:
        points = [shipped, *draw(inputs, rng, 3, shrink=0.7)[:, chosen], *draw(inputs, rng, 3)[:, chosen]]
    gradient, differences = _gradient(outputs), _differences(outputs)
    for x in map(jnp.asarray, points):
        values, gradients = zip(*(gradient(x, weights) for weights in np.eye(len(OUTPUTS))), strict=True)
        derivatives = np.stack(gradients) * np.asarray(x)
        assert _disagreements(derivatives, np.asarray(differences(x)), np.asarray(values[0]), paths) == []


def test_a_wrong_gradient_is_found():
    """One part in ten thousand, in one of two numbers, of one output."""
    values, paths = np.array([3.0, 5.0, 7.0, 9.0]), ["x", "y"]
    right = np.outer(values, [-1.0, 0.5])
    differences = np.stack([right.T * (1 + error) for error in (1e-2, 1e-7, 1e-4)])
    assert _disagreements(right, differences, values, paths) == []
    wrong = right.copy()
    wrong[3, 1] *= 1.0002
    (line,) = _disagreements(wrong, differences, values, paths)
    assert line.startswith("d log cost.run / d log y = 0.5001")


@pytest.mark.slow
def test_gradients_are_taken_on_modules_directly(gpt, system, strategy):
    """With the value's own shape: the system's, the strategy's and the model's, choices included."""
    gradients = jax.jit(
        jax.grad(lambda *inputs: dp.generate(*inputs, Smooth(SHARPNESS)).time, argnums=(0, 1, 2)),
    )(gpt, system, strategy)
    for gradient, module in zip(gradients, (gpt, system, strategy), strict=True):
        assert jax.tree.structure(gradient) == jax.tree.structure(module)
        assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(gradient))
    of_system = gradients[1]
    assert float(of_system.accelerator.matrix.bf16.rate) < 0
    assert float(of_system.inference_stack.kernel_overhead) > 0
    assert float(gradients[0].layers[0].count) > 0
