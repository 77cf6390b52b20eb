"""Inputs of software that drives none of the phases asked about: they change nothing, and are refused."""

import equinox as eqx
import jax
import numpy as np
import pytest
from helpers import generate

import diffperf as dp
from diffperf.errors import ConfigError
from diffperf.estimate.training import training_step
from diffperf.load import refuse_other_stack
from diffperf.relax import Exact
from diffperf.trees import as_float64

SET = {"system.stack.kernel_overhead": "9 us"}


@pytest.mark.parametrize(
    ("estimate", "idle", "driving"),
    [(training_step, "inference_stack", "stack"), (generate, "stack", "inference_stack")],
)
def test_idle_stack_has_no_slope(estimate, idle, driving):
    model, system = dp.load_model("mixtral-8x7b"), dp.load_system("dgx-h100", n_devices=8)
    strategy = dp.load_strategy({"tp": 2, "ep": 4, "dp": 4, "global_batch": 64}, n_devices=8)

    def time(stacks):
        changed = eqx.tree_at(lambda s: [getattr(s, name) for name in stacks], system, [*stacks.values()])
        return estimate(model, changed, strategy, Exact()).time

    stacks = {name: as_float64(getattr(system, name)) for name in (idle, driving)}
    slopes = jax.jit(jax.grad(time))(stacks)
    assert not any(np.any(slope) for slope in jax.tree.leaves(slopes[idle]))
    assert any(np.any(slope) for slope in jax.tree.leaves(slopes[driving]))


@pytest.mark.parametrize(
    ("part", "phases", "other"),
    [
        ("stack", ["decode"], "inference_stack"),
        ("stack", ["prefill", "generate"], "inference_stack"),
        ("inference_stack", ["training"], "stack"),
    ],
)
def test_refusal_names_the_input_of_the_other_stack(part, phases, other):
    with pytest.raises(ConfigError, match=rf"write system\.{other}\.product_latency$"):
        refuse_other_stack(["model.layers", f"system.{part}.product_latency"], phases)
    refuse_other_stack([f"system.{other}.product_latency", "system.stack"], phases)


@pytest.mark.parametrize("part", ["stack", "inference_stack"])
def test_both_stacks_drive_a_mix_of_phases(part):
    refuse_other_stack([f"system.{part}.product_latency"], ["training", "decode"])


@pytest.mark.parametrize(
    "ask",
    [
        lambda: dp.estimate("llama-3.1-8b", "dgx-h100", phase="decode", set=SET),
        lambda: dp.sensitivity("llama-3.1-8b", "dgx-h100", phase="decode", set=SET),
        lambda: dp.compare("llama-3.1-8b", ["dgx-h100", "dgx-a100"], phases=["prefill", "decode"], set=SET),
        lambda: dp.serve("llama-3.1-8b", "dgx-h100", ttft="1 s", tpot="50 ms", set=SET),
        lambda: dp.load_space(
            {"model": "llama-3.1-8b", "system": "dgx-h100", "phase": "decode", "set": SET}
            | {"axis": [{"path": "strategy.tp", "values": [1, 2]}]}
        ),
        lambda: dp.load_space(
            {"model": "llama-3.1-8b", "system": "dgx-h100", "phase": "decode"}
            | {"axis": [{"path": "system.stack.kernel_overhead", "values": ["1 us", "9 us"]}]}
        ),
    ],
    ids=["estimate", "sensitivity", "compare", "serve", "space", "axis"],
)
def test_questions_of_inference_refuse_inputs_of_the_training_stack(ask):
    with pytest.raises(ConfigError, match=r"write system\.inference_stack\.kernel_overhead"):
        ask()
