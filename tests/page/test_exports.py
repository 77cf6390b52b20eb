"""What the page exports asks the same question again: a command, a program, a space."""

import contextlib
import io
import shlex
from urllib.parse import parse_qsl

import click
import pytest

from diffperf.api.question import Question
from diffperf.cli import cli
from diffperf.explore.inputs import full_path
from diffperf.explore.sweep.space_file import load_space
from diffperf.page.exports import command, program, space
from diffperf.page.state import State
from diffperf.quantity import locate
from diffperf.workload.configuration import Configuration
from diffperf.workload.strategy import Strategy

QUERIES = (
    "model=gpt3-175b&system=dgx-a100&devices=64&tp=8&pp=8&recompute=selective&overlap_tensor=on",
    "model=llama-2-7b&system=dgx-h100&phase=generate&devices=8&global_batch=16&stack=vllm"
    "&set=hbm.bandwidth=4 TB/s&set=n_devices=8&set=model.layers.0.count=30",
    "model=gpt3-22b&system=dgx-a100&tp=8&sequence_parallel=off&calibration=none&tokens=3e11"
    "&set=strategy.zero=1&set=network.nvlink.topology=ring",
)


@pytest.fixture(params=QUERIES)
def state(request) -> State:
    return State.of(parse_qsl(request.param))


def full_settings(state: State) -> dict[str, str]:
    question = state.question()
    inputs = Configuration(question.model, question.system, Strategy())
    return {full_path(inputs, path): text for path, text in state.settings.items()}


def test_the_command_asks_the_same(state, monkeypatch):
    """Its options are read by the command itself."""
    name, *arguments = shlex.split(command(state, full_settings(state)))[1:]
    asked: list[Question] = []
    reads = Question.read

    def record(**given) -> Question:
        asked.append(reads(**given))
        raise StopAsyncIteration  # the estimate itself is not wanted

    monkeypatch.setattr(Question, "read", record)
    estimate = cli.get_command(click.Context(cli), name)
    assert estimate is not None
    with contextlib.suppress(StopAsyncIteration), estimate.make_context(name, arguments) as context:
        estimate.invoke(context)
    ours, theirs = state.question(), asked[0]
    assert {path: str(value) for path, value in theirs.table.items()} == {
        path: {"on": "True", "off": "False"}.get(str(value), str(value)) for path, value in ours.table.items()
    }
    for path in full_settings(state):
        if not path.startswith("strategy."):
            values = [locate(Configuration(q.model, q.system, Strategy()), path)[0] for q in (ours, theirs)]
            assert str(values[0]) == str(values[1]), path


def test_the_space_asks_the_same(state, tmp_path):
    file = tmp_path / "space.toml"
    file.write_text(space(state, full_settings(state), {"dp": 1.0}), encoding="utf-8")
    read, ours = load_space(file), state.question()
    assert str(read.inputs.system.name) == state.system
    assert read.phase == state.phase
    assert len(read.axes) == 1
    assert float(read.inputs.system.n_devices) == float(ours.system.n_devices)
    for path in full_settings(state):
        if not path.startswith("strategy."):
            values = [
                locate(Configuration(q.model, q.system, Strategy()), path)[0] for q in (ours, read.inputs)
            ]
            assert str(values[0]) == str(values[1]), path


@pytest.mark.slow
def test_the_program_prints_the_same(complete):
    """It runs as it is printed."""
    query = "model=gpt3-175b&system=dgx-a100&devices=64&tp=8&pp=8"
    found = complete(f"export?{query}")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(found["python"], {})
    answer = complete(f"answer?{query}")
    first = printed.getvalue().splitlines()[0]
    assert first.split()[:2] == ["step", "time"]
    assert " ".join(first.split()[2:4]) == answer["outputs"]["time"]["text"]
    assert "'dp': 1" in found["python"]


def test_a_program_reads_like_one_of_ours(state):
    text = program(state, full_settings(state), {"dp": 2.0})
    compile(text, "export", "exec")
    assert "'dp': 2" in text
