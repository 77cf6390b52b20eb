"""The command line: every command reads its inputs, asks the library one question, and shows the answer.

A command is a module of this package: its click command, and how its answer reads.
"""

import click

from diffperf.cli.calibrate_command import calibrate
from diffperf.cli.codesign_command import codesign
from diffperf.cli.configs_command import list_configs
from diffperf.cli.cost_command import cost
from diffperf.cli.estimate_command import estimate
from diffperf.cli.plan_command import plan
from diffperf.cli.sensitivity_command import sensitivity
from diffperf.cli.sweep_command import sweep
from diffperf.cli.terminal import Commands, configure_jax
from diffperf.cli.validate_command import validate

COMMANDS = (estimate, plan, codesign, sensitivity, sweep, validate, calibrate, cost, list_configs)


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(package_name="diffperf")
@click.pass_context
def cli(ctx):
    """Time, memory, energy and cost of training and serving LLMs on hardware that exists, or could."""
    configure_jax()
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


for command in COMMANDS:
    cli.add_command(command)


def main() -> None:
    """The `diffperf` command."""
    cli(prog_name="diffperf")
