"""What the fields of a software stack do to an estimate, against answers worked out by hand."""

import csv
import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import training

import diffperf as dp
from diffperf.estimate.kernels.evaluation import evaluate
from diffperf.estimate.kernels.gemm import gemm_work
from diffperf.estimate.kernels.machine import Machine
from diffperf.estimate.kernels.stream import stream_work
from diffperf.explore.measured.predictions import inputs_of
from diffperf.explore.measured.table import read_measurements
from diffperf.quantity import replace
from diffperf.relax import Exact
from diffperf.workload.assembly import layer_operators, training_operators
from diffperf.workload.attention_operators import aligned_heads
from diffperf.workload.configuration import Configuration
from diffperf.workload.elementwise_operators import elementwise_kernels
from diffperf.workload.linear_layers import aligned_logits
from diffperf.workload.operators import Gemms
from diffperf.workload.passes import training_pass

DATA = Path(__file__).parents[1] / "data"

_prefill = jax.jit(dp.prefill)


def with_stack(system, **fields):
    """The system with other numbers of its stack."""
    return replace(system, {f"stack.{name}": value for name, value in fields.items()})


def machine(system, precision: str = "bf16", **stack) -> Machine:
    return Machine.of(with_stack(system, **stack), dp.load_strategy({"precision": precision}), Exact())


def elementwise(model, system, strategy, **stack):
    """The element-wise kernels of one pass forward through a layer, timed."""
    c = Configuration(model, with_stack(system, **stack), strategy)
    layer = layer_operators(c, training_pass(strategy), trained=False)
    kernels = [group for group in layer if group.part == "elementwise"]
    return evaluate(kernels, Machine.of(c.system, strategy, c.relax))


def test_fusions_scale_bytes_and_kernels(llama, system):
    """Three times the kernels with half the bytes: three latencies and overheads each, half the streaming."""
    strategy = dp.load_strategy({"sequence_length": 1024})
    fused = elementwise_kernels(llama.layers[0], llama, strategy, strategy.tokens).bytes
    work = elementwise(llama, system, strategy, elementwise_traffic=0.5, elementwise_kernels=3.0).total()
    memory, stack = system.accelerator.device_memory, system.stack
    each = float(memory.latency + system.accelerator.kernel_latency + stack.kernel_overhead)
    bytes_ = 0.5 * float(fused.sum())
    streaming = bytes_ / float(memory.bandwidth * memory.efficiency)
    assert float(work.time) == pytest.approx(streaming + 3 * 6 * each, rel=1e-12)
    assert float(work.traffic[-1]) == pytest.approx(bytes_, rel=1e-12)


def test_megatrons_fusions_are_the_measure(llama, system):
    strategy = dp.load_strategy({"sequence_length": 1024})
    stack = {"elementwise_traffic": 1.0, "elementwise_kernels": 1.0}
    timed = elementwise(llama, system, strategy, **stack)
    kernels = elementwise_kernels(llama.layers[0], llama, strategy, strategy.tokens)
    expected = stream_work(kernels, machine(system, **stack)).time
    np.testing.assert_array_equal(np.ravel(timed.kernels[0].work.time), expected)
    assert float(timed.total().time) == pytest.approx(float(expected.sum()), rel=1e-12)


def test_unfused_layers_slow_a_pass_down(llama, system):
    """Six element-wise kernels a layer: as many again cost that many overheads more, and twice the bytes
    their streaming.
    """
    strategy = dp.load_strategy({"global_batch": 1, "sequence_length": 128})

    def elementwise(**stack):
        changed = replace(system, {f"inference_stack.{name}": value for name, value in stack.items()})
        return float(_prefill(llama, changed, strategy, Exact()).breakdown.elementwise)

    # The tensors of 128 tokens stay in the shared cache.
    cache, stack = system.accelerator.memory[1], system.inference_stack
    each = float(cache.latency + system.accelerator.kernel_latency + stack.kernel_overhead)
    kernels = 6 * float(llama.depth)
    once = elementwise(elementwise_traffic=1.0, elementwise_kernels=1.0)
    assert elementwise(elementwise_traffic=1.0, elementwise_kernels=2.0) - once == pytest.approx(
        kernels * each, rel=1e-9
    )
    assert elementwise(elementwise_traffic=2.0, elementwise_kernels=1.0) - once == pytest.approx(
        once - kernels * each, rel=1e-9
    )


def test_conversions_fused_into_other_kernels_take_no_time_of_their_own(system):
    gemms = Gemms.table({"product": (2048.0, 1024.0, 4096.0, 1.0)})
    separate, half, fused = (
        gemm_work(gemms, machine(system, "fp8", separate_conversion=share)) for share in (1.0, 0.5, 0.0)
    )
    assert float(separate.time[0] - fused.time[0]) > 0
    assert float(half.time[0]) == pytest.approx(float(separate.time[0] + fused.time[0]) / 2, rel=1e-12)
    # Read at 16 bits, written at 8.
    moved = float(system.accelerator.matrix.fp8.conversion_passes) * 2048 * 4096 * (2 + 1)
    assert float(separate.traffic[-1, 0] - fused.traffic[-1, 0]) == pytest.approx(moved, rel=1e-12)
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
    (measured,) = read_measurements(tmp_path / "runs.csv").rows
    strategy = inputs_of("training", measured)[2]
    assert float(strategy.overlap_gradients.on) == overlaps


def test_products_of_heads_that_are_not_aligned_run_on_vector_units(system):
    """Large products take their FLOP at the same share of either peak, and the energy of a vector unit's
    FLOP.
    """
    gemms, device = Gemms.table({"product": (8192.0, 8192.0, 8192.0, 1.0)}), machine(system)
    matrix, vector = (gemm_work(gemms.with_matrix_units(weight), device) for weight in (1.0, 0.0))
    np.testing.assert_array_equal(matrix.time, gemm_work(gemms, device).time)
    flops = 2 * 8192.0**3
    peak = float(system.accelerator.vector * device.matrix.format.efficiency)
    assert float(vector.time[0]) == pytest.approx(flops / peak, rel=0.03)
    assert float(vector.arithmetic[0]) == pytest.approx(flops * float(system.accelerator.vector_energy))


# Bytes that every operation of Megatron-LM's cross_entropy.py reads and writes for a logit, without those
# whose tensors have no logits.
CROSS_ENTROPY = {
    "float()": (2, 4),
    "torch.max(logits)": (4, 0),
    "logits.sub_(maximum)": (4, 4),
    "torch.exp(logits, out=logits)": (4, 4),
    "logits.sum()": (4, 0),
    "logits.div_(sum)": (4, 4),
    "gradient.mul_(gradient of the loss)": (4, 4),
    "gradient of float()": (4, 2),
}


def test_megatrons_loss_is_made_of_eight_passes_over_the_logits(gpt):
    strategy = dp.load_strategy({"tp": 8, "sequence_length": 512, "micro_batch": 2})
    c = Configuration(gpt, dp.load_system("dgx-a100", stack="megatron-deepspeed"), strategy)
    groups = [group for group in training_operators(c, jnp.asarray(1.0)) if group.names == ("loss",)]
    (loss,) = groups
    expected = 1024 * 51200 / 8 * np.sum(list(CROSS_ENTROPY.values()))
    np.testing.assert_allclose(loss.table.bytes, [expected])


@pytest.mark.parametrize(("head_dim", "aligned"), [(128, 1), (216, 1), (150, 0), (108, 0), (450, 0), (75, 0)])
def test_heads_of_sixteen_bits_are_aligned_in_multiples_of_eight(gpt, head_dim, aligned):
    """As NVIDIA advises for matrix units; stacks without `head_alignment` know no such rule."""
    layers = dataclasses.replace(gpt.layers[0], head_dim=jnp.asarray(float(head_dim)))
    strategy = dp.load_strategy({"attention": "standard"})
    stack = dp.load_system("dgx-a100", stack="megatron-lm").stack
    assert float(aligned_heads(layers, strategy, stack)) == aligned
    other = dp.load_system("dgx-a100", stack="llm-foundry-fsdp").stack
    assert aligned_heads(layers, strategy, other) is None


def test_a_softmax_of_five_kernels_takes_a_quarter_more_launches(gpt, system):
    """The host launches sixteen kernels of a forward pass of a layer, or twenty: it waits for hardly anything
    else where that takes 100 ms.
    """
    slow = with_stack(system, host_launch=1e-1)
    table = {"tp": 8, "global_batch": 1, "sequence_length": 128, "attention": "standard"}
    strategy = dp.load_strategy(table, n_devices=8)
    layers = dataclasses.replace(gpt.layers[0], heads=gpt.layers[0].heads / 6)  # two on a device
    small = dataclasses.replace(gpt, layers=(layers,))
    waits = [
        float(training(small, with_stack(slow, fused_softmax_batches=of), strategy, Exact()).breakdown.host)
        for of in (1.0, 4.0)
    ]
    assert waits[1] / waits[0] == pytest.approx(1.25, rel=0.02)


def waits_for_host(system, tp: int = 1, **table):
    """Seconds that a small GPT on stored scores waits for its host in a step."""
    model = dp.load_model("gpt2-medium")
    table |= {"tp": tp, "attention": "standard", "sequence_length": 128}
    strategy = dp.load_strategy(table, n_devices=tp)
    return float(training(model, system, strategy, Exact()).breakdown.host)


def test_ranks_without_tensor_parallelism_launch_no_all_reduces(system):
    """Fourteen of Megatron-LM's sixteen kernels of a pass; 24 layers have a pass in either direction."""
    slow = with_stack(system, host_launch=1e-1)
    alone, of_two, of_four = (waits_for_host(slow, tp, global_batch=1) for tp in (1, 2, 4))
    assert of_two == pytest.approx(24 * 2 * 1e-1, rel=0.05)
    assert of_four == pytest.approx(of_two, rel=0.02)
    assert alone / of_two == pytest.approx(14 / 16, rel=0.02)


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_the_host_launches_the_head_once_a_micro_batch(system, micro_batches):
    """A step waits for that longer than for the head's own kernels, which take far less than 100 ms."""
    before, after = (
        waits_for_host(with_stack(system, head_launch=seconds), global_batch=micro_batches)
        for seconds in (1e-9, 1e-1)
    )
    assert after - before == pytest.approx(micro_batches * 1e-1, rel=0.05)


@pytest.mark.parametrize(
    ("vocabulary", "aligned"),
    [(50257, {2}), (50304, {1, 2, 4, 8}), (50260, {1, 2, 4, 8} - {1, 2, 4, 8}), (50264, {1})],
)
def test_rows_of_logits_are_aligned_in_multiples_of_sixteen_bytes(gpt, vocabulary, aligned):
    """The ranks on which the whole number of a row's entries is a multiple of eight: 50,257 // 2 = 25,128."""
    assert aligned == {tp for tp in (1, 2, 4, 8) if vocabulary // tp % 8 == 0}
    model = replace(gpt, {"vocabulary": vocabulary})
    stack = dp.load_system("dgx-a100", stack="vtrain").stack
    for tp in (1, 2, 4, 8):
        found = float(aligned_logits(model, dp.load_strategy({"tp": tp}), stack))
        assert found == (1.0 if tp in aligned else 0.0)
    other = dp.load_system("dgx-a100", stack="megatron-deepspeed").stack
    assert aligned_logits(model, dp.load_strategy({}), other) is None


def test_a_vocabulary_that_is_not_aligned_takes_the_matrix_units_three_times_as_long(gpt):
    """Netflix measured three times the time of a layer, of which caches take none here. At one vocabulary the
    slope by it is that of finite differences, although the rule is a step between vocabularies.
    """
    system = dp.load_system("dgx-a100", stack="vtrain")
    fast = {f"accelerator.memory.{level}.bandwidth": 1e15 for level in ("l2", "hbm")}
    strategy = dp.load_strategy({"sequence_length": 4096, "attention": "standard"})

    def products(vocabulary, system=system):
        model = replace(gpt, {"vocabulary": vocabulary})
        c = Configuration(model, system, strategy)
        groups = [group for group in training_operators(c, jnp.asarray(1.0)) if group.part == "head"]
        without_loss = [group for group in groups if group.names != ("loss",)]
        return evaluate(without_loss, Machine.of(system, strategy, Exact())).total().time

    aligned, unaligned = (float(products(vocabulary)) for vocabulary in (50304.0, 50303.0))
    assert 2.5 < unaligned / aligned < 3
    matrix_bound = replace(system, fast)
    aligned, unaligned = (float(products(vocabulary, matrix_bound)) for vocabulary in (50304.0, 50303.0))
    assert unaligned / aligned == pytest.approx(3, rel=0.02)
    for vocabulary in (50304.2, 50303.2):
        slope = float(jax.grad(products)(vocabulary))
        difference = float(products(vocabulary + 0.1) - products(vocabulary - 0.1)) / 0.2
        assert slope == pytest.approx(difference, rel=0.02)


def stalled(gpt, system, devices: int, seconds: float, **table):
    """A strategy of two stages of two tensor-parallel ranks, each of which stalls every layer, and a step of
    GPT-3.
    """
    strategy = dp.load_strategy({"tp": 2, "pp": 2, "global_batch": 4 * devices, **table}, n_devices=devices)
    slow = replace(system, {"stack.rank_stall": seconds, "n_devices": devices})
    return strategy, training(gpt, slow, strategy, Exact())


def test_ranks_stall_layers_where_the_pipeline_leaves_the_node(gpt, system):
    """A stall longer than all else is all that a layer takes, once a pass and rank: 16 micro-batches through
    48 layers, and a bubble of one more. In a node of eight devices there is none.
    """
    strategy, beyond = stalled(gpt, system, 16, 1e2)
    assert float(strategy.micro_batches) == 16
    assert float(beyond.time) == pytest.approx((16 + 1) * 48 * 2 * 2 * 1e2, rel=1e-3)
    _, inside = stalled(gpt, system, 8, 1e2)
    assert float(inside.breakdown.host) < 1e-3


def test_a_lighter_last_stage_does_not_shorten_a_pipeline_of_stalls(gpt, system):
    """The last stage gives a layer to the first, for its vocabulary projection of a third of one: 49 layers
    stall where 48 did. The pipeline fills and drains through the last stage alone, whose layers take D: the
    first waits for 2·D less its own pass, of 49 (as an event-by-event run finds).
    """
    even, balanced = (
        float(stalled(gpt, system, 16, 1e2, balanced_head=balanced)[1].time) for balanced in (False, True)
    )
    last = 48 - 51200 / (12 * 12288) / 2  # layers that compute as much as the others with the projection
    assert balanced == pytest.approx(even * (16 * 49 + 2 * last - 49) / (17 * 48), rel=1e-3)


@pytest.mark.parametrize(("recompute", "passes"), [("none", 2), ("full", 3)])
def test_ranks_stall_layers_where_their_group_leaves_the_node(gpt, system, recompute, passes):
    """All else takes no time beside a stall of 100 s: 4 micro-batches through 96 layers, whose passes each of
    16 ranks stalls on two nodes. Ranks of one node stall nothing.
    """
    table = {"tp": 16, "global_batch": 4, "recompute": recompute}
    slow = replace(system, {"stack.group_stall": 1e2, "n_devices": 16})
    beyond = training(gpt, slow, dp.load_strategy(table, n_devices=16), Exact())
    assert float(beyond.time) == pytest.approx(4 * 96 * passes * 16 * 1e2, rel=1e-3)
    inside = training(gpt, slow, dp.load_strategy(table | {"tp": 8, "dp": 2}, n_devices=16), Exact())
    assert float(inside.breakdown.host) < 1e-3


@pytest.fixture(scope="module")
def waiting_by_size(gpt, system):
    """Seconds that a group waits, by the devices of a node, and their slope."""
    strategy = dp.load_strategy({"tp": 8, "global_batch": 4}, n_devices=8)

    def seconds(devices):
        slow = replace(system, {"network.nvlink.size": devices, "stack.group_stall": 1e2, "n_devices": 8})
        return training(gpt, slow, strategy, Exact()).breakdown.host

    return seconds, jax.jit(jax.grad(seconds))


@pytest.mark.parametrize(("size", "side"), [(8.0, -1), (6.0, 1), (4.0, -1), (16.0, -1)])
def test_slopes_of_a_group_that_leaves_the_node_are_differences(waiting_by_size, size, side):
    """By the devices of a node. A group of 8 begins to leave nodes of 8 as they become smaller, and lies on
    two nodes of 4; in between it counts in part.
    """
    seconds, slope_at = waiting_by_size
    slope, step = float(slope_at(size)), 1e-6 * side
    difference = float(seconds(size + step) - seconds(size)) / step
    assert slope == pytest.approx(difference, rel=1e-3, abs=1e-3 * float(seconds(4.0)))


@pytest.mark.parametrize(("precision", "rate"), [("bf16", 1.0), ("fp8", 0.25)])
def test_kernels_for_narrow_formats_may_be_slow(system, precision, rate):
    """A large product takes four times as long where its kernels reach a quarter of the rate: in formats of
    under 16 bits alone.
    """
    gemms = Gemms.table({"product": (32768.0, 32768.0, 32768.0, 1.0)})

    def seconds(share: float) -> float:
        device = machine(system, precision, narrow_efficiency=share, separate_conversion=0.0)
        return float(gemm_work(gemms, device).time[0])

    assert seconds(1.0) / seconds(0.25) == pytest.approx(rate, rel=0.05)


@pytest.mark.slow
def test_layers_with_experts_wait_for_the_routing(system):
    """Once a forward pass of every one of Mixtral's 32 layers and of each micro-batch, unless experts have a
    capacity.
    """
    model = dp.load_model("mixtral-8x7b")

    def time(model, **table) -> float:
        strategy = dp.load_strategy({"tp": 8, "global_batch": 16, **table}, n_devices=8)
        short, long = (
            training(model, with_stack(system, routing_wait=wait), strategy, Exact()).time
            for wait in (1e-9, 1e-2)
        )
        return float(long - short)

    assert time(model) == pytest.approx(16 * 32 * (1e-2 - 1e-9), rel=1e-6)
    assert time(model, capacity_factor=1.25) == 0
    assert time(dp.load_model("llama-2-7b")) == 0


def test_hidden_communication_slows_what_hides_it(llama, system):
    """By a share of the time that overlapping saves: the step lies that far on the way from overlapped to
    not, where no work follows device memory. What follows it does not miss compute units, but bandwidth.
    """
    fast = replace(system, {"accelerator.memory.hbm.bandwidth": 1e20})

    def step(contention: float, overlap: bool, system=fast) -> float:
        table = {"zero": "3", "global_batch": 256, "overlap_gradients": overlap, "overlap_weights": overlap}
        strategy = dp.load_strategy(table, n_devices=64)
        units = contention * float(system.accelerator.compute_units)
        slower = with_stack(system, collective_units=units)
        return float(training(llama, slower, strategy, Exact()).time)

    hidden, exposed = step(0.0, True), step(0.0, False)
    assert exposed > 1.01 * hidden
    assert step(0.3, True) == pytest.approx(hidden + 0.3 * (exposed - hidden), rel=1e-6)
    assert step(0.3, False) == pytest.approx(exposed, rel=1e-12)
    without, with_units = step(0.0, True, system), step(0.3, True, system)
    saved = step(0.0, False, system) - without
    assert 0 < with_units - without < 0.3 * saved
