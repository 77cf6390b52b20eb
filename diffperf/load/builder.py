"""Tables become modules: the keys of a table are the fields of a class, checked against their declarations.

A field that is a module itself is a table, an array of tables, or the name of another config.
"""

import contextlib
import dataclasses
import functools
import types
import typing
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import equinox as eqx
import jax

from diffperf import units
from diffperf.errors import ConfigError, MissingKeys, did_you_mean, spelled_alike
from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.floorplan import Family
from diffperf.hardware.host import Host
from diffperf.hardware.network import NetworkTier
from diffperf.hardware.node import Node
from diffperf.hardware.packaging import Bond, Layer, Packaging
from diffperf.hardware.process import Process
from diffperf.hardware.system import Prices, System
from diffperf.hardware.technology import LinkTechnology, MemoryTechnology, Technology
from diffperf.load.calibration import Calibration
from diffperf.load.checks import checked, inconsistency_of, shown
from diffperf.load.extending import EXTENDS, Origin, absolute_paths, extended, refuse_circle
from diffperf.load.features import with_typical_numbers
from diffperf.load.files import display, find, read_toml
from diffperf.load.huggingface import huggingface_table, naming_keys_of, read_huggingface
from diffperf.load.own_prices import gives_price_alone, priced_as_it_is
from diffperf.load.similar_inputs import key_elsewhere, module_class
from diffperf.quantity import declaration, segment
from diffperf.software.collective_library import CollectiveLibrary
from diffperf.software.stack import Stack
from diffperf.workload.model import Model

# The folder of configs/ that holds the configs of each class.
FOLDERS: dict[type, str] = {
    Accelerator: "accelerators",
    System: "systems",
    Model: "models",
    Technology: "technology",
    Node: "nodes",
    MemoryTechnology: "memories",
    LinkTechnology: "links",
    NetworkTier: "networks",
    Family: "families",
    Process: "processes",
    Packaging: "packages",
    Layer: "layers",
    Bond: "bonds",
    Stack: "stacks",
    CollectiveLibrary: "collectives",
    Prices: "prices",
    Host: "hosts",
    Calibration: "calibrations",
}


# The modules that a block `reading_once` has read, by class, file and type of float; None outside of one.
_READ: ContextVar[dict[tuple[type, Path, Any], Any] | None] = ContextVar("_READ", default=None)


@contextlib.contextmanager
def reading_once() -> Iterator[None]:
    """A block in which a config that several others name is read once, and they share its module.

    It is for many configs at once: the shipped systems name 189 files 1,336 times. A file that changes while
    the block lasts is not read again, and nothing may be loaded in it that JAX traces.
    """
    outside = _READ.set({})
    try:
        yield
    finally:
        _READ.reset(outside)


def read_module(cls: type[eqx.Module], path: Path) -> Any:
    """The module of class `cls` that a TOML file holds, or the model that a `config.json` describes.

    Unless the file gives a name, the module is called as the file is; one called `config.json`, as in every
    repository of Hugging Face, as its folder.
    **Raises:** `ConfigError`.
    """
    read = _READ.get()
    if read is None:
        return _module_of_file(cls, path)
    key = cls, path.resolve(), jax.dtypes.canonicalize_dtype(float)
    if key not in read:
        read[key] = _module_of_file(cls, path)
    return read[key]


def _module_of_file(cls: type[eqx.Module], path: Path) -> Any:
    """The module that a file holds."""
    builder = Builder(display(path), path.parent, (path.resolve(),))
    if path.suffix == ".json":
        name = path.resolve().parent.name if path.stem == "config" else path.stem
        config = read_huggingface(path)
        with naming_keys_of(config):
            return builder.module(cls, huggingface_table(config, str(path)), name=name or path.stem)
    return builder.module(cls, read_toml(path), name=path.stem)


@dataclasses.dataclass(frozen=True)
class Builder:
    """Builds modules from the tables of one file.

    - `file`: the file as error messages name it.
    - `folder`: the folder that holds the file, which paths to other configs are relative to.
    - `chain`: the file itself, and the files that extend it: none of them may be extended in turn.
    """

    file: str
    folder: Path | None = None
    chain: tuple[Path, ...] = ()

    def error(self, key: str, found: str, expected: str, remedy: str) -> ConfigError:
        """A `ConfigError` of this file."""
        return ConfigError(self.file, key, found, expected, remedy)

    def module(self, cls: type[eqx.Module], table: Any, prefix: str = "", name: str | None = None) -> Any:
        """A module of class `cls` from a table.

        `prefix` is the path of the table in its file, with a dot at its end; `name` is what the module is
        called where the table has no name.
        """
        if not isinstance(table, dict):
            expected = f"a table of {cls.__name__} keys"
            raise self.error(prefix.rstrip("."), shown(table), expected, "write it as a TOML table")
        has_own_price = cls is Accelerator and gives_price_alone(table)  # before the extended table has one
        if EXTENDS in table and cls in FOLDERS:
            table = self._extended(cls, table, prefix, name)
        if cls is Stack:
            table = with_typical_numbers(table, prefix, Origin(self.file, self.folder, self.chain))
        if (complete := getattr(cls, "complete", None)) is not None:
            table = complete(table)
        fields = {field.name: field for field in dataclasses.fields(cls)}
        self._refuse_unknown_keys(cls, table, prefix, fields)
        base = self._base(cls, table, prefix)
        values, missing = {}, []
        for field in fields.values():
            key = prefix + field.name
            if field.name in table:
                try:
                    values[field.name] = self._value(field, table[field.name], key)
                except MissingKeys as problem:
                    missing.append(self._own(problem))
            elif field.name == "name" and "label" in field.metadata and name is not None:
                values["name"] = name
            elif field.name != "name" and hasattr(base, field.name):
                values[field.name] = getattr(base, field.name)
            elif field.default is dataclasses.MISSING:
                missing.append(MissingKeys(self.file, {key: _expected(field)}))
        if missing:
            raise _without_what_follows(cls, MissingKeys.all_of(missing), prefix)
        module = cls(**values)
        problem = inconsistency_of(module)
        if problem is not None:
            raise self.error(prefix + problem[0], *problem[1:])
        return priced_as_it_is(module) if has_own_price and isinstance(module, Accelerator) else module

    def _own(self, problem: MissingKeys) -> MissingKeys:
        """Missing keys of this file; those of another one that it names are raised at once."""
        if problem.file != self.file:
            raise problem
        return problem

    def _extended(
        self, cls: type[eqx.Module], table: dict[str, Any], prefix: str, name: str | None
    ) -> dict[str, Any]:
        """A table with the keys of the config that it extends.

        A file's own name goes before that of the extended config; a part of a file keeps the latter, unless
        it has one of its own.
        """

        def read(config: str, key: str, origin: Origin) -> tuple[dict[str, Any], Origin, str]:
            path = find(config, FOLDERS[cls], origin.folder, (origin.file, key))
            chain = refuse_circle(path, key, origin)
            content = absolute_paths(read_toml(path), path.parent)
            if cls is Accelerator and gives_price_alone(content):
                quoted = float(read_module(cls, path).priced_manufacturing)
                content["priced_manufacturing"] = f"{quoted!r} USD"
            return content, Origin(display(path), path.parent, chain), content.get("name", path.stem)

        origin = Origin(self.file, self.folder, self.chain)
        merged = extended(table, prefix, origin, read, _fields_of_configs())
        lineage = merged.pop("lineage")
        names = {field.name for field in dataclasses.fields(cls)}
        if "name" not in names or (not prefix and name is not None and "name" not in table):
            del merged["name"]
        return merged | ({EXTENDS: ", ".join(lineage)} if EXTENDS in names else {})

    def _base(self, cls: type[eqx.Module], table: dict[str, Any], prefix: str) -> eqx.Module | None:
        """The module that a table names as the one to take absent fields from; `None` where it names none."""
        key, base = getattr(cls, "BASE", ("", None))
        return self._nested(base, table[key], prefix + key) if base and key in table else None

    def _refuse_unknown_keys(
        self,
        cls: type[eqx.Module],
        table: dict[str, Any],
        prefix: str,
        fields: dict[str, dataclasses.Field],
    ) -> None:
        """Raises `ConfigError` for the first key of a table that is no field of the class."""
        for key in table:
            if key not in fields:
                remedy = _remedy_for_unknown_key(key, table, fields)
                raise self.error(prefix + key, f'unknown key "{key}"', f"a key of {cls.__name__}", remedy)

    def _value(self, field: dataclasses.Field, value: Any, key: str) -> Any:
        """The value of one field: a number, weights, a text, a module, or a tuple of modules."""
        if (declared := declaration(field)) is not None:
            return checked(declared, value, self.file, key)
        if "label" in field.metadata:
            if not isinstance(value, str):
                raise self.error(key, shown(value), "a text", "quote it")
            return value
        if (alternatives := field.metadata.get("variant")) is not None:
            if value not in alternatives:
                remedy = did_you_mean(str(value), list(alternatives))
                raise self.error(key, shown(value), _expected(field), remedy)
            return value
        cls = module_class(field.type)
        if isinstance(field.type, types.GenericAlias):  # tuple[Module, ...]
            return self._array(cls, value, key)
        return self._nested(cls, value, key)

    def _array(self, cls: type[eqx.Module], value: Any, key: str) -> tuple[eqx.Module, ...]:
        """Modules from an array of at least one table.

        Their names are parts of paths: all different, without dots.
        """
        if not isinstance(value, list) or not value:
            raise self.error(key, shown(value), "an array of tables", f"write [[{key}]] before each")
        members, missing = [], []
        for index, item in enumerate(value):
            try:
                members.append(self._nested(cls, item, f"{key}[{index}]"))
            except MissingKeys as problem:
                missing.append(self._own(problem))
        if missing:
            raise MissingKeys.all_of(missing)
        names = [segment(member, index) for index, member in enumerate(members)]
        for index, name in enumerate(names):
            if not name or "." in name or name in names[:index]:
                expected = "a name without dots that no other has"
                raise self.error(f"{key}[{index}].name", shown(name), expected, "give each its own name")
        return tuple(members)

    def _nested(self, cls: type[eqx.Module], value: Any, key: str) -> Any:
        """A module from its own table, or from the config that a text names."""
        if not isinstance(value, str):
            is_member = key.endswith("]")  # members of an array have to be given a name
            return self.module(cls, value, key + ".", name=None if is_member else key.rsplit(".", 1)[-1])
        if cls not in FOLDERS:
            expected = f"a table of {cls.__name__} keys"
            raise self.error(key, shown(value), expected, "write it as a TOML table")
        return read_module(cls, find(value, FOLDERS[cls], self.folder, (self.file, key)))


def _without_what_follows(cls: type[eqx.Module], problem: MissingKeys, prefix: str) -> MissingKeys:
    """The missing keys of a module's table without those that follow from others, as its class says."""
    follows = getattr(cls, "follows", None)
    if follows is None:
        return problem
    missing = {key.removeprefix(prefix): text for key, text in problem.expected_at.items()}
    needed = {prefix + key: text for key, text in missing.items() if not follows(key, missing)}
    return MissingKeys(problem.file, needed)


@functools.cache
def _fields_of_configs() -> frozenset[str]:
    """The names of fields that hold what a config of its own may describe, such as `accelerator`."""
    names: set[str] = set()
    seen: set[type] = set()
    classes = list(FOLDERS)
    while classes:
        cls = classes.pop()
        if cls in seen or not dataclasses.is_dataclass(cls):
            continue
        seen.add(cls)
        types_of = {field.name: field.type for field in dataclasses.fields(cls)}
        modules = {name: next(iter(typing.get_args(kind)), kind) for name, kind in types_of.items()}
        names |= {name for name, inner in modules.items() if inner in FOLDERS}
        classes += [inner for inner in modules.values() if isinstance(inner, type)]
    return frozenset(names)


def _remedy_for_unknown_key(key: str, table: dict[str, Any], fields: dict[str, dataclasses.Field]) -> str:
    """The place of an unknown key: in an optional part that has such a key, else under a similar name."""
    for field in fields.values():
        if not isinstance(field.type, types.UnionType):
            continue
        part = dataclasses.fields(module_class(field.type))
        if any(inner.name == key for inner in part):
            names = [
                inner.name for inner in part if inner.name in table or inner.default is dataclasses.MISSING
            ]
            keys = ", ".join(f"{name} = {shown(table[name]) if name in table else '…'}" for name in names)
            return f"write {field.name} = {{ {keys} }}"
    near = spelled_alike(key, fields)
    return near or key_elsewhere(key, System, Model, Technology) or did_you_mean(key, list(fields))


def _expected(field: dataclasses.Field) -> str:
    """The value that a file should give for a field that it leaves out."""
    if (declared := field.metadata.get("quantity")) is not None:
        return f"{declared.doc}, such as {units.example_between(declared.unit, *declared.bounds)}"
    if (declared := field.metadata.get("choice")) is not None:
        return "one of " + ", ".join(declared.alternatives)
    if (alternatives := field.metadata.get("variant")) is not None:
        return "one of " + ", ".join(alternatives)
    if (text := field.metadata.get("label")) is not None:
        return text
    cls = module_class(field.type)
    if isinstance(field.type, types.GenericAlias):  # tuple[Module, ...]
        return f"[[{field.name}]] tables of {cls.__name__} keys"
    if cls in FOLDERS:
        return f"a name from configs/{FOLDERS[cls]} or a path ending in .toml"
    return getattr(cls, "EXPECTED", f"a table of {cls.__name__} keys")
