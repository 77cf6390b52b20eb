"""Lines about a layout."""

import pytest

import diffperf as dp
from diffperf.api.from_python import asked
from diffperf.api.layout_lines import describe_conversion, describe_overlap


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
