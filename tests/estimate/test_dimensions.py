"""Change the unit of one dimension in every input, and every output must change by its own declared unit.

Catches bytes divided by a FLOP rate, latencies added to bandwidths and smoothing with an absolute
temperature.
"""

import jax
import numpy as np
import pytest
from helpers import exponents, generate, in_other_units, outputs, training, units_of

import diffperf as dp
from diffperf.hardware import formats
from diffperf.quantity import replace
from diffperf.relax import Exact, Smooth

FACTOR = 8.0


def _differently_scaled(before, after, base, factor=FACTOR):
    """Outputs that do not scale by their unit's power of `base`: {path: (before, after)}."""
    units, values = units_of(before), outputs(after)
    wrong = {}
    for path, value in outputs(before).items():
        expected = float(value) * factor ** exponents(units[path]).get(base, 0)
        if not np.isclose(float(values[path]), expected, rtol=1e-9, atol=0):
            wrong[path] = (float(value), float(values[path]))
    return wrong


@pytest.mark.parametrize(
    ("unit", "powers"),
    [
        ("", {}),
        ("byte/s", {"byte": 1, "s": -1}),
        ("1/mm^2", {"mm": -2}),
        ("USD/mm^2", {"USD": 1, "mm": -2}),
        ("W", {"J": 1, "s": -1}),
        ("USD/W/s", {"USD": 1, "J": -1, "s": 0}),
        ("J/FLOP", {"J": 1, "FLOP": -1}),
        ("byte/s/mm", {"byte": 1, "s": -1, "mm": -1}),
    ],
)
def test_exponents(unit, powers):
    assert exponents(unit) == powers


@pytest.mark.slow
@pytest.mark.parametrize("relax", [Exact(), Smooth(20.0)], ids=["exact", "smooth"])
@pytest.mark.parametrize("phase", [training, generate], ids=["training", "generate"])
def test_seconds_joules_and_dollars(gpt, system, strategy, phase, relax):
    before = phase(gpt, system, strategy, relax)
    for base in ("s", "J", "USD"):
        after = phase(gpt, in_other_units(system, base, FACTOR), strategy, relax)
        assert _differently_scaled(before, after, base) == {}


@pytest.mark.slow
def test_a_wrong_dimension_is_found(gpt, system, strategy):
    """A latency forgotten when seconds change shows in every time."""
    before = training(gpt, system, strategy, Exact())
    after = in_other_units(system, "s", FACTOR)
    after = replace(after, {"stack.kernel_overhead": system.stack.kernel_overhead})
    wrong = _differently_scaled(before, training(gpt, after, strategy, Exact()), "s")
    assert {"time", "breakdown.matmul", "power", "mfu"} <= set(wrong)
    assert "memory.peak" not in wrong


@pytest.mark.slow
@pytest.mark.parametrize("relax", [Exact(), Smooth(20.0)], ids=["exact", "smooth"])
@pytest.mark.parametrize("phase", ["training", "generate"])
def test_bytes(llama, system, strategy, phase, relax, monkeypatch):
    """The sizes of elements are the constants that have bytes in them, and change with the unit.

    Others exist only in dropout masks (1 byte) and the fp32 loss (24 and 4 bytes a logit), which a model
    without dropout and without vocabulary does not have.
    """
    model = replace(llama, {"vocabulary": 0.0})
    before = {"training": training, "generate": generate}[phase](model, system, strategy, relax)
    for sizes in (formats.PRECISION_BYTES, formats._OUTPUT_BYTES):
        for name, size in sizes.items():
            monkeypatch.setitem(sizes, name, size * FACTOR)
    changed = [in_other_units(module, "byte", FACTOR) for module in (system, strategy)]
    # A function of its own: the sizes are constants of a program, and the shared programs have the right
    # sizes.
    after = jax.jit(lambda *inputs: dp.PHASES[phase](*inputs))(model, *changed, relax)
    assert float(before.memory.weights) > 0
    assert _differently_scaled(before, after, "byte") == {}


def test_flops(llama, system, strategy):
    """A GEMM has 2·m·n·k FLOP whatever the unit, so rescaled rates mean other hardware, which shows in
    what computes alone.

    With everything but arithmetic free, times and energies of arithmetic scale as FLOP / (FLOP/s) and FLOP
    · J/FLOP.
    """
    free = {
        "stack.kernel_overhead": 1e-30,
        "accelerator.kernel_latency": 1e-30,
        "accelerator.split_latency": 1e-30,
        "accelerator.power_limit": 1e30,
    }
    free |= {f"accelerator.matrix.{name}.k_latency": 1e-30 for name in ("bf16", "fp16")}
    free |= {f"accelerator.attention.{name}": 1e-30 for name in ("latency", "bf16.tile_latency")}
    for level in ("smem", "l2", "hbm"):
        free |= {f"accelerator.memory.{level}.bandwidth": 1e30, f"accelerator.memory.{level}.latency": 1e-30}
    free = replace(system, free)
    before = training(llama, free, strategy, Exact())
    after = training(llama, in_other_units(free, "FLOP", FACTOR), strategy, Exact())
    for path in ("breakdown.matmul", "breakdown.attention", "breakdown.head", "energy.compute"):
        assert float(outputs(after)[path]) == pytest.approx(float(outputs(before)[path]) / FACTOR, rel=1e-6)
    before = training(llama, system, strategy, Exact())
    after = training(llama, in_other_units(system, "FLOP", FACTOR), strategy, Exact())
    unmoved = [
        "breakdown.elementwise",
        "breakdown.tensor_parallel",
        "breakdown.pipeline_transfers",
        "breakdown.optimizer",
    ]
    unmoved += ["energy.memory", "energy.network", "memory.peak", "cost.capital"]
    assert [path for path in unmoved if float(outputs(after)[path]) != float(outputs(before)[path])] == []
