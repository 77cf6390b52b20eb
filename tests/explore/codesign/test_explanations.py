"""Next-best choices, what would make them win, regret, and samples of calibrated values."""

import copy

import jax
import numpy as np
import pytest

from diffperf.explore.codesign.against import bought_systems
from diffperf.explore.codesign.doubt import Posterior, orders
from diffperf.explore.codesign.problem_file import load_problem
from diffperf.explore.codesign.regret import regrets
from diffperf.explore.codesign.runners_up import runners_up
from diffperf.explore.codesign.search import Search
from diffperf.load import load_calibration

pytestmark = pytest.mark.slow  # the programs of a search take ten seconds to compile

POPULATION = 128
PROBLEM = {
    "model": "llama-3-8b",
    "system": "dgx-h100",
    "n_devices": 8,
    "technology": "n4-hbm3",
    "phase": "decode",
    "maximize": "tokens_per_second",
    "strategy": {"tp": 4, "global_batch": 64, "sequence_length": 4096},
    "variable": [
        {"path": "technology.memory", "values": ["hbm3", "hbm3e"]},
        {"path": "design.memory_stacks", "from": 2, "to": 40},
        {"path": "design.network_bandwidth", "from": "100 GB/s", "to": "2 TB/s"},
        {"path": "design.voltage", "from": "0.55 V", "to": "1 V"},
    ],
    "constraint": [
        {"quantity": "cost.manufacturing", "at_most": "2800 USD"},
        {"quantity": "chip.power", "at_most": "700 W"},
        {"quantity": "chip.shoreline", "at_most": 1},
    ],
}


def searched(table):
    search = Search(load_problem(table), population=POPULATION)
    return search, search.answer()


@pytest.fixture(scope="module")
def answered():
    return searched(PROBLEM)


@pytest.fixture(scope="module")
def memory(answered):
    """The runner-up of the memory, which is the only choice of few values."""
    search, _ = answered
    best = search.best
    found = runners_up(search)
    assert search.best is best, "the search is as it was"
    return {each.variable.path: each for each in found}["technology.memory"]


def without_memory():
    """The problem without the choice of memory."""
    table = copy.deepcopy(PROBLEM)
    table["variable"] = table["variable"][1:]
    return table


def test_the_runner_up_is_the_best_design_of_the_other_choice(answered, memory, tmp_path):
    """By a search of its own, of a problem that has the other generation alone."""
    _, result = answered
    file = tmp_path / "other.toml"
    file.write_text(f'extends = "n4-hbm3"\nmemory = "{memory.other}"\n')
    table = without_memory() | {"technology": str(file)}
    _, other = searched(table)
    assert memory.loss == pytest.approx(np.log(result.objective / other.objective), abs=1e-4)


def test_the_condition_makes_both_as_good(memory, tmp_path):
    """With the needed value of the generation that was chosen, the gap closes but for the second order."""
    condition = next(each for each in memory.conditions if each.owner == memory.chosen)
    field = condition.path.removeprefix("technology.memory.")
    file = tmp_path / "changed.toml"
    value = f"{condition.needed} {condition.declared.unit}"
    file.write_text(f'extends = "{memory.chosen}"\n{field} = "{value}"\n')
    table = copy.deepcopy(PROBLEM)
    table["variable"][0]["values"] = [memory.other, str(file)]
    search, _ = searched(table)
    again = {each.variable.path: each for each in runners_up(search)}["technology.memory"]
    assert again.loss is not None
    assert again.loss < 0.35 * memory.loss


def test_the_regret_is_against_the_best_design_for_a_workload_alone():
    prefill = {"name": "prompts", "share": 0.5, "model": "llama-3-8b", "phase": "prefill"}
    chat = {"name": "chat", "share": 0.5, "model": "llama-3-8b", "phase": "decode"}
    units = {"path": "design.compute_units", "from": 60, "to": 200}  # prompts want them, chat wants stacks
    table = PROBLEM | {"variable": [*PROBLEM["variable"], units]}
    strategy = {"strategy": PROBLEM["strategy"]}
    shared = {key: table[key] for key in table if key not in ("model", "phase", "strategy")}
    _, result = searched(shared | {"workload": [chat | strategy, prefill | strategy]})
    found = {each.workload.name: each for each in regrets(result, POPULATION)}
    for name in ("chat", "prompts"):
        assert found[name].loss >= -1e-6, "the best design for itself is no worse"
    assert max(each.loss for each in found.values()) > 1e-3, "the two want different designs"
    _, alone = searched(table)
    assert found["chat"].alone == pytest.approx(alone.objective, rel=1e-3)


def test_draws_have_the_covariance_of_the_calibration():
    calibration = load_calibration("h100-sxm5-80gb")
    drawn = np.log(Posterior(20_000).factors(calibration))
    scale = np.sqrt(np.diag(calibration.covariance))
    np.testing.assert_allclose(np.cov(drawn.T) / np.outer(scale, scale), _correlation(calibration), atol=0.04)


def _correlation(calibration):
    scale = np.sqrt(np.diag(calibration.covariance))
    return calibration.covariance / np.outer(scale, scale)


def test_the_order_holds_where_the_difference_is_large(answered):
    """A100 is slower whatever is drawn; the nominal ratio lies among those of the samples."""
    _, result = answered
    with jax.enable_x64(True):
        sold = bought_systems(result.problem, ["dgx-a100"], "here")
    baseline, a100 = orders(result, sold)
    assert (a100.name, a100.share, a100.calibrated) == ("dgx-a100", 1.0, True)
    ratio = result.objective / float(sold[0].reports["decode"].tokens_per_second)
    assert a100.low < ratio < a100.high
    assert baseline.low < result.objective / result.baseline_objective < baseline.high
