"""Do published accelerators come out of silicon node, die area, memory and power limit?

What PHYs, caches and uncore leave of the dies is filled with compute units, and the power limit sets voltage
and clock (`diffperf.hardware.floorplan`). Operations of a cycle and private memory of a compute unit are
published. The five figures of NVIDIA's data-centre family (transistors and energy per operation of a cycle,
and a clock) are fitted to V100, A100, H100 and B200. Every other family has one factor on them for area, one
for energy and one for the clock, fitted to its chips. Beside the errors of the fit stand those of each chip
when its family is fitted without it. Two chips are not fitted. GB10 is predicted, with logic as dense as its
SMs were measured to be: they are larger on N3 than NVIDIA's on 4N, where the node would shrink them. Of TPU
v5p nobody publishes the die area: the table gives the area that its rate implies, and the errors of units and
clock there. Memory bandwidth and capacity are stacks times the figures of their generation.

    python studies/published_chips/run.py [--quick] [--out DIR]
"""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib.figure import Figure
from scipy.optimize import brentq, least_squares

sys.path.append(str(Path(__file__).parents[1]))
from reporting import Table, figure_style, parse_options, publish, read_rows

from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.chip import chip
from diffperf.hardware.floorplan import (
    Blueprint,
    ComputeUnit,
    Family,
    Floorplan,
    design_of_blueprint,
    with_unit,
)
from diffperf.hardware.node import Node
from diffperf.hardware.technology import LinkTechnology, MemoryTechnology
from diffperf.load import load
from diffperf.quantity import Scalar, real
from diffperf.report.plots import BLUE, GREY, INK, bare

CHIPS = Path(__file__).parent / "data" / "chips.csv"
TARGET = 0.15
UNCORE = 0.25  # as configs/technology: an estimate
DIE_TO_DIE = (
    "ucie-advanced"  # an estimate: links over the interposers and bridges of packages of several dies
)
TOLERANCE = 0.1  # error of a figure that weighs as much as its spread
# The fit starts from, and is drawn weakly to: transistors per matrix FLOP, those per vector FLOP over them,
# J per matrix FLOP, those per vector FLOP over them, Hz. Estimates, with the spreads of their logarithms.
START = (8e4, 5.0, 5e-13, 5.0, 1.7e9)
SPREAD = (10.0, 1.0, 10.0, 1.0, 0.1)
FITTED_FAMILY = "nvidia-datacenter"


@dataclasses.dataclass(frozen=True)
class Published:
    """A published accelerator: its row of the table, and what it is made of."""

    row: dict[str, str]
    blueprint: Blueprint
    template: Accelerator

    @property
    def name(self) -> str:
        """The name of the chip."""
        return self.row["chip"]

    @property
    def area_known(self) -> bool:
        """Whether the area of the dies is published, or estimated well enough for the fit."""
        return self.row["role"] == "fitted" or "die area" not in self.row["unpublished"]

    @property
    def clock(self) -> float:
        """The clock in Hz at which the units at work have the published rate."""
        return self.number("bf16_tflops") * 1e12 / self.number("units_at_work") / self.number("matrix_flops")

    def number(self, column: str) -> float:
        """A number of the row."""
        return float(self.row[column])


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What a floorplan comes to: FLOP/s, clock in Hz, units at work, and power in W."""

    rate: float
    clock: float
    units: float
    voltage: float
    power: float


def read_chip(row: dict[str, str]) -> Published:
    """Returns the chip of a row of the table."""
    number = {name: float(text) for name, text in row.items() if _is_number(text)}
    plan = Floorplan(
        die_area=number["die_area_mm2"],
        dies=number["dies"],
        cache=number["cache_mib"] * 2**20,
        memory_stacks=number["stacks"],
        network_bandwidth=number["network_gb_s"] * 1e9,
        power_limit=number["power_limit_w"],
        io_share=number["io_share"],
    )
    unit = ComputeUnit(
        matrix_flops=number["matrix_flops"],
        vector_flops=number["fp32_flops"] + 2 * number["fp64_flops"],
        private_memory=number["private_kib"] * 1024,
        working_share=number["units_at_work"] / number["units_built"],
    )
    memory = load(MemoryTechnology, row["memory"])
    memory = dataclasses.replace(
        memory,
        stack_capacity=real(number["stack_gib"] * 2**30),
        phy_area=memory.phy_area * number["sites"] / number["stacks"],  # dies have PHYs for empty sites too
    )
    link = load(LinkTechnology, row["link"])
    node = load(Node, row["node"])
    node = dataclasses.replace(node, logic_density=node.logic_density * number["logic_density_share"])
    blueprint = Blueprint(
        plan=plan,
        unit=unit,
        node=node,
        memory=memory,
        link=link,
        die_to_die=load(LinkTechnology, DIE_TO_DIE),
    )
    return Published(row, blueprint, load(Accelerator, row["template"]))


def _is_number(text: str) -> bool:
    """Returns whether a cell is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


# --- families


def family_of(parameters: Float[Array, "5"]) -> Family:
    """Returns the family of a vector of logarithms, in the order of `START`."""
    matrix, vector, matrix_energy, vector_energy, clock = jnp.exp(parameters)
    return Family(
        name="fitted",
        matrix_transistors=matrix,
        vector_transistors=matrix * vector,
        matrix_energy=matrix_energy,
        vector_energy=matrix_energy * vector_energy,
        clock=clock,
        uncore_fraction=UNCORE,
    )


def units_and_clock(case: Published, family: Family) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    """Returns units at work, clock in Hz, voltage and power of a chip with the figures of a family."""
    template = with_unit(case.template, case.blueprint.unit, family)
    design, technology = design_of_blueprint(case.blueprint, family, template)
    made = chip(design, technology, template)
    return design.compute_units, made.clock * family.clock, made.voltage, made.power


def implied_area(case: Published, parameters: Float[np.ndarray, "5"]) -> float:
    """Returns the mm² of one die at which the figures of a family give the published rate of a chip."""
    family, published = family_of(jnp.asarray(parameters)), case.number("bf16_tflops") * 1e12

    @jax.jit
    def excess(area: Scalar) -> Scalar:
        units, clock, _, _ = units_and_clock(with_area(case, area), family)
        return jnp.log(units * clock * case.number("matrix_flops") / published)

    # The rate rises with the area until static power takes what the limit gives: the first crossing counts.
    areas = np.geomspace(20.0, 3000.0, 200)
    first = int(np.argmax(np.asarray(jax.vmap(excess)(jnp.asarray(areas))) > 0))
    return float(brentq(lambda area: float(excess(jnp.asarray(area))), areas[first - 1], areas[first]))


def with_area(case: Published, area: Scalar | float) -> Published:
    """Returns the chip with dies of another area in mm²."""
    plan = dataclasses.replace(case.blueprint.plan, die_area=jnp.asarray(area, float))
    return dataclasses.replace(case, blueprint=dataclasses.replace(case.blueprint, plan=plan))


def predicted(case: Published, parameters: Float[np.ndarray, "5"]) -> Prediction:
    """Returns what the floorplan of a chip comes to with the figures of a family."""
    units, clock, voltage, power = map(float, units_and_clock(case, family_of(jnp.asarray(parameters))))
    return Prediction(units * clock * case.number("matrix_flops"), clock, units, voltage, power)


def errors(cases: list[Published], family: Float[Array, "5"]) -> Float[Array, " errors"]:
    """Returns the logarithms of units at work, clock and rate over the published ones, chip by chip."""
    logarithms = []
    for case in cases:
        units, clock, _, _ = units_and_clock(case, family_of(family))
        units, clock = jnp.log(units / case.number("units_at_work")), jnp.log(clock / case.clock)
        logarithms += [units, clock, units + clock]
    return jnp.stack(logarithms)


def solved(residuals: Callable[[Array], Array], start: np.ndarray) -> np.ndarray:
    """Returns the vector with the least sum of squared residuals."""
    jacobian = jax.jit(jax.jacfwd(residuals))
    return least_squares(jax.jit(residuals), start, jac=jacobian, max_nfev=100).x


def fitted(cases: list[Published]) -> Float[np.ndarray, "5"]:
    """Returns the logarithms of a family's figures with the least squared errors, and close to `START`."""

    def residuals(family: Float[Array, "5"]) -> Float[Array, " residuals"]:
        drawn = (family - np.log(START)) / np.array(SPREAD) * TOLERANCE
        return jnp.concatenate([errors(cases, family), drawn])

    return solved(residuals, np.log(START))


def scaled_to(cases: list[Published], family: Float[np.ndarray, "5"]) -> Float[np.ndarray, "5"]:
    """Returns the figures of another family with a factor for area, one for energy and one for the clock.

    Units and clocks of one or two chips hardly tell energy from clock: the chips are drawn weakly to nominal
    voltage at their power limit (an estimate).
    """

    def scaled(factors: Float[Array, "3"]) -> Float[Array, "5"]:
        area, energy, clock = factors
        return jnp.asarray(family) + jnp.stack([area, jnp.zeros(()), energy, jnp.zeros(()), clock])

    def residuals(factors: Float[Array, "3"]) -> Float[Array, " residuals"]:
        own = scaled(factors)
        voltages = [
            units_and_clock(case, family_of(own))[2] / case.blueprint.node.nominal_voltage for case in cases
        ]
        return jnp.concatenate([errors(cases, own), TOLERANCE * jnp.log(jnp.stack(voltages))])

    return np.asarray(scaled(jnp.asarray(solved(residuals, np.zeros(3)))))


@dataclasses.dataclass(frozen=True)
class Result:
    """A chip with what its family makes of it, and what the family fitted without it does.

    Where the die area is not published, `fit` is of dies of the area that the rate implies.
    """

    case: Published
    fit: Prediction
    left_out: Prediction | None
    implied_area: float | None

    @property
    def known(self) -> bool:
        """Whether die area, node, power limit and rate of the chip are published."""
        return not self.case.row["unpublished"]


def results_of(cases: list[Published], leave_out: bool) -> tuple[list[Result], dict[str, np.ndarray]]:
    """Returns the predictions of all chips, and the figures of every family."""
    by_family: dict[str, list[Published]] = {}
    for case in cases:
        if case.row["role"] == "fitted":
            by_family.setdefault(case.row["family"], []).append(case)
    common = fitted(by_family[FITTED_FAMILY])
    families = {
        name: common if name == FITTED_FAMILY else scaled_to(members, common)
        for name, members in by_family.items()
    }
    by_chip = []
    for case in cases:
        name = case.row["family"]
        others = [other for other in by_family[name] if other is not case]
        left_out = None
        if leave_out and case in by_family[name] and others:
            own = fitted(others) if name == FITTED_FAMILY else scaled_to(others, common)
            left_out = predicted(case, own)
        area = None if case.area_known else implied_area(case, families[name])
        filled = case if area is None else with_area(case, area)
        by_chip.append(Result(case, predicted(filled, families[name]), left_out, area))
    return by_chip, families


# --- tables


def error(value: float, published: float) -> float:
    """Returns the relative error of a value."""
    return value / published - 1


def rate_table(results: list[Result]) -> Table:
    """FLOP/s, units, clock and power by chip."""
    columns = {
        "chip": ("chip", ""),
        "role": ("role", ""),
        "published": ("TFLOP/s published", ",.0f"),
        "ours": ("ours", ",.0f"),
        "error": ("error", "+.0%"),
        "left_out": ("left out", "+.0%"),
        "units": ("units", "+.0%"),
        "clock": ("clock", "+.0%"),
        "voltage": ("V", ".2f"),
        "power": ("power", "+.0%"),
        "area": ("mm² a die", ".0f"),
        "implied": ("implied", ".0f"),
        "unpublished": ("estimated inputs", ""),
    }
    rows = []
    for result in results:
        case, fit, published = result.case, result.fit, result.case.number("bf16_tflops") * 1e12
        rows.append(
            {
                "chip": case.name,
                "role": case.row["role"],
                "published": published / 1e12,
                "ours": None if result.implied_area else fit.rate / 1e12,
                "error": None if result.implied_area else error(fit.rate, published),
                "left_out": None if result.left_out is None else error(result.left_out.rate, published),
                "units": error(fit.units, case.number("units_at_work")),
                "clock": error(fit.clock, case.clock),
                "voltage": fit.voltage,
                "power": error(fit.power, case.number("power_limit_w")),
                "area": None if result.implied_area else float(case.blueprint.plan.die_area),
                "implied": result.implied_area,
                "unpublished": case.row["unpublished"],
            }
        )
    return Table(
        "rates", "Dense 16-bit matrix rate from node, die area, memory and power limit", columns, rows
    )


def memory_table(cases: list[Published]) -> Table:
    """Bandwidth and capacity by chip."""
    columns = {
        "chip": ("chip", ""),
        "memory": ("stacks", ""),
        "bandwidth": ("TB/s published", ".2f"),
        "ours": ("ours", ".2f"),
        "bandwidth_error": ("error", "+.0%"),
        "capacity": ("GB published", ",.0f"),
        "our_capacity": ("GiB ours", ",.0f"),
        "capacity_error": ("error", "+.0%"),
    }
    rows = []
    for case in cases:
        stacks = float(case.blueprint.plan.memory_stacks)
        bandwidth = stacks * float(case.blueprint.memory.stack_bandwidth) / 1e12
        # Sizes of memory are given in GB and are GiB.
        capacity = stacks * float(case.blueprint.memory.stack_capacity) / 2**30
        row = {"chip": case.name, "memory": f"{stacks:.0f} {case.row['memory']}"}
        row |= {"bandwidth": case.number("bandwidth_tb_s"), "ours": bandwidth}
        row |= {"capacity": case.number("capacity_gb"), "our_capacity": capacity}
        row["bandwidth_error"] = error(bandwidth, case.number("bandwidth_tb_s"))
        rows.append(row | {"capacity_error": error(capacity, case.number("capacity_gb"))})
    return Table("memory", "Memory of stacks of a generation", columns, rows)


def family_table(families: dict[str, np.ndarray]) -> Table:
    """The figures of every family."""
    columns = {
        "family": ("family", ""),
        "matrix": ("transistors per matrix FLOP", ",.0f"),
        "vector": ("per vector FLOP", ",.0f"),
        "matrix_energy": ("pJ per matrix FLOP", ".3f"),
        "vector_energy": ("per vector FLOP", ".3f"),
        "clock": ("GHz at nominal voltage", ".2f"),
    }
    rows = []
    for name, parameters in families.items():
        matrix, vector, matrix_energy, vector_energy, clock = np.exp(parameters)
        row = {"family": name, "matrix": matrix, "vector": matrix * vector, "clock": clock / 1e9}
        energies = {"matrix_energy": matrix_energy, "vector_energy": matrix_energy * vector_energy}
        rows.append(row | {key: value * 1e12 for key, value in energies.items()})
    return Table("families", "Figures of the families, referred to N7", columns, rows)


def draw(results: list[Result]) -> Figure:
    """Our rate over the published one by chip: fitted, left out, predicted."""
    with figure_style():
        figure = Figure(figsize=(9, 4), layout="constrained")
        axes = figure.subplots()
        axes.axhspan(1 - TARGET, 1 + TARGET, color=GREY, alpha=0.15, linewidth=0)
        axes.axhline(1.0, color=GREY, linewidth=1.2)
        shown = [result for result in results if result.implied_area is None]
        for place, result in enumerate(shown):
            published = result.case.number("bf16_tflops") * 1e12
            face = BLUE if result.known else "none"
            axes.plot(place, result.fit.rate / published, "o", color=BLUE, mfc=face)
            if result.left_out is not None:
                axes.plot(place, result.left_out.rate / published, "x", color=INK)
        axes.set_xticks(range(len(shown)), [result.case.name for result in shown])
        axes.set_ylabel("our FLOP/s over the published")
        axes.set_title(
            "Dot: all chips fitted; cross: fitted without this one; hollow: inputs estimated", loc="left"
        )
        bare(axes, keep="both")
    return figure


def finding(results: list[Result]) -> str:
    """What the study shows, in a few sentences."""

    def of(result: Result, prediction: Prediction) -> float:
        return error(prediction.rate, result.case.number("bf16_tflops") * 1e12)

    fit = {
        result.case.name: of(result, result.fit) for result in results if result.case.row["role"] == "fitted"
    }
    left_out = {r.case.name: of(r, r.left_out) for r in results if r.left_out is not None}
    worst = max(fit, key=lambda name: abs(fit[name]))
    text = (
        f"With {len(fit)} chips fitted, all come out within {abs(fit[worst]):.0%} ({worst}) of their FLOP/s."
    )
    if left_out:
        typical = float(np.median(np.abs(list(left_out.values()))))
        worst = max(left_out, key=lambda name: abs(left_out[name]))
        text += f" Left out of the fit, they come out within {typical:.0%} in the median and "
        text += f"{abs(left_out[worst]):.0%} at worst ({worst})."
    predictions = ", ".join(
        f"{result.case.name} {of(result, result.fit):+.0%} (units"
        f" {error(result.fit.units, result.case.number('units_at_work')):+.0%})"
        for result in results
        if result.case.row["role"] == "predicted" and result.implied_area is None
    )
    areas = ", ".join(
        f"{result.case.name} {result.implied_area:.0f} mm² (units {units:+.0%}, clock {clock:+.0%})"
        for result in results
        if result.implied_area is not None
        for units in [error(result.fit.units, result.case.number("units_at_work"))]
        for clock in [error(result.fit.clock, result.case.clock)]
    )
    return f"{text} Predicted: {predictions}. Die areas that unpublished chips' rates imply: {areas}."


def main() -> None:
    """Runs the study."""
    options = parse_options(__doc__, "published_chips", "does not fit with each chip left out")
    cases = [read_chip(row) for row in read_rows(CHIPS)]
    results, families = results_of(cases, leave_out=not options.quick)
    tables = [rate_table(results), memory_table(cases), family_table(families)]
    publish(options.out, tables, finding(results), {"figure": draw(results)})


if __name__ == "__main__":
    main()
