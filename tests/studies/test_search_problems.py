"""The problems of the study that compares co-design with global searches."""

from pathlib import Path

import pytest

from diffperf.explore.codesign.problem_file import load_problem

FOLDER = Path(__file__).parents[2] / "studies/codesign_against_global_search/problems"


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_each_problem_can_be_asked(path):
    """A renamed input or a unit that is asked for must not wait for the next run of the study."""
    problem = load_problem(path)
    assert 2 <= len(problem.variables) <= 40
    laid_out = {int(entry) for layouts in problem.layouts for entry in layouts.entries}
    assert sum(len(layouts.entries) for layouts in problem.layouts) == len(laid_out)
    assert all(len(layouts) for layouts in problem.layouts)
