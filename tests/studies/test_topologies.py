"""The study of topologies: prices of links and ports by hand, and the price of break-even."""

import jax.numpy as jnp
import pytest
from helpers import study_module

import diffperf as dp
from diffperf.cost.network_cost import tier_costs
from diffperf.hardware.network import TOPOLOGIES
from diffperf.relax import Exact


@pytest.fixture(scope="module")
def study():
    return study_module("topologies", "run")


def test_a_switch_has_a_link_and_a_port_and_direct_links_are_shared(study):
    system = dp.load_system("gb200-nvl72", n_devices=64)
    each = {}
    for topology in ("switch", "torus_3d", "fat_tree"):
        weights = jnp.asarray([float(name == topology) for name in TOPOLOGIES])
        radix = jnp.asarray(study.RADIX.get(topology, 64.0))
        changed = study.system_with(system, weights, radix, jnp.asarray(2.0), jnp.asarray(study.PORT))
        each[topology] = float(tier_costs(changed, Exact())[0].price)
    link, port = 1800e9 * study.LINK, 1800e9 * study.PORT
    assert each["switch"] == pytest.approx(link + port, rel=1e-3)
    assert each["torus_3d"] == pytest.approx(link / 2, rel=1e-3)
    assert each["fat_tree"] == pytest.approx(2 * link + 3 * port, rel=1e-3)


def test_at_the_price_of_break_even_both_earn_alike(study):
    """A dollar more for a byte/s of ports makes a second of the switched system 2 dollars dearer."""
    switch = study.Outcome("w", "switch", 1.0, tokens=100.0, rate=10.0, per_port_price=2.0, network=0.0)
    torus = study.Outcome("w", "torus_3d", 1.0, tokens=90.0, rate=12.0, per_port_price=0.0, network=0.0)
    price = study.break_even_port(switch, torus)
    rate = switch.rate + switch.per_port_price * (price - study.PORT)
    assert switch.tokens / rate == pytest.approx(torus.value, rel=1e-9)
