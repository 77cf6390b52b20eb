"""The systems that measured rows ran on: their hardware, software and calibration."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import jax
import numpy as np

from diffperf.errors import ARGUMENTS, ConfigError, did_you_mean
from diffperf.explore.measured.names import NO_NODE, StackNames, SystemNames, read_names
from diffperf.explore.measured.versions import Claim, newest_claim
from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.network import NetworkTier
from diffperf.hardware.system import System
from diffperf.load import (
    available,
    calibrated,
    config_root,
    display,
    find,
    is_accelerator_file,
    load,
    load_calibrated,
)
from diffperf.load.calibration import Calibration
from diffperf.software.stack import Stack

ONE_DEVICE = "one-device"  # the system that stands around the accelerator of a file


def double_precision() -> bool:
    """Whether JAX computes in double precision at the moment: what is loaded in one precision stays in it."""
    return jax.dtypes.result_type(float) == np.float64


@dataclasses.dataclass(frozen=True, eq=False)
class Platform:
    """A system that rows ran on, in any number of devices.

    - `system`: the system with the values of its file, not of a calibration.
    - `calibration`: the calibration that the system's file names.
    - `names`: the names in the column `hardware` that mean the system.
    - `node`: the index of the network tier whose domains are machines; None where no tier is one.
    - `alone`: whether the system is one accelerator without a network.
    """

    system: System
    calibration: Calibration | None
    names: tuple[str, ...]
    node: int | None
    alone: bool = False

    @property
    def accelerator(self) -> str:
        """The name of the accelerator."""
        return str(self.system.accelerator.name)


@dataclasses.dataclass(frozen=True, eq=False)
class Software:
    """A software stack that drove rows, and what tables of measurements call it."""

    stack: Stack
    names: StackNames


@dataclasses.dataclass(frozen=True)
class Platforms:
    """Systems and stacks that the names in tables of measurements mean: shipped ones, and the user's own.

    - `own`: the user's own platforms by their names in the column `hardware`, in place of shipped ones of
      that name.
    - `own_software`: the user's own software by the path of its file, as tables name it.
    - `calibration`: the fitted values that rows of the calibration's accelerator have in place of those
      that the systems' files name; "none" for the values that systems have without any calibration.
    """

    own: Mapping[str, Platform] = dataclasses.field(default_factory=dict)
    own_software: Mapping[str, Software] = dataclasses.field(default_factory=dict)
    calibration: Calibration | Literal["none"] | None = None

    def __contains__(self, hardware: str) -> bool:
        return hardware in self.own or hardware in _shipped_systems()

    def __getitem__(self, hardware: str) -> Platform:
        """The platform that a name in the column `hardware` means. Raises `KeyError`."""
        if hardware in self.own:
            return self.own[hardware]
        return _shipped_platform(_shipped_systems()[hardware], double_precision())

    def name_in(self, kind: str, hardware: str, source: str | None = None) -> str:
        """The name of the platform that a text in the column `hardware` means in a row of some kind of table,
        with its text in the column `source`.

        It is the text itself, unless a shipped system claims the text for such tables or sources alone.
        """
        if hardware in self.own:
            return hardware
        for text, beginning, name in _systems_of_sources():
            if text == hardware and (source or "").startswith(beginning):
                return name
        return _systems_of_tables().get((kind, hardware), hardware)

    def software_in(self, text: str | None, source: str | None, assumptions: str | None = None) -> str | None:
        """What a row calls its software: the text itself, unless its text in the column `source` or
        `assumptions` means a shipped stack, whose name it is then.
        """
        if text in self.own_software:
            return text
        for stack, names in _stack_names().items():
            of_source = any((source or "").startswith(beginning) for beginning in names.source)
            if of_source or any(assumed in (assumptions or "") for assumed in names.assumptions):
                return stack
        return text

    @property
    def hardware(self) -> list[str]:
        """All names that mean a platform."""
        return sorted({*self.own, *_shipped_systems()})

    def with_calibration(self, calibration: Calibration | Literal["none"] | None) -> "Platforms":
        """These platforms with a calibration in place of the present one."""
        return dataclasses.replace(self, calibration=calibration)

    def with_system(self, name: str, asked_by: tuple[str, str] = (ARGUMENTS, "")) -> "Platforms":
        """These platforms and a system by its shipped name, or by the path of a file.

        The file is that of a system or of an accelerator.

        All names that mean the system, its accelerator's name among them, mean this system from then on.
        **Raises:** `ConfigError`.
        """
        platform = read_platform(name, asked_by=asked_by)
        named = dict.fromkeys((*platform.names, platform.accelerator, name), platform)
        return dataclasses.replace(self, own={**self.own, **named})

    def with_file(self, path: Path) -> "Platforms":
        """These platforms and that of a system's or accelerator's file, called by its path.

        **Raises:** `ConfigError`.
        """
        return dataclasses.replace(self, own={**self.own, str(path): read_platform(str(path))})

    def with_stack(self, path: Path) -> "Platforms":
        """These platforms and the software of a stack's file, called by its path. Raises `ConfigError`."""
        software = Software(load(Stack, path), read_names(StackNames, path))
        return dataclasses.replace(self, own_software={**self.own_software, str(path): software})

    def joined(self, other: "Platforms") -> "Platforms":
        """These platforms and those of another table."""
        own, software = {**self.own, **other.own}, {**self.own_software, **other.own_software}
        return dataclasses.replace(self, own=own, own_software=software)

    def software(
        self,
        column: str,
        text: str | None,
        accelerator: str,
        *,
        model: str = "",
        served: bool = False,
        trained: bool = False,
    ) -> Software | None:
        """The software that a text in a column means on an accelerator; None for the system's own.

        `model` is the name of the model that it runs, where a row names one. `served` says whether it is the
        software of a server with clients, `trained` whether it is that of a training run.
        """
        if not text:
            return None
        if text in self.own_software:
            return self.own_software[text]
        stack = shipped_stack(column, text.lower(), accelerator, model=model, served=served, trained=trained)
        return None if stack is None else _shipped_software(stack, double_precision())

    def system(self, hardware: str, software: Software | None = None) -> System:
        """The system that a name in the column `hardware` means, driven by the given software.

        The software drives training and inference; without any, the system's own two stacks do.

        Its values are those of the calibration; its leaves are NumPy arrays.
        """
        return _driven(self[hardware], software, self.calibration_of(hardware))

    def calibration_of(self, hardware: str) -> Calibration | None:
        """The calibration whose values the system has that a name in the column `hardware` means."""
        platform, calibration = self[hardware], self.calibration
        if calibration is None or (
            isinstance(calibration, Calibration) and calibration.hardware != platform.accelerator
        ):
            calibration = platform.calibration
        return calibration if isinstance(calibration, Calibration) else None


def platforms_with(systems: Sequence[str], file: str = ARGUMENTS) -> Platforms:
    """The shipped platforms, with systems by name or path in place of them.

    `file` is what names these systems, for error messages.

    **Raises:** `ConfigError`.
    """
    platforms = Platforms()
    for name in systems:
        platforms = platforms.with_system(name, (file, "--system"))
    return platforms


@functools.lru_cache(maxsize=1024)
def _driven(platform: Platform, software: Software | None, calibration: Calibration | None) -> System:
    """The platform's system with a stack in place of its own two, and with fitted values."""
    system = platform.system
    if software is not None:
        system = dataclasses.replace(system, stack=software.stack, inference_stack=software.stack)
    if calibration is not None:
        system = calibrated(system, calibration)
    return jax.tree.map(np.asarray, system)


def read_platform(name: str, asked_by: tuple[str, str] = (ARGUMENTS, "")) -> Platform:
    """The platform of a system by its shipped name or file, or of an accelerator by its file.

    **Raises:** `ConfigError`.
    """
    path = find(name, "systems", asked_by=asked_by)
    if is_accelerator_file(path):
        return _alone(load(Accelerator, path))
    system, calibration = load_calibrated(path)
    if calibration is not None:
        system, _ = load_calibrated(path, calibration="none")
    names = read_names(SystemNames, path)
    node = _node(system, names, display(path))
    return Platform(system, calibration, (str(system.name), *names.hardware), node)


def _alone(accelerator: Accelerator) -> Platform:
    """An accelerator without a network."""
    system = load_calibrated(ONE_DEVICE)[0]
    system = dataclasses.replace(system, name=str(accelerator.name), accelerator=accelerator)
    return Platform(system, calibration=None, names=(str(accelerator.name),), node=None, alone=True)


def _node(system: System, names: SystemNames, file: str) -> int | None:
    """The index of the network tier that a system's file calls a node."""
    tiers = [str(tier.name) for tier in system.network]
    if names.node == NO_NODE:
        return None
    if names.node and names.node not in tiers:
        hint = did_you_mean(names.node, [*tiers, NO_NODE])
        raise ConfigError(file, "measured.node", f'"{names.node}"', "the name of a network tier", hint)
    return tiers.index(names.node) if names.node else 0


# --- shipped configs, which do not change while a program runs


@functools.cache
def _system_names() -> dict[str, SystemNames]:
    """Names of shipped systems in tables of measurements, by the system's name."""
    folder = config_root() / "systems"
    return {name: read_names(SystemNames, folder / f"{name}.toml") for name in available("systems")}


@functools.cache
def _shipped_systems() -> dict[str, str]:
    """The shipped system that every known text in the column `hardware` means."""
    of_hardware = {
        text: name
        for name, names in _system_names().items()
        for text in names.hardware
        if not names.tables and not names.source
    }
    return {name: name for name in _system_names()} | of_hardware


@functools.cache
def _systems_of_tables() -> dict[tuple[str, str], str]:
    """The shipped system that a text in the column `hardware` means in tables of one kind alone."""
    return {
        (kind, text): name
        for name, names in _system_names().items()
        for kind in names.tables
        for text in names.hardware
    }


@functools.cache
def _systems_of_sources() -> list[tuple[str, str, str]]:
    """Texts in the column `hardware`, with how texts in the column `source` begin in rows in which they mean
    a shipped system, and that system.
    """
    return [
        (text, beginning, name)
        for name, names in _system_names().items()
        for text in names.hardware
        for beginning in names.source
    ]


@functools.cache
def _shipped_platform(name: str, x64: bool) -> Platform:
    """The platform of a shipped system. `x64` only keys the cache: each precision has its own copy."""
    return read_platform(name)


@functools.cache
def stated_network(interconnect: str, x64: bool) -> NetworkTier | None:
    """The network between nodes that an interconnect's name means; None for the system's own.

    `x64` only keys the cache: each precision has its own copy.
    """
    for name, names in _system_names().items():
        if interconnect in names.interconnect:
            return _shipped_platform(name, x64).system.network[-1]
    return None


@functools.cache
def _stack_names() -> dict[str, StackNames]:
    """Names of shipped stacks in tables of measurements, by the stack's name."""
    folder = config_root() / "stacks"
    return {name: read_names(StackNames, folder / f"{name}.toml") for name in available("stacks")}


@functools.cache
def shipped_stack(
    column: str,
    text: str,
    accelerator: str,
    *,
    model: str = "",
    served: bool = False,
    trained: bool = False,
) -> str | None:
    """The shipped stack that a text in a column means on an accelerator; None for no stack.

    The text is in lower case. `model` is the name of the model that runs, where it is known. `served` says
    whether the text means the software of a server with clients, `trained` whether that of a training run.

    Of the stacks that claim a name with which the text begins, the newest that is not newer than the
    version in the text counts (`diffperf.explore.measured.versions`).
    """
    # Claims of training runs alone come last, and so go before the same claims of all tables.
    columns = [column, "trains"] if trained and column == "framework" else [column]
    stack_of = {
        Claim.parse(entry): stack
        for each in columns
        for stack, names in _stack_names().items()
        for entry in getattr(names, each)
    }
    claim = newest_claim(stack_of, text)
    if claim is None:
        return None
    stack: str | None = stack_of[claim]
    while (other := _stand_in(str(stack), accelerator, model, served)) is not None:
        stack = other
    return stack


def _stand_in(stack: str, accelerator: str, model: str, served: bool) -> str | None:
    """The stack that stands in for another on an accelerator and for a model; None where none does."""
    for other, names in _stack_names().items():
        on_this, of_this = accelerator.startswith(names.on or ("",)), model.startswith(names.models or ("",))
        if stack in names.replaces and on_this and of_this and (served or not names.served):
            return other
    return None


@functools.cache
def _shipped_software(stack: str, x64: bool) -> Software:
    """The software of a shipped stack. `x64` only keys the cache: each precision has its own copy."""
    return Software(load(Stack, stack), _stack_names()[stack])
