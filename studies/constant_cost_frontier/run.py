"""At a fixed package cost, what should the dollars buy: compute, SRAM, memory stacks or links?

Packages in the H100's technology (`configs/technology/n4-hbm3.toml`) for training GPT-3 175B and for decoding
with Llama-2 70B, along a series of budgets. At every budget the product's co-design finds the fastest package
(`frontier.py`) with one to four dies and each generation of memory; exact gradients say how much faster one
more dollar makes it through each resource. At an optimum these marginal values are equal, net of what a
resource takes of other limits (power, die edge, capacity): the column "spread" checks the optimizer so. Then
comes the value of a generation of memory, and of a lane of the network.

The budget is the manufacturing cost of a package. It pays for the area of the links, not for the switches
that they need. Packages draw at most 1,000 W: beyond, voltage and clock are lower. Counts of units and stacks
are real numbers, and speeds those of the smooth estimate; the column "exact, whole" is the exact speed with
rounded counts, at about that cost.

    python studies/constant_cost_frontier/run.py [--quick] [--out DIR]
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1])]
import frontier
from frontier import DIES, GENERATIONS, REFERENCE, RESOURCES, Design, Tracer, load_workload
from reporting import Table, figure_style, parse_options, publish

from diffperf.cost.network_cost import tier_costs
from diffperf.explore.codesign.problem import output_of
from diffperf.relax import Exact
from diffperf.report.plots import BLUE, FAINT, GREY, INK, ORANGE, RED

TITLES = {"training": "training of GPT-3 175B", "decode": "decoding with Llama-2 70B"}
BUDGETS = tuple(np.geomspace(1200, 6000, 12).round(-1))  # USD; an H100 costs about 2,740
QUICK_BUDGETS = tuple(np.geomspace(1500, 4500, 4).round(-1))
LANE = 25e9  # byte/s per direction of an NVLink 4 link: H100 whitepaper
# A resource nearer to an end of its range than this share of the end is not free to change.
AT_BOUND = 0.02
COLOURS = dict(zip(RESOURCES, (BLUE, ORANGE, RED, INK), strict=True))
SHADES: dict[str, str] = dict(zip(GENERATIONS, (GREY, INK, ORANGE, RED), strict=True))
STACK_BANDWIDTH = "technology.memory.stack_bandwidth"

Frontiers = dict[str, dict[str, list[Design]]]  # designs by workload and generation, budgets rising


def frontiers(
    workloads: Sequence[str],
    budgets: Sequence[float],
    generations: Sequence[str],
    dies: Sequence[int],
    exactly: bool,
) -> Frontiers:
    """The best designs of every workload and generation of memory along the budgets.

    `exactly` evaluates them without relaxation, too.
    """
    traced: Frontiers = {}
    for workload in workloads:
        tracer = Tracer(load_workload(workload), generations, dies)
        designs = [design for at_budget in tracer.trace(budgets) for design in at_budget]
        if exactly:
            designs = tracer.with_whole_speeds(designs)
        traced[workload] = {
            generation: [design for design in designs if design.generation == generation]
            for generation in generations
        }
    return traced


def free_resources(design: Design) -> list[str]:
    """The resources that lie within their ranges, so that their net marginal values have to be equal."""
    free = []
    for name, path in RESOURCES.items():
        variable = design.problem.variables[frontier.index_of(design.problem, path)]
        if variable.low * (1 + AT_BOUND) < design.amount(name) < variable.high * (1 - AT_BOUND):
            free.append(name)
    return free


def spread(design: Design) -> float:
    """How far the net marginal values of free resources are from the value of the budget, at most.

    The difference is over the largest gross value, because a net value is what others leave of a gross one.
    """
    values = design.marginal_values()
    scale = max(gross for gross, _ in values.values())
    differences = [abs(values[name][1] - design.value_of_budget) / scale for name in free_resources(design)]
    return max(differences, default=0.0)


# --- tables


def frontier_table(traced: Frontiers) -> Table:
    """The best packages with the H100's generation of memory."""
    rows = []
    for workload, by_generation in traced.items():
        for design in by_generation[REFERENCE]:
            made = design.slopes.chip
            row = {"workload": workload, "budget": design.budget, "dies": design.dies, "speed": design.speed}
            row |= {
                "whole": design.whole_speed,
                "units": design.amount("compute"),
                "sram": design.amount("SRAM") / 1e6,
                "stacks": design.amount("stacks"),
                "links": design.amount("links") / LANE,
                "die": float(made.die_area),
                "power": float(made.power),
            }
            rows.append(row | {"limits": ", ".join(design.binding_limits()) or "cost alone"})
    columns = {
        "workload": ("", ""),
        "budget": ("budget: USD", ",.0f"),
        "speed": ("speed of H100", ".2f"),
        "whole": ("exact, whole", ".2f"),
        "dies": ("dies", ".0f"),
        "units": ("units", ".0f"),
        "sram": ("SRAM: MB", ".0f"),
        "stacks": ("stacks", ".1f"),
        "links": ("lanes", ".0f"),
        "die": ("mm² a die", ".0f"),
        "power": ("W", ",.0f"),
        "limits": ("limits beside the cost", ""),
    }
    title = f"The fastest package at a fixed cost, {REFERENCE.upper()}; a lane is {LANE / 1e9:.0f} GB/s"
    return Table("frontier", title, columns, rows)


def value_table(traced: Frontiers) -> Table:
    """Marginal values of the best packages, gross and net of other limits."""
    rows = []
    for workload, by_generation in traced.items():
        for design in by_generation[REFERENCE]:
            row: dict[str, Any] = {"workload": workload, "budget": design.budget}
            row["value"] = design.value_of_budget
            for name, (gross, net) in design.marginal_values().items():
                row |= {f"{name}_gross": gross, f"{name}_net": net}
            rows.append(row | {"spread": spread(design)})
    columns = {"workload": ("", ""), "budget": ("budget: USD", ",.0f"), "value": ("budget", ".3f")}
    for name in RESOURCES:
        columns |= {f"{name}_gross": (name, ".3f"), f"{name}_net": ("net", ".3f")}
    columns["spread"] = ("spread", ".1%")
    title = "Per cent faster for 1 % of the budget more, spent through one resource alone"
    return Table("marginal_values", title, columns, rows)


def generation_table(traced: Frontiers) -> Table:
    """Speeds with every generation of memory over the H100's, and the budget that it would take with that."""
    rows = []
    for workload, by_generation in traced.items():
        reference = {design.budget: design.speed for design in by_generation[REFERENCE]}
        for budget, speed in reference.items():
            row: dict[str, Any] = {"workload": workload, "budget": budget}
            for generation, designs in by_generation.items():
                own = next((design.speed for design in designs if design.budget == budget), None)
                if own is None or generation == REFERENCE:
                    continue
                row[f"{generation}_speed"] = own / speed
                row[f"{generation}_worth"] = saved_budget(reference, own, budget)
            rows.append(row)
    columns = {"workload": ("", ""), "budget": ("budget: USD", ",.0f")}
    generations = [name for name in GENERATIONS if any(name in found for found in traced.values())]
    for generation in generations:
        if generation != REFERENCE:
            columns[f"{generation}_speed"] = (f"{generation.upper()}: speed", ".2f")
            columns[f"{generation}_worth"] = ("worth: USD", "+,.0f")
    title = (
        f"Packages with another generation of memory: speed over those with {REFERENCE.upper()}, and what "
        f"{REFERENCE.upper()} would take more of budget for that speed (– beyond the series)"
    )
    return Table("generations", title, columns, rows)


def saved_budget(reference: Mapping[float, float], speed: float, budget: float) -> float | None:
    """USD beyond `budget` at which the reference is as fast, between its budgets on logarithmic scales."""
    budgets, speeds = np.log(list(reference)), np.log(list(reference.values()))
    if not speeds[0] <= np.log(speed) <= speeds[-1]:
        return None
    return float(np.exp(np.interp(np.log(speed), speeds, budgets))) - budget


def lane_table(traced: Frontiers) -> Table:
    """What a lane, a stack, faster stacks and SRAM are worth at the best packages, beside what they cost."""
    rows = []
    for workload, by_generation in traced.items():
        for design in by_generation[REFERENCE]:
            system = design.problem.baseline.system
            tier, cost = system.network[0], tier_costs(system, Exact())[0]
            bandwidth = float(design.x[frontier.index_of(design.problem, STACK_BANDWIDTH)])
            row = {"workload": workload, "budget": design.budget}
            row["lane"] = worth(design, RESOURCES["links"], LANE)
            row["lane_cost"] = LANE * design.cost_slope(RESOURCES["links"])
            row["switch"] = LANE * float(cost.price / tier.bandwidth)
            row["stack"] = worth(design, RESOURCES["stacks"], 1.0)
            row["stack_cost"] = design.cost_slope(RESOURCES["stacks"])
            row["faster"] = worth(design, STACK_BANDWIDTH, 0.01 * bandwidth)
            rows.append(row | {"sram": worth(design, RESOURCES["SRAM"], 1e6)})
    columns = {
        "workload": ("", ""),
        "budget": ("budget: USD", ",.0f"),
        "lane": ("a lane is worth", ",.2f"),
        "lane_cost": ("costs", ",.2f"),
        "switch": ("at the switch", ",.2f"),
        "stack": ("a stack is worth", ",.0f"),
        "stack_cost": ("costs", ",.0f"),
        "faster": ("1 % faster stacks", ",.2f"),
        "sram": ("1 MB of SRAM", ",.2f"),
    }
    title = (
        "Worth in USD of package budget, if it were free, and what it costs; a lane also takes a share of "
        "the switch, which the budget does not pay (an estimate); – where a budget hardly buys speed"
    )
    return Table("lanes", title, columns, rows)


def worth(design: Design, path: str, amount: float) -> float | None:
    """USD of budget that an amount more of a variable, given for free, saves at the same speed."""
    of_one = design.worth(path)
    return None if of_one is None else amount * of_one


# --- figure and finding


def draw(traced: Frontiers) -> Figure:
    """Speed, what the best package is made of, and marginal values, over the budget: a row a workload."""
    with figure_style():
        figure = Figure(figsize=(12.5, 3.6 * len(traced) + 0.4), layout="constrained")
        panels = figure.subplots(len(traced), 3, squeeze=False)
        for row, (workload, by_generation) in zip(panels, traced.items(), strict=True):
            _draw_speeds(row[0], by_generation)
            _draw_amounts(row[1], by_generation[REFERENCE])
            _draw_values(row[2], by_generation[REFERENCE])
            row[0].set_title(TITLES[workload], loc="left")
            row[0].set_ylabel("speed over the H100's")
            row[1].set_ylabel(f"amount over the H100's, {REFERENCE.upper()}")
            row[2].set_ylabel("% faster for 1 % of the budget")
            for axes in row:
                _budget_axis(axes, [design.budget for design in by_generation[REFERENCE]])
                axes.legend(frameon=False, fontsize=8)
    return figure


def _draw_speeds(axes: Axes, by_generation: Mapping[str, Sequence[Design]]) -> None:
    """A line for each generation of memory."""
    for generation, designs in by_generation.items():
        budgets, speeds = [design.budget for design in designs], [design.speed for design in designs]
        axes.plot(budgets, speeds, color=SHADES[generation], linewidth=1.8, label=generation.upper())
    _ratio_axis(axes, (0.5, 0.7, 1, 1.4, 2))


def _draw_amounts(axes: Axes, designs: Sequence[Design]) -> None:
    """A line for each resource, over the amount that the H100 has."""
    for name, path in RESOURCES.items():
        problem = designs[0].problem
        base = problem.vector.start[frontier.index_of(problem, path)]
        amounts = [design.amount(name) / base for design in designs]
        axes.plot(
            [design.budget for design in designs], amounts, color=COLOURS[name], linewidth=1.8, label=name
        )
    _ratio_axis(axes, (0.1, 0.2, 0.5, 1, 2, 5, 10))


def _draw_values(axes: Axes, designs: Sequence[Design]) -> None:
    """Gross marginal values as lines, net ones as dots; the broad line is the value of the budget."""
    budgets = [design.budget for design in designs]
    value = [design.value_of_budget for design in designs]
    axes.plot(budgets, value, color=GREY, linewidth=5, alpha=0.4, label="the budget itself")
    for name in RESOURCES:
        values = [design.marginal_values()[name] for design in designs]
        gross, net = zip(*values, strict=True)
        axes.plot(budgets, gross, color=COLOURS[name], linewidth=1.5, label=f"{name}, gross")
        axes.plot(budgets, net, ".", color=COLOURS[name], markersize=6)
    axes.set_ylim(bottom=0)


def _ratio_axis(axes: Axes, ticks: Sequence[float]) -> None:
    """A logarithmic vertical axis of ratios to the H100, with labels at `ticks` alone."""
    axes.set_yscale("log")
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.yaxis.set_minor_formatter(NullFormatter())


def _budget_axis(axes: Axes, budgets: Sequence[float]) -> None:
    """A logarithmic axis of budgets, with a label at every other one."""
    axes.set_xscale("log")
    shown = budgets[:: max(1, len(budgets) // 5)]
    axes.set_xticks(shown, [f"{budget:,.0f}" for budget in shown])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("cost of the package (USD)")
    axes.grid(color=FAINT, linewidth=0.8)


def baseline_cost(design: Design) -> float:
    """USD that the H100 costs to make."""
    return float(output_of(design.problem.baseline_outcome, "cost.manufacturing"))


def finding(traced: Frontiers, generations: Table, lanes: Table) -> str:
    """What the study shows, in a few sentences."""
    texts = []
    for workload, by_generation in traced.items():
        designs = by_generation[REFERENCE]
        first, last = designs[0], designs[-1]
        near = min(designs, key=lambda design: abs(design.budget - baseline_cost(design)))
        place = (workload, near.budget)
        memory = next(row for row in generations.rows if (row["workload"], row["budget"]) == place)
        lane = next(row for row in lanes.rows if (row["workload"], row["budget"]) == place)
        mean = np.log(last.speed / first.speed) / np.log(last.budget / first.budget)
        limits = " and ".join(near.binding_limits()) or "nothing"
        texts.append(
            f"For {TITLES[workload]}, 1 % more budget makes a package of {first.budget:,.0f} USD "
            f"{first.value_of_budget:.2f} % faster, one of {last.budget:,.0f} USD {last.value_of_budget:.2f} "
            f"%, {mean:.2f} % on average. At {near.budget:,.0f} USD the best package is {near.speed:.2f} "
            f"times as fast as an H100: {near.amount('compute'):.0f} units, "
            f"{near.amount('SRAM') / 1e6:.0f} MB, {near.amount('stacks'):.1f} stacks and "
            f"{near.amount('links') / LANE:.0f} lanes on {near.dies} dies, held back by {limits} beside its "
            f"cost. HBM4 makes it {memory['hbm4_speed']:.2f} times as "
            f"fast. {_worth_of_lane(lane)}"
        )
    largest = max(spread(design) for found in traced.values() for design in found[REFERENCE])
    return " ".join(texts) + f" Marginal values agree within {largest:.1%}."


def _worth_of_lane(row: Mapping[str, Any]) -> str:
    """What a lane is worth beside what it costs; it has no worth where a budget hardly buys speed."""
    if row["lane"] is None:
        worth = "Other limits than its cost hold it back so much that a lane has no worth in dollars; it"
    else:
        worth = f"A lane is worth {row['lane']:.2f} USD of package,"
    return f"{worth} costs {row['lane_cost']:.2f} there and {row['switch']:.0f} at the switch."


def main() -> None:
    """Runs the study."""
    quick = "decodes only, at four budgets with two generations of memory"
    options = parse_options(__doc__, "constant_cost_frontier", quick)
    if options.quick:
        traced = frontiers(["decode"], QUICK_BUDGETS, [REFERENCE, "hbm4"], DIES[:2], exactly=False)
    else:
        traced = frontiers(list(TITLES), BUDGETS, GENERATIONS, DIES, exactly=True)
    tables = [frontier_table(traced), value_table(traced), generation_table(traced), lane_table(traced)]
    publish(options.out, tables, finding(traced, *tables[2:]), {"frontier": draw(traced)})


if __name__ == "__main__":
    main()
