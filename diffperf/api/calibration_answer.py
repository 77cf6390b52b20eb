"""dp.calibrate: the values of efficiencies and overheads that explain measurements best."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import RenderableType
from rich.table import Table

from diffperf import units
from diffperf.api.answer import Answer
from diffperf.api.boundary import answering, asker_of
from diffperf.api.from_python import whole_number
from diffperf.errors import ConfigError, counted
from diffperf.explore.calibrate.calibrate import calibrate as fit_system
from diffperf.explore.calibrate.calibrate import calibrate_stack
from diffperf.explore.calibrate.calibrated import Calibrated
from diffperf.explore.calibrate.calibration_file import write_calibration
from diffperf.explore.calibrate.stack_file import write_stack
from diffperf.explore.measured.conditions import where as rows_where
from diffperf.explore.measured.platforms import platforms_with
from diffperf.explore.measured.table import Measurements, check_used, read_measurements
from diffperf.load import load_calibration
from diffperf.load.calibration import Calibration
from diffperf.report.output_files import check_writable
from diffperf.report.tables import column_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EVERY = "all"  # as hardware: that of all rows which a stack drove
SURPRISING = 3.0  # prior standard deviations of a change that is pointed out


@answering("calibrate")
def calibrate(
    files: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    hardware: str | None = None,
    parameters: str | Sequence[str] | None = None,
    stack: str | None = None,
    where: str | Sequence[str] = (),
    systems: str | Sequence[str] = (),
    prior_spread: float | None = None,
    folds: int = 5,
    leave_out: str | None = None,
    column: str | None = None,
    calibration: str | Path | None = None,
) -> "CalibrationAnswer":
    """Fits efficiencies and overheads to CSV tables of measurements, and writes them as a config.

    **Arguments:**

    - `files`: one table, or several that are fitted together.
    - `out`: the config to write, for `calibration=`; with hardware "all" a stack's, for `stack=`.
    - `hardware`: whose rows to use, where the tables have several; "all" for those that `stack` drove.
    - `parameters`: the paths to fit; by default all that are declared calibratable and matter.
    - `stack`: whose software's values paths into the stack mean.
    - `where`, `systems`: as of `dp.validate`.
    - `prior_spread`: the standard deviation of the logarithm of every value before the fit.
    - `folds`, `leave_out`: of the cross-validation, and the column whose texts are left out together.
    - `column`: the measured column to fit, such as "power_per_device_w".
    - `calibration`: the calibration to begin from, whose values stay where nothing is fitted; by default
      that of the system, "none" for the values of configs alone.

    **Raises:** `ConfigError`, in one line, also for a fit that explains nothing, which is not written.
    """
    asker, paths = asker_of("calibrate"), [files] if isinstance(files, str | Path) else list(files)
    file = check_writable(out, "out")
    if file.suffix != ".toml":
        raise ConfigError(asker, "out", f'"{out}"', "a file name ending in .toml", "rename it")
    if prior_spread is not None and not (math.isfinite(prior_spread) and prior_spread > 0):
        expected = "a standard deviation above 0"
        raise ConfigError(asker, "prior_spread", prior_spread, expected, "leave it out for the declared ones")
    whole_number(asker, "folds", folds, 2, 1000)
    tables = read_tables(paths, systems, where, asker)
    settings = {"prior_spread": prior_spread, "folds": folds, "leave_out": leave_out, "column": column}
    return CalibrationAnswer.of(
        tables,
        hardware=hardware,
        parameters=parameters,
        stack=stack,
        out=file,
        calibration=calibration,
        asker=asker,
        settings=settings,
    )


def read_tables(
    files: Sequence[str | Path],
    systems: Sequence[str],
    conditions: Sequence[str],
    asker: str,
    show: Callable[[Measurements], None] = lambda table: None,
) -> list[Measurements]:
    """The rows of the tables that meet the conditions; `show` is called with each table.

    **Raises:** `ConfigError` for a system that no row ran on.
    """
    platforms, tables = platforms_with(systems, asker), []
    for file in files:
        tables.append(rows_where(read_measurements(file, platforms), conditions, asker))
        show(tables[-1])
    check_used(systems, tables, asker)
    return tables


@dataclasses.dataclass(frozen=True, repr=False)
class CalibrationAnswer(Answer):
    """A fit: `result` has its values, errors and sources, `out` is the config that was written.

    `of_stack` says whether a stack was fitted on all hardware, `chosen` whether the parameters were named.
    """

    result: Calibrated
    out: Path
    of_stack: bool
    chosen: bool

    @classmethod
    def of(
        cls,
        tables: list[Measurements],
        hardware: str | None,
        parameters: Sequence[str] | None,
        stack: str | None,
        out: Path,
        calibration: str | Path | None,
        asker: str,
        settings: dict[str, Any],
    ) -> "CalibrationAnswer":
        """Fits, and writes the config."""
        of_stack, paths = hardware == EVERY, None if parameters is None else list(parameters)
        if of_stack and stack is None:
            raise ConfigError(asker, "--hardware", EVERY, "the hardware, or --stack", "name the stack")
        if of_stack and stack is not None:
            if calibration is not None:
                expected = "no calibration: every accelerator has its own"
                raise ConfigError(asker, "--calibration", str(calibration), expected, "leave it out")
            result = calibrate_stack(tables, stack, paths or (), **settings)
            write_stack(result, stack, out)
        else:
            begun_from: Calibration | Literal["none"] | None = None
            if calibration is not None:
                is_none = str(calibration) == "none"
                begun_from = "none" if is_none else load_calibration(calibration, asker, "--calibration")
            result = fit_system(tables, hardware, paths, stack=stack, calibration=begun_from, **settings)
            write_calibration(result, out)
        return cls(result, out, of_stack, bool(paths))

    @property
    def title(self) -> str:
        result, rows = self.result, sum(source.rows for source in self.result.sources)
        parameters = counted(len(result.parameters), "parameter")
        fitted = f"{parameters} fitted to {counted(rows, 'row')}"
        of = result.system.stack if self.of_stack else result.system
        return f"{result.hardware} ({of.name}): {fitted}"

    def lines(self) -> list[RenderableType]:
        result = self.result
        lines: list[RenderableType] = [f"[bold]{self.title}[/bold]", "", parameter_table(result), ""]
        lines.append(errors_table(result))
        if any(source.skipped for source in result.sources):
            lines += ["", skipped_table(result)]
        if result.without_effect:
            count = f"{len(result.without_effect)} calibratable values of the system"
            shown = ", ".join(result.without_effect) if self.chosen else count
            lines += ["", f"Without effect on these rows, so left as they are: {shown}"]
        if result.begun_from is not None:
            stay = f"{len(result.staying)} of its values stay as they are"
            lines += ["", f"Begun from the calibration {result.begun_from.name}: {stay}"]
        return [*lines, "", f"Written to {self.out}"]

    def to_dict(self) -> dict[str, Any]:
        return self.result.as_dict()

    def rows(self) -> list[dict[str, Any]]:
        """A row for each parameter."""
        return [
            {
                "path": each.path,
                "before": each.before,
                "fitted": each.after,
                "unit": each.declared.unit,
                "relative_deviation": each.spread,
            }
            for each in self.result.parameters
        ]

    def figure(self) -> "Figure":
        """The values with their uncertainty, and the errors before and after."""
        from diffperf.report import plots

        return plots.calibration(self.result, self.title)


def parameter_table(result: Calibrated) -> Table:
    """Values before and after the fit; those far from their prior or at the end of their range are marked."""
    before = "configured" if result.begun_from is None else "before"
    rows = column_table("parameter", before, "fitted", "±")
    rows.add_column("", justify="left")
    for parameter in result.parameters:
        unit, surprise = parameter.declared.unit, abs(parameter.surprise)
        remarks = ["at the end of its range"] if parameter.at_bound else []
        remarks += [f"{surprise:.1f} prior deviations away"] if surprise > SURPRISING else []
        rows.add_row(
            parameter.path,
            units.show(parameter.before, unit),
            units.show(parameter.after, unit),
            f"{parameter.spread:.1%}",
            ", ".join(remarks),
        )
    return rows


def errors_table(result: Calibrated) -> Table:
    """The sizes of relative errors before the fit, after it, and on rows left out of it, by group.

    Of the rows left out also the mean error, and the share that lies in its 90 % interval.
    """
    columns = ("rows", "n", "median before", "after", "left out", "p90 before", "after", "left out")
    rows = column_table(*columns, "bias", "covered")
    for name, group in result.groups.items():
        fits = (group.before, group.after, group.cross_validated)
        medians = [f"{errors.median_ape:.1%}" for errors in fits]
        tails = [f"{errors.p90_ape:.1%}" for errors in fits]
        covered = "–" if group.coverage is None else f"{group.coverage:.1%}"
        bias = f"{group.cross_validated.bias:+.1%}"
        rows.add_row(name, f"{group.after.n:,}", *medians, *tails, bias, covered)
    return rows


def skipped_table(result: Calibrated) -> Table:
    """Number of rows of every table that were skipped, by reason."""
    rows = column_table("skipped", "rows")
    for source in result.sources:
        for reason, count in source.skipped.items():
            rows.add_row(f"{source.name}: {reason}", f"{count:,}")
    return rows
