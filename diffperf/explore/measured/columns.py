"""The columns of the tables of measured runs, kernels and collectives, kind by kind.

Cells are bare numbers in SI units, `true`/`false`, or names; an empty cell is an unknown value.
"""

import dataclasses
import math
from typing import Any

from diffperf.quantity import Choice, Quantity, declaration
from diffperf.workload.model import Layers, Mixture, Model
from diffperf.workload.strategy import Strategy


@dataclasses.dataclass(frozen=True)
class Column:
    """What the cells of one column hold.

    - `declared`: a number (`Quantity`), or one of several names (`Choice`, whose off and on are written
      `false` and `true`); None for any text.
    - `needed`: whether the table has to have the column, and every row a value in it.
    - `default`: the value of an empty cell.
    - `measured`: whether the column holds results of measurements, which the estimator predicts.
    """

    declared: Quantity | Choice | None = None
    needed: bool = True
    default: Any = None
    measured: bool = False

    @property
    def expected(self) -> str:
        """What a cell should hold, for error messages."""
        match self.declared:
            case Quantity(unit=unit, bounds=(low, high), integer=integer):
                kind = "a whole number" if integer else f"a bare number in {unit}" if unit else "a number"
                return f"{kind} above 0" if math.isinf(high) else f"{kind} from {low:g} to {high:g}"
            case Choice(alternatives=("off", "on")):
                return "true or false"
            case Choice(alternatives=names):
                return "one of " + ", ".join(names)
        return "a name"


def _of(
    cls: type, name: str, low: float | None = None, *, needed: bool = True, default: Any = None
) -> Column:
    """A column that is a field of a module, with the field's declaration; `low` replaces its least value."""
    declared = declaration(cls.__dataclass_fields__[name])
    if low is not None and isinstance(declared, Quantity):
        declared = dataclasses.replace(declared, bounds=(low, declared.bounds[1]))
    return Column(declared, needed=needed, default=default)


def _number(unit: str, bounds: tuple[float, float], *, integer: bool) -> Quantity:
    """The declaration of a number that is no field of a module."""
    return Quantity(unit=unit, doc="", bounds=bounds, log=True, integer=integer, kind="input")


def _count(high: float = 1e9, low: float = 1, *, needed: bool = True, default: Any = None) -> Column:
    """A column of whole numbers."""
    return Column(_number("", (low, high), integer=True), needed=needed, default=default)


def _measured(unit: str) -> Column:
    """A column of measured values, which are positive."""
    above_zero = (math.ulp(0.0), math.inf)
    return Column(_number(unit, above_zero, integer=False), needed=False, measured=True)


def _optional(default: Any = None) -> Column:
    """A column of texts that a table need not have."""
    return Column(needed=False, default=default)


_FLAG = Choice(("off", "on"), "")
_COMMON = {
    "id": Column(),
    "group": _optional("all"),
    "source": _optional(),
    "confidence": _optional(),
    "assumptions": _optional(),
    "hardware": Column(),
}
_DEVICES = {"n_devices": _count(1e7), "devices_per_node": _count(1e7)}
_ARCHITECTURE = {
    "model": _optional(),
    "layers": _of(Layers, "count"),
    "hidden": _of(Model, "hidden"),
    "heads": _of(Layers, "heads"),
    "kv_heads": _of(Layers, "kv_heads"),
    "head_dim": _of(Layers, "head_dim"),
    "ffn": _of(Layers, "ffn"),
    "gated_mlp": Column(_FLAG),
    "vocab": _of(Model, "vocabulary"),
    "tied_embeddings": Column(_FLAG),
    "experts": _of(Mixture, "experts", 0, needed=False, default=0.0),
    "experts_per_token": _of(Mixture, "experts_per_token", 0, needed=False, default=0.0),
    "shared_experts": _count(1e3, 0, needed=False, default=0.0),
    "expert_ffn": _of(Layers, "ffn", 0, needed=False, default=0.0),
    "dense_layers": _count(1e3, 0, needed=False, default=0.0),
    "attention": Column(Choice(("mha", "gqa", "mqa", "mla"), "")),
}
_OUT_OF_MEMORY = {"oom": Column(_FLAG, needed=False)}

# The columns of every kind of table, in the order they are documented: the measured ones last, of which the
# first in a row is what a calibration fits.
SCHEMAS: dict[str, dict[str, Column]] = {
    "training": {
        **_COMMON,
        **_DEVICES,
        **_ARCHITECTURE,
        "precision": Column(),
        "seq_len": _of(Strategy, "sequence_length"),
        "tp": _of(Strategy, "tp"),
        "pp": _of(Strategy, "pp"),
        "dp": _of(Strategy, "dp"),
        "cp": _of(Strategy, "cp", needed=False, default=1.0),
        "ep": _count(1e5, needed=False, default=1.0),
        "expert_tp": _count(1e5, needed=False),
        "virtual_stages": _of(Strategy, "virtual_stages", needed=False),
        "sequence_parallel": Column(_FLAG),
        "zero_stage": _count(3, 0),
        "micro_batch": _of(Strategy, "micro_batch"),
        "global_batch": _of(Strategy, "global_batch"),
        "recompute": _of(Strategy, "recompute"),
        "flash_attention": Column(_FLAG, needed=False, default=True),
        "schedule": _optional("1f1b"),
        "grad_dtype_bytes": _count(8, needed=False, default=4.0),
        "framework": _optional(),
        "step_time_s": _measured("s"),
        "tokens_per_s_per_device": _measured("token/s"),
        "model_tflops_per_device": _measured("TFLOP/s"),
        "hardware_tflops_per_device": _measured("TFLOP/s"),
        "mfu": _measured(""),
        "peak_memory_bytes": _measured("byte"),
        "reserved_memory_bytes": _measured("byte"),
        **_OUT_OF_MEMORY,
    },
    "inference": {
        **_COMMON,
        **_DEVICES,
        **_ARCHITECTURE,
        "weight_dtype": Column(),
        "activation_dtype": Column(),
        "kv_dtype": Column(),
        "tp": _of(Strategy, "tp"),
        "pp": _of(Strategy, "pp"),
        "ep": _count(1e5, needed=False, default=1.0),
        "batch": _of(Strategy, "global_batch", needed=False),
        "concurrency": _count(1e6, needed=False),
        "input_len": _of(Strategy, "sequence_length"),
        "output_len": _of(Strategy, "output_length"),
        "framework": _optional(),
        "flash_attention": Column(_FLAG, needed=False, default=True),
        "latency_s": _measured("s"),
        "ttft_s": _measured("s"),
        "tpot_s": _measured("s"),
        "throughput_tokens_per_s": _measured("token/s"),
        "throughput_kind": Column(Choice(("output", "total"), ""), needed=False, default="output"),
        "peak_memory_bytes": _measured("byte"),
        **_OUT_OF_MEMORY,
    },
    "gemm": {
        **_COMMON,
        "dtype": Column(),
        "m": _count(),
        "n": _count(),
        "k": _count(),
        "batch": _count(needed=False, default=1.0),
        "layout": _optional(),
        "latency_s": _measured("s"),
    },
    "attention": {
        **_COMMON,
        "phase": Column(Choice(("prefill", "decode", "train_fwd", "train_fwd_bwd"), "")),
        "batch": _count(),
        "q_len": _count(),
        "kv_len": _count(),
        "heads": _of(Layers, "heads"),
        "kv_heads": _of(Layers, "kv_heads"),
        "head_dim": _of(Layers, "head_dim"),
        "causal": Column(_FLAG),
        "dtype": Column(),
        "kv_dtype": Column(),
        "kernel": _optional(),
        "latency_s": _measured("s"),
    },
    "collectives": {
        **_COMMON,
        **_DEVICES,
        "interconnect": _optional(),
        "collective": Column(),
        "bytes": _count(1e15),
        "library": _optional(),
        "latency_s": _measured("s"),
    },
}


# The column that names the software of a row. GEMMs have none: they are all driven by kernels alone.
SOFTWARE = {
    "training": "framework",
    "inference": "framework",
    "attention": "kernel",
    "collectives": "library",
}


def measured_columns(kind: str) -> list[str]:
    """The columns of a kind of table that hold results of measurements."""
    return [name for name, column in SCHEMAS[kind].items() if column.measured]
