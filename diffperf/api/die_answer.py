"""dp.die: what a die of an area costs on every silicon node."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from rich.console import RenderableType
from rich.table import Table

from diffperf import units
from diffperf.api.answer import Answer
from diffperf.api.boundary import answering, asker_of
from diffperf.api.from_python import read_settings, refuse_traced
from diffperf.api.input_values import plain, with_paths_and_units
from diffperf.cost.wafers import dies_per_wafer, raw_die_price
from diffperf.cost.yields import defect_free, die_yield, fatal_defects, stitched_share
from diffperf.errors import ConfigError
from diffperf.hardware.node import Node, matured
from diffperf.hardware.package import Die
from diffperf.hardware.process import Process
from diffperf.load import available, literal, load_node, load_nodes, override
from diffperf.load.checks import checked_number
from diffperf.quantity import AnyArray, Declared, Quantity, Scalar, declaration, quantity, real, replace
from diffperf.report.tables import column_table
from diffperf.units import YEAR

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The yield models beside a process's own one, and their headings.
_MODELS = {
    "poisson": "Poisson",
    "murphy": "Murphy",
    "seeds": "Seeds",
    "negative_binomial": "neg. binomial",
}
# What the price of a die depends on; the other inputs of a process are those of designs, masks and CO2e.
_PRICED = (
    "process.wafer_price",
    "process.defect_density",
    "process.clustering",
    "process.yield_model",
    "process.critical_share",
    "process.line_yield",
    "process.wafer_diameter",
    "process.scribe_lane",
    "process.edge_loss",
    "process.reticle",
    "process.stitching_yield",
)
_AGEING = ("early_defects", "mature_defects", "learning_time")  # of a node: what `age` reads
_SMALLEST = 25.0  # mm², where the curves of the figure start, if the die is not much smaller
_POINTS = 200  # of a curve


class _Age(Declared):
    """Age of the silicon process when a die is made."""

    age: Scalar = quantity("year", "time since the start of volume production on the node", bounds=(0, 50))


@answering("die")
def die(
    area: Any,
    *,
    nodes: Any = None,
    aspect: Any = 1.0,
    age: Any = None,
    set: Mapping[str, Any] | None = None,
) -> "DieAnswer":
    """Cost of a die on silicon nodes: wafers, dies on them, yields by four models, a good die, a good mm².

    **Arguments:**

    - `area`: of the die, a text with its unit ("628 mm2", "6.28 cm2") or a number of mm².
    - `nodes`: a list, or a text with commas: names ("n5"), features between those of shipped nodes
      ("3.5 nm"), paths of files. By default all shipped nodes.
    - `aspect`: width of the die over its height.
    - `age`: years since the start of volume production on each node, in place of the price of wafers and the
      density of defects in the processes' files.
    - `set`: other inputs of all nodes, such as `{"process.defect_density": "0.08 1/cm^2"}`; they hold at any
      age.

    **Raises:** `ConfigError`, in one line.
    """
    asker = asker_of("die")
    settings = read_settings(set, asker)
    refuse_traced(asker, {"area": area, "nodes": nodes, "aspect": aspect, "age": age, "set": settings})
    return DieAnswer.of(area, nodes=nodes, aspect=aspect, age=age, settings=settings, asker=asker)


@dataclasses.dataclass(frozen=True, repr=False)
class DieAnswer(Answer):
    """The prices of a die on several nodes.

    - `area`, `aspect`: of the die, mm² and width over height.
    - `age`: years since the start of volume production, None for the prices of the files.
    - `processes`: by node, as it is asked for.
    - `settings`: the inputs that are set, values with their units by path.
    """

    area: float
    aspect: float
    age: float | None
    processes: dict[str, Process]
    settings: dict[str, Any]

    @classmethod
    def of(
        cls, area: Any, nodes: Any, aspect: Any, age: Any, settings: Mapping[str, Any], asker: str
    ) -> "DieAnswer":
        """Reads a question as users write it. **Raises:** `ConfigError` that names `asker`."""
        size = _number(Die, "area", area, asker)
        ratio = _number(Die, "aspect", aspect, asker)
        years = None if age is None else _number(_Age, "age", age, asker)
        by_name = _nodes(nodes, asker)
        values = with_paths_and_units(next(iter(by_name.values())), settings, asker)
        _refuse_without_effect(values, years, asker)
        processes = {
            name: _set_and_aged(node, values, years, asker).process for name, node in by_name.items()
        }
        for name, process in processes.items():
            _refuse_beyond_wafer(size, ratio, name, process, asker)
        return cls(area=size, aspect=ratio, age=years, processes=processes, settings=values)

    def rows(self) -> list[dict[str, Any]]:
        """A row for each node: USD, shares of dies, defects per mm²."""
        processes = _stacked(self.processes.values())
        area = np.full(len(self.processes), self.area)
        defects = fatal_defects(area, processes)
        columns = {
            "wafer_price": processes.wafer_price,
            "defect_density": processes.defect_density,
            "dies_per_wafer": dies_per_wafer(area, processes, self.aspect),
            "without_defect": defect_free(defects, processes),
            **{name: defect_free(defects, _with_model(processes, name)) for name in _MODELS},
            "stitched": stitched_share(area, processes),
            **_prices(area, self.aspect, processes),
        }
        return [
            {"node": name, "process": str(process.name)}
            | {column: float(values[place]) for column, values in columns.items()}
            for place, (name, process) in enumerate(self.processes.items())
        ]

    def lines(self) -> list[RenderableType]:
        width, height = np.sqrt(self.area * self.aspect), np.sqrt(self.area / self.aspect)
        years = "" if self.age is None else f"{self.age:g} {'year' if self.age == 1 else 'years'}"
        when = f", {years} after the start of volume production" if years else ""
        shown = units.show(self.area, "mm^2")
        lines: list[RenderableType] = [f"[bold]A die of {shown}[/bold], {width:.4g} × {height:.4g} mm{when}"]
        if self.settings:
            lines += ["with " + ", ".join(f"{path} = {value}" for path, value in self.settings.items())]
        lines += ["", _table(self.rows()), ""]
        return [*lines, *self._beyond_reticle(), _LEFT_OUT]

    def _beyond_reticle(self) -> list[str]:
        """A line for each reticle that the die exceeds."""
        reticles: dict[float, list[str]] = {}
        for name, process in self.processes.items():
            if self.area > (reticle := float(process.reticle)):
                reticles.setdefault(reticle, []).append(name)
        joined = {row["node"]: row["stitched"] for row in self.rows()}
        return [
            f"More than the reticle of {units.show(reticle, 'mm^2')}"
            + (f" ({', '.join(names)})" if len(names) < len(self.processes) else "")
            + f": priced as stitched, {_shares(joined[name] for name in names)} of the dies with all fields "
            'joined; the file of a package has to say exposure = "stitched".'
            for reticle, names in reticles.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        return {
            "area": self.area,
            "aspect": self.aspect,
            "age": self.age,
            "set": self.settings,
            "nodes": self.rows(),
        }

    def figure(self) -> "Figure":
        """The price of a good mm² over the area of the die, for each node."""
        from diffperf.report import plots

        reticles = sorted({float(process.reticle) for process in self.processes.values()})
        smallest, largest = min(_SMALLEST, self.area / 2), 1.2 * max(self.area, reticles[-1])
        areas = np.linspace(smallest, largest, _POINTS)
        processes = _stacked(self.processes.values())
        grid = np.broadcast_to(areas[:, None], (_POINTS, len(self.processes)))
        fits = np.asarray(dies_per_wafer(grid, processes, self.aspect)) >= 1
        prices = np.where(fits, _prices(grid, self.aspect, processes)["good_mm2"], np.nan)
        curves = {name: prices[:, place] for place, name in enumerate(self.processes)}
        points = {row["node"]: row["good_mm2"] for row in self.rows()}
        title = "Price of a good mm² of a die by its area"
        return plots.die_prices(areas, curves, (self.area, points), reticles, title)


_LEFT_OUT = (
    "A good die is a die over the share of dies that are good, before tests; diffperf cost prices dies with "
    "spare units, tests and packages."
)


def _table(rows: list[dict[str, Any]]) -> Table:
    """The rows as a table."""
    prices = ("a die", "a good die", "a good mm²")
    table = column_table("Node", "wafer", "defects/cm²", "dies", "no defect", *_MODELS.values(), *prices)
    for row in rows:
        shares = [f"{row[name]:.1%}" for name in ("without_defect", *_MODELS)]
        prices = [units.show(row[name], "USD", 3) for name in ("die", "good_die", "good_mm2")]
        counts = f"{100 * row['defect_density']:.3g}", f"{row['dies_per_wafer']:.1f}"
        table.add_row(row["node"], units.show(row["wafer_price"], "USD"), *counts, *shares, *prices)
    return table


def _shares(shares: Iterable[float]) -> str:
    """Shares as one text: the only one, or the least and the most."""
    texts = [f"{share:.1%}" for share in sorted(set(shares))]
    return texts[0] if len(texts) == 1 else f"{texts[0]} to {texts[-1]}"


def _prices(
    area: Float[np.ndarray, "*dies"], aspect: float, processes: Process
) -> dict[str, Float[AnyArray, "*dies"]]:
    """USD of a die, of a good one, and of a good mm²; the last axis of `area` is that of the processes."""
    raw = raw_die_price(area, processes, aspect)
    good = raw / die_yield(area, processes)
    return {"die": raw, "good_die": good, "good_mm2": good / area}


def _stacked(processes: Iterable[Process]) -> Process:
    """Processes as one whose numbers have an axis of them."""
    return jax.tree.map(lambda *numbers: jnp.stack(numbers), *processes)


def _with_model(processes: Process, name: str) -> Process:
    """These processes, all with one yield model."""
    weights = processes.yield_model
    chosen = np.broadcast_to(np.array(weights.alternatives) == name, weights.array.shape)
    return replace(processes, {"yield_model": chosen})


def _number(module: type[Declared], field: str, value: Any, asker: str) -> float:
    """A number as the declaration of a field allows it, in internal units.

    `value` is a text with a unit, or a number in internal units, as text or not.
    **Raises:** `ConfigError` that names `asker` and the field.
    """
    declared = declaration(next(each for each in dataclasses.fields(module) if each.name == field))
    assert isinstance(declared, Quantity)
    number = literal(plain(value))
    if declared.unit and _is_number(number):
        number = f"{number!r} {declared.unit}"
    return checked_number(declared, number, asker, field)


def _nodes(nodes: Any, asker: str) -> dict[str, Node]:
    """Nodes by what they are called, in the order of the question; by default all, the newest last."""
    if nodes is None:
        return {str(node.name): node for node in reversed(load_nodes())}
    listed = nodes.split(",") if isinstance(nodes, str) else plain(nodes)
    if _is_number(listed):
        listed = [listed]
    if isinstance(listed, Mapping) or not isinstance(listed, Iterable):
        raise ConfigError(asker, "nodes", repr(nodes), "a list of nodes", 'write ["n7", "3.5 nm"]')
    asked = [node.strip() if isinstance(node, str) else plain(node) for node in listed]
    if not asked or "" in asked:
        known = ", ".join(available("nodes"))
        raise ConfigError(asker, "nodes", repr(nodes), "one node or more", f"known: {known}")
    for node in asked:
        if not isinstance(node, str) and not _is_number(node):
            raise ConfigError(asker, "nodes", repr(node), "a name or nm of a node", 'write "n7" or 7')
    return {
        node if isinstance(node, str) else f"{node:g} nm": load_node(node, asker, "nodes") for node in asked
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _refuse_without_effect(values: Mapping[str, Any], age: float | None, asker: str) -> None:
    """Raises `ConfigError` for a path among the settings that no price of a die depends on."""
    for path in values:
        if path in _AGEING and age is None:
            raise ConfigError(asker, path, "no age beside it", "an age, which it matters for", "give age too")
        if path not in (*_PRICED, *_AGEING):
            found, listed = "an input that no price of a die depends on", ", ".join((*_PRICED, *_AGEING))
            raise ConfigError(asker, path, found, "one that they depend on", f"known: {listed}")


def _set_and_aged(node: Node, values: dict[str, Any], age: float | None, asker: str) -> Node:
    """The node with other inputs, after some years of production where an age is given."""
    changed = override(node, values, asker)
    if age is None:
        return changed
    # What is set holds at that age, too, and is not matured.
    of_any_age = {path: value for path, value in values.items() if path in _PRICED}
    return override(matured(changed, real(age * YEAR)), of_any_age, asker)


def _refuse_beyond_wafer(area: float, aspect: float, name: str, process: Process, asker: str) -> None:
    """Raises `ConfigError` for a die of which a wafer has not even one."""
    if float(dies_per_wafer(np.asarray(area), process, aspect)) < 1:
        wafer = f"at least one die on a wafer of {units.show(process.wafer_diameter, 'mm')} ({name})"
        found = f"a die of {units.show(area, 'mm^2')}, {aspect:g} times as wide as high"
        raise ConfigError(asker, "area", found, wafer, "give a smaller area, or another aspect")
