"""GPT-3 175B on 4,096 A100: the whole strategy space of Calculon's search, estimated by a sweep.

Calculon (Isaev et al., SC 2023) enumerates all strategies of this case for its Figure 5. Every option of its
search that has a counterpart here is an axis; the others are in the table of options. Both estimates are of
one model, but not of one machine: Calculon leaves out embeddings and vocabulary projection and has its own
efficiencies. Like Calculon's, the sweep has fp16 gradients and attention that writes its scores.

    python studies/calculon_space/run.py [--quick] [--out DIR]
"""

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import diffperf as dp
from diffperf.explore.sweep.device_sizes import usual_threads

sys.path.append(str(Path(__file__).parents[1]))
from best_strategies import STRATEGY_COLUMNS, best_index, further_rows, restricted_rows, ten_best
from calculon_search import (
    CALCULON_FEASIBLE_RATE,
    CALCULON_RATE,
    OPTION_COLUMNS,
    OPTIONS,
    PUBLISHED_SECONDS,
    SPEED_COLUMNS,
    Counts,
    counts_of,
    speed_rows,
)
from rate_figure import draw
from reporting import Table, parse_options, publish, read_rows
from strategies import layouts
from strategy_space import (
    FIXED,
    GATHERED,
    MODEL,
    ORDERS,
    SEARCH,
    SYSTEM,
    Columns,
    Row,
    core_seconds,
    space_of,
    sweep_all,
)


def published_rows() -> list[Row]:
    """GPT-3 175B on 64 A100: as measured, as Calculon estimates it, and as we do."""
    rows = []
    for case in read_rows(Path(__file__).parent / "published.csv"):
        fields: Row = {name: float(case[name]) for name in ("tp", "pp", "virtual_stages", "micro_batch")}
        fields |= {"global_batch": float(case["global_batch"]), "recompute": case["recompute"]}
        fields |= {"sequence_parallel": case["sequence_parallel"] == "on", "overlap_gradients": False} | FIXED
        report = dp.estimate(
            MODEL,
            SYSTEM,
            devices=float(case["devices"]),
            **fields,
        ).report
        measured, calculon = float(case["measured_s"]), float(case["calculon_s"])
        scaled = float(case["global_batch"]) * SEARCH.devices / float(case["devices"])  # sequences
        rows.append(
            {
                "case": case["case"],
                "measured": measured,
                "calculon": calculon,
                "ours": float(report.time),
                "calculon_error": calculon / measured - 1,
                "our_error": float(report.time) / measured - 1,
                "measured_rate": scaled / measured,
                "source": case["source"],
            }
        )
    return rows


PUBLISHED_COLUMNS = {
    "case": ("64 A100, tp 8, pp 8, 3 chunks", ""),
    "measured": ("measured s", ".2f"),
    "calculon": ("Calculon s", ".2f"),
    "ours": ("ours s", ".2f"),
    "calculon_error": ("Calculon's error", "+.1%"),
    "our_error": ("our error", "+.1%"),
    "measured_rate": ("measured seq/s × 4,096/64", ".0f"),
}


def estimated_alone(columns: Columns, index: int) -> tuple[str, float]:
    """The command that estimates a strategy of the sweep alone, and the step time that it prints."""
    fields = {
        path.removeprefix("strategy."): values[index]
        for path, values in columns.items()
        if path.startswith("strategy.")
    } | FIXED
    gathered = float(columns[GATHERED][index])
    switches = {name: value == "on" for name, value in fields.items() if value in ("on", "off")}
    numbers = {name: float(value) for name, value in fields.items() if not isinstance(value, str)}
    texts = {name: value for name, value in fields.items() if name not in (*switches, *numbers)}
    given: Row = numbers | switches | texts
    report = dp.estimate(
        MODEL,
        SYSTEM,
        devices=SEARCH.devices,
        set={"stack.gathered_inputs": gathered},
        **given,
    ).report
    flags = [f"--{name} {value:g}" for name, value in numbers.items()]
    flags += [f"--{'' if on else 'no-'}{name}" for name, on in switches.items()]
    flags += [f"--{name} {value}" for name, value in texts.items()]
    flags.append(f"--set stack.gathered_inputs={gathered:g}")
    words = " ".join(flags).replace("stack.gathered_inputs", "stack.gathered%inputs").replace("_", "-")
    command = f"diffperf estimate {MODEL} {SYSTEM} --devices {SEARCH.devices} {words.replace('%', '_')}"
    return command, float(report.time)


def describe(
    counts: Counts,
    speeds: Sequence[Row],
    best: Sequence[Row],
    restricted: Sequence[Row],
    published: Sequence[Row],
    further: Sequence[Row],
) -> str:
    """Writes what the tables show."""
    part = "they are" if further else "a part of them is"
    ours, calculon = speeds[0], next(row for row in speeds if row["search"].startswith("Calculon"))
    first = best[0]
    by_name: Callable[[str], Row] = {row["restriction"]: row for row in restricted}.__getitem__
    in_node, outside = by_name("tp within a node (8)"), by_name("no overlap of tp between nodes")
    plain = by_name("no overlap")
    rate = published[-1]["measured_rate"]
    errors = {name: max(abs(row[name]) for row in published) for name in ("calculon_error", "our_error")}
    measured = ""
    if "rate" in ours:
        times = ours["rate"] / CALCULON_RATE
        measured = f", and {ours['rate']:,.0f} a core-second without it, {times:.0f} times Calculon's rate"
        measured += (
            f" (of strategies that fit memory {ours['fitting_rate']:,.0f} and {CALCULON_FEASIBLE_RATE})"
        )
    sentences = [
        f"Calculon's search of GPT-3 175B on {SEARCH.devices:,} A100 has {counts.layouts} layouts and"
        f" {counts.calculon:,} executions, by the loops of its source ({counts.fused:,} with fused"
        f" activations alone, {counts.listed:,} without batches above {SEARCH.largest_batch:,}). In our"
        f" terms {part} {ours['points']:,} points: several of its executions are one of ours. Of these,"
        f" {ours['feasible']:,} obey our rules and {ours['fitting']:,} fit memory.",
        f"All points take {ours['seconds']:.0f} s with a table of them all, after {ours['compiling']:.0f} s"
        f" of compiling{measured}. At {CALCULON_RATE:,} executions a core-second, measured on a machine of"
        f" the same kind, Calculon takes {calculon['seconds'] / 60:.0f} min on {usual_threads()} cores."
        f" Published is only that its searches take up to {PUBLISHED_SECONDS / 60:.0f} min on all cores of a"
        " machine, often much less; the paper's best rate and time are in no public text that we could read.",
        f"Our best trains {first['rate']:.0f} sequences a second ({first['mfu']:.1%} MFU):"
        f" tp {first['tp']:.0f}, pp {first['pp']:.0f}, dp {first['dp']:.0f}, micro-batches of"
        f" {first['micro_batch']:.0f}, recomputation {first['recompute']}, ZeRO {first['zero']}, overlap of"
        f" {first['overlaps']}, in host memory {first['offloads']}; a step of {first['time']:.2f} s and"
        f" {first['peak_gib']:.0f} GiB. With tensor parallelism within nodes the best is"
        f" {in_node['rate']:.0f} ({in_node['of_best'] - 1:+.0%}), without its overlap between nodes"
        f" {outside['rate']:.0f} ({outside['of_best'] - 1:+.0%}), without any overlap {plain['rate']:.0f}"
        f" ({plain['of_best'] - 1:+.0%}).",
        "For the two measured runs of this model on 64 A100 Calculon is within"
        f" {errors['calculon_error']:.1%} and we are within {errors['our_error']:.1%}; the faster one, were"
        f" it to scale, would train {rate:.0f} sequences a second on {SEARCH.devices:,}.",
    ]
    if further:
        top = max(further, key=lambda row: row["rate"])
        wide = speeds[1]
        sentences.append(
            f"With options that Calculon lacks ({wide['points']:,} points, {wide['seconds']:.0f} s) the best"
            f" is {top['rate']:.0f} sequences a second ({top['rate'] / first['rate'] - 1:+.1%}):"
            f" {top['further']}, tp {top['tp']:.0f}, pp {top['pp']:.0f}."
        )
    return " ".join(sentences)


def main() -> None:
    """Runs the study."""
    options = parse_options(
        __doc__, "calculon_space", "nothing in host memory, one order of groups, none of our further options"
    )
    offloads, orders = ((0,), ORDERS[:1]) if options.quick else ((0, 1), ORDERS)
    chosen = layouts(SEARCH)
    counts = counts_of(chosen, offloads, orders)
    space = space_of(chosen, offloads, orders)
    result, columns = sweep_all(space)
    assert result.points == counts.ours, (result.points, counts.ours)  # counted without the sweep
    sweeps = {"all counterparts": result}
    further: list[Row] = []
    if not options.quick:
        wider = dp.sweep(space_of(chosen, offloads, orders, further=True), double=True).result
        sweeps["and options Calculon lacks"] = wider
        further = further_rows(wider)
    cores = None if options.quick else core_seconds(space)
    command, alone = estimated_alone(columns, index := best_index(columns))
    assert math.isclose(alone, columns["time"][index], rel_tol=1e-9), (alone, columns["time"][index])
    best, restricted, published = ten_best(columns), restricted_rows(columns), published_rows()
    speeds = speed_rows(counts, sweeps, cores)
    option_rows = [dict(zip(OPTION_COLUMNS, row, strict=True)) for row in OPTIONS]
    leading = {"restriction": ("restriction", ""), "count": ("strategies", ",.0f")}
    compared = {"of_best": ("of the best", ".1%")}
    short = {
        name: STRATEGY_COLUMNS[name]
        for name in STRATEGY_COLUMNS
        if name not in ("order", "dp", "global_batch")
    }
    tables = [
        Table("options", "Options of Calculon's search and of diffperf", OPTION_COLUMNS, option_rows),
        Table("speed", "Searches of GPT-3 175B on 4,096 A100", SPEED_COLUMNS, speeds),
        Table(
            "best",
            "The ten best, of degrees, chunks, micro-batches and recomputation",
            STRATEGY_COLUMNS,
            best,
        ),
        Table("restrictions", "The best of parts of the space", leading | compared | short, restricted),
        Table(
            "further",
            "The best for every value of options that Calculon lacks",
            {"restriction": ("of all with", ""), "further": ("options", "")} | compared | short,
            further,
        ),
        Table("published", "Measured runs beside both estimates", PUBLISHED_COLUMNS, published),
    ]
    print(f"The best alone takes {alone:.4f} s, as in the sweep:\n{command}\n")
    finding = describe(counts, speeds, best, restricted, published, further)
    publish(options.out, tables, finding, {"figure": draw(columns, restricted, published)})


if __name__ == "__main__":
    main()
