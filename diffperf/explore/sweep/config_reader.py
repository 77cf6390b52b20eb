"""Axes over whole configs from a space's file: models, systems and their stacks, technologies and parts.

Axes over configs of one part of a configuration, such as systems and stacks, share a dimension of the space,
whose positions are all combinations of their values.
"""

import dataclasses
import difflib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import equinox as eqx

from diffperf.errors import ConfigError
from diffperf.explore.sweep.axis import ConfigAxis, structure_of
from diffperf.explore.sweep.axis_reader import AxisReader
from diffperf.explore.sweep.designed_points import Inputs
from diffperf.hardware.system import System
from diffperf.hardware.technology import LinkTechnology, MemoryTechnology, Technology
from diffperf.load import FOLDERS, find, load, load_calibrated, load_node, load_technology, override
from diffperf.quantity import locate
from diffperf.software.stack import Stack
from diffperf.workload.model import Model

# What an axis of configs varies, with the part of a point that it changes.
CONFIGS = {
    "model": "model",
    "system": "system",
    "accelerator": "system",
    "stack": "system",
    "technology": "technology",
    "technology.node": "technology",
    "technology.memory": "technology",
    "technology.link": "technology",
    "technology.die_to_die": "technology",
}
# Folders of configs/ that hold the parts of a technology, by the part.
_PARTS = {
    "memory": FOLDERS[MemoryTechnology],
    "link": FOLDERS[LinkTechnology],
    "die_to_die": FOLDERS[LinkTechnology],
}
_MOST_CONFIGS = 4096  # combinations of configs, at most: all are held in memory

# The table of an axis in its file, with the key that names it in errors.
Keyed = tuple[str, dict[str, Any]]


class ConfigReader(AxisReader):
    """Reads axes over whole configs."""

    def config_axes(
        self, inputs: Inputs, settings: dict[str, Any], tables: Sequence[Keyed], dimension: int
    ) -> Iterator[ConfigAxis]:
        """The axes of some tables, which all change one part; `settings` hold for every combination."""
        paths = [table["path"] for _, table in tables]
        part = CONFIGS[paths[0]]
        values = [self.names(inputs, key, table) for key, table in tables]
        combinations = list(itertools.product(*(range(len(names)) for names in values)))
        if len(combinations) > _MOST_CONFIGS:
            found, expected = f"{len(combinations):,} combinations", f"at most {_MOST_CONFIGS:,}"
            raise self.error(tables[0][0], found, expected, "name fewer configs")
        configs = []
        for combination in combinations:
            named = {
                path: (names[index], f"{key}.values[{index}]")
                for path, names, (key, _), index in zip(paths, values, tables, combination, strict=True)
            }
            config = getattr(self, part)(named)
            changed = override(dataclasses.replace(inputs, **{part: config}), settings, self.file)
            configs.append(locate(changed, part)[0])
        kinds = list(dict.fromkeys(map(structure_of, configs)))
        order = sorted(range(len(configs)), key=lambda index: kinds.index(structure_of(configs[index])))
        together = tuple(configs[index] for index in order)
        for place, (path, names) in enumerate(zip(paths, values, strict=True)):
            codes = tuple(combinations[index][place] for index in order)
            yield ConfigAxis(
                path=path, part=part, configs=together, labels=tuple(names), codes=codes, dimension=dimension
            )

    def whole_path(self, inputs: Inputs, path: str, key: str) -> str:
        """The whole path of the input that `path` means; an error names the configs that may vary too."""
        try:
            return super().whole_path(inputs, path, key)
        except ConfigError as problem:
            if "." in path or not str(problem.found).startswith("unknown name"):
                raise
            whole = [name for name in CONFIGS if "." not in name]
            near = difflib.get_close_matches(path, whole, n=1)
            remedy = f'did you mean "{near[0]}"?' if near else problem.remedy
            expected = f"a path into the inputs, or one of {', '.join(whole)}"
            raise self.error(key, problem.found, expected, remedy) from None

    def names(self, inputs: Inputs, key: str, table: dict[str, Any]) -> list[str]:
        """The names that an axis takes."""
        self.known_keys(table, ("path", "values"), f"{key}.", "path and values")
        path, names = table["path"], table.get("values")
        self.refuse_in_designs(inputs, path, f"{key}.path")
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            remedy = 'write values = ["…", "…"], see `diffperf list`'
            plural = {"technology": "technologies", "technology.memory": "memories"}.get(path, f"{path}s")
            raise self.error(f"{key}.values", repr(names), f"a list of names of {plural}", remedy)
        for index, name in enumerate(names):
            if name in names[:index]:
                origin = f"{key}.values[{index}]"
                raise self.error(origin, f'"{name}" again', "every name once", "leave it out")
        return names

    def refuse_in_designs(self, inputs: Inputs, path: str, key: str) -> None:
        """Refuses an axis over a technology where the space has none, and over systems where it has one."""
        designs = hasattr(inputs, "technology")
        if CONFIGS[path] == "technology" and not designs:
            remedy = 'add technology = "…", see `diffperf list technology`'
            raise self.error(key, f'"{path}"', "a space that designs its accelerators", remedy)
        if path in ("system", "accelerator") and designs:
            remedy = "leave out the axis, or the technology"
            raise self.error(key, f'"{path}" beside a technology', "one system as the template", remedy)

    # The config of each part from the names of its axes with their keys in errors, by the paths of the axes.

    def model(self, named: Mapping[str, tuple[str, str]]) -> eqx.Module:
        """A model."""
        name, key = named["model"]
        return load(Model, name, beside=self.folder, asked_by=(self.file, key))

    def system(self, named: Mapping[str, tuple[str, str]]) -> eqx.Module:
        """A system, with another accelerator and another stack, as of `diffperf estimate --stack`."""
        name, key = named.get("system", (self.table.get("system"), "system"))
        source: Any = str(find(str(name), FOLDERS[System], self.folder, (self.file, key)))
        if "accelerator" in named:
            accelerator, key = named["accelerator"]
            source = {"extends": source, "accelerator": accelerator}
        if "stack" not in named:
            return load(System, source, beside=self.folder, asked_by=(self.file, key))
        stack, its_key = named["stack"]
        driver = load(Stack, stack, beside=self.folder, asked_by=(self.file, its_key))
        return load_calibrated(source, stack=driver, file=self.file, key=key)[0]

    def technology(self, named: Mapping[str, tuple[str, str]]) -> eqx.Module:
        """A technology, on another node, or with other memory or links."""
        name, key = named.get("technology", (self.table.get("technology"), "technology"))
        source = find(str(name), FOLDERS[Technology], self.folder, (self.file, key))
        parts: dict[str, Any] = {
            part: str(find(named[path][0], folder, self.folder, (self.file, named[path][1])))
            for part, folder in _PARTS.items()
            if (path := f"technology.{part}") in named
        }
        node, its_key = named.get("technology.node", (None, ""))
        if node is not None:
            load_node(node, self.file, its_key)  # an error names this key
        return load_technology(source, node=node, **parts, file=self.file)
