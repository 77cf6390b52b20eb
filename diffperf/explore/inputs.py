"""Configurations as the tools of this room need them: the outputs of a report, and inputs by path."""

import dataclasses
import difflib

import equinox as eqx

from diffperf.compiler import stored
from diffperf.errors import ConfigError, did_you_mean
from diffperf.estimate.phases import PHASES, estimate
from diffperf.load.similar_inputs import LISTED, input_elsewhere
from diffperf.quantity import Quantity, locate, walk
from diffperf.report.tables import outputs
from diffperf.workload.configuration import Configuration


class _Reported(eqx.Module):
    """What a phase reports, as the result of a stored program: declarations by path, and no numbers."""

    declarations: tuple[tuple[str, Quantity], ...] = eqx.field(static=True)


@stored("phase")
def _reported(inputs: Configuration, phase: str) -> _Reported:
    """What a phase of such inputs reports. Only an estimate itself says what it reports; JAX traces a whole
    one, which takes a second or two, once for all inputs of one structure.
    """
    return _Reported(tuple((path, kind) for path, (kind, _) in outputs(estimate(inputs, phase)).items()))


def report_outputs(inputs: Configuration, phase: str) -> dict[str, Quantity]:
    """The declarations of what a phase reports, by path; nothing is computed."""
    return dict(_reported(inputs, phase).declarations)


def checked_output(inputs: Configuration, phase: str, output: str, file: str) -> Quantity:
    """The declaration of an output of a phase. Raises `ConfigError` that names `file` where there is none."""
    known = report_outputs(inputs, phase)
    if output not in known:
        hint = did_you_mean(output, list(known))
        raise ConfigError(file, "output", f'"{output}"', f"an output of {phase}", hint)
    return known[output]


def full_path(inputs: eqx.Module, path: str, file: str = "command line", key: str | None = None) -> str:
    """The whole path of the input that `path` means.

    `inputs` is a module with a `system`. A path that starts with model, system or strategy, or with another
    part of `inputs`, stays as it is; any other is the ending of a path of exactly one input of the system,
    such as `hbm.bandwidth`, or of the design of its accelerators where `inputs` has one.

    **Raises:** `ConfigError` for an ending that several inputs share, or none, with `file` and `key` as its
    origin.
    """
    key = path if key is None else key
    if path.split(".")[0] in {
        "model",
        "system",
        "strategy",
        *(part.name for part in dataclasses.fields(inputs)),
    }:
        return path
    parts = [part for part in ("system", "design") if hasattr(inputs, part)]
    known = [known for part in parts for known, _, _ in walk(getattr(inputs, part), f"{part}.")]
    if (match := _only_ending(known, path, file, key)) is not None:
        return match
    hint = _nearest(inputs, path) or "start the path with model., system. or strategy."
    raise ConfigError(file, key, f'unknown name "{path}"', "a path into the inputs", hint)


def own_path(module: eqx.Module, path: str, file: str) -> str:
    """The path into a module that `path` means: from the module on, from its role on (`system.prices`),
    or the ending of the path of exactly one of its inputs.

    **Raises:** `ConfigError` that names `file`, for an ending that several inputs share, or none.
    """
    if isinstance(module, Configuration):
        return full_path(module, path, file)
    path = path.removeprefix(f"{type(module).__name__.lower()}.")
    try:
        locate(module, path)
    except KeyError:
        match = _only_ending([known for known, _, _ in walk(module)], path, file, path)
        begins_inside = any(field.name == path.split(".")[0] for field in dataclasses.fields(module))
        if match is None and not begins_inside and (hint := _nearest(module, path)):
            raise ConfigError(file, path, f'unknown name "{path}"', "a path into the inputs", hint) from None
        return match or path
    return path


def _only_ending(known: list[str], path: str, file: str, key: str) -> str | None:
    """The only one of the known paths that ends with a path; None where none does.

    **Raises:** `ConfigError` where several do.
    """
    matches = [each for each in known if each.endswith("." + path)]
    if len(matches) > 1:
        listed = ", ".join(matches[:LISTED]) + (", …" if len(matches) > LISTED else "")
        found = f'"{path}", which ends {len(matches)} paths'
        raise ConfigError(file, key, found, "one input", f"write one of: {listed}")
    return matches[0] if matches else None


def _nearest(inputs: eqx.Module, path: str) -> str:
    """A hint that names the input whose path ends as `path` but for a letter or two, else the inputs that its
    last name describes, else the one whose path ends most like it; empty where no path is similar.
    """
    endings: dict[str, str] = {}
    for known, _, _ in walk(inputs):
        names = known.split(".")
        for start in range(len(names)):
            endings.setdefault(".".join(names[start:]), known)

    def ending(likeness: float) -> str:
        near = difflib.get_close_matches(path, endings, n=1, cutoff=likeness)
        return f'did you mean "{endings[near[0]]}"?' if near else ""

    return ending(0.9) or input_elsewhere(path.rpartition(".")[2], inputs) or ending(0.7)


def check_phase(phase: object, file: str, key: str) -> str:
    """The phase itself, where it is the name of one.

    **Raises:** `ConfigError`, with `file` and `key` as its origin.
    """
    if isinstance(phase, str) and phase in PHASES:
        return phase
    near = difflib.get_close_matches(str(phase), PHASES, n=1)
    remedy = f'did you mean "{near[0]}"?' if near else "name one"
    found = f'"{phase}"' if isinstance(phase, str) else repr(phase)
    raise ConfigError(file, key, found, "one of " + ", ".join(PHASES), remedy)
