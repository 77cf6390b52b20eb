"""The answer of dp.sensitivity over ranges: what an output is at both ends of each."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from diffperf import units
from diffperf.api.point_answer import PointAnswer
from diffperf.api.question import Question
from diffperf.api.varied_ranges import described_cuts, read_ranges
from diffperf.explore.inputs import checked_output
from diffperf.explore.ranges import Range, Swing, swings
from diffperf.explore.whole_steps import DEGREES, UNITS
from diffperf.quantity import Quantity, real, replace
from diffperf.report.tables import change, column_table, show

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_UNITS_BRING = "a compute unit brings its FLOP/s, innermost memory and cache port; area, power and price stay"
_DEGREES_BRING = "a degree brings the devices that it takes"


def describe_tied(paths: Collection[str]) -> list[str]:
    """Lines about what changes along with these inputs, which others are in proportion to."""
    lines = [_UNITS_BRING] if UNITS in paths else []
    return [*lines, _DEGREES_BRING] if set(DEGREES) & set(paths) else lines


@dataclasses.dataclass(frozen=True, repr=False)
class RangesAnswer(PointAnswer):
    """Values of an output at both ends of some ranges, one input at a time; the widest swing first.

    `before` is the output at the configuration itself.
    """

    output: str
    declared: Quantity
    before: float
    swings: list[Swing]

    @classmethod
    def of(cls, question: Question, phase: str, output: str, ranges: Mapping[str, Any]) -> "RangesAnswer":
        """Estimates exactly at both ends of every range, at the layout of a question."""
        c = question.configuration(phase)
        declared = checked_output(c, phase, output, question.asker)
        ranked = swings(c, read_ranges(c, ranges, question, phase), phase, output)
        before = ranked[0].before
        return cls(question, phase, c, output=output, declared=declared, before=before, swings=ranked)

    @property
    def title(self) -> str:
        return f"{self.output} of {self.question.summary(self.phase)} over ranges"

    def lines(self) -> list[RenderableType]:
        table = column_table("input", "value", "from", "to", f"{self.output}: from", "to", "change")
        for each in self.swings:
            ends = (each.value, each.range.low, each.range.high)
            inputs = [show(end, each.range.declared) for end in ends]
            outputs = [show(end, self.declared) for end in (each.at_low, each.at_high)]
            changes = [change(end, self.before, "+.2%") for end in (each.at_low, each.at_high)]
            table.add_row(each.range.path, *inputs, *outputs, " … ".join(changes))
        note = described_cuts(each.range for each in self.swings)
        note += describe_tied([each.range.path for each in self.swings])
        note += [line for each in self.swings for line in self._described_devices(each.range)]
        return [
            *self.heading(),
            f"{self.output} {show(self.before, self.declared)}; one input at a time, estimated at both ends",
            table,
            *note,
        ]

    def _described_devices(self, varied: Range) -> list[str]:
        """A line about a range over which the number of devices changes, as it does with a degree."""
        c = self.configuration
        low, high = (
            float(replace(c, {varied.path: real(end)}).strategy.devices) for end in (varied.low, varied.high)
        )
        if low == high:
            return []
        ends = f"{low:,.0f} at the low end, {high:,.0f} at the high one"
        own = f"{float(c.strategy.devices):,.0f} in the configuration"
        return [f"[bold yellow]Devices differ[/bold yellow] over {varied.path}: {ends}, {own}"]

    def rows(self) -> list[dict[str, Any]]:
        """A row for each range, with the output at both ends."""
        return [
            {
                "path": each.range.path,
                "unit": each.range.declared.unit,
                "value": each.value,
                "low": each.range.low,
                "high": each.range.high,
                "at_low": each.at_low,
                "at_high": each.at_high,
            }
            for each in self.swings
        ]

    def to_dict(self) -> dict[str, Any]:
        answer = {"output": self.output, "before": self.before, "ranges": self.rows()}
        return self.heading_values() | answer

    def figure(self) -> "Figure":
        """A tornado: a bar for each range, from the output at its low end to that at its high end."""
        from diffperf.report import plots

        bars = [
            plots.SwingBar(
                label=plots.input_name(each.range.path),
                low=units.show(each.range.low, each.range.declared.unit, 3),
                high=units.show(each.range.high, each.range.declared.unit, 3),
                at_low=each.at_low,
                at_high=each.at_high,
            )
            for each in self.swings
        ]
        return plots.swing_bars(
            bars,
            self.before,
            plots.output_name(self.output, self.declared),
            self.declared.unit,
            f"{plots.words_of(self.output)} of {self.question.headline(self.phase)}",
        )
