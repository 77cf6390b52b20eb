"""dp.validate: how far the estimator is from measurements."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table

from diffperf.api.answer import Answer, check_figure_file
from diffperf.api.boundary import answering, asker_of
from diffperf.errors import ConfigError, did_you_mean, type_of
from diffperf.explore.measured.column_words import unit, words
from diffperf.explore.measured.errors_by_column import Explained, Residuals, residuals
from diffperf.explore.measured.statistics import Errors, Summary
from diffperf.explore.measured.validate import Validation
from diffperf.explore.measured.validate import validate as compare
from diffperf.report.tables import column_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from diffperf.report.plots import Panel


_NAMED_ROWS = 4  # rows that a table names for each doubt
_OVERLAPS = (
    "Communication is hidden as runs of each row's software hide it: gradient_overlap, tensor_overlap and "
    "expert_overlap of its stack"
)


@answering("validate")
def validate(
    file: str | Path,
    *,
    by: str = "group",
    where: str | Sequence[str] = (),
    systems: str | Sequence[str] = (),
    calibration: str | Path | None = None,
) -> "ValidationAnswer":
    """The errors of the estimator on a CSV table of measurements, by the texts of a column.

    **Arguments:**

    - `file`: its rows are runs, kernels or collectives; the columns decide which.
    - `by`: the column whose texts name the groups.
    - `where`: conditions on rows, such as "framework=vllm*".
    - `systems`: systems or accelerators, by path, that rows of their names ran on.
    - `calibration`: fitted values in place of those that systems name; "none" for none.

    **Raises:** `ConfigError`, in one line. A row that cannot be read is a fault of the answer.
    """
    asker = asker_of("validate")
    if not isinstance(file, str | Path):
        expected = "the path of a CSV file"
        raise ConfigError(asker, "file", type_of(file), expected, "write the table to a file")
    return ValidationAnswer(
        str(file), compare(file, calibration, systems=systems, where=where, file=asker), by
    )


@dataclasses.dataclass(frozen=True, repr=False)
class ValidationAnswer(Answer):
    """The errors of the rows of a table, by the texts of the column `by`."""

    file: str
    result: Validation
    by: str

    @property
    def summary(self) -> Summary:
        """The statistics of all rows."""
        return self.result.summary()

    @property
    def evaluated(self) -> int:
        """Number of rows that were neither bad nor skipped."""
        return _evaluated(self.summary)

    @property
    def title(self) -> str:
        overall = self.summary
        counts = f"{_evaluated(overall):,} of {overall.rows:,} rows evaluated"
        return f"{Path(self.file).name} ({self.result.kind}): {counts}"

    def lines(self) -> list[RenderableType]:
        """The errors by group and by hardware, who ran out of memory, and what was skipped."""
        summaries, overall = self.result.summaries(self.by), self.summary
        groups, by = {**summaries, "overall": overall}, self.by
        lines: list[RenderableType] = [f"[bold]{self.title}[/bold]"]
        if self.result.unread:
            meant = {
                name: f" (did you mean {near}?)" if near else "" for name, near in self.result.unread.items()
            }
            lines += [f"Columns that are not read: {', '.join(name + hint for name, hint in meant.items())}"]
        if self.result.kind == "training":
            lines += [_OVERLAPS]
        if not _evaluated(overall):
            lines += ["", "Nothing could be evaluated, for the reasons counted below."]
        if overall.metrics:
            lines += ["", errors_table(groups, by)]
        if overall.metrics and by == "group":
            by_hardware = self.result.summaries("hardware").items()
            evaluated_on = {name: summary for name, summary in by_hardware if summary.metrics}
            lines += ["", errors_table(evaluated_on, "hardware")]
        if overall.oom:
            lines += ["", "[bold]out of memory[/bold]", out_of_memory_table(groups, by)]
        if overall.skipped:
            lines += ["", "[bold]skipped[/bold]", rows_table(self.result.described_skips)]
        if self.result.doubtful:
            lines += ["", "[bold]doubtful, but counted[/bold]", rows_table(self.result.doubtful)]
        return lines

    def to_dict(self) -> dict[str, Any]:
        return self.result.as_dict(self.by)

    def rows(self) -> list[dict[str, Any]]:
        """A row for each group and measured column."""
        groups = {**self.result.summaries(self.by), "overall": self.summary}
        return [
            {self.by: name, "column": column, **dataclasses.asdict(errors)}
            for name, summary in groups.items()
            for column, errors in summary.metrics.items()
        ]

    def estimates(self) -> list[dict[str, Any]]:
        """A row for each measured value: the row of the table by its id or line, the column, the measured and
        the estimated value, and the relative error."""
        return [
            {
                "row": row.name,
                "column": column,
                "measured": measured,
                "predicted": row.predicted[column],
                "error": row.predicted[column] / measured - 1,
            }
            for row in self.result.evaluations
            for column, measured in row.measured.items()
            if row.skipped is None and column in row.predicted
        ]

    def figure(self) -> "Figure":
        """Predicted against measured values of the column with the most rows."""
        from diffperf.report import plots

        metrics = self.summary.metrics
        column = _most_rows(metrics)
        kind, points = self.result.kind, self.result.points_by(self.by, column)
        return plots.predicted_against_measured(points, words(kind, column), unit(kind, column), self.title)

    def residuals(self, column: str | None = None) -> Residuals:
        """The residuals of a measured column, by default the one with the most rows, and which share of their
        variance each column of the table explains, the largest first.

        **Raises:** `ConfigError` where no row has a measured and an estimated value in the column.
        """
        metrics = self.summary.metrics
        if not metrics:
            found, expected = "no row with a measured and an estimated value", "at least one"
            raise ConfigError(self.file, "", found, expected, "see the reasons for which rows were skipped")
        if column is not None and column not in metrics:
            expected = "a measured column that is estimated"
            hint = did_you_mean(column, list(metrics))
            raise ConfigError(self.file, "", f'no errors of "{column}"', expected, hint)
        return residuals(self.result.kind, self.result.evaluations, column or _most_rows(metrics))

    def residual_figure(self, column: str | None = None, most: int = 12) -> "Figure":
        """The relative errors of a measured column against the `most` columns of the table that explain the
        largest shares of their spread: what `--residuals` draws. Raises as `residuals` does.
        """
        from diffperf.report import plots

        residuals, kind = self.residuals(column), self.result.kind
        panels = [_panel(kind, each) for each in residuals.explained]
        label, title = words(kind, residuals.column), f"{self.title}, errors of {residuals.column}"
        of = unit(kind, residuals.column)
        return plots.residuals(
            residuals.measured,
            ratios=residuals.ratios,
            panels=panels,
            label=label,
            unit=of,
            title=title,
            most=most,
        )

    def plot_residuals(self, file: str | Path | None = None, column: str | None = None) -> "Figure":
        """`residual_figure` as a matplotlib figure, which is also written to a file if one is named.

        **Raises:** `ConfigError` for a file that is no .png, .svg or .pdf, or that cannot be written, and as
        `residuals` does.
        """
        from diffperf.report import plots

        check_figure_file(file, "answer.plot_residuals")
        figure = self.residual_figure(column)
        if file is not None:
            plots.save(figure, file)
        return figure


def _most_rows(metrics: dict[str, Errors]) -> str:
    """The measured column that most rows have; empty where there is none."""
    return max(metrics, key=lambda name: metrics[name].n, default="")


def _panel(kind: str, explained: Explained) -> "Panel":
    """A column of a table as a panel of the figure."""
    from diffperf.report import plots

    label = words(kind, explained.column)
    if explained.alike:
        label += f" (as {', '.join(explained.alike[:2])}{', …' * (len(explained.alike) > 2)})"
    return plots.Panel(
        column=explained.column,
        label=label,
        unit=unit(kind, explained.column),
        share=explained.share,
        groups=explained.groups,
        names=explained.names,
        values=explained.values,
    )


def _evaluated(summary: Summary) -> int:
    """Number of rows that were neither bad nor skipped."""
    return summary.rows - sum(summary.skipped.values())


def errors_table(summaries: dict[str, Summary], by: str) -> Table:
    """The relative errors of predictions by group and column: statistics of their size, and their mean."""
    rows = column_table(by, "column", "n", "mean", "median", "p90", "bias", left=2)
    for name, summary in summaries.items():
        for index, (column, errors) in enumerate(summary.metrics.items()):
            shares = (f"{value:.1%}" for value in (errors.mean_ape, errors.median_ape, errors.p90_ape))
            rows.add_row("" if index else name, column, f"{errors.n:,}", *shares, f"{errors.bias:+.1%}")
        if not summary.metrics:
            # Rows may say no more than that they ran out of memory, which has a table of its own.
            rows.add_row(name, "–" if _evaluated(summary) else "no row evaluated", "0")
    return rows


def out_of_memory_table(summaries: dict[str, Summary], by: str) -> Table:
    """Quality of the predictions of running out of memory, by group."""
    rows = column_table(by, "n", "accuracy", "precision", "recall")
    for name, summary in summaries.items():
        if oom := summary.oom:
            ratios = (oom.accuracy, oom.precision, oom.recall)
            shown = ("–" if ratio is None else f"{ratio:.1%}" for ratio in ratios)
            rows.add_row(name, f"{oom.n:,}", *shown)
    return rows


def rows_table(by_reason: dict[str, list[str]]) -> Table:
    """How many rows there are of each reason, and the first of them by their ids or lines."""
    table = column_table("reason", "rows", "ids", left=1)
    table.columns[-1].justify = "left"
    for reason, names in by_reason.items():
        more = ", …" if len(names) > _NAMED_ROWS else ""
        table.add_row(reason, f"{len(names):,}", ", ".join(names[:_NAMED_ROWS]) + more)
    return table
