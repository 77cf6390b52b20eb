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

`--table` adds a table of your own in the columns that `diffperf validate` reads.
"""

import csv
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from diffperf.explore.measured.validate import Evaluation, validate
from diffperf.report import plots
from diffperf.workload.strategy import Strategy

sys.path.append(str(Path(__file__).parents[1]))
from reporting import Table, figure_style, parse_options, publish, read_rows

STUDIES = Path(__file__).parents[1]
TABLES = {
    "aiconfigurator": STUDIES / "serving_stacks" / "data" / "aic-silicon.csv",
    "ML.ENERGY": STUDIES / "power" / "data" / "ml-energy.csv",
}
SPREADS = (0.0, 0.35, 0.7, 1.0, 1.4)
COLUMN = "expert_popularity_spread"
TIMES = ("tpot_s", "tpot_median_s")  # of a time per token; the first that a table has
# The sequences that run at a time, by the column of the table that says it.
BATCHES = ("concurrency", "batch")
# Runs whose host is slower than their accelerator say nothing of experts.
HOST_BOUND = ("not_faster_than_h100", "slow_series", "power_dip")
# What the runs of a series share: all but the batch. Runs of one task have answers of almost one length.
LENGTHS = ("input_len", "output_len")
SERIES = (
    "model", "hardware", "framework", "weight_dtype", "kv_dtype", "task",
    "tp", "pp", "ep", "dp", "decode_tp", "decode_ep", "decode_dp_attention", "prefill_tp", "prefill_ep",
)  # fmt: skip
LEAST_BATCHES = 4  # of a series that counts
BINS = (1, 4, 8, 16, 32, 64, 128, 256, 512)  # edges of the batches in the figure
FEWEST = 3  # runs of a point in the figure


def read_at(file: Path, spread: float, conditions: Sequence[str]) -> list[Evaluation]:
    """Returns the runs of a table that meet some conditions, with their estimates at a spread."""
    rows = [row | {COLUMN: f"{spread:g}"} for row in read_rows(file)]
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / file.name
        with written.open("w", encoding="utf-8", newline="") as text:
            writer = csv.DictWriter(text, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        runs = validate(written, where=conditions).evaluations
    return [run for run in runs if run.skipped is None and _time(run) and not _waits_for_host(run)]


def _time(run: Evaluation) -> str | None:
    """Returns the column of a run's time per token, which the estimator predicts."""
    return next((name for name in TIMES if name in run.measured and name in run.predicted), None)


def _waits_for_host(run: Evaluation) -> bool:
    return any(flag in run.cells.get("flags", "") for flag in HOST_BOUND)


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


def errors_at(name: str, spread: float, runs: Sequence[Evaluation]) -> dict[str, float | str]:
    """Returns a row of the table of errors."""
    logs = np.array([log_error(run) for run in runs])
    batches, within = deviations(runs)
    return {
        "table": name,
        "spread": spread,
        "n": len(logs),
        "median": float(np.median(np.abs(np.expm1(logs)))),
        "p90": float(np.quantile(np.abs(np.expm1(logs)), 0.9)),
        "bias": float(np.expm1(np.median(logs))),
        "in_series": len(batches),
        "within": float(np.sqrt(np.mean(within**2))) if within.size else np.nan,
    }


def draw(by_spread: dict[float, list[Evaluation]], dense: list[Evaluation]) -> Figure:
    """Draws the mean deviation within series by batch, of all tables together, with its standard error."""
    shown = [spread for spread in (0.0, 0.7, 1.0) if spread in by_spread]
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


def finding(rows: Sequence[dict[str, float | str]]) -> str:
    """Returns the spreads with the least variation and the least median error, by table."""
    texts = []
    for name in dict.fromkeys(row["table"] for row in rows):
        own = [row for row in rows if row["table"] == name and isinstance(row["spread"], float)]
        flattest, nearest = (min(own, key=lambda row: row[key]) for key in ("within", "median"))
        texts.append(
            f"{name}: errors vary least within series at a spread of {flattest['spread']:g} "
            f"({flattest['within']:.1%}, {own[0]['within']:.1%} with equal popularity), and are least at "
            f"{nearest['spread']:g} ({nearest['median']:.1%} in the median)"
        )
    default = Strategy.__dataclass_fields__[COLUMN].default
    return f"The default is {default:g}. " + "; ".join(texts) + "."


def main() -> None:
    """Runs the study."""
    options = parse_options(
        __doc__,
        "expert_popularity",
        "one model of one table, at two spreads",
        table={"type": Path, "metavar": "FILE", "help": "a table of your own beside the others"},
    )
    tables = {"ML.ENERGY": TABLES["ML.ENERGY"]} if options.quick else dict(TABLES)
    if options.table is not None:
        tables[options.table.stem] = options.table
    conditions = ["model=qwen3-30b-a3b"] if options.quick else []
    rows, by_spread, dense = [], {}, []
    for name, file in tables.items():
        for spread in (0.0, 0.7) if options.quick else SPREADS:
            runs = read_at(file, spread, ["experts>0", *conditions])
            rows.append(errors_at(name, spread, runs))
            by_spread.setdefault(spread, []).extend(runs)
        if without := [] if options.quick else read_at(file, 0.0, ["experts=0"]):
            rows.append(errors_at(name, 0.0, without) | {"spread": "dense models"})
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
