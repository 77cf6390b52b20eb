"""How much power accelerators draw while they serve, where it goes, and what a lower power limit buys.

Predicts the power and the energy per token of every run of The ML.ENERGY Benchmark (arXiv 2505.06371; v3:
vLLM 0.11 on H100 and B200, ten models, batches of 8 to 4,096), as the shipped configs have them. Runs that
its data flag as waiting for something other than the accelerator are left out. Then shows what the joules
of a token are spent on, and how time and joules per token follow the power limit.

    python studies/power/run.py [--quick] [--out DIR]
"""

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import diffperf as dp
from diffperf.estimate.inference import decode, prefill
from diffperf.explore.measured.statistics import Errors
from diffperf.explore.measured.validate import Evaluation, validate
from diffperf.quantity import replace
from diffperf.report import plots

sys.path.append(str(Path(__file__).parents[1]))
from reporting import Table, figure_style, parse_options, publish

MEASURED = Path(__file__).parent / "data" / "ml-energy.csv"
# The flags of runs that seem to wait for their host or their client.
HOST_BOUND = ("not_faster_than_h100", "slow_series", "power_dip")
COLUMNS = {"power_per_device_w": "power", "energy_per_token_j": "J/token", "tpot_s": "time per token"}
ACCELERATORS = {"h100-sxm5-80gb": "H100", "b200-sxm-180gb": "B200"}

# Where the energy goes: a model on as many devices as it needs, at several batches.
MODEL, TP = "llama-3.3-70b", 4
SYSTEMS = {"H100": "dgx-h100", "B200": "hgx-b200"}
BATCHES = (1, 4, 16, 64, 256)
PARTS = {
    "static": "idle",
    "active": "clocks and instructions",
    "compute": "arithmetic",
    "memory": "memory traffic",
    "network": "links",
}
COLOURS = (plots.GREY, plots.BLUE, plots.ORANGE, plots.RED, plots.INK)
LIMITS = np.linspace(0.4, 1.0, 13)  # power limits over the thermal design power


def measured_runs(quick: bool) -> list[Evaluation]:
    """Returns the runs that do not wait for their host, with their predicted values."""
    where = ["model=llama-3.1-8b"] if quick else []
    evaluations = validate(MEASURED, where=where).evaluations
    flagged = [run for run in evaluations if any(flag in run.cells["flags"] for flag in HOST_BOUND)]
    return [run for run in evaluations if run.skipped is None and run not in flagged]


def errors(runs: Sequence[Evaluation], by: str) -> Iterator[dict[str, str | float]]:
    """Yields the errors of the runs of each accelerator and of each value of a column."""
    for hardware, name in ACCELERATORS.items():
        own = [run for run in runs if run.cells["hardware"] == hardware]
        for value in sorted({run.cells[by] for run in own}):
            group = [run for run in own if run.cells[by] == value]
            row: dict[str, str | float] = {"accelerator": name, "group": value, "n": len(group)}
            for column in COLUMNS:
                of_column = Errors.of(
                    np.array([run.predicted[column] for run in group]),
                    np.array([run.measured[column] for run in group]),
                )
                row |= {f"{column}_median": of_column.median_ape, f"{column}_bias": of_column.bias}
            yield row


def errors_table(runs: Sequence[Evaluation]) -> Table:
    """Tabulates the errors of power, energy and time by accelerator, and by model."""
    columns = {"accelerator": ("", ""), "group": ("runs", ""), "n": ("n", ",.0f")}
    for column, heading in COLUMNS.items():
        columns |= {f"{column}_median": (f"{heading}: median", ".1%"), f"{column}_bias": ("bias", "+.1%")}
    whole = [dict(row, group="all") for row in errors(runs, "hardware")]
    title = "Errors on measured runs: |predicted ÷ measured − 1|"
    return Table("errors", title, columns, [*whole, *errors(runs, "model")])


@dataclasses.dataclass(frozen=True)
class Served:
    """A decode pass at a batch: W of each device by what it is spent on, and the J of a token."""

    accelerator: str
    batch: int
    watts: dict[str, float]
    joules: float


def where_energy_goes() -> list[Served]:
    """Returns decode passes of a model on every system, at every batch."""
    cases = []
    for name, file in SYSTEMS.items():
        system = dp.load_system(file, n_devices=TP)
        for batch in BATCHES:
            strategy = {"tp": TP, "global_batch": batch, "sequence_length": 1024, "output_length": 512}
            report = decode(dp.load_model(MODEL), system, dp.load_strategy(strategy, n_devices=TP))
            per_device = {part: float(getattr(report.energy, part) / report.time / TP) for part in PARTS}
            cases.append(Served(name, batch, per_device, float(report.energy.total) / batch))
    return cases


def parts_table(cases: Sequence[Served]) -> Table:
    """Tabulates the power of a device by what it is spent on."""
    columns = {"accelerator": ("", ""), "batch": ("batch", ",.0f")}
    columns |= {part: (f"{heading} W", ",.0f") for part, heading in PARTS.items()}
    columns |= {"total": ("total W", ",.0f"), "joules": ("J/token", ".3g")}
    rows = [
        {
            "accelerator": case.accelerator,
            "batch": case.batch,
            **case.watts,
            "total": sum(case.watts.values()),
            "joules": case.joules,
        }
        for case in cases
    ]
    return Table("parts", f"Decoding with {MODEL} on {TP} devices", columns, rows)


def limited(name: str) -> list[dict[str, float | str]]:
    """Returns times and joules per token of prompts and of decoding under several power limits."""
    system = dp.load_system(SYSTEMS[name], n_devices=TP)
    strategy = dp.load_strategy(
        {"tp": TP, "global_batch": 64, "sequence_length": 1024, "output_length": 512}, n_devices=TP
    )
    model, most = dp.load_model(MODEL), system.accelerator.power_limit

    def at(share):
        capped = replace(system, {"accelerator.power_limit": share * most})
        prompts, tokens = prefill(model, capped, strategy), decode(model, capped, strategy)
        count = strategy.global_batch * strategy.sequence_length
        return {
            "prompt_tokens_per_s": count / prompts.time,
            "prompt_joules": prompts.energy.total / count,
            "decode_tokens_per_s": strategy.global_batch / tokens.time,
            "decode_joules": tokens.energy.total / strategy.global_batch,
        }

    results = jax.device_get(jax.jit(jax.vmap(at))(jnp.asarray(LIMITS)))
    return [
        {"accelerator": name, "limit": share * float(most), "share": share}
        | {key: float(values[index]) for key, values in results.items()}
        for index, share in enumerate(LIMITS)
    ]


def limits_table(rows: Sequence[dict[str, float | str]]) -> Table:
    """Tabulates what a power limit does to prompts and to decoding."""
    columns = {
        "accelerator": ("", ""),
        "limit": ("limit W", ",.0f"),
        "share": ("of TDP", ".0%"),
        "prompt_tokens_per_s": ("prompt tokens/s", ",.0f"),
        "prompt_joules": ("J/token", ".3g"),
        "decode_tokens_per_s": ("decoded tokens/s", ",.0f"),
        "decode_joules": ("J/token", ".3g"),
    }
    title = f"{MODEL} on {TP} devices at batch 64 under a power limit"
    return Table("limits", title, columns, rows)


def draw_parts(cases: Sequence[Served]) -> Figure:
    """Draws the power of a device by batch, stacked by what it is spent on."""
    with figure_style():
        figure = Figure(figsize=(9.0, 4.2), layout="constrained")
        panels = figure.subplots(1, len(SYSTEMS), sharey=True)
        for axes, name in zip(panels, SYSTEMS, strict=True):
            own = [case for case in cases if case.accelerator == name]
            base = np.zeros(len(own))
            for index, (part, heading) in enumerate(PARTS.items()):
                watts = np.array([case.watts[part] for case in own])
                axes.bar(range(len(own)), watts, bottom=base, label=heading, color=COLOURS[index])
                base += watts
            axes.set_xticks(range(len(own)), [str(case.batch) for case in own])
            axes.set_xlabel("batch (sequences)")
            axes.set_title(name)
        panels[0].set_ylabel("power of a device (W)")
        panels[-1].legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), frameon=False)
        figure.suptitle(f"Where the power goes: decoding with {MODEL} on {TP} devices")
    return figure


def draw_limits(rows: Sequence[dict[str, float | str]]) -> Figure:
    """Draws tokens per joule against the power limit, for prompts and for decoding."""
    with figure_style():
        figure = Figure(figsize=(10.0, 4.0), layout="constrained")
        panels = figure.subplots(1, 2)
        for axes, phase, title in zip(panels, ("prompt", "decode"), ("prompts", "decoding"), strict=True):
            for name, colour in zip(SYSTEMS, (plots.BLUE, plots.ORANGE), strict=True):
                own = [row for row in rows if row["accelerator"] == name]
                speed = np.array([float(row[f"{phase}_tokens_per_s"]) for row in own])
                efficiency = 1 / np.array([float(row[f"{phase}_joules"]) for row in own])
                axes.plot(100 * LIMITS, efficiency, color=colour, label=f"{name}, tokens per joule")
                axes.plot(
                    100 * LIMITS,
                    efficiency[-1] * speed / speed[-1],
                    color=colour,
                    linestyle="--",
                    label=f"{name}, speed on the same scale",
                )
            axes.set_xlabel("power limit (% of the thermal design power)")
            axes.set_title(title)
            axes.set_ylim(bottom=0)
            axes.grid(color=plots.FAINT, linewidth=0.8)
        panels[0].set_ylabel("tokens per joule")
        panels[-1].legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), frameon=False)
    return figure


def draw_measured(runs: Sequence[Evaluation]) -> Figure:
    """Draws predicted against measured power of every run."""
    with figure_style():
        figure = Figure(figsize=(6.0, 5.5), layout="constrained")
        axes = figure.subplots()
        for (key, name), colour in zip(ACCELERATORS.items(), (plots.BLUE, plots.ORANGE), strict=True):
            own = [run for run in runs if run.cells["hardware"] == key]
            pairs = [[side["power_per_device_w"] for side in (run.measured, run.predicted)] for run in own]
            axes.scatter(*np.array(pairs).reshape(-1, 2).T, s=18, alpha=0.7, color=colour, label=name)
        ends = np.array([250.0, 1050.0])
        axes.fill_between(ends, 0.9 * ends, 1.1 * ends, color=plots.FAINT, label="within 10 %", zorder=0)
        axes.plot(ends, ends, color=plots.INK, linewidth=1)
        axes.set_xlim(*ends)
        axes.set_ylim(*ends)
        axes.set_xlabel("measured power of a device (W)")
        axes.set_ylabel("predicted power of a device (W)")
        axes.legend(loc="upper left", frameon=False)
    return figure


def finding(table: Table) -> str:
    """Returns the errors of both accelerators in words."""
    texts = [
        f"{row['accelerator']}: power {row['power_per_device_w_median']:.1%}, energy per token "
        f"{row['energy_per_token_j_median']:.1%} in the median of {row['n']} runs"
        for row in table.rows
        if row["group"] == "all"
    ]
    return "; ".join(texts) + "."


def main() -> None:
    """Runs the study."""
    options = parse_options(__doc__, "power", "the runs of one model, and one system under limits")
    runs = measured_runs(options.quick)
    of_errors, cases = errors_table(runs), where_energy_goes()
    limits = [row for name in list(SYSTEMS)[: 1 if options.quick else None] for row in limited(name)]
    figures = {"measured": draw_measured(runs), "parts": draw_parts(cases)}
    if not options.quick:
        figures["limits"] = draw_limits(limits)
    tables = [of_errors, parts_table(cases), limits_table(limits)]
    publish(options.out, tables, finding(of_errors), figures)


if __name__ == "__main__":
    main()
