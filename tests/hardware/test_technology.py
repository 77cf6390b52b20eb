"""Technologies between nodes."""

import jax
import jax.numpy as jnp
import numpy as np

from diffperf.hardware.technology import Technology, interpolate
from diffperf.load import load


def test_interpolation_ends_at_the_nodes_and_is_monotone_between():
    nodes = [load(Technology, "n7-hbm2e"), load(Technology, "n4-hbm3")]
    for i, node in enumerate(nodes):
        at_node = interpolate(nodes, jnp.eye(2)[i])
        for leaf, expected in zip(jax.tree.leaves(at_node), jax.tree.leaves(node), strict=True):
            np.testing.assert_allclose(leaf, expected, rtol=1e-6, atol=1e-29)
    density = [float(interpolate(nodes, jnp.array([1 - w, w])).compute_density) for w in np.linspace(0, 1, 9)]
    assert np.all(np.diff(density) > 0)
