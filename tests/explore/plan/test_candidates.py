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


CLASSES = ("norms", "activation_functions", "up_projections", "mlp", "experts")


def recomputed(candidates: Candidates) -> set[tuple[str, ...]]:
    """What candidates recompute: a name for a set of classes, and classes."""
    shares = np.stack([candidates[f"recompute_{name}"] for name in CLASSES], axis=-1)
    return {
        (name, *(each for each, share in zip(CLASSES, row, strict=True) if share))
        for name, row in zip(names(candidates, "recompute"), shares, strict=True)
    }


def test_sets_of_recomputed_classes(gpt, system):
    """DeepSeek-V3's, Megatron-Core's up-projections, and all but attention: of the classes that a model has,
    activation functions only of experts, and beside stored scores where there are any.
    """
    named = {("none",), ("full",)}
    assert recomputed(Search.of(gpt, system, {}).candidates) == {
        *named,
        ("none", "norms"),
        ("none", "norms", "mlp"),
    }
    stored = recomputed(Search.of(gpt, system, {"attention": "standard"}).candidates)
    assert ("selective", "norms", "mlp") in stored
    assert ("none", "norms", "mlp") not in stored
    deepseek, nodes = dp.load_model("deepseek-v3"), dp.load_system("dgx-h100", 256)
    assert recomputed(Search.of(deepseek, nodes, {}).candidates) == {
        *named,
        ("none", "norms", "activation_functions", "up_projections"),
        ("none", "up_projections"),
        ("none", "norms", "up_projections", "mlp", "experts"),
    }
    for given in ({"recompute": "none"}, {"recompute_norms": 0.5}):
        assert len(recomputed(Search.of(gpt, system, given).candidates)) == 1


def test_layers_that_stages_lack_are_those_of_the_ends():
    """61 layers on 16 stages of four lack three: DeepSeek-V3's first stage has three, its last two. 126 on 16
    of eight lack two.
    """
    for model, stages, ends in (("deepseek-v3", 16, (3, 2)), ("llama-3.1-405b", 16, (0, 6))):
        system = dp.load_system("dgx-h100", 256)
        candidates = Search.of(dp.load_model(model), system, {"pp": stages}).candidates
        pairs = zip(candidates["first_stage_layers"], candidates["last_stage_layers"], strict=True)
        assert set(pairs) == {(0, 0), ends}
        uneven = candidates["last_stage_layers"] > 0
        assert set(candidates["virtual_stages"][uneven]) == {1}


def test_a_stack_s_own_way_to_train_holds_where_nothing_else_is_given():
    """HAI-LLM sends tokens to experts in fp8 where it trains in fp8, and hides that under DualPipe."""
    model = dp.load_model("deepseek-v3")
    system = dp.load_system("hgx-h800", 256, stack="hai-llm")
    known = Search.of(model, system, {"precision": "fp8", "schedule": "dualpipe", "overlap_transfers": False})
    strategy = known.inputs.strategy
    assert float(strategy.dispatch_width) == 1
    assert float(strategy.combine_width) == 2
    assert (float(strategy.overlap_experts.on), float(strategy.overlap_transfers.on)) == (1, 0)
    others = Search.of(model, system, {}).inputs.strategy
    assert float(others.dispatch_width) == 2
    assert float(others.overlap_experts.on) == 0
    assert Search.of(model, dp.load_system("dgx-h100", 256), {"precision": "fp8"}).known == {}


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


def test_embeddings_in_place_of_layers_make_stages_even():
    """Llama 3.1 405B: 126 layers and two embeddings in 128 chunks, at most; without, in 126 of them."""
    model, system = dp.load_model("llama-3.1-405b"), dp.load_system("dgx-h100", 1024)
    table = {
        "tp": 8,
        "pp": 16,
        "cp": 1,
        "micro_batch": 1,
        "recompute": "none",
        "zero": "1",
        "global_batch": 2048,
    }
    candidates = Search.of(model, system, table).candidates
    embedding, loss = names(candidates, "embedding_in_split"), names(candidates, "loss_in_split")
    both = (embedding == "on") & (loss == "on")
    assert set(candidates["virtual_stages"][both]) == {1, 2, 4, 8}
    assert not ((embedding == "on") & (loss == "off")).any()
    without = (embedding == "off") & (loss == "off")
    assert max(candidates["virtual_stages"][without]) < 8


def test_embeddings_stay_beside_layers_that_divide(gpt, system):
    """GPT-3's 96 layers and one or two embeddings divide by no number of stages of 64 devices but three."""
    candidates = Search.of(gpt, system, {"global_batch": 64}).candidates
    split = names(candidates, "loss_in_split") == "on"
    chunks = candidates["pp"] * candidates["virtual_stages"]
    embeddings = 1 + (names(candidates, "embedding_in_split") == "on")
    assert np.all((96 + embeddings[split]) % chunks[split] == 0)
    assert np.all(candidates["pp"][split] > embeddings[split])
