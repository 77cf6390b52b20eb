"""The group of commands: a command is imported when it is called for, and its errors are one line."""

import pkgutil
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

import click

from diffperf.cli.printable import make_printable
from diffperf.cli.verbosity import verbose_option
from diffperf.errors import ConfigError, did_you_mean
from diffperf.interrupts import INTERRUPTED


class Interrupted(click.ClickException):
    """Ctrl-C, with a message about what is left of the work."""

    exit_code = INTERRUPTED


class Command(NamedTuple):
    """A command that is not imported yet.

    - `home`: where it is defined, "module:name".
    - `summary`: what the help of the group says about it.
    - `needs_jax`: whether JAX is imported and configured before the command starts.
    """

    home: str
    summary: str
    needs_jax: bool = True


class Commands(click.Group):
    """A group that imports a command only when it is called for, and shows an error as one line on stderr."""

    def __init__(self, homes: Mapping[str, Command], **settings: Any):
        super().__init__(**settings)
        self.homes = homes

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.homes)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.homes:
            return None
        command: click.Command = pkgutil.resolve_name(self.homes[cmd_name].home)
        if not any(option.name == "verbose" for option in command.params):
            command.params.append(verbose_option())
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.homes and not name.startswith("-"):
            raise click.UsageError(f'no command "{name}"; {did_you_mean(name, list(self.homes))}', ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in self.homes.items()])

    def main(self, *args: Any, **settings: Any) -> NoReturn:
        make_printable(sys.stdout, sys.stderr)
        try:
            code = super().main(*args, **(settings | {"standalone_mode": False}))
        except click.NoSuchOption as problem:
            _fail(self._unknown_option(problem), problem.exit_code)
        except click.ClickException as problem:
            _fail(problem.format_message(), problem.exit_code)
        except click.Abort:
            _fail("interrupted", INTERRUPTED)
        except ConfigError as problem:
            _fail(str(problem), 1)
        except OSError as problem:
            _fail(f"{problem.filename or 'file'}: {problem.strerror or problem}", 1)
        sys.exit(code if isinstance(code, int) else 0)

    def _unknown_option(self, problem: click.NoSuchOption) -> str:
        """What to write for an option that a command lacks: one of its own, or a command that has it."""
        others = [
            f"diffperf {name}"
            for name in self.homes
            if (command := self.get_command(click.Context(self), name)) is not None
            and any(problem.option_name in option.opts for option in command.params)
        ]
        if not others or problem.ctx is None:
            return problem.format_message()
        lacking = f"{problem.ctx.command_path} has no option {problem.option_name}"
        return f"{lacking}, which is one of {', '.join(others)}"

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted("interrupted") from None


def _fail(message: str, code: int) -> NoReturn:
    """Ends the process with a message of one line."""
    click.echo("Error: " + " ".join(message.split()), err=True)
    sys.exit(code)
