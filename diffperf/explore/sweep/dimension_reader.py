"""The axes of a space from its file: single ones, several that vary together, factorizations, and configs."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from diffperf.explore.inputs import full_path
from diffperf.explore.sweep.axis import Axis, ConfigAxis, structure_of
from diffperf.explore.sweep.axis_reader import AxisReader
from diffperf.hardware.system import System
from diffperf.load import declared_at, load, load_stack, override
from diffperf.quantity import Choice, locate
from diffperf.workload.configuration import Configuration
from diffperf.workload.model import Model
from diffperf.workload.whole_numbers import divisors

# What an axis of configs varies, with the part of a configuration that it replaces.
CONFIGS = {"model": "model", "system": "system", "accelerator": "system", "stack": "system"}
_MOST_ROWS = 1_000_000  # factorizations of a number, at most: they are held in memory


class DimensionReader(AxisReader):
    """Reads all axes of a space's file."""

    def axes(self, inputs: Configuration, settings: dict[str, Any]) -> tuple[Axis | ConfigAxis, ...]:
        """All axes; no two vary the same input. Those of configs come first, the others in the order of the
        file. `settings` are values that hold for every config."""
        tables = list(enumerate(self.tables("axis")))
        tables.sort(key=lambda numbered: numbered[1].get("path") not in CONFIGS)
        axes: list[Axis | ConfigAxis] = []
        for dimension, (index, table) in enumerate(tables):
            for axis in self.dimension(inputs, settings, table, f"axis[{index}]", dimension):
                self.refuse_again(axis, axes, f"axis[{index}].path")
                axes.append(axis)
        configs = [axis for axis in axes if isinstance(axis, ConfigAxis)]
        for axis in axes:
            if isinstance(axis, Axis):
                self.refuse_missing(axis, configs)
        return tuple(axes)

    def dimension(
        self, inputs: Configuration, settings: dict[str, Any], table: dict[str, Any], key: str, dimension: int
    ) -> Iterator[Axis | ConfigAxis]:
        """The axes of one table of the file, which are on one dimension."""
        kinds = [kind for kind in ("path", "zip", "factorize") if kind in table]
        if len(kinds) > 1:
            expected = "one of path, zip and factorize"
            raise self.error(key, " and ".join(kinds), expected, "write an axis for each")
        if "zip" in table:
            yield from self.zipped(inputs, table, key, dimension)
        elif "factorize" in table:
            yield from self.factorized(inputs, settings, table, key, dimension)
        elif table.get("path") in CONFIGS:
            yield self.config_axis(inputs, settings, table, key, dimension)
        else:
            yield self.axis(inputs, table, key, dimension)

    def refuse_again(self, axis: Axis | ConfigAxis, earlier: list[Axis | ConfigAxis], key: str) -> None:
        """Refuses an input that an earlier axis varies, and two axes over the same part."""
        for other in earlier:
            if axis.path == other.path:
                raise self.error(key, f'"{axis.path}" again', "an input of its own", "merge the two axes")
            if isinstance(axis, ConfigAxis) and isinstance(other, ConfigAxis) and axis.part == other.part:
                remedy = "write a system's file for each combination, and one axis over system"
                raise self.error(key, f'"{axis.path}" beside "{other.path}"', "one axis of systems", remedy)

    def refuse_missing(self, axis: Axis, configs: list[ConfigAxis]) -> None:
        """Refuses an axis over an input that one of the configs lacks."""
        for other in configs:
            if not axis.path.startswith(other.part + "."):
                continue
            for label, config in zip(other.labels, other.configs, strict=True):
                try:
                    locate(config, axis.path.removeprefix(other.part + "."))
                except KeyError:
                    expected = f"an input of every {other.path}"
                    remedy = f"leave out the axis, or {label}"
                    raise self.error("axis", f"no {axis.path} in {label}", expected, remedy) from None

    def zipped(
        self, inputs: Configuration, table: dict[str, Any], key: str, dimension: int
    ) -> Iterator[Axis]:
        """Axes that vary together: the first values of all, the second values of all, and so on."""
        self.known_keys(table, ("zip",), f"{key}.", "zip alone")
        tables = table["zip"]
        form = 'write zip = [{path = "…", values = […]}, {path = "…", values = […]}]'
        if (
            not isinstance(tables, list)
            or len(tables) < 2
            or not all(isinstance(each, dict) for each in tables)
        ):
            raise self.error(f"{key}.zip", repr(tables), "tables of at least two axes", form)
        axes = [
            self.axis(inputs, each, f"{key}.zip[{index}]", dimension) for index, each in enumerate(tables)
        ]
        for index, axis in enumerate(axes):
            if len(axis) != len(axes[0]):
                expected = f"{len(axes[0])}, as {axes[0].path} has"
                raise self.error(
                    f"{key}.zip[{index}]", f"{len(axis)} values", expected, "give as many values"
                )
        yield from axes

    def factorized(
        self, inputs: Configuration, settings: dict[str, Any], table: dict[str, Any], key: str, dimension: int
    ) -> Iterator[Axis]:
        """Axes whose whole values multiply to a number: all ways to factorize it, in ascending order."""
        self.known_keys(table, ("factorize",), f"{key}.", "factorize alone")
        key, asked = f"{key}.factorize", table["factorize"]
        form = 'write {of = "system.n_devices", over = ["strategy.tp", "strategy.pp", "strategy.dp"]}'
        if not isinstance(asked, dict) or set(asked) != {"of", "over"}:
            raise self.error(key, repr(asked), "a table with of and over", form)
        paths = asked["over"]
        if not isinstance(paths, list) or len(paths) < 2 or not all(isinstance(path, str) for path in paths):
            raise self.error(f"{key}.over", repr(paths), "a list of at least two paths", form)
        varied = [other.get("path") for other in self.tables("axis")]
        parts = {CONFIGS[path] for path in varied if path in CONFIGS}
        of_config = asked["of"] not in settings and str(asked["of"]).split(".")[0] in parts
        if asked["of"] in varied or of_config:
            remedy = "set it in [set], or write the number itself"
            raise self.error(f"{key}.of", f'"{asked["of"]}", which varies', "one number", remedy)
        number = self.number(inputs, asked["of"], f"{key}.of")
        if not 1 <= number <= 1e12 or number != round(number):
            raise self.error(f"{key}.of", f"{number:g}", "a whole number from 1", "name an input that is one")
        rows = _factorizations(round(number), len(paths))
        if len(rows) > _MOST_ROWS:
            raise self.error(key, f"{len(rows):,} ways", f"at most {_MOST_ROWS:,}", "name fewer paths")
        for index, path in enumerate(paths):
            origin = f"{key}.over[{index}]"
            whole = full_path(inputs, path, self.file, origin)
            declared = declared_at(inputs, whole, self.file, origin)
            if isinstance(declared, Choice):
                raise self.error(origin, f"the choice {path}", "the path of a number", "leave it out")
            yield Axis(whole, declared, np.array(rows, float)[:, index], dimension)

    def config_axis(
        self, inputs: Configuration, settings: dict[str, Any], table: dict[str, Any], key: str, dimension: int
    ) -> ConfigAxis:
        """An axis over configs by name: models, or systems, or accelerators or stacks of the system."""
        self.known_keys(table, ("path", "values"), f"{key}.", "path and values")
        path, names = table["path"], table.get("values")
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            remedy = 'write values = ["…", "…"], see `diffperf list`'
            raise self.error(f"{key}.values", repr(names), f"a list of names of {path}s", remedy)
        for index, name in enumerate(names):
            if name in names[:index]:
                origin = f"{key}.values[{index}]"
                raise self.error(origin, f'"{name}" again', "every name once", "leave it out")
        part = CONFIGS[path]
        configs = []
        for index, name in enumerate(names):
            config = self.named(path, name, f"{key}.values[{index}]")
            configs.append(locate(self.with_settings(inputs, {part: config}, settings), part)[0])
        kinds = list(dict.fromkeys(map(structure_of, configs)))
        order = sorted(range(len(configs)), key=lambda index: kinds.index(structure_of(configs[index])))
        return ConfigAxis(
            path, part, tuple(configs[i] for i in order), tuple(names[i] for i in order), dimension
        )

    def named(self, path: str, name: str, key: str) -> Model | System:
        """The model or system of a name; of an accelerator or a stack, the system of the file with it."""
        asked_by = (self.file, key)
        if path in ("model", "system"):
            return load(Model if path == "model" else System, name, beside=self.folder, asked_by=asked_by)
        if path == "accelerator":
            table = {"extends": self.table.get("system"), "accelerator": name}
            return load(System, table, beside=self.folder, asked_by=asked_by)
        system: System = self.config(System, "system")
        stack = load_stack(name, self.file, key)
        return dataclasses.replace(system, stack=stack, inference_stack=stack)

    def with_settings(
        self, inputs: Configuration, parts: dict[str, Model | System], settings: dict[str, Any]
    ) -> Configuration:
        """A configuration with another model or system, for which the settings hold too."""
        return override(dataclasses.replace(inputs, **parts), settings, self.file)


def _factorizations(number: int, factors: int) -> list[tuple[int, ...]]:
    """All ways to write a number as a product of so many whole numbers, whose order counts."""
    if factors == 1:
        return [(number,)]
    return [
        (first, *rest) for first in divisors(number) for rest in _factorizations(number // first, factors - 1)
    ]
