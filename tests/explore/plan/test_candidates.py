"""Which strategies are compared."""

import numpy as np

import diffperf as dp
from diffperf.explore.plan.candidates import Candidates
from diffperf.explore.plan.plan import Search
from diffperf.quantity import locate
from diffperf.workload.strategy import Strategy


def names(candidates: Candidates, field: str) -> np.ndarray:
    """The alternative that each candidate chooses, by name."""
    alternatives = locate(Strategy(), field)[0].alternatives
    assert set(np.unique(candidates[field])) <= {0.0, 1.0}
    return np.array(alternatives)[candidates[field].argmax(1)]


def test_schedules_are_compared_where_asked(gpt, system):
    candidates = Search.of(gpt, system, {"global_batch": 64}, ("1f1b", "zero_bubble")).candidates
    schedules, pipeline = names(candidates, "schedule"), candidates["pp"] > 1
    assert set(schedules[pipeline]) == {"1f1b", "zero_bubble"}
    assert set(schedules[~pipeline]) == {"1f1b"}
    assert set(candidates["virtual_stages"][schedules == "zero_bubble"]) == {1}


def test_long_sequences_are_shared(llama):
    system = dp.load_system("dgx-a100", 32)
    for length, degrees in ((4096, {1}), (8192, {1, 2}), (32768, {1, 2, 4, 8})):
        table = {"sequence_length": length}
        assert set(Search.of(llama, system, table).candidates["cp"]) == degrees


def test_selective_recomputation_is_searched_where_scores_are_stored(gpt, system):
    for attention, alternatives in (("flash", {"none", "full"}), ("standard", {"none", "selective", "full"})):
        candidates = Search.of(gpt, system, {"attention": attention}).candidates
        assert set(names(candidates, "recompute")) == alternatives


def test_stages_of_a_prime_depth_are_nearly_even():
    """61 layers (DeepSeek-V3): 16 stages hold four or three; 64 would leave three without a layer."""
    model, system = dp.load_model("deepseek-v3"), dp.load_system("dgx-h100", 256)
    stages = set(Search.of(model, system, {}).candidates["pp"])
    assert stages == {1, 2, 4, 8, 16, 32}


def test_sharded_states_are_searched_where_ranks_share_them(gpt, system):
    candidates = Search.of(gpt, system, {"global_batch": 64}).candidates
    stages, pipeline, shared = (
        names(candidates, "zero"),
        candidates["pp"] > 1,
        candidates["dp"] * candidates["cp"] > 1,
    )
    assert set(stages[shared & ~pipeline]) == {"0", "1", "2", "3"}
    assert set(stages[shared & pipeline]) == {"0", "1"}
    assert set(stages[~shared]) == {"0"}


def test_a_description_stands_for_every_searched_field(gpt, system):
    searched = Search.of(gpt, system, {"global_batch": 64, "tp": 8}).searched
    assert set(searched) == {"pp", "cp", "virtual_stages", "micro_batch", "recompute", "zero"}
