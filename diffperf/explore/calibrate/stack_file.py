"""The config of a software stack with fitted values, for --stack and for tables that name its file."""

import datetime
from pathlib import Path

import tomlkit

from diffperf import units
from diffperf.explore.calibrate.calibrated import Calibrated
from diffperf.explore.calibrate.calibration_file import quantity_text, write_whole
from diffperf.explore.calibrate.cross_validation import GroupErrors
from diffperf.explore.calibrate.parameters import Parameter
from diffperf.load import find, load
from diffperf.software.stack import MEASURED, Stack

_SAME_SOURCE = "likewise"  # a comment of shipped configs: the source is that of the line before


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
    sources = _written_out(config)
    for parameter in result.parameters:
        key = parameter.path.removeprefix("stack.")
        before = sources.get(key, "the default")
        fitted = quantity_text(parameter.after, parameter.declared)
        config[key] = tomlkit.value(fitted).comment(_remark(parameter, before))
    config["basis"] = MEASURED
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


def _written_out(config: tomlkit.TOMLDocument) -> dict[str, str]:
    """The comments of a stack's config by key.

    In the config itself "likewise" is replaced by the source that it stands for, which the line with a
    fitted value no longer names.
    """
    source, comments = "", {}
    for key, item in config.body:
        if key is None:
            continue
        comment = item.trivia.comment.removeprefix("#").strip()
        if comment.startswith(_SAME_SOURCE):
            comment = source + comment.removeprefix(_SAME_SOURCE)
            item.comment(comment)
        elif comment:
            source = comment
        comments[key.key] = comment
    return comments


def _remark(parameter: Parameter, source: str) -> str:
    """Certainty of a parameter's value, the value before with its source, and whether the parameter's
    range stopped the fit.
    """
    before = units.show(parameter.before, parameter.declared.unit) + (f", {source}" if source else "")
    at_bound = ", at the end of its range" if parameter.at_bound else ""
    return f"calibrated: ± {100 * parameter.spread:.2g} %{at_bound}; before: {before}"


def _errors(group: GroupErrors) -> str:
    """The size of the errors of a group of rows."""
    return f"{group.after.median_ape:.1%}, {group.cross_validated.median_ape:.1%} ({group.after.n:,} values)"
