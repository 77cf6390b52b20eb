"""The command line: every command reads its inputs, asks the library one question, and shows the answer.

A command is a module of this package, imported when it is called for. The module holds the click command
and the functions that turn the answer into tables and JSON.
"""

import gc

import click

from diffperf.cli.group import Command, Commands
from diffperf.interrupts import raise_again

_OBJECTS_PER_COLLECTION = 1_000_000  # new objects between two searches for garbage; Python's default is 700

COMMANDS = {
    "estimate": Command(
        "diffperf.cli.estimate_command:estimate",
        "Estimate one configuration: time, memory, energy and cost, and where they go.",
    ),
    "plan": Command(
        "diffperf.cli.plan_command:plan",
        "Find the best strategy to train a model on a system, and why the others lose.",
    ),
    "serve": Command(
        "diffperf.cli.serve_command:serve",
        "Find the best layout to serve a model under targets for its latencies, and why the others lose.",
    ),
    "compare": Command(
        "diffperf.cli.compare_command:compare",
        "Compare systems on models and in phases, in one table.",
    ),
    "codesign": Command(
        "diffperf.cli.codesign_command:codesign",
        "Find by gradient which chip and package to build.",
    ),
    "sensitivity": Command(
        "diffperf.cli.sensitivity_command:sensitivity",
        "Rank the inputs by how much they move an output, at a point, over ranges, or between systems.",
    ),
    "map": Command(
        "diffperf.cli.map_command:bottleneck_map",
        "Name the resource that limits a phase, over ranges of two inputs.",
    ),
    "breakeven": Command(
        "diffperf.cli.breakeven_command:breakeven",
        "Find at which price, bandwidth or batch one system overtakes another.",
    ),
    "sweep": Command(
        "diffperf.cli.sweep_command:sweep",
        "Estimate every point of a space, and print the best.",
    ),
    "validate": Command(
        "diffperf.cli.validate_command:validate",
        "Compare the estimator with a table of measurements.",
    ),
    "calibrate": Command(
        "diffperf.cli.calibrate_command:calibrate",
        "Fit efficiencies and overheads to tables of measurements.",
    ),
    "cost": Command(
        "diffperf.cli.cost_command:cost",
        "Price a system: an accelerator piece by piece, the purchase, an hour at full power.",
    ),
    "die": Command(
        "diffperf.cli.die_command:die",
        "Price a die of an area on silicon nodes: wafers, yields by four models, a good die.",
    ),
    "init": Command(
        "diffperf.cli.init_command:init",
        "Write a commented file of your own: a config, a problem, a space, a table.",
    ),
    "explore": Command(
        "diffperf.cli.explore_command:explore",
        "Serve a live page on this machine: controls for every number, and exact sensitivities.",
        needs_jax=False,
    ),
    "list": Command(
        "diffperf.cli.configs_command:list_configs",
        "List the shipped configs, each with its main figures.",
    ),
}


@click.group(
    cls=Commands,
    homes=COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog="Exit codes: 0 an answer; 1 a file, a name or a value that is wrong; 2 a command line that is; "
    "3 nothing fits memory, meets the targets or satisfies the constraints; 130 interrupted.",
)
@click.version_option(package_name="diffperf")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Time, memory, energy and cost of training and serving LLMs on hardware that exists, or could."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
        return
    if COMMANDS[ctx.invoked_subcommand].needs_jax:
        # Here rather than above: the help of the group needs no JAX.
        from diffperf.cli.jax_settings import configure_jax

        configure_jax()
    raise_again()  # until here, Ctrl-C ended the process at once


def main() -> None:
    """Runs the command line of the process, as `diffperf`."""
    # Imports and compiled programs are hundreds of thousands of objects that last as long as the process:
    # looking for garbage among them costs half a second, most of it at the very end.
    gc.set_threshold(_OBJECTS_PER_COLLECTION)
    try:
        cli(prog_name="diffperf")
    finally:
        gc.freeze()
