"""Which rows of measured tables are skipped, and the statistics of the errors of the others."""

import numpy as np
import pytest
from measured_cases import INFERENCE, SPARSE, TRAINING, changed, write

import diffperf as dp
from diffperf.explore.measured.statistics import Errors, Evaluation, OutOfMemory, Summary
from diffperf.explore.measured.validate import Validation, validate

# --- what is skipped, and why


@pytest.mark.slow
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
        (INFERENCE, {"batch": ""}, "batch unknown"),
        (INFERENCE, SPARSE | {"ep": 4}, "strategy.ep: not expert_tp·ep a divisor of the devices of a stage"),
        (INFERENCE, {"weight_dtype": "int3"}, "precision int3"),
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


def test_a_skipped_layout_says_what_it_has():
    rows = [
        Evaluation(
            {}, skipped="system.n_devices: not the product", found=f"{devices} devices", name=str(devices)
        )
        for devices in (4, 8)
    ]
    both, one = (Validation("training", [], some, []) for some in (rows, rows[1:]))
    assert both.described_skips == {"system.n_devices: not the product (such as 4 devices)": ["4", "8"]}
    assert one.described_skips == {"system.n_devices: not the product (found 8 devices)": ["8"]}
    assert both.skipped == {"system.n_devices: not the product": ["4", "8"]}


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
    """A micro-batch of 32 without recomputation overflows; the published run fits, whatever it says."""
    nothing = {"step_time_s": "", "tokens_per_s_per_device": "", "oom": "true"}
    heavy = {"recompute": "none", "micro_batch": 32, "global_batch": 32}
    table = changed(TRAINING, tmp_path / "runs.csv", nothing | heavy, nothing, {"group": "other"})
    found = validate(table).as_dict()
    assert found["overall"]["oom"] == {"n": 3, "accuracy": 2 / 3, "precision": 1.0, "recall": 0.5}
    assert found["groups"]["korthikanti"]["oom"]["n"] == 2
    assert "oom" not in found["groups"]["other"]
    assert found["groups"]["korthikanti"]["metrics"] == {}


def test_rows_that_do_not_go_together_are_named_and_count(tmp_path):
    """70 billion parameters in bf16 on one device, a prompt beyond the window, and an unknown framework."""
    row = {"model": "llama-3.1-8b", "hardware": "h100-sxm5-80gb", "n_devices": 1, "tp": 1, "batch": 16}
    row |= {"input_len": 1024, "output_len": 256, "framework": "vllm", "tpot_s": 0.0123}
    changes = [
        {"id": "fits"},
        {"id": "large", "model": "llama-3.1-70b"},
        {"id": "long", "batch": 1, "input_len": 131072},
        {"id": "mine", "framework": "myengine"},
        {"id": "skipped", "framework": "myengine", "batch": ""},
    ]
    found = validate(write(tmp_path / "runs.csv", [change | row | change for change in changes]))
    assert found.doubtful == {
        "timed, but too large for the memory of a device by the estimate": ["large"],
        "prompt and answer beyond the context window of llama-3.1-8b, 131,072 tokens": ["long"],
        'unknown framework "myengine": tensorrt-llm stands in': ["mine"],
    }
    assert found.summary().metrics["tpot_s"].n == 4
    assert found.as_dict()["doubtful"] == found.doubtful


def test_json_schema(tmp_path):
    changes = [
        {},
        {"group": "other", "hardware": "gb200", "grad_dtype_bytes": 1},
        {"step_time_s": "1 s"},
        {"group": "other", "id": "row-0"},
    ]
    found = validate(changed(TRAINING, tmp_path / "runs.csv", *changes))
    document = found.as_dict()
    assert list(document) == ["table", "groups", "overall", "rows"]
    assert document["table"] == "training"
    skipped = {"gradients of 1 bytes": 1, "id: duplicate": 1}
    assert document["groups"]["other"] == {"rows": 2, "skipped": skipped, "metrics": {}}
    assert set(document["groups"]["korthikanti"]) == {"rows", "skipped", "metrics"}
    assert document["overall"]["rows"] == 4
    assert sum(document["overall"]["skipped"].values()) == 3
    assert set(document["overall"]["metrics"]) == {"step_time_s", "tokens_per_s_per_device"}
    first, *others = document["rows"]
    assert first["measured"]["step_time_s"] == found.evaluations[0].measured["step_time_s"]
    error = first["predicted"]["step_time_s"] / first["measured"]["step_time_s"] - 1
    assert document["overall"]["metrics"]["step_time_s"]["bias"] == pytest.approx(error, rel=1e-12)
    assert {row["row"] for row in others} == {row.name for row in found.evaluations[1:]}
    assert all(row["skipped"] in document["overall"]["skipped"] for row in others)
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
    ("file", "column", "mean"), [(TRAINING, "step_time_s", 0.0247), (INFERENCE, "latency_s", 0.0229)]
)
def test_published_runs(file, column, mean):
    """Korthikanti et al. and NVIDIA's Llama-2 latencies from the rows alone: as from the shipped models."""
    found = validate(file).summary()
    assert found.skipped == {}
    assert found.metrics[column].mean_ape == pytest.approx(mean, abs=5e-4)
