"""diffperf list: which configs exist."""

from typing import Any

import click
import jax
from rich.console import Group
from rich.table import Table

from diffperf import units
from diffperf.cli.options import json_option
from diffperf.cli.terminal import console, write_json
from diffperf.errors import ConfigError, did_you_mean
from diffperf.explore.calibrate.interval import Z90
from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.system import System
from diffperf.load import FOLDERS, available, find, load, read_toml
from diffperf.load.calibration import Calibration
from diffperf.quantity import Quantity, walk
from diffperf.report.tables import show
from diffperf.workload.model import Model

KINDS = {folder: cls for cls, folder in FOLDERS.items()} | {"problems": None, "spaces": None}


@click.command("list")
@click.argument("kind", required=False)
@json_option
def list_configs(kind, json_file):
    """List the shipped configs, all or of one KIND (models, systems, accelerators, …), each with its main figures."""
    if kind is not None and kind not in KINDS:
        raise ConfigError(
            "command line", "KIND", f'"{kind}"', "a kind of config", did_you_mean(kind, list(KINDS))
        )
    found = {
        folder: {name: facts(folder, name) for name in available(folder)}
        for folder in ([kind] if kind else KINDS)
    }
    sections = []
    for folder, configs in found.items():
        rows = Table(
            box=None,
            pad_edge=False,
            show_header=False,
            title=folder,
            title_justify="left",
            title_style="bold",
        )
        for name, line in configs.items():
            rows.add_row(name, line)
        sections += [rows, ""]
    console(json_file).print(Group(*sections[:-1]))
    write_json(found, json_file)


def facts(folder: str, name: str) -> str:
    """A config in one line."""
    if folder in ("problems", "spaces"):
        return study_facts(read_toml(find(name, folder, asked_by=("command line", ""))))
    module = load(KINDS[folder], name, asked_by=("command line", ""))
    if isinstance(module, Calibration):
        return calibration_facts(module)
    if isinstance(module, Model):
        return model_facts(module)
    if isinstance(module, Accelerator):
        return accelerator_facts(module)
    if isinstance(module, System):
        return f"{float(module.n_devices):g} × {module.accelerator.name}, " + ", ".join(
            map(tier_facts, module.network)
        )
    numbers = [
        (path, declared, value) for path, declared, value in walk(module) if isinstance(declared, Quantity)
    ]
    return ", ".join(
        f"{path.split('.')[-1].replace('_', ' ')} {show(value, declared)}"
        for path, declared, value in numbers[:4]
    )


_parameters = jax.jit(lambda model: model.parameters)


def model_facts(model: Model) -> str:
    layers = sum(float(kind.count) for kind in model.layers)
    return f"{float(_parameters(model)) / 1e9:.4g} B parameters, {layers:g} layers of width {float(model.hidden):g}"


def accelerator_facts(device: Accelerator) -> str:
    memory = device.device_memory
    rate, power = units.show(device.matrix.bf16.rate, "FLOP/s"), units.show(device.power_limit, "W")
    return f"{rate} bf16, {units.show(memory.capacity, 'byte')} at {units.show(memory.bandwidth, 'byte/s')}, {power}"


def calibration_facts(found: Calibration) -> str:
    fitted = f"{len(found.values)} values of {found.system} ({found.hardware})"
    return f"{fitted}, ± " + ", ".join(
        f"{Z90 * spread:.0%} on {kind}" for kind, spread in found.spread.items() if " " not in kind
    )


def tier_facts(tier) -> str:
    return f"{tier.name} {units.show(tier.bandwidth, 'byte/s')}"


def study_facts(study: dict[str, Any]) -> str:
    kind = f"sweep of {len(study['axis'])} axes" if "axis" in study else "co-design"
    return f"{kind}: {study.get('model', '?')} {study.get('phase', 'training')} on {study.get('system', '?')}"
