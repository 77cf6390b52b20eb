"""The output of every command that answers: its files first, then what goes to stdout.

Whoever reads stdout may close it early, as `diffperf … | head` does: the files are whole by then.
"""

import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import RenderableType

from diffperf.api.answer import Answer, print_lines
from diffperf.cli.terminal import WIDTH, console, write_output
from diffperf.report.output_files import STDOUT

# The form of the JSON answers: raised when a key goes, or changes its place, meaning or unit.
SCHEMA = 1


class Output(NamedTuple):
    """What an option such as --json or --plot asks for.

    - `file`: where it goes: a file, "-" for stdout, or None where it is not asked for.
    - `write`: makes it and writes it there.
    """

    file: str | Path | None
    write: Callable[[Any], object]


def json_output(file: str | None, data: Callable[[], dict[str, Any]]) -> Output:
    """The data as JSON. Its key "diffperf" says by which release, and in which form, so that a reader can
    refuse another one.
    """

    def text() -> str:
        written_by = {"diffperf": {"version": version("diffperf"), "schema": SCHEMA}}
        return json.dumps(written_by | data(), indent=2, ensure_ascii=False) + "\n"

    return text_output(file, text)


def text_output(file: str | None, text: Callable[[], str]) -> Output:
    """A text, such as a table or a page."""
    return Output(file, lambda target: write_output(text(), target))


def show_after_files(lines: Callable[[], list[RenderableType]], *outputs: Output, width: int = WIDTH) -> None:
    """Writes the outputs that go to files, then prints those that go to stdout, or the lines if none does.

    A file that cannot be written, such as on a full disk, costs none of the printed answer. `width` is how
    many columns stdout has where it is no terminal.
    """
    asked = [output for output in outputs if output.file is not None]
    printed = [output for output in asked if output.file == STDOUT]
    try:
        for output in asked:
            if output.file != STDOUT:
                output.write(output.file)
    finally:
        for output in printed:
            output.write(STDOUT)
        if not printed:
            print_lines(console(width), lines())


def show(
    answer: Answer,
    *more: Output,
    json_file: str | None,
    plot: Path | None = None,
    lines: Callable[[], list[RenderableType]] | None = None,
) -> None:
    """Writes an answer as JSON, whatever `more` is asked for, and its figure; then prints it.

    `lines` are printed in place of the whole answer.
    """
    outputs = (json_output(json_file, answer.to_dict), *more, Output(plot, answer.plot))
    show_after_files(lines or answer.lines, *outputs, width=answer.width)
