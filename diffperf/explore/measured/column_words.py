"""Columns of tables of measurements in words, for the axes of figures."""

import re

from diffperf.explore.measured.schemas import SCHEMAS, unit_of
from diffperf.quantity import Quantity

# What the declarations of fields do not say, or say of other phases too.
_WORDS = {
    "batch": "sequences at once",
    "bytes": "bytes of the buffer",
    "concurrency": "requests in flight",
    "dense_layers": "layers with a dense MLP",
    "devices_per_node": "devices of a node",
    "ep": "expert-parallel degree",
    "expert_ffn": "inner dimension of an expert",
    "expert_tp": "tensor-parallel degree of experts",
    "global_batch": "sequences of a step",
    "input_len": "tokens of a prompt",
    "k": "inner dimension of the product",
    "kv_len": "keys and values of a sequence",
    "layers": "layers of the model",
    "m": "rows of the product",
    "max_num_seqs": "most sequences at once",
    "micro_batch": "sequences of a micro-batch",
    "n": "columns of the product",
    "n_devices": "devices",
    "output_len": "tokens of an output",
    "output_len_std": "standard deviation of an output's tokens",
    "q_len": "queries of a sequence",
    "seq_len": "tokens of a sequence",
    "zero_stage": "stage of ZeRO",
}
_SHORT = {
    "dtype": "format",
    "e2e": "time of a request",
    "kv": "KV",
    "len": "length",
    "mfu": "model FLOP utilization",
    "std": "standard deviation",
    "tflops": "TFLOP/s",
    "tpot": "time per output token",
    "ttft": "time to first token",
}
_SUFFIXES = {"s": "_s", "W": "_w", "J/token": "_j", "byte": "_bytes"}


def words(kind: str, column: str) -> str:
    """A column in words, such as "time to first token"; that of a table's own is its name."""
    if column in _WORDS:
        return _WORDS[column]
    declared = SCHEMAS[kind].get(column)
    if declared is not None and isinstance(declared.declared, Quantity) and declared.declared.doc:
        return re.split(r" \(|[:,] ", declared.declared.doc)[0]
    name = column.removesuffix(_SUFFIXES.get(unit(kind, column), "_"))
    return " ".join(_SHORT.get(word, word) for word in name.split("_"))


def unit(kind: str, column: str) -> str:
    """The unit of a column; empty for texts, counts (of tokens, too) and columns of a table's own."""
    declared = unit_of(kind, column) if column in SCHEMAS[kind] else ""
    return declared if declared != "token" else ""
