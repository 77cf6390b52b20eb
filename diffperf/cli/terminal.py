"""Output of every command: tables, JSON, progress."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from diffperf.report.output_files import STDOUT, write_text

WIDTH = 120  # columns where the output is not a terminal
# The form of the JSON answers: raised when a key goes, or changes its place, meaning or unit.
SCHEMA = 1


def console(json_file: str | None = None, width: int = WIDTH) -> Console:
    """The console that tables go to: stdout, or nowhere where stdout is the JSON's.

    `width` is how many columns it has where it is not a terminal.
    """
    terminal = Console(quiet=json_file == "-", highlight=False)
    return terminal if terminal.is_terminal else Console(quiet=json_file == "-", highlight=False, width=width)


def write_json(data: dict[str, Any], file: str | None) -> None:
    """Writes `data` to a file, or to stdout for "-"; does nothing without a file.

    The key "diffperf" says by which release, and in which form, so that a reader can refuse another one.
    """
    if file is not None:
        written_by = {"diffperf": {"version": version("diffperf"), "schema": SCHEMA}}
        write_output(json.dumps(written_by | data, indent=2, ensure_ascii=False) + "\n", file)


def write_output(text: str, file: str) -> None:
    """Writes a text to a file, whole or not at all, or to stdout for "-"."""
    if file == STDOUT:
        with click.open_file(file, "w", encoding="utf-8") as stream:
            stream.write(text)
    else:
        write_text(file, text)


@contextlib.contextmanager
def progress(text: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Shows a bar for work of more than two seconds. Yields the function that advances the bar by steps."""
    terminal = Console(stderr=True)
    counters = [MofNCompleteColumn(), TimeRemainingColumn()] if total else []
    bar = Progress(
        TextColumn(text),
        BarColumn(),
        *counters,
        console=terminal,
        transient=True,
        disable=not terminal.is_terminal,
    )
    task = bar.add_task(text, total=total)
    timer = threading.Timer(2.0, bar.start)
    timer.start()
    try:
        yield lambda steps: bar.advance(task, steps)
    finally:
        timer.cancel()
        timer.join()
        bar.stop()
