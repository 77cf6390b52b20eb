"""Technology scaling: order of nodes, gradients against finite differences, time of the network by hand."""

import jax
import numpy as np
import pytest
from helpers import study_module

from diffperf.hardware.node import Node
from diffperf.hardware.operating_point import LEAST_VOLTAGE
from diffperf.hardware.technology import LinkTechnology, MemoryTechnology
from diffperf.load import load

grid = study_module("technology_scaling", "grid")
# Network, memory and node of points where InfiniBand, HBM and compute bind, and of one under 700 W.
POINTS = (
    (0, "hbm2e", "n5", 1400.0),
    (2, "hbm2", "n2", 1400.0),
    (3, "hbm4", "n7", 1400.0),
    (2, "hbm3", "a14", 700.0),
)

pytestmark = pytest.mark.slow  # the program of the whole grid takes ten seconds to compile


@pytest.fixture(scope="module")
def results():
    return grid.evaluate_grid()


def point_of(network, memory, node, limit):
    network = grid.NETWORKS[network]
    return grid.Point(
        node=load(Node, node),
        memory=load(MemoryTechnology, memory),
        link=load(LinkTechnology, network.link),
        nvlink=network.nvlink,
        infiniband=network.infiniband,
        power_limit=limit,
        area_share=0.9,
        strategy=grid.load_strategies()[1],
    )


def test_no_later_node_is_slower_where_power_does_not_bind(results):
    assert np.all(results.time[0, ..., 1:] <= results.time[0, ..., :-1])


def test_nodes_that_the_power_limit_slows_are_slower_by_their_energy(results):
    """At the least voltage a node may take more energy than an older one of higher nominal voltage.

    Die areas of the grid are steps: 2 % are left for those between them.
    """
    best = np.minimum.accumulate(results.time[1], axis=-1)
    upto_2nm = list(grid.NODES).index("n2") + 1
    assert np.all(results.time[1, ..., :upto_2nm] == best[..., :upto_2nm])
    nodes = [load(Node, name) for name in grid.NODES]
    energy = np.array(
        [float(node.switching_energy) * (LEAST_VOLTAGE / float(node.nominal_voltage)) ** 2 for node in nodes]
    )
    more = np.maximum(energy / np.minimum.accumulate(energy), 1.0)
    assert 1 < more.max() < 1.1
    assert np.all(results.time[1] <= 1.02 * more * best)


def test_less_power_never_helps(results):
    assert np.all(results.time[1] >= results.time[0] * (1 - 1e-9))


def test_elasticities_match_finite_differences():
    cluster, step, count = grid.load_cluster(), 1e-5, len(grid.RESOURCES)
    points = grid.stack_cases([point_of(*names) for names in POINTS])
    growths = step * np.concatenate([np.eye(count), -np.eye(count)])
    of_point = jax.vmap(lambda point, growth: grid.log_time(cluster, point, growth)[0], in_axes=(None, 0))
    up, down = np.split(
        np.asarray(jax.jit(jax.vmap(of_point, in_axes=(0, None)))(points, growths)), 2, axis=1
    )
    elasticities = grid.with_gradient(points)[-1]
    np.testing.assert_allclose(elasticities, (down - up) / (2 * step), rtol=1e-4, atol=1e-6)
    assert np.all(np.abs(elasticities[:, 0]) > 0.05)  # of compute


def test_elasticities_of_an_accelerator_add_up_to_what_is_not_latency(results):
    """Less than 0 only by contention, to first order: faster compute leaves more of the time to memory,
    of whose bandwidth collectives take a part.
    """
    shares = results.elasticity[..., :4]
    assert np.all(shares > -0.015)
    assert np.mean(shares > -0.005) > 0.99
    assert np.all(shares.sum(axis=-1) < 1 + 1e-9)
    assert np.all(shares.sum(axis=-1) > 0.8)


def test_the_network_that_binds_has_the_time_of_the_gradients_by_hand(results):
    """Reduced in fp32 and gathered in bf16: 6 bytes a parameter in all, of which each of the eight adapters
    of a node carries its eighth at the calibrated efficiency of InfiniBand.
    """
    place = (0, 0, list(grid.MEMORIES).index("hbm2e"), list(grid.NODES).index("n5"))
    parameters = 36 * 12 * 4096**2 + 51200 * 4096
    expected = parameters * 6 / 8 / (25e9 * 0.7187)
    assert results.elasticity[place][3] * results.time[place] == pytest.approx(expected, rel=0.05)


def test_compute_binds_the_oldest_node_and_never_the_newest_behind_slow_networks(results):
    compute, *bandwidths = np.moveaxis(results.elasticity[0, :, :, 0, :4], -1, 0)
    assert np.all(compute > 2 * np.sum(bandwidths, axis=0))
    assert np.all(np.diff(compute, axis=0) > 0)  # the more, the faster the network
    assert np.all(results.elasticity[0, :2, :, -1, 0] < 0.25)


@pytest.mark.parametrize("seed", range(5))
def test_saturation_by_brute_force(seed):
    gains = np.random.default_rng(seed).uniform(0, 0.12, 7)
    times = 1 / np.cumprod(np.concatenate([[1], 1 + gains]))
    candidates = [node for node in range(7) if np.all(gains[node:] < grid.LEAST_GAIN)]
    assert grid.saturation(times) == (candidates[0] if candidates else None)


def test_saturation_of_gains_that_never_end_is_none():
    assert grid.saturation(0.9 ** np.arange(8)) is None
    assert grid.saturation(np.ones(8)) == 0
