"""What several tests of co-design share: how a problem is read from a text, and how one begins."""

from pathlib import Path

from diffperf.explore.codesign.problem import DesignProblem
from diffperf.explore.codesign.problem_file import load_problem

# A training step on a node of A100; the strategy may go on.
NODE = """
model = "gpt3-22b"
system = "dgx-a100"
n_devices = 8
technology = "n7-hbm2e"
minimize = "time"
[strategy]
tp = 8
micro_batch = 4
global_batch = 4
recompute = "selective"
"""


def problem_of(folder: Path, text: str) -> DesignProblem:
    """The problem of a text, from a file in a folder."""
    path = folder / "problem.toml"
    path.write_text(text)
    return load_problem(path)
