"""Rows that were measured and evaluated although something about them does not go together.

They stay in all statistics: published tables have runs beyond a model's context window, which random tokens
never miss, and runs that fit a device as closely as an estimate of memory can tell.
"""

from diffperf.explore.measured.implied import DRAFT_ACCEPTANCE, accepts_as_usual
from diffperf.explore.measured.named_model import named_model
from diffperf.explore.measured.platforms import Platforms
from diffperf.explore.measured.predictions import Prediction
from diffperf.explore.measured.stacking import software_of, system_of
from diffperf.explore.measured.table import Row

_GENERATED = ("inference", "serving", "energy")  # tables whose rows have prompts and answers


def doubts_of(row: Row, prediction: Prediction, platforms: Platforms) -> tuple[str, ...]:
    """What is doubtful about a measured row that was evaluated, in words that other rows share."""
    doubts = (
        "timed, but too large for the memory of a device by the estimate" if prediction.out_of_memory else "",
        _beyond_context(row),
        _accepted_drafts(row),
        _unknown_software(row, platforms),
    )
    return tuple(filter(None, doubts))


def _beyond_context(row: Row) -> str:
    """Sequences longer than the model is made for. Training is free to extend the window."""
    model = named_model(row.values.get("model")) if row.kind in _GENERATED else None
    if model is None:
        return ""
    tokens, longest = (row["input_len"] or 0) + (row["output_len"] or 0), float(model.longest_sequence)
    if tokens <= longest:
        return ""
    return f"prompt and answer beyond the context window of {model.name}, {longest:,.0f} tokens"


def _accepted_drafts(row: Row) -> str:
    """Drafted tokens of which the table does not say how many the model accepted."""
    written = {**row.values, "tokens_per_step": row.cells.get("tokens_per_step") or None}
    if not accepts_as_usual(row.kind, written):
        return ""
    return f"accepted drafts unknown: {DRAFT_ACCEPTANCE:.0%} of each after those before are assumed"


def _unknown_software(row: Row, platforms: Platforms) -> str:
    """A name in the column `framework` that no stack claims, and the stack that stood in for it."""
    column, name = row.software
    if column != "framework" or not name or software_of(row, platforms) is not None:
        return ""
    system = system_of(row, platforms)
    stack = system.stack if row.kind == "training" else system.inference_stack
    return f'unknown framework "{name}": {stack.name} stands in'
