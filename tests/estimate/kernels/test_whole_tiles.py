"""Matrix units multiply whole tiles: the energy of products with few rows."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest

import diffperf as dp
from diffperf.estimate.kernels.gemm import TILES, gemm_work
from diffperf.estimate.kernels.machine import Machine
from diffperf.quantity import real, replace
from diffperf.relax import Exact, Smooth
from diffperf.workload.operators import Gemms

ROWS = int(TILES[:, 0].min())  # of the smallest tile
N, K = 4096, 2048


def product(rows, role="linear"):
    return Gemms.table({"product": (real(rows), real(N), real(K), real(1))}, {"product": role})


def joules(rows, machine):
    return float(gemm_work(product(rows), machine).arithmetic[0])


@pytest.fixture
def machine(system):
    return Machine.of(system, dp.load_strategy({}), Exact())


@pytest.mark.parametrize("rows", [0.25, 1, 15, 16, 17, 33, 64, 1000, 1024])
def test_energy_is_that_of_whole_tiles(system, machine, rows):
    multiplied = ROWS * math.ceil(rows / ROWS)
    expected = 2 * multiplied * N * K * float(system.accelerator.compute_energy)
    assert joules(rows, machine) == pytest.approx(expected, rel=1e-12)
    assert float(gemm_work(product(rows), machine).flops[0]) == 2 * rows * N * K


def test_vector_units_multiply_no_row_more_than_there_are(system, machine):
    on_vector_units = dataclasses.replace(product(1), on_vector_units=jnp.ones(1))
    expected = 2 * N * K * float(system.accelerator.vector_energy)
    assert float(gemm_work(on_vector_units, machine).arithmetic[0]) == pytest.approx(expected, rel=1e-12)
    kernels_for_few_rows = dp.load_system("dgx-h100", 1, stack="llama.cpp")
    strategy = dp.load_strategy({"precision": "fp16"})
    served = Machine.of(kernels_for_few_rows, strategy, Exact(), serving=True).for_roles(["linear"])
    assert joules(2, served) == pytest.approx(2 * joules(1, served), rel=1e-12)


@pytest.mark.parametrize("rows", [12.0, 16.0, 20.0])
@pytest.mark.parametrize("relax", [Exact(), Smooth(20.0)], ids=["exact", "smooth"])
def test_slopes_by_rows_are_differences(system, relax, rows):
    """Inside a tile, and at its edge, where a little more takes a tile more: the exact energy is flat but for
    a jump there, and the smooth energy has the mean slope of both sides.
    """
    machine = Machine.of(system, dp.load_strategy({}), relax)

    def energy(m):
        return gemm_work(product(m), machine).arithmetic[0]

    slope, step = float(jax.grad(energy)(real(rows))), 1e-7
    sides = [float(energy(real(rows + s)) - energy(real(rows))) / s for s in (-step, step)]
    if isinstance(relax, Exact):  # flat on both sides, and a jump at the edge
        assert slope == 0.0
        assert sides[0] == 0.0
    else:
        assert slope == pytest.approx(sum(sides) / 2, rel=1e-3)
        assert slope > 0


def of_expert(rows, untuned, machine):
    products = dataclasses.replace(product(rows, "expert"), untuned=real([untuned]))
    return gemm_work(products, machine.for_roles(["expert"]))


@pytest.fixture
def vllm():
    """Tiles for a device's part of experts have 64 rows there (get_default_config in its fused_moe.py)."""
    return dp.load_system("dgx-h100", 8, stack="vllm-0.8")


@pytest.mark.parametrize("precision", ["fp8", "bf16"])
@pytest.mark.parametrize(("untuned", "rows"), [(1.0, 64), (0.0, ROWS)])
def test_tiles_that_are_not_tuned_have_the_rows_of_the_stacks_kernels(vllm, precision, untuned, rows):
    strategy = dp.load_strategy({"precision": precision}, n_devices=8)
    served = Machine.of(vllm, strategy, Exact(), serving=True)
    flop = float(vllm.accelerator.matrix_energy(strategy.precision))
    multiplied = float(of_expert(3, untuned, served).arithmetic[0]) / (2 * N * K * flop)
    assert multiplied == pytest.approx(rows, rel=1e-6)


@pytest.mark.parametrize("precision", ["fp8", "bf16"])
def test_tiles_that_are_not_tuned_take_longer_and_are_whole(vllm, precision):
    """With arithmetic that takes all time, the products of 64 rows take the inverse of the efficiency as long
    as in tuned tiles, and those of three rows as long as those of 64, where tuned tiles have 16 rows.
    """
    slow = {f"accelerator.matrix.{precision}.rate": 1e11, "accelerator.power_limit": 1e5}
    strategy = dp.load_strategy({"precision": precision}, n_devices=8)
    machine = Machine.of(replace(vllm, slow), strategy, Exact(), serving=True)

    def seconds(rows, untuned):
        return float(of_expert(rows, untuned, machine).time[0])

    efficiency = float(vllm.stack.untuned_efficiency)
    assert 0 < efficiency < 1
    assert seconds(64, 1.0) == pytest.approx(seconds(64, 0.0) / efficiency, rel=1e-3)
    assert seconds(3, 1.0) == pytest.approx(seconds(64, 1.0), rel=1e-3)
    assert seconds(3, 0.0) == pytest.approx(seconds(16, 0.0), rel=1e-3)
    assert seconds(3, 0.0) < seconds(64, 0.0) / 3
