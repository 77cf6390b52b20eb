"""Performance of a system over its cost, as one input varies."""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from rich.console import RenderableType

from diffperf import units
from diffperf.api.question import Question, describe_strategy
from diffperf.api.varied_ranges import InputRange, described_cuts, read_input_range
from diffperf.explore.points import outputs_at
from diffperf.explore.ranges import Range, with_tied
from diffperf.report.tables import column_table, show
from diffperf.units import HOUR

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POINTS = 9  # of a curve
# Columns after the input: heading, and the unit that it is shown in.
_COLUMNS = {
    "package": ("package", "USD"),
    "device": ("device, bought", "USD"),
    "hour": ("device-hour", "USD"),
    "rate": ("throughput", "token/s"),
    "million": ("a million tokens", "USD"),
}


@dataclasses.dataclass(frozen=True)
class CostCurve:
    """Costs and performance at some values of an input, the layout held.

    - `values`: of the input, in internal units; `points`: the columns of `_COLUMNS` there.
    - `excess`: by how much memory is exceeded, above 0 where the model does not fit.
    """

    question: Question
    phase: str
    layout: str
    over: Range
    values: Float[np.ndarray, " points"]
    points: dict[str, Float[np.ndarray, " points"]]
    excess: Float[np.ndarray, " points"]

    @classmethod
    def of(cls, question: Question, phase: str, over: InputRange) -> "CostCurve":
        """Evaluates the curve. **Raises:** `ConfigError` for a range that is none."""
        configuration = question.configuration(phase)
        axis = read_input_range(configuration, over, question, phase, "--over")
        values = axis.grid(_POINTS)
        outputs = outputs_at(configuration, with_tied(configuration, {axis.path: values}), phase)
        devices = float(configuration.system.n_devices)
        points = {
            "package": outputs["cost.manufacturing"],
            "device": outputs["cost.capital"] / devices,
            "hour": outputs["cost.rate"] * HOUR / devices,
            "rate": outputs["tokens_per_second"],
            "million": 1e6 * outputs["cost.rate"] / outputs["tokens_per_second"],
        }
        layout = describe_strategy(configuration.strategy, phase)
        return cls(
            question=question,
            phase=phase,
            layout=layout,
            over=axis,
            values=values,
            points=points,
            excess=outputs["memory.excess"],
        )

    @property
    def title(self) -> str:
        return f"Cost and performance: {self.question.summary(self.phase)}"

    def lines(self) -> list[RenderableType]:
        """The curve as a table; its last column says where the model does not fit."""
        rows = column_table(self.over.path, *(heading for heading, _ in _COLUMNS.values()), "")
        for index, value in enumerate(self.values):
            cells = [units.show(self.points[name][index], unit, 4) for name, (_, unit) in _COLUMNS.items()]
            fits = "" if self.excess[index] <= 0 else "does not fit memory"
            rows.add_row(show(value, self.over.declared), *cells, fits)
        best = int(np.argmin(np.where(self.excess <= 0, self.points["million"], np.inf)))
        least = units.show(self.points["million"][best], "USD", 4)
        where = show(self.values[best], self.over.declared)
        found = f"Tokens are cheapest, {least} a million, at {self.over.path} = {where}."
        return [
            f"[bold]{self.title}[/bold]",
            self.layout,
            rows,
            *described_cuts([self.over]),
            *([found] if np.any(self.excess <= 0) else []),
        ]

    def rows(self) -> list[dict[str, Any]]:
        """A row for each point, in internal units."""
        return [
            {self.over.path: float(value)}
            | {name: float(column[index]) for name, column in self.points.items()}
            | {"fits": bool(self.excess[index] <= 0)}
            for index, value in enumerate(self.values)
        ]

    def as_dict(self) -> dict[str, Any]:
        """The curve for JSON, in internal units."""
        return {"over": self.over.path, "phase": self.phase, "layout": self.layout, "points": self.rows()}

    def figure(self) -> "Figure":
        """Performance over the price of a device, and the price of tokens along the input."""
        from diffperf.report import plots

        shown = [show(value, self.over.declared) for value in self.values]
        return plots.cost_curve(
            self.points["device"], self.points["rate"], self.points["million"], shown, self.title
        )
