"""The columns of every kind of table: measured runs, served runs, kernels and collectives."""

from diffperf.explore.measured.columns import (
    FLAG,
    Column,
    count_column,
    field_column,
    measured_column,
    number_column,
    text_column,
)
from diffperf.explore.measured.named_model import HYBRID
from diffperf.quantity import Choice, Quantity
from diffperf.workload.model import Layers, Mixture, Model
from diffperf.workload.requests import Requests
from diffperf.workload.strategy import Strategy

# What the throughput of a batch counts: output tokens, those of prompts too, or output tokens in the time of
# decode passes alone.
THROUGHPUT_KINDS = ("output", "total", "decode")

_COMMON = {
    "id": text_column(),  # by default the number of the line
    "group": text_column("all"),
    "source": text_column(),
    "confidence": text_column(),
    "assumptions": text_column(),
    "hardware": Column(),
}
# By default as many devices as the layout has, in nodes of the hardware's own size.
_DEVICES = {"n_devices": count_column(1e7, needed=False), "devices_per_node": count_column(1e7, needed=False)}
# What a row says of its model. Where the column `model` names a shipped config or the file of one, the others
# may be left out.
ARCHITECTURE = {
    "model": text_column(),
    "layers": field_column(Layers, "count", needed=False),
    "hidden": field_column(Model, "hidden", needed=False),
    "heads": field_column(Layers, "heads", needed=False),
    "kv_heads": field_column(Layers, "kv_heads", needed=False),
    "head_dim": field_column(Layers, "head_dim", needed=False),
    "ffn": field_column(Layers, "ffn", needed=False),
    "gated_mlp": Column(FLAG, needed=False),
    "vocab": field_column(Model, "vocabulary", needed=False),
    "tied_embeddings": Column(FLAG, needed=False),
    "experts": field_column(Mixture, "experts", 0, needed=False, default=0.0),
    "experts_per_token": field_column(Mixture, "experts_per_token", 0, needed=False, default=0.0),
    "shared_experts": count_column(1e3, 0, needed=False, default=0.0),
    "expert_ffn": field_column(Layers, "ffn", 0, needed=False, default=0.0),
    "dense_layers": count_column(1e3, 0, needed=False, default=0.0),
    "attention": Column(Choice(("mha", "gqa", "mqa", "mla", HYBRID), ""), needed=False),
}
_CAPPED_TOKENS = 1e6  # more than any context
# The layout of one pool of a server, which is the whole server where prompts and outputs share the devices.
_POOL = {
    "devices": count_column(1e7, needed=False),
    "tp": count_column(1e5),
    "ep": count_column(1e5, needed=False, default=1.0),
    "dp_attention": Column(FLAG, needed=False, default=False),
    "workers": count_column(1e5, needed=False, default=1.0),
}
# How an engine that serves clients was started: the steps for which it lets prompts wait for others, and the
# most tokens of a step.
_ENGINE = {
    "batch_wait": field_column(Requests, "batch_wait", needed=False, default=0.0),
    "max_num_batched_tokens": field_column(Requests, "chunk", needed=False),
}
# How unequally the tokens of served models visit experts; by default as a strategy has it.
_ROUTER = {
    "expert_popularity_spread": field_column(
        Strategy,
        "expert_popularity_spread",
        needed=False,
        default=Strategy.__dataclass_fields__["expert_popularity_spread"].default,
    )
}
_OUT_OF_MEMORY = {"oom": Column(FLAG, needed=False)}

# The columns of every kind of table, in the order they are documented: the measured ones last. See
# `speed_columns` for those that a calibration fits.
SCHEMAS: dict[str, dict[str, Column]] = {
    "training": {
        **_COMMON,
        **_DEVICES,
        **ARCHITECTURE,
        "precision": text_column("bf16"),
        "seq_len": field_column(Strategy, "sequence_length"),
        "tp": field_column(Strategy, "tp", needed=False, default=1.0),
        "pp": field_column(Strategy, "pp", needed=False, default=1.0),
        "dp": field_column(Strategy, "dp", needed=False),
        "cp": field_column(Strategy, "cp", needed=False, default=1.0),
        "ep": count_column(1e5, needed=False, default=1.0),
        "expert_tp": count_column(1e5, needed=False),
        "virtual_stages": field_column(Strategy, "virtual_stages", needed=False),
        "sequence_parallel": Column(FLAG, needed=False, default=True),
        "zero_stage": count_column(3, 0, needed=False, default=0.0),
        "micro_batch": field_column(Strategy, "micro_batch", needed=False, default=1.0),
        "global_batch": field_column(Strategy, "global_batch"),
        "recompute": field_column(Strategy, "recompute", needed=False, default="none"),
        "flash_attention": Column(FLAG, needed=False, default=True),
        "schedule": text_column("1f1b"),
        "grad_dtype_bytes": count_column(8, needed=False),
        "framework": text_column(),
        "step_time_s": measured_column("s"),
        "tokens_per_s_per_device": measured_column("token/s"),
        "model_tflops_per_device": measured_column("TFLOP/s"),
        "hardware_tflops_per_device": measured_column("TFLOP/s"),
        "mfu": measured_column(""),
        "peak_memory_bytes": measured_column("byte"),
        "reserved_memory_bytes": measured_column("byte"),
        **_OUT_OF_MEMORY,
    },
    "inference": {
        **_COMMON,
        **_DEVICES,
        **ARCHITECTURE,
        **_ROUTER,
        "weight_dtype": text_column("bf16"),
        "activation_dtype": text_column("bf16"),
        "kv_dtype": text_column("bf16"),
        "tp": field_column(Strategy, "tp", needed=False, default=1.0),
        "pp": field_column(Strategy, "pp", needed=False, default=1.0),
        "ep": count_column(1e5, needed=False, default=1.0),
        "batch": field_column(Strategy, "global_batch", needed=False),
        "concurrency": count_column(1e6, needed=False),
        "input_len": field_column(Strategy, "sequence_length"),
        "output_len": field_column(Strategy, "output_length"),
        "framework": text_column(),
        **_ENGINE,
        "random_range_ratio": number_column("", 0.01, 1, needed=False),
        "flash_attention": Column(FLAG, needed=False, default=True),
        "latency_s": measured_column("s"),
        "ttft_s": measured_column("s"),
        "tpot_s": measured_column("s"),
        "throughput_tokens_per_s": measured_column("token/s"),
        "throughput_kind": Column(Choice(THROUGHPUT_KINDS, ""), needed=False, default="output"),
        "peak_memory_bytes": measured_column("byte"),
        **_OUT_OF_MEMORY,
    },
    "serving": {
        **_COMMON,
        "n_devices": count_column(1e7),
        "devices_per_node": count_column(1e7, needed=False),
        **ARCHITECTURE,
        **_ROUTER,
        "source_model": text_column(),
        "weight_dtype": Column(),
        "activation_dtype": text_column(),
        "kv_dtype": text_column("bf16"),
        "framework": text_column(),
        **_ENGINE,
        "spec_method": text_column("none"),
        "spec_tokens": count_column(64, 0, needed=False, default=0.0),
        "tokens_per_step": number_column("token", 1, 64, needed=False),
        "disaggregated": Column(FLAG, needed=False, default=False),
        **{f"prefill_{name}": column for name, column in _POOL.items()},
        **{f"decode_{name}": column for name, column in _POOL.items()},
        "concurrency": count_column(1e6),
        "input_len": field_column(Strategy, "sequence_length"),
        "output_len": field_column(Strategy, "output_length"),
        "input_len_mean": number_column("token", 1, _CAPPED_TOKENS, needed=False),
        "output_len_mean": number_column("token", 1, _CAPPED_TOKENS, needed=False),
        "date": text_column(),
        "latest": Column(FLAG, needed=False),
        "tpot_median_s": measured_column("s"),
        "tpot_mean_s": measured_column("s"),
        "tpot_p99_s": measured_column("s"),
        "ttft_median_s": measured_column("s"),
        "ttft_mean_s": measured_column("s"),
        "ttft_p99_s": measured_column("s"),
        "e2e_median_s": measured_column("s"),
        "e2e_mean_s": measured_column("s"),
        "e2e_p99_s": measured_column("s"),
        "throughput_tokens_per_s_per_device": measured_column("token/s"),
        "output_throughput_tokens_per_s_per_device": measured_column("token/s"),
        "input_throughput_tokens_per_s_per_device": measured_column("token/s"),
        "power_mean_w_per_device": measured_column("W"),
    },
    "energy": {
        **_COMMON,
        **_DEVICES,
        **ARCHITECTURE,
        **_ROUTER,
        "hf_model": text_column(),
        "weight_dtype": Column(),
        "activation_dtype": text_column(),
        "kv_dtype": Column(),
        "tp": field_column(Strategy, "tp"),
        "pp": field_column(Strategy, "pp"),
        "ep": count_column(1e5, needed=False, default=1.0),
        "dp": field_column(Strategy, "dp", needed=False, default=1.0),
        "task": text_column(),
        "framework": text_column(),
        "max_num_seqs": count_column(1e6),
        "batch": number_column("", 0.1, 1e6),
        "input_len": number_column("token", 1, _CAPPED_TOKENS, needed=False),
        "output_len": number_column("token", 1, _CAPPED_TOKENS),
        "output_len_std": number_column("token", 0, _CAPPED_TOKENS, needed=False, default=0.0),
        "n_requests": count_column(1e9, needed=False),
        "flags": text_column(),
        "tpot_s": measured_column("s"),
        "tpot_p90_s": measured_column("s"),
        "tpot_p99_s": measured_column("s"),
        "throughput_tokens_per_s": measured_column("token/s"),
        "power_w": measured_column("W"),
        "power_per_device_w": measured_column("W"),
        "energy_per_token_j": measured_column("J/token"),
    },
    "gemm": {
        **_COMMON,
        "dtype": Column(),
        "m": count_column(),
        "n": count_column(),
        "k": count_column(),
        "batch": count_column(needed=False, default=1.0),
        "layout": text_column(),
        "duration_s": number_column("s", 1e-6, 1e6, needed=False),
        "latency_s": measured_column("s"),
    },
    "attention": {
        **_COMMON,
        "phase": Column(Choice(("prefill", "decode", "train_fwd", "train_fwd_bwd"), "")),
        "batch": count_column(),
        "q_len": count_column(),
        "kv_len": count_column(),
        "heads": field_column(Layers, "heads"),
        "kv_heads": field_column(Layers, "kv_heads"),
        "head_dim": field_column(Layers, "head_dim"),
        "causal": Column(FLAG),
        "dtype": Column(),
        "kv_dtype": Column(),
        "kernel": text_column(),
        "latency_s": measured_column("s"),
    },
    "collectives": {
        **_COMMON,
        "n_devices": count_column(1e7),
        "devices_per_node": count_column(1e7, needed=False),
        "interconnect": text_column(),
        "collective": Column(),
        "bytes": count_column(1e15),
        "library": text_column(),
        "latency_s": measured_column("s"),
    },
}


# The column that names the software of a row. GEMMs have none: they are all driven by kernels alone.
SOFTWARE = {
    "training": "framework",
    "inference": "framework",
    "serving": "framework",
    "energy": "framework",
    "attention": "kernel",
    "collectives": "library",
}


# The units of results that say how fast a run or a kernel was; "" is a utilization.
_OF_SPEED = ("s", "token/s", "TFLOP/s", "")


def measured_columns(kind: str) -> list[str]:
    """The columns of a kind of table that hold results of measurements."""
    return [name for name, column in SCHEMAS[kind].items() if column.measured]


def unit_of(kind: str, column: str) -> str:
    """The unit of a measured column."""
    declared = SCHEMAS[kind][column].declared
    return declared.unit if isinstance(declared, Quantity) else ""


def speed_columns(kind: str) -> list[str]:
    """The measured columns of a kind of table that say how fast a row was.

    A calibration fits the first of them that a row has and the estimator predicts, of the times per token
    and to first token both.
    """
    return [name for name in measured_columns(kind) if unit_of(kind, name) in _OF_SPEED]
