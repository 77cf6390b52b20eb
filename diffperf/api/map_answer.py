"""dp.bottleneck_map: which resource limits a phase, over ranges of two inputs."""

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import RenderableType

from diffperf.api.boundary import answering, asker_of
from diffperf.api.from_python import asked, phase_of, whole_number
from diffperf.api.point_answer import PointAnswer
from diffperf.api.question import Question
from diffperf.api.ranges_answer import describe_tied
from diffperf.api.varied_ranges import InputRange, described_cuts, read_input_range
from diffperf.errors import ConfigError
from diffperf.explore.bottleneck_map import CELLS, BottleneckMap
from diffperf.explore.bottleneck_map import bottleneck_map as mapped
from diffperf.explore.ranges import Range
from diffperf.report.tables import column_table, show

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = 8  # rows and columns of the printed table at most


@answering("bottleneck_map")
def bottleneck_map(
    model: Any,
    system: Any,
    phase: str = "training",
    *,
    x: InputRange,
    y: InputRange,
    cells: int = CELLS,
    devices: float | None = None,
    stack: Any = None,
    calibration: Any = None,
    set: Mapping[str, Any] | None = None,
    **strategy: Any,
) -> "MapAnswer":
    """The resource that limits a phase in every cell over ranges of two inputs.

        dp.bottleneck_map("llama-3-8b", "dgx-h100", "decode", tp=8,
                          x=("hbm.bandwidth", "1..8 TB/s"), y=("strategy.global_batch", "1..512"))

    **Arguments:** as of `dp.estimate`, and

    - `x`, `y`: an input by path, and its range: "1..8 TB/s", "±20%", or two values; also as a dictionary of
      the one input, or as the text "PATH=RANGE".
    - `cells`: of each axis; a whole number has at most as many as it has values.

    The layout is the best one at the configuration itself, and stays. **Raises:** `ConfigError`, in one line.
    """
    asker = asker_of("bottleneck_map")
    whole_number(asker, "cells", cells, 2, 512)
    question = asked(
        "bottleneck_map",
        model,
        system,
        devices=devices,
        stack=stack,
        calibration=calibration,
        set=set,
        strategy=strategy,
        others=("phase", "x", "y", "cells", "devices", "stack", "calibration", "set"),
    )
    return MapAnswer.of(question, phase_of(asker, phase), x, y, cells)


@dataclasses.dataclass(frozen=True, repr=False)
class MapAnswer(PointAnswer):
    """Resources that limit a phase over two inputs: one resource by name for each cell."""

    x: Range
    y: Range
    found: BottleneckMap

    @classmethod
    def of(
        cls, question: Question, phase: str, x: InputRange, y: InputRange, cells: int = CELLS
    ) -> "MapAnswer":
        """Maps the ranges at the layout of a question."""
        c = question.configuration(phase)
        across = read_input_range(c, x, question, phase, "--x")
        down = read_input_range(c, y, question, phase, "--y")
        if across.path == down.path:
            raise ConfigError(question.asker, "--y", across.path, "another input than --x", "name another")
        return cls(
            question=question,
            phase=phase,
            configuration=c,
            x=across,
            y=down,
            found=mapped(c, across, down, phase, cells),
        )

    @property
    def title(self) -> str:
        return f"What limits {self.question.summary(self.phase)}"

    @property
    def names(self) -> np.ndarray:
        """The resource that limits each cell, (y, x)."""
        return np.array(self.found.resources)[self.found.binding]

    @property
    def shares(self) -> dict[str, float]:
        """The share of the cells that each resource limits, the largest first."""
        counted = Counter(self.names.ravel().tolist())
        return {name: count / self.names.size for name, count in counted.most_common()}

    def lines(self) -> list[RenderableType]:
        rows, columns = (_spread(len(values)) for values in (self.found.y, self.found.x))
        labels = [show(self.found.x[column], self.x.declared) for column in columns]
        table = column_table(f"{_ending(self.y.path)} \\ {_ending(self.x.path)}", *labels)
        for row in rows[::-1]:  # as in the figure, the largest on top
            cells = [self._cell(row, column) for column in columns]
            table.add_row(show(self.found.y[row], self.y.declared), *cells)
        parts = ", ".join(f"{name} {share:.0%}" for name, share in self.shares.items())
        too_large = float(np.mean(self.found.excess > 0))
        notes = [f"* does not fit memory: {too_large:.0%} of the cells"] if too_large else []
        notes += described_cuts((self.x, self.y))
        notes += describe_tied((self.x.path, self.y.path))
        return [
            *self.heading(),
            f"{self.found.time.size:,} cells: {parts}",
            table,
            "the resource of which 1 % more saves most, and the per cent of the time that it saves",
            *notes,
        ]

    def _cell(self, row: int, column: int) -> str:
        place = self.found.binding[row, column]
        star = "*" if self.found.excess[row, column] > 0 else ""
        name = re.sub(r" (bandwidth|network|units|and launch)$", "", self.found.resources[place])
        return f"{name} {self.found.shares[row, column, place]:.2f}{star}"

    def rows(self) -> list[dict[str, Any]]:
        """A row for each cell: both inputs, what limits it, the time and whether it fits memory."""
        found = self.found
        return [
            {
                self.x.path: float(found.x[column]),
                self.y.path: float(found.y[row]),
                "limit": found.resources[found.binding[row, column]],
                "share": float(found.shares[row, column].max()),
                "time": float(found.time[row, column]),
                "fits": bool(found.excess[row, column] <= 0),
            }
            for row in range(len(found.y))
            for column in range(len(found.x))
        ]

    def to_dict(self) -> dict[str, Any]:
        return self.heading_values() | {
            "x": {"path": self.x.path, "unit": self.x.declared.unit},
            "y": {"path": self.y.path, "unit": self.y.declared.unit},
            "shares": self.shares,
            "cells": self.rows(),
        }

    def figure(self) -> "Figure":
        """A map of the two inputs, a colour for each resource; hatched where memory does not suffice."""
        from diffperf.report import plots

        title = f"What limits {self.question.headline(self.phase)}"
        axes = [
            plots.MapAxis(values, each.path, each.declared, each.log)
            for values, each in ((self.found.x, self.x), (self.found.y, self.y))
        ]
        return plots.cell_map(axes[0], axes[1], self.names, self.found.excess > 0, title)


def _spread(count: int) -> list[int]:
    """At most so many places of a list as a table shows, from the first to the last."""
    return np.unique(np.round(np.linspace(0, count - 1, min(count, _SHOWN))).astype(int)).tolist()


def _ending(path: str) -> str:
    """The last two words of a path."""
    return ".".join(path.split(".")[-2:])
