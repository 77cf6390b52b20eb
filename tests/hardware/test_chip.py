"""From design numbers to accelerators: published chips come out, and formulas written another way agree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffperf.cost.die_cost import known_good_price
from diffperf.cost.package_cost import package_cost
from diffperf.hardware.chip import chip
from diffperf.hardware.designed_accelerator import accelerator_of, design_of, system_of
from diffperf.hardware.operating_point import LEAST_VOLTAGE, clock
from diffperf.hardware.technology import Technology
from diffperf.load import load, load_system
from diffperf.quantity import locate, replace
from diffperf.relax import Exact

CHIPS = [
    # technology, system, published die area (mm²) and TDP (W): NVIDIA A100 and H100 datasheets
    ("n7-hbm2e", "dgx-a100", 826.0, 400.0),
    ("n4-hbm3", "dgx-h100", 814.0, 700.0),
]


@pytest.fixture(params=CHIPS, ids=lambda row: row[1])
def case(request):
    technology, system, area, power = request.param
    return load(Technology, technology), load_system(system, 8), area, power


def test_published_chip_is_reproduced(case):
    technology, system, area, power = case
    made = chip(design_of(system, technology), technology, system.accelerator)
    assert float(made.die_area) == pytest.approx(area, rel=0.01)
    assert float(made.power) == pytest.approx(power, rel=0.03)
    assert 0 < float(made.shoreline) < 1


def test_accelerator_of_the_published_design_is_the_published_accelerator(case):
    technology, system, *_ = case
    published = system.accelerator
    made = accelerator_of(design_of(system, technology), technology, published)
    assert float(made.matrix.bf16.rate) == pytest.approx(float(published.matrix.bf16.rate), rel=1e-6)
    for ours, theirs in zip(made.memory, published.memory, strict=True):
        assert float(ours.capacity) == pytest.approx(float(theirs.capacity), rel=0.02)
        assert float(ours.bandwidth) == pytest.approx(float(theirs.bandwidth), rel=0.02)
    ours, theirs = (float(package_cost(accelerator, Exact()).total) for accelerator in (made, published))
    assert ours == pytest.approx(theirs, rel=0.15)


def test_area_and_power_by_hand():
    technology, system = load(Technology, "n7-hbm2e"), load_system("dgx-a100", 8)
    design = replace(design_of(system, technology), {"dies": 2.0, "voltage": 0.65})
    made = chip(design, technology, system.accelerator)
    t, d = technology, design
    compute = 312e12 / float(t.compute_density)
    cache = float(d.cache) / float(t.sram_density)
    phys = 5 * 10.45 + 300e9 / float(t.link.area_density)
    # Half of what each die reads lies beside the other one; UCIe moves 675 GB/s per mm².
    crossing = 5 * 408e9 / 2 / 2
    die = ((compute + cache + phys) / 2 + crossing / 675e9) / (1 - 0.25)
    assert float(made.die_area) == pytest.approx(die, rel=1e-4)
    speed = ((0.65 - 0.2) / (0.75 - 0.2)) ** 1.3 * 0.75 / 0.65
    assert float(made.clock) == pytest.approx(speed, rel=1e-6)
    scale = 0.65 / 0.75
    energy, static = float(t.compute_energy), float(t.static_density)
    peak = (
        312e12 * speed * energy * scale**2
        + 5 * 408e9 * 31.2e-12
        + 300e9 * 88e-12
        + 2 * crossing * 2e-12
        + 2 * die * static * scale
    ) + 2 * die * float(t.active_density) * speed * scale**2
    assert float(made.power) == pytest.approx(float(t.limit_share) * peak, rel=1e-4)


@pytest.mark.parametrize("limit", [0.0, 300.0])
@pytest.mark.parametrize("dies", [1.0, 2.0])
def test_parts_add_up_to_the_die_and_to_the_power(dies, limit):
    """By hand: private memory is a share of the units, and leakage follows area and voltage."""
    technology, system = load(Technology, "n7-hbm2e"), load_system("dgx-a100", 8)
    design = replace(design_of(system, technology), {"dies": dies, "power_limit": limit})
    made = chip(design, technology, system.accelerator)
    areas = ("compute", "cache", "memory", "network", "die_to_die", "uncore")
    die = float(made.die_area)
    assert sum(float(getattr(made, f"{part}_area")) for part in areas) == pytest.approx(die, rel=1e-5)
    assert float(made.private_area) == pytest.approx(0.15 * float(made.compute_area), rel=1e-5)
    powers = ("compute", "active", "memory", "network", "die_to_die", "static")
    total = sum(float(getattr(made, f"{part}_power")) for part in powers)
    assert total == pytest.approx(float(made.power), rel=1e-4)
    leak = dies * die * float(technology.static_density) * float(made.voltage / technology.nominal_voltage)
    assert float(made.static_power) == pytest.approx(float(technology.limit_share) * leak, rel=1e-4)


def test_clock_rises_with_voltage_and_is_one_at_nominal():
    technology = load(Technology, "n7-hbm2e")
    voltages = jnp.linspace(0.3, 1.2, 50)
    clocks = jax.vmap(lambda voltage: clock(voltage, technology))(voltages)
    assert np.all(np.diff(clocks) > 0)
    assert float(clock(technology.nominal_voltage, technology)) == pytest.approx(1.0)


@pytest.mark.slow
def test_every_design_number_has_a_gradient_that_matches_finite_differences():
    technology, system = load(Technology, "n7-hbm2e"), load_system("dgx-a100", 8)
    design = replace(
        design_of(system, technology), {"dies": 2.5, "voltage": 0.7, "die_to_die_bandwidth": 2e11}
    )

    @jax.jit
    def price_and_rate(design):
        made = system_of(design, technology, system).accelerator
        return (
            package_cost(made, Exact()).total
            + made.matrix.bf16.rate * 1e-12
            + made.device_memory.bandwidth * 1e-10
        )

    gradient = jax.jit(jax.grad(price_and_rate))(design)
    for name in (
        "compute_units",
        "cache",
        "memory_stacks",
        "network_bandwidth",
        "dies",
        "voltage",
        "die_to_die_bandwidth",
    ):
        value = float(getattr(design, name))
        step = 1e-5 * value
        up, down = (float(price_and_rate(replace(design, {name: value + sign * step}))) for sign in (1, -1))
        assert float(getattr(gradient, name)) == pytest.approx((up - down) / (2 * step), rel=1e-5), name


# --- under a power limit


def limited(limit, technology="n4-hbm3", system="dgx-h100"):
    """The H100's design in a package that is cooled for `limit` W: its chip and its accelerator."""
    loaded, template = load(Technology, technology), load_system(system, 8)
    design = replace(design_of(template, loaded), {"power_limit": limit})
    return chip(design, loaded, template.accelerator), accelerator_of(design, loaded, template.accelerator)


def test_a_limit_above_what_the_chip_draws_changes_nothing():
    (made, _), (free, _) = limited(900.0), limited(0.0)
    for ours, theirs in zip(jax.tree.leaves(made), jax.tree.leaves(free), strict=True):
        assert float(ours) == pytest.approx(float(theirs), rel=1e-12)


@pytest.mark.parametrize("limit", [600.0, 450.0, 350.0, 250.0])
def test_a_chip_over_its_limit_is_clocked_down_to_it(limit):
    """Against brute force: the fastest of many voltages, and of many clocks at the least voltage, that keep
    the limit, by the formulas of `test_area_and_power_by_hand`.
    """
    made, accelerator = limited(limit)
    assert float(made.power) == pytest.approx(limit, rel=1e-9)
    t, (free, _) = load(Technology, "n4-hbm3"), limited(0.0)
    area, rate = float(free.die_area), 989.4e12
    voltages = np.concatenate([np.full(200_000, LEAST_VOLTAGE), np.linspace(LEAST_VOLTAGE, 0.75, 200_000)])
    relative, throttle = voltages / 0.75, np.concatenate([np.linspace(0, 1, 200_000), np.ones(200_000)])
    clocks = ((voltages - 0.2) / 0.55) ** 1.3 / relative * throttle
    power = (
        (rate * float(t.compute_energy) + area * float(t.active_density)) * clocks * relative**2
        + area * float(t.static_density) * relative
        + 5 * 670e9 * 31.2e-12
        + 450e9 * 88e-12
    ) * float(t.limit_share)
    fastest = clocks[power <= limit].max()
    assert float(made.clock) == pytest.approx(fastest, rel=1e-4)
    assert float(accelerator.matrix.bf16.rate) == pytest.approx(rate * fastest, rel=1e-4)
    assert float(accelerator.power_limit) == pytest.approx(limit)


def test_latencies_that_are_cycles_follow_the_clock_and_others_stay():
    made, accelerator = limited(400.0)
    template = load_system("dgx-h100", 8).accelerator
    slower = 1 / float(made.clock)
    assert slower > 1.2
    for ours, theirs in zip(accelerator.memory[:2], template.memory[:2], strict=True):
        assert float(ours.latency) == pytest.approx(slower * float(theirs.latency))
    ours, theirs = accelerator.matrix.fp8, template.matrix.fp8
    assert float(ours.k_latency) == pytest.approx(slower * float(theirs.k_latency))
    for name in ("head_latency", "row_latency", "bf16.tile_latency", "fp8.group_latency"):
        ours, theirs = (locate(kernels, name)[0] for kernels in (accelerator.attention, template.attention))
        assert float(ours) == pytest.approx(slower * float(theirs)), name
    assert float(accelerator.kernel_latency) == float(template.kernel_latency)
    assert float(accelerator.attention.latency) == float(template.attention.latency)


def test_a_design_keeps_the_tiles_of_its_template():
    """Large matrix units work on several tiles at a time in a design, too."""
    template = load_system("tpu-v5p-pod", 8)
    technology = load(Technology, "n4-hbm3")
    made = accelerator_of(design_of(template, technology), technology, template.accelerator)
    assert float(made.tiles_at_once) == float(template.accelerator.tiles_at_once) > 5


def test_a_limit_below_the_power_without_a_clock_is_exceeded_by_finite_numbers():
    """Inside a search: the power stays above the limit and names the violation."""
    made, accelerator = limited(40.0)
    assert float(made.power) > 80
    assert float(accelerator.matrix.bf16.rate) > 1e12
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(accelerator))


@pytest.fixture(scope="module")
def under_a_limit():
    """A design, and a number of what is made of it with its gradient."""
    technology, system = load(Technology, "n4-hbm3"), load_system("dgx-h100", 8)

    @jax.jit
    def rate_and_energy(design):
        made = accelerator_of(design, technology, system.accelerator)
        return made.matrix.bf16.rate * 1e-15 + made.compute_energy * 1e12 + made.power_limit * 1e-3

    return design_of(system, technology), rate_and_energy, jax.jit(jax.grad(rate_and_energy))


@pytest.mark.parametrize("limit", [600.0, 400.0, 250.0, 40.0])
@pytest.mark.parametrize("name", ["power_limit", "voltage", "compute_units", "memory_stacks"])
def test_gradients_under_a_limit_match_finite_differences(under_a_limit, limit, name):
    design, rate_and_energy, slopes = under_a_limit
    design = replace(design, {"power_limit": limit})
    value = float(getattr(design, name))
    gradient, step = getattr(slopes(design), name), 1e-5 * value
    up, down = (rate_and_energy(replace(design, {name: value + sign * step})) for sign in (1, -1))
    central = (up - down) / (2 * step)
    assert float(gradient) == pytest.approx(float(central), rel=1e-5, abs=1e-9)


def test_a_traced_limit_of_none_changes_nothing(float32):
    technology, system = load(Technology, "n4-hbm3"), load_system("dgx-h100", 8)
    design = design_of(system, technology)

    def rate(limit):
        limited = replace(design, {"power_limit": limit})
        return accelerator_of(limited, technology, system.accelerator).matrix.bf16.rate * 1e-12

    values, slopes = jax.jit(jax.vmap(jax.value_and_grad(rate)))(jnp.array([0.0, 1e4, 500.0]))
    np.testing.assert_allclose(values[:2], 989.4, rtol=1e-5)
    assert values[2] < 980
    np.testing.assert_array_equal(slopes[:2], 0.0)
    assert slopes[2] > 0


def test_heat_and_bumps_by_hand():
    """An H100's die: its power without the stacks' over its area, and bumps of current and signals."""
    technology, system = load(Technology, "n4-hbm3"), load_system("dgx-h100", 8)
    design, packaging = design_of(system, technology), system.accelerator.package.packaging
    made = chip(design, technology, system.accelerator)
    stacks = 5 * 670e9 * float(technology.memory.energy) * float(technology.limit_share)
    watts = float(made.power) - stacks
    assert float(made.heat_flux) == pytest.approx(watts / float(made.die_area), rel=1e-6)
    supply = 2 * watts / float(technology.nominal_voltage) / float(packaging.micro_bump_current)
    signals = 5 * float(technology.memory.bumps) + 450e9 / 3.125e9
    places = float(made.die_area) / float(packaging.micro_bump_pitch) ** 2
    assert float(made.bumps) == pytest.approx((supply + signals) / places, rel=1e-6)
    organic = replace(system.accelerator, {"package.carrier": "organic"})
    c4 = chip(design, technology, organic)
    supply = 2 * watts / float(technology.nominal_voltage) / float(packaging.c4_current)
    places = float(made.die_area) / float(packaging.c4_pitch) ** 2
    assert float(c4.bumps) == pytest.approx((supply + signals) / places, rel=1e-6)


def test_stacked_dies_extend_the_cache_and_are_paid_for():
    """An SRAM die on each of two compute dies: AMD's density, the price of another good die and its bonds,
    and no more room on the carrier."""
    technology, system = load(Technology, "n7-hbm2e"), load_system("dgx-a100", 8)
    flat = replace(design_of(system, technology), {"dies": 2.0})
    stacked = replace(flat, {"stacked_dies": 1.0})
    before, after = (chip(design, technology, system.accelerator) for design in (flat, stacked))
    assert float(before.stacked_cache) == 0
    area = float(after.die_area)
    assert float(after.stacked_cache) == pytest.approx(2 * area * 64 * 2**20 / 41, rel=0.02)
    assert float(after.carried_area) == pytest.approx(float(before.carried_area), rel=1e-12)
    assert float(after.heat_flux) > float(before.heat_flux)
    plain, tall = (accelerator_of(each, technology, system.accelerator) for each in (flat, stacked))
    more = float(tall.memory[tall.last_cache].capacity - plain.memory[plain.last_cache].capacity)
    assert more == pytest.approx(float(after.stacked_cache), rel=1e-12)
    (_, sram), packaging = tall.package.dies, tall.package.packaging
    good = float(known_good_price(sram, packaging))
    costs = [package_cost(each, Exact()) for each in (plain, tall)]
    parts = [float(cost.dies + cost.defective_dies + cost.die_test) for cost in costs]
    assert parts[1] - parts[0] == pytest.approx(2 * good, rel=1e-6)
    assert float(costs[1].stacking) > 2 * area * float(packaging.hybrid_bonds.price)


def test_the_price_of_stacked_dies_is_smooth_from_none_on():
    """The slope of the manufacturing cost by the number of stacked dies, at none, is the right difference."""
    technology, system = load(Technology, "n7-hbm2e"), load_system("dgx-a100", 8)
    design = design_of(system, technology)

    @jax.jit
    def cost(count):
        made = accelerator_of(replace(design, {"stacked_dies": count}), technology, system.accelerator)
        return package_cost(made, Exact()).total

    slope = float(jax.grad(cost)(jnp.zeros(())))
    step = 1e-5
    assert slope == pytest.approx((float(cost(step)) - float(cost(0.0))) / step, rel=1e-3)
    none = accelerator_of(design, technology, system.accelerator)
    assert float(cost(0.0)) == pytest.approx(float(package_cost(none, Exact()).total), rel=1e-9)
