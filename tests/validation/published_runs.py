"""From a row of a table of measured runs to the inputs of the estimator that describe it.

The tables in tests/data are verbatim rows of published measurements, in the columns of their source tables.
"""

import csv
from pathlib import Path

import equinox as eqx

import diffperf as dp
from diffperf.hardware.system import Stack, System
from diffperf.load import load
from diffperf.workload.model import Model
from diffperf.workload.strategy import Strategy

DATA = Path(__file__).parents[1] / "data"

MODELS = {
    "megatron-gpt-22b": "gpt3-22b",
    "megatron-gpt-175b": "gpt3-175b",
    "megatron-gpt-530b": "gpt3-530b",
    "megatron-gpt-1008b": "gpt3-1t",
}
SYSTEMS = {"a100-sxm4-80gb": "dgx-a100", "h100-sxm5-80gb": "dgx-h100"}
STACKS = {"Megatron-LM": "megatron-lm", "TensorRT-LLM (NeMo)": "tensorrt-llm"}


def rows(file: str) -> list[dict[str, str]]:
    """The rows of a table in tests/data, by column."""
    with (DATA / file).open(encoding="utf-8", newline="") as table:
        return list(csv.DictReader(table))


def model_of(row: dict[str, str]) -> Model:
    return dp.load_model(MODELS.get(row["model"], row["model"]))


def system_of(row: dict[str, str]) -> System:
    """The row's number of devices in its platform, driven by its framework."""
    system = dp.load_system(SYSTEMS[row["hardware"]], n_devices=float(row["n_devices"]))
    return eqx.tree_at(lambda s: s.stack, system, load(Stack, STACKS[row["framework"]]))


def training_strategy(row: dict[str, str]) -> Strategy:
    """Megatron-LM of 2022 reduces gradients after the backward pass, in the precision it accumulates them in."""
    whole = ("tp", "pp", "dp", "virtual_stages", "micro_batch", "global_batch")
    return dp.load_strategy(
        {name: int(row[name]) for name in whole}
        | {
            "sequence_length": int(row["seq_len"]),
            "sequence_parallel": row["sequence_parallel"] == "true",
            "recompute": row["recompute"],
            "attention": "flash" if row["flash_attention"] == "true" else "standard",
            "zero": row["zero_stage"],
            "precision": row["precision"],
            "gradient_precision": {"4": "fp32", "2": row["precision"]}[row["grad_dtype_bytes"]],
            "overlap_gradients": False,
        }
    )


def inference_strategy(row: dict[str, str]) -> Strategy:
    return dp.load_strategy(
        {
            "tp": int(row["tp"]),
            "pp": int(row["pp"]),
            "global_batch": int(row["batch"]),
            "sequence_length": int(row["input_len"]),
            "output_length": int(row["output_len"]),
            "attention": "flash" if row["flash_attention"] == "true" else "standard",
            "precision": row["activation_dtype"],
            "kv_precision": row["kv_dtype"],
        }
    )
