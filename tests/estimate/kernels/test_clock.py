"""The clock under the power limit, against averages of power that are added up step by step."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import diffperf as dp
from diffperf.estimate.kernels.clock import Clock, OutsideKernels, clock_under_limit
from diffperf.estimate.kernels.machine import Machine
from diffperf.estimate.kernels.roofline import Work
from diffperf.hardware.formats import PRECISIONS
from diffperf.quantity import locate, real, replace
from diffperf.relax import Exact, Smooth
from diffperf.workload.strategy import Strategy


def machine(system, relax=None, **fields) -> Machine:
    """The device of a system, with some numbers of the accelerator replaced."""
    changed = {f"accelerator.{name}": real(value) for name, value in fields.items()}
    return Machine.of(replace(system, changed), Strategy(), relax or Exact())


def work(time=1e-3, clocked=1.0, watts=300.0, memory_watts=0.0, device=None) -> Work:
    """Work that draws watts for arithmetic and for device memory, at the clock that software allows."""
    levels = device.accelerator.memory[1:]
    served = [0.0] * (len(levels) - 1) + [memory_watts * time / float(levels[-1].energy)]
    return Work(
        time=real(time),
        starts=real(0.0),
        clocked=real(clocked * time),
        flops=real(1.0),
        arithmetic=real(watts * time),
        traffic=jnp.array(served),
    )


def power(done: Work, clock: Clock, device: Machine, beside: OutsideKernels | None = None) -> float:
    """W of a device that repeats some work at a clock, and what is beside it, added up second by second."""
    accelerator, beside = device.accelerator, beside or OutsideKernels.nothing(done)
    slow = clock.slow(done)
    waits = slow.starts + beside.waiting
    at_work = slow.time - slow.starts + beside.active
    time = at_work + waits
    active = accelerator.active_power * clock.energy / clock.slowdown
    joules = active * (at_work + accelerator.waiting_share * waits) + slow.arithmetic
    joules += done.traffic[-1] * accelerator.memory[-1].energy + beside.energy
    return float(accelerator.static_power + joules / time)


@pytest.fixture
def device(system) -> Machine:
    return machine(system, static_power=90.0, active_power=200.0, power_limit=400.0)


def test_the_clock_stays_where_the_limit_is_kept(device):
    clock = clock_under_limit(work(watts=50, device=device), device)
    factors = (clock.slowdown, clock.energy, clock.of_peak, clock.power_of_peak, clock.voltage)
    assert [float(factor) for factor in factors] == [1.0] * 5


def test_work_of_the_compute_units_runs_at_the_limit(device):
    """200 W active and 300 W of arithmetic have 310 W: P ∝ f², f = √(310/500)."""
    done = work(watts=300, device=device)
    clock = clock_under_limit(done, device)
    assert float(clock.slowdown) == pytest.approx((500 / 310) ** 0.5, rel=1e-12)
    assert power(done, clock, device) == pytest.approx(400, rel=1e-9)
    assert float(clock.slow(done).time) == pytest.approx(1e-3 * float(clock.slowdown), rel=1e-12)


@pytest.mark.parametrize("clocked", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("memory_watts", [0.0, 60.0])
def test_work_that_waits_for_memory_stays_at_the_limit(device, clocked, memory_watts):
    """Against the clock at which the power is the limit, found by bisection."""
    done = work(watts=300, clocked=clocked, memory_watts=memory_watts, device=device)
    exponent = float(device.accelerator.power_exponent)

    def at(slowdown: float) -> Clock:
        energy = slowdown ** (1 - exponent)
        return Clock(real(slowdown), real(energy), real(1.0), real(1.0))

    low, high = 1.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if power(done, at(middle), device) > 400 else (low, middle)
    clock = clock_under_limit(done, device)
    assert float(clock.slowdown) == pytest.approx(low, rel=1e-4)


@pytest.mark.parametrize("waiting", [0.0, 3e-4, 2e-3])
@pytest.mark.parametrize("beside", [0.0, 5e-4])
@pytest.mark.parametrize("starts", [0.0, 4e-4])
def test_the_limit_holds_over_waits_and_links(device, waiting, beside, starts):
    """Kernels of 1 ms that draw 300 W of arithmetic, their starts, waits and 10 mJ of links: the clock falls
    no further than it has to, and where it falls power ends at the limit.
    """
    done = work(watts=300, clocked=0.7, device=device)
    done = dataclasses.replace(done, time=done.time + starts, starts=real(starts))
    extra = OutsideKernels(waiting=real(waiting), active=real(beside), energy=real(0.01))
    clock = clock_under_limit(done, device, beside=extra)
    full = Clock(real(1.0), real(1.0), real(1.0), real(1.0))
    assert (float(clock.slowdown) > 1) == (power(done, full, device, extra) > 400)
    drawn = power(done, clock, device, extra)
    assert float(clock.slowdown) == 1 or drawn == pytest.approx(400, rel=1e-4)


@pytest.mark.parametrize("watts", [100.0, 400.0])
@pytest.mark.parametrize("field", ["waiting", "active", "energy"])
@pytest.mark.parametrize("relax", [Exact(), Smooth(20.0)], ids=["exact", "smooth"])
def test_slopes_by_what_is_beside_the_work_are_those_of_differences(system, watts, field, relax):
    device = machine(system, relax, static_power=90.0, active_power=200.0, power_limit=400.0)

    def time(number):
        numbers = {"waiting": real(1e-4), "active": real(1e-4), "energy": real(1e-2)}
        numbers[field] = jnp.asarray(number)
        done = work(watts=watts, clocked=0.7, device=device)
        return clock_under_limit(done, device, beside=OutsideKernels(**numbers)).slow(done).time

    at = 1e-2 if field == "energy" else 1e-4
    step = 1e-4 * at
    difference = (time(at + step) - time(at - step)) / (2 * step)
    assert float(jax.grad(time)(at)) == pytest.approx(float(difference), rel=1e-5, abs=1e-9)


def test_starts_of_kernels_draw_what_waits_draw():
    """A longer start of every kernel adds to the energy of a pass what waits of as many seconds take."""
    model = dp.load_model("llama-3.2-1b")
    system = replace(dp.load_system("dgx-h100", n_devices=1), {"accelerator.power_limit": real(1e5)})
    strategy = dp.load_strategy({"global_batch": 8, "sequence_length": 1024}, n_devices=1)
    for phase in (dp.decode, dp.prefill, dp.training_step):
        short, long = (
            phase(model, replace(system, {"accelerator.kernel_latency": real(seconds)}), strategy)
            for seconds in (2e-6, 3e-6)
        )
        longer = float(long.time - short.time)
        assert longer > 0
        accelerator = system.accelerator
        watts = float(accelerator.static_power + accelerator.waiting_share * accelerator.active_power)
        assert float(long.energy.total - short.energy.total) == pytest.approx(watts * longer, rel=1e-6)


def work_at(allowed, device, clocked=1.0) -> Work:
    """Work of 300 W at the clock of the peak rates, on a device whose clock software limits: P ∝ f²."""
    return work(1e-3 / allowed, clocked, 300 * allowed**2, device=device)


@pytest.mark.parametrize("allowed", [0.3, 0.75, 0.9])
def test_software_may_hold_the_clock_lower(system, allowed):
    """The power limit leaves √(310/500) = 0.787 of the clock, and the lower of both limits holds."""
    limited = machine(system, static_power=90.0, active_power=200.0, power_limit=400.0, clock_limit=allowed)
    done = work_at(allowed, limited)
    clock = clock_under_limit(done, limited)
    lower = min(allowed, (310 / 500) ** 0.5)
    assert float(clock.of_peak) == pytest.approx(lower, rel=1e-12)
    assert power(done, clock, limited) == pytest.approx(90 + 500 * lower**2, rel=1e-9)
    # P ∝ f·V² ∝ f^x, x = 2
    assert float(clock.voltage) == pytest.approx(lower**0.5, rel=1e-12)
    assert float(clock.power_of_peak) == pytest.approx(lower**2, rel=1e-12)


@pytest.mark.parametrize("allowed", [0.5, 0.78, 0.8])
@pytest.mark.parametrize("relax", [Exact(), Smooth(20.0)], ids=["exact", "smooth"])
def test_slopes_by_the_clock_limit_are_those_of_differences(system, allowed, relax):
    """On both sides of the clock that the power limit leaves, 0.787."""

    def joules(allowed):
        fields = {"static_power": 90.0, "active_power": 200.0, "power_limit": 400.0, "clock_limit": allowed}
        device = machine(system, relax, **fields)
        done = work_at(allowed, device, clocked=0.7)
        clock = clock_under_limit(done, device)
        return clock.voltage * clock.slow(done).time

    step = 1e-5
    difference = (joules(allowed + step) - joules(allowed - step)) / (2 * step)
    assert float(jax.grad(joules)(allowed)) == pytest.approx(float(difference), rel=1e-5, abs=1e-12)


def test_kernels_bound_by_memory_become_bound_by_compute_at_a_lower_clock(system):
    """A product that is just bound by device memory takes the time of its arithmetic at a third of the clock:
    that of a device with a third of its rates and no limit, in all but the clocks of its parts.
    """
    model = dp.load_model("llama-3.2-1b")
    strategy = dp.load_strategy({"global_batch": 128, "sequence_length": 1024}, n_devices=1)
    plentiful = {"accelerator.power_limit": real(1e5)}
    peak = replace(dp.load_system("dgx-a100", n_devices=1), plentiful)
    accelerator, third = peak.accelerator, 1 / 3
    scaled = {f"matrix.{name}.rate": third for name in PRECISIONS} | {"vector": third}
    scaled |= {f"matrix.{name}.k_latency": 3.0 for name in PRECISIONS}
    scaled |= {f"memory.{name}.bandwidth": third for name in ("smem", "l2")}
    scaled |= {f"memory.{name}.latency": 3.0 for name in ("smem", "l2")}
    units = ("head_latency", "row_latency")
    tiles = [f"{name}.{kind}_latency" for name in ("bf16", "fp8") for kind in ("tile", "group")]
    scaled |= {f"attention.{name}": 3.0 for name in (*units, *tiles)}
    slower = {f"accelerator.{path}": locate(accelerator, path)[0] * factor for path, factor in scaled.items()}
    reports = [
        dp.decode(model, replace(peak, changed), strategy)
        for changed in ({}, {"accelerator.clock_limit": real(third)}, slower)
    ]
    full, limited, by_hand = (float(report.time) for report in reports)
    assert limited == pytest.approx(by_hand, rel=1e-9)
    assert limited > 1.1 * full
    # P ∝ f², so that an operation takes the energy ∝ f.
    energies = [float(report.energy.compute) for report in reports]
    assert energies[1] == pytest.approx(energies[2] / 3, rel=1e-9)
    assert float(reports[1].clock) == pytest.approx(third, rel=1e-12)


def test_a_limit_below_idle_power_forces_the_slowest_clock(system):
    starved = machine(system, static_power=90.0, active_power=200.0, power_limit=1.0)
    clock = clock_under_limit(work(device=starved), starved)
    assert float(clock.slowdown) == pytest.approx(10.0, rel=1e-12)


@pytest.mark.parametrize("duration", [1e-3, 0.03, 0.1, 10.0])
def test_brief_work_may_draw_more(device, duration):
    """An average that forgets with the window, stepped through the pause and the work, ends at the limit."""
    window = float(device.accelerator.power_window)
    done = work(watts=3000, device=device)
    clock = clock_under_limit(done, device, real(duration))
    drawn, average, step = power(done, clock, device), 90.0, duration / 20_000
    for _ in range(20_000):
        average += (drawn - average) * step / window
    if float(clock.slowdown) > 1:
        assert average == pytest.approx(400, rel=0.025)
    else:
        assert average <= 400
    assert (float(clock.slowdown) == 1) == (duration < 0.01)


@pytest.mark.parametrize("watts", [100.0, 109.0, 111.0, 400.0])
@pytest.mark.parametrize("relax", [Exact(), Smooth(20.0)], ids=["exact", "smooth"])
def test_slopes_by_the_limit_are_those_of_differences(system, watts, relax):
    """On both sides of the limit, which leaves 110 W for arithmetic."""

    def time(limit):
        device = machine(system, relax, static_power=90.0, active_power=200.0, power_limit=limit)
        done = work(watts=watts, clocked=0.7, device=device)
        return clock_under_limit(done, device).slow(done).time

    step = 1e-3
    difference = (time(400 + step) - time(400 - step)) / (2 * step)
    assert float(jax.grad(time)(400.0)) == pytest.approx(float(difference), rel=1e-5, abs=1e-13)


@pytest.mark.parametrize("relax", [Exact(), Smooth(20.0)], ids=["exact", "smooth"])
def test_curvatures_are_those_of_differences_of_slopes(system, relax):
    """The slope of the clock is that of its equation, not of the steps to its solution; the curvature too."""

    def time(numbers):
        limit, watts = numbers
        device = machine(system, relax, static_power=90.0, active_power=200.0, power_limit=limit)
        done = work(watts=1.0, clocked=0.7, device=device)
        done = dataclasses.replace(done, arithmetic=done.arithmetic * watts)
        return clock_under_limit(done, device).slow(done).time

    at = jnp.asarray([400.0, 300.0])
    slopes = [(jax.grad(time)(at + step) - jax.grad(time)(at - step)) / 2e-3 for step in 1e-3 * jnp.eye(2)]
    np.testing.assert_allclose(jax.hessian(time)(at), jnp.stack(slopes), rtol=1e-5)


def test_energy_of_fp8_products_is_not_that_of_16_bit_attention():
    """The products of an fp8 model take half the energy of a FLOP; its attention kernels multiply in bf16."""
    system = dp.load_system("dgx-h100", n_devices=1)
    bf16, fp8 = (Machine.of(system, Strategy(precision=name), Exact()) for name in ("bf16", "fp8"))
    assert float(fp8.matrix.flop_energy) == pytest.approx(float(bf16.matrix.flop_energy) / 2, rel=1e-3)
    assert float(fp8.attention.flop_energy) == float(bf16.attention.flop_energy)


def test_products_in_fp32_take_the_energy_of_the_vector_units():
    """H100 has no matrix units for fp32: 67 of 989 TFLOP/s at a matrix unit's power would be 8.9 pJ/FLOP."""
    accelerator = dp.load_system("dgx-h100", n_devices=1).accelerator
    energy = {name: Strategy(precision=name).precision for name in ("fp32", "tf32", "bf16")}
    joules = {name: float(accelerator.matrix_energy(weights)) for name, weights in energy.items()}
    assert joules["fp32"] == float(accelerator.vector_energy)
    assert joules["tf32"] == pytest.approx(2 * joules["bf16"], rel=1e-3)


@pytest.mark.slow
def test_reports_keep_between_idle_and_the_limit():
    """The power of a device in training, with all that its kernels, links and waits draw."""
    strategy = {"tp": 8, "pp": 2, "global_batch": 512, "micro_batch": 2}
    for name, devices in (("dgx-h100", 64), ("hgx-b200", 64)):
        system = dp.load_system(name, n_devices=devices)
        report = dp.training_step(
            dp.load_model("llama-2-13b"), system, dp.load_strategy(strategy, n_devices=devices)
        )
        accelerator = system.accelerator
        assert float(accelerator.static_power) < float(report.power) < float(accelerator.power_limit)


@pytest.mark.slow
@pytest.mark.parametrize("phase", [dp.prefill, dp.training_step], ids=["prefill", "training"])
def test_random_designs_never_cross_their_limit(phase):
    """Designs whose powers, energies and bandwidths differ by factors of up to 4, and whose limit leaves a
    fifth of their idle power for work. Graphs of kernels: a host that launches each would leave them idle.
    """
    system = dp.load_system("dgx-h100", n_devices=1, stack="megatron-bridge")
    strategy = {"global_batch": 8, "sequence_length": 4096}
    strategy = dp.load_strategy(strategy, n_devices=1)
    model = dp.load_model("llama-3.2-1b")
    names = [
        *("accelerator.power_limit", "accelerator.static_power", "accelerator.active_power"),
        *("accelerator.compute_energy", "accelerator.vector_energy"),
        *("accelerator.memory.hbm.energy", "accelerator.memory.hbm.bandwidth"),
    ]
    factors = np.exp(np.random.default_rng(0).uniform(np.log(0.5), np.log(2), (256, len(names))))

    def powers(factors):
        numbers = zip(names, factors, strict=True)
        design = replace(system, {name: locate(system, name)[0] * factor for name, factor in numbers})
        accelerator = design.accelerator
        return phase(model, design, strategy).power, accelerator.power_limit, accelerator.static_power

    drawn, limit, idle = map(np.asarray, jax.jit(jax.vmap(powers))(jnp.asarray(factors)))
    possible = limit > 1.2 * idle
    assert np.mean(drawn[possible] > 0.99 * limit[possible]) > 0.1
    assert np.all(drawn[possible] <= (1 + 1e-4) * limit[possible])
    assert np.all(drawn > idle)


@pytest.mark.slow
def test_training_13b_on_a_dgx_h100():
    """A node was measured at up to 8.4 kW while it trained Llama-2-13B (arXiv 2412.08602)."""
    system = dp.load_system("dgx-h100", n_devices=8)
    strategy = {"tp": 2, "zero": 3, "global_batch": 128, "micro_batch": 2, "sequence_length": 4096}
    report = dp.training_step(dp.load_model("llama-2-13b"), system, dp.load_strategy(strategy, n_devices=8))
    assert float(report.cost.node.accelerators) == pytest.approx(float(report.power))
    assert 8 * float(report.cost.node.total) == pytest.approx(8400, rel=0.1)


def test_slowing_adds_to_every_operator(device):
    done = work(watts=300, clocked=0.5, device=device)
    clock = clock_under_limit(done, device)
    twice = clock.slow(done * 2.0)
    once = clock.slow(done)
    for leaf, single in zip(jax.tree.leaves(twice), jax.tree.leaves(once), strict=True):
        np.testing.assert_allclose(leaf, 2 * np.asarray(single), rtol=1e-12)
    assert dataclasses.replace(done, time=once.time).time > done.time
