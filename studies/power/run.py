"""How much power accelerators draw while they serve, where it goes, and what a lower power limit buys.

Predicts the power and the energy per token of every run of The ML.ENERGY Benchmark (arXiv 2505.06371; v3:
vLLM 0.11 on H100 and B200, ten models, batches of 8 to 4,096), as the shipped configs have them. Runs that
its data flag as waiting for something other than the accelerator are left out. Then shows what the joules
of a token are spent on, how time and joules per token follow the power limit, and how tokens per joule
follow the clock and the voltage that the estimator's relation of the two gives, with the best clock. That
relation has no least voltage, which devices reach somewhere below half of the boost clock: optima at lower
clocks are bounds, not advice.

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
from matplotlib.lines import Line2D

import diffperf as dp
from diffperf.estimate.inference import decode, prefill
from diffperf.explore.measured.statistics import Errors
from diffperf.explore.measured.validate import Evaluation, validate
from diffperf.hardware.system import System
from diffperf.quantity import Scalar, replace
from diffperf.report import plots

sys.path.append(str(Path(__file__).parents[1]))
from host_bound import waits_for_host
from reporting import Table, figure_style, parse_options, publish

MEASURED = Path(__file__).parent / "data" / "ml-energy.csv"
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
Point = dict[str, Scalar]  # numbers of a phase at a clock, by name
COLOURS = (plots.GREY, plots.BLUE, plots.ORANGE, plots.RED, plots.INK)
LIMITS = np.linspace(0.4, 1.0, 13)  # power limits over the thermal design power

# Tokens per joule against the clock: prompts, whose products compute binds as in training, and decoding,
# which memory binds. The clock is swept with the power limit out of the way.
PHASES = {"prompts": prefill, "decoding": decode}
BATCH, INPUT, OUTPUT = 64, 1024, 512  # sequences, tokens of a prompt and of an answer
STRATEGY = {"tp": TP, "global_batch": BATCH, "sequence_length": INPUT, "output_length": OUTPUT}
LEAST_CLOCK = 0.1  # over that of the peak rates: the least that the estimator knows
CLOCKS = np.linspace(LEAST_CLOCK, 1.0, 37)
UNLIMITED = 1e5  # W
# Halvings of the range of clocks in which the best one lies: to 1e-10 of it.
_HALVINGS = 34


def measured_runs(quick: bool) -> list[Evaluation]:
    """Returns the runs that do not wait for their host, with their predicted values."""
    where = ["model=llama-3.1-8b"] if quick else []
    evaluations = validate(MEASURED, where=where).evaluations
    return [run for run in evaluations if run.skipped is None and not waits_for_host(run)]


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
    strategy = dp.load_strategy(STRATEGY, n_devices=TP)
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


@dataclasses.dataclass(frozen=True)
class ClockSweep:
    """One phase on one system at clocks from the least to that of the peak rates.

    `points` has arrays over `CLOCKS`: clock in Hz, voltage over that at the clock of the peak rates, tokens
    per joule and per second, W of a device. `best` is the point of most tokens per joule and `limited` that
    of the clock that the power limit leaves, with one number each.
    """

    accelerator: str
    phase: str
    points: dict[str, np.ndarray]
    best: dict[str, float]
    limited: dict[str, float]


def at_clock(phase: str, system: System, clock: Scalar, power_limit: Scalar | float = UNLIMITED) -> Point:
    """Returns a phase on a system whose clock is limited to a share of that of the peak rates."""
    with jax.ensure_compile_time_eval():
        strategy = dp.load_strategy(STRATEGY, n_devices=TP)
    held = replace(system, {"accelerator.clock_limit": clock, "accelerator.power_limit": power_limit})
    report = PHASES[phase](dp.load_model(MODEL), held, strategy)
    tokens = BATCH * (INPUT if phase == "prompts" else 1)
    return {
        "clock": report.clock,
        "frequency": report.frequency,
        "voltage": report.voltage,
        "tokens_per_joule": tokens / report.energy.total,
        "tokens_per_s": tokens / report.time,
        "watts": report.power,
    }


def efficiency_slope(phase: str, system: System, clock: Scalar) -> Scalar:
    """Returns the derivative of tokens per joule with respect to the clock."""
    return jax.grad(lambda clock: at_clock(phase, system, clock)["tokens_per_joule"])(clock)


def best_clock(phase: str, system: System) -> Scalar:
    """Returns the clock, over that of the peak rates, with the most tokens per joule.

    Tokens per joule rise to it and fall beyond it: the derivative's sign halves the range.
    """

    def halve(_: int, ends: tuple[Scalar, Scalar]) -> tuple[Scalar, Scalar]:
        low, high = ends
        middle = (low + high) / 2
        rises = efficiency_slope(phase, system, middle) > 0
        return jnp.where(rises, middle, low), jnp.where(rises, high, middle)

    ends = jnp.asarray(LEAST_CLOCK), jnp.asarray(1.0)
    return jax.lax.fori_loop(0, _HALVINGS, halve, ends)[0]


def clock_sweeps(names: Sequence[str]) -> list[ClockSweep]:
    """Returns both phases on some systems, at all clocks: one program for each phase."""
    sweeps = []
    for phase in PHASES:

        @jax.jit
        def evaluate(system: System, phase: str = phase) -> tuple[Point, Point, Point]:
            over_clocks = jax.vmap(lambda clock: at_clock(phase, system, clock))(jnp.asarray(CLOCKS))
            limited = at_clock(phase, system, jnp.asarray(1.0), system.accelerator.power_limit)
            return over_clocks, at_clock(phase, system, best_clock(phase, system)), limited

        for name in names:
            points, best, limited = jax.device_get(evaluate(dp.load_system(SYSTEMS[name], n_devices=TP)))
            single = [{key: float(value) for key, value in point.items()} for point in (best, limited)]
            sweeps.append(ClockSweep(name, phase, points, *single))
    return sweeps


def clocks_table(sweeps: Sequence[ClockSweep]) -> Table:
    """Tabulates the clocks of the sweeps: every fourth, the best and that under the power limit."""
    columns = {
        "accelerator": ("", ""),
        "phase": ("", ""),
        "mark": ("", ""),
        "frequency": ("clock Hz", ",.4g"),
        "clock": ("of boost", ".0%"),
        "voltage": ("voltage of that at boost", ".0%"),
        "tokens_per_joule": ("tokens/J", ".3g"),
        "tokens_per_s": ("tokens/s", ",.0f"),
        "watts": ("W a device", ",.0f"),
    }
    rows = []
    for sweep in sweeps:
        named = {"accelerator": sweep.accelerator, "phase": sweep.phase}
        swept = [
            {key: float(values[index]) for key, values in sweep.points.items()}
            for index in range(0, CLOCKS.size, 4)
        ]
        marked = [{"mark": "best", **sweep.best}, {"mark": "at the power limit", **sweep.limited}]
        rows += [named | row for row in sorted([*swept, *marked], key=lambda row: row["clock"])]
    title = f"{MODEL} on {TP} devices at batch {BATCH} at fixed clocks, the power limit out of the way"
    return Table("clocks", title, columns, rows)


def draw_clocks(sweeps: Sequence[ClockSweep]) -> Figure:
    """Draws tokens per joule against clock and voltage; dots mark the best clocks, rings the power limit."""
    axis = {"frequency": ("clock (GHz)", 1e-9), "voltage": ("voltage (% of that at the boost clock)", 100.0)}
    colours = dict(zip(SYSTEMS, (plots.BLUE, plots.ORANGE), strict=True))
    with figure_style():
        figure = Figure(figsize=(10.0, 7.0), layout="constrained")
        panels = figure.subplots(len(PHASES), len(axis), sharey="row")
        for row, phase in zip(panels, PHASES, strict=True):
            for axes, (key, (label, scale)) in zip(row, axis.items(), strict=True):
                for sweep in (sweep for sweep in sweeps if sweep.phase == phase):
                    colour, points = colours[sweep.accelerator], sweep.points
                    line = scale * points[key], points["tokens_per_joule"]
                    axes.plot(*line, color=colour, label=sweep.accelerator)
                    for point, filled in ((sweep.best, colour), (sweep.limited, "white")):
                        at = scale * point[key], point["tokens_per_joule"]
                        axes.plot(*at, "o", color=colour, markerfacecolor=filled, zorder=3)
                axes.set_xlabel(label)
                axes.set_title(f"{phase} against {key.replace('frequency', 'clock')}")
                axes.set_ylim(bottom=0)
                axes.grid(color=plots.FAINT, linewidth=0.8)
            row[0].set_ylabel("tokens per joule")
        dots = [
            Line2D([], [], marker="o", linestyle="", color=plots.INK, markerfacecolor=face, label=text)
            for face, text in ((plots.INK, "most tokens per joule"), ("white", "at the power limit"))
        ]
        lines = panels[0][0].get_lines()[: 3 * len(SYSTEMS) : 3]
        panels[0][1].legend(
            handles=[*lines, *dots], loc="upper left", bbox_to_anchor=(1.02, 1.0), frameon=False
        )
        figure.suptitle(f"{MODEL} on {TP} devices, batch {BATCH}")
    return figure


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
    names = list(SYSTEMS)[: 1 if options.quick else None]
    limits, sweeps = [row for name in names for row in limited(name)], clock_sweeps(names)
    figures = {"measured": draw_measured(runs), "parts": draw_parts(cases)}
    if not options.quick:
        figures |= {"limits": draw_limits(limits), "clocks": draw_clocks(sweeps)}
    tables = [of_errors, parts_table(cases), limits_table(limits), clocks_table(sweeps)]
    publish(options.out, tables, finding(of_errors), figures)


if __name__ == "__main__":
    main()
