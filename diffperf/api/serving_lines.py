"""Parts of an answer about serving: tables, reasons, the line where nothing serves, and JSON."""

import math
from typing import Any, SupportsFloat

from rich.table import Table

from diffperf import units
from diffperf.api.layout_lines import describe_quantization, smaller_weights
from diffperf.api.question import Question, describe_system
from diffperf.errors import counted
from diffperf.explore.plan.plan import largest_part
from diffperf.explore.plan.serving_flags import ENGINES, launch_flags
from diffperf.explore.plan.serving_plan import SERVING_OBJECTIVES, ServedLayout, ServingPlan, same_value
from diffperf.explore.plan.serving_search import ServingSearch
from diffperf.quantity import Scalar
from diffperf.report.tables import as_dict, column_table

_LONGEST_LAYOUT = 30  # characters of a layout's name from which the two pools have a line each
_TOO_FULL = 1 + 1e-3  # load over capacity from which an answer warns


def describe_search(question: Question, search: ServingSearch, ranked: ServingPlan) -> list[str]:
    """The question, and the number of layouts that are left after each condition."""
    requests, counts = search.requests, ranked.counts
    lengths = f"{float(requests.input_length):,.0f} + {float(requests.output_length):,.0f} tokens"
    load = "" if search.load is None else f", {search.load_text(search.load)}"
    system = describe_system(search.inputs.system, "decode")
    if search.load is not None and not question.gives_devices:
        system = f"as many {search.inputs.system.accelerator.name} as it takes ({search.inputs.system.name})"
    lines = [
        f"[bold]{question.model.name} served on {system}[/bold]",
        *question.described_overrides(),
        *describe_quantization(question, search.inputs.strategy, "decode"),
        f"Requests of {lengths}{load}; {describe_targets(search)}",
    ]
    if counts:
        left = f"{counts['searched']:,} layouts: {counts['possible']:,} possible"
        left += f", {counts['fitting']:,} fit memory, {counts['meeting']:,} meet the targets"
        lines.append(left + (f", {counts['serving']:,} serve the load" if search.load is not None else ""))
    return [*lines, describe_pairs(ranked)] if ranked.pairs else lines


def describe_pairs(ranked: ServingPlan) -> str:
    """Number of pairs of layouts for workers that prefill and for workers that decode that are left."""
    pairs = ranked.pairs
    return (
        f"{pairs['searched']:,} pairs of pools: {pairs['fitting']:,} fit memory, {pairs['able']:,} could "
        f"meet the targets, {pairs['meeting']:,} do in the {pairs['evaluated']:,} likeliest splits of devices"
    )


def describe_targets(search: ServingSearch) -> str:
    """The targets in words."""
    targets = search.targets
    named = {"TTFT": targets.first_token, "TPOT": targets.per_token}
    shown = [f"{name} up to {units.show(time, 's')}" for name, time in named.items() if math.isfinite(time)]
    percentile = "mean" if targets.percentile == "mean" else f"{targets.percentile}th percentile"
    return f"{' and '.join(shown)} ({percentile})" if shown else "no targets"


def describe_best(search: ServingSearch, ranked: ServingPlan) -> list[str]:
    """The best layout in a line, and a warning where its clients wait for slots."""
    best = ranked.best[0]
    lines = [f"Best by {ranked.by}: {describe_layout(best)}"]
    if float(best.report.saturation) > _TOO_FULL:
        lines.append(f"[red]Saturated[/red]: the load is {float(best.report.saturation):.0%} of the capacity")
    return lines


def describe_layout(served: ServedLayout) -> str:
    """A layout in a line: degrees, copies, devices and the limits of an engine."""
    copies = served.name if served.copies == "1" else f"{served.copies} × ({served.name})"
    limits = f"max_num_seqs {units.plain(served.requests.batch_cap)}"
    chunk = counted(served.requests.chunk, "token", units.plain(served.requests.chunk)) + " a step"
    devices = _devices(served.devices)
    return f"{copies} on {devices}, {limits}, {chunk}"


def _devices(number: SupportsFloat) -> str:
    """A number of devices, as options take it."""
    return counted(number, "device", units.plain(number))


def layout_table(search: ServingSearch, ranked: ServingPlan) -> Table:
    """The best layouts, a row each."""
    rows = column_table(
        "",
        "layout",
        "copies",
        "devices",
        "req/s" if search.of_rate else "clients",
        "batch",
        "TTFT",
        "TPOT",
        "tok/s/device",
        "$/Mtok",
        "tok/J",
        "KV",
        left=2,
    )
    rows.columns[1].no_wrap = True
    rows.caption = "Load and batch are those of an engine; KV is the share of the cache's memory in use."
    if any(served.prefill is not None for served in ranked.best):
        rows.caption += "\nOf two pools, workers that prefill → workers that decode, whose engines these are."
    rows.caption_justify, rows.caption_style = "left", ""
    two_lines = any(len(served.name) > _LONGEST_LAYOUT for served in ranked.best)
    arrow = "\n→ " if two_lines else " → "
    for place, served in enumerate(ranked.best, 1):
        report = served.report
        first_token, per_token = search.targets.latencies(report)
        rows.add_row(
            str(place),
            served.name.replace(" → ", arrow),
            served.copies.replace(" → ", arrow),
            units.plain(served.devices),
            f"{served.load_per_engine:.3g}",
            f"{float(report.running):.3g}",
            units.show(float(first_token), "s", 3),
            units.show(float(per_token), "s", 3),
            _three_digits(report.tokens_per_second_per_device),
            f"{float(report.cost_per_million_tokens):.3g}",
            f"{float(report.tokens_per_joule):.3g}",
            f"{float(report.kv_pressure):.0%}",
        )
    return rows


def _three_digits(value: Scalar) -> str:
    """A number with three digits or all those before the point: "0.578", "3,804"."""
    return f"{float(value):,.0f}" if value >= 100 else f"{float(value):.3g}"


def describe_losers(search: ServingSearch, ranked: ServingPlan) -> list[str]:
    """Why layouts lose: those of the table by their limits, the rest by what they fail at."""
    lines = ["What limits an engine, and why the others lose"]
    for place, served in enumerate(ranked.best, 1):
        lines.append(f"{place:2d}  {describe_loss(served, ranked.by)}{served.limit}")
    return [*lines, *describe_failures(search, ranked)]


def describe_loss(served: ServedLayout, by: str) -> str:
    """Loss of a layout against the best one, in words."""
    if same_value(served.worse):
        return ""
    _, more_is_better = SERVING_OBJECTIVES[by]
    noun = {"throughput": "tokens/s per device", "cost": "$/Mtoken", "energy": "tokens/J"}[by]
    return f"{'−' if more_is_better else '+'}{100 * served.worse:.1f} % {noun}: "


def describe_failures(search: ServingSearch, ranked: ServingPlan) -> list[str]:
    """A line for each condition that layouts fail at, with the one that comes nearest."""
    counts, lines = ranked.counts, []
    if not counts:
        return []
    broken = counts["searched"] - counts["possible"]
    if broken:
        lines.append(f"{broken} impossible: degrees that do not divide heads, experts or devices")
    if "fitting" in ranked.missed:
        number = counts["possible"] - counts["fitting"]
        lines.append(f"{number} too large for memory: {describe_memory(ranked.missed['fitting'])}")
    if "meeting" in ranked.missed:
        number = counts["fitting"] - counts["meeting"]
        lines.append(
            f"{number} too slow for the targets: {describe_latencies(search, ranked.missed['meeting'])}"
        )
    over = counts["meeting"] - counts["serving"]
    if over and search.load is not None:
        most = units.plain(search.most_devices)
        lines.append(f"{over} with too many devices for the load: more than {most}")
    return [f"    {line}" for line in lines]


def describe_memory(served: ServedLayout) -> str:
    """Memory that a layout needs for one sequence, and the part that takes the most of it."""
    memory = served.report.memory
    part, size = largest_part(memory)
    needs = (
        f"needs {units.show(memory.peak, 'byte')} of the {units.show(memory.capacity, 'byte')} of a device"
    )
    return f"the least too large ({served.name}) {needs}, most of it {part} ({units.show(size, 'byte')})"


def describe_latencies(search: ServingSearch, served: ServedLayout) -> str:
    """The latencies of a layout at the lightest load that miss the targets, and by what factor."""
    short = " and ".join(
        f"{name} {units.show(time, 's', 3)}, {time / target:.3g} times the target"
        for name, time, target in _missed_targets(search, served)
    )
    load = "next to no load" if search.of_rate else "one client an engine"
    return f"the nearest ({served.name}) has at {load} {short}"


def _missed_targets(search: ServingSearch, served: ServedLayout) -> list[tuple[str, float, float]]:
    """(name, time, target) of the targets that a layout misses, in seconds."""
    targets = search.targets
    times = map(float, targets.latencies(served.report))
    rows = zip(("TTFT", "TPOT"), times, (targets.first_token, targets.per_token), strict=True)
    return [row for row in rows if row[1] > row[2]]


def refusal(search: ServingSearch, ranked: ServingPlan) -> str:
    """The quantity that falls short, its amount, and the nearest layout that works, in one line."""
    counts, nearest = ranked.counts, ranked.nearest
    if not counts:
        return refusal_of_pools(search, ranked)
    assert nearest is not None, "a plan without a best layout has a nearest one"
    if not counts["fitting"]:
        line = f"no layout fits memory: {describe_memory(nearest)} with one sequence; {larger_system(search)}"
        return line + _smaller_weights(search)
    if not counts["meeting"]:
        options = " ".join(
            f"--{name.lower()} {_rounded_up(time)}" for name, time, _ in _missed_targets(search, nearest)
        )
        return (
            f"no layout meets {describe_targets(search)}: {describe_latencies(search, nearest)}; "
            f"{options} works"
        )
    most = ranked.missed["serving"]
    served = float(most.load_per_engine * most.strategy.dp)
    option = "--rate" if search.of_rate else "--concurrency"
    least = math.floor(served * 1e3) / 1e3 if search.of_rate else math.floor(served)
    wanted, most_devices = search.load or 1.0, float(search.most_devices)
    load = f"{search.load_text(wanted)} {'is' if wanted == 1 else 'are'}"
    serve = f"{_devices(most_devices)} {'serves' if most_devices == 1 else 'serve'}"
    return (
        f"{load} beyond saturation: {serve} {least:,.7g} under the targets ({most.name}), "
        f"{served / wanted:.1%} of the load; "
        f"use {option} {units.plain(least)}, or --devices {units.plain(nearest.devices)}"
    )


def _smaller_weights(search: ServingSearch) -> str:
    """The end of a line about memory: in which format weights are counted, and how they are counted in less;
    empty where they are stored in a format of less than 16 bits.
    """
    strategy = search.inputs.strategy
    option = smaller_weights(search.inputs.model, strategy)
    if not option:
        return ""
    counted = f"; weights are counted in {strategy.precision.likeliest()}"
    return f"{counted}: {option.replace('FORMAT', 'int4, fp8 or another one')} counts them in less"


def refusal_of_pools(search: ServingSearch, ranked: ServingPlan) -> str:
    """Why no two pools serve, in one line."""
    pairs, devices = ranked.pairs, search.inputs.system.n_devices
    if not pairs["fitting"]:
        return f"no worker of a pool fits memory on {_devices(devices)}; --devices takes more"
    if not pairs["able"]:
        return f"no two pools meet {describe_targets(search)}, however little they do; relax the targets"
    if not pairs["evaluated"]:
        most = devices if search.load is None else search.most_devices
        return f"no two pools of workers that meet the targets fit {_devices(most)}; --devices takes more"
    return (
        f"no two pools of {pairs['evaluated']:,} splits meet {describe_targets(search)} under load; "
        "relax the targets, or take more devices"
    )


def _rounded_up(seconds: float) -> str:
    """A time as an option takes it, rounded up to three digits."""
    power = 10.0 ** (math.floor(math.log10(seconds)) - 2)
    return units.show(math.ceil(seconds / power) * power, "s", 4).replace(" ", "")


def larger_system(search: ServingSearch) -> str:
    """The smallest larger system of the same kind on which a layout fits, by doubling the devices."""
    devices, most = float(search.inputs.system.n_devices), float(search.inputs.system.network[-1].size)
    while (devices := 2 * devices) <= most:
        if search.on(devices).at_lightest_load().fits.any():
            option = f"--devices {units.plain(devices)}"
            return f"the smallest system that fits, by doubling, has {_devices(devices)}: {option}"
    return f"no system of up to {most:,.0f} devices fits either, by doubling"


def serving_json(search: ServingSearch, ranked: ServingPlan, engine: str | None) -> dict[str, Any]:
    """The answer for a program, in internal units."""
    targets = search.targets
    times = {"ttft": targets.first_token, "tpot": targets.per_token}
    return {
        "by": ranked.by,
        "targets": {name: time if math.isfinite(time) else None for name, time in times.items()}
        | {"percentile": targets.percentile},
        "load": search.load,
        **ranked.counts,
        "pairs": ranked.pairs,
        "serves": bool(ranked.best),
        "best": [served_json(served) for served in ranked.best],
        "nearest": ranked.nearest and served_json(ranked.nearest),
        "front": [
            {"interactivity": float(ranked.front.interactivity[index]),
             "tokens_per_second_per_device": float(ranked.front.throughput[index])}
            for index in ranked.front.best
        ],
        "flags": {name: launch_flags(search.inputs.model, ranked.best[0], name)
                  for name in ENGINES if engine == name and ranked.best},
        "system": as_dict(search.inputs.system),
        "model": as_dict(search.inputs.model),
    }  # fmt: skip


def served_json(served: ServedLayout) -> dict[str, Any]:
    """A layout for a program."""
    prefill = served.prefill
    return {
        "layout": served.name,
        "instances": served.instances,
        "engines_per_instance": served.engines,
        "devices": served.devices,
        "limit": served.limit,
        "worse": served.worse,
        "strategy": as_dict(served.strategy),
        "requests": as_dict(served.requests),
        "report": as_dict(served.report),
        "prefill": prefill and {
            "instances": prefill.instances,
            "engines_per_instance": prefill.engines,
            "strategy": as_dict(prefill.strategy),
            "pools": {name: value for name, value in as_dict(prefill.report).items() if name != "serving"},
        },
    }  # fmt: skip
