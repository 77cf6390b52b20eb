"""What owning and running a system adds up to."""

import pytest

from diffperf.cost.ownership import purchase, run_cost
from diffperf.quantity import real, replace
from diffperf.relax import Exact


def test_owning_and_running_by_hand(system):
    prices = system.prices
    time, joules = 3600.0, 64 * 300.0 * 3600
    cost = run_cost(system, real(time), real(joules), Exact())
    device = float(cost.manufacturing * prices.accelerator_markup + prices.host) + sum(
        float(tier.price) for tier in system.network
    )
    assert float(cost.capital) == pytest.approx(64 * device, rel=1e-12)
    assert float(cost.depreciation) == pytest.approx(
        64 * device / float(prices.lifetime * prices.utilization), rel=1e-12
    )
    watts = 64 * (300 + float(prices.host_power)) * float(prices.pue)
    assert float(cost.electricity) == pytest.approx(watts * float(prices.electricity), rel=1e-12)
    assert float(cost.run) == pytest.approx(time * float(cost.depreciation + cost.electricity), rel=1e-12)


def test_capital_scales_with_devices(system):
    twice = replace(system, {"n_devices": 2 * system.n_devices})
    assert float(purchase(twice, real(1000)).total) == 2 * float(purchase(system, real(1000)).total)
