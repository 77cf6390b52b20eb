"""Models with several kinds of layers of one structure, by either attention kernel and by both at once."""

import jax
import pytest
from helpers import generate, outputs, training

import diffperf as dp
from diffperf.estimate.kernels.evaluation import evaluate
from diffperf.estimate.kernels.machine import Machine
from diffperf.relax import Exact
from diffperf.workload.assembly import layer_operators
from diffperf.workload.configuration import Configuration
from diffperf.workload.passes import training_pass

MODELS = ("gpt-oss-120b", "llama-4-scout")  # windows in some layers, all tokens in others
MIXED = {"standard": 0.25, "flash": 0.75}


def _strategy(attention):
    return dp.load_strategy({"tp": 8, "dp": 8, "ep": 8, "global_batch": 64, "attention": attention})


def _mean(standard, flash):
    """What a mixture of both kernels takes, from what either takes."""
    return MIXED["standard"] * float(standard) + MIXED["flash"] * float(flash)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("phase", [training, generate], ids=["training", "generate"])
def test_mixed_kernels_take_the_mean_time(system, name, phase):
    model = dp.load_model(name)
    standard, flash, mixed = (
        outputs(phase(model, system, _strategy(attention), Exact()))
        for attention in ("standard", "flash", MIXED)
    )
    paths = [path for path in mixed if path.endswith(".attention")]
    assert len(paths) == (1 if phase is training else 2)
    for path in paths:
        assert float(standard[path]) > float(flash[path]) > 0
        assert float(mixed[path]) == pytest.approx(_mean(standard[path], flash[path]), rel=1e-9), path


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_kernels_without_weight_are_left_out_of_eager_estimates(system, name):
    """Eager, a kernel's operators are listed if it has weight; compiled, all are, and take the same time."""
    model = dp.load_model(name)

    def attention_time(strategy):
        c = Configuration(model, system, strategy)
        layer = layer_operators(c, training_pass(strategy), trained=True)
        core = [group for group in layer if group.part == "attention"]
        machine = Machine.of(system, strategy, c.relax)
        return len(core), evaluate(core, machine).total().time

    compiled = jax.jit(lambda strategy: attention_time(strategy)[1])
    listed = {}
    for attention in ("standard", "flash", MIXED):
        strategy = _strategy(attention)
        listed[str(attention)], eager = attention_time(strategy)
        assert float(eager) == pytest.approx(float(compiled(strategy)), rel=1e-12)
    assert listed[str(MIXED)] == listed["standard"] + listed["flash"]
