"""What every question needs of a configuration: the outputs of its report, and its inputs by path."""

import difflib
from typing import Any

import equinox as eqx
import jax

from diffperf.errors import ConfigError
from diffperf.estimate.phases import PHASES, estimate
from diffperf.quantity import Quantity, walk
from diffperf.report.tables import outputs
from diffperf.workload.configuration import Configuration


def report_outputs(inputs: Configuration, phase: str) -> dict[str, Quantity]:
    """The declarations of what a phase reports, by path; nothing is computed."""
    found: dict[str, Quantity] = {}

    def trace(inputs: Configuration):
        reported = outputs(estimate(inputs, phase))
        found.update((path, declared) for path, (declared, _) in reported.items())
        return [value for _, value in reported.values()]

    jax.eval_shape(trace, inputs)
    return found


def full_path(inputs: eqx.Module, path: str, file: str = "command line", key: str | None = None) -> str:
    """The path as `inputs` (with a `system`) spells it: `hbm.bandwidth` is accepted where it means one input of the system.

    **Raises:** `ConfigError` for an ending that several inputs share, or none.
    """
    key = path if key is None else key
    if path.split(".")[0] in ("model", "system", "strategy"):
        return path
    matches = [known for known, _, _ in walk(inputs.system, "system.") if known.endswith("." + path)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ConfigError(
            file,
            key,
            f'"{path}", which ends {len(matches)} paths',
            "one input",
            f"write one of: {_few(matches)}",
        )
    hint = _nearest(inputs, path) or "start the path with model., system. or strategy."
    raise ConfigError(file, key, f'unknown name "{path}"', "a path into the inputs", hint)


def _few(names: list[str], limit: int = 6) -> str:
    return ", ".join(names[:limit]) + (", …" if len(names) > limit else "")


def _nearest(inputs: eqx.Module, path: str) -> str:
    """The input whose path ends most like `path`, as a hint; empty where nothing is near."""
    endings: dict[str, str] = {}
    for known, _, _ in walk(inputs):
        names = known.split(".")
        for start in range(len(names)):
            endings.setdefault(".".join(names[start:]), known)
    near = difflib.get_close_matches(path, endings, n=1, cutoff=0.7)
    return f'did you mean "{endings[near[0]]}"?' if near else ""


def check_phase(phase: Any, file: str, key: str) -> str:
    """The phase itself, if there is one of that name."""
    if phase in PHASES:
        return phase
    near = difflib.get_close_matches(str(phase), PHASES, n=1)
    raise ConfigError(
        file,
        key,
        f'"{phase}"',
        "one of " + ", ".join(PHASES),
        f'did you mean "{near[0]}"?' if near else "name one",
    )
