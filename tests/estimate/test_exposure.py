"""Communication under computation: by hand, links that carry one thing at a time, slopes."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import diffperf as dp
from diffperf.estimate.exposure import Traffic, exposed
from diffperf.estimate.network.transfers import Transfer
from diffperf.estimate.training import timed_step
from diffperf.quantity import Weights, replace
from diffperf.relax import Exact, Smooth
from diffperf.workload.configuration import Configuration
from diffperf.workload.strategy import Strategy

UNITS = 108  # compute units of an A100
BOTH = Weights(jnp.array([0.0, 1.0]), ("off", "on"))
OVERLAPS = ("gradients", "weights", "tensor", "context", "experts", "transfers")


def traffic(seconds: float, *tiers: float) -> Traffic:
    return Traffic(time=jnp.asarray(seconds), tiers=jnp.asarray(tiers))


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
        (3.0, (0.5, 0.5), [(2.0, (1.0, 0.0))], 0.25 * 3),  # its links are busy for half of 2 s
        (3.0, (0.5, 0.5), [(4.0, (1.0, 0.0))], 1 + 0.25 * 2),
        (3.0, (1.0, 0.0), [(3.0, (1.0, 0.0)), (9.0, (1.0, 0.0))], 3.0),  # never free
    ],
)
def test_by_hand(llama, system, seconds, tiers, others, expected):
    """Under 4 s of work, where collectives occupy a quarter of the compute units."""
    c = configuration(llama, system, UNITS / 4)
    busy = [traffic(time, *on_tiers) for time, on_tiers in others]
    added = exposed(traffic(seconds, *tiers), jnp.asarray(4.0), BOTH, c, busy)
    assert float(added) == pytest.approx(expected, rel=1e-12)


def test_time_is_on_the_tiers_in_proportion_to_the_time_of_their_bytes(system):
    inner, outer = (float(tier.bandwidth * tier.efficiency) for tier in system.network)
    of_tiers = Traffic.of(Transfer(time=jnp.asarray(2.0), sent=jnp.array([3 * inner, outer])), system, 5.0)
    assert float(of_tiers.time) == 10
    assert of_tiers.tiers.tolist() == pytest.approx([0.75, 0.25])
    nothing = Traffic.of(Transfer.nothing(system), system)
    assert float(nothing.blocks(of_tiers)) == 0


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
    """However much of it overlaps, a step takes no less than all communication on its only link."""
    overlaps = {f"overlap_{name}": True for name in OVERLAPS}
    strategy = dp.load_strategy(table | overlaps | {"global_batch": 256}, n_devices=64)
    c = Configuration(dp.load_model(model), one_tier(system, bandwidth), strategy)
    step = eqx.filter_jit(timed_step)(c)
    collectives = step.tables.collectives
    sent = collectives.run_time * collectives.runs
    assert float(jnp.sum(sent)) > 0
    assert float(step.report.time) >= float(jnp.sum(sent)) * (1 - 1e-9)


@pytest.mark.parametrize("seconds", [1.5, 2.0, 2.5], ids=["hidden", "at the kink", "exposed"])
def test_slopes(llama, system, seconds):
    """Exact slopes are those of one side, smooth ones those of the middle, at the kink too."""

    def added(time, relax):
        c = configuration(llama, system, UNITS / 4, relax)
        busy = [traffic(2.0, 1.0, 0.0)]
        return exposed(Traffic(jnp.asarray(time), jnp.array([1.0, 0.0])), jnp.asarray(4.0), BOTH, c, busy)

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
