"""Fields of a strategy that only training depends on: which they are, and that inference refuses them."""

import jax
import numpy as np
import pytest
from helpers import generate, outputs

import diffperf as dp
from diffperf.errors import ConfigError
from diffperf.hardware.formats import PRECISIONS
from diffperf.load import refuse_inference_fields, refuse_training_fields
from diffperf.quantity import Choice, Weights, declaration, replace
from diffperf.relax import Exact
from diffperf.workload.strategy import INFERENCE_FIELDS, TRAINING_FIELDS, Strategy

FIELDS = {field.name: declaration(field) for field in Strategy.__dataclass_fields__.values()}
# Stages of inference hold whole chunks of layers too, as the estimator computes them: another number of
# chunks would change the longest stage. No serving software has chunks, so that the field is training's.
COUNTED_IN_STAGES = "virtual_stages"


@pytest.fixture(scope="module")
def changed():
    """The numbers that change in the report of a generation when a field of the strategy does."""
    model, system = dp.load_model("mixtral-8x7b"), dp.load_system("dgx-h100", n_devices=32)
    table = {"tp": 4, "pp": 2, "cp": 2, "dp": 2, "ep": 4, "expert_tp": 2, "global_batch": 64}
    table |= {"sequence_length": 32768, "expert_imbalance": 1.5, "draft_tokens": 2, "tokens_per_step": 1.5}
    strategy = dp.load_strategy(table)
    before = jax.device_get(outputs(generate(model, system, strategy, Exact())))

    def numbers(name: str) -> set[str]:
        declared, value = FIELDS[name], np.asarray(getattr(strategy, name))
        if isinstance(declared, Choice):
            others = list(declared.alternatives)
        else:
            others = [value / 2 if 2 * value > declared.bounds[1] else 2 * value + (value == 0)]
        reports = [generate(model, system, replace(strategy, {name: other}), Exact()) for other in others]
        after = [jax.device_get(outputs(report)) for report in reports]
        # Which of NumPy and XLA evaluates a report follows from their times, and they round differently.
        same = {
            path: [np.isclose(each[path], before[path], rtol=1e-12, atol=0) for each in after]
            for path in before
        }
        return {path for path, each in same.items() if not np.all(each)}

    return numbers


@pytest.mark.parametrize("name", sorted(TRAINING_FIELDS - {COUNTED_IN_STAGES}))
def test_inference_does_not_depend_on_fields_of_training(changed, name):
    assert not changed(name)


@pytest.mark.parametrize("name", sorted(FIELDS.keys() - TRAINING_FIELDS))
def test_inference_depends_on_all_other_fields(changed, name):
    assert changed(name)


@pytest.mark.parametrize("phase", ["prefill", "decode", "generate", "serving"])
def test_inference_refuses_fields_of_training(phase):
    with pytest.raises(ConfigError, match=f"zero: found an input of training in the phase {phase}"):
        refuse_training_fields(["tp", "zero"], phase)
    refuse_training_fields(["tp", "kv_precision"], phase)
    refuse_training_fields(["tp", "zero"], "training")


@pytest.fixture(scope="module")
def trained():
    """A function that gives the numbers of a training step with a field of the strategy changed, or none."""
    model, system = dp.load_model("mixtral-8x7b"), dp.load_system("dgx-h100", n_devices=32)
    table = {"tp": 4, "pp": 2, "dp": 4, "ep": 4, "global_batch": 64, "sequence_length": 8192}
    strategy = dp.load_strategy(table)

    def numbers(name: str | None = None) -> dict[str, np.ndarray]:
        if name is None:
            return jax.device_get(outputs(dp.training_step(model, system, strategy)))
        if name == "kv_precision":
            other = replace(strategy, {name: Weights.only("fp8", PRECISIONS)})
            return jax.device_get(outputs(dp.training_step(model, system, other)))
        declared, value = FIELDS[name], np.asarray(getattr(strategy, name))
        other = min(2 * value + (value == 0), declared.bounds[1])
        return jax.device_get(outputs(dp.training_step(model, system, replace(strategy, {name: other}))))

    return numbers


@pytest.mark.parametrize("name", sorted(INFERENCE_FIELDS))
def test_training_does_not_depend_on_fields_of_inference(trained, name):
    before, after = trained(), trained(name)
    assert all(np.allclose(after[path], before[path], rtol=1e-12, atol=0) for path in before)


@pytest.mark.parametrize("command", ["estimate", "plan"])
@pytest.mark.parametrize("name", ["output_length", "draft_tokens", "kv_precision"])
def test_training_refuses_fields_of_inference(command, name):
    value = "fp8" if name == "kv_precision" else 2
    with pytest.raises(ConfigError, match=f"{name}: found an input of inference in the phase training"):
        getattr(dp, command)("llama-2-7b", "dgx-h100", **{name: value})
    refuse_inference_fields(["tp", name], "decode")
    refuse_inference_fields(["tp", "zero"], "training")
