"""`--verbose` of every command: what is read, compiled and stored, and when, on stderr."""

import logging

import click

_LOGGER = logging.getLogger("diffperf")
_HANDLER = "diffperf --verbose"


def verbose_option() -> click.Option:
    """An option that shows the messages of diffperf's loggers for the duration of a command."""
    return click.Option(
        ["-v", "--verbose"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_show_messages,
        help="say on stderr what is read, compiled and stored, and how long that takes",
    )


def _show_messages(ctx: click.Context, option: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from rich.console import Console
    from rich.logging import RichHandler

    console = Console(stderr=True, soft_wrap=True)
    handler = RichHandler(console=console, show_path=False, show_level=False, log_time_format="[%X.%f]")
    handler.set_name(_HANDLER)
    _quiet()  # a command line with a mistake is not closed: its handler is still there
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.DEBUG)
    ctx.call_on_close(_quiet)


def _quiet() -> None:
    """Shows no messages any more."""
    for handler in [handler for handler in _LOGGER.handlers if handler.name == _HANDLER]:
        _LOGGER.removeHandler(handler)
        _LOGGER.setLevel(logging.NOTSET)
