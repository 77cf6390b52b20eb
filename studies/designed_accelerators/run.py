"""Which accelerator should be built for the cost of one that is sold, and how much better is it?

Seven questions, each a problem as a user would declare it (`problems/`): training GPT-3 175B and Llama-3.1
405B, serving Llama-3.1 70B and DeepSeek-V3 at a latency target, an edge device with a model of 8 and of 1
billion parameters, and a mix of decoding and training. A design may cost no more to make, draw no more power
and cost no more as a system than the accelerator whose technology it is built in; dies fit a reticle, stacks
fit the interposer and the edges of the dies. It stands beside sold accelerators that cost no more to make
and draw no more power, each in the best of the layouts that the design may choose from too.

Then: one of the problems for every type of package; the next-best value of every choice, and which input
would have to be how much different for it to win; what each workload of the mix loses to the design for it
alone; and in how many samples of the calibrated values each design is better than what is sold.

Costs are our own model's for both sides, and most prices in it are estimates. A design has no cost of
its own development, and no harvesting of bad dies beyond its template's.

    python studies/designed_accelerators/run.py [--quick] [--out DIR]
"""

import dataclasses
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1])]
from explained_tables import order_table, regret_table, runner_up_table
from reporting import Table, figure_style, label_point, parse_options, publish

import diffperf as dp
from diffperf.api.against_table import open_in_strategies, times_as_good
from diffperf.api.codesign_answer import CodesignAnswer
from diffperf.explore.codesign.against import BoughtSystem
from diffperf.explore.codesign.problem_file import load_problem
from diffperf.quantity import locate
from diffperf.report.plots import BLUE, GREY, ORANGE, PALETTE, bare
from diffperf.report.tables import show

PROBLEMS = Path(__file__).parent / "problems"
# The sold systems to compare with, by problem: the first is the one that sets the budget.
AGAINST = {
    "gpt3-175b-training": ("dgx-h100", "dgx-a100", "tpu-v6e-pod", "l40s-8"),
    "llama-3.1-405b-training": ("hgx-b200", "hgx-h200", "gaudi3-8", "tpu-v7x-pod"),
    "llama-3.1-70b-serving": ("hgx-h200", "dgx-h100", "hgx-h20", "h100-nvl-pairs"),
    "deepseek-v3-serving": ("dgx-h100", "hgx-h800", "tpu-v6e-pod"),
    "llama-3.1-8b-edge": ("jetson-agx-orin", "mac-m4-pro-20gpu"),
    "llama-3.2-1b-edge": ("jetson-agx-orin", "mac-m4-pro-20gpu"),
    "chat-and-training-mix": ("dgx-h100", "tpu-v6e-pod"),
}
QUICK = ("llama-3.2-1b-edge",)
PACKAGED = "llama-3.1-70b-serving"  # the problem that is asked for every type of package
# Types of package: the carrier, the generations of memory that it can connect, the most dies.
PACKAGES = {
    "one die on an interposer": ("interposer", ("hbm3", "hbm3e"), 1),
    "chiplets on an interposer": ("interposer", ("hbm3", "hbm3e"), 8),
    "chiplets on bridges": ("bridge", ("hbm3", "hbm3e"), 8),
    "chiplets on a fan-out layer": ("fan_out", ("hbm3", "hbm3e"), 8),
    "chiplets on a substrate": ("organic", ("gddr6", "gddr7"), 8),
}
AREAS = {
    "compute": "compute_area",
    "cache": "cache_area",
    "memory PHY": "memory_area",
    "links": "network_area",
}


@dataclasses.dataclass(frozen=True)
class Case:
    """The answer to one problem, and the best sold system that costs and draws no more."""

    name: str
    answer: CodesignAnswer
    rival: BoughtSystem | None

    @classmethod
    def of(cls, name: str, answer: CodesignAnswer) -> "Case":
        """Picks the rival among the sold systems that satisfy the problem's limits of cost and power."""
        limits = {c.quantity: c.limit for c in answer.result.problem.constraints}
        cost, power = limits["cost.manufacturing"], limits["chip.power"]
        fitting = [
            each
            for each in answer.bought
            if each.fits and each.manufacturing <= cost * 1.001 and each.power_limit <= power * 1.001
        ]
        return cls(name, answer, min(fitting, key=lambda each: each.relative, default=None))

    @property
    def gain(self) -> float | None:
        """How many times as good the design is as its rival."""
        return times_as_good(self.answer.result, self.rival) if self.rival else None

    def area(self, part: str) -> float:
        """mm² of a part on all dies of the package."""
        result = self.answer.result
        return float(getattr(result.outcome.chip, part)) * float(result.design.design.dies)

    def binding(self) -> list[str]:
        """What holds the design back, with what 1 % more of it buys."""
        result = self.answer.result
        return [
            f"{row.constraint.quantity} ({row.percent:+.2g} %)"
            for row in sorted(result.constraints(), key=lambda row: -(row.multiplier or 0))
            if row.active
        ]

    def layout(self) -> str:
        """The fields of the layouts that were open."""
        result = self.answer.result
        texts = []
        for path in open_in_strategies(result):
            value, declared = locate(result.design, path)
            texts.append(f"{path.split('.')[-1].replace('_', ' ')} {show(value, declared)}")
        return ", ".join(texts)


def answered(names: tuple[str, ...], explain: bool) -> list[Case]:
    """The answers to some problems, explained or not."""
    cases = []
    for name in names:
        problem = PROBLEMS / f"{name}.toml"
        cases.append(Case.of(name, dp.codesign(problem, against=AGAINST[name], explain=explain)))
        print(f"{name}: done", file=sys.stderr)
    return cases


def packaged() -> dict[str, CodesignAnswer]:
    """The same problem for every type of package.

    Only interposers have a largest size; a substrate cannot connect stacks of a thousand wires, so that it
    carries dies alone, with memory on the board. The limits stay those of the accelerator that is sold.
    """
    plain = load_problem(PROBLEMS / f"{PACKAGED}.toml")
    limits = {constraint.quantity: constraint.limit for constraint in plain.constraints}
    answers = {}
    for title, (carrier, memories, dies) in PACKAGES.items():
        table = tomllib.loads((PROBLEMS / f"{PACKAGED}.toml").read_text(encoding="utf-8"))
        table["technology"] = str(PROBLEMS / table["technology"])
        table["set"] = {"system.accelerator.package.carrier": carrier}
        for variable in table["variable"]:
            if variable["path"] == "technology.memory":
                variable["values"] = list(memories)
            if variable["path"] == "design.memory_stacks" and carrier == "organic":
                variable["to"] = 32
        if dies == 1:
            table["variable"] = [v for v in table["variable"] if v["path"] != "design.dies"]
        for constraint in table["constraint"]:
            if constraint["at_most"] == "baseline":
                constraint["at_most"] = f"{limits[constraint['quantity']]} USD"
        if carrier != "interposer":
            table["constraint"] = [c for c in table["constraint"] if c["quantity"] != "chip.carried_area"]
        answers[title] = dp.codesign(table)
        print(f"{title}: done", file=sys.stderr)
    return answers


# --- tables


def design_cells(answer: CodesignAnswer) -> dict[str, Any]:
    """What was designed, as cells of a table."""
    result = answer.result
    design, chip, report = result.design.design, result.outcome.chip, result.outcome.report
    memory = [row.design for row in result.variables() if row.path == "technology.memory"]
    return {
        "units": float(design.compute_units),
        "dies": float(design.dies),
        "die": float(chip.die_area),
        "cache": float(design.cache) / 1e6,
        "stacks": f"{float(design.memory_stacks):.0f} {memory[0] if memory else ''}".strip(),
        "links": float(design.network_bandwidth) / 1e9,
        "voltage": float(design.voltage),
        "power": float(chip.power),
        "cost": float(report.cost.manufacturing),
    }


DESIGN_COLUMNS = {
    "units": ("units", ".0f"),
    "dies": ("dies", ".0f"),
    "die": ("die: mm²", ".0f"),
    "cache": ("cache: MB", ".0f"),
    "stacks": ("memory", ""),
    "links": ("links: GB/s", ".0f"),
    "voltage": ("V", ".2f"),
    "power": ("W", ".0f"),
    "cost": ("to make: USD", ",.0f"),
}


def comparison_table(cases: list[Case]) -> Table:
    """How much better the designs are than what is sold."""
    rows = []
    for case in cases:
        result = case.answer.result
        row = {"case": case.name, "budget": result.problem.constraints[0].limit}
        row |= {"cost": float(result.outcome.report.cost.manufacturing), "gain": case.gain}
        row["baseline"] = (result.baseline_objective / result.objective) ** result.problem.sense
        if case.rival:
            row |= {"rival": case.rival.name, "rival_cost": case.rival.manufacturing}
        rows.append(row | {"binding": ", ".join(case.binding()) or "nothing"})
    columns = {
        "case": ("", ""),
        "budget": ("budget: USD", ",.0f"),
        "cost": ("design: USD", ",.0f"),
        "rival": ("best sold", ""),
        "rival_cost": ("sold: USD", ",.0f"),
        "gain": ("times as good as sold", ".2f"),
        "baseline": ("times the baseline as laid out", ".2f"),
        "binding": ("held back by (1 % more buys)", ""),
    }
    return Table(
        "comparison", "Designs beside the best sold accelerator of their cost and power", columns, rows
    )


def design_table(cases: list[Case]) -> Table:
    """What was designed."""
    rows = [{"case": case.name, **design_cells(case.answer), "layout": case.layout()} for case in cases]
    columns = {"case": ("", ""), **DESIGN_COLUMNS, "layout": ("layout", "")}
    return Table("designs", "The designs", columns, rows)


def package_table(answers: dict[str, CodesignAnswer]) -> Table:
    """The best design in every type of package."""
    best = max((answer.result.objective for answer in answers.values()), default=1.0)
    rows = [
        {
            "package": title,
            "speed": answer.result.objective / best if answer.feasible else None,
            **design_cells(answer),
        }
        for title, answer in answers.items()
    ]
    columns = {"package": ("", ""), "speed": ("of the best", ".3f"), **DESIGN_COLUMNS}
    return Table("packages", f"{PACKAGED} in every type of package", columns, rows)


# --- figure and finding


def draw(cases: list[Case]) -> Figure:
    """How many times as good the designs are, and how their dies are split."""
    with figure_style():
        figure = Figure(figsize=(11, 0.62 * len(cases) + 1.6), layout="constrained")
        gains, areas = figure.subplots(1, 2, sharey=True)
        places = np.arange(len(cases))
        gains.barh(places, [case.gain or 0 for case in cases], color=BLUE, height=0.55)
        for place, case in enumerate(cases):
            text = f"{case.gain:.2f} × {case.rival.name}" if case.rival else "none of its cost fits"
            label_point(gains, text, 0.05, place, ha="left", va="center", xytext=(0, 0), color="white")
        gains.axvline(1, color=ORANGE, linewidth=1.4)
        gains.set_title("The design over the best sold accelerator of its cost")
        gains.set_yticks(places, [case.name for case in cases])
        gains.invert_yaxis()
        bare(gains)
        _draw_areas(areas, cases)
        return figure


def _draw_areas(axes: Axes, cases: list[Case]) -> None:
    """Shares of the dies' area without uncore."""
    left = np.zeros(len(cases))
    whole = np.array([sum(case.area(part) for part in AREAS.values()) for case in cases])
    for (title, part), colour in zip(AREAS.items(), (PALETTE[0], PALETTE[4], PALETTE[6], GREY), strict=True):
        shares = np.array([case.area(part) for case in cases]) / whole
        axes.barh(np.arange(len(cases)), shares, left=left, color=colour, height=0.55, label=title)
        left += shares
    axes.set_title("Area of the dies, without uncore")
    axes.legend(frameon=False, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.08))
    axes.set_xticks([0, 0.5, 1], ["0", "50 %", "100 %"])
    bare(axes)


def finding(cases: list[Case], packages: dict[str, CodesignAnswer]) -> str:
    """What the study shows, in a few sentences."""
    texts = []
    for case in cases:
        row = design_cells(case.answer)
        rival = f"{case.gain:.2f} times as good as {case.rival.name}" if case.rival else "without a rival"
        texts.append(
            f"{case.name}: {row['dies']:.0f} × {row['die']:.0f} mm², {row['stacks']}, "
            f"{row['links']:.0f} GB/s at {row['voltage']:.2f} V for {row['cost']:,.0f} USD, {rival}; held "
            f"back by {' and '.join(case.binding()) or 'nothing'}."
        )
    if packages:
        ranked = sorted(packages, key=lambda title: -packages[title].result.objective)
        first, last = (packages[title].result.objective for title in (ranked[0], ranked[-1]))
        texts.append(f"For {PACKAGED}, {ranked[0]} is best, {ranked[-1]} gives {last / first:.0%} of it.")
    return " ".join(texts)


def main() -> None:
    """Runs the study."""
    options = parse_options(__doc__, "designed_accelerators", "one edge device, no types of package")
    cases = answered(QUICK if options.quick else tuple(AGAINST), explain=not options.quick)
    packages = {} if options.quick else packaged()
    answers = {case.name: case.answer for case in cases}
    tables = [comparison_table(cases), design_table(cases), package_table(packages)]
    tables += [runner_up_table(answers), regret_table(answers), order_table(answers)]
    publish(options.out, tables, finding(cases, packages), {"designs": draw(cases)})


if __name__ == "__main__":
    main()
