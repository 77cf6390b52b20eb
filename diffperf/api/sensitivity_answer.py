"""The answer of dp.sensitivity at a point: by how much each input moves an output."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table

from diffperf import units
from diffperf.api.point_answer import PointAnswer
from diffperf.api.question import Question
from diffperf.api.ranges_answer import describe_tied
from diffperf.errors import ConfigError, did_you_mean
from diffperf.explore.rooms import Room, by_room
from diffperf.explore.sensitivity import GROUPS, SLOPE, Sensitivity, sensitivities
from diffperf.explore.whole_steps import TILE
from diffperf.relax import Exact, Relaxation
from diffperf.report.tables import column_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NO_EFFECT = 1e-6  # elasticities up to this are rounding: the input does not matter
_BAR = 20  # characters of the longest bar


@dataclasses.dataclass(frozen=True, repr=False)
class SensitivityAnswer(PointAnswer):
    """The inputs of `ranked` by how much they move an output; the first `top` are printed."""

    output: str
    ranked: list[Sensitivity]
    top: int

    @classmethod
    def of(
        cls,
        question: Question,
        phase: str = "training",
        output: str = "time",
        groups: Sequence[str] = ("system",),
        relax: Relaxation | None = None,
        top: int = 20,
    ) -> "SensitivityAnswer":
        """Differentiates at the layout of a question."""
        for group in groups:
            if group not in GROUPS:
                expected, hint = "one of " + ", ".join(GROUPS), did_you_mean(group, GROUPS)
                raise ConfigError(question.asker, "--of", f'"{group}"', expected, hint)
        relax = Exact() if relax is None else relax
        c = question.configuration(phase, relax)
        ranked = sensitivities(c, phase, output, groups=groups, file=question.asker)
        return cls(question, phase, c, output=output, ranked=ranked, top=top)

    @property
    def title(self) -> str:
        return f"What moves {self.output} of {self.question.summary(self.phase)}"

    def lines(self) -> list[RenderableType]:
        moving = [each for each in self.ranked if abs(each.elasticity) > _NO_EFFECT]
        paths = {each.path for each in self.ranked}
        lines: list[RenderableType] = [
            *self.heading(),
            sensitivity_table(moving[: self.top]),
            f"{len(paths) - len({each.path for each in moving})} of {len(paths)} inputs do not matter here",
            *_explained(moving[: self.top]),
            "",
            rooms_table(by_room(self.ranked)),
        ]
        return lines

    def rows(self) -> list[dict[str, Any]]:
        """A row for each elasticity of an input."""
        return [
            {
                "path": each.path,
                "value": each.value,
                "unit": each.declared.unit,
                "elasticity": each.elasticity,
                "derivative": each.derivative,
            }
            for each in self.ranked
        ]

    def to_dict(self) -> dict[str, Any]:
        rooms = [dataclasses.asdict(room) for room in by_room(self.ranked)]
        answer = {"output": self.output, "elasticities": self.rows(), "rooms": rooms}
        return self.heading_values() | answer

    def figure(self) -> "Figure":
        """A tornado of the elasticities."""
        from diffperf.report import plots

        change = "change for +1 % of each input; of whole numbers for the step shown, per 1 %"
        title = f"What moves {plots.words_of(self.output)} of {self.question.headline(self.phase)}"
        return plots.tornado(self.ranked, title, change=change)


def _explained(shown: Sequence[Sensitivity]) -> list[str]:
    """Meaning of the second column, as far as the rows need it."""
    steps = [each for each in shown if each.derivative != SLOPE]
    lines = []
    if steps:
        lines.append(
            "+1, −1: the estimate run again with one more or one less, per 1 % of change; slope: a derivative"
        )
    if any(each.derivative.endswith(str(TILE)) for each in steps):
        lines.append(
            f"+{TILE}, −{TILE}: likewise with a whole tile more or less, to which kernels pad the rest"
        )
    return lines + describe_tied([each.path for each in steps])


def sensitivity_table(ranked: Sequence[Sensitivity]) -> Table:
    """The elasticities that matter most, a row each, with the kind of derivative that they are."""
    table = column_table("input", "value", "derivative", "elasticity")
    table.add_column("")  # a bar
    largest = max((abs(sensitivity.elasticity) for sensitivity in ranked), default=1.0)
    for sensitivity in ranked:
        declared, elasticity = sensitivity.declared, sensitivity.elasticity
        bar = ("+" if elasticity > 0 else "−") * max(1, round(_BAR * abs(elasticity) / largest))
        value = units.show(sensitivity.value, declared.unit)
        table.add_row(sensitivity.path, value, sensitivity.derivative, f"{elasticity:+.4f}", bar)
    return table


def rooms_table(rooms: Sequence[Room]) -> Table:
    """The rooms whose slopes matter, a row each."""
    table = column_table("room", "1 % more of all of it", "sum of sizes")
    table.add_column("largest")
    for room in rooms:
        if room.size > _NO_EFFECT:
            table.add_row(room.name, f"{room.total:+.4f} %", f"{room.size:.4f}", room.largest)
    return table
