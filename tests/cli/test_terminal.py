"""The command line and its terminal: narrow encodings, and commands that are imported when called for."""

import io
import os
import subprocess
import sys

import click
import pytest

from diffperf.cli import cli
from diffperf.cli.printable import make_printable


def diffperf(arguments: str, compile_cache, **environment: str) -> subprocess.CompletedProcess:
    """The command in a process of its own, its output as bytes."""
    return subprocess.run(
        [sys.executable, "-m", "diffperf", *arguments.split()],
        capture_output=True,
        check=False,
        env=os.environ | {"DIFFPERF_CACHE": str(compile_cache)} | environment,
    )


ESTIMATE = "estimate gpt3-22b dgx-a100 --tp 8 --global-batch 8"


@pytest.fixture(scope="module")
def whole(compile_cache) -> list[str]:
    """The lines of an estimate in an encoding that has all characters."""
    return diffperf(ESTIMATE, compile_cache, PYTHONIOENCODING="utf-8").stdout.decode("utf-8").splitlines()


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "cp437"])
def test_output_is_complete_in_narrow_encodings(encoding, whole, compile_cache):
    """Written to a file of an encoding without bars, every line of the answer is there, and says the same."""
    narrow = diffperf(ESTIMATE, compile_cache, PYTHONIOENCODING=encoding)
    assert (narrow.returncode, narrow.stderr) == (0, b"")
    lines = narrow.stdout.decode(encoding).splitlines()
    assert len(lines) == len(whole)
    assert "?" not in "".join(lines)
    for line, full in zip(lines, whole, strict=True):
        words = [word for word in full.split() if word.isascii()]
        assert set(words) <= set(line.split())


def test_characters_of_a_narrow_encoding_are_kept():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="cp1252")
    make_printable(stream)
    stream.write("8 × a100 ± 3 % ███▌▏ 2 − 1 → 漢")
    stream.flush()
    assert raw.getvalue().decode("cp1252") == "8 × a100 ± 3 % ####  2 - 1 -> ?"


def test_a_stream_of_another_kind_is_left_as_it_is():
    make_printable(io.StringIO(), None)


def test_the_help_imports_no_jax():
    program = "import sys; from diffperf.cli import cli; cli(['--help'], standalone_mode=True)"
    check = f"import atexit, sys; atexit.register(lambda: print('jax' in sys.modules)); {program}"
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "False"
    assert "estimate" in result.stdout


def test_an_estimate_imports_nothing_it_does_not_need():
    """Figures, tables in files, fits and optimizers are imported by the commands that use them."""
    program = "import sys, diffperf.cli.estimate_command; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"matplotlib", "pyarrow", "scipy.optimize", "optax"} & set(result.stdout.split())


def test_every_command_is_where_the_group_says():
    context = click.Context(cli)
    for name in cli.list_commands(context):
        assert cli.get_command(context, name).name == name
    assert cli.get_command(context, "no-such-command") is None


def test_an_interrupt_is_one_line(run, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("diffperf.api.question.best_layout", interrupted)
    result = run("estimate gpt3-22b dgx-a100")
    assert (result.exit_code, result.stderr) == (130, "Error: interrupted\n")


def test_help_and_version(run):
    for line in ("", "--help", "estimate --help", "--version"):
        assert run(line).exit_code == 0
    text = run("estimate --help").stdout
    assert "--micro-batch N" in text
    assert "none|selective|full" in text


def test_the_installed_command_uses_its_compile_cache(tmp_path):
    result = diffperf("cost dgx-a100", tmp_path / "cache")
    assert (result.returncode, result.stderr) == (0, b"")
    assert any((tmp_path / "cache").iterdir())


def test_an_interrupt_during_imports_is_one_line():
    program = """
import builtins, sys
imported = builtins.__import__

def interrupted(name, *rest, **settings):
    if name == "jax":
        raise KeyboardInterrupt
    return imported(name, *rest, **settings)

builtins.__import__ = interrupted
sys.argv = ["diffperf", "list"]
from diffperf.cli import main
main()
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (130, "Error: interrupted\n")


@pytest.mark.parametrize("place", ["click", "jaxlib.xla_client"])
def test_an_interrupt_by_the_signal_during_imports_is_one_line(place):
    """Ctrl-C in the middle of an import, which jaxlib's extension would turn into an ImportError."""
    program = f"""
import os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores the signal

class Interrupting:
    def find_spec(self, name, *_):
        if name == {place!r}:
            try:
                os.kill(os.getpid(), signal.SIGINT)
                for _ in range(1000):
                    pass
            except KeyboardInterrupt:
                raise ImportError("an extension was not initialized")

sys.meta_path.insert(0, Interrupting())
sys.argv = ["diffperf", "list"]
from diffperf.__main__ import main
main()
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (130, "Error: interrupted\n")


def test_verbose_says_on_stderr_what_is_read_and_compiled(whole, compile_cache):
    """Every file once, and the programs of the layout and of the interval; the answer is as without it."""
    verbose = diffperf(f"{ESTIMATE} --verbose", compile_cache, PYTHONIOENCODING="utf-8")
    assert verbose.returncode == 0
    assert verbose.stdout.decode("utf-8").splitlines() == whole
    messages = verbose.stderr.decode("utf-8")
    for words, times in {
        "reads configs/models/gpt3-22b.toml": 1,
        "reads configs/systems/dgx-a100.toml": 1,
        "_evaluate: program for NumPy": 2,
    }.items():
        assert messages.count(words) == times, words


def test_verbose_holds_for_one_command(run):
    assert "reads configs" in run("list prices --verbose").stderr
    assert run("list prices").stderr == ""
    assert run("estimate llama-2-7b dgx-a100 --verbose --phase never").exit_code == 1
    messages = run("list prices --verbose").stderr
    assert messages.count("reads configs/prices/datacenter.toml") == 1


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("list models", 0),
        ("estimate gpt3-22 dgx-a100", 1),
        ("estimate gpt3-22b dgx-a100 --tensor 8", 2),
        ("estimate gpt3-175b dgx-a100 --tp 8 --global-batch 8", 3),
    ],
)
def test_exit_codes_are_those_of_the_help(run, line, code):
    assert run(line).exit_code == code
    assert f"{code} " in run("--help").stdout.partition("Exit codes:")[2]
