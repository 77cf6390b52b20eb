"""What a design problem can ask: several workloads, choices among configs and numbers, uncertain inputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problem_texts import problem_of

import diffperf as dp
from diffperf import units
from diffperf.api.codesign_answer import constraint_table, judged_over
from diffperf.errors import ConfigError
from diffperf.explore.codesign.search import Search
from diffperf.explore.codesign.tipping import Tipping
from diffperf.hardware.technology import MemoryTechnology
from diffperf.load import load, load_technology
from diffperf.quantity import replace
from diffperf.relax import Exact, Smooth

HEAD = """
system = "dgx-h100"
n_devices = 8
technology = "n4-hbm3"
minimize = "time"
"""
CHAT = """
[[workload]]
name = "chat"
share = 3
model = "llama-3-8b"
phase = "decode"
strategy = {tp = 8, global_batch = 32, sequence_length = 1024}
"""
PREFILL = """
[[workload]]
name = "prefill"
model = "llama-3-8b"
phase = "prefill"
strategy = {tp = 8, global_batch = 1}
"""
VARIABLES = """
[[variable]]
path = "design.compute_units"
from = 16
to = 300
[[variable]]
path = "design.memory_stacks"
values = [2, 5, 8]
[[variable]]
path = "technology.memory"
values = ["hbm2e", "hbm3"]
"""
LIMITS = """
[[constraint]]
quantity = "cost.manufacturing"
at_most = "baseline"
[[constraint]]
quantity = "memory.excess"
at_most = 0
"""
UNCERTAIN = """
[[uncertain]]
path = "technology.memory.price"
from = 0.5
to = 2.0
[robust]
measure = "MEASURE"
samples = 8
"""
X = np.array([100.0, 5.0, 1.0, 0.0])  # units, stacks, and HBM2E of the two generations


@pytest.fixture(scope="module")
def mix(tmp_path_factory):
    return problem_of(tmp_path_factory.mktemp("problem"), HEAD + CHAT + PREFILL + VARIABLES + LIMITS)


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def test_shares_weigh_the_times_relative_to_the_baseline(mix):
    outcome, base = jax.jit(lambda x: mix.outcome(x, Exact()))(X), mix.baseline_outcome
    chat = float(outcome.report.time / base.report.time)
    prefill = float(outcome.beside["prefill"].time / base.beside["prefill"].time)
    objective, _ = mix.score(outcome, jnp.asarray(mix.limits))
    assert float(objective) == pytest.approx(np.log(0.75 * chat + 0.25 * prefill), rel=1e-12)
    assert [workload.share for workload in mix.workloads] == [0.75, 0.25]


def test_constraints_hold_for_every_workload_or_the_one_they_name(mix, tmp_path):
    names = [constraint.quantity for constraint in mix.constraints]
    assert names == ["cost.manufacturing", "chat.memory.excess", "prefill.memory.excess"]
    named = LIMITS.replace('"memory.excess"', '"prefill.time"').replace("at_most = 0", 'at_most = "1 s"')
    problem = problem_of(tmp_path, HEAD + CHAT + PREFILL + VARIABLES + named)
    # What no constraint is on has to fit memory all the same.
    of_memory = ["chat.memory.excess", "prefill.memory.excess"]
    assert [constraint.quantity for constraint in problem.constraints][1:] == ["prefill.time", *of_memory]


@pytest.mark.parametrize("limit", ["1000", '"1000"', '"1000 W"'])
def test_a_limit_without_its_unit_gets_it_in_the_error(tmp_path, limit):
    limits = LIMITS.replace('"baseline"', limit, 1)
    with pytest.raises(ConfigError, match=r'at_most: found .*write "1000 USD"') as raised:
        problem_of(tmp_path, HEAD + CHAT + PREFILL + VARIABLES + limits)
    assert "\n" not in str(raised.value)


def test_a_chosen_config_is_that_config(mix):
    """HBM2E as a choice gives what HBM2E as the technology's memory gives."""
    candidate = mix.vector.candidate(jnp.asarray(X))
    memory = load(MemoryTechnology, "hbm2e")
    for name in ("stack_capacity", "stack_bandwidth", "price", "phy_edge"):
        assert float(getattr(candidate.technology.memory, name)) == float(getattr(memory, name))
    other = mix.vector.candidate(jnp.asarray([*X[:2], 0.0, 1.0]))
    assert float(other.technology.memory.stack_bandwidth) > float(memory.stack_bandwidth)


def test_the_baselines_config_is_the_start(mix):
    np.testing.assert_array_equal(mix.vector.start[-2:], [0, 1])


def test_listed_values_are_all_there_is(mix):
    search = Search(mix, population=64)
    designs = search.cube.designs(np.random.default_rng(0).random((200, search.cube.size)))
    assert set(designs[:, 1]) == {2.0, 5.0, 8.0}
    assert {tuple(row) for row in designs[:, 2:]} == {(1.0, 0.0), (0.0, 1.0)}


SET = """
[set]
"technology.memory.price" = "200 USD/GB"
"system.network.nvlink.efficiency" = 0.1
"technology.process.defect_density" = "0.002 1/mm^2"
"""
COUNT = """
[[variable]]
path = "design.compute_units"
from = 16
to = 300
"""


def choosing(folder, path, values, setting=SET):
    """A problem on 16 devices with one variable among some values, and its candidates of each value."""
    variable = f'[[variable]]\npath = "{path}"\nvalues = {values}\n'
    text = HEAD.replace("n_devices = 8", "n_devices = 16") + setting + CHAT + variable + COUNT + LIMITS
    problem = problem_of(folder, text)
    rows = problem.variables[0].choices
    return problem, [problem.vector.candidate(jnp.asarray([*row, 100.0])) for row in rows]


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("system", ["dgx-a100", "dgx-h100"]),
        ("technology", ["n7-hbm2e", "n4-hbm3"]),
        ("technology.memory", ["hbm3e", "hbm3"]),
        ("technology.node", ["n7", "n4"]),
    ],
)
def test_what_a_file_sets_holds_for_every_config_to_choose(path, values, tmp_path):
    problem, candidates = choosing(tmp_path, path, values)
    for candidate in candidates:
        assert float(candidate.system.n_devices) == 16
        assert float(candidate.system.network[0].efficiency) == pytest.approx(0.1)
        assert float(candidate.technology.memory.price) == pytest.approx(200e-9)
        assert float(candidate.technology.process.defect_density) == pytest.approx(0.002)
    np.testing.assert_array_equal(problem.vector.start[:2], [0, 1])
    assert jax.tree.all(jax.tree.map(np.allclose, candidates[1].system, problem.baseline.system))


def test_a_chosen_config_keeps_its_name(tmp_path):
    _, candidates = choosing(tmp_path, "technology", ["n7-hbm2e", "n4-hbm3"])
    assert [str(each.technology.name) for each in candidates] == ["n7-hbm2e", "n4-hbm3"]


def test_a_node_to_choose_is_that_node(tmp_path):
    _, (n5, between) = choosing(tmp_path, "technology.node", ["n5", "6 nm"], setting="")
    expected = load_technology("n4-hbm3", node="n5")
    assert float(n5.technology.sram_density) == pytest.approx(float(expected.sram_density))
    assert float(n5.technology.memory.phy_area) == pytest.approx(float(expected.memory.phy_area))
    assert float(between.technology.feature) == pytest.approx(6)


def test_what_a_file_sets_holds_on_the_node_that_it_sets(tmp_path):
    setting = SET + '"technology.feature" = "6 nm"\n'
    problem, _ = choosing(tmp_path, "technology.memory", ["hbm3e", "hbm3"], setting)
    assert float(problem.baseline.technology.process.defect_density) == pytest.approx(0.002)
    np.testing.assert_array_equal(problem.vector.start[:2], [0, 1])  # HBM3 with its PHY on that node


def test_a_choice_is_among_the_alternatives_that_are_listed(tmp_path):
    problem, candidates = choosing(tmp_path, "strategy.precision", ["fp8", "bf16"])
    assert [each.strategy.precision.likeliest() for each in candidates] == ["bf16", "fp8"]
    search = Search(problem, population=64)
    designs = search.cube.designs(np.random.default_rng(0).random((200, search.cube.size)))
    precisions = {tuple(row) for row in designs[:, :-1]}
    assert precisions == {tuple(row) for row in problem.variables[0].choices}


@pytest.mark.parametrize(
    ("path", "values", "message"),
    [
        ("strategy.precision", ["bf16", "bf16"], "expected two alternatives or more"),
        ("strategy.precision", ["bf16", "fp9"], r'values\[1\]: found "fp9"'),
        ("technology.node", ["n7", "n77"], r"values\[1\]"),
        ("technology.packaging", ["a", "b"], r"system\.accelerator\.package\.carrier"),
    ],
)
def test_choices_that_do_not_exist_are_one_clear_line(path, values, message, tmp_path):
    with pytest.raises(ConfigError, match=message) as raised:
        choosing(tmp_path, path, values)
    assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_a_mix_is_designed_for_all_of_it(mix):
    """Every combination of the problem, one by one."""
    search = Search(mix, population=64)
    result = search.answer()
    grid = [[units, stacks, *kind] for units in range(16, 301) for stacks in (2, 5, 8) for kind in np.eye(2)]
    scores = search.scorer.exact(np.array(grid, dtype=float), mix.limits).ranking(search.goal)
    best = np.where(scores.violation == 0, scores.objective, np.inf).min()
    assert result.feasible
    assert np.log(result.objective) == pytest.approx(best, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("measure", ["mean", "quantile", "worst"])
def test_uncertain_inputs_are_sampled(tmp_path, measure):
    """Each sample is the problem with the price of memory multiplied, by hand."""
    text = HEAD + CHAT + VARIABLES + LIMITS + UNCERTAIN.replace("MEASURE", measure)
    problem = problem_of(tmp_path, text)
    candidate = problem.vector.candidate(jnp.asarray(X))

    @jax.jit
    def cost(factor):
        price = candidate.technology.memory.price * factor
        sampled = replace(candidate, {"technology.memory.price": price})
        return problem.outcome_of(sampled, Exact()).report.cost.manufacturing

    costs = [float(cost(factor)) for factor in problem.uncertainty.factors[:, 0]]
    expected = {"mean": np.mean, "worst": np.max, "quantile": lambda c: np.quantile(c, 0.9)}[measure](costs)
    limits = jnp.asarray(problem.limits)
    scored = jax.jit(problem.scores)
    scores = scored(jnp.asarray(X), limits, Exact())
    assert float(scores[1]) == pytest.approx(expected / problem.limits[0] - 1, rel=1e-9)
    assert 0.5 <= problem.uncertainty.factors.min() < 0.7
    smooth = scored(jnp.asarray(X), limits, Smooth(1e5))
    np.testing.assert_allclose(smooth[:2], scores[:2], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("share = 3", "share = 0", r"workload\[0\]\.share: found 0"),
        ('name = "prefill"', 'name = "chat"', r'workload\[1\]\.name: found "chat"'),
        ('model = "llama-3-8b"', "", r"workload\[0\]\.model: found no such key"),
        ('"hbm2e", "hbm3"', '"hbm2e", "hbm33"', "hbm33"),
        ('measure = "worst"', 'measure = "wurst"', r"robust\.measure: found 'wurst'"),
        ("from = 0.5", "from = -1", r"uncertain\[0\]: found from -1"),
        ("samples = 8", "samples = 1", r"robust\.samples: found 1"),
        (
            "from = 16\nto = 300",
            "from = 16\nto = 16",
            r'found one value, 16;.*"design\.compute_units" = 16 under \[set\]',
        ),
        ("values = [2, 5, 8]", "values = [5]", r'write "design\.memory_stacks" = 5 under \[set\]'),
        (
            'minimize = "time"',
            'minimize = "time"\nset = {"system.stack.kernel_overhead" = "9 us"}',
            r"write system\.inference_stack\.",
        ),
    ],
)
def test_mistakes_are_one_clear_line(tmp_path, old, new, message):
    text = HEAD + CHAT + PREFILL + VARIABLES + LIMITS + UNCERTAIN.replace("MEASURE", "worst")
    with pytest.raises(ConfigError, match=message) as raised:
        problem_of(tmp_path, text.replace(old, new, 1))
    assert "\n" not in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize("measure", ["worst", "quantile"])
def test_values_beside_limits_are_those_that_the_limits_are_judged_by(tmp_path, measure):
    """Dear memory misses the budget, which the nominal price would meet."""
    variables = '[[variable]]\npath = "design.compute_units"\nvalues = [100, 132]\n'
    limits = LIMITS.replace('"baseline"', '"2800 USD"')
    text = HEAD + CHAT + variables + limits + UNCERTAIN.replace("MEASURE", measure)
    answer = dp.codesign(problem_of(tmp_path, text), population=64)
    result, problem = answer.result, answer.result.problem
    costs = []
    for (factor,) in problem.uncertainty.factors:
        price = result.design.technology.memory.price * factor
        sampled = replace(result.design, {"technology.memory.price": price})
        costs.append(float(problem.outcome_of(sampled, Exact()).report.cost.manufacturing))
    judged = np.max(costs) if measure == "worst" else np.quantile(costs, 0.9)
    row = result.constraints()[0]
    assert row.value == pytest.approx(judged, rel=1e-9)
    assert row.nominal == pytest.approx(float(result.outcome.report.cost.manufacturing))
    assert row.nominal < 2800 < row.value
    words = "worst of 8 samples" if measure == "worst" else "0.9 quantile of 8 samples"
    lines = [line for line in answer.lines() if isinstance(line, str)]
    assert any(f"No design satisfies every constraint in the {words}" in line for line in lines)
    assert any(f"(reaches {units.show(judged, 'USD')})" in line for line in lines)
    assert any(f"Values beside limits are the {words}" in line for line in lines)
    assert f"(reaches {units.show(judged, 'USD')})" in answer.to_html()
    table = answer.to_dict()
    assert table["judged_by"]["measure"] == measure
    assert table["constraints"][0]["value"] == pytest.approx(judged, rel=1e-9)
    assert f"value, {words}" in [column.header for column in constraint_table(result).columns]


def test_the_quantile_of_a_robust_design_is_said(tmp_path):
    text = HEAD + CHAT + VARIABLES + LIMITS + UNCERTAIN.replace("MEASURE", "quantile")
    uncertainty = problem_of(tmp_path, text).uncertainty
    assert judged_over(uncertainty) == "in the 0.9 quantile of 8 samples of what is uncertain"


def test_what_would_have_to_be_otherwise_is_no_geometry_of_wafers(tmp_path):
    inputs = Tipping(problem_of(tmp_path, HEAD + CHAT + VARIABLES + LIMITS)).inputs
    assert "technology.process.defect_density" in inputs
    assert not [path for path in inputs if "wafer_diameter" in path or path.endswith("reticle")]


def test_the_first_workload_s_name_begins_paths_too(tmp_path):
    """As of an output, "chat.memory.excess"; and what is no output is named as it was written."""
    own = '[[variable]]\npath = "chat.strategy.tp"\nvalues = [1, 2, 4, 8]\n'
    problem = problem_of(tmp_path, HEAD + CHAT + PREFILL + VARIABLES + own + LIMITS)
    assert [variable.path for variable in problem.variables][-1] == "strategy.tp"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"memory.excess"',
            '"chta.memory.excess"',
            r'found "chta\.memory\.excess".*mean "chat\.memory\.excess"',
        ),
        ('minimize = "time"', 'maximize = "mfu"', r'maximize: found "mfu".*chat \(decode\) has no mfu'),
    ],
)
def test_outputs_that_a_workload_lacks_are_named_as_written(tmp_path, old, new, message):
    text = HEAD + CHAT + PREFILL.replace('"prefill"', '"training"') + VARIABLES + LIMITS
    with pytest.raises(ConfigError, match=message) as raised:
        problem_of(tmp_path, text.replace(old, new, 1))
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize("workload", ["", "chat."])
def test_a_baseline_without_a_value_of_a_variable_is_told_from_the_variable(tmp_path, workload):
    """Ranges of variables are for the design; the baseline has what the strategy's table gives."""
    layout = f"""
[[variable]]
path = "{workload}strategy.global_batch"
from = 8
to = 2048
[[variable]]
path = "{workload}strategy.tp"
values = [1, 2, 4, 8]
"""
    chat = CHAT.replace("tp = 8, global_batch = 32, ", "")
    if workload:
        chat += PREFILL
        given = chat.replace("strategy = {", "strategy = {global_batch = 8, ", 1)
    else:
        own = 'model = "llama-3-8b"\nphase = "decode"\n'
        chat, given = own, own + "[strategy]\nglobal_batch = 8\n"
    with pytest.raises(ConfigError) as raised:
        problem_of(tmp_path, HEAD + chat + VARIABLES + layout + LIMITS)
    message = str(raised.value)
    assert "1 sequence for 8 replicas in the baseline, which has the default of" in message
    assert "strategy.global_batch and strategy.tp" in message
    assert "write a value for the baseline under" in message
    assert "\n" not in message
    problem_of(tmp_path, HEAD + given + VARIABLES + layout + LIMITS)
