"""Places of configs (shipped ones by name, a user's own by path), and the tables that TOML files hold."""

import functools
import importlib.resources
import logging
import tomllib
from pathlib import Path
from typing import Any

from diffperf.errors import ARGUMENTS, ConfigError, did_you_mean, spelled_alike

_LOG = logging.getLogger(__name__)
_OWN_MODEL = "a TOML file, a config.json or a folder with one"  # in place of a shipped model
_HUGGING_FACE = "config.json"


@functools.cache
def config_root() -> Path:
    """The folder of the shipped configs: inside an installed package, or beside the package in a checkout."""
    package = Path(str(importlib.resources.files("diffperf")))
    return package / "configs" if (package / "configs").is_dir() else package.parent / "configs"


def available(folder: str) -> list[str]:
    """The names of the shipped configs in a folder of configs/, in alphabetical order."""
    return sorted(path.stem for path in (config_root() / folder).glob("*.toml"))


def find(
    name: str, folder: str, beside: Path | None = None, asked_by: tuple[str, str] = (ARGUMENTS, "")
) -> Path:
    """The path of the file that `name` means.

    **Arguments:**

    - `name`: a path, where it holds a slash or ends in .toml or .json; else the name of a shipped config. A
      model may be the path of a folder with a `config.json`, as of every repository of Hugging Face.
    - `folder`: the folder of configs/ that holds shipped configs of this kind.
    - `beside`: the folder of the file that refers to the config. A path is relative to this folder first,
      then to the working directory.
    - `asked_by`: the file and the key that hold the name, for the error message.

    **Raises:** `ConfigError` where there is no such file.
    """
    file, key = asked_by
    of_file = name.endswith((".toml", ".json"))
    if of_file or "/" in name or name in (".", ".."):
        for base in ([beside] if beside else []) + [Path()]:
            if _is_file(base / name):
                return base / name
            if folder == "models" and _is_file(base / name / _HUGGING_FACE):
                return base / name / _HUGGING_FACE
        if folder == "models" and not of_file:
            raise _no_model(name, file, key)
        raise ConfigError(file, key, f'"{name}"', "an existing file", "check the path")
    path = config_root() / folder / f"{name}.toml"
    if _is_file(path):
        return path
    found, hint = f'"{name}"', did_you_mean(name, available(folder), f"diffperf list {folder}")
    elsewhere = sorted(other.name for other in config_root().iterdir() if _is_file(other / f"{name}.toml"))
    if elsewhere:
        found, hint = f'"{name}" of configs/{elsewhere[0]}', f"see diffperf list {folder}"
    expected = f"a name from configs/{folder} or a path ending in .toml"
    if folder == "models":
        expected = f"a name from configs/models, {_OWN_MODEL}"
        hint = f'write "./{name}" for the folder' if _is_file(Path(name) / _HUGGING_FACE) else hint
    raise ConfigError(file, key, found, expected, hint)


def _no_model(name: str, file: str, key: str) -> ConfigError:
    """An error about a path that leads to no model: that of a folder, or a name as of Hugging Face."""
    expected = f"a name from configs/models, {_OWN_MODEL}"
    if _is_folder(Path(name)):
        found, remedy = f'"{name}", a folder without a {_HUGGING_FACE}', f"put its {_HUGGING_FACE} there"
        return ConfigError(file, key, found, expected, remedy)
    near = spelled_alike(Path(name).name, available("models"))
    remedy = f"{near} Else download" if near else "download"
    remedy += f" its {_HUGGING_FACE}, and name that file"
    return ConfigError(file, key, f'"{name}"', expected, remedy)


def _is_file(path: Path) -> bool:
    """Whether the file exists. Names that no file can have (too long, with a NUL) count as missing files."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _is_folder(path: Path) -> bool:
    """Whether the folder exists, likewise."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def read_toml(path: Path) -> dict[str, Any]:
    """The table that a TOML file holds. Raises `ConfigError` where it cannot be read or is not TOML."""
    _LOG.debug("reads %s", display(path))
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, OSError) as problem:
        found = f"an unreadable file ({problem})"
        raise ConfigError(display(path), "", found, "UTF-8 text", "check the file") from None
    # Numbers of thousands of digits raise ValueError as syntax does, thousands of brackets RecursionError.
    except (ValueError, RecursionError) as problem:
        found = f"invalid TOML ({problem})"
        raise ConfigError(display(path), "", found, "TOML", "mend the syntax there") from None


def is_accelerator_file(path: Path) -> bool:
    """Whether a file is that of an accelerator and not of a system: a system's names its accelerator or its
    network, or extends a shipped system.

    **Raises:** `ConfigError` for a file that cannot be read.
    """
    table = read_toml(path)
    of_system = "accelerator" in table or "network" in table
    return not (of_system or table.get("extends") in available("systems"))


def display(path: Path) -> str:
    """A path as messages show it: shipped configs relative to configs/, other files as they were given."""
    try:
        return f"configs/{path.relative_to(config_root())}"
    except ValueError:
        return str(path)
