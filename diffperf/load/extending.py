"""Configs that extend others: `extends = "h100-sxm5-80gb"` takes from there what a table leaves out.

    extends = "h100-sxm5-80gb"
    memory.hbm.capacity = "96 GiB"
    memory.hbm.bandwidth = "4 TB/s"

Tables are merged before they are read, so that what follows from a changed key follows from its new value.
A member of an array of tables is meant by its name, as in paths of inputs.
"""

import dataclasses
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from diffperf.errors import ConfigError, did_you_mean
from diffperf.load.checks import shown

EXTENDS = "extends"


@dataclasses.dataclass(frozen=True)
class Origin:
    """Place of a table: its file as errors name it, its folder, and the files that extend this one."""

    file: str
    folder: Path | None
    chain: tuple[Path, ...] = ()

    def error(self, key: str, found: str, expected: str, remedy: str) -> ConfigError:
        """A `ConfigError` of this file."""
        return ConfigError(self.file, key, found, expected, remedy)


# Reads the table of the config that a text names: (name, key, origin) to (table, origin, name of the config).
Reader = Callable[[str, str, Origin], tuple[dict[str, Any], Origin, str]]


def extended(
    table: dict[str, Any], prefix: str, origin: Origin, read: Reader, configs: Collection[str]
) -> dict[str, Any]:
    """A table with the keys of the config that it extends, and of those that this one extends.

    `prefix` is the path of the table in its file, with a dot at its end; `configs` are the names of keys
    under which a text is the name of another config, which a table there extends. The result has no key
    `extends`, and under `lineage` the names of the configs that it has keys from, the nearest first.

    **Raises:** `ConfigError` where a config extends itself, and for a member that the extended one lacks.
    """
    own = {key: value for key, value in table.items() if key != EXTENDS}
    base = table[EXTENDS]
    key = prefix + EXTENDS
    if not isinstance(base, str):
        raise origin.error(key, shown(base), "the name or the path of a config", "quote it")
    base_table, its_origin, name = read(base, key, origin)
    if EXTENDS in base_table:
        base_table = extended(base_table, "", its_origin, read, configs)
    older = base_table.pop("lineage", ())
    merged = _Merging(origin, configs).tables({"name": name, **base_table}, own, prefix)
    return {**merged, "lineage": (name, *older)}


def refuse_circle(path: Path, key: str, origin: Origin) -> tuple[Path, ...]:
    """The chain of files with one more. Raises `ConfigError` where the chain has this file already."""
    path = path.resolve()
    if path in origin.chain:
        circle = " → ".join(each.name for each in (*origin.chain[origin.chain.index(path) :], path))
        raise origin.error(
            key, f"{circle}, a circle", "a config that does not extend this one", "name another"
        )
    return (*origin.chain, path)


def absolute_paths(value: Any, folder: Path) -> Any:
    """A value of a table in which paths of files beside its own file hold from everywhere."""
    if isinstance(value, dict):
        return {key: absolute_paths(each, folder) for key, each in value.items()}
    if isinstance(value, list):
        return [absolute_paths(each, folder) for each in value]
    beside = isinstance(value, str) and value.endswith((".toml", ".json")) and (folder / value).is_file()
    return str((folder / value).resolve()) if beside else value


@dataclasses.dataclass(frozen=True)
class _Merging:
    """The merging of a table of a file with that of the config that it extends."""

    origin: Origin
    configs: Collection[str]

    def tables(self, base: dict[str, Any], own: dict[str, Any], prefix: str) -> dict[str, Any]:
        """The keys of both tables; those of `own` go first, and tables under one key are merged in turn."""
        both = {key: self.values(base[key], value, prefix + key) for key, value in own.items() if key in base}
        return {**base, **own, **both}

    def values(self, base: Any, own: Any, key: str) -> Any:
        """The value of a key that both tables give."""
        if isinstance(base, list) and isinstance(own, dict):
            return self.members_by_name(base, own, key)
        if isinstance(base, list) and isinstance(own, list):
            named = {
                member["name"]: member for member in base if isinstance(member, dict) and "name" in member
            }
            return [self.member(named, member, f"{key}[{index}].") for index, member in enumerate(own)]
        if isinstance(base, dict) and isinstance(own, dict):
            return self.tables(base, own, key + ".")
        if isinstance(base, str) and isinstance(own, dict) and EXTENDS not in own:
            return self.over_text(base, own, key)
        return own

    def members_by_name(self, base: list[Any], own: dict[str, Any], key: str) -> list[Any]:
        """An array of tables in which the members that a table names have its keys."""
        names = [str(member.get("name", index)) for index, member in enumerate(base)]
        for name, table in own.items():
            if name not in names:
                expected, hint = f"one of {', '.join(names)}", did_you_mean(name, names)
                raise self.origin.error(f"{key}.{name}", f'unknown name "{name}"', expected, hint)
            if not isinstance(table, dict):
                remedy = f"write {key}.{name}.KEY = …"
                raise self.origin.error(f"{key}.{name}", shown(table), "a table of changed keys", remedy)
        return [
            self.tables(member, own[name], f"{key}.{name}.") if name in own else member
            for name, member in zip(names, base, strict=True)
        ]

    def member(self, named: dict[str, Any], own: Any, prefix: str) -> Any:
        """A member of an array, with the keys of the extended config's member of the same name."""
        base = named.get(str(own.get("name"))) if isinstance(own, dict) else None
        return own if base is None else self.tables(base, own, prefix)

    def over_text(self, base: str, own: dict[str, Any], key: str) -> dict[str, Any]:
        """A table in place of a text: of the name of a config, or of the rate of a number format."""
        group, _, name = key.rpartition(".")
        if name in self.configs:
            return {EXTENDS: base, **own}
        return {"rate": base, **own} if group.endswith("matrix") else own
