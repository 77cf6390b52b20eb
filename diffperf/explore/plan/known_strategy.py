"""How a software stack is known to train: fields of a strategy that a plan takes from the stack's file."""

from typing import Any

from diffperf.load import available, find, read_toml
from diffperf.software.stack import Stack

_ALWAYS = "always"


def known_fields(stack: Stack, precision: str, schedule: str) -> dict[str, Any]:
    """Fields of a strategy from the table `training` in the file of a shipped stack: those that always hold,
    and those that hold in a number format and under a pipeline schedule. Empty for other stacks.
    """
    name = str(stack.name)
    if name not in available("stacks"):
        return {}
    tables = read_toml(find(name, "stacks")).get("training", {})
    return {
        key: value for case in (_ALWAYS, precision, schedule) for key, value in tables.get(case, {}).items()
    }
