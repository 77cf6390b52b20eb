"""What several tests need: compiled estimators, inputs drawn in their ranges, access by dotted path."""

import importlib.util
import json
import math
import sys
from collections import Counter
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import diffperf as dp
from diffperf.errors import ConfigError
from diffperf.estimate.phases import phase_tables
from diffperf.quantity import numeric, replace, walk

STUDIES = Path(__file__).parents[1] / "studies"

# How often each of the programs below has been traced.
traces: Counter[str] = Counter()


def _compiled(phase: str):
    """The estimator of a phase, compiled once for all tests: inputs are traced, so that all numbers and
    choices share a program."""

    def estimate(*inputs):
        traces[phase] += 1
        return dp.PHASES[phase](*inputs)

    return jax.jit(estimate)


training = _compiled("training")
generate = _compiled("generate")
tables = jax.jit(phase_tables, static_argnames="phase")


def outputs(report: eqx.Module) -> dict[str, jax.Array]:
    """Every number of a report by dotted path."""
    return {path: value for path, _, value in walk(report)}


def units_of(report: eqx.Module) -> dict[str, str]:
    """The declared unit of every number of a report by dotted path."""
    return {path: declared.unit for path, declared, _ in walk(report)}


def leaves(module: eqx.Module) -> tuple[list[str], np.ndarray]:
    """The numeric inputs of a module: paths and values."""
    inputs = numeric(module)
    return list(inputs), np.array([float(value) for _, value in inputs.values()])


def with_leaves(module: eqx.Module, paths: list[str], values) -> eqx.Module:
    """The module with its numeric inputs replaced; `values` may be traced."""
    return replace(module, dict(zip(paths, values, strict=True)))


def draw(module: eqx.Module, rng: np.random.Generator, count: int, shrink: float = 0.0) -> np.ndarray:
    """Returns `count` random designs, (count, inputs): inputs uniform in their ranges, on declared scales.

    `shrink` moves the ends of the range towards the module's own value, by that fraction.
    """
    columns = []
    for declared, value in numeric(module).values():
        scale, back = (np.log, np.exp) if declared.log else (lambda x: x, lambda x: x)
        low, high, here = scale(declared.bounds[0]), scale(declared.bounds[1]), scale(float(value))
        low, high = low + shrink * (here - low), high + shrink * (here - high)
        columns.append(back(rng.uniform(low, high, count)))
    return np.stack(columns, axis=1)


def cast(tree, dtype):
    """The tree with all leaves of one float type."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), tree)


_DERIVED = {"W": {"J": 1, "s": -1}, "Hz": {"s": -1}}


def exponents(unit: str) -> dict[str, int]:
    """Powers of the base units in a declared unit: "USD/mm^2" is {"USD": 1, "mm": -2}."""
    powers = {}
    for position, part in enumerate(unit.split("/")):
        name, _, power = part.partition("^")
        for base, times in _DERIVED.get(name, {name: 1}).items():
            if base not in ("", "1"):
                sign = 1 if position == 0 else -1
                powers[base] = powers.get(base, 0) + sign * times * int(power or 1)
    return powers


def in_other_units(module: eqx.Module, base: str, factor: float) -> eqx.Module:
    """The module after a change of units, one `base` becoming `factor`: numbers scale by declared powers."""
    inputs = numeric(module)
    return replace(
        module,
        {path: value * factor ** exponents(d.unit).get(base, 0) for path, (d, value) in inputs.items()},
    )


def check_error(error: ConfigError) -> None:
    """Checks that an error says in one line where the input came from, what is wrong, and what to change."""
    line = str(error)
    assert len(line.splitlines()) == 1, line
    for part in (error.file, error.found, error.expected, error.remedy):
        assert str(part).strip(), line
        assert " ".join(str(part).split()) in line
    assert " ".join(error.key.split()) in line
    assert "Traceback" not in line


def command_line(line: str, *more: str) -> dict:
    """The JSON answer of a command, without the key that says which release wrote it."""
    from click.testing import CliRunner

    from diffperf.cli import cli

    result = CliRunner().invoke(cli, [*line.split(), *more])
    assert result.exit_code == 0, result.stderr
    answer = json.loads(result.stdout)
    assert answer.pop("diffperf") == {"version": dp.__version__, "schema": 1}
    return answer


def same_answer(one, other, rel: float = 1e-12) -> bool:
    """Whether two JSON answers are the same, numbers up to rounding: of two programs of one estimate, NumPy
    may have evaluated one and XLA compiled the other.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_answer(one[key], other[key], rel) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_answer, one, other, [rel] * len(one)))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=rel)
    return type(one) is type(other) and one == other


def study_module(study: str, module: str):
    """A module of a study, by a name that no other module has."""
    if str(STUDIES) not in sys.path:
        sys.path.append(str(STUDIES))  # what studies share
    name = f"{study}_{module}"
    spec = importlib.util.spec_from_file_location(name, STUDIES / study / f"{module}.py")
    loaded = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def files_of(folder: Path) -> dict[str, bytes]:
    """The bytes of all files of a folder, by their paths in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
