"""The superconducting board against the published figures of arXiv 2411.08645 and 2303.16801."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import study_module

import diffperf as dp
from diffperf.estimate.inference import decode, prefill
from diffperf.estimate.training import training_step
from diffperf.hardware.accelerator import Accelerator
from diffperf.load import load
from diffperf.quantity import replace

# arXiv 2411.08645: bf16 FLOP/s and W at the wall of a board and of a hundred boards.
PUBLISHED = {1: (0.2e18, 5e3), 100: (20e18, 500e3)}
CARNOT = {4: (300 - 4) / 4, 77: (300 - 77) / 77}  # W/W: the least work that moves heat to 300 K

derivation = study_module("superconducting", "derivation")


@pytest.fixture(scope="module")
def board():
    return load(Accelerator, "superconducting-board")


@pytest.mark.parametrize("boards", PUBLISHED)
def test_peak_rate_and_power_are_the_published(boards):
    system = dp.load_system("superconducting-boards", n_devices=boards)
    accelerator, (rate, power) = system.accelerator, PUBLISHED[boards]
    assert boards * float(accelerator.matrix.bf16.rate) == pytest.approx(rate, rel=1e-6)
    assert boards * float(accelerator.power_limit) == pytest.approx(power, rel=1e-6)
    # The sum of the estimates by part, among which the link's bandwidth was chosen by the published power.
    parts = derivation.full_rate_power(accelerator)
    assert boards * sum(parts.values()) == pytest.approx(power, rel=0.01)


def test_sums_of_power_see_a_cooling_that_is_left_out(board):
    """The test above can fail: without the cooling of logic a board would draw a fifth of its power."""
    uncooled = replace(board, {"compute_energy": board.compute_energy / 401})
    assert sum(derivation.full_rate_power(uncooled).values()) < 0.25 * PUBLISHED[1][1]


def test_power_follows_the_cooling(board):
    """Parts at 4 K alone are in proportion to 1 + 300 W/W over 1 + 400 W/W; no part is left out."""
    better, shipped = derivation.full_rate_power(board, 300, 10), derivation.full_rate_power(board)
    assert better["arithmetic"] / shipped["arithmetic"] == pytest.approx(301 / 401, rel=1e-9)
    leaks = 0.5 * 301 + 3 * 11  # W
    assert better["heat leaks"] == pytest.approx(leaks, rel=1e-3)
    assert all(better[part] < shipped[part] for part in shipped)


def test_density_of_jsram_is_consistent():
    """4 MB/cm² are 32 million cells of 2 µm², which cover 64 % of the area; with cells alone, 400 million
    junctions fit."""
    assert derivation.array_share() == pytest.approx(0.64, rel=1e-9)
    assert derivation.memory_junctions() == pytest.approx(256e6, rel=1e-9)
    assert derivation.memory_junctions() <= 400e6
    assert derivation.memory_junctions() / derivation.array_share() == pytest.approx(400e6, rel=1e-9)


def test_shipped_board_is_the_derived(board):
    """To the digits of the file."""
    array, jsram, dram = board.memory
    kept = {
        "compute_energy": (board.compute_energy, derivation.flop_energy()),
        "array energy": (array.energy, derivation.pulses_energy(derivation.ARRAY_PULSES)),
        "jsram energy": (jsram.energy, derivation.pulses_energy(derivation.JSRAM_PULSES)),
        "dram energy": (dram.energy, derivation.dram_energy()),
        "static power": (board.static_power, derivation.static_power()),
        "clock power": (board.active_power, derivation.at_wall(derivation.CLOCK_POWER_4K, 400)),
        "jsram capacity": (array.capacity + jsram.capacity, derivation.jsram_capacity()),
        "multipliers": (board.compute_units * 128**2, derivation.multipliers()),
        "cycle": (board.matrix.bf16.k_latency, 1 / derivation.CLOCK),
    }
    digits = dict.fromkeys(kept, 0.001) | {"multipliers": 0.02, "cycle": 2e-3}
    for name, (shipped, derived) in kept.items():
        assert float(shipped) == pytest.approx(derived, rel=digits[name]), name
    dies = {str(die.name): float(die.count * die.area) for die in board.package.dies}
    assert dies["logic"] == pytest.approx(100 * derivation.logic_area(), rel=1e-3)
    assert dies["jsram"] == pytest.approx(derivation.JSRAM_DIES * dies["logic"], rel=1e-9)


def test_cooling_takes_more_than_an_ideal_machine():
    assert CARNOT[4] < derivation.COOLING_4K < 10 * CARNOT[4]
    assert CARNOT[77] < derivation.COOLING_77K < 10 * CARNOT[77]


SERVED = {"global_batch": 16, "sequence_length": 512, "output_length": 128}


@pytest.mark.slow
def test_energy_has_its_cooling_once(board):
    """Joules of arithmetic and memory are those at temperature, each with its cooling; electricity is that of
    these joules and of the host, and the facility adds nothing."""
    system = dp.load_system("superconducting-boards")
    report = decode(dp.load_model("llama-2-7b"), system, dp.load_strategy(SERVED))
    cold = {"compute_energy": board.compute_energy / 401, "vector_energy": board.vector_energy / 401}
    of_cold = replace(system, {f"accelerator.{key}": value for key, value in cold.items()})
    uncooled = decode(dp.load_model("llama-2-7b"), of_cold, dp.load_strategy(SERVED))
    assert float(report.energy.compute / uncooled.energy.compute) == pytest.approx(401, rel=1e-6)
    assert float(cold["compute_energy"]) == pytest.approx(10_000 * 0.5 * 2e-20 / 2, rel=1e-6)
    assert float(system.prices.pue) == 1.0
    node = report.cost.node
    assert float(node.accelerators) == pytest.approx(float(report.energy.total / report.time))
    assert float(node.fans) == float(node.conversion) == 0.0
    watts = float(node.total)
    electricity = watts * float(system.prices.electricity)
    assert float(report.cost.electricity) == pytest.approx(electricity, rel=1e-6)


WORKLOADS = {
    "decode": (decode, SERVED, 1),
    "prefill": (prefill, SERVED, 1),
    "training": (training_step, {"tp": 2, "global_batch": 32, "sequence_length": 2048}, 4),
}


@pytest.mark.parametrize("phase", WORKLOADS)
def test_a_wider_link_is_never_slower(phase):
    estimate, fields, boards = WORKLOADS[phase]
    system = dp.load_system("superconducting-boards", n_devices=boards)
    strategy, model = dp.load_strategy(fields, n_devices=boards), dp.load_model("llama-2-7b")

    def time(bandwidth):
        return estimate(
            model, replace(system, {"accelerator.memory.cryo-dram.bandwidth": bandwidth}), strategy
        ).time

    times = np.asarray(jax.jit(jax.vmap(time))(jnp.logspace(12, 13.9, 20)))
    assert np.all(np.diff(times) <= 1e-9 * times[:-1])
    assert times[-1] < 0.9 * times[0]
