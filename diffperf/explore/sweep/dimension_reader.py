"""The axes of a space from its file: single ones, several that vary together, factorizations, and configs."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from diffperf import units
from diffperf.errors import counted
from diffperf.explore.codesign.replaced_inputs import refuse_replaced_input
from diffperf.explore.codesign.variables import Candidate
from diffperf.explore.inputs import full_path
from diffperf.explore.sweep.axis import Axis, ConfigAxis
from diffperf.explore.sweep.config_reader import CONFIGS, ConfigReader, Keyed
from diffperf.explore.sweep.designed_points import Inputs
from diffperf.load import declared_at
from diffperf.quantity import Choice, locate
from diffperf.workload.whole_numbers import divisors

_MOST_ROWS = 1_000_000  # factorizations of a number, at most: they are held in memory


class DimensionReader(ConfigReader):
    """Reads all axes of a space's file."""

    def axes(self, inputs: Inputs, settings: dict[str, Any]) -> tuple[Axis | ConfigAxis, ...]:
        """All axes; no two vary the same input. Those of configs come first, the others in the order of the
        file. `settings` are values that hold for every config."""
        tables = [(f"axis[{index}]", table) for index, table in enumerate(self.tables("axis"))]
        axes: list[Axis | ConfigAxis] = []
        groups = [*self.config_tables(tables), *([keyed] for keyed in tables if not _is_config(keyed))]
        for dimension, group in enumerate(groups):
            read = self.config_axes if _is_config(group[0]) else self.dimension
            for axis in read(inputs, settings, group, dimension):
                self.refuse_again(axis, axes, f"{group[0][0]}.path")
                axes.append(axis)
        configs = [axis for axis in axes if isinstance(axis, ConfigAxis)]
        for axis in axes:
            if isinstance(axis, Axis):
                self.refuse_missing(axis, configs)
                if isinstance(inputs, Candidate):
                    refuse_replaced_input(inputs, axis.path, self.file, "axis")
        return tuple(axes)

    def config_tables(self, tables: Sequence[Keyed]) -> list[list[Keyed]]:
        """The tables of axes over configs, those of one part together; none of them twice."""
        groups: dict[str, list[Keyed]] = {}
        for key, table in filter(_is_config, tables):
            group = groups.setdefault(CONFIGS[table["path"]], [])
            if table["path"] in [other["path"] for _, other in group]:
                found = f'"{table["path"]}" again'
                raise self.error(f"{key}.path", found, "an input of its own", "merge the two axes")
            group.append((key, table))
        return list(groups.values())

    def dimension(
        self, inputs: Inputs, settings: dict[str, Any], tables: Sequence[Keyed], dimension: int
    ) -> Iterator[Axis]:
        """The axes of one table of the file, which are on one dimension."""
        ((key, table),) = tables
        kinds = [kind for kind in ("path", "zip", "factorize") if kind in table]
        if len(kinds) > 1:
            expected = "one of path, zip and factorize"
            raise self.error(key, " and ".join(kinds), expected, "write an axis for each")
        if "zip" in table:
            yield from self.zipped(inputs, table, key, dimension)
        elif "factorize" in table:
            yield from self.factorized(inputs, settings, table, key, dimension)
        else:
            axis = self.axis(inputs, table, key, dimension)
            self.refuse_repeated(axis, table, key)
            yield axis

    def refuse_again(self, axis: Axis | ConfigAxis, earlier: list[Axis | ConfigAxis], key: str) -> None:
        """Refuses an input that an earlier axis varies."""
        if axis.path in [other.path for other in earlier]:
            raise self.error(key, f'"{axis.path}" again', "an input of its own", "merge the two axes")

    def refuse_missing(self, axis: Axis, configs: list[ConfigAxis]) -> None:
        """Refuses an axis over an input that one of the configs lacks."""
        for other in configs:
            if not axis.path.startswith(other.part + "."):
                continue
            for code, config in zip(other.codes, other.configs, strict=True):
                try:
                    locate(config, axis.path.removeprefix(other.part + "."))
                except KeyError:
                    label, expected = other.labels[code], f"an input of every {other.path}"
                    remedy = f"leave out the axis, or {label}"
                    raise self.error("axis", f"no {axis.path} in {label}", expected, remedy) from None

    def zipped(self, inputs: Inputs, table: dict[str, Any], key: str, dimension: int) -> Iterator[Axis]:
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
                    f"{key}.zip[{index}]", counted(len(axis), "value"), expected, "give as many values"
                )
        yield from axes

    def factorized(
        self, inputs: Inputs, settings: dict[str, Any], table: dict[str, Any], key: str, dimension: int
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
            raise self.error(
                f"{key}.of", units.plain(number), "a whole number from 1", "name an input that is one"
            )
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


def _factorizations(number: int, factors: int) -> list[tuple[int, ...]]:
    """All ways to write a number as a product of so many whole numbers, whose order counts."""
    if factors == 1:
        return [(number,)]
    return [
        (first, *rest) for first in divisors(number) for rest in _factorizations(number // first, factors - 1)
    ]


def _is_config(keyed: Keyed) -> bool:
    """Whether the table of an axis varies whole configs."""
    return keyed[1].get("path") in CONFIGS
