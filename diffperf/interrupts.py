"""Ctrl-C while a command is imported, which takes a second and cannot be unwound."""

import os
import signal
from typing import Any, NoReturn

INTERRUPTED = 130  # exit code of a command that Ctrl-C ended, as in a shell: 128 + SIGINT


def end_at_once(*_: Any) -> NoReturn:
    """Ends the process in one line.

    An exception in the middle of an import may come out as another one: extension modules turn it into an
    ImportError.
    """
    os.write(2, b"Error: interrupted\n")
    os._exit(INTERRUPTED)


def end_imports_at_once() -> None:
    """Makes Ctrl-C end the process at once, unless its caller ignores Ctrl-C, as nohup does."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_at_once)


def raise_again() -> None:
    """Makes Ctrl-C raise KeyboardInterrupt again, so that a command can remove unfinished files."""
    if signal.getsignal(signal.SIGINT) is end_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)
