"""Commented files to begin with: a config of one's own, a problem, a space, a study, a table of measurements.

A template runs as it is. Configs extend a shipped one, and list every number that can be changed, commented
out, with its value there and what the library declares of it.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from diffperf import units
from diffperf.api.question import COMMAND_LINE
from diffperf.errors import ConfigError, did_you_mean
from diffperf.explore.measured.schemas import SCHEMAS
from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.system import System
from diffperf.load import available, config_root, find, load, load_calibration, load_system, read_toml
from diffperf.quantity import Choice, Quantity, walk
from diffperf.software.stack import Stack
from diffperf.workload.model import Model

# What a template is like where the user does not say: a shipped config that many know.
LIKE = {
    "accelerator": "h100-sxm5-80gb",
    "system": "dgx-h100",
    "stack": "megatron-core",
    "model": "llama-3-8b",
    "problem": "gpt3-175b-under-a100-budget",
    "space": "gpt3-175b-strategy-sweep",
    "measurements": "training",
    "study": "",
}
# What is done with the file of a template, by its kind.
_RUN = {
    "accelerator": 'name it in a system\'s file, as accelerator = "FILE" (diffperf init system)',
    "system": "diffperf estimate llama-3-8b FILE",
    "stack": "diffperf estimate llama-3-8b dgx-h100 --stack FILE",
    "model": "diffperf estimate FILE dgx-h100",
    "problem": "diffperf codesign FILE",
    "space": "diffperf sweep FILE",
    "measurements": "diffperf validate FILE",
    "study": "python FILE",
}
_ENDINGS = {"measurements": "csv", "study": "py"}
_MODULES = {"accelerator": Accelerator, "system": System, "stack": Stack, "model": Model}


def file_name(kind: str) -> str:
    """The name of a template's file where the user does not give one."""
    return f"my-{kind}.{_ENDINGS.get(kind, 'toml')}"


def how_to_run(kind: str, file: str) -> str:
    """The command that reads a template's file."""
    return _RUN[kind].replace("FILE", file)


def template(kind: str, like: str | None = None, file: str | None = None) -> str:
    """The text of a template.

    **Arguments:**

    - `kind`: what the file is to be, one of `LIKE`.
    - `like`: the shipped config, or the kind of table of measurements, that it begins with.
    - `file`: the name that the text gives the file where it says how to run it.

    **Raises:** `ConfigError` for an unknown kind or config.
    """
    if kind not in LIKE:
        hint = did_you_mean(kind, list(LIKE))
        raise ConfigError(COMMAND_LINE, "KIND", f'"{kind}"', "a kind of file", hint)
    like = like or LIKE[kind]
    run = how_to_run(kind, file or file_name(kind))
    if kind == "measurements":
        return measurements(like)
    if kind == "study":
        return _STUDY.replace("RUN", run)
    if kind in ("problem", "space"):
        text = find(like, f"{kind}s", asked_by=(COMMAND_LINE, "--like")).read_text(encoding="utf-8")
        return f"# A {kind} of your own, like {like}. Run it with: {run}\n\n{text}"
    return "\n".join(_config(kind, like, run)) + "\n"


def measurements(kind: str, option: str = "--like") -> str:
    """A table of one kind of measurements with one published row.

    **Raises:** `ConfigError` for an unknown kind, which `option` gave.
    """
    if kind not in SCHEMAS:
        hint = did_you_mean(kind, list(SCHEMAS))
        raise ConfigError(COMMAND_LINE, option, f'"{kind}"', "a kind of table", hint)
    return (config_root() / "measurements" / f"{kind}.csv").read_text(encoding="utf-8")


def describe_columns(kind: str) -> Iterator[tuple[str, str, str]]:
    """The columns of a kind of table: name, what a cell holds, and whether it may be left out."""
    for name, column in SCHEMAS[kind].items():
        if column.measured:
            use = "measured: at least one"
        elif column.needed:
            use = "needed"
        elif column.default is None:
            use = "may be left out"
        else:
            default = column.default
            use = f"by default {str(default).lower() if isinstance(default, bool) else default}"
        yield name, column.expected, use


def _config(kind: str, like: str, run: str) -> Iterator[str]:
    """The lines of a config that extends a shipped one."""
    module = _module(kind, like)
    table = read_toml(find(like, f"{kind}s", asked_by=(COMMAND_LINE, "--like")))
    yield f"# {kind.capitalize()} of your own, like {like} but for the lines that you uncomment and change."
    yield "# The name is that of the file. Write the source of every number behind it."
    if kind in ("accelerator", "system"):
        yield "# Values are those fitted to measurements, where there are any; a line of yours goes first."
    yield f"# Use it: {run}"
    yield ""
    yield f'extends = "{like}"'
    named = {key: value for key, value in table.items() if key in _NAMED and isinstance(value, str)}
    if named:
        yield ""
        yield "# Other configs that it is made of: names of shipped ones, or paths of your own files."
        yield from (f'# {key} = "{value}"' for key, value in named.items())
    heading = None
    for path, declared, value in walk(module):
        if path.partition(".")[0] in named or (text := _value(value, declared)) is None:
            continue
        section = path.rpartition(".")[0]
        if section != heading:
            heading = section
            yield ""
        yield f"# {path} = {text}  # {_describe(declared)}"


def _module(kind: str, like: str) -> Any:
    """The module whose values a template lists: those that act, which are the fitted ones of a calibrated
    accelerator.
    """
    module = load(_MODULES[kind], like, asked_by=(COMMAND_LINE, "--like"))
    for name in available("calibrations") if kind == "accelerator" else ():
        fitted = load_calibration(name)
        if fitted.hardware == str(module.name):
            return load_system(fitted.system, calibration=name).accelerator
    return module


# Keys of configs that hold the name of another config.
_NAMED = ("accelerator", "stack", "inference_stack", "prices", "host", "calibration", "collectives")


def _value(value: Any, declared: Quantity | Choice) -> str | None:
    """A value as TOML; None for what is no single number or name."""
    if isinstance(declared, Choice):
        weights = np.asarray(value)
        if weights.ndim != 1 or weights.max() != 1 or weights.sum() != 1:
            return None
        name = declared.alternatives[int(weights.argmax())]
        return {"off": "false", "on": "true"}.get(name, f'"{name}"')
    number = np.asarray(value)
    if number.ndim or not np.isfinite(number):
        return None
    if not declared.unit:
        return f"{float(number):.6g}"
    if declared.unit == "USD":  # which people read without cents
        return f'"${float(number):.7g}"'
    return f'"{units.show(number, declared.unit, 6)}"'


def _describe(declared: Quantity | Choice) -> str:
    """Description and range of a number or choice, as the library declares them."""
    if isinstance(declared, Choice):
        several = declared.alternatives != ("off", "on")
        return declared.doc + (f" ({', '.join(declared.alternatives)})" if several else "")
    low, high = (units.show(bound, declared.unit) for bound in declared.bounds)
    return f"{declared.doc} ({low} to {high})"


_STUDY = '''"""A study of your own: how long a token of Llama-3 8B takes on three systems. Run it with: RUN"""

import diffperf as dp

SYSTEMS = ("dgx-a100", "dgx-h100", "hgx-b200")  # diffperf list systems, or paths of your own files
BATCHES = (1, 8, 64)  # sequences

print("system      " + "".join(f"{batch:>10} seq" for batch in BATCHES))
for system in SYSTEMS:
    # The best layout on one device; every number of the answer is an attribute of its report.
    times = [
        dp.estimate("llama-3-8b", system, devices=1, phase="decode", global_batch=batch).report.time
        for batch in BATCHES
    ]
    print(f"{system:12}" + "".join(f"{1e3 * float(time):>11.3g} ms" for time in times))
'''
