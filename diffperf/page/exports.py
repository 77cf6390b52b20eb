"""The state of the page as something to run elsewhere: a command, a Python program, a file for a sweep."""

import shlex
from typing import Any

import tomlkit

from diffperf.api.question import Question
from diffperf.explore.inputs import full_path
from diffperf.load import literal
from diffperf.page.programs import Compiling, Programs
from diffperf.page.state import STRATEGY_FIELDS, State
from diffperf.quantity import Choice, locate
from diffperf.relax import Exact
from diffperf.workload.configuration import Configuration
from diffperf.workload.strategy import Strategy

_FUNCTIONS = {"training": "training_step", "prefill": "prefill", "decode": "decode", "generate": "generate"}


def export(state: State, programs: Programs) -> dict[str, Any]:
    """The state as text in each format. Degrees that the page searched are written out in Python and TOML.

    **Raises:** `ConfigError` for a state that cannot be used.
    """
    question = state.question()
    inputs = Configuration(question.model, question.system, Strategy())
    settings = {full_path(inputs, path): text for path, text in state.settings.items()}
    try:
        chosen = _chosen(question, state, inputs, programs)
    except Compiling:
        return {"compiling": ["the layout"]}
    return {
        "compiling": [],
        "cli": command(state, settings),
        "python": program(state, settings, chosen),
        "toml": space(state, settings, chosen),
    }


def _chosen(question: Question, state: State, inputs: Configuration, programs: Programs) -> dict[str, float]:
    """The values that the page chose for fields that the state leaves open."""
    layout = programs.run(f"layout {state.phase}", inputs, lambda: question.layout(state.phase, Exact()))
    return layout.chosen


def command(state: State, settings: dict[str, str]) -> str:
    """The command that prints the same estimate."""
    words = ["diffperf", "estimate", state.model, state.system, "--phase", state.phase]
    for name in ("devices", "stack", "calibration", "tokens"):
        if getattr(state, name) is not None:
            words += [f"--{name}", getattr(state, name)]
    for name, text in state.strategy.items():
        words += _option(name, text)
    for path, text in settings.items():
        words += ["--set", f"{path}={text}"]
    return shlex.join(words)


def _option(name: str, text: str) -> list[str]:
    """The option of a field of the strategy."""
    flag, declared = name.replace("_", "-"), locate(Strategy(), name)[1]
    if isinstance(declared, Choice) and declared.alternatives == ("off", "on"):
        return [f"--{flag}" if text in ("on", "true") else f"--no-{flag}"]
    return [f"--{flag}", text]


def _values(state: State, settings: dict[str, str], chosen: dict[str, float]) -> tuple[dict, dict]:
    """The strategy's table, and the overridden inputs of system and model, as values of TOML and Python."""
    of_strategy = {
        path.removeprefix("strategy."): text
        for path, text in settings.items()
        if path.startswith("strategy.")
    }
    strategy: dict[str, Any] = {name: literal(text) for name, text in (state.strategy | of_strategy).items()}
    strategy |= {name: int(value) if value == int(value) else value for name, value in chosen.items()}
    ordered = {name: strategy[name] for name in STRATEGY_FIELDS if name in strategy}
    others = {path: text for path, text in settings.items() if not path.startswith("strategy.")}
    return ordered, {path: literal(text) for path, text in others.items()}


def program(state: State, settings: dict[str, str], chosen: dict[str, float]) -> str:
    """A Python program that prints the same report."""
    strategy, overridden = _values(state, settings, chosen)
    given = {"n_devices": state.devices and literal(state.devices), "stack": state.stack}
    given["calibration"] = state.calibration
    options = "".join(f", {name}={value!r}" for name, value in given.items() if value is not None)
    lines = [
        "import jax",
        "import diffperf as dp",
        "",
        f"model = dp.load_model({state.model!r})",
        f"system = dp.load_system({state.system!r}{options})",
    ]
    for part in ("model", "system"):
        own = {
            path.removeprefix(f"{part}."): value
            for path, value in overridden.items()
            if path.startswith(f"{part}.")
        }
        lines += [f"{part} = dp.override({part}, {own!r})"] if own else []
    lines += [
        f"strategy = dp.load_strategy({strategy!r})",
        f"print(jax.jit(dp.{_FUNCTIONS[state.phase]})(model, system, strategy))",
    ]
    return "\n".join(lines) + "\n"


def space(state: State, settings: dict[str, str], chosen: dict[str, float]) -> str:
    """A space for `diffperf sweep`: the state, with an axis to widen."""
    strategy, overridden = _values(state, settings, chosen)
    document = tomlkit.document()
    document.add(
        tomlkit.comment("From diffperf explore: widen the axis or add others, then run diffperf sweep FILE.")
    )
    for name in ("stack", "calibration"):
        if getattr(state, name) is not None:
            line = f"A space has the {name} that the system's file names, not {getattr(state, name)}."
            document.add(tomlkit.comment(line))
    document |= {"model": state.model, "system": state.system, "phase": state.phase, "rank_by": "time"}
    if state.devices is not None:
        overridden = {"system.n_devices": literal(state.devices), **overridden}
    if overridden:
        document["set"] = overridden
    axis = "tp" if "tp" in strategy else next(iter(strategy), "tp")
    value = strategy.pop(axis, 1)
    document["strategy"] = strategy
    table = tomlkit.table()
    table |= {"path": f"strategy.{axis}", "values": [value]}
    axes = tomlkit.aot()
    axes.append(table)
    document["axis"] = axes
    return tomlkit.dumps(document)
