"""Predictions for tables of measurements against the library asked row by row, and the statistics of their errors."""

import csv
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import leaves, training

import diffperf as dp
from diffperf.estimate.kernels.attention import attention_backward, attention_forward
from diffperf.estimate.kernels.gemm import gemm_work
from diffperf.estimate.kernels.roofline import Machine
from diffperf.estimate.network.collectives import place
from diffperf.explore.measured.predictions import BLOCK, inputs_of, predict
from diffperf.explore.measured.table import read_measurements
from diffperf.explore.measured.validate import Errors, Evaluation, OutOfMemory, Summary, Validation, validate
from diffperf.quantity import replace, walk
from diffperf.relax import Exact
from diffperf.workload.operators import AttentionCore, Gemms
from diffperf.workload.strategy import Strategy

DATA = Path(__file__).parents[1] / "data"
TRAINING, INFERENCE = DATA / "korthikanti_training.csv", DATA / "nvidia_llama2_inference.csv"
SPARSE = {"experts": 8, "experts_per_token": 2, "expert_ffn": 4096, "shared_experts": 1, "dense_layers": 1}


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    return path


def changed(source: Path, target: Path, *changes: dict[str, object]) -> Path:
    """The first row of a table once for each of some changes of its cells."""
    with source.open(encoding="utf-8", newline="") as file:
        first = next(csv.DictReader(file))
    return write(target, [first | {"id": f"row-{i}"} | change for i, change in enumerate(changes)])


# --- predictions


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
    report = dp.training_step(model, system, dp.load_strategy(strategy))
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
    """Experts, shared ones, dense layers before them, latent attention, modules that predict further tokens."""
    model = dp.load_model(name)
    (row,) = read_measurements(
        changed(TRAINING, tmp_path / "runs.csv", row_of(model, attention=attention))
    ).rows
    found, expected = inputs_of("training", row)[0], model
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    assert values(found) == values(expected)


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
    system = replace(dp.load_system("dgx-a100", 2, stack="tensorrt-llm"), {"network.nvlink.size": 1.0})
    strategy = {
        "tp": 2,
        "global_batch": 4,
        "sequence_length": 200,
        "output_length": 200,
        "precision": "fp16",
        "kv_precision": "fp8",
    }
    report = dp.generate(dp.load_model("llama-2-7b"), system, dp.load_strategy(strategy))
    assert total.values["latency_s"] == pytest.approx(float(report.time), rel=1e-9)
    assert total.values["ttft_s"] == pytest.approx(float(report.time_to_first_token), rel=1e-9)
    assert total.values["tpot_s"] == pytest.approx(float(report.time_per_output_token), rel=1e-9)
    assert total.values["throughput_tokens_per_s"] == pytest.approx(4 * 400 / float(report.time), rel=1e-9)
    assert output.values["throughput_tokens_per_s"] == pytest.approx(4 * 200 / float(report.time), rel=1e-9)


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
        expected = gemm_work(Gemms.table((row["m"] * 1.0, row["n"] * 1.0, row["k"] * 1.0, 3.0)), device).time[
            0
        ]
        assert prediction.values["latency_s"] == pytest.approx(float(expected), rel=1e-9)
    assert len(found) == 12 + BLOCK
    assert {prediction.values["latency_s"] for prediction in found[12:]} == {found[0].values["latency_s"]}


def test_attention_rows_are_estimated_as_the_library_does(tmp_path):
    plain = {
        "hardware": "h100-sxm5-80gb",
        "batch": 4,
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "latency_s": 1,
    }
    names = ("phase", "q_len", "kv_len", "causal", "dtype", "kv_dtype", "kernel")
    rows = [
        ("prefill", 512, 512, "true", "fp8", "fp8", ""),
        ("prefill", 512, 512, "true", "bf16", "bf16", "TensorRT-LLM"),
        ("decode", 1, 4096, "false", "bf16", "fp8", "any"),
        ("train_fwd", 512, 512, "true", "fp16", "fp16", "Standard"),
        ("train_fwd", 512, 512, "false", "fp16", "fp16", "FlashAttention-2"),
        ("train_fwd_bwd", 512, 512, "true", "fp16", "fp16", "cuDNN"),
    ]
    stacks = (None, "tensorrt-llm-kernels", None, None, "flash-attention-2-hopper", "cudnn-attention")
    cases = [dict(zip(names, row, strict=True)) for row in rows]
    cells = [plain | case | {"id": i} for i, case in enumerate(cases)]
    found = predict("attention", read_measurements(write(tmp_path / "attention.csv", cells)).rows)
    for case, stack, prediction in zip(cases, stacks, found, strict=True):
        device = machine(dp.load_system("dgx-h100", stack=stack), case["dtype"], case["kv_dtype"])
        sizes = map(jnp.asarray, (4.0, case["q_len"] * 1.0, case["kv_len"] * 1.0, 32.0, 8.0, 128.0))
        core = AttentionCore(*sizes, causal=float(case["causal"] == "true"))
        kernel = np.eye(2)[int(case["kernel"] != "Standard")]
        expected = attention_forward(core, jnp.zeros(()), device, kernel).time
        if case["phase"] == "train_fwd_bwd":
            expected += attention_backward(core, jnp.zeros(()), device, kernel).time
        if (
            stack == "tensorrt-llm-kernels"
        ):  # its rows rotate queries and keys in place, and copy keys and values to the cache
            memory = device.accelerator.device_memory
            moved = 4 * 512 * 128 * 2 * (2 * 32 + 2 * 2 * 8)
            expected += moved / (memory.bandwidth * memory.efficiency) + memory.latency
        assert prediction.values["latency_s"] == pytest.approx(float(expected), rel=1e-9)


def test_collective_rows_are_estimated_as_the_library_does(tmp_path):
    plain = {
        "hardware": "h100-sxm5-80gb",
        "n_devices": 16,
        "devices_per_node": 4,
        "bytes": 2**24,
        "latency_s": 1,
    }
    alike = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
    names = {name: name for name in alike} | {"send_recv": "send"}
    cells = [plain | {"id": name, "collective": name} for name in names]
    found = predict("collectives", read_measurements(write(tmp_path / "collectives.csv", cells)).rows)
    system = replace(dp.load_system("dgx-h100", 16), {"network.nvlink.size": 4.0})
    group = place(system, jnp.asarray(16.0), jnp.asarray(1.0), Exact())
    for method, prediction in zip(names.values(), found, strict=True):
        assert prediction.values["latency_s"] == pytest.approx(
            float(getattr(group, method)(2.0**24).time), rel=1e-9
        )


# --- what is skipped, and why


@pytest.mark.parametrize(
    ("source", "cells", "reason"),
    [
        (TRAINING, {"attention": "mla"}, "latent attention (MLA) of a model that is not shipped"),
        (TRAINING, SPARSE | {"ep": 3}, "strategy.ep: not a divisor of the experts"),
        (TRAINING, {"cp": 2}, "system.n_devices: not the product of the degrees"),
        (TRAINING, {"precision": "int3"}, "precision int3"),
        (TRAINING, {"schedule": "wave"}, "schedule wave"),
        (TRAINING, {"grad_dtype_bytes": 1}, "gradients of 1 bytes"),
        (TRAINING, {"pp": 2, "tp": 4, "virtual_stages": ""}, "virtual stages unknown"),
        (TRAINING, {"n_devices": 16}, "system.n_devices: not the product of the degrees"),
        (TRAINING, {"step_time_s": "", "tokens_per_s_per_device": ""}, "nothing measured"),
        (INFERENCE, {"batch": "", "concurrency": 8}, "continuous batching (concurrency)"),
        (INFERENCE, {"batch": ""}, "batch unknown"),
        (INFERENCE, SPARSE | {"ep": 4}, "expert parallelism (ep > 1)"),
        (INFERENCE, {"weight_dtype": "q4_k_m"}, "weights in q4_k_m, activations in fp16"),
        (INFERENCE, {"weight_dtype": "q8_0", "activation_dtype": "q8_0"}, "precision q8_0"),
        (INFERENCE, {"kv_dtype": "q8_0"}, "precision q8_0"),
    ],
)
def test_what_cannot_be_represented_is_counted(tmp_path, source, cells, reason):
    found = validate(changed(source, tmp_path / "runs.csv", {}, cells)).summary()
    assert (found.rows, found.skipped) == (2, {reason: 1})
    assert {errors.n for errors in found.metrics.values()} == {1}


@pytest.mark.parametrize(
    ("cells", "reason"),
    [({"collective": "gather"}, "collective gather")],
)
def test_collectives_that_cannot_be_represented(tmp_path, cells, reason):
    row = {
        "id": 1,
        "hardware": "h100-sxm5-80gb",
        "n_devices": 2,
        "devices_per_node": 2,
        "interconnect": "nvlink",
    }
    row |= {"collective": "all_reduce", "bytes": 1024, "latency_s": 1e-5}
    assert validate(write(tmp_path / "collectives.csv", [row | cells])).summary().skipped == {reason: 1}


# --- statistics


def evaluation(group: str, measured: float, predicted: float, **more) -> Evaluation:
    return Evaluation(
        {"group": group}, {"step_time_s": measured}, {"step_time_s": predicted, "mfu": 0.5}, **more
    )


def test_error_statistics():
    measured, predicted = np.array([1.0, 2.0, 4.0, 8.0, 10.0]), np.array([1.1, 1.8, 4.0, 12.0, 5.0])
    rows = [evaluation("a", *pair) for pair in zip(measured, predicted, strict=True)]
    found = Summary.of(rows, ["step_time_s", "mfu"])
    errors = np.array([0.1, -0.1, 0.0, 0.5, -0.5])
    assert list(found.metrics) == ["step_time_s"]
    assert found.metrics["step_time_s"].n == 5
    assert found.metrics["step_time_s"].mean_ape == pytest.approx(np.mean(np.abs(errors)))
    assert found.metrics["step_time_s"].median_ape == pytest.approx(0.1)
    assert found.metrics["step_time_s"].p90_ape == pytest.approx(np.quantile(np.abs(errors), 0.9))
    assert found.metrics["step_time_s"].bias == pytest.approx(0.0, abs=1e-12)
    assert Errors.of(predicted * 1.2, measured).bias == pytest.approx(0.2)


def test_out_of_memory_confusion():
    foretold, happened = np.array([1, 1, 1, 0, 0, 0, 0, 0], bool), np.array([1, 1, 0, 1, 1, 0, 0, 0], bool)
    assert OutOfMemory.of(foretold, happened) == OutOfMemory(8, 5 / 8, 2 / 3, 2 / 4)
    assert OutOfMemory.of(~foretold & False, happened) == OutOfMemory(8, 0.5, None, 0.0)


def test_out_of_memory_of_a_table(tmp_path):
    """A micro-batch of 32 without recomputation overflows; the published run fits, whatever its label says."""
    nothing = {"step_time_s": "", "tokens_per_s_per_device": "", "oom": "true"}
    heavy = {"recompute": "none", "micro_batch": 32, "global_batch": 32}
    table = changed(TRAINING, tmp_path / "runs.csv", nothing | heavy, nothing, {"group": "other"})
    found = validate(table).as_dict()
    assert found["overall"]["oom"] == {"n": 3, "accuracy": 2 / 3, "precision": 1.0, "recall": 0.5}
    assert found["groups"]["korthikanti"]["oom"]["n"] == 2
    assert "oom" not in found["groups"]["other"]
    assert found["groups"]["korthikanti"]["metrics"] == {}


def test_json_schema(tmp_path):
    changes = [
        {},
        {"group": "other", "hardware": "gb200", "grad_dtype_bytes": 1},
        {"step_time_s": "1 s"},
        {"group": "other", "id": "row-0"},
    ]
    found = validate(changed(TRAINING, tmp_path / "runs.csv", *changes))
    document = found.as_dict()
    assert list(document) == ["table", "groups", "overall"]
    assert document["table"] == "training"
    skipped = {"gradients of 1 bytes": 1, "id: duplicate": 1}
    assert document["groups"]["other"] == {"rows": 2, "skipped": skipped, "metrics": {}}
    assert set(document["groups"]["korthikanti"]) == {"rows", "skipped", "metrics"}
    assert document["overall"]["rows"] == 4
    assert sum(document["overall"]["skipped"].values()) == 3
    assert set(document["overall"]["metrics"]) == {"step_time_s", "tokens_per_s_per_device"}
    assert set(document["overall"]["metrics"]["step_time_s"]) == {
        "n",
        "mean_ape",
        "median_ape",
        "p90_ape",
        "bias",
    }
    assert [fault.line for fault in found.faults] == [4, 5]
    assert list(found.as_dict("hardware")["groups"]) == ["a100-sxm4-80gb", "gb200"]


def test_groups_of_an_unknown_column():
    with pytest.raises(dp.ConfigError, match='did you mean "hardware"'):
        Validation("gemm", ["hardware", "m"], [], []).by("hardwear")


@pytest.mark.parametrize(
    ("file", "column", "mean"), [(TRAINING, "step_time_s", 0.0246), (INFERENCE, "latency_s", 0.0508)]
)
def test_published_runs(file, column, mean):
    """Korthikanti et al. and NVIDIA's Llama-2 latencies from the rows alone: as from the shipped models."""
    found = validate(file).summary()
    assert found.skipped == {}
    assert found.metrics[column].mean_ape == pytest.approx(mean, abs=5e-4)
