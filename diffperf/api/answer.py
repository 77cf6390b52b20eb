"""Answers to questions: objects that print, and turn into plain values, a data frame or a figure."""

import abc
import functools
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import jax
from rich.console import Console, RenderableType

from diffperf.errors import ConfigError
from diffperf.report.output_files import check_writable

if TYPE_CHECKING:  # both take a second to import, and most answers are only printed
    import pandas
    from matplotlib.figure import Figure

_HTML = '<pre style="white-space:pre;overflow-x:auto;line-height:1.25;font-family:monospace">{code}</pre>'


def _in_double_precision(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, computing in double precision."""

    @functools.wraps(method)
    def called(self: Any) -> Any:
        with jax.enable_x64(True):
            return method(self)

    return called


def print_lines(console: Console, lines: list[RenderableType]) -> None:
    """Prints texts and tables one below the other; only tables are fitted into the width of the console."""
    for line in lines:
        console.print(line, soft_wrap=isinstance(line, str))


def check_figure_file(file: Any, method: str) -> None:
    """Refuses what is no path of a figure that can be written; None is no file. **Raises:** `ConfigError`
    that names the method and its argument.
    """
    from diffperf.report import plots

    if file is None:
        return
    if not isinstance(file, str | os.PathLike):
        raise ConfigError(method, "file", repr(file)[:80], "the path of a figure", 'write "figure.png"')
    check_writable(plots.check_format(Path(file), "file", method), "file", method)


class Answer(abc.ABC):
    """The answer to a question. `print(answer)` shows what the command line shows.

    The methods of subclasses compute in double precision, as the answer was, whatever the caller's is.
    """

    width: ClassVar[int] = 120  # columns of a printed answer

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in ("lines", "to_dict", "rows", "figure"):
            if name in vars(cls):
                setattr(cls, name, _in_double_precision(vars(cls)[name]))

    @abc.abstractmethod
    def lines(self) -> list[RenderableType]:
        """The texts and tables that the terminal shows, one below the other."""

    @abc.abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Everything as nested plain values in internal units: what `--json` writes."""

    @abc.abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the answer's main table, in internal units."""

    @abc.abstractmethod
    def figure(self) -> "Figure":
        """The answer as a figure: what `--plot` draws."""

    def plot(self, file: str | Path | None = None) -> "Figure":
        """The answer as a matplotlib figure, which is also written to a file if one is named.

        **Raises:** `ConfigError` for a file that is no .png, .svg or .pdf, or that cannot be written.
        """
        from diffperf.report import plots

        check_figure_file(file, "answer.plot")
        figure = self.figure()
        if file is not None:
            plots.save(figure, file)
        return figure

    def to_frame(self) -> "pandas.DataFrame":
        """The rows of the answer's main table as a data frame of pandas, in internal units.

        **Raises:** `ImportError` in one line where pandas is missing.
        """
        try:
            import pandas
        except ImportError:
            remedy = "to_frame() needs pandas: pip install 'diffperf[frames]'"
            raise ImportError(remedy) from None
        return pandas.DataFrame(self.rows())

    def __str__(self) -> str:
        buffer = io.StringIO()
        console = Console(file=buffer, width=self.width, force_terminal=False, highlight=False)
        print_lines(console, self.lines())
        return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The printed answer for a notebook, with its colours."""
        console = Console(file=io.StringIO(), width=self.width, record=True, highlight=False)
        print_lines(console, self.lines())
        return console.export_html(inline_styles=True, code_format=_HTML)
