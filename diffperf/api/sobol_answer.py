"""The answer of dp.sensitivity with sobol=True: which inputs the variance of an output over ranges comes
from.
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import RenderableType

from diffperf.api.point_answer import PointAnswer
from diffperf.api.question import Question
from diffperf.api.varied_ranges import described_cuts, read_ranges
from diffperf.errors import ConfigError
from diffperf.explore.inputs import checked_output
from diffperf.explore.ranges import Range
from diffperf.explore.sobol import SobolIndices, sobol_indices
from diffperf.quantity import Quantity
from diffperf.report.tables import column_table, show

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PAIRS = 8  # interactions that are printed at most


@dataclasses.dataclass(frozen=True, repr=False)
class SobolAnswer(PointAnswer):
    """Sobol indices of an output over ranges; `order` has the places of the largest ones first."""

    output: str
    declared: Quantity
    ranges: list[Range]
    indices: SobolIndices
    samples: int

    @classmethod
    def of(
        cls,
        question: Question,
        phase: str,
        output: str,
        ranges: Mapping[str, Any],
        samples: int = 1024,
        *,
        interactions: bool = False,
        seed: int = 0,
    ) -> "SobolAnswer":
        """Samples the ranges at the layout of a question."""
        if samples < 2 or samples & (samples - 1):
            expected = "a power of two, as Sobol sequences want"
            raise ConfigError(question.asker, "--samples", str(samples), expected, "take 1024")
        c = question.configuration(phase)
        declared = checked_output(c, phase, output, question.asker)
        read = read_ranges(c, ranges, question, phase)
        found = sobol_indices(c, read, phase, output, samples, interactions=interactions, seed=seed)
        varied = {"ranges": read, "indices": found, "samples": samples}
        return cls(question, phase, c, output=output, declared=declared, **varied)

    @property
    def title(self) -> str:
        return f"What varies {self.output} of {self.question.summary(self.phase)}"

    @property
    def order(self) -> list[int]:
        """Indices of the inputs, in the order of the rows."""
        return np.argsort(-self.indices.total).tolist()

    def lines(self) -> list[RenderableType]:
        found = self.indices
        shown = [show(value, self.declared) for value in (found.low, found.high, found.mean, found.deviation)]
        table = column_table("input", "from", "to", "first order", "total")
        for place in self.order:
            each = self.ranges[place]
            table.add_row(
                each.path,
                show(each.low, each.declared),
                show(each.high, each.declared),
                f"{found.first[place]:.3f} ± {found.first_interval[place]:.3f}",
                f"{found.total[place]:.3f} ± {found.total_interval[place]:.3f}",
            )
        return [
            *self.heading(),
            f"90 % of {self.output} are from {shown[0]} to {shown[1]}; mean {shown[2]}, deviation {shown[3]}",
            table,
            *described_cuts(self.ranges),
            "first order: share of the variance that an input explains alone; total: with all interactions; "
            f"± of 95 % intervals, from {self.samples:,} samples",
            *self._interaction_lines(),
        ]

    def _interaction_lines(self) -> list[RenderableType]:
        pairs = self.pairs()
        if not pairs:
            return []
        table = column_table("interaction of", "and", "share", left=2)
        for pair in pairs[:_PAIRS]:
            table.add_row(pair["path"], pair["with"], f"{pair['share']:+.3f} ± {pair['interval']:.3f}")
        return ["", table]

    def pairs(self) -> list[dict[str, Any]]:
        """The interactions of all pairs of inputs, the largest first; none where they were not asked for."""
        count = len(self.indices.interactions)
        pairs = [
            {
                "path": self.ranges[one].path,
                "with": self.ranges[other].path,
                "share": float(self.indices.interactions[one, other]),
                "interval": float(self.indices.interactions_interval[one, other]),
            }
            for one in range(count)
            for other in range(one + 1, count)
        ]
        return sorted(pairs, key=lambda pair: -abs(pair["share"]))

    def rows(self) -> list[dict[str, Any]]:
        """A row for each input, with its indices and half the width of their intervals."""
        found = self.indices
        return [
            {
                "path": self.ranges[place].path,
                "unit": self.ranges[place].declared.unit,
                "low": self.ranges[place].low,
                "high": self.ranges[place].high,
                "first_order": float(found.first[place]),
                "first_order_interval": float(found.first_interval[place]),
                "total": float(found.total[place]),
                "total_interval": float(found.total_interval[place]),
            }
            for place in self.order
        ]

    def to_dict(self) -> dict[str, Any]:
        found = self.indices
        return self.heading_values() | {
            "output": self.output,
            "samples": self.samples,
            "mean": found.mean,
            "deviation": found.deviation,
            "percentile_5": found.low,
            "percentile_95": found.high,
            "indices": self.rows(),
            "interactions": self.pairs(),
        }

    def figure(self) -> "Figure":
        """The indices of every input as bars with their intervals."""
        from diffperf.report import plots

        bars = [
            plots.IndexBar(
                plots.input_name(row["path"]),
                (row["first_order"], row["first_order_interval"]),
                (row["total"], row["total_interval"]),
            )
            for row in self.rows()
        ]
        output = plots.words_of(self.output)
        return plots.index_bars(bars, f"What varies {output} of {self.question.headline(self.phase)}")
