"""Results of a space to keep, read from its config: the best points, the Pareto front, and histograms."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from diffperf.errors import counted, did_you_mean
from diffperf.explore.reader import TableReader
from diffperf.explore.sweep.space import Space
from diffperf.quantity import Quantity

# The keys of a space's file that say so.
KEPT = ("rank_by", "order", "top", "best_by", "best_per_value", "pareto", "histograms", "table")
ORDERS = ("ascending", "descending")

# Outputs of which more is better, by the last name of their path; all others rank from the smallest.
_LARGEST_FIRST = ("tokens_per_second", "tokens_per_joule", "mfu", "hfu")

_MOST_TOP = 10_000  # best points that are kept, at most: they are held in memory
_MOST_PER_VALUE = 100  # best points of every value of an input that are kept, at most
_OBJECTIVES = (2, 4)  # of a front, at least and at most
_MOST_HISTOGRAMS = 8


def keeping(space: Space, asked: Mapping[str, Any], file: str) -> Space:
    """The space with other keys of `KEPT`; `file` is where they come from.

    **Raises:** `ConfigError`, in one line.
    """
    of_space = {
        "rank_by": space.rank_by,
        "order": ORDERS[space.descending],
        "top": space.top,
        "best_by": list(space.best_by),
        "best_per_value": space.best_per_value,
        "pareto": [path for path, _ in space.objectives],
        "histograms": list(space.histograms),
        "table": space.table,
    }
    reader = KeptReader(file, Path(), of_space | dict(asked))
    paths = [axis.path for axis in space.axes]
    return dataclasses.replace(space, **reader.fields(space.outputs, space.phase, paths))


class KeptReader(TableReader):
    """Reads what to keep from the top table of a space."""

    def fields(self, outputs: Mapping[str, Quantity], phase: str, axes: Sequence[str]) -> dict[str, Any]:
        """The fields of a `Space` that say what to keep, from the outputs of its phase and the paths of its
        axes."""
        rank_by = self.output(self.table.get("rank_by", "time"), outputs, phase, "rank_by")
        descending = self.order(rank_by) == "descending"
        objectives = self.outputs("pareto", outputs, phase, [])
        if objectives and not _OBJECTIVES[0] <= len(objectives) <= _OBJECTIVES[1]:
            least, most = _OBJECTIVES
            remedy = 'write pareto = ["time", "cost.run"]'
            found = counted(len(objectives), "output")
            raise self.error("pareto", found, f"{least} to {most} outputs", remedy)
        histograms = self.outputs("histograms", outputs, phase, [rank_by])
        if len(histograms) > _MOST_HISTOGRAMS:
            expected = f"at most {_MOST_HISTOGRAMS} outputs"
            raise self.error("histograms", f"{len(histograms)} outputs", expected, "leave some out")
        return {
            "rank_by": rank_by,
            "descending": descending,
            "top": self.count("top", 10, _MOST_TOP, "say how many of the best points to keep"),
            "best_by": self.best_by(axes),
            "best_per_value": self.count(
                "best_per_value", 1, _MOST_PER_VALUE, "say how many points of every value to keep"
            ),
            # The order that the file gives to the ranking holds for the same output in the front.
            "objectives": tuple(
                (path, -1 if (descending if path == rank_by else _more_is_better(path)) else 1)
                for path in objectives
            ),
            "histograms": tuple(histograms),
            "table": self.switch("table"),
        }

    def output(self, path: Any, known: Mapping[str, Quantity], phase: str, key: str) -> str:
        """The path of an output of the phase."""
        if not isinstance(path, str):
            raise self.error(key, repr(path), f"the path of one output of {phase}", 'write "time"')
        if path not in known:
            raise self.error(key, f'"{path}"', f"an output of {phase}", did_you_mean(path, list(known)))
        return path

    def outputs(self, key: str, known: Mapping[str, Quantity], phase: str, usual: list[str]) -> list[str]:
        """A list of paths of different outputs."""
        paths = self.paths(key, usual, 'write ["time", "cost.run"]')
        for index, path in enumerate(paths):
            self.output(path, known, phase, f"{key}[{index}]")
        return paths

    def best_by(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Paths of axes, which may be written by their endings as in an axis."""
        chosen = []
        for index, path in enumerate(self.paths("best_by", [], 'write ["strategy.tp"]')):
            matches = [axis for axis in axes if axis == path or str(axis).endswith(f".{path}")]
            if len(matches) != 1:
                hint = did_you_mean(str(path), list(axes))
                raise self.error(f"best_by[{index}]", f'"{path}"', "the path of one axis", hint)
            chosen += matches
        return tuple(chosen)

    def paths(self, key: str, usual: list[str], remedy: str) -> list[str]:
        """A list of different texts."""
        paths = self.table.get(key, usual)
        if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
            raise self.error(key, repr(paths), "a list of paths", remedy)
        for index, path in enumerate(paths):
            if path in paths[:index]:
                raise self.error(f"{key}[{index}]", f'"{path}" again', "every path once", "leave it out")
        return paths

    def order(self, rank_by: str) -> str:
        """Whether the smallest or the largest values of the output rank first."""
        usual = "descending" if _more_is_better(rank_by) else "ascending"
        order = self.table.get("order", usual)
        if order not in ORDERS:
            raise self.error("order", f'"{order}"', " or ".join(ORDERS), did_you_mean(str(order), ORDERS))
        return order

    def switch(self, key: str) -> bool:
        """true or false, by default false."""
        value = self.table.get(key, False)
        if not isinstance(value, bool):
            raise self.error(key, repr(value), "true or false", f"write {key} = true")
        return value

    def count(self, key: str, usual: int, most: int, remedy: str) -> int:
        """A whole number from 1 on."""
        return self.whole(self.table.get(key, usual), most, key, remedy)


def _more_is_better(path: str) -> bool:
    """Whether more of an output is better, as a rule."""
    return path.split(".")[-1] in _LARGEST_FIRST
