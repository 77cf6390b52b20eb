"""What a stack's fields do to an estimate, by hand."""

import csv
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import training

import diffperf as dp
from diffperf.estimate.kernels.elementwise import layer_stream_work, stream_work
from diffperf.estimate.kernels.gemm import gemm_work
from diffperf.estimate.kernels.roofline import Machine
from diffperf.explore.measured.predictions import inputs_of
from diffperf.explore.measured.table import read_measurements
from diffperf.quantity import real, replace
from diffperf.relax import Exact
from diffperf.workload.operators import Gemms

DATA = Path(__file__).parents[1] / "data"


def machine(system, precision: str = "bf16", **stack) -> Machine:
    system = replace(system, {f"stack.{name}": value for name, value in stack.items()})
    return Machine.of(system, dp.load_strategy({"precision": precision}), Exact())


def test_fusions_scale_bytes_and_kernels(system):
    """Three times the kernels with half the bytes: three latencies and overheads each, half the streaming."""
    elements = jnp.array([1e8, 1e6])
    work = layer_stream_work(elements, machine(system, elementwise_traffic=0.5, elementwise_kernels=3.0))
    memory, stack = system.accelerator.device_memory, system.stack
    each = float(memory.latency + system.accelerator.kernel_latency + stack.kernel_overhead)
    streaming = 0.5 * 2 * np.array([1e8, 1e6]) / float(memory.bandwidth * memory.efficiency)
    np.testing.assert_allclose(work.time, streaming + 3 * each, rtol=1e-12)
    np.testing.assert_allclose(work.traffic[-1], 0.5 * 2 * np.array([1e8, 1e6]), rtol=1e-12)


def test_megatrons_fusions_are_the_measure(system):
    elements, plain = jnp.array([1e8, 1e6]), machine(system, elementwise_traffic=1.0, elementwise_kernels=1.0)
    np.testing.assert_array_equal(layer_stream_work(elements, plain).time, stream_work(elements, plain).time)


def test_unfused_layers_slow_a_pass_down(llama, system):
    """Six element-wise kernels a layer: as many again cost that many overheads more, and twice the bytes
    their streaming.
    """
    strategy = dp.load_strategy({"global_batch": 1, "sequence_length": 128})

    def elementwise(**stack):
        changed = replace(system, {f"stack.{name}": value for name, value in stack.items()})
        return float(dp.prefill(llama, changed, strategy).breakdown.elementwise)

    memory = system.accelerator.device_memory
    each = float(memory.latency + system.accelerator.kernel_latency + system.stack.kernel_overhead)
    kernels = 6 * float(llama.depth)
    once = elementwise(elementwise_traffic=1.0, elementwise_kernels=1.0)
    assert elementwise(elementwise_traffic=1.0, elementwise_kernels=2.0) - once == pytest.approx(
        kernels * each, rel=1e-9
    )
    assert elementwise(elementwise_traffic=2.0, elementwise_kernels=1.0) - once == pytest.approx(
        once - kernels * each, rel=1e-9
    )


def test_conversions_fused_into_other_kernels_take_no_time_of_their_own(system):
    gemms = Gemms.table(tuple(map(real, (2048, 1024, 4096, 1))))
    apart, half, fused = (
        gemm_work(gemms, machine(system, "fp8", separate_conversion=share)) for share in (1.0, 0.5, 0.0)
    )
    assert float(apart.time[0] - fused.time[0]) > 0
    assert float(half.time[0]) == pytest.approx(float(apart.time[0] + fused.time[0]) / 2, rel=1e-12)
    moved = (
        float(system.accelerator.matrix.fp8.conversion_passes) * 2048 * 4096 * (2 + 1)
    )  # read at 16 bits, written at 8
    assert float(apart.traffic[-1, 0] - fused.traffic[-1, 0]) == pytest.approx(moved, rel=1e-12)
    wide = [gemm_work(gemms, machine(system, separate_conversion=share)).time[0] for share in (1.0, 0.0)]
    assert float(wide[0]) == float(wide[1])


@pytest.mark.parametrize(
    ("framework", "overlaps"),
    [("Megatron-LM", 0), ("Megatron-DeepSpeed", 0), ("NeMo 24", 1), ("nanotron", 1)],
)
def test_measured_runs_reduce_gradients_as_their_stack_does(tmp_path, framework, overlaps):
    with (DATA / "korthikanti_training.csv").open(encoding="utf-8", newline="") as file:
        row = next(csv.DictReader(file)) | {"framework": framework}
    with (tmp_path / "runs.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, row)
        table.writeheader()
        table.writerow(row)
    (read,) = read_measurements(tmp_path / "runs.csv").rows
    strategy = inputs_of("training", read)[2]
    assert np.asarray(strategy.overlap_gradients).tolist() == [1 - overlaps, overlaps]


def stalled(gpt, system, devices: int, seconds: float, **table):
    """The step of GPT-3 in two stages of two tensor-parallel ranks, where each rank stalls a layer for so
    long.
    """
    strategy = dp.load_strategy({"tp": 2, "pp": 2, "global_batch": 4 * devices, **table}, n_devices=devices)
    return strategy, training(
        gpt, replace(system, {"stack.rank_stall": seconds, "n_devices": devices}), strategy
    )


def test_ranks_stall_layers_where_the_pipeline_leaves_the_node(gpt, system):
    """A stall longer than all else is all that a layer takes, once a pass and rank: 16 micro-batches through
    48 layers, and a bubble of one more. In a node of eight devices there is none."""
    strategy, beyond = stalled(gpt, system, 16, 1e2)
    assert float(strategy.micro_batches) == 16
    assert float(beyond.time) == pytest.approx((16 + 1) * 48 * 2 * 2 * 1e2, rel=1e-3)
    _, inside = stalled(gpt, system, 8, 1e2)
    assert float(inside.breakdown.host) < 1e-3


def test_a_lighter_last_stage_does_not_shorten_a_pipeline_of_stalls(gpt, system):
    """The last stage gives a layer to the first, for its vocabulary projection of a third of one: 49 layers
    stall where 48 did.
    """
    even, balanced = (
        float(stalled(gpt, system, 16, 1e2, balanced_head=balanced)[1].time) for balanced in (False, True)
    )
    assert balanced == pytest.approx(even * 49 / 48, rel=1e-3)


def test_layers_with_experts_wait_for_the_routing(system):
    """Once a forward pass of every one of Mixtral's 32 layers and of each micro-batch, unless experts have a
    capacity.
    """
    model = dp.load_model("mixtral-8x7b")

    def time(model, **table) -> float:
        strategy = dp.load_strategy({"tp": 8, "global_batch": 16, **table}, n_devices=8)
        found = [
            training(model, replace(system, {"stack.routing_wait": wait}), strategy).time
            for wait in (1e-9, 1e-2)
        ]
        return float(found[1] - found[0])

    assert time(model) == pytest.approx(16 * 32 * (1e-2 - 1e-9), rel=1e-6)
    assert time(model, capacity_factor=1.25) == 0
    assert time(dp.load_model("llama-2-7b")) == 0


def test_hidden_communication_slows_what_hides_it(llama, system):
    """By a share of the time that overlapping saves: the step lies that far on the way from overlapped to
    not.
    """

    def step(contention: float, overlap: bool) -> float:
        table = {"zero": "3", "global_batch": 256, "overlap_gradients": overlap, "overlap_weights": overlap}
        strategy = dp.load_strategy(table, n_devices=64)
        return float(
            training(llama, replace(system, {"stack.overlap_contention": contention}), strategy).time
        )

    hidden, apart = step(0.0, True), step(0.0, False)
    assert apart > 1.01 * hidden
    assert step(0.3, True) == pytest.approx(hidden + 0.3 * (apart - hidden), rel=1e-9)
    assert step(0.3, False) == pytest.approx(apart, rel=1e-12)
