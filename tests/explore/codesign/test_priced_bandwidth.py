"""Co-design pays for the bandwidth of its links."""

import jax
import numpy as np
import pytest

from diffperf.explore.codesign.problem_file import load_problem
from diffperf.relax import Exact

PROBLEM = """
model = "gpt3-22b"
system = "dgx-a100"
n_devices = 8
technology = "n7-hbm2e"
minimize = "cost.run"
[strategy]
tp = 8
micro_batch = 4
global_batch = 4
[[variable]]
path = "design.network_bandwidth"
from = "50 GB/s"
to = "2 TB/s"
[[constraint]]
quantity = "memory.excess"
at_most = 0
"""


@pytest.mark.slow
def test_a_design_with_wider_links_pays_for_them(tmp_path):
    """NVLink of a DGX A100 is $1,000 a device at 300 GB/s; a design's link is priced in proportion, and the
    slope of the purchase is that price over that bandwidth."""
    path = tmp_path / "problem.toml"
    path.write_text(PROBLEM)
    problem = load_problem(path)

    @jax.jit
    def network(x):
        return problem.outcome(x, Exact()).report.cost.purchase.network

    others = (1364 + 562.5 + 1280) / 2  # USD per device: half a port of NDR InfiniBand, one level of switches
    for bandwidth in (150e9, 300e9, 600e9):
        expected = 8 * (others + 1000 * bandwidth / 300e9)
        assert float(network(np.array([bandwidth]))) == pytest.approx(expected, rel=1e-9)
    slope = float(jax.grad(network)(np.array([300e9]))[0])
    assert slope == pytest.approx(8 * 1000 / 300e9, rel=1e-9)
