"""Which number formats accelerators have matrix units for."""

import pytest

from diffperf.hardware.accelerator import Accelerator
from diffperf.load import load


@pytest.mark.parametrize(
    ("accelerator", "precision", "multiplied"),
    [
        ("a100-sxm4-80gb", "bf16", "bf16"),
        ("a100-sxm4-80gb", "fp8", "fp16"),
        ("a100-sxm4-80gb", "nvfp4", "fp16"),
        ("a100-sxm4-80gb", "int8", "int8"),
        ("h100-sxm5-80gb", "fp8", "fp8"),
        ("h100-sxm5-80gb", "nvfp4", "fp8"),
        ("b200-sxm-180gb", "nvfp4", "nvfp4"),
        ("mi300x", "fp8", "fp8"),
        ("mi300x", "mxfp4", "fp8"),
    ],
)
def test_formats_without_units_are_converted(accelerator, precision, multiplied):
    """By the datasheets: A100 has int8 but no fp8, H100 and MI300X have fp8 but no 4 bits, B200 has all."""
    assert load(Accelerator, accelerator).multiplied_in(precision) == multiplied
