"""The flags of Megatron-LM, written out by hand."""

import pytest

import diffperf as dp
from diffperf.explore.plan.megatron_flags import megatron_flags

# Of the flags in megatron/training/arguments.py of NVIDIA/Megatron-LM (commit 000c4ac2), those that a
# strategy or a model sets.
EXISTING = {
    "--accumulate-allreduce-grads-in-fp32", "--add-qkv-bias", "--attention-backend",
    "--attention-dropout", "--bf16", "--ckpt-format", "--context-parallel-size", "--cp-comm-type",
    "--cpu-offloading-num-layers", "--data-parallel-sharding-strategy", "--disable-bias-linear",
    "--expert-model-parallel-size", "--expert-tensor-parallel-size", "--ffn-hidden-size", "--fp16",
    "--fp4-format", "--fp8-format", "--fp8-param-gather", "--fp8-recipe", "--global-batch-size",
    "--grad-reduce-in-bf16", "--group-query-attention", "--hidden-dropout", "--hidden-size",
    "--kv-channels", "--kv-lora-rank", "--max-position-embeddings", "--micro-batch-size",
    "--moe-expert-capacity-factor", "--moe-ffn-hidden-size", "--moe-grouped-gemm", "--moe-layer-freq",
    "--moe-pad-expert-input-to-capacity", "--moe-router-topk", "--moe-shared-expert-intermediate-size",
    "--moe-token-dispatcher-type", "--mtp-num-layers", "--multi-latent-attention", "--normalization",
    "--num-attention-heads", "--num-distributed-optimizer-instances", "--num-experts", "--num-layers",
    "--num-layers-per-virtual-pipeline-stage", "--num-query-groups", "--optimizer-cpu-offload",
    "--optimizer-offload-fraction", "--overlap-grad-reduce", "--overlap-moe-expert-parallel-comm",
    "--overlap-param-gather", "--pipeline-model-parallel-layout", "--pipeline-model-parallel-size",
    "--position-embedding-type", "--q-lora-rank", "--qk-head-dim", "--qk-pos-emb-head-dim",
    "--recompute-granularity", "--recompute-method", "--recompute-num-layers", "--seq-length",
    "--sequence-parallel", "--swiglu", "--tensor-model-parallel-size", "--tp-comm-overlap",
    "--untie-embeddings-and-output-weights", "--use-distributed-optimizer", "--use-megatron-fsdp",
    "--use-precision-aware-optimizer", "--use-tp-pp-dp-mapping", "--v-head-dim", "--vocab-size",
    "--window-size", "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers",
    "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split",
    "--num-virtual-stages-per-pipeline-rank", "--recompute-modules", "--moe-router-num-groups",
    "--moe-router-group-topk",
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


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (
            {"pp": 16, "virtual_stages": 8, "embedding_in_split": True, "loss_in_split": True},
            {
                "--account-for-embedding-in-pipeline-split",
                "--account-for-loss-in-pipeline-split",
                "--num-virtual-stages-per-pipeline-rank 8",
            },
        ),
        (
            {"pp": 8, "first_stage_layers": 15, "last_stage_layers": 15},
            {"--decoder-first-pipeline-num-layers 15", "--decoder-last-pipeline-num-layers 15"},
        ),
        (
            {"pp": 8, "first_stage_layers": 14, "loss_in_split": True},
            {"--decoder-first-pipeline-num-layers 14", "--account-for-loss-in-pipeline-split"},
        ),
    ],
)
def test_flags_of_uneven_stages(table, expected):
    """And no layout besides, nor a number of layers of each chunk."""
    lines = flags("llama-3.1-405b", table)
    assert expected <= set(lines)
    assert not any("layout" in line or "--num-layers-per-virtual" in line for line in lines)


def test_flags_of_recomputed_modules():
    """DeepSeek-V3 recomputes norms, SwiGLU and up-projections, and visits four of eight groups of experts."""
    fields = ("recompute_norms", "recompute_activation_functions", "recompute_up_projections")
    lines = flags("deepseek-v3", dict.fromkeys(fields, 1))
    assert "--recompute-granularity selective" in lines
    assert "--recompute-modules layernorm moe_act mla_up_proj" in lines
    assert {"--moe-router-num-groups 8", "--moe-router-group-topk 4"} <= set(lines)
    lines = flags("deepseek-v3", {"recompute": "selective", "recompute_experts": 0.5})
    assert "--recompute-modules core_attn moe" in lines
    assert "# Megatron-LM recomputes a module of all layers or none" in lines
    lines = flags("deepseek-v3", {"recompute": "full", "recompute_mlp": 1})
    assert "# Megatron-LM recomputes whole layers or modules (mlp), not both" in lines
