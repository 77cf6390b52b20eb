"""A training step's report: parts add up, rates follow from them, and energy is counted by hand."""

import numpy as np
import pytest
from helpers import outputs, training

import diffperf as dp
from diffperf.estimate.network.transfers import transfers
from diffperf.quantity import real, replace
from diffperf.relax import Exact, Smooth
from diffperf.workload.collective import Collective


@pytest.fixture(scope="module")
def report(gpt, system, strategy):
    return training(gpt, system, strategy, Exact())


@pytest.mark.parametrize("relax", [Exact(), Smooth(20.0)], ids=["exact", "smooth"])
def test_parts_add_up(gpt, system, strategy, relax):
    report = training(gpt, system, strategy, relax)
    values = outputs(report)
    for whole, total in (
        ("breakdown", report.time),
        ("energy", report.energy.total),
        ("cost.accelerator", report.cost.manufacturing),
    ):
        parts = [float(value) for path, value in values.items() if path.startswith(whole + ".")]
        assert sum(parts) == pytest.approx(float(total), rel=1e-12)
        assert min(parts) >= 0


def test_rates_follow_from_the_time(gpt, system, strategy, report):
    time, devices = float(report.time), 64
    b, s, h, layers, v = 64, 2048, 12288, 96, 51200
    assert float(report.tokens_per_second) == pytest.approx(b * s / time, rel=1e-12)
    flops = 72 * b * s * layers * h**2 * (1 + s / (6 * h) + v / (12 * h * layers))
    assert float(report.mfu) == pytest.approx(flops / (time * devices * 312e12), rel=1e-9)
    assert float(report.power) == pytest.approx(float(report.energy.total) / (time * devices), rel=1e-12)


def test_recomputation_shows_in_hfu_not_in_mfu(gpt, system, strategy):
    base = {"tp": 8, "pp": 4, "global_batch": 64, "dp": 2, "attention": "standard"}
    none, full = (
        training(gpt, system, dp.load_strategy({**base, "recompute": r}), Exact()) for r in ("none", "full")
    )
    assert float(full.time) > float(none.time)
    assert float(full.mfu) < float(none.mfu)
    # Forward once more: 4 thirds of the layers' FLOPs. Without recomputation and masking both count the same.
    assert float(none.hfu) == pytest.approx(float(none.mfu), rel=1e-9)
    layers = 1 - 51200 / (12 * 12288 * 96) / (1 + 2048 / (6 * 12288) + 51200 / (12 * 12288 * 96))
    assert float(full.hfu / full.mfu) == pytest.approx(1 + layers / 3, rel=1e-9)


def test_utilization_counts_attention_alike(llama):
    """Neither masks attention: at long contexts, where half of the scores are never computed, too."""
    system = dp.load_system("dgx-a100", n_devices=64)
    for recompute in ("none", "full"):
        table = {"tp": 8, "cp": 8, "sequence_length": 131072, "recompute": recompute}
        report = training(llama, system, dp.load_strategy(table), Exact())
        assert float(report.hfu) >= float(report.mfu) * (1 - 1e-12)


def test_energy_by_hand(gpt, system, strategy, report):
    accelerator = system.accelerator
    assert float(report.energy.static) == pytest.approx(
        64 * float(accelerator.static_power * report.time), rel=1e-12
    )
    # Standard attention computes all scores, so that the FLOPs executed are those of the convention.
    plain = training(gpt, system, replace(strategy, {"attention": "standard"}), Exact())
    executed = float(plain.hfu) * 64 * 312e12 * float(plain.time)
    assert float(plain.energy.compute) == pytest.approx(
        executed * float(accelerator.compute_energy), rel=1e-9
    )
    # Clocks and instructions at full power while the compute units work, at a share of it while they wait.
    waits = 1 - float(accelerator.waiting_share)
    active = float(report.energy.active / report.time / accelerator.active_power) / 64
    assert 1 - waits * float(report.breakdown.pipeline_bubble / report.time) > active > 1 - waits
    # Each of 32 micro-batches reads a device's weights, 2 bytes of a 32nd of the layers, at least forward and
    # backward.
    weights = 2 * 32 * 2 * float(gpt.layer_parameters) / 32
    assert float(report.energy.memory) > 64 * weights * float(accelerator.device_memory.energy)


def test_network_energy_of_pure_data_parallelism(llama, system):
    """A ring all-reduce of Ψ fp32 gradients over n devices sends 2·(n − 1)/n · 4Ψ bytes a device, 8 of 64 in
    a node.
    """
    strategy = dp.load_strategy({"dp": 64, "global_batch": 64})
    report = training(llama, system, strategy, Exact())
    gradients = 4 * float(llama.parameters - llama.hidden)  # the final norm is left out
    inner, outer = (float(tier.energy) for tier in system.network)
    expected = 64 * (2 * 7 / 8 * gradients * inner + 2 * 7 / 8 * gradients / 8 * outer)
    assert float(report.energy.network) == pytest.approx(expected, rel=1e-9)


def test_gradient_reduction_hides_under_the_backward_pass(llama, system):
    table = {"dp": 64, "global_batch": 64}
    hidden, exposed = (
        training(llama, system, dp.load_strategy({**table, "overlap_gradients": overlap}), Exact())
        for overlap in (True, False)
    )
    reduction = float(exposed.breakdown.data_parallel)
    backward = sum(float(getattr(hidden.breakdown, part)) for part in ("matmul", "attention", "elementwise"))
    assert reduction > 0
    assert max(reduction - backward, 0) <= float(hidden.breakdown.data_parallel) < reduction


@pytest.mark.parametrize(("stage", "bytes_"), [("1", 4 + 2), ("2", 4 + 2), ("3", 4 + 2 * 2)])
def test_zero_moves_weights_and_saves_optimizer_time(llama, system, stage, bytes_):
    """Reduce-scatter of fp32 gradients and all-gather of 2-byte weights, once or for either pass; else an
    all-reduce.
    """
    table = {"dp": 64, "global_batch": 64, "overlap_gradients": False, "overlap_weights": False}
    plain, sharded = (
        training(llama, system, dp.load_strategy({**table, "zero": z}), Exact()) for z in ("0", stage)
    )
    assert float(sharded.energy.network / plain.energy.network) == pytest.approx(bytes_ / 8, rel=1e-9)
    assert float(sharded.breakdown.optimizer) < float(plain.breakdown.optimizer) / 32
    if stage != "3":  # whose layers are gathered one by one
        assert float(sharded.breakdown.data_parallel) < float(plain.breakdown.data_parallel)


def test_no_pass_hides_gradients_that_are_reduced_whole(llama, system):
    """At stage 1 of nanotron the exchange takes an all-reduce, as without ZeRO where nothing hides it, and
    the gathering of the weights, whatever the strategy would hide.
    """
    table = {"dp": 64, "global_batch": 256}

    def exchange(whole: bool, **more) -> float:
        software = replace(system, {"stack.whole_gradients": whole})
        strategy = dp.load_strategy(table | more)
        return float(training(llama, software, strategy, Exact()).breakdown.data_parallel)

    exposed = {"overlap_gradients": False, "overlap_weights": False}
    reduced = exchange(True, zero="0", **exposed)
    gathered = Collective(
        name="weights",
        kind="all_gather",
        purpose="weights",
        per="step",
        degree=real(64),
        stride=real(1),
        volume=real(2 * float(llama.parameters)),
    )
    gathering = transfers([gathered], system, Exact(), system.stack.network_efficiency)[0].transfer.time
    for more in ({}, exposed):
        late = exchange(True, zero="1", **more)
        assert late == pytest.approx(reduced + float(gathering), rel=1e-6)
    assert exchange(False, zero="1") < exchange(False, zero="1", **exposed) < late
    assert exchange(True, zero="0") == exchange(False, zero="0")


def test_gathering_hides_under_the_passes(llama, system):
    """ZeRO-3: what nothing hides is what is longer than both passes; with little to hide under, all of it
    shows.
    """
    table = {"dp": 64, "zero": "3"}
    for length in (4096, 64):
        hidden, exposed = (
            training(
                llama,
                system,
                dp.load_strategy(table | more | {"sequence_length": length, "global_batch": 64}),
                Exact(),
            )
            for more in ({}, {"overlap_gradients": False, "overlap_weights": False})
        )
        passes = sum(
            float(getattr(hidden.breakdown, part)) for part in ("matmul", "attention", "elementwise")
        )
        left, whole = float(hidden.breakdown.data_parallel), float(exposed.breakdown.data_parallel)
        assert max(whole - 2 * passes, 0) <= left < whole


def test_offloading_takes_the_hosts_bandwidth(gpt, system):
    """Activations there and back hide under the passes; gradients there and weights back for the host's
    optimizer do not.
    """
    table = {"tp": 8, "pp": 8, "global_batch": 64}
    none, states = (
        training(gpt, system, dp.load_strategy(table | {"offload_optimizer": share}), Exact())
        for share in (0, 0.5)
    )
    # Half of the parameters; the other half is what is left on the device.
    moved = float(states.memory.optimizer) / 12 * (4 + 2)
    assert float(none.breakdown.offload) == 0
    updated = float(states.memory.optimizer) / 12 * (4 + 2 + 2 * 12)
    assert float(states.breakdown.offload) == pytest.approx(
        moved / float(system.host_bandwidth) + updated / float(system.host_memory_bandwidth), rel=1e-9
    )
    assert float(states.breakdown.optimizer) < 0.6 * float(none.breakdown.optimizer)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_offloaded_activations_travel_there_and_back(gpt, system, share):
    """34·s·b·h bytes a layer, of all 64 micro-batches: what takes longer than the passes shows."""
    strategy = dp.load_strategy({"tp": 8, "pp": 8, "global_batch": 64, "offload_activations": share})
    carried = 2 * share * 64 * 96 / 8 * 34 * 2048 * 12288 / 8
    for bandwidth in (1e12, 1e8):
        report = training(gpt, replace(system, {"host_bandwidth": bandwidth}), strategy, Exact())
        passes = sum(
            float(getattr(report.breakdown, part))
            for part in ("matmul", "attention", "elementwise", "recompute")
        )
        assert float(report.breakdown.offload) == pytest.approx(
            max(carried / bandwidth - passes, 0), rel=1e-9
        )


def test_choices_interpolate(gpt, system):
    """A relaxed choice is the mixture of the definite ones, where the report is linear in it.

    The share of the work that follows device memory, by which hidden communication slows it, is a quotient.
    Graphs of kernels: the longer of a pass and its launches, nearly, is no mixture.
    """
    system = replace(system, {"stack.host_launch": real(1e-9), "stack.head_launch": real(1e-9)})
    base = {"tp": 8, "pp": 4, "global_batch": 64, "dp": 2}
    times = {}
    for r in ("none", "full"):
        times[r] = float(training(gpt, system, dp.load_strategy({**base, "recompute": r}), Exact()).time)
    mixed = training(
        gpt, system, dp.load_strategy({**base, "recompute": {"none": 0.25, "full": 0.75}}), Exact()
    )
    assert float(mixed.time) == pytest.approx(0.25 * times["none"] + 0.75 * times["full"], rel=1e-7)


def test_real_degrees_lie_between_whole_ones(gpt, system):
    times = []
    for tp in (4.0, 5.3, 8.0):
        strategy = replace(dp.load_strategy({"pp": 8, "global_batch": 64}), {"tp": tp, "dp": 8 / tp})
        times.append(float(training(gpt, system, strategy, Smooth(64.0)).memory.weights))
    assert np.all(np.diff(times) < 0)


def test_a_batch_of_one_micro_batch_a_stage_is_mostly_bubble(gpt, system):
    report = training(gpt, system, dp.load_strategy({"tp": 8, "pp": 8, "global_batch": 1}), Exact())
    assert float(report.breakdown.pipeline_bubble) > 0.8 * float(report.time)


def test_the_report_reads_as_a_table(report):
    text = str(report)
    for words in (
        "step time",
        "linear layers",
        "pipeline bubble",
        "device memory",
        "arithmetic of matrix and vector units",
        "cost of the run",
    ):
        assert words in text
