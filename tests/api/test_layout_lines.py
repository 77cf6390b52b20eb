"""Lines about a layout."""

import pytest

import diffperf as dp
from diffperf.api.from_python import asked
from diffperf.api.layout_lines import describe_conversion


@pytest.mark.parametrize(
    ("system", "multiplied"), [("tpu-v5p-pod", "bf16"), ("dgx-v100", "fp16"), ("dgx-h100", None)]
)
def test_the_format_that_stands_in_for_fp8_is_one_of_the_accelerator(system, multiplied):
    question = asked("estimate", "llama-3-8b", system)
    lines = describe_conversion(question, dp.load_strategy({"precision": "fp8"}))
    name = question.system.accelerator.name
    expected = f"{name} has no matrix units for fp8: products are computed in {multiplied}"
    assert lines == ([expected] if multiplied else [])
