"""Whole numbers that are taken for real ones, against every combination of them."""

import jax
import pytest

from diffperf.explore.codesign.problem_file import load_problem
from diffperf.explore.codesign.search import Search

pytestmark = pytest.mark.slow  # the programs of a search take ten seconds to compile

# Two services whose batches trade with the compute units of the chip that both run on.
PROBLEM = """
system = "dgx-h100"
n_devices = 8
technology = "n4-hbm3"
maximize = "tokens_per_second"
[[workload]]
name = "long"
model = "llama-2-13b"
phase = "decode"
strategy = {tp = 8, global_batch = 40, sequence_length = 8192}
[[workload]]
name = "short"
model = "llama-2-70b"
phase = "decode"
strategy = {tp = 8, global_batch = 40, sequence_length = 1024}
[[variable]]
path = "strategy.global_batch"
from = 20
to = 83
[[variable]]
path = "short.strategy.global_batch"
from = 20
to = 83
[[variable]]
path = "design.compute_units"
from = 40
to = 139
[[constraint]]
quantity = "cost.manufacturing"
at_most = "baseline"
[[constraint]]
quantity = "chip.power"
at_most = "1100 W"
[[constraint]]
quantity = "memory.excess"
at_most = 0
[[constraint]]
quantity = "time"
at_most = "16 ms"
"""


def test_relaxed_numbers_come_to_the_best_combination(tmp_path):
    """A single relaxation, from small batches and a small chip, which are a quarter worse."""
    path = tmp_path / "services.toml"
    path.write_text(PROBLEM)
    search = Search(load_problem(path), population=512)
    with jax.enable_x64(True):
        search.enumerate()
        best = search.best
        assert best.violation == 0
        search.reset(search.problem.limits)
        start = search.problem.vector.start.copy()
        start[:] = 20, 20, 80
        search.descend_from(start)
        first = search.best
        search.slopes.result()
        search.relax("relaxation")
    assert search.best.violation == 0
    assert first.objective > best.objective + 0.2
    assert search.best.objective == pytest.approx(best.objective, abs=1e-3)
