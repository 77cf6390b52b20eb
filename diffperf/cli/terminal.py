"""The terminal of every command, texts that go to files or to stdout, and progress."""

import contextlib
import threading
from collections.abc import Callable, Iterator

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from diffperf.report.output_files import STDOUT, write_text

WIDTH = 120  # columns where the output is not a terminal


def console(width: int = WIDTH) -> Console:
    """The console of stdout. `width` is how many columns it has where it is not a terminal."""
    terminal = Console(highlight=False)
    return terminal if terminal.is_terminal else Console(highlight=False, width=width)


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
