"""The config of a software stack with fitted values, for --stack and for tables that name its file."""

import datetime
from pathlib import Path

import tomlkit
from tomlkit.items import Item

from diffperf import units
from diffperf.explore.calibrate.calibrated import Calibrated
from diffperf.explore.calibrate.calibration_file import quantity_text, write_whole
from diffperf.explore.calibrate.cross_validation import GroupErrors
from diffperf.explore.calibrate.parameters import Parameter
from diffperf.load import find, load
from diffperf.software.stack import Stack


def write_stack(result: Calibrated, stack: str, path: str | Path, date: datetime.date | None = None) -> Stack:
    """Writes the config of a stack with fitted values, all of it or nothing, and returns the stack.

    **Arguments:**

    - `result`: the fit of parameters of the stack (`diffperf.explore.calibrate.calibrate.calibrate_stack`).
    - `stack`: the name or the file of the stack, whose other values and comments are kept.
    - `date`: the day that the file names; today's by default.

    **Raises:** `ConfigError` for a fit that explains nothing, of which nothing is written.
    """
    result.check_explains()
    path = Path(path)
    write_whole(path, stack_text(result, stack, date or datetime.date.today()))
    return load(Stack, str(path.absolute()))


def stack_text(result: Calibrated, stack: str, date: datetime.date) -> str:
    """The config as TOML: that of the stack, with the fitted values in place of its own."""
    config = tomlkit.parse(find(stack, "stacks").read_text(encoding="utf-8"))
    for parameter in result.parameters:
        key = parameter.path.removeprefix("stack.")
        config[key] = _item(quantity_text(parameter.after, parameter.declared), _remark(parameter))
    # What the file says of its names in tables is of the stack that it was made from.
    names = config.get("measured", {})
    for key in ("framework", "library", "kernel", "table", "replaces", "on"):
        names.pop(key, None)
    if not names:
        config.pop("measured", None)
    header = [
        f"Values with ± are calibrated by diffperf calibrate ({date.isoformat()}) on measured rows of:",
        *(f"  {source.name}: {source.rows:,} {source.kind} rows" for source in result.sources),
        *(f"  sha256 {source.sha256}" for source in result.sources),
        f"They ran on {result.hardware}.",
        "Median of |predicted / measured - 1|, as fitted and by fits that had not seen the row's family:",
        *(f"  {name}: {_errors(group)}" for name, group in result.groups.items()),
    ]
    return "".join(f"# {line}\n" for line in header) + tomlkit.dumps(config)


def _item(text: str, comment: str) -> Item:
    """A value of TOML with a comment behind it."""
    return tomlkit.value(text).comment(comment)


def _remark(parameter: Parameter) -> str:
    """How sure the value of a parameter is, what it was before, and whether its range stopped it."""
    before = units.show(parameter.before, parameter.declared.unit)
    at_bound = ", at the end of its range" if parameter.at_bound else ""
    return f"calibrated: ± {100 * parameter.spread:.2g} % (was {before}){at_bound}"


def _errors(group: GroupErrors) -> str:
    """The size of the errors of a group of rows."""
    return f"{group.after.median_ape:.1%}, {group.cross_validated.median_ape:.1%} ({group.after.n:,} values)"
