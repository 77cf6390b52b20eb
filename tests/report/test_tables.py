import json
import operator

import jax
import numpy as np
import pytest

import diffperf as dp
from diffperf.report.tables import as_dict, outputs, render


@pytest.fixture(scope="module")
def report(gpt, system, strategy):
    return dp.training_step(gpt, system, strategy)


def test_every_number_of_a_report_has_a_path(report):
    numbers = outputs(report)
    assert float(numbers["memory.peak"][1]) == float(report.memory.peak)
    assert float(numbers["cost.accelerator.dies"][1]) == float(report.cost.accelerator.dies)
    assert float(numbers["energy.total"][1]) == float(report.energy.total)
    assert numbers["energy.total"][0].unit == "J"
    assert float(numbers["breakdown.total"][1]) == pytest.approx(float(report.time))


@pytest.mark.parametrize(
    "path", ["breakdown", "memory", "memory.stages", "energy", "cost", "cost.accelerator"]
)
def test_parts_of_a_report_print_as_tables(report, path):
    part = operator.attrgetter(path)(report)
    name, value = next((name, value) for name, (_, value) in outputs(part).items() if float(value) > 0)
    declared = outputs(part)[name][0]
    line = next(line for line in str(part).splitlines() if line.strip().startswith(declared.doc))
    assert dp.units.show(float(value), declared.unit) in line


def test_a_table_says_what_how_much_and_which_share(report):
    lines = render(report).splitlines()
    assert lines[0].split() == ["step", "time", *dp.units.show(report.time, "s").split()]
    linear = next(line for line in lines if "linear layers" in line)
    assert f"{float(report.breakdown.matmul) / float(report.time):.1%}" in linear
    energy = lines[lines.index(next(line for line in lines if line.strip() == "energy")) :]
    assert any(line.split()[0] == "total" for line in energy)


def test_json_is_plain_and_named(report, system, strategy):
    data = json.loads(json.dumps(as_dict(report)))
    assert data["time"] == float(report.time)
    assert data["memory"]["weights"] == float(report.memory.weights)
    inputs = json.loads(json.dumps(as_dict(system)))
    assert inputs["name"] == "dgx-a100"
    assert list(inputs["network"]) == ["nvlink", "infiniband"]
    assert inputs["accelerator"]["memory"]["hbm"]["bandwidth"] == float(
        system.accelerator.device_memory.bandwidth
    )
    assert as_dict(strategy)["sequence_parallel"] == "on"


def test_a_blend_of_choices_keeps_its_weights():
    strategy = dp.load_strategy({"recompute": {"none": 0.25, "full": 0.75}})
    assert as_dict(strategy)["recompute"] == {"none": 0.25, "selective": 0.0, "full": 0.75}
    assert "0.25 none + 0.75 full" in render(strategy)


def test_arrays_of_results_show_their_range():
    strategy = dp.load_strategy({})
    many = type(strategy)(micro_batch=np.array([1.0, 4.0]))
    assert "[2 values, 1 to 4]" in render(many)


def test_a_report_without_numbers_yet_has_a_text():
    """JAX's errors print what a traced function returns: of a whole report instead of one of its numbers."""
    layout = dp.load_strategy({}, n_devices=1)
    model, system = dp.load_model("llama-3-8b"), dp.load_system("dgx-h100", n_devices=1)
    with pytest.raises(TypeError, match="Gradient only defined for scalar-output functions"):
        jax.jit(jax.grad(lambda system: dp.decode(model, system, layout)))(system)
    with pytest.raises(TypeError, match="Gradient only defined for scalar-output functions"):
        jax.jit(jax.grad(lambda system: dp.decode(model, system, layout).memory))(system)
