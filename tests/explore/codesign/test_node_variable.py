"""The silicon node as a variable of a design problem: every figure of the node follows it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffperf.errors import ConfigError
from diffperf.explore.codesign.problem_file import load_problem
from diffperf.load import config_root, load_nodes
from diffperf.relax import Exact

SHIPPED = (config_root() / "problems" / "gpt3-175b-under-a100-budget.toml").read_text(encoding="utf-8")
VARIABLE = '[[variable]]\npath = "technology.feature"\nfrom = "{}"\nto = "16 nm"\n\n'


def problem_between(low, tmp_path):
    file = tmp_path / "node.toml"
    file.write_text(
        SHIPPED.replace("[[variable]]", VARIABLE.format(low) + "[[variable]]", 1), encoding="utf-8"
    )
    return load_problem(str(file))


@pytest.mark.slow
def test_the_die_shrinks_and_its_wafer_becomes_dearer(tmp_path):
    problem = problem_between("3 nm", tmp_path)
    assert problem.variables[0].path == "technology.feature"
    assert problem.vector.start[0] == 7
    n5 = next(node for node in load_nodes() if str(node.name) == "n5")
    made = problem.vector.candidate(jnp.asarray(problem.vector.start).at[0].set(5.0)).technology
    assert float(made.process.wafer_price) == pytest.approx(float(n5.process.wafer_price))
    assert float(made.sram_density) == pytest.approx(1e6)

    def die_area(x):
        return problem.outcome(x, Exact()).chip.die_area

    area, slope = jax.jit(die_area), jax.jit(jax.grad(die_area))
    start = jnp.asarray(problem.vector.start)
    areas = [float(area(start.at[0].set(feature))) for feature in (16, 10, 7, 5, 4, 3)]
    assert np.all(np.diff(areas) < 0)
    x, step = start.at[0].set(6.0), 1e-5
    central = (area(x.at[0].add(step)) - area(x.at[0].add(-step))) / (2 * step)
    assert float(slope(x)[0]) == pytest.approx(float(central), rel=1e-6)


def test_a_node_that_is_set_moves_the_baseline(tmp_path):
    file = tmp_path / "node.toml"
    file.write_text(SHIPPED + '\n[set]\n"technology.feature" = "5 nm"\n', encoding="utf-8")
    technology = load_problem(str(file)).baseline.technology
    assert float(technology.sram_density) == pytest.approx(1e6)


def test_a_node_that_does_not_exist_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"variable\[0\].from: found \"45 um\"; expected a quantity in nm"):
        problem_between("45 um", tmp_path)
