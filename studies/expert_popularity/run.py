"""How unequally the tokens of served models visit their experts, as measured times per token show it.

Few tokens visit fewer experts where some experts are popular, so that a batch reads fewer weights. How many
tells the time per token as the batch grows: of one model on one accelerator under one engine, an error that
is the same at every batch is the engine's, and one that changes with the batch is not. For several spreads of
the experts' popularity (`expert_popularity_spread`), the study evaluates every served run of a model with
experts in two tables and prints the errors of the times per token, and how much errors vary within a series
of batches. Dense models in the same tables show what is left without any experts. The parameters of the
engines are those of the shipped configs, which were fitted with equal popularity, so that the errors favour
small spreads; the variation within series does not depend on an engine's constant errors.

    python studies/expert_popularity/run.py [--quick] [--table FILE] [--out DIR]

`--table` adds a table of your own in the columns that `diffperf validate` reads, and `--quick` takes all its
runs.
"""

import dataclasses
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from diffperf.errors import ConfigError
from diffperf.explore.measured.conditions import where
from diffperf.explore.measured.statistics import Errors, Evaluation
from diffperf.explore.measured.table import Measurements, read_measurements
from diffperf.explore.measured.validate import evaluate
from diffperf.report import plots
from diffperf.workload.strategy import Strategy

sys.path.append(str(Path(__file__).parents[1]))
from host_bound import waits_for_host
from reporting import Table, figure_style, parse_options, publish

STUDIES = Path(__file__).parents[1]
TABLES = {
    "aiconfigurator": STUDIES / "serving_stacks" / "data" / "aic-silicon.csv",
    "ML.ENERGY": STUDIES / "power" / "data" / "ml-energy.csv",
}
COLUMN = "expert_popularity_spread"
DEFAULT = float(getattr(Strategy(), COLUMN))
SPREADS = (0.0, DEFAULT / 2, DEFAULT, 1.0, 1.4)
TIMES = ("tpot_s", "tpot_median_s")  # of a time per token; the first that a table has
# The sequences that run at a time, by the column of the table that says it.
BATCHES = ("concurrency", "batch")
# What the runs of a series share: all but the batch. Runs of one task have answers of almost one length.
LENGTHS = ("input_len", "output_len")
SERIES = (
    "model", "hardware", "framework", "weight_dtype", "kv_dtype", "task",
    "tp", "pp", "ep", "dp", "decode_tp", "decode_ep", "decode_dp_attention", "prefill_tp", "prefill_ep",
)  # fmt: skip
LEAST_BATCHES = 4  # of a series that counts
BINS = (1, 4, 8, 16, 32, 64, 128, 256, 512)  # edges of the batches in the figure
FEWEST = 3  # runs of a point in the figure


def rows_of(table: Measurements, *, experts: bool) -> Measurements:
    """Returns a table with only the runs of models with experts, or only those of dense models."""
    rows = [row for row in table.rows if (row.values.get("experts", 0) > 0) == experts]
    return dataclasses.replace(table, rows=rows)


def runs_at(table: Measurements, spread: float) -> list[Evaluation]:
    """Returns the runs of a table that have a time per token, with their estimates at a spread."""
    rows = [dataclasses.replace(row, values=row.values | {COLUMN: spread}) for row in table.rows]
    runs = evaluate(dataclasses.replace(table, rows=rows)).evaluations
    return [run for run in runs if run.skipped is None and _time(run) and not waits_for_host(run)]


def _time(run: Evaluation) -> str | None:
    """Returns the column of a run's time per token, which the estimator predicts."""
    return next((name for name in TIMES if name in run.measured and name in run.predicted), None)


def log_error(run: Evaluation) -> float:
    """Returns the logarithm of a run's predicted time per token over the measured one."""
    column = _time(run)
    assert column is not None
    return float(np.log(run.predicted[column] / run.measured[column]))


def batch(run: Evaluation) -> float:
    """Returns the sequences that a run has at a time."""
    return float(next(run.cells[name] for name in BATCHES if run.cells.get(name)))


def deviations(runs: Iterable[Evaluation]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the batches of the runs that have a series, and their log errors less the series' mean."""
    series: dict[tuple[str, ...], list[Evaluation]] = {}
    for run in runs:
        names = SERIES if run.cells.get("task") else SERIES + LENGTHS
        series.setdefault(tuple(run.cells.get(name, "") for name in names), []).append(run)
    long = [own for own in series.values() if len({batch(run) for run in own}) >= LEAST_BATCHES]
    errors = [np.array([log_error(run) for run in own]) for own in long]
    batches = [batch(run) for own in long for run in own]
    return np.array(batches), np.concatenate([own - own.mean() for own in errors] or [np.zeros(0)])


def errors_at(name: str, spread: float | None, runs: Sequence[Evaluation]) -> dict[str, float | str | None]:
    """Returns a row of the table of errors; dense models have no spread."""
    errors = Errors.of(np.exp([log_error(run) for run in runs]), np.ones(len(runs)))
    batches, within = deviations(runs)
    return {
        "table": name,
        "spread": spread,
        "n": errors.n,
        "median": errors.median_ape,
        "p90": errors.p90_ape,
        "bias": errors.bias,
        "in_series": len(batches),
        "within": float(np.sqrt(np.mean(within**2))) if within.size else np.nan,
    }


def draw(by_spread: dict[float, list[Evaluation]], dense: list[Evaluation]) -> Figure:
    """Draws the mean deviation within series by batch, of all tables together, with its standard error."""
    shown = [spread for spread in (0.0, DEFAULT, 1.0) if spread in by_spread]
    curves = {f"experts, spread {spread:g}": by_spread[spread] for spread in shown}
    curves |= {"dense models": dense} if dense else {}
    with figure_style():
        figure = Figure(figsize=(7.0, 4.5), layout="constrained")
        axes = figure.subplots()
        for index, ((label, runs), colour) in enumerate(zip(curves.items(), plots.PALETTE, strict=False)):
            batches, within = deviations(runs)
            bins = np.digitize(batches, BINS)
            chosen = [which for which in range(1, len(BINS)) if np.sum(bins == which) >= FEWEST]
            middle = [np.exp(np.mean(np.log(batches[bins == which]))) for which in chosen]
            means = np.array([np.expm1(np.mean(within[bins == which])) for which in chosen])
            errors = [np.std(within[bins == which]) / np.sqrt(np.sum(bins == which)) for which in chosen]
            shifted = np.array(middle) * 1.03**index  # so that error bars do not hide each other
            axes.errorbar(shifted, 100 * means, 100 * np.array(errors), label=label, color=colour, marker="o")
        axes.axhline(0, color=plots.INK, linewidth=1)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_xlabel("sequences at a time")
        axes.set_ylabel("time per token: predicted over measured,\nbeside the mean of its series (%)")
        axes.legend(frameon=False, loc="lower left")
    return figure


def finding(rows: Sequence[Mapping[str, float | str | None]]) -> str:
    """Returns the spreads with the least variation and the least median error, by table."""
    texts = []
    with_experts = [row for row in rows if row["spread"] is not None]
    for name in dict.fromkeys(row["table"] for row in with_experts):
        own = [row for row in with_experts if row["table"] == name]
        flattest, nearest = (min(own, key=lambda row: row[key]) for key in ("within", "median"))
        texts.append(
            f"{name}: errors vary least within series at a spread of {flattest['spread']:g} "
            f"({flattest['within']:.1%}, {own[0]['within']:.1%} with equal popularity), and are least at "
            f"{nearest['spread']:g} ({nearest['median']:.1%} in the median)"
        )
    return f"The default is {DEFAULT:g}. " + "; ".join(texts) + "."


def own_table(file: Path) -> Measurements:
    """Reads a user's table; ends the study, in one line, where it cannot be used."""
    try:
        table = read_measurements(file)
    except ConfigError as problem:
        sys.exit(f"Error: {problem}")
    if not any(row.values.get(time) for row in rows_of(table, experts=True).rows for time in TIMES):
        sys.exit(f"Error: {file}: no run of a model with experts that has one of {', '.join(TIMES)}")
    return table


def main() -> None:
    """Runs the study."""
    options = parse_options(
        __doc__,
        "expert_popularity",
        "one model of one table, at two spreads",
        table={"type": Path, "metavar": "FILE", "help": "a table of your own beside the others"},
    )
    tables = {name: read_measurements(file) for name, file in TABLES.items()}
    if options.quick:
        tables = {"ML.ENERGY": where(tables["ML.ENERGY"], ["model=qwen3-30b-a3b"])}
    if options.table is not None:
        tables[options.table.stem] = own_table(options.table)
    rows, by_spread, dense = [], {}, []
    for name, table in tables.items():
        for spread in (0.0, DEFAULT) if options.quick else SPREADS:
            runs = runs_at(rows_of(table, experts=True), spread)
            rows.append(errors_at(name, spread, runs))
            by_spread.setdefault(spread, []).extend(runs)
        if without := runs_at(rows_of(table, experts=False), 0.0):
            rows.append(errors_at(f"{name}, dense models", None, without))
            dense += without
    columns = {
        "table": ("", ""),
        "spread": ("spread of popularity", "g"),
        "n": ("runs", ",.0f"),
        "median": ("median error", ".1%"),
        "p90": ("p90", ".1%"),
        "bias": ("bias", "+.1%"),
        "in_series": ("runs in series", ",.0f"),
        "within": ("varies within series by", ".1%"),
    }
    title = "Times per token by the spread of the experts' popularity; the last column: a standard deviation"
    publish(
        options.out,
        [Table("errors", title, columns, rows)],
        finding(rows),
        figures={"batches": draw(by_spread, dense)},
    )


if __name__ == "__main__":
    main()
