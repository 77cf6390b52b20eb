"""What every command shares: errors in one line, JAX's settings, tables, JSON, progress."""

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import jax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from diffperf.compiler import compile_quickly
from diffperf.errors import ConfigError

WIDTH = 120  # columns where the output is not a terminal


class Interrupted(click.ClickException):
    """Ctrl-C, with what is left of the work."""

    exit_code = 130


class Commands(click.Group):
    """A group of commands whose errors are one line on stderr and a non-zero exit code."""

    def main(self, *args, **extra):
        try:
            code = super().main(*args, **(extra | {"standalone_mode": False}))
        except click.ClickException as problem:
            self.fail(problem.format_message(), problem.exit_code)
        except click.Abort:
            self.fail("interrupted", Interrupted.exit_code)
        except ConfigError as problem:
            self.fail(str(problem), 1)
        except OSError as problem:
            self.fail(f"{problem.filename or 'file'}: {problem.strerror or problem}", 1)
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx):
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted("interrupted") from None

    @staticmethod
    def fail(message: str, code: int) -> None:
        click.echo("Error: " + " ".join(message.split()), err=True)
        sys.exit(code)


def compile_cache() -> Path | None:
    """Where compiled programs are kept between runs: $DIFFPERF_CACHE ("off" for nowhere), else the user's cache folder."""
    chosen = os.environ.get("DIFFPERF_CACHE")
    if chosen is not None:
        return None if chosen in ("", "off") else Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "diffperf"


def configure_jax() -> None:
    """Double precision, and programs compiled once per machine rather than once per command."""
    compile_quickly()
    jax.config.update("jax_enable_x64", True)
    folder = compile_cache()
    if folder is not None:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        folder = folder if os.access(folder, os.W_OK) else None
    jax.config.update("jax_compilation_cache_dir", folder and str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def console(json_file: str | None = None) -> Console:
    """Where tables go: stdout, unless the JSON goes there."""
    terminal = Console(quiet=json_file == "-", highlight=False)
    return terminal if terminal.is_terminal else Console(quiet=json_file == "-", highlight=False, width=WIDTH)


def write_json(data: dict[str, Any], file: str | None) -> None:
    """Writes `data` to a file, or to stdout for "-"; does nothing without a file."""
    if file is not None:
        with click.open_file(file, "w", encoding="utf-8") as stream:
            stream.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def progress(text: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A bar on the terminal for what takes longer than two seconds. Yields the function that advances it."""
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
