"""The number formats of served rows: of the operands, of stored weights and of the KV cache."""

from collections.abc import Sequence
from typing import cast

from diffperf.explore.measured.stacking import format_name, precision, weights
from diffperf.explore.measured.table import Row
from diffperf.hardware.formats import PRECISION_BYTES, PRECISIONS
from diffperf.quantity import Choice, Weights, declaration
from diffperf.workload.strategy import Strategy

_OPERANDS = "operands"  # the alternative of `Strategy.weight_precision` for weights in the operands' format
_STORED = cast(Choice, declaration(Strategy.__dataclass_fields__["weight_precision"])).alternatives
_HALF_BYTE = 0.75  # bytes of an element below which a format counts as one of four bits with its scales


def weight_format(row: Row) -> str:
    """The format of the stored weights, by the name that strategies have for it."""
    return format_name(row["weight_dtype"])


def operand_format(row: Row) -> str:
    """The format of the operands: that of the activations; of the weights where a table says no other."""
    return format_name(row["activation_dtype"] or row["weight_dtype"])


def experts_alone(row: Row) -> bool:
    """Whether the format of the weights is that of the routed experts, and all else has 16 bits.

    So it is in published 4-bit checkpoints of models of experts: gpt-oss and AMD's DeepSeek-R1 in mxfp4,
    NVIDIA's DeepSeek-R1 in nvfp4, Kimi-K2 in int4.
    """
    width = PRECISION_BYTES.get(weight_format(row))
    return row["experts"] > 0 and width is not None and width < _HALF_BYTE


def unknown_format(row: Row) -> str | None:
    """The first number format of a row that the estimator does not know, as a reason to skip the row."""
    kv = format_name(row["kv_dtype"])
    named = [(weight_format(row), _STORED), (operand_format(row), PRECISIONS), (kv, PRECISIONS)]
    unknown = next((name for name, known in named if name not in known), None)
    if unknown is not None:
        return f"precision {unknown}"
    return f"{weight_format(row)} weights of the experts alone" if experts_alone(row) else None


def number_formats(rows: Sequence[Row]) -> dict[str, Weights]:
    """The fields of `Strategy` that say the number formats of rows, with a leading axis."""
    operands = [operand_format(row) for row in rows]
    stored = [
        _OPERANDS if weight_format(row) == operand else weight_format(row)
        for row, operand in zip(rows, operands, strict=True)
    ]
    return {
        "precision": weights(operands, PRECISIONS),
        "weight_precision": weights(stored, _STORED),
        "kv_precision": precision(rows, "kv_dtype"),
    }
