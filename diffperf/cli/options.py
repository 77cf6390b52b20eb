"""Options that several commands share, and what they mean. Those of the strategy follow its declarations."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from diffperf.api.question import COMMAND_LINE, Question
from diffperf.cli.completion import names_of
from diffperf.errors import ConfigError
from diffperf.estimate.phases import PHASES
from diffperf.explore.inputs import check_phase
from diffperf.explore.plan.candidates import LAYOUT
from diffperf.quantity import Choice, declaration
from diffperf.relax import Exact, Smooth
from diffperf.report.output_files import STDOUT, check_writable
from diffperf.workload.strategy import Strategy

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Decorator = Callable[[Decorated], Decorated]


def strategy_option(
    field: dataclasses.Field, searched: Iterable[str], how: str, in_inference: Iterable[str] | None = None
) -> Decorator:
    """The option of a field of the strategy.

    Its help gives the field's default, or `how` the command chooses the value of a field that is `searched`.
    Where commands search other fields in inference, `in_inference` names those.
    """
    default = how if field.name in searched else field.default
    declared = declaration(field)
    everywhere = in_inference is None or field.name in in_inference
    if field.name in searched and not everywhere and declared is not None and not declared.training_only:
        default = f"{how} in training, else {field.default}"
    if field.name == "global_batch":
        default = f"{default}; in training one micro-batch per device"
    return declared_option(field, field.name.replace("_", "-"), default)


def declared_option(field: dataclasses.Field, flag: str, default: object) -> Decorator:
    """The option `--flag` of a declared field, whose help ends with its default."""
    declared = declaration(field)
    assert declared is not None  # every field of a strategy and of requests is declared
    if not isinstance(declared, Choice):
        return click.option(
            f"--{flag}", field.name, metavar=declared.unit or "N", help=f"{declared.doc} [{default}]"
        )
    if declared.alternatives == ("off", "on"):
        return click.option(
            f"--{flag}/--no-{flag}",
            field.name,
            default=None,
            help=f"{declared.doc} [{'on' if default else 'off'}]",
        )
    return click.option(
        f"--{flag}", field.name, metavar="|".join(declared.alternatives), help=f"{declared.doc} [{default}]"
    )


def options(*decorators: Decorator) -> Decorator:
    """Several options as one decorator, in the order of the help text."""

    def decorate(command: Decorated) -> Decorated:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def _phase(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    return check_phase(value, COMMAND_LINE, "--phase")


def names_of_list(ctx: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...]:
    """The names of a list with commas, each once; none without the option."""
    names = [name.strip() for name in (value or "").split(",")]
    return tuple(dict.fromkeys(filter(None, names)))


def assignments(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """The texts of an option that is repeated as path=text, by path."""
    given: dict[str, str] = {}
    for value in values:
        if "=" not in value:
            raise click.BadParameter(
                f'"{value}" has no "=": write path=value, such as hbm.bandwidth="4 TB/s"'
            )
        path, text = (part.strip() for part in value.split("=", 1))
        if given.setdefault(path, text) != text:
            raise click.BadParameter(
                f'{path} is given twice, as "{given[path]}" and "{text}": leave one of them out'
            )
    return given


def axis_range(ctx: click.Context, parameter: click.Parameter, value: str) -> tuple[str, str]:
    """The path and the range of an axis."""
    path, equals, ends = value.partition("=")
    if not equals:
        example = 'hbm.bandwidth="2..5 TB/s"'
        raise click.BadParameter(f'"{value}" has no "=": write path=low..high, such as {example}')
    return path.strip(), ends.strip()


def output_file(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """The file of an option, checked before the computation takes its time; "-" stands for stdout."""
    if value is not None and value != STDOUT:
        check_writable(value, parameter.opts[0])
    return value


def page_file(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """The file of a page, checked likewise, its ending too."""
    if value is not None and value != STDOUT and Path(value).suffix.lower() not in (".html", ".htm"):
        expected = "a file name ending in .html or .htm"
        raise ConfigError(COMMAND_LINE, parameter.opts[0], f'"{value}"', expected, "rename it")
    return output_file(ctx, parameter, value)


def _figure_file(ctx: click.Context, parameter: click.Parameter, value: str | None) -> Path | None:
    """The file of a figure, checked likewise."""
    if value is None:
        return None
    from diffperf.report.plots import check_format  # imports matplotlib

    option = parameter.opts[0]
    return check_writable(check_format(value, option), option)


def figure_option(name: str, text: str) -> Decorator:
    """An option that draws a figure."""
    return click.option(name, metavar="FILE", callback=_figure_file, help=f"{text} (.png, .svg or .pdf)")


calibration_option = click.option(
    "--calibration",
    metavar="NAME|FILE|none",
    shell_complete=names_of("calibrations"),
    help="fitted values in place of the system's own (see diffperf list calibrations)",
)
measured_system_option = click.option(
    "--system",
    "systems",
    metavar="NAME|FILE",
    multiple=True,
    help="a system or accelerator that rows of its name ran on, in place of the shipped one (repeatable)",
)
where_option = click.option(
    "--where",
    metavar="CONDITION",
    multiple=True,
    help="rows to use, such as framework=vllm*, hardware!=a100* or experts>0 (repeatable: all of them)",
)
set_option = click.option(
    "--set",
    "settings",
    metavar="PATH=VALUE",
    multiple=True,
    callback=assignments,
    help='override one input, such as hbm.bandwidth="4 TB/s" or model.hidden=8192 (repeatable)',
)
system_options = options(
    click.option("--devices", metavar="N", help="devices in the system [as configured]"),
    click.option(
        "--stack",
        metavar="NAME",
        shell_complete=names_of("stacks"),
        help="software stack in place of the system's (see diffperf list stacks)",
    ),
    calibration_option,
    set_option,
)
phase_option = click.option(
    "--phase",
    default="training",
    show_default=True,
    metavar="|".join(PHASES),
    callback=_phase,
    help="phase to estimate",
)


def smooth_option(command: Decorated) -> Decorated:
    """The options of a smooth estimate; the command gets them as one `relax`."""

    @functools.wraps(command)
    def relaxed(*, smooth: float | None, band: float | None, **others: Any) -> Any:
        if smooth is not None and not (math.isfinite(smooth) and smooth >= 1):
            raise click.BadParameter("a sharpness is a number of at least 1", param_hint="'--smooth'")
        if band is not None and smooth is None:
            raise click.UsageError("--band is of a smooth estimate: give --smooth too, such as --smooth 50")
        return command(relax=Exact() if smooth is None else Smooth(smooth, band), **others)

    sharpness = click.option(
        "--smooth",
        type=float,
        metavar="SHARPNESS",
        help="give the smooth estimate of this sharpness in place of the exact one",
    )
    width = click.option(
        "--band",
        type=click.FloatRange(0, 1, min_open=True, max_open=True),
        metavar="BAND",
        help="average the number of waves over ±BAND of its value (such as 0.1), so that a smooth estimate "
        "shows what more compute units are worth",
    )
    return options(sharpness, width)(relaxed)


json_option = click.option(
    "--json",
    "json_file",
    metavar="FILE",
    callback=output_file,
    help="write the answer as JSON in SI units, chips in mm and mm² (- for stdout)",
)
plot_option = figure_option("--plot", "draw the answer as a figure")


STRATEGY_FIELDS = tuple(field.name for field in dataclasses.fields(Strategy))


def strategy_options(
    searched: Iterable[str] = LAYOUT,
    how: str = "best layout",
    fields: Iterable[str] = STRATEGY_FIELDS,
    in_inference: Iterable[str] | None = None,
) -> Decorator:
    """An option for each of the strategy's fields that are named, by default all."""
    offered = [field for field in dataclasses.fields(Strategy) if field.name in fields]
    return options(*(strategy_option(field, searched, how, in_inference) for field in offered))


def question_options(
    searched: Iterable[str] = LAYOUT,
    how: str = "best layout",
    fields: Iterable[str] = STRATEGY_FIELDS,
) -> Decorator:
    """Arguments and options that say what a command asks about; the command gets them as one `question`.

    `fields` names the fields of the strategy that have options.
    """

    def decorate(command: Callable) -> Callable:
        @functools.wraps(command)
        def read(
            *,
            model: str,
            system: str,
            devices: str | None,
            stack: str | None,
            calibration: str | None,
            settings: dict[str, str],
            **others: Any,
        ) -> Any:
            strategy = {name: others.pop(name) for name in fields}
            question = Question.read(
                model=model,
                system=system,
                devices=devices,
                stack=stack,
                calibration=calibration,
                settings=settings,
                strategy=strategy,
            )
            return command(question=question, **others)

        arguments = (
            click.argument("model", shell_complete=names_of("models")),
            click.argument("system", shell_complete=names_of("systems")),
        )
        return options(*arguments, system_options, strategy_options(searched, how, fields))(read)

    return decorate
