"""The compiler's flags: set when asked for, and never over a choice already made."""

import subprocess
import sys

import jax
import pytest

from diffperf.compiler import _KNOWN_TO

PROGRAM = (
    "import os, diffperf as dp; dp.compile_quickly(); dp.compile_quickly(); print(os.environ['XLA_FLAGS'])"
)


@pytest.mark.skipif(jax.__version_info__[:2] not in _KNOWN_TO, reason="a release that is not told")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "--xla_cpu_use_fusion_emitters=false"),
        (
            "--xla_cpu_enable_fast_math=false",
            "--xla_cpu_enable_fast_math=false --xla_cpu_use_fusion_emitters=false",
        ),
        ("--xla_cpu_use_fusion_emitters=true", "--xla_cpu_use_fusion_emitters=true"),
    ],
)
def test_flags_are_added_once(before, after, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", before)
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == after


def test_xla_knows_the_flags():
    """It ends a process over one that it does not."""
    program = "import jax, diffperf as dp; dp.compile_quickly(); print(jax.jit(lambda x: 2 * x)(21))"
    assert (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "42"
    )
