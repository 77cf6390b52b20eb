"""Every command writes its files before it prints: whoever reads stdout may close it early."""

import ast
import json
import os
import sys
from pathlib import Path

import click
import pytest

import diffperf.cli
from diffperf.cli import COMMANDS, cli
from diffperf.cli.answer_output import Output, json_output, show_after_files
from diffperf.cli.options import _figure_file, output_file

WITHOUT_ANSWER = ("init", "explore")  # one writes a file to begin with, the other serves until it is ended
LAYOUT = "llama-2-7b dgx-a100 --devices 8 --tp 8 --global-batch 16 --phase decode"


def gemm_row(m: int) -> str:
    """A GEMM of an H100 that multiplies half as fast as its datasheet says."""
    seconds = max(2 * 8192**2 / 3.35e12, 4 * m * 8192**2 / 989e12) + 6e-6
    return f"{m},h100-sxm5-80gb,bf16,{m},8192,8192,{seconds}\n"


# A quick question for every command; the first four are asked whenever the tests run.
QUESTIONS = {
    "list": "list prices",
    "die": "die 600mm2 --nodes n7,n5",
    "cost": "cost dgx-a100",
    "validate": "validate gemm.csv",
    "estimate": f"estimate {LAYOUT}",
    "compare": "compare --models llama-2-7b --systems dgx-a100 --phase decode --tp 8",
    "plan": "plan llama-2-7b dgx-a100 --devices 8 --tp 8 --pp 1 --micro-batch 1 --global-batch 8",
    "serve": "serve llama-3-8b dgx-h100 --devices 2 --tp 2 --pp 1 --chunk 2048 --pools aggregated",
    "codesign": "codesign problem.toml --population 16",
    "sensitivity": f"sensitivity {LAYOUT}",
    "map": f"map {LAYOUT} --x hbm.bandwidth=1..4TB/s --y strategy.global_batch=1..64 --cells 4",
    "breakeven": f"breakeven {LAYOUT} --against dgx-h100 --x prices.accelerator_markup=2..20 --vary first",
    "sweep": "sweep space.toml",
    "calibrate": "calibrate gemm.csv --parameters hbm.efficiency --folds 2 --out fitted.toml",
}
QUICK = list(QUESTIONS)[:4]
FILES = {
    "gemm.csv": "id,hardware,dtype,m,n,k,latency_s\n" + "".join(map(gemm_row, (1, 8, 64, 512, 2048, 8192))),
    "problem.toml": """
model = "gpt3-22b"
system = "dgx-a100"
n_devices = 8
technology = "n7-hbm2e"
minimize = "time"
[strategy]
tp = 8
micro_batch = 4
global_batch = 4
recompute = "selective"
[[variable]]
path = "design.compute_units"
from = 80
to = 110
[[constraint]]
quantity = "cost.manufacturing"
at_most = "baseline"
""",
    "space.toml": """
model = "gpt3-22b"
system = "dgx-a100"
[strategy]
global_batch = 16
[[axis]]
path = "strategy.tp"
powers_of_two = {from = 4, to = 8}
""",
}


def file_options(name: str) -> dict[str, str]:
    """The options of a command that name a file to write, each with a name of its own."""
    command = cli.get_command(click.Context(cli), name)
    endings = {output_file: "txt", _figure_file: "svg"}
    return {
        option.opts[0]: f"of{option.opts[0]}.{endings[option.callback]}"
        for option in command.params
        if option.callback in endings
    }


def test_every_command_that_answers_is_asked():
    assert set(QUESTIONS) == set(COMMANDS) - set(WITHOUT_ANSWER)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in QUESTIONS]
)
@pytest.mark.usefixtures("run")  # the folder and the compile cache of a command line
def test_files_are_written_where_nobody_reads_stdout(name, tmp_path, monkeypatch):
    """As in `diffperf … --json FILE --plot FILE | head -0`."""
    for file, text in FILES.items():
        (tmp_path / file).write_text(text)
    asked = file_options(name)
    assert "--json" in asked
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w", encoding="utf-8") as nobody:
        monkeypatch.setattr(sys, "stdout", nobody)
        with pytest.raises(SystemExit) as end:
            cli([*QUESTIONS[name].split(), *(word for pair in asked.items() for word in pair)])
    assert end.value.code == 1  # that of a closed pipe, so the answer was printed too
    written = [file for file in asked.values() if (tmp_path / file).exists()]
    assert written == list(asked.values())
    json.loads((tmp_path / asked["--json"]).read_text())


def test_what_goes_to_stdout_waits_for_the_files(tmp_path):
    """JSON for stdout comes after the other files, and in place of the lines."""
    order = []
    files = ("-", tmp_path / "figure", None)
    outputs = [Output(file, order.append) for file in files]
    show_after_files(lambda: pytest.fail("stdout is the JSON's"), *outputs)
    assert order == [tmp_path / "figure", "-"]


def test_a_file_that_cannot_be_written_costs_no_answer(tmp_path, capsys):
    """The disk may have filled up during an hour of search: the answer is printed, and then the error."""
    lost = json_output(str(tmp_path / "no folder" / "x.json"), lambda: {"a": 1})
    with pytest.raises(FileNotFoundError):
        show_after_files(lambda: ["the answer"], lost)
    assert capsys.readouterr().out == "the answer\n"


def _prints_or_draws(source: str) -> list[str]:
    """Calls that print an answer's lines or write its files."""
    calls = [node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    names = {ast.unparse(called).split(".")[-1] for called in calls}
    return sorted(names & {"print_lines", "plot", "plot_residuals", "to_html", "to_csv", "to_dict", "lines"})


@pytest.mark.parametrize(
    "path", sorted(Path(diffperf.cli.__file__).parent.glob("*_command.py")), ids=lambda path: path.name
)
def test_commands_leave_the_order_to_one_function(path):
    """A command hands over how its outputs are made; that of a new option cannot come after the printing."""
    permitted = {"plan_command.py": ["lines"], "validate_command.py": ["plot_residuals"]}  # inside lambdas
    assert _prints_or_draws(path.read_text(encoding="utf-8")) == permitted.get(path.name, [])


def test_a_command_that_draws_by_itself_is_found():
    assert _prints_or_draws("print_lines(c, answer.lines())\nif plot:\n    answer.plot(plot)") == [
        "lines",
        "plot",
        "print_lines",
    ]
