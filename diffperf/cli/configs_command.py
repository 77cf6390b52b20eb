"""diffperf list: the configs that are shipped."""

from typing import Any

import click
import jax
from rich.console import Group
from rich.table import Table

from diffperf import units
from diffperf.api.question import COMMAND_LINE
from diffperf.cli.answer_output import json_output, show_after_files
from diffperf.cli.completion import kinds
from diffperf.cli.options import json_option
from diffperf.errors import ConfigError, counted, did_you_mean
from diffperf.explore.calibrate.interval import Z90
from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.network import NetworkTier
from diffperf.hardware.system import System
from diffperf.load import FOLDERS, available, find, load, read_toml, reading_once
from diffperf.load.calibration import Calibration
from diffperf.quantity import Quantity, walk
from diffperf.report.tables import show
from diffperf.software.stack import Stack
from diffperf.workload.model import Model

# The folders of configs, with the class of their modules; design problems and spaces are no modules.
KINDS = {folder: cls for cls, folder in FOLDERS.items()} | {"problems": None, "spaces": None}
_MAIN_FIGURES = 4  # numbers shown of a config that has no summary of its own


@click.command("list")
@click.argument("kind", required=False, shell_complete=kinds)
@json_option
def list_configs(kind: str | None, json_file: str | None) -> None:
    """List the shipped configs, each with its main figures.

    KIND chooses some of them: models, systems, accelerators, and so on, as in the headings of the whole list.
    """
    if kind is not None and kind not in KINDS:
        hint = did_you_mean(kind, list(KINDS))
        raise ConfigError(COMMAND_LINE, "KIND", f'"{kind}"', "a kind of config", hint)
    with reading_once():
        lines = {
            folder: {name: facts(folder, name) for name in available(folder)}
            for folder in ([kind] if kind else KINDS)
        }
    sections = [part for folder, configs in lines.items() for part in ("", section(folder, configs))]
    show_after_files(lambda: [Group(*sections[1:])], json_output(json_file, lambda: lines))


def section(folder: str, configs: dict[str, str]) -> Table:
    """The configs of a folder, below its name."""
    rows = Table(
        box=None, pad_edge=False, show_header=False, title=folder, title_justify="left", title_style="bold"
    )
    for name, line in configs.items():
        rows.add_row(name, line)
    return rows


def facts(folder: str, name: str) -> str:
    """The main figures of a config in one line."""
    cls, asked_by = KINDS[folder], (COMMAND_LINE, "")
    if cls is None:
        return question_facts(read_toml(find(name, folder, asked_by=asked_by)))
    module = load(cls, name, asked_by=asked_by)
    if isinstance(module, Calibration):
        return calibration_facts(module)
    if isinstance(module, Model):
        return model_facts(module)
    if isinstance(module, Accelerator):
        return accelerator_facts(module)
    if isinstance(module, System):
        devices = f"{units.plain(module.n_devices)} × {module.accelerator.name}"
        return ", ".join([devices, *map(tier_facts, module.network)])
    numbers = [leaf for leaf in walk(module) if isinstance(leaf[1], Quantity)]
    figures = ", ".join(
        f"{path.split('.')[-1].replace('_', ' ')} {show(value, declared)}"
        for path, declared, value in numbers[:_MAIN_FIGURES]
    )
    return f"from {module.basis}: {figures}" if isinstance(module, Stack) else figures


_parameters = jax.jit(lambda model: model.parameters)  # one program for all models of a structure


def model_facts(model: Model) -> str:
    """A model's parameters, layers and width."""
    layers, width = sum(float(kind.count) for kind in model.layers), float(model.hidden)
    parameters = f"{float(_parameters(model)) / 1e9:.4g} B parameters"
    return f"{parameters}, {counted(layers, 'layer', f'{layers:g}')} of width {units.plain(width)}"


def accelerator_facts(device: Accelerator) -> str:
    """An accelerator's peak rate, memory and power."""
    memory = device.device_memory
    capacity, bandwidth = units.show(memory.capacity, "byte"), units.show(memory.bandwidth, "byte/s")
    rate, power = units.show(device.matrix.bf16.rate, "FLOP/s"), units.show(device.power_limit, "W")
    return f"{rate} bf16, {capacity} at {bandwidth}, {power}"


def calibration_facts(calibration: Calibration) -> str:
    """Numbers of a calibration: its values, its system, and the 90 % intervals of its errors by kind of
    table.
    """
    fitted = f"{counted(len(calibration.values), 'value')} of {calibration.system} ({calibration.hardware})"
    # Keys of two words are spreads for one number format of a kind.
    spreads = {kind: spread for kind, spread in calibration.spread.items() if " " not in kind}
    return f"{fitted}, ± " + ", ".join(f"{Z90 * spread:.0%} on {kind}" for kind, spread in spreads.items())


def tier_facts(tier: NetworkTier) -> str:
    """A network tier's name and bandwidth."""
    return f"{tier.name} {units.show(tier.bandwidth, 'byte/s')}"


def question_facts(table: dict[str, Any]) -> str:
    """Subject of a space or a design problem: its kind, model, phase and system."""
    kind = f"sweep of {len(table['axis'])} axes" if "axis" in table else "co-design"
    return f"{kind}: {table.get('model', '?')} {table.get('phase', 'training')} on {table.get('system', '?')}"
