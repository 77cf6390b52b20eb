"""Lines about a layout."""

import pytest

import diffperf as dp
from diffperf.api.from_python import asked
from diffperf.api.layout_lines import describe_conversion, describe_overlap
from diffperf.api.question import describe_strategy
from diffperf.api.whole_training import describe_training
from diffperf.errors import counted


@pytest.mark.parametrize(
    ("system", "multiplied"), [("tpu-v5p-pod", "bf16"), ("dgx-v100", "fp16"), ("dgx-h100", None)]
)
def test_the_format_that_stands_in_for_fp8_is_one_of_the_accelerator(system, multiplied):
    question = asked("estimate", "llama-3-8b", system)
    lines = describe_conversion(question, dp.load_strategy({"precision": "fp8"}))
    name = question.system.accelerator.name
    expected = f"{name} has no matrix units for fp8: products are computed in {multiplied}"
    assert lines == ([expected] if multiplied else [])


@pytest.mark.parametrize(
    ("stack", "table", "expected"),
    [
        ("nemo", {"tp": 8}, ["overlap_tensor is off"]),
        ("nemo", {"tp": 8, "overlap_tensor": True}, []),
        ("nemo", {"dp": 8}, []),
        ("megatron-lm", {"tp": 2, "dp": 4}, ["overlap_gradients is on"]),
        ("megatron-core", {"tp": 2, "dp": 4}, []),
    ],
)
def test_layouts_that_hide_other_communication_than_measured_runs(stack, table, expected):
    question = asked("estimate", "llama-3-8b", "dgx-h100", stack=stack, strategy=table)
    strategy = dp.load_strategy(table)
    lines = describe_overlap(question, strategy, "training")
    assert [line.partition(" (")[0] for line in lines] == expected
    assert describe_overlap(question, strategy, "decode") == []


def test_layouts_have_all_digits_of_whole_numbers():
    strategy = dp.load_strategy({"global_batch": 1000000, "sequence_length": 1048577}, n_devices=1000003)
    line = describe_strategy(strategy, "training")
    assert "dp 1000003 · micro batch 1 · global batch 1000000 · sequence length 1048577" in line


def test_a_training_takes_at_least_a_step():
    totals = {"tokens": 1.0, "steps": 1e-4, "time": 1e-3, "goodput": 1.0, "checkpoint_interval": 1e3}
    totals |= {"energy": 1.0, "cost": 1.0, "emissions": 1.0, "interruptions": 1.0, "spare_devices": 0.5}
    first, second = describe_training(totals)
    assert first.startswith("Training on 1 token: 1 step, ")
    assert "1 interruption, a checkpoint" in second
    assert second.endswith("0.5 spare devices")


def test_one_thing_is_in_the_singular():
    assert (counted(1, "device"), counted(1000, "device")) == ("1 device", "1,000 devices")
    assert counted(1.0, "token", "1") == "1 token"
    assert counted(2, "strategy", plural="strategies") == "2 strategies"
