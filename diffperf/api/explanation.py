"""Why a design is what it is: next-best choices and what would make them win, regret, and how sure it is."""

import dataclasses
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.table import Table

from diffperf import units
from diffperf.explore.codesign.against import BoughtSystem
from diffperf.explore.codesign.doubt import SAMPLES, Order, orders
from diffperf.explore.codesign.regret import Regret, regrets
from diffperf.explore.codesign.result import Codesign
from diffperf.explore.codesign.runners_up import RunnerUp, runners_up
from diffperf.explore.codesign.search import Search
from diffperf.explore.codesign.tipping import Condition

_EQUAL = 5e-5  # loss below which two choices are as good as each other


@dataclasses.dataclass(frozen=True)
class Explanation:
    """Alternatives to a design: the answer to `explain`.

    - `runners_up`: for every choice, the best design without the chosen value.
    - `regrets`: the loss of every workload of a mix, against the design that is best for it alone.
    - `orders`: the order of the design, the baseline and sold systems, over samples of the calibrated values.
    """

    runners_up: tuple[RunnerUp, ...]
    regrets: tuple[Regret, ...]
    orders: tuple[Order, ...]

    @classmethod
    def of(cls, search: Search, result: Codesign, bought: list[BoughtSystem]) -> "Explanation | None":
        """Searches what else could have been chosen; None where the search has no feasible, whole answer."""
        if not result.feasible or result.stopped:
            return None
        alternatives = runners_up(search)
        regret = regrets(result, search.population, search.progress)
        search.progress("samples of calibrated values", 0.0)
        return cls(tuple(alternatives), tuple(regret), tuple(orders(result, bought)))

    def sections(self, result: Codesign) -> list[tuple[str, list[RenderableType]]]:
        """The parts that there are, each with its heading."""
        parts: list[tuple[str, list[RenderableType]]] = []
        if self.runners_up:
            parts.append(("next-best choices", [self._runners_table(), *self._condition_lines()]))
        if self.regrets:
            parts.append(("regret", [self._regret_table(result)]))
        if self.orders:
            parts.append(("how sure the order is", [*map(_order_line, self.orders)]))
        return parts

    def _runners_table(self) -> Table:
        table = Table(box=None, pad_edge=False)
        for heading in ("", "chosen", "next best", "loses"):
            table.add_column(heading, justify="right" if heading else "left")
        for each in self.runners_up:
            table.add_row(_name(each), each.chosen, each.other or "no other", _loss_text(each.loss))
        return table

    def _condition_lines(self) -> list[str]:
        """Conditions under which each runner-up would win, limits held, to first order."""
        lines = []
        for each in self.runners_up:
            if each.conditions and each.loss is not None and each.loss > _EQUAL:
                needed = ", or ".join(map(condition_text, each.conditions))
                lines.append(f"{_name(each)} {each.other} would be as good with {needed} (to first order)")
        return lines

    def _regret_table(self, result: Codesign) -> Table:
        table = Table(box=None, pad_edge=False)
        for heading in ("", result.problem.objective, "design for it alone", "loses"):
            table.add_column(heading, justify="right" if heading else "left")
        unit = result.problem.objective_declared.unit
        for each in self.regrets:
            values = (units.show(value, unit) for value in (each.shared, each.alone))
            table.add_row(each.workload.name, *values, f"{np.expm1(max(each.loss, 0.0)):.1%}")
        return table

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "runners_up": [
                {
                    "variable": each.variable.name,
                    "chosen": each.chosen,
                    "other": each.other,
                    "loss": None if each.loss is None else float(np.expm1(each.loss)),
                    "conditions": [
                        {"path": c.path, "of": c.owner, "value": c.value, "needed": c.needed}
                        for c in each.conditions
                    ],
                }
                for each in self.runners_up
            ],
            "regret": {
                each.workload.name: {"shared": each.shared, "alone": each.alone} for each in self.regrets
            },
            "orders": [dataclasses.asdict(each) for each in self.orders],
        }


def _name(runner_up: RunnerUp) -> str:
    return runner_up.variable.name.removeprefix("design.").removeprefix("strategy.").replace("_", " ")


def _loss_text(loss: float | None) -> str:
    if loss is None:
        return "no design satisfies the limits"
    return f"{np.expm1(loss):.2%}" if loss > _EQUAL else "nothing: as good"


def condition_text(condition: Condition) -> str:
    """One input with its present and its needed value."""
    unit = condition.declared.unit
    now, needed = units.show(condition.value, unit, 3), units.show(condition.needed, unit, 3)
    owner = f" of {condition.owner}" if condition.owner else ""
    return f"{condition.path}{owner} {needed} in place of {now}"


def _order_line(order: Order) -> str:
    """Share of the samples in which the design is better, and the gain, in a line."""
    text = f"better than {order.name} in {order.share:.0%} of {SAMPLES} samples of the calibrated values: "
    text += f"{order.low:.3g} to {order.high:.3g} times as good (90 %)"
    return text if order.calibrated else f"{text}; {order.name} has no calibration of its own"
