"""What the studies of software stacks share: tables of fitted parameters, and of errors on measured runs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from reporting import Table

from diffperf import units
from diffperf.explore.calibrate.calibrated import Calibrated
from diffperf.explore.measured.statistics import Summary


def median_and_tail(log_ratios: np.ndarray) -> str:
    """Returns the median and the 90th percentile of |predicted ÷ measured − 1| as text."""
    errors = np.abs(np.expm1(log_ratios))
    return f"{np.median(errors):.1%} / {np.quantile(errors, 0.9):.1%}"


def fit_rows(
    stack: str, hardware: str, calibrated: Calibrated, errors: Mapping[str, str]
) -> Iterator[dict[str, str]]:
    """Yields a row for each parameter of a fit; the first has the stack, its runs and the errors."""
    shared = {
        "stack": stack,
        "hardware": hardware,
        "runs": f"{sum(source.rows for source in calibrated.sources):,}",
        **errors,
    }
    for parameter in calibrated.parameters:
        unit = parameter.declared.unit
        yield shared | {
            "parameter": parameter.path.removeprefix("stack."),
            "shipped": units.show(parameter.before, unit),
            "fitted": f"{units.show(parameter.after, unit)} ± {parameter.spread:.0%}",
        }
        shared = dict.fromkeys(shared, "")


def fits_table(rows: Iterable[dict[str, str]], title: str, errors: Mapping[str, str]) -> Table:
    """Tabulates rows of `fit_rows`; `errors` has the headings of the columns of errors."""
    names = ("stack", "hardware", "runs", "parameter", "shipped", "fitted")
    columns = {name: (name, "") for name in names} | {key: (text, "") for key, text in errors.items()}
    return Table("fits", title, columns, list(rows))


def errors_table(groups: Iterable[tuple[str, Summary]], columns: Sequence[str]) -> Table:
    """Tabulates the errors of groups of runs in measured columns.

    Beside the errors stands how many runs are known to run out of memory, with the memory where that was
    measured and with the first column where it was not.
    """
    headings = {
        "group": ("group", ""),
        "column": ("column", ""),
        "count": ("n", ",.0f"),
        "mean": ("mean", ".1%"),
        "median": ("median", ".1%"),
        "p90": ("p90", ".1%"),
        "bias": ("bias", "+.1%"),
        "out_of_memory": ("out of memory: accuracy", ""),
    }
    rows = []
    for group, summary in groups:
        present = [column for column in columns if column in summary.metrics]
        memory = [column for column in present if "memory" in column] or present[:1]
        for column in present:
            errors = summary.metrics[column]
            row = {
                "group": group,
                "column": column,
                "count": errors.n,
                "mean": errors.mean_ape,
                "median": errors.median_ape,
                "p90": errors.p90_ape,
                "bias": errors.bias,
            }
            if summary.oom and column in memory:
                row["out_of_memory"] = f"{summary.oom.accuracy:.1%} of {summary.oom.n:,}"
            rows.append(row)
    return Table("errors", "All tables with the shipped configs", headings, rows)
