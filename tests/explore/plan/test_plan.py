"""Plans against a plain loop over all strategies that uses the public functions only; flags and reasons by hand."""

import itertools
import math

import equinox as eqx
import numpy as np
import pytest

import diffperf as dp
from diffperf.explore.plan import candidates as layout
from diffperf.explore.plan.candidates import candidates, started
from diffperf.explore.plan.megatron_flags import megatron_flags
from diffperf.explore.plan.plan import OBJECTIVES, Search, behind, largest_part, plan, smallest_system
from diffperf.quantity import locate
from tests.helpers import training

RECOMPUTE, ZERO = ("none", "full"), ("0", "1", "2", "3")


def whole(x: float) -> bool:
    return x == round(x)


def even(depth: int, chunks: int) -> bool:
    """The longest chunk has at most 5 % more layers than the mean."""
    return chunks <= depth and math.ceil(depth / chunks) <= 1.05 * depth / chunks


def dense_strategies(n: int, heads: int, depth: int, batch: int):
    """Every strategy of a dense model on a system of one domain, for sequences of 2048 tokens."""
    for tp, pp in itertools.product(range(1, 9), range(1, n + 1)):
        if n % (tp * pp) or heads % tp or not even(depth, pp):
            continue
        dp_ = n // (tp * pp)
        for v, micro, recompute, zero in itertools.product(
            range(1, depth + 1), (1, 2, 4, 8), RECOMPUTE, ZERO
        ):
            steps = batch / (dp_ * micro)
            if not even(depth, pp * v) or not whole(steps) or (v > 1 and (pp == 1 or steps % pp)):
                continue
            if (zero > "0" and dp_ == 1) or (zero > "1" and pp > 1):
                continue
            yield {
                "tp": tp,
                "pp": pp,
                "dp": dp_,
                "virtual_stages": v,
                "micro_batch": micro,
                "recompute": recompute,
                "zero": zero,
            }


def mixture_strategies(n: int, heads: int, depth: int, batch: int, experts: int):
    """The same with experts, laid out apart from all else."""
    for strategy in dense_strategies(n, heads, depth, batch):
        for ep, expert_tp in itertools.product(range(1, experts + 1), range(1, strategy["tp"] + 1)):
            if (
                experts % ep == 0
                and strategy["tp"] % expert_tp == 0
                and (n // strategy["pp"]) % (ep * expert_tp) == 0
            ):
                yield strategy | {"ep": ep, "expert_tp": expert_tp}


def brute_force(model, system, strategies, batch: int, path: str = "time"):
    """(value, strategy) of all that fit memory, the smallest first."""
    found, count = [], 0
    for fields in strategies:
        strategy = dp.load_strategy(fields | {"global_batch": batch})
        report = training(model, system, strategy)
        count += 1
        if float(report.memory.excess) <= 0:
            found.append((float(locate(report, path)[0]), fields))
    return sorted(found, key=lambda pair: pair[0]), count


def chosen(candidate, names) -> dict:
    """The named fields of a candidate's strategy, choices by the names of their alternatives."""
    values = {name: np.asarray(getattr(candidate.strategy, name)) for name in names}
    alternatives = {"recompute": ("none", "selective", "full"), "zero": ZERO}
    return {
        name: alternatives[name][value.argmax()] if value.ndim else float(value)
        for name, value in values.items()
    }


def check_against(found, expected, count, path):
    assert (found.possible, found.fitting) == (count, len(expected))
    values = [float(locate(candidate.report, path)[0]) for candidate in found.best]
    np.testing.assert_allclose(values, [value for value, _ in expected[: len(values)]], rtol=1e-12)
    for candidate, value in zip(found.best, values, strict=True):
        as_good = [fields for other, fields in expected if other == pytest.approx(value, rel=1e-12)]
        assert chosen(candidate, as_good[0]) in as_good


@pytest.mark.parametrize("by", ["time", "energy"])
def test_the_order_of_a_loop_over_all_strategies(by):
    model, system = dp.load_model("gpt3-22b"), dp.load_system("dgx-a100", 16)
    expected, count = brute_force(model, system, dense_strategies(16, 64, 48, 32), 32, OBJECTIVES[by])
    found = plan(Search.of(model, system, {"global_batch": 32}), by, top=25)
    assert len(found.best) == 25
    check_against(found, expected, count, OBJECTIVES[by])


def test_the_order_of_a_loop_with_experts():
    model, system = dp.load_model("mixtral-8x7b"), dp.load_system("dgx-h100", 16)
    given = {"micro_batch": 1, "recompute": "full", "global_batch": 16}
    all_of_them = mixture_strategies(16, 32, 32, 16, 8)
    strategies = [s for s in all_of_them if s["micro_batch"] == 1 and s["recompute"] == "full"]
    expected, count = brute_force(model, system, strategies, 16)
    check_against(plan(Search.of(model, system, given), top=25), expected, count, "time")


def test_a_wrong_reference_would_be_noticed():
    model, system = dp.load_model("gpt3-22b"), dp.load_system("dgx-a100", 16)
    found = plan(
        Search.of(
            model, system, {"global_batch": 32, "recompute": "full", "virtual_stages": 1, "micro_batch": 1}
        ),
        top=3,
    )
    expected = [(float(candidate.report.time) * 1.001, {}) for candidate in found.best]
    with pytest.raises(AssertionError):
        check_against(found, expected, found.possible, "time")


def test_what_is_given_is_kept_and_nothing_is_traced_again(gpt, system):
    """Numbers and choices are data: other questions run the same compiled program."""
    plan(Search.of(gpt, system, {"global_batch": 64}))
    programs = layout._evaluate._cache_size()
    given = {"tp": 8, "recompute": "selective", "zero": "2", "micro_batch": 16, "global_batch": 64, "cp": 2}
    found = plan(Search.of(gpt, system, given, ("1f1b", "zero_bubble")))
    for candidate in found.best:
        fields = chosen(candidate, ("tp", "recompute", "zero", "micro_batch", "cp"))
        assert fields == {"tp": 8, "recompute": "selective", "zero": "2", "micro_batch": 16, "cp": 2}
        assert float(candidate.strategy.devices) == 64
    assert layout._evaluate._cache_size() == programs


def test_schedules_are_compared_where_asked(gpt, system):
    rows = Search.of(gpt, system, {"global_batch": 64}, ("1f1b", "zero_bubble")).rows
    kinds, pipeline = rows["schedule"].argmax(1), rows["pp"] > 1
    assert set(kinds[pipeline]) == {1, 2}
    assert set(kinds[~pipeline]) == {1}
    assert set(rows["virtual_stages"][kinds == 2]) == {1}


def test_long_sequences_are_shared(llama):
    system = dp.load_system("dgx-a100", 32)
    for length, degrees in ((4096, {1}), (8192, {1, 2}), (32768, {1, 2, 4, 8})):
        table = {"sequence_length": length}
        assert set(candidates(llama, system, table, started(system, table), layout.FIELDS)["cp"]) == degrees


def test_selective_recomputation_is_searched_where_scores_are_stored(gpt, system):
    for attention, alternatives in (("flash", {0, 2}), ("standard", {0, 1, 2})):
        rows = Search.of(gpt, system, {"attention": attention}).rows
        assert set(rows["recompute"].argmax(1)) == alternatives


def test_stages_of_a_prime_depth_are_nearly_even():
    """61 layers (DeepSeek-V3): 16 stages hold four or three; 64 would leave three without a layer."""
    model, system = dp.load_model("deepseek-v3"), dp.load_system("dgx-h100", 256)
    stages = set(candidates(model, system, {}, started(system, {}), layout.FIELDS)["pp"])
    assert stages == {1, 2, 4, 8, 16, 32}


def test_a_hundred_thousand_devices(gpt):
    found = plan(Search.of(gpt, dp.load_system("dgx-a100", 100_000), {"global_batch": 100_000}), top=3)
    assert len(found.best) == 3
    assert {float(candidate.strategy.devices) for candidate in found.best} == {100_000}


# --- why the others lose


@pytest.fixture(scope="module")
def report(gpt, system, strategy):
    return training(gpt, system, strategy)


def slower(report, **shares: float):
    """The report with parts of the time that take so much more, as shares of the whole."""
    whole = report.breakdown.total
    parts = {name: getattr(report.breakdown, name) + share * whole for name, share in shares.items()}
    breakdown = eqx.tree_at(
        lambda b: [getattr(b, name) for name in parts], report.breakdown, list(parts.values())
    )
    return eqx.tree_at(lambda r: (r.breakdown, r.time), report, (breakdown, breakdown.total))


def test_a_reason_names_the_parts_that_grew(report):
    why = behind(
        report, slower(report, pipeline_bubble=0.041, tensor_parallel=0.025, optimizer=-0.004), "time"
    )
    assert str(why) == "+6.2 % time: pipeline bubble +4.1 %, tensor-parallel communication +2.5 %"
    assert why.more == pytest.approx(0.062)
    assert sum(change for _, change in why.parts) == pytest.approx(why.more, rel=1e-9)


def test_a_reason_names_what_was_gained_for_it(report):
    why = behind(report, slower(report, pipeline_bubble=-0.02, recompute=0.03), "time")
    assert str(why) == "+1.0 % time: recomputed activations +3.0 %, against pipeline bubble −2.0 %"


def test_a_reason_of_a_tie_is_the_memory(report):
    heavier = eqx.tree_at(lambda r: r.memory.peak, report, report.memory.peak + 2e9)
    assert str(behind(report, heavier, "time")) == "the same time, and 2 GB more memory"


def test_a_dearer_one_is_told_by_its_time(report):
    dearer = eqx.tree_at(lambda r: r.cost.run, slower(report, host=0.1), report.cost.run * 1.08)
    assert str(behind(report, dearer, "cost")) == "+8.0 % cost, +10.0 % time: waiting for the host +10.0 %"


def test_parts_add_up_for_every_objective(gpt, system):
    for by in OBJECTIVES:
        found = plan(Search.of(gpt, system, {"global_batch": 64}), by, top=6)
        assert found.best[0].behind is None
        for candidate in found.best[1:]:
            why = candidate.behind
            assert why.more >= 0
            assert sum(change for _, change in why.parts) == pytest.approx(why.more_of, abs=1e-9)
            if by != "cost":
                assert why.more == pytest.approx(why.more_of, abs=1e-9)


# --- where nothing fits


def test_the_smallest_system_that_fits():
    """Against the loop: not one strategy fits half of it."""
    model, system = dp.load_model("gpt3-22b"), dp.load_system("dgx-a100", 1)
    search = Search.of(model, system, {})
    found = plan(search)
    assert found.best == ()
    assert float(found.least.report.memory.excess) > 0
    larger, better = smallest_system(search)
    devices = int(larger.inputs.system.n_devices)
    assert better.fitting > 0
    half, fits = (
        brute_force(model, dp.load_system("dgx-a100", n), dense_strategies(n, 64, 48, n), n)[0]
        for n in (devices // 2, devices)
    )
    assert not half
    assert fits[0][0] == pytest.approx(float(better.best[0].report.time), rel=1e-12)


def test_no_system_that_fits(gpt):
    fixed = Search.of(gpt, dp.load_system("dgx-a100", 1), {"tp": 1, "pp": 1, "dp": 1})
    assert plan(fixed).best == ()
    assert smallest_system(fixed) is None


def test_the_largest_part_of_the_memory(gpt):
    memory = plan(Search.of(gpt, dp.load_system("dgx-a100", 1), {})).least.report.memory
    assert largest_part(memory) == ("optimizer state", pytest.approx(float(memory.optimizer)))
    assert float(memory.optimizer) == max(
        float(getattr(memory, name)) for name in ("weights", "gradients", "optimizer", "activations")
    )


# --- what no strategy can be


@pytest.mark.parametrize(
    ("table", "n_devices", "words"),
    [
        ({"tp": 7}, 64, "7 for 96 attention heads; expected a divisor of the heads; use one of 1, 2, 3, 4, 6, 8, 12,"),
        ({"tp": 7}, 64, "(nearest: 8 or 6)"),
        ({"tp": 6}, 1024, "strategy.tp: found 6, which leaves dp = 170.667 of 1024 devices"),
        ({"tp": 6}, 1024, "use tp 8 or 4"),
        ({"tp": 8, "pp": 3}, 1024, "use pp 4 or 2"),
        ({"pp": 97}, 1024, "use pp 64"),
        ({"tp": 8, "pp": 8}, 8, "set the devices to 64 or pp to 1"),
        ({"pp": 100}, 100, "use at most 96 chunks in all: pp 96"),
        ({"ep": 3}, 64, "3 for a model without experts; expected a divisor of the experts; use 1"),
        ({"global_batch": 7}, 1024, "7 sequences for dp·micro_batch = 4·1; expected a multiple of dp·micro_batch; use 8 or 4"),
        ({"tp": 8, "pp": 3, "schedule": "dualpipe"}, 24, "use pp 4 or 2, or a larger global_batch or another schedule"),
        (
            {"tp": 8, "pp": 8, "virtual_stages": 3, "micro_batch": 1, "global_batch": 60},
            64,
            "use a global_batch of 64 or 56, or set virtual_stages to 1",
        ),
        ({"cp": 3}, 48, "3 for sequences of 2048 tokens; expected a divisor of the sequence length"),
        ({"zero_ranks": 5, "tp": 8, "pp": 1}, 64, "5 of 8 data- and context-parallel ranks"),
        ({"tp": 8, "cp": 16, "context_parallel": "all_to_all"}, 128, 'use cp 12, or context_parallel "ring"'),
    ],
)  # fmt: skip
def test_impossible_strategies_name_the_rule_and_the_nearest(gpt, table, n_devices, words):
    with pytest.raises(dp.ConfigError) as caught:
        plan(Search.of(gpt, dp.load_system("dgx-a100", n_devices), table))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (
            {"ep": 3},
            "3 for 8 experts; expected a divisor of the experts; use one of 1, 2, 4, 8 (nearest: 4 or 2)",
        ),
        (
            {"ep": 8, "tp": 1, "pp": 4, "dp": 4, "expert_tp": 1},
            "use ep 4, or an expert_tp that shares them evenly",
        ),
    ],
)
def test_impossible_experts_name_the_nearest(table, words):
    with pytest.raises(dp.ConfigError) as caught:
        plan(Search.of(dp.load_model("mixtral-8x7b"), dp.load_system("dgx-h100", 16), table))
    assert words in str(caught.value)


def test_an_unknown_objective_or_schedule(gpt, system):
    with pytest.raises(dp.ConfigError, match="one of time, cost, energy"):
        plan(Search.of(gpt, system, {}), by="speed")
    with pytest.raises(dp.ConfigError, match='did you mean "gpipe"'):
        Search.of(gpt, system, {}, ("gpip",))


# --- flags of Megatron-LM

# Of the flags in megatron/training/arguments.py of NVIDIA/Megatron-LM (commit 000c4ac2), those that a strategy or a model sets.
EXISTING = {
    "--accumulate-allreduce-grads-in-fp32", "--add-qkv-bias", "--attention-backend", "--attention-dropout", "--bf16",
    "--ckpt-format", "--context-parallel-size", "--cp-comm-type", "--cpu-offloading-num-layers",
    "--data-parallel-sharding-strategy", "--disable-bias-linear", "--expert-model-parallel-size", "--expert-tensor-parallel-size",
    "--ffn-hidden-size", "--fp16", "--fp4-format", "--fp8-format", "--fp8-param-gather", "--fp8-recipe", "--global-batch-size",
    "--grad-reduce-in-bf16", "--group-query-attention", "--hidden-dropout", "--hidden-size", "--kv-channels", "--kv-lora-rank",
    "--max-position-embeddings", "--micro-batch-size", "--moe-expert-capacity-factor", "--moe-ffn-hidden-size",
    "--moe-grouped-gemm", "--moe-layer-freq", "--moe-pad-expert-input-to-capacity", "--moe-router-topk",
    "--moe-shared-expert-intermediate-size", "--moe-token-dispatcher-type", "--mtp-num-layers", "--multi-latent-attention",
    "--normalization", "--num-attention-heads", "--num-distributed-optimizer-instances", "--num-experts", "--num-layers",
    "--num-layers-per-virtual-pipeline-stage", "--num-query-groups", "--optimizer-cpu-offload", "--optimizer-offload-fraction",
    "--overlap-grad-reduce", "--overlap-moe-expert-parallel-comm", "--overlap-param-gather", "--pipeline-model-parallel-layout",
    "--pipeline-model-parallel-size", "--position-embedding-type", "--q-lora-rank", "--qk-head-dim", "--qk-pos-emb-head-dim",
    "--recompute-granularity", "--recompute-method", "--recompute-num-layers", "--seq-length", "--sequence-parallel", "--swiglu",
    "--tensor-model-parallel-size", "--tp-comm-overlap", "--untie-embeddings-and-output-weights", "--use-distributed-optimizer",
    "--use-megatron-fsdp", "--use-precision-aware-optimizer", "--use-tp-pp-dp-mapping", "--v-head-dim", "--vocab-size",
    "--window-size",
}  # fmt: skip


def flags(model: str, table: dict) -> list[str]:
    lines = megatron_flags(dp.load_model(model), dp.load_strategy(table))
    named = [line.split()[0] for line in lines if not line.startswith("#")]
    assert set(named) <= EXISTING
    assert len(named) == len(set(named))
    return lines


def test_flags_of_a_dense_model():
    table = {
        "tp": 8,
        "pp": 8,
        "dp": 2,
        "virtual_stages": 3,
        "micro_batch": 1,
        "global_batch": 64,
        "recompute": "full",
        "zero": "1",
    }
    assert [line for line in flags("gpt3-175b", table) if not line.startswith("#")] == [
        "--tensor-model-parallel-size 8",
        "--sequence-parallel",
        "--pipeline-model-parallel-size 8",
        "--num-layers-per-virtual-pipeline-stage 4",  # 96 / (8 · 3)
        "--context-parallel-size 1",
        "--use-distributed-optimizer",
        "--overlap-grad-reduce",
        "--overlap-param-gather",
        "--micro-batch-size 1",
        "--global-batch-size 64",
        "--seq-length 2048",
        "--max-position-embeddings 2048",
        "--recompute-granularity full",
        "--recompute-method uniform",
        "--recompute-num-layers 1",
        "--bf16",
        "--accumulate-allreduce-grads-in-fp32",
        "--attention-backend flash",
        "--num-layers 96",
        "--hidden-size 12288",
        "--ffn-hidden-size 49152",
        "--num-attention-heads 96",
        "--position-embedding-type learned_absolute",
        "--vocab-size 51200",
    ]


def test_flags_of_a_mixture():
    lines = flags(
        "mixtral-8x7b",
        {"tp": 2, "pp": 2, "dp": 4, "ep": 8, "expert_tp": 1, "precision": "fp8", "capacity_factor": 1.25},
    )
    for line in (
        "--fp8-format hybrid",
        "--group-query-attention",
        "--num-query-groups 8",
        "--normalization RMSNorm",
        "--swiglu",
        "--num-experts 8",
        "--moe-router-topk 2",
        "--moe-ffn-hidden-size 14336",
        "--expert-model-parallel-size 8",
        "--expert-tensor-parallel-size 1",
        "--moe-token-dispatcher-type alltoall",
        "--moe-expert-capacity-factor 1.25",
    ):
        assert line in lines
    assert "--use-distributed-optimizer" not in lines


def test_flags_of_latent_attention_and_uneven_stages():
    lines = flags("deepseek-v3", {"pp": 16, "dp": 16, "ep": 16})
    for line in (
        "--q-lora-rank 1536",
        "--kv-lora-rank 512",
        "--qk-head-dim 128",
        "--qk-pos-emb-head-dim 64",
        "--v-head-dim 128",
        "--mtp-num-layers 1",
        "--ffn-hidden-size 18432",
        "--moe-ffn-hidden-size 2048",
        "--moe-shared-expert-intermediate-size 2048",
        '--moe-layer-freq "([0]*3+[1]*58)"',
    ):
        assert line in lines
    (stages,) = (line.split('"')[1] for line in lines if line.startswith("--pipeline-model-parallel-layout"))
    assert (stages.count("t"), stages.count("|"), stages[0], stages[-2:]) == (61, 15, "E", "mL")
    assert {part.count("t") for part in stages.split("|")} == {3, 4}


def test_flags_of_sharded_weights():
    lines = flags("llama-2-7b", {"dp": 64, "zero": "3", "zero_ranks": 8})
    for line in (
        "--use-megatron-fsdp",
        "--data-parallel-sharding-strategy optim_grads_params",
        "--ckpt-format fsdp_dtensor",
        "--num-distributed-optimizer-instances 8",
    ):
        assert line in lines


@pytest.mark.parametrize(
    ("table", "comment"),
    [
        ({"pp": 8, "schedule": "dualpipe"}, "# Megatron-LM has no dualpipe schedule: it runs 1f1b"),
        ({"pp": 8, "schedule": "zero_bubble"}, "# Megatron-LM has no zero_bubble schedule: it runs 1f1b"),
        (
            {"order": "dp-tp-cp-pp"},
            "# Megatron-LM cannot place groups as dp-tp-cp-pp: it places them as tp-cp-dp-pp",
        ),
        ({"precision": "int8"}, "# Megatron-LM does not train in int8"),
        ({"pp": 2, "offload_activations": 0.5}, "# Megatron-LM does not offload activations in a pipeline"),
        ({"optimizer_bytes": "8 B"}, "# Megatron-LM has no flag for optimizer_bytes 8 B"),
    ],
)
def test_what_megatron_cannot_do_is_a_comment(table, comment):
    assert any(line.startswith(comment) for line in flags("gpt3-175b", table))


@pytest.mark.parametrize(
    "table",
    [
        {
            "precision": "nvfp4",
            "gradient_precision": "bf16",
            "weight_precision": "fp8",
            "order": "tp-cp-pp-dp",
            "pp": 4,
            "dp": 2,
        },
        {"cp": 4, "tp": 2, "context_parallel": "all_to_all", "overlap_tensor": True, "attention": "standard"},
        {
            "recompute": "full",
            "recompute_share": 0.5,
            "offload_activations": 0.5,
            "offload_optimizer": 1,
            "precision": "fp16",
        },
        {"recompute": "selective", "precision": "mxfp8"},
    ],
)
def test_every_flag_exists(table):
    for model in (
        "gpt3-175b",
        "llama-4-maverick",
        "qwen2-57b-a14b",
        "gpt-oss-120b",
        "gpt-neox-20b",
        "palm-540b",
    ):
        flags(model, table)


def test_part_of_the_layers_is_recomputed_by_block(gpt):
    lines = megatron_flags(gpt, dp.load_strategy({"pp": 8, "recompute": "full", "recompute_share": 0.5}))
    assert "--recompute-method block" in lines
    assert "--recompute-num-layers 6" in lines  # of 12 in a stage
