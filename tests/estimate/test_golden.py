"""Reports and their tables for every shipped model, against reference values and against each other.

The reference values of `tests/data/golden_reports.json` notice what changes unawares: strategies that use
every choice, whole and mixed, on systems of every structure and with every stack. They were first written by
the estimator before its operators and collectives came from one assembly (commit ec9da90). After a change of
physics that CHANGELOG.md names,

    python tests/estimate/test_golden.py

writes those that changed again, and prints by how much the times changed, of which models, systems and
stacks: all of them must be those that the change is about.
"""

import dataclasses
import functools
import itertools
import json
from pathlib import Path

import jax
import numpy as np
import pytest

import diffperf as dp
from diffperf.estimate.inference import generation_report, timed_phase
from diffperf.estimate.phases import estimate, phase_tables
from diffperf.estimate.training import timed_step
from diffperf.load import available
from diffperf.quantity import Quantity, replace, walk
from diffperf.relax import Exact, Smooth
from diffperf.workload.configuration import Configuration

FILE = Path(__file__).parents[1] / "data" / "golden_reports.json"
GOLDEN = json.loads(FILE.read_text(encoding="utf-8"))
BY_MODEL = {
    key: list(cases)
    for key, cases in itertools.groupby(GOLDEN["cases"], lambda case: (case["phase"], case["model"]))
}
# Compiled while working: a dense model and one with experts. Continuous integration compiles all.
QUICK = {("training", "gpt3-175b"), ("training", "mixtral-8x22b"), ("generate", "llama-2-70b")}
# Parts of a breakdown that neither operators nor collectives take: waits, and transfers to the host.
NOT_LISTED = {"host", "pipeline_bubble", "pipeline_queue", "offload"}


@jax.jit
def training(configuration: Configuration):
    step = timed_step(configuration)  # what the estimate and the tables of training are made of, traced once
    return step.report, {"breakdown": step.tables}


@jax.jit
def generate(configuration: Configuration):
    driven = configuration.for_inference()
    timed = timed_phase(driven, "generate")  # what the estimate and the tables of generation are made of
    return generation_report(driven, timed), {field: one_pass.tables for field, one_pass in timed.items()}


@functools.partial(jax.jit, static_argnames="phase")
def single_pass(configuration: Configuration, phase: str):
    return estimate(configuration, phase), phase_tables(configuration.for_inference(), phase)


PROGRAMS = {"training": training, "generate": generate}

# Cases share models, and systems of a size and stack.
load_model = functools.cache(dp.load_model)
load_system = functools.cache(dp.load_system)


def strategy_of(table: dict, n_devices: float):
    """A strategy from its table; degrees that are not whole, which the loader refuses, are put in
    afterwards.
    """
    real = {name: value for name, value in table.items() if isinstance(value, float)}
    whole = {name: value for name, value in table.items() if name not in real}
    strategy = replace(dp.load_strategy(whole, n_devices=n_devices), real)
    return replace(strategy, {"dp": max(1.0, n_devices / float(strategy.devices / strategy.dp))})


def configuration_of(case: dict) -> Configuration:
    return Configuration(
        model=load_model(case["model"]),
        system=load_system(case["system"], n_devices=case["n_devices"], stack=case["stack"]),
        strategy=strategy_of(case["strategy"], case["n_devices"]),
        relax=Exact() if case["relax"] == "exact" else Smooth(20.0),
    )


def numbers_of(report) -> dict[str, float]:
    """The numbers of a report, by their paths."""
    return {path: float(value) for path, declared, value in walk(report) if isinstance(declared, Quantity)}


def assert_as_before(case: dict, report) -> None:
    """Every number within 1e-9; a part of the time within 1e-12 of the whole, where it is a small
    difference.
    """
    values = numbers_of(report)
    expected = dict(zip(GOLDEN["columns"][case["phase"]], case["values"], strict=True))
    for path, number in expected.items():
        small = 1e-12 * expected["time"] if path.startswith(("breakdown", "prefill", "decode")) else 0.0
        assert values[path] == pytest.approx(number, rel=1e-9, abs=small), (case["system"], path)


def assert_adds_up(report, tables) -> None:
    """The times of operators, and the exposed times of collectives, are those of the breakdown, part by
    part.
    """
    for field, table in tables.items():
        breakdown = getattr(report, field)
        parts = np.array(table.operators.parts + table.collectives.parts)
        times = np.concatenate([table.operators.time, table.collectives.exposed])
        for part, declared, value in walk(breakdown):
            assert isinstance(declared, Quantity)
            listed = times[parts == part]
            if part in NOT_LISTED:
                assert len(listed) == 0, part
            else:
                expected = pytest.approx(float(value), rel=1e-12, abs=1e-13 * float(report.time))
                assert listed.sum() == expected, part


@pytest.mark.parametrize(
    "key",
    [key if key in QUICK else pytest.param(key, marks=pytest.mark.slow) for key in BY_MODEL],
    ids="-".join,
)
def test_reports_are_as_before_and_add_up(key):
    phase, _ = key
    for case in BY_MODEL[key]:
        report, tables = jax.device_get(PROGRAMS[phase](configuration_of(case)))
        assert_as_before(case, report)
        assert_adds_up(report, tables)


def test_reference_values_cover_training_and_generation_of_shipped_models():
    models = {model for _, model in BY_MODEL}
    assert len(models) == 56
    assert models <= set(available("models"))
    assert {("training", model) for model in models} | {("generate", model) for model in models} == set(
        BY_MODEL
    )


def later_models_by_structure() -> list[list[str]]:
    """Names of the models that have been shipped since the reference values were written, by the structure
    that decides which of them share a compiled program.
    """
    by_structure: dict[tuple, list[str]] = {}
    for name in sorted(set(available("models")) - {model for _, model in BY_MODEL}):
        kinds = dp.load_model(name).layers
        structure = tuple((kind.mixture is None, kind.latent is None) for kind in kinds)
        by_structure.setdefault(structure, []).append(name)
    return list(by_structure.values())


@pytest.mark.slow
@pytest.mark.parametrize("phase", PROGRAMS)
@pytest.mark.parametrize("models", later_models_by_structure(), ids=lambda models: models[0])
def test_reports_of_later_models_add_up(phase, models):
    for model in models:
        configuration = Configuration(
            model=dataclasses.replace(dp.load_model(model), name="later"),  # one name, one program for all
            system=dp.load_system("dgx-h100", n_devices=32),
            strategy=dp.load_strategy({"tp": 2, "pp": 2, "dp": 8, "global_batch": 64}),
        )
        report, tables = jax.device_get(PROGRAMS[phase](configuration))
        assert_adds_up(report, tables)
        assert float(report.time) > 0, model


def test_a_wrong_number_is_noticed():
    case = BY_MODEL["training", "llama-2-7b"][0]
    report, tables = training(configuration_of(case))
    with pytest.raises(AssertionError):
        assert_as_before(case | {"values": [1.0001 * value for value in case["values"]]}, report)
    longer = replace(report, {"breakdown.matmul": report.breakdown.matmul * (1 + 1e-9)})
    with pytest.raises(AssertionError, match="matmul"):
        assert_adds_up(longer, tables)


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("model", ["llama-3-8b", "mixtral-8x7b", "deepseek-v2", "matmulfree-2.7b"])
def test_single_passes_add_up_too(phase, model):
    """With tensor, context, expert and pipeline parallelism at work."""
    expert_parallel = 4 if model in ("mixtral-8x7b", "deepseek-v2") else 1
    table = {"tp": 2, "pp": 2, "cp": 2, "dp": 4, "ep": expert_parallel, "expert_tp": 2, "global_batch": 64}
    configuration = Configuration(
        model=dp.load_model(model),
        system=dp.load_system("dgx-h100", n_devices=32),
        strategy=dp.load_strategy(table),
    )
    report, tables = jax.device_get(single_pass(configuration, phase))
    assert_adds_up(report, tables)
    assert float(report.breakdown.context_parallel) > 0 or phase == "prefill" or model == "matmulfree-2.7b"


def write_again() -> None:
    """Writes the reference values that changed, and prints which."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    for case in GOLDEN["cases"]:
        report, _ = jax.device_get(PROGRAMS[case["phase"]](configuration_of(case)))
        try:
            assert_as_before(case, report)
        except AssertionError as changed:
            values = numbers_of(report)
            new = [float(f"{values[path]:.12g}") for path in GOLDEN["columns"][case["phase"]]]
            names = (case["phase"], case["model"], case["system"], case["stack"])
            print(*names, f"time {new[0] / case['values'][0] - 1:+.3%}", str(changed).splitlines()[0])
            at = next(index for index, line in enumerate(lines) if json_of(case) in line)
            lines[at] = lines[at].replace(json_of(case), json_of(case | {"values": new}))
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def json_of(case: dict) -> str:
    """A case as its line in the file has it."""
    return json.dumps(case, separators=(",", ":"), ensure_ascii=False)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    write_again()
