"""The number formats of served rows: of the operands, of stored weights and of the KV cache."""

from collections.abc import Sequence

from diffperf.explore.measured.stacking import format_name, precision, weights
from diffperf.explore.measured.table import Row
from diffperf.hardware.formats import PRECISION_BYTES, PRECISIONS, STORED
from diffperf.quantity import Weights

_FOUR_BITS = tuple(name for name, width in PRECISION_BYTES.items() if 0.5 <= width < 0.75)
# Models whose narrow weights are multiplied in 16 bits, where a table does not name the activations' format:
# gpt-oss stores its experts in mxfp4 (arXiv 2508.10925 §2.1) and runs in bf16.
_STORED_NARROW = ("gpt-oss",)


def weight_format(row: Row) -> str:
    """The format of the stored weights, by the name that strategies have for it."""
    return format_name(row["weight_dtype"])


def operand_format(row: Row) -> str:
    """The format of the operands: that of the activations; of the weights where a table says no other."""
    if row["activation_dtype"]:
        return format_name(row["activation_dtype"])
    return "bf16" if str(row["model"]).startswith(_STORED_NARROW) else weight_format(row)


def experts_alone(row: Row) -> bool:
    """Whether the formats of a row are those of the routed experts, and all other weights have 16 bits.

    So it is in published 4-bit checkpoints of models of experts: gpt-oss and AMD's DeepSeek-R1 in mxfp4,
    NVIDIA's DeepSeek-R1 in nvfp4, Kimi-K2 in int4.
    """
    return row["experts"] > 0 and weight_format(row) in _FOUR_BITS


def unknown_format(row: Row) -> str | None:
    """The first number format of a row that the estimator does not know, as a reason to skip the row."""
    kv = format_name(row["kv_dtype"])
    named = [(weight_format(row), STORED), (operand_format(row), PRECISIONS), (kv, PRECISIONS)]
    return next((f"precision {name}" for name, known in named if name not in known), None)


def number_formats(rows: Sequence[Row]) -> dict[str, Weights]:
    """The fields of `Strategy` that say the number formats of rows, with a leading axis."""
    fields: dict[str, list[str]] = {}
    for row in rows:
        for name, chosen in _formats(row).items():
            fields.setdefault(name, []).append(chosen)
    alternatives = {
        "precision": PRECISIONS,
        "weight_precision": ("operands", *STORED),
        "expert_precision": ("linear", *PRECISIONS),
        "expert_weight_precision": ("operands", *STORED),
    }
    formats = {name: weights(chosen, alternatives[name]) for name, chosen in fields.items()}
    return {**formats, "kv_precision": precision(rows, "kv_dtype")}


def _formats(row: Row) -> dict[str, str]:
    """The alternatives of the fields of `Strategy` that say the formats of a row's weights and operands."""
    operands, stored = operand_format(row), weight_format(row)
    own = "operands" if stored == operands else stored
    if not experts_alone(row):
        linear = {"precision": operands, "weight_precision": own}
        return linear | {
            "expert_precision": "linear",
            "expert_weight_precision": "operands",
        }
    is_wide = PRECISION_BYTES[operands] >= PRECISION_BYTES["bf16"]
    return {
        "precision": operands if is_wide else "bf16",
        "weight_precision": "operands",
        "expert_precision": "linear" if is_wide else operands,
        "expert_weight_precision": own,
    }
