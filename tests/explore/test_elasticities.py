"""All elasticities at once are those of one output at a time, and dollars follow from them."""

import numpy as np
import pytest
from helpers import training

from diffperf.explore.dollars import Bought, Purchases, purchases
from diffperf.explore.elasticities import Elasticities, elasticities
from diffperf.explore.sensitivity import SLOPE, sensitivities
from diffperf.quantity import locate, numeric, replace
from diffperf.report.tables import outputs
from diffperf.workload.configuration import Configuration

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def configuration(gpt, system, strategy) -> Configuration:
    return Configuration(gpt, system, strategy)


@pytest.fixture(scope="module")
def found(configuration) -> Elasticities:
    return elasticities(configuration, "training")


@pytest.fixture(scope="module")
def bought(configuration, found) -> Purchases:
    report = training(configuration.model, configuration.system, configuration.strategy)
    return purchases(found, report)


def estimated(c: Configuration) -> dict[str, float]:
    report = training(c.model, c.system, c.strategy)
    return {path: float(value) for path, (_, value) in outputs(report).items()}


def grown(c: Configuration, path: str, factor: float) -> Configuration:
    return replace(c, {path: locate(c, path)[0] * factor})


def test_forward_derivatives_equal_backward_ones(configuration, found):
    ranked = sensitivities(configuration, groups=("system", "strategy"))
    forward = found.of("time")
    assert set(forward) == {row.path for row in ranked}
    for row in ranked:
        if row.derivative != SLOPE:
            continue  # estimates with one more or one less
        assert forward[row.path] == pytest.approx(row.elasticity, rel=1e-9, abs=1e-12), row.path


def test_every_output_is_there_and_finite(configuration, found):
    assert found.outputs == pytest.approx(estimated(configuration), rel=1e-12)
    inputs = numeric(configuration.system) | numeric(configuration.strategy)
    assert found.slopes.shape == (len(inputs), len(found.outputs))
    assert np.isfinite(found.slopes).all()
    assert set(found.of("breakdown.offload").values()) == {0.0}  # an output that is 0


def test_a_dollar_saves_what_two_estimates_say(configuration, bought):
    """Bandwidth of a network tier, whose price follows it: a difference of two estimates."""
    way = next(way for way in bought.priced if way.name == "system.network.infiniband.bandwidth")
    step = 1e-4
    before, after = estimated(configuration), estimated(grown(configuration, way.name, 1 + step))
    price = after["cost.capital"] - before["cost.capital"]
    assert way.price == pytest.approx(0.01 / step * price, rel=1e-6)
    assert way.saved == pytest.approx((before["time"] - after["time"]) / price, rel=1e-3)


def test_worth_is_the_price_at_which_a_run_costs_the_same(configuration, bought):
    """A faster memory, and hosts dearer by what it is worth: a run costs what it did, to first order."""
    way = next(way for way in bought.unpriced if way.name == "system.accelerator.memory.hbm.bandwidth")
    step = 1e-4
    dearer = step / 0.01 * way.worth / float(configuration.system.n_devices)
    host = "system.prices.host"
    changed = grown(configuration, way.name, 1 + step)
    changed = replace(changed, {host: locate(changed, host)[0] + dearer})
    before, after = estimated(configuration), estimated(changed)
    assert after["time"] < before["time"]
    change, unpaid = (
        other["cost.run"] / before["cost.run"] - 1
        for other in (after, estimated(grown(configuration, way.name, 1 + step)))
    )
    assert abs(change) < 1e-3 * abs(unpaid)


def test_what_money_buys_is_ranked(bought):
    saved = [way.saved for way in bought.priced]
    worth = [way.worth for way in bought.unpriced]
    assert saved == sorted(saved, reverse=True)
    assert worth == sorted(worth, reverse=True)
    assert all(isinstance(way, Bought) and way.time < 0 for way in [*bought.priced, *bought.unpriced])
    assert bought.as_dict()["capital"] == bought.capital
