"""Reading the variables of a design problem: ranges, listed values, and choices between configs."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np

from diffperf import units
from diffperf.errors import ConfigError
from diffperf.explore.codesign.job_file import JobReader
from diffperf.explore.codesign.variables import FEATURE, NODE, Candidate, DesignVector, Variable, with_part
from diffperf.explore.inputs import full_path
from diffperf.explore.reader import TableReader
from diffperf.load import checked, declared_at, load, load_node
from diffperf.quantity import Choice, Quantity, locate
from diffperf.trees import as_float64

# Names that are no path, with the path that was meant.
ELSEWHERE = {"technology.packaging": 'write "system.accelerator.package.carrier"'}


@dataclasses.dataclass(frozen=True)
class VariableReader(TableReader):
    """Reads the variables of a design problem.

    - `first`: reads the first workload, whose configs the variables change.
    - `baseline`: the candidate that the problem begins from.
    """

    first: JobReader
    baseline: Candidate

    def variable(self, table: dict[str, Any], key: str) -> Variable:
        """A variable with its bounds, which are those of its declaration where the table gives none."""
        self.known_keys(table, ("path", "from", "to", "values"), f"{key}.", "path, from and to, or values")
        path = self.full_path(str(table.get("path")), f"{key}.path")
        if path in ELSEWHERE:
            raise self.error(f"{key}.path", f'"{path}"', "a path into the inputs", ELSEWHERE[path])
        if "values" in table:
            return self.listed(path, table, key)
        if path == NODE:
            remedy = f'write values = ["n7", "n5"], or path = "{FEATURE}" with from and to'
            raise self.error(key, f"{path} without values", "a list of nodes", remedy)
        declared = declared_at(self.baseline, path, self.file, f"{key}.path")
        if isinstance(declared, Choice):
            return Variable(path, declared, 0.0, 1.0)
        ends = zip(("from", "to"), declared.bounds, strict=True)
        low, high = (
            float(checked(declared, table[end], self.file, f"{key}.{end}")) if end in table else bound
            for end, bound in ends
        )
        if low == high and "from" in table and "to" in table:
            raise self.single_value(path, table["from"], key)
        if not low < high:
            raise self.error(
                f"{key}.from",
                units.show(low, declared.unit),
                f"less than to = {units.show(high, declared.unit)}",
                "swap them",
            )
        return Variable(path, declared, low, high)

    def single_value(self, path: str, value: Any, key: str) -> ConfigError:
        """The error about a variable that can only be one value."""
        shown = f'"{value}"' if isinstance(value, str) else str(value)
        remedy = f'write "{path}" = {shown} under [set]'
        if path.startswith("beside."):
            remedy = f"write {path.rpartition('.')[2]} = {shown} in the strategy of its workload"
        return self.error(key, f"one value, {shown}", "a range, or two values or more", remedy + " instead")

    def full_path(self, path: str, key: str) -> str:
        """The path of an input, which may be the ending of a path of the system or of the design; those of a
        workload's layout may begin with its name.
        """
        begin, _, rest = path.partition(".")
        beside = self.baseline.beside
        if beside and rest.startswith("strategy.") and begin == self.first.workload.name:
            return rest
        if begin in [job.name.text for job in beside]:
            return f"beside.{path}"
        return full_path(self.baseline, path, self.file, key)

    def listed(self, path: str, table: dict[str, Any], key: str) -> Variable:
        """A variable that takes one of some values: numbers, alternatives of a choice, or configs."""
        values = table["values"]
        if isinstance(values, list) and len(values) == 1 and _is_input(self.baseline, path):
            raise self.single_value(path, values[0], f"{key}.values")
        if not isinstance(values, list) or len(values) < 2 or "from" in table or "to" in table:
            raise self.error(
                f"{key}.values", repr(values), "two values or more, without from and to", "list them"
            )
        if path == NODE:
            nodes = [load_node(node, self.file, f"{key}.values[{i}]") for i, node in enumerate(values)]
            return _one_of(path, values, [as_float64(node) for node in nodes])
        try:
            node, declared = locate(self.baseline, path)
        except KeyError:
            node, declared = None, declared_at(self.baseline, path, self.file, f"{key}.path")
        if isinstance(declared, Choice):
            rows = [
                checked(declared, value, self.file, f"{key}.values[{index}]")
                for index, value in enumerate(values)
            ]
            places = sorted({float(np.argmax(row)) for row in rows})
            if len(places) < 2 or any(np.max(row) < 1 for row in rows):
                remedy = "name each once, without weights"
                raise self.error(f"{key}.values", repr(values), "two alternatives or more", remedy)
            return Variable(path, declared, 0.0, 1.0, values=tuple(places))
        if isinstance(declared, Quantity):
            numbers = sorted(
                float(checked(declared, value, self.file, f"{key}.values[{index}]"))
                for index, value in enumerate(values)
            )
            return Variable(path, declared, numbers[0], numbers[-1], values=tuple(numbers))
        if not isinstance(node, eqx.Module):
            declared_at(self.baseline, path, self.file, f"{key}.path")
        assert isinstance(node, eqx.Module), "anything else is refused"
        return _one_of(path, values, self.options(path, type(node), values, key))

    def options(self, path: str, cls: type[eqx.Module], names: list[Any], key: str) -> list[eqx.Module]:
        """What each of some configs holds, with what the file sets in it, as it does in the baseline."""
        loaded = [
            load(cls, str(name), beside=self.folder, asked_by=(self.file, f"{key}.values[{index}]"))
            for index, name in enumerate(names)
        ]
        for index, part in enumerate(loaded):
            if jax.tree.structure(part) != jax.tree.structure(loaded[0]):
                expected = f'the parts of "{names[0]}"'
                remedy = "compare configs of one kind"
                raise self.error(f"{key}.values[{index}]", f'"{names[index]}"', expected, remedy)
        if path.startswith("beside."):
            return [as_float64(part) for part in loaded]
        candidates = [self.first.configured(with_part(self.first.as_loaded, path, part)) for part in loaded]
        return [as_float64(locate(candidate, path)[0]) for candidate in candidates]

    def each_path_once(self, variables: tuple[Variable, ...]) -> None:
        """Refuses a second variable of the same path, which would leave the first without effect."""
        paths = [variable.path for variable in variables]
        for index, path in enumerate(paths):
            if path in paths[:index]:
                raise self.error(
                    f"variable[{index}].path", f'"{path}" again', "each path once", "merge the two variables"
                )

    def storage_has_a_technology(self, vector: DesignVector, settings: Mapping[str, Any]) -> None:
        """Refuses stacks of storage of a technology that has none: they would be of nothing."""
        stacks = "design.storage_stacks"
        if stacks in {*settings, *vector.paths} and vector.baseline.technology.storage is None:
            found = f"{vector.baseline.technology.name}, without storage, beside {stacks}"
            raise self.error("technology", found, "storage", 'add storage = "hbs" to the technology\'s file')


def _one_of(path: str, names: list[Any], options: list[eqx.Module]) -> Variable:
    """The variable that is one of some configs."""
    declared = Choice(tuple(map(str, names)), f"which {path} to use")
    return Variable(path, declared, 0.0, 1.0, options=tuple(options))


def _is_input(candidate: Candidate, path: str) -> bool:
    """Whether a path leads to a number or a choice: not to a config, and not to nothing."""
    try:
        return locate(candidate, path)[1] is not None
    except KeyError:
        return False
