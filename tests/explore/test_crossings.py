"""Break-even points: all crossings of known curves, and of two systems where their costs are equal."""

import numpy as np
import pytest

import diffperf as dp
from diffperf.explore.crossings import Pair, break_even
from diffperf.explore.points import outputs_at
from diffperf.explore.ranges import Range
from diffperf.quantity import Quantity, locate
from diffperf.workload.configuration import Configuration


class Curves(Pair):
    """A pair of known functions in place of configurations."""

    def __init__(self, varied: Range, first, second):
        self.range, self.functions = varied, (first, second)

    def at(self, values):
        return tuple(np.asarray(function(values), float) for function in self.functions)


def over(low: float, high: float, *, integer: bool = False, log: bool = False) -> Range:
    return Range("x", Quantity("", "x", (low, high), log, integer, "input"), low, high)


def test_all_crossings_of_a_wave():
    found = break_even(Curves(over(0.5, 20.0), np.sin, np.zeros_like))
    expected = np.pi * np.arange(1, 7)
    np.testing.assert_allclose([crossing.value for crossing in found.crossings], expected, rtol=1e-6)
    assert [crossing.larger_above for crossing in found.crossings] == [False, True] * 3
    assert not any(crossing.jump for crossing in found.crossings)


def test_a_jump_is_said_to_be_one():
    def stairs(x):
        return np.where(x < 4.2, 1.0, 3.0)

    (crossing,) = break_even(Curves(over(0, 10), stairs, lambda x: np.full(len(x), 2.0))).crossings
    assert crossing.jump
    assert crossing.below < 4.2 <= crossing.above
    assert crossing.above - crossing.below < 1e-5


def test_whole_numbers_cross_between_neighbours():
    found = break_even(
        Curves(over(1, 4096, integer=True, log=True), lambda x: x, lambda x: np.full(len(x), 1000.5))
    )
    (crossing,) = found.crossings
    assert (crossing.below, crossing.above, crossing.larger_above) == (1000, 1001, True)


def test_curves_that_never_cross_have_none():
    assert break_even(Curves(over(0, 1), np.ones_like, np.zeros_like)).crossings == []


@pytest.mark.slow
def test_a_price_at_which_two_systems_cost_the_same():
    strategy = dp.load_strategy({"tp": 8, "global_batch": 16}, n_devices=8)
    model = dp.load_model("llama-2-7b")
    first, second = (
        Configuration(model, dp.load_system(name, n_devices=8), strategy) for name in ("dgx-h100", "dgx-a100")
    )
    path = "system.prices.accelerator_markup"
    varied = Range(path, locate(first, path)[1], 2.0, 20.0)
    (crossing,) = break_even(Pair((first, second), varied, (False, True), "decode", "cost.run")).crossings
    ours = float(outputs_at(first, {}, "decode")["cost.run"][0])
    theirs = float(outputs_at(second, {path: np.array([crossing.value])}, "decode")["cost.run"][0])
    assert ours == pytest.approx(theirs, rel=1e-5)
