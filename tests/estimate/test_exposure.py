"""Communication under computation: by hand, links that carry one thing at a time, slopes."""

import dataclasses
import operator

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import diffperf as dp
from diffperf.estimate.exposure import Earlier, Traffic, Window, exposed, memory_byte_time
from diffperf.estimate.network.transfers import Transfer, transfers
from diffperf.estimate.training import timed_step
from diffperf.quantity import Weights, locate, replace
from diffperf.relax import Exact, Smooth
from diffperf.workload.collective import Collective
from diffperf.workload.configuration import Configuration
from diffperf.workload.strategy import Strategy

UNITS = 108  # compute units of an A100
BOTH = Weights(jnp.array([0.0, 1.0]), ("off", "on"))
OF_FOUR_SECONDS = Window(time=jnp.asarray(4.0), memory=jnp.asarray(0.0))  # all of them by the compute units
OVERLAPS = ("gradients", "weights", "tensor", "context", "experts", "transfers")


def traffic(seconds: float, *shares: float) -> Traffic:
    """Traffic that fills the links of each tier for a share of its seconds."""
    return Traffic(jnp.asarray(seconds), busy=seconds * jnp.asarray(shares), memory=jnp.asarray(0.0))


def all_reduce(degree: float, volume: float) -> Collective:
    numbers = map(jnp.asarray, (degree, 1.0, volume))
    return Collective(*numbers, name="gradients", purpose="gradients", kind="all_reduce")


def configuration(llama, system, units: float, relax=None) -> Configuration:
    occupied = replace(system, {"stack.collective_units": units})
    return Configuration(llama, occupied, Strategy(), relax or Exact())


@pytest.mark.parametrize(
    ("seconds", "tiers", "others", "expected"),
    [
        (3.0, (1.0, 0.0), [], 0.25 * 3),  # all of it hides under 4 s
        (5.0, (1.0, 0.0), [], 1 + 0.25 * 4),
        (3.0, (1.0, 0.0), [(2.0, (1.0, 0.0))], 1 + 0.25 * 2),  # the links are busy for 2 of the 4 s
        (3.0, (1.0, 0.0), [(2.0, (0.0, 1.0))], 0.25 * 3),  # other links are
        (3.0, (0.5, 0.5), [(2.0, (1.0, 0.0))], 0.25 * 3),  # its 1.5 s there fit beside the 2 s
        (3.0, (0.5, 0.5), [(4.0, (1.0, 0.0))], 1.5 + 0.25 * 1.5),  # its 1.5 s there fit nowhere
        (5.0, (0.5, 0.5), [(3.0, (1.0, 0.0))], 1.5 + 0.25 * 3.5),  # 1 s exceeds the window, 1.5 s the links
        (5.0, (0.5, 0.5), [(1.0, (1.0, 0.0))], 1 + 0.25 * 4),  # 1 s exceeds the window, the links are free
        (3.0, (1.0, 0.0), [(3.0, (1.0, 0.0)), (9.0, (1.0, 0.0))], 3.0),  # never free
    ],
)
def test_by_hand(llama, system, seconds, tiers, others, expected):
    """Under 4 s of work, where collectives occupy a quarter of the compute units."""
    c = configuration(llama, system, UNITS / 4)
    busy = [traffic(time, *on_tiers) for time, on_tiers in others]
    added = exposed(traffic(seconds, *tiers), OF_FOUR_SECONDS, BOTH, c, Earlier(busy))
    assert float(added) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("seconds", "shares", "earlier", "expected"),
    [
        (3.0, (0.5, 0.5), (1.0, (0.5, 0.5)), 0.25 * 3),  # both fit into the 4 s
        (3.0, (0.5, 0.5), (2.0, (0.5, 0.5)), 1 + 0.25 * 2),  # one after the other, though links have room
        (3.0, (1.0, 0.0), (2.0, (1.0, 0.0)), 1 + 0.25 * 2),  # links in common count once
    ],
)
def test_collectives_of_a_group_run_one_after_the_other(llama, system, seconds, shares, earlier, expected):
    c = configuration(llama, system, UNITS / 4)
    time, on_tiers = earlier
    first = Earlier(in_group=[traffic(time, *on_tiers)])
    added = exposed(traffic(seconds, *shares), OF_FOUR_SECONDS, BOTH, c, first)
    assert float(added) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("follows", "bandwidth", "expected"),
    [
        (0.0, 1.0, 3 / 4),  # bound by compute units, of which collectives take a quarter for 3 s
        (4.0, 0.5, 3 / 2),  # bound by device memory, half of whose bandwidth collectives take
        (4.0, 0.0, 0.0),  # its bandwidth is all its own: compute units are not missed
        (1.0, 0.5, 3 * (3 / 4 * 1 / 4 + 1 / 4 * 1 / 2)),  # one kernel of four is bound by device memory
        (4.0, 2.0, 3.0),  # never more than the time of the communication
    ],
)
def test_work_loses_what_it_follows(llama, system, follows, bandwidth, expected):
    """3 s of communication under 4 s of work, `follows` of which grow with the time of device memory, of
    whose bandwidth communication takes a share.
    """
    c = configuration(llama, system, UNITS / 4)
    bytes_ = 3 * bandwidth / memory_byte_time(c.system, Exact())
    beside = Traffic(time=jnp.asarray(3.0), busy=3 * jnp.array([1.0, 0.0]), memory=bytes_)
    added = exposed(beside, Window(time=jnp.asarray(4.0), memory=jnp.asarray(follows)), BOTH, c)
    assert float(added) == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.slow
def test_streams_follow_device_memory_and_large_products_do_not(llama, system):
    """A stream grows with the time of device memory by as much as it takes to serve its bytes; of a product
    with 200 times as many FLOP per byte as the device has per byte of bandwidth, hardly anything does.
    """
    device = system.accelerator
    byte = float(memory_byte_time(system, Exact()))
    assert byte == pytest.approx(1 / float(device.device_memory.bandwidth * device.device_memory.efficiency))
    strategy = dp.load_strategy({"tp": 8, "global_batch": 8, "micro_batch": 8, "sequence_length": 4096})
    step = jax.jit(timed_step)(Configuration(llama, replace(system, {"n_devices": 8.0}), strategy))
    stream = step.operators.total(part="elementwise")
    window = Window.of(stream, system, Exact())
    assert float(window.memory) == pytest.approx(float(stream.traffic[device.device_level - 1]) * byte)
    assert float(window.memory) > 0.9 * float(window.time)
    product = Window.of(step.operators.total(part="matmul"), system, Exact())
    assert float(product.memory) < 0.2 * float(product.time)


@pytest.mark.slow
def test_slopes_of_contention_for_memory(llama, system):
    """Communication under work costs more with slower memory, by the derivative that differences find."""
    strategy = dp.load_strategy({"dp": 64, "zero": 3, "global_batch": 64, "overlap_gradients": True})
    path = "accelerator.memory.hbm.bandwidth"
    bandwidth = float(locate(system, path)[0])

    def time(factor):
        return dp.training_step(llama, replace(system, {path: factor * bandwidth}), strategy).time

    time, slope = jax.jit(time), jax.jit(jax.grad(time))
    step = 1e-5
    difference = (float(time(1 + step)) - float(time(1 - step))) / (2 * step)
    assert float(slope(1.0)) == pytest.approx(difference, rel=1e-6)


def test_links_are_busy_while_bytes_are_on_them(system):
    """A ring over eight nodes of eight devices: each byte that leaves a node leaves it by one of eight links,
    and the links within nodes wait for those between them.
    """
    volume, (inner, outer) = 1e9, system.network
    collective = all_reduce(64.0, volume)
    [timed] = transfers([collective], system, Exact())
    transfer = timed.transfer
    inner_seconds = 2 * (7 / 8) * volume / float(inner.bandwidth * inner.efficiency)
    outer_seconds = 2 * (7 / 8) * (volume / 8) / float(outer.bandwidth * outer.efficiency)
    assert transfer.busy.tolist() == pytest.approx([inner_seconds, outer_seconds], rel=1e-9)
    assert float(transfer.time) > max(inner_seconds, outer_seconds)
    fivefold = Traffic.of(transfer, 5.0)
    assert float(fivefold.time) == pytest.approx(5 * float(transfer.time), rel=1e-12)
    assert fivefold.busy.tolist() == pytest.approx((5 * transfer.busy).tolist(), rel=1e-12)


def test_links_are_busy_for_no_longer_than_the_transfer(system):
    """Switches that reduce carry fewer bytes than a ring."""
    reducing = replace(system, {"network.nvlink.in_network_reduction": 1.0})
    collective = all_reduce(8.0, 1e9)
    [timed] = transfers([collective], reducing, Exact())
    assert float(timed.transfer.busy[0]) == float(timed.transfer.time)
    assert float(timed.transfer.busy[1]) == 0


def test_transfers_of_nothing_are_on_no_links(system):
    nothing = Traffic.of(Transfer.nothing(system))
    assert float(nothing.time) == 0
    assert nothing.busy.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("other", [(3.0, (0.1, 1.0)), (3.0, (1.0, 0.1))], ids=["outer busy", "inner busy"])
@pytest.mark.parametrize("tier", ["nvlink", "infiniband"])
def test_faster_links_hide_no_less(llama, system, other, tier):
    """A ring over both tiers takes as long as its slower tier: with faster links on either tier, no more of
    it is exposed beside other communication. (Had other communication kept it waiting for the mean of its
    tiers, more would be: the faster the links within nodes, the more of its time a ring is on those between.)
    """
    collective = all_reduce(64.0, 3e11)
    beside = Earlier([traffic(other[0], *other[1])])

    path = f"network.{tier}.bandwidth"

    def added(factor):
        faster = replace(system, {path: locate(system, path)[0] * factor})
        c = configuration(llama, faster, 0.0)
        [timed] = transfers([collective], faster, Exact())
        return float(exposed(Traffic.of(timed.transfer), OF_FOUR_SECONDS, BOTH, c, beside))

    times = [added(factor) for factor in (1.0, 1.1, 1.25, 1.5, 2.0, 4.0)]
    assert times == sorted(times, reverse=True)
    assert times[0] > 0


def one_tier(system, bandwidth: float):
    """A system of as many devices on a single switch."""
    tier = replace(system.network[0], {"size": system.n_devices, "bandwidth": bandwidth})
    return dataclasses.replace(system, network=(tier,))


@pytest.mark.parametrize("bandwidth", [1e9, 1e10, 1e11])
@pytest.mark.parametrize(
    ("model", "table"),
    [
        ("llama-2-7b", {"zero": "3", "dp": 64}),
        ("llama-2-7b", {"zero": "1", "tp": 4, "dp": 16}),
        ("llama-2-7b", {"zero": "3", "tp": 4, "cp": 2, "dp": 8}),
        ("mixtral-8x7b", {"zero": "2", "tp": 2, "pp": 4, "ep": 8, "dp": 8}),
        ("mixtral-8x7b", {"zero": "3", "ep": 8, "dp": 64}),
    ],
)
def test_links_carry_one_thing_at_a_time(system, model, table, bandwidth):
    """However much of it overlaps, a step takes no less than all bytes on its only link."""
    overlaps = {f"overlap_{name}": True for name in OVERLAPS}
    strategy = dp.load_strategy(table | overlaps | {"global_batch": 256}, n_devices=64)
    one_switch = one_tier(system, bandwidth)
    step = eqx.filter_jit(timed_step)(Configuration(dp.load_model(model), one_switch, strategy))
    runs = step.tables.collectives.runs.tolist()
    each = [float(timed.transfer.sent[0]) for timed in step.collectives]
    sent = sum(map(operator.mul, runs, each))
    [tier] = one_switch.network
    seconds = sent / float(tier.bandwidth * tier.efficiency)
    assert seconds > 0
    assert float(step.report.time) >= seconds * (1 - 1e-9)


@pytest.mark.parametrize("second_tier", [0.0, 1.0], ids=["one tier", "two tiers as busy"])
@pytest.mark.parametrize("seconds", [1.5, 2.0, 2.5], ids=["hidden", "at the kink", "exposed"])
def test_slopes(llama, system, seconds, second_tier):
    """Exact slopes are those of one side, smooth ones those of the middle, at the kink too, also where two
    tiers set the same bound.
    """

    def added(time, relax):
        c = configuration(llama, system, UNITS / 4, relax)
        busy = Earlier([traffic(2.0, 1.0, second_tier)])
        ring = Traffic(jnp.asarray(time), time * jnp.array([1.0, second_tier]), memory=jnp.asarray(0.0))
        return exposed(ring, OF_FOUR_SECONDS, BOTH, c, busy)

    def difference(relax, low, high):
        return (added(seconds + high, relax) - added(seconds + low, relax)) / (high - low)

    exact, smooth = (jax.grad(added)(seconds, relax) for relax in (Exact(), Smooth(20.0)))
    sides = [float(difference(Exact(), -1e-6, 0.0)), float(difference(Exact(), 0.0, 1e-6))]
    assert min(abs(float(exact) - side) for side in sides) < 1e-6
    assert float(smooth) == pytest.approx(float(difference(Smooth(20.0), -1e-5, 1e-5)), rel=1e-6)
    if seconds == 2.0:
        assert sides[0] == pytest.approx(0.25, abs=1e-6)
        assert sides[1] == pytest.approx(1.0, abs=1e-6)
        assert sides[0] < float(smooth) < sides[1]


@pytest.mark.slow
def test_constants_of_a_compiled_program_stay_finite_in_float32():
    """Where all inputs are constants, compilers multiply constants of two factors first: what nothing sent
    is divided by must not overflow then (at 1e-30 the step took nan seconds).
    """
    system = replace(dp.load_system("dgx-a100"), {"n_devices": 64.0})
    strategy = replace(Strategy(), {"tp": 2.0, "pp": 8.0, "dp": 4.0, "global_batch": 64.0})
    configured = Configuration(dp.load_model("gpt3-22b"), system, strategy, Exact())
    narrow = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), configured)
    time = jax.jit(lambda: timed_step(narrow).report.time)()
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), configured)
        expected = jax.jit(lambda c: timed_step(c).report.time)(wide)
    assert float(time) == pytest.approx(float(expected), rel=1e-4)
