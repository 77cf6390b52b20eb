"""Predictions for rows of measured tables, against the library asked row by row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import generate, leaves, training
from measured_cases import INFERENCE, SPARSE, TRAINING, changed, write

import diffperf as dp
from diffperf.estimate.kernels.attention import generated_share
from diffperf.estimate.kernels.evaluation import evaluate
from diffperf.estimate.kernels.gemm import gemm_work
from diffperf.estimate.kernels.machine import Machine
from diffperf.estimate.network.placement import place
from diffperf.estimate.network.transfers import COLLECTIVES
from diffperf.explore.measured.predictions import BLOCK, inputs_of, predict
from diffperf.explore.measured.table import read_measurements
from diffperf.quantity import Weights, replace, walk
from diffperf.relax import Exact
from diffperf.workload.assembly import FUSED_KERNELS, attention_operators
from diffperf.workload.operators import AttentionCore, Gemms
from diffperf.workload.strategy import Strategy


@pytest.mark.parametrize(
    ("file", "names"),
    [
        (
            TRAINING,
            {
                "megatron-gpt-22b": "gpt3-22b",
                "megatron-gpt-175b": "gpt3-175b",
                "megatron-gpt-530b": "gpt3-530b",
            },
        ),
        (INFERENCE, {name: name for name in ("llama-2-7b", "llama-2-13b", "llama-2-70b")}),
    ],
)
def test_models_of_rows_are_the_shipped_ones(file, names):
    table = read_measurements(file)
    for name, shipped in names.items():
        row = next(row for row in table.rows if row["model"] == name)
        assert leaves(inputs_of(table.kind, row)[0])[1].tolist() == leaves(dp.load_model(shipped))[1].tolist()


@pytest.mark.parametrize(
    ("cells", "width"),
    [
        ({}, 4),
        ({"grad_dtype_bytes": 2}, 2),
        ({"framework": "vtrain"}, 2),
        ({"framework": "vtrain", "grad_dtype_bytes": 4}, 4),
    ],
)
def test_gradients_have_the_width_of_the_row_or_of_its_software(tmp_path, cells, width):
    """A model of fp16 has gradients of two bytes, other software sums them in fp32."""
    row = {"framework": "Megatron-DeepSpeed", "precision": "fp16", "grad_dtype_bytes": ""} | cells
    (measured,) = read_measurements(changed(TRAINING, tmp_path / "runs.csv", row)).rows
    assert float(inputs_of("training", measured)[2].gradient_width) == width


@pytest.mark.parametrize(
    ("cells", "recomputed"),
    [
        ({}, 1),
        ({"framework": "Megatron-Core"}, 0),
        ({"recompute": "none"}, 0),
        ({"attention": "mla"}, 0),
        ({"flash_attention": "false"}, 0),
    ],
)
def test_selective_recomputation_of_experts_under_flash_attention(tmp_path, cells, recomputed):
    """Megatron-Bridge's recipes recompute norms and the experts' activation functions of gpt-oss."""
    row = {"framework": "Megatron-Bridge 26.04", "recompute": "selective", "flash_attention": "true"}
    row |= {"model": "gpt-oss-120b", "hardware": "h100-sxm5-80gb", "attention": "gqa", "experts": 128}
    (measured,) = read_measurements(changed(TRAINING, tmp_path / "runs.csv", row | cells)).rows
    strategy = inputs_of("training", measured)[2]
    assert float(strategy.recompute_norms) == recomputed
    assert float(strategy.recompute_activation_functions) == recomputed


@pytest.mark.slow
def test_training_rows_are_estimated_as_the_library_does():
    row = read_measurements(TRAINING).rows[5]
    (found,) = predict("training", [row])
    strategy = {
        name: row[name] for name in ("tp", "pp", "dp", "virtual_stages", "micro_batch", "global_batch")
    }
    strategy |= {
        "sequence_length": 2048,
        "sequence_parallel": row["sequence_parallel"],
        "recompute": row["recompute"],
    }
    strategy |= {"attention": "standard", "precision": "fp16", "overlap_gradients": False}
    model, system = (
        dp.load_model({"megatron-gpt-530b": "gpt3-530b"}[row["model"]]),
        dp.load_system("dgx-a100", row["n_devices"]),
    )
    report = training(model, system, dp.load_strategy(strategy), Exact())
    expected = {
        "step_time_s": report.time,
        "tokens_per_s_per_device": report.tokens_per_second / row["n_devices"],
        "mfu": report.mfu,
        "model_tflops_per_device": report.mfu * 312,
        "hardware_tflops_per_device": report.hfu * 312,
        "peak_memory_bytes": report.memory.peak - report.memory.reserve,
    }
    for column, value in expected.items():
        assert found.values[column] == pytest.approx(float(value), rel=1e-9), column
    assert found.out_of_memory is bool(report.memory.excess > 0)


@pytest.mark.parametrize(
    ("cells", "choices"),
    [
        ({"tp": 4, "cp": 2}, {"tp": 4, "cp": 2}),
        ({"tp": 1, "dp": 8, "global_batch": 32, "zero_stage": 3}, {"tp": 1, "zero": "3", "global_batch": 32}),
        ({"precision": "fp8"}, {"precision": "fp8"}),
        ({"hardware": "gb200", "precision": "nvfp4"}, {"precision": "nvfp4"}),
        ({"tp": 2, "pp": 4, "schedule": "zero_bubble"}, {"tp": 2, "pp": 4, "schedule": "zero_bubble"}),
        ({"tp": 2, "pp": 4, "schedule": "afab"}, {"tp": 2, "pp": 4, "schedule": "gpipe"}),
    ],
)
def test_strategies_of_training_rows(tmp_path, cells, choices):
    """What a row's columns say is the strategy that says so."""
    (row,) = read_measurements(changed(TRAINING, tmp_path / "runs.csv", cells)).rows
    common = {"tp": 8, "micro_batch": 4, "global_batch": 4, "sequence_parallel": False, "recompute": "full"}
    common |= {"attention": "standard", "precision": "fp16", "overlap_gradients": False, "expert_tp": 1}
    assert values(inputs_of("training", row)[2]) == values(dp.load_strategy(common | choices, n_devices=8))
    assert predict("training", [row])[0].skipped is None


def values(module) -> dict[str, object]:
    """Every number and choice by dotted path."""
    return {path: np.asarray(value).tolist() for path, _, value in walk(module)}


def row_of(model, **cells) -> dict[str, object]:
    """The cells that describe a shipped model of experts."""
    dense, sparse = model.layers[0], model.layers[-1]
    whole = {name: int(getattr(sparse, name)) for name in ("heads", "kv_heads", "head_dim")}
    mixture = sparse.mixture
    shared = int(mixture.shared_ffn / sparse.ffn)
    experts = {
        "experts": int(mixture.experts),
        "experts_per_token": int(mixture.experts_per_token),
        "shared_experts": shared,
    }
    experts |= {
        "expert_ffn": int(sparse.ffn),
        "dense_layers": int(dense.count) if dense.mixture is None else 0,
    }
    size = {
        "layers": int(model.depth),
        "hidden": int(model.hidden),
        "vocab": int(model.vocabulary),
        "ffn": int(dense.ffn),
    }
    return (
        whole
        | experts
        | size
        | {"model": model.name, "gated_mlp": "true", "tied_embeddings": "false"}
        | cells
    )


@pytest.mark.parametrize(("name", "attention"), [("mixtral-8x7b", "gqa"), ("deepseek-v3", "mla")])
def test_models_of_experts_in_rows_are_the_shipped_ones(tmp_path, name, attention):
    """Experts, shared ones, dense layers before them, latent attention, modules that predict further
    tokens.
    """
    model = dp.load_model(name)
    (row,) = read_measurements(
        changed(TRAINING, tmp_path / "runs.csv", row_of(model, attention=attention))
    ).rows
    found, expected = inputs_of("training", row)[0], model
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    assert values(found) == values(expected)


@pytest.mark.slow
def test_rows_with_experts_are_estimated_as_the_library_does(tmp_path):
    """Experts over expert-parallel ranks, a shared one, and a dense layer before them."""
    cells = SPARSE | {"ep": 4, "expert_tp": 2}
    (row,) = read_measurements(changed(TRAINING, tmp_path / "runs.csv", cells)).rows
    model, system, strategy = inputs_of("training", row)
    assert (float(strategy.ep), float(strategy.expert_tp)) == (4, 2)
    dense, sparse = model.layers
    assert (float(dense.count), float(sparse.count), float(sparse.mixture.shared_ffn)) == (1, 47, 4096)
    report = training(model, system, strategy, Exact())
    (found,) = predict("training", [row])
    assert found.values["step_time_s"] == pytest.approx(float(report.time), rel=1e-9)
    assert found.values["reserved_memory_bytes"] == pytest.approx(
        float(report.memory.peak - report.memory.reserve), rel=1e-9
    )


@pytest.mark.slow
def test_inference_rows_are_estimated_as_the_library_does(tmp_path):
    cells = {
        "throughput_kind": "total",
        "throughput_tokens_per_s": 1,
        "batch": 4,
        "kv_dtype": "fp8",
        "devices_per_node": 1,
        "tp": 2,
        "n_devices": 2,
    }
    table = read_measurements(
        changed(INFERENCE, tmp_path / "runs.csv", cells, cells | {"throughput_kind": "output"})
    )
    total, output = predict("inference", table.rows)
    system = replace(dp.load_system("dgx-a100", 2, stack="tensorrt-llm-nemo"), {"network.nvlink.size": 1.0})
    strategy = {
        "tp": 2,
        "global_batch": 4,
        "sequence_length": 200,
        "output_length": 200,
        "precision": "fp16",
        "kv_precision": "fp8",
    }
    report = generate(dp.load_model("llama-2-7b"), system, dp.load_strategy(strategy), Exact())
    assert total.values["latency_s"] == pytest.approx(float(report.time), rel=1e-9)
    assert total.values["ttft_s"] == pytest.approx(float(report.time_to_first_token), rel=1e-9)
    assert total.values["tpot_s"] == pytest.approx(float(report.time_per_output_token), rel=1e-9)
    assert total.values["throughput_tokens_per_s"] == pytest.approx(4 * 400 / float(report.time), rel=1e-9)
    assert output.values["throughput_tokens_per_s"] == pytest.approx(4 * 200 / float(report.time), rel=1e-9)


def test_a_throughput_over_decode_passes_alone_has_no_prefill(tmp_path):
    """Such as that of a row whose throughput is its batch over its time per token, or one that says so."""
    cells = {"batch": 4, "n_devices": 1, "devices_per_node": 8, "tp": 1, "tpot_s": 0.02, "input_len": 2000}
    rows = [
        cells | {"throughput_tokens_per_s": 200.4},
        cells | {"throughput_tokens_per_s": 180},
        cells | {"throughput_tokens_per_s": 180, "throughput_kind": "decode"},
    ]
    table = read_measurements(changed(INFERENCE, tmp_path / "runs.csv", *rows))
    derived, whole, said = (each.values for each in predict("inference", table.rows))
    for decode in (derived, said):
        assert decode["throughput_tokens_per_s"] == pytest.approx(4 / decode["tpot_s"], rel=1e-9)
    generated = 4 * 200 / whole["latency_s"]
    assert whole["throughput_tokens_per_s"] == pytest.approx(generated, rel=1e-9)
    assert generated < 0.97 * 4 / whole["tpot_s"]


@pytest.mark.slow
def test_a_batch_beyond_the_cache_runs_in_rounds(tmp_path):
    """128 contexts of 4,096 tokens take 256 GiB of KV cache, of which an A100 has 80 GB less weights: engines
    with a paged cache let most of them wait; others run out of memory.
    """
    cells = {
        "batch": 128,
        "input_len": 2048,
        "output_len": 2048,
        "n_devices": 1,
        "devices_per_node": 8,
        "tp": 1,
    }
    frameworks = ("vLLM", "FasterTransformer")
    table = read_measurements(
        changed(INFERENCE, tmp_path / "runs.csv", *(cells | {"framework": name} for name in frameworks))
    )
    paged, static = predict("inference", table.rows)
    assert static.out_of_memory is True
    assert paged.out_of_memory is False
    fitting = 0
    for fitting in range(1, 129):
        at_once = dp.load_strategy(
            {"global_batch": fitting, "sequence_length": 2048, "output_length": 2048, "precision": "fp16"}
        )
        report = generate(
            dp.load_model("llama-2-7b"), dp.load_system("dgx-a100", 1, stack="vllm"), at_once, Exact()
        )
        if float(report.memory.excess) > 0:
            break
        time = float(report.time)
    assert paged.values["latency_s"] == pytest.approx(128 / (fitting - 1) * time, rel=1e-6)


def machine(system, precision: str, kv_precision: str) -> Machine:
    return Machine.of(system, Strategy(precision=precision, kv_precision=kv_precision), Exact())


def test_kernel_rows_are_estimated_as_the_library_does(tmp_path):
    """More rows than a block, on systems of two structures (three and four memory levels)."""
    hardware = {"a100-sxm4-80gb": "dgx-a100", "tpu-v4": "tpu-v4-pod"}
    cells = [
        {
            "id": i,
            "hardware": name,
            "dtype": dtype,
            "m": 2**i,
            "n": 4096,
            "k": 1000 + i,
            "batch": 3,
            "latency_s": 1,
        }
        for i, (name, dtype) in enumerate(
            [("a100-sxm4-80gb", "bf16"), ("tpu-v4", "int8"), ("a100-sxm4-80gb", "fp32")] * 4
        )
    ]
    cells += [cells[0] | {"id": f"more-{i}"} for i in range(BLOCK)]
    found = predict("gemm", read_measurements(write(tmp_path / "gemm.csv", cells)).rows)
    for row, prediction in zip(cells[:12], found, strict=False):
        device = machine(dp.load_system(hardware[row["hardware"]], stack="kernels"), row["dtype"], "bf16")
        sizes = (row["m"] * 1.0, row["n"] * 1.0, row["k"] * 1.0, 3.0)
        expected = gemm_work(Gemms.table({"product": sizes}), device).time[0]
        assert prediction.values["latency_s"] == pytest.approx(float(expected), rel=1e-9)
    assert len(found) == 12 + BLOCK
    assert {prediction.values["latency_s"] for prediction in found[12:]} == {found[0].values["latency_s"]}


@jax.jit
def attention_times(core: AttentionCore, device: Machine, kernel: Weights) -> dict[str, jax.Array]:
    """Seconds of an attention core by direction, from the operators that a step's report sums."""
    generated = generated_share(core, device)
    operators = attention_operators(
        core,
        kernel,
        Weights(jnp.stack([1 - generated, generated]), FUSED_KERNELS),
        element=Strategy(precision="fp16").activation_width,
        dropout=jnp.zeros(()),
        directions=("forward", "backward"),
    )
    timed = evaluate(operators, device)
    return {direction: timed.total(direction=direction).time for direction in ("forward", "backward")}


ATTENTION_ROWS = [
    # phase, q_len, kv_len, causal, dtype, kv_dtype, kernel; the stack that drives it
    (("prefill", 512, 512, "true", "fp8", "fp8", ""), None),
    (("prefill", 512, 512, "true", "bf16", "bf16", "TensorRT-LLM"), "tensorrt-llm-kernels"),
    (("decode", 1, 4096, "false", "bf16", "fp8", "any"), None),
    (("train_fwd", 512, 512, "true", "fp16", "fp16", "Standard"), "unfused-attention"),
    (("train_fwd", 512, 512, "false", "fp16", "fp16", "FlashAttention-2"), "flash-attention-2-hopper"),
    (("train_fwd_bwd", 512, 512, "true", "fp16", "fp16", "cuDNN"), "cudnn-attention"),
]


def test_attention_rows_are_estimated_as_the_library_does(tmp_path):
    plain = {"hardware": "h100-sxm5-80gb", "batch": 4, "heads": 32, "kv_heads": 8, "head_dim": 128}
    names = ("phase", "q_len", "kv_len", "causal", "dtype", "kv_dtype", "kernel")
    cases = [dict(zip(names, row, strict=True)) for row, _ in ATTENTION_ROWS]
    cells = [plain | case | {"id": index, "latency_s": 1} for index, case in enumerate(cases)]
    predictions = predict("attention", read_measurements(write(tmp_path / "attention.csv", cells)).rows)
    stacks = (stack for _, stack in ATTENTION_ROWS)
    for case, stack, prediction in zip(cases, stacks, predictions, strict=True):
        device = machine(dp.load_system("dgx-h100", stack=stack), case["dtype"], case["kv_dtype"])
        core = AttentionCore(
            sequences=jnp.asarray(4.0),
            queries=jnp.asarray(case["q_len"] * 1.0),
            context=jnp.asarray(case["kv_len"] * 1.0),
            heads=jnp.asarray(32.0),
            kv_heads=jnp.asarray(8.0),
            head_dim=jnp.asarray(128.0),
            causal=jnp.asarray(float(case["causal"] == "true")),
        )
        kernel = Weights(jnp.eye(2)[int(case["kernel"] != "Standard")], ("standard", "flash"))
        times = attention_times(core, device, kernel)
        expected = float(times["forward"] + times["backward"] * (case["phase"] == "train_fwd_bwd"))
        if stack == "tensorrt-llm-kernels":
            # Its rows rotate queries and keys in place, and copy keys and values to the cache.
            memory = device.accelerator.device_memory
            moved = 4 * 512 * 128 * 2 * (2 * 32 + 2 * 2 * 8)
            expected += float(moved / (memory.bandwidth * memory.efficiency) + memory.latency)
        assert prediction.values["latency_s"] == pytest.approx(expected, rel=1e-9), case


def test_collective_rows_are_estimated_as_the_library_does(tmp_path):
    plain = {
        "hardware": "h100-sxm5-80gb",
        "n_devices": 16,
        "devices_per_node": 4,
        "bytes": 2**24,
        "latency_s": 1,
    }
    alike = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
    cells = [plain | {"id": name, "collective": name} for name in (*alike, "send_recv")]
    found = predict("collectives", read_measurements(write(tmp_path / "collectives.csv", cells)).rows)
    system = replace(dp.load_system("dgx-h100", 16), {"network.nvlink.size": 4.0})
    group = place(system, jnp.asarray(16.0), jnp.asarray(1.0), Exact())
    for cell, prediction in zip(cells, found, strict=True):
        expected = COLLECTIVES[cell["collective"]](group, jnp.asarray(2.0**24)).time
        assert prediction.values["latency_s"] == pytest.approx(float(expected), rel=1e-9)
