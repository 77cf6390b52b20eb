"""dp.estimate and the pure functions beside it: the answers of the command line, in Python's words."""

import functools
import inspect
import json
import pydoc
import subprocess
import sys

import jax
import numpy as np
import pytest
from click.testing import CliRunner
from helpers import check_error, command_line

import diffperf as dp
from diffperf.cli import cli
from diffperf.estimate import phases
from diffperf.load import load_calibrated

QUESTION = ("gpt3-22b", "dgx-a100")
LINE = "estimate gpt3-22b dgx-a100 --json -"


def test_the_answer_is_that_of_the_command_line():
    answer = dp.estimate(*QUESTION, devices=16, tp=8, recompute="full", set={"hbm.bandwidth": "1.8 TB/s"})
    options = "--devices 16 --tp 8 --recompute full --set"
    expected = command_line(f"{LINE} {options}", "hbm.bandwidth=1.8 TB/s")
    assert json.loads(json.dumps(answer.to_dict())) == expected
    assert float(answer.report.time) == expected["report"]["time"]
    assert answer.fits is expected["fits"]
    printed = CliRunner().invoke(
        cli, [*f"estimate {' '.join(QUESTION)} {options}".split(), "hbm.bandwidth=1.8 TB/s"]
    )
    assert str(answer).split() == printed.stdout.split()


def test_numbers_are_in_internal_units_and_of_any_type():
    text, number, array = (
        dp.estimate(*QUESTION, tp=8, set={"system.accelerator.memory.hbm.bandwidth": value}).report.time
        for value in ("1.8 TB/s", 1.8e12, np.float64(1.8e12))
    )
    assert text == number == array


def test_modules_and_tables_are_systems_and_models():
    model, (system, _) = dp.load_model("gpt3-22b"), load_calibrated("dgx-a100")
    by_name = dp.estimate(*QUESTION, tp=8)
    assert float(dp.estimate(model, system, tp=8).report.time) == float(by_name.report.time)
    table = {"extends": "dgx-a100", "accelerator": {"memory": {"hbm": {"bandwidth": "1.8 TB/s"}}}}
    extended = dp.estimate("gpt3-22b", table, tp=8)
    changed = dp.estimate(*QUESTION, tp=8, set={"hbm.bandwidth": "1.8 TB/s"})
    assert float(extended.report.time) == float(changed.report.time)
    assert extended.interval is not None
    assert extended.interval.relative == pytest.approx(changed.interval.relative)


@pytest.mark.slow
def test_the_answer_is_that_of_the_pure_function():
    answer = dp.estimate(*QUESTION, devices=16, tp=8, pp=1, global_batch=16)
    strategy = dp.load_strategy({"tp": 8, "global_batch": 16}, n_devices=16)
    inputs = dp.load_model("gpt3-22b"), dp.load_system("dgx-a100", 16), strategy
    report = dp.training_step(*inputs)
    assert float(report.time) == pytest.approx(float(answer.report.time), rel=1e-12)
    traced = jax.jit(dp.training_step)(*inputs)
    assert float(traced.time) == pytest.approx(float(report.time), rel=1e-12)


def test_the_caller_s_precision_stays():
    with jax.enable_x64(False):
        answer = dp.estimate(*QUESTION, tp=8)
        assert jax.numpy.asarray(1.0).dtype == np.float32
    assert np.asarray(answer.report.time).dtype == np.float64


def test_results_turn_into_other_things(tmp_path):
    pandas = pytest.importorskip("pandas")
    answer = dp.estimate(*QUESTION, tp=8)
    frame = answer.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert frame.set_index("output").loc["time", "value"] == float(answer.report.time)
    assert frame.set_index("output").loc["time", "unit"] == "s"
    assert "step time" in answer._repr_html_()
    assert "<pre" in answer._repr_html_()
    figure = answer.plot(tmp_path / "step.svg")
    assert (tmp_path / "step.svg").read_text(encoding="utf-8").startswith("<?xml")
    assert len(figure.axes) > 1
    with pytest.raises(dp.ConfigError, match=r"\.svg"):
        answer.plot(tmp_path / "step.gif")


def test_a_missing_pandas_is_one_line(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(ImportError, match=r"diffperf\[frames\]"):
        dp.estimate(*QUESTION, tp=8).to_frame()


WRONG = [
    (lambda: dp.estimate("gpt9", "dgx-a100"), "dp.estimate: model:", ["list models"]),
    (lambda: dp.estimate("gpt3-22b", 7), "dp.estimate: system:", ["type int"]),
    (lambda: dp.estimate(*QUESTION, tp_=8), "dp.estimate: tp_:", ['did you mean "tp"?']),
    (lambda: dp.estimate(*QUESTION, device=8), "dp.estimate: device:", ['did you mean "devices"?']),
    (lambda: dp.estimate(*QUESTION, devices=2.5), "dp.estimate: devices:", ["whole number"]),
    (lambda: dp.estimate(*QUESTION, tp=7), "dp.estimate: strategy.tp:", ["divisor of the heads"]),
    (lambda: dp.estimate(*QUESTION, phase="train"), "dp.estimate: phase:", ['"training"']),
    (lambda: dp.estimate(*QUESTION, tokens="many"), "dp.estimate: tokens:", ["15e12"]),
    (lambda: dp.estimate(*QUESTION, smooth=0.5), "dp.estimate: smooth:", ["at least 1"]),
    (lambda: dp.estimate(*QUESTION, band=0.1), "dp.estimate: band:", ["smooth estimate"]),
    (lambda: dp.estimate(*QUESTION, smooth=50, band=2), "dp.estimate: band:", ["between 0 and 1"]),
    (lambda: dp.validate("nowhere.csv"), "nowhere.csv: found no table", ["No such file", "check the path"]),
    (lambda: dp.calibrate("nowhere.csv", "x.toml"), "nowhere.csv: found no table", ["No such file"]),
    (lambda: dp.estimate(*QUESTION, "decode", tokens=1e9), "dp.estimate: tokens:", ["drop tokens or phase"]),
    (lambda: dp.estimate(*QUESTION, set={"hbm.bandwith": 1e12}), "dp.estimate: hbm.bandwith:", ["mean"]),
    (lambda: dp.estimate(*QUESTION, stack="vlm"), "dp.estimate: stack:", ['"vllm']),
    (lambda: dp.plan(*QUESTION, top=0), "dp.plan: top:", ["from 1 to 1,000"]),
    (lambda: dp.plan(*QUESTION, by="speed"), "dp.plan: by:", ["energy"]),
    (lambda: dp.plan(QUESTION[0], "mi210-4", rent=True), "dp.plan: rent:", ['set={"accelerator.rent"']),
    (lambda: dp.serve(*QUESTION, ttft="5 kg"), "dp.serve: ttft:", ["wrong dimension"]),
    (lambda: dp.serve(*QUESTION, rate=3, concurrency=4), "dp.serve: rate:", ["concurrency too"]),
    (lambda: dp.serve(*QUESTION, flags="vlm"), "dp.serve: flags:", ['"vllm"']),
    (lambda: dp.sweep("nothing"), "dp.sweep: space:", ["configs/spaces"]),
    (lambda: dp.codesign({"model": "gpt3-22b"}), "dp.codesign: minimize:", ["exactly one"]),
    (lambda: dp.compare("gpt9", "dgx-a100"), "dp.compare: models:", ["list models"]),
    (lambda: dp.load_system("dgx-h10"), "dp.load_system: system:", ['"dgx-h100"']),
    (lambda: dp.load_strategy({"tp": "a"}), "dp.load_strategy: tp:", ["number"]),
    (lambda: dp.load_accelerator({"extends": "h10"}), "dp.load_accelerator: accelerator:", ["extends"]),
]


@pytest.mark.parametrize(("call", "begins", "words"), WRONG, ids=[begins for _, begins, _ in WRONG])
def test_errors_name_the_function_and_the_argument(call, begins, words):
    with pytest.raises(dp.ConfigError) as caught:
        call()
    assert str(caught.value).startswith(begins)
    assert "command line" not in str(caught.value)
    assert "--" not in str(caught.value)
    check_error(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_traced_values_are_for_the_pure_functions():
    with pytest.raises(dp.ConfigError, match=r"dp\.estimate: set: .*dp\.training_step"):
        jax.jit(lambda x: dp.estimate(*QUESTION, tp=8, set={"hbm.bandwidth": x}).report.time)(1e12)


@pytest.mark.slow
def test_numbers_alone_are_numbers_within_a_traced_function():
    """A baseline that does not depend on what is traced is loaded, checked and estimated at once."""
    model, strategy = dp.load_model("llama-2-7b"), dp.load_strategy({"global_batch": 1})

    def change(bandwidth):
        system = dp.load_system("dgx-a100", 1)
        baseline = dp.generate(model, system, strategy).time
        assert float(baseline) > 0
        faster = dp.override(system, {"hbm.bandwidth": bandwidth})
        return dp.generate(model, faster, strategy).time / baseline

    as_it_is = dp.load_system("dgx-a100", 1).accelerator.device_memory.bandwidth
    assert float(jax.jit(change)(as_it_is)) == pytest.approx(1, rel=1e-12)
    with pytest.raises(dp.ConfigError, match="tp"):
        jax.jit(lambda: dp.generate(model, dp.load_system("dgx-a100", 1), dp.load_strategy({"tp": 2})).time)()


@pytest.mark.slow
def test_derivatives_outside_of_jit_are_of_one_program(monkeypatch):
    """One for all numbers; one for all values of what is mapped over."""
    estimated = []
    decode = phases.PHASES["decode"]
    traced = functools.wraps(decode)(lambda *args: [estimated.append(args), decode(*args)][1])
    monkeypatch.setitem(phases.PHASES, "decode", traced)
    model, system = dp.load_model("llama-2-7b"), dp.load_system("dgx-a100", 1)

    def time(bandwidth, batch):
        strategy = dp.load_strategy({"global_batch": batch})
        return dp.decode(model, dp.override(system, {"hbm.bandwidth": bandwidth}), strategy).time

    def mapped(*bandwidths):
        return jax.vmap(lambda bandwidth: jax.grad(time)(bandwidth, 1))(np.array(bandwidths)).tolist()

    slopes = [float(jax.grad(time)(1.5e12, 1))]
    estimated.clear()
    slopes += [float(jax.grad(time)(*point)) for point in ((2e12, 1), (2e12, 64))]
    assert not estimated
    assert mapped(1.5e12, 2e12) == pytest.approx(slopes[:2], rel=1e-9)
    estimated.clear()
    assert mapped(2e12, 1e12)[0] == pytest.approx(slopes[1], rel=1e-9)
    assert not estimated
    staged = [float(jax.jit(jax.grad(time), static_argnums=1)(*point)) for point in ((2e12, 1), (2e12, 64))]
    assert slopes[1:] == pytest.approx(staged, rel=1e-9)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        (
            {"model": "llama-2-7b"},
            r'model: found "llama-2-7b"; expected a Model.* write dp.load_model\("llama-2-7b"\)',
        ),
        (
            {"strategy": {"tp": 2}},
            "strategy: found a value of type dict; expected a Strategy.*"
            r' write dp.load_strategy\(\{"tp": 2\}\)',
        ),
        (
            {"system": dp.load_model("llama-2-7b")},
            "system: found a value of type Model; .* model, system and strategy, in this order",
        ),
        ({"relax": "smooth"}, r'relax: found "smooth"; expected dp.Exact\(\) or dp.Smooth\(50\)'),
        ({"relax": dp.Smooth}, "relax: found the class Smooth; expected"),
    ],
)
def test_arguments_of_other_kinds_are_refused(system, changed, error):
    inputs = {"model": dp.load_model("llama-2-7b"), "system": system, "strategy": dp.load_strategy({})}
    with pytest.raises(dp.ConfigError, match=f"dp.decode: {error}") as caught:
        dp.decode(**inputs | changed)
    check_error(caught.value)


# Calls with arguments of wrong types, and how their errors begin.
WRONG_TYPES = {
    "load_strategy('tp=8')": 'dp.load_strategy: found "tp=8"; expected',
    "validate({'m': [128]})": "dp.validate: file: found a value of type dict; expected the path of a CSV",
    "sensitivity('llama-3-8b', 'dgx-h100', ranges='hbm.bandwidth=±10%')": (
        "dp.sensitivity: ranges: found 'hbm.bandwidth=±10%'; expected ranges of inputs by their paths; write"
    ),
    "codesign('gpt3-175b-under-a100-budget', seed=1.5)": (
        "dp.codesign: seed: found 1.5; expected a whole number of at least 0"
    ),
    "sweep('gpt3-175b-strategy-sweep', results=3)": "dp.sweep: results: found 3; expected a path; write",
    "serve('llama-3-8b', 'dgx-h100', percentile=[3])": 'dp.serve: percentile: found "[3]"; expected mean',
}


def test_wrong_types_are_refused_where_nobody_checks_annotations():
    lines = ["import diffperf as dp"]
    for call in WRONG_TYPES:
        lines += ["try:", f"    dp.{call}", "except dp.ConfigError as problem:", "    print(problem)"]
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for printed, error in zip(done.stdout.splitlines(), WRONG_TYPES.values(), strict=True):
        assert printed.startswith(error)


@pytest.mark.parametrize(
    ("function", "argument", "value", "expected"),
    [
        ("plan", "by", 3, 'a text such as "time"; write by="time"'),
        ("serve", "by", 1, 'a text such as "throughput"; write by="throughput"'),
        ("serve", "pools", 1, 'a text such as "both"; write pools="both"'),
        ("sensitivity", "output", None, 'a text such as "time"; write output="time"'),
        ("compare", "against", 3, "a text; write it in quotes"),
        ("plan", "schedules", 3, r'a text, or a list of texts; write schedules=\["…"\]'),
        ("plan", "schedules", [3], "a text, or a list of texts; write"),
    ],
)
def test_texts_of_other_types_are_refused_in_one_line(function, argument, value, expected):
    wrong = 3 if value == [3] else value
    with pytest.raises(
        dp.ConfigError, match=f"dp.{function}: {argument}: found {wrong}; expected {expected}"
    ):
        getattr(dp, function)("llama-3-8b", "dgx-h100", **{argument: value})


def test_one_text_stands_for_a_list_of_one():
    with pytest.raises(dp.ConfigError, match=r'schedules: found "gpipes"; .* did you mean "gpipe"'):
        dp.plan("llama-3-8b", "dgx-h100", schedules="gpipes")


def test_a_percentile_may_be_a_number():
    with pytest.raises(dp.ConfigError, match=r"dp\.serve: flags: "):  # which is read after the percentile
        dp.serve("llama-3-8b", "dgx-h100", percentile=90, flags="none")
    with pytest.raises(dp.ConfigError, match=r'dp\.serve: percentile: found "91"; expected mean or 90'):
        dp.serve("llama-3-8b", "dgx-h100", percentile=91)


@pytest.mark.parametrize("call", ["codesign", "codesign_front"])
def test_a_negative_seed_is_refused(call):
    front = ("cost.manufacturing=0.6x..1.4x",) if call == "codesign_front" else ()
    with pytest.raises(dp.ConfigError, match=rf"^dp\.{call}: seed: found -1; expected a whole number of at"):
        getattr(dp, call)("gpt3-175b-under-a100-budget", *front, seed=-1)


def test_impossible_layouts_of_numbers_are_refused():
    inputs = dp.load_model("gpt3-22b"), dp.load_system("dgx-a100", 64)
    impossible = dp.load_strategy({"tp": 7, "pp": 3}, n_devices=64)
    with pytest.raises(dp.ConfigError, match=r"dp\.training_step: strategy\.tp"):
        dp.training_step(*inputs, impossible)


def test_a_room_of_the_package_is_a_question_too():
    import diffperf.estimate.training

    assert diffperf.estimate.training.training_step is not dp.training_step
    assert callable(dp.estimate)
    assert list(inspect.signature(dp.estimate).parameters)[:3] == ["model", "system", "phase"]


@pytest.mark.parametrize("name", ["estimate", "cost"])
def test_help_shows_a_question_that_has_the_name_of_a_room(name):
    question = getattr(dp, name)
    page = pydoc.render_doc(question, renderer=pydoc.plaintext)
    assert "**Arguments:**" in page
    assert "PACKAGE CONTENTS" not in page
    assert next(iter(inspect.signature(question).parameters)) in ("model", "system")
