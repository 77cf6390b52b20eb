"""The best integer layout of a system's devices, where a user leaves degrees of parallelism open."""

import dataclasses
from typing import Any

import equinox as eqx

from diffperf.errors import ARGUMENTS, ConfigError
from diffperf.explore.plan.candidates import DEGREES, LAYOUT, enumerate_candidates, starting_strategy
from diffperf.explore.plan.ranking import rank
from diffperf.explore.plan.serving_layouts import enumerate_layouts
from diffperf.hardware.system import System
from diffperf.load import check
from diffperf.quantity import locate, replace
from diffperf.relax import Exact, Relaxation
from diffperf.workload.configuration import Configuration
from diffperf.workload.model import Model
from diffperf.workload.strategy import Strategy


@dataclasses.dataclass(frozen=True)
class Layout:
    """A complete strategy and its report.

    - `chosen`: the values of the fields that the user left open.
    - `candidates`: how many possible layouts were compared.
    """

    strategy: Strategy
    report: eqx.Module
    chosen: dict[str, float]
    candidates: int

    @property
    def fits(self) -> bool:
        """Whether the layout fits into the memory of the devices."""
        return float(locate(self.report, "memory.excess")[0]) <= 0


def best_layout(
    model: Model,
    system: System,
    table: dict[str, Any],
    phase: str = "training",
    relax: Relaxation | None = None,
    file: str = ARGUMENTS,
) -> Layout:
    """The strategy with the fields of `table`, and with the best layout of the system's devices for the
    degrees left open.

    Open are those of tp, pp, dp and, of models with experts, ep and expert_tp that the table does not give,
    and in training the global batch (see `default_global_batch`). In inference the layouts are those that
    engines can run. The best layout is the fastest that fits memory, or where none fits the one that needs
    the least.

    **Raises:** `ConfigError` that names `file` for a bad value, or where no layout is possible, with the
    first rule that the likeliest strategy breaks.
    """
    strategy = starting_strategy(system, table, phase, file)
    inputs = Configuration(model, system, strategy, Exact() if relax is None else relax)
    enumerate_open = enumerate_candidates if phase == "training" else enumerate_layouts
    ranking = rank(inputs, enumerate_open(inputs, table), phase)
    best = ranking.strategy(inputs, 0)
    if "expert_tp" not in table and float(best.expert_tp) == float(best.tp):
        best = replace(best, {"expert_tp": 0.0})  # which stands for the same degree
    if not ranking.possible:
        _refuse(Configuration(model, system, best), table, phase, file)
    has_experts = any(layers.mixture is not None for layers in model.layers)
    fields = LAYOUT if has_experts else DEGREES
    fields = (*fields, "global_batch") if phase == "training" else fields
    chosen = {name: float(getattr(best, name)) for name in fields if name not in table}
    return Layout(best, ranking.report(0), chosen, ranking.possible)


def _refuse(likeliest: Configuration, table: dict[str, Any], phase: str, file: str) -> None:
    """Raises the error of the first rule that the likeliest layout breaks: with its degrees where the batch
    is too small for replicas that the table does not ask for.
    """
    try:
        check(likeliest.model, likeliest.system, likeliest.strategy, phase, file)
    except ConfigError as problem:
        if problem.key != "strategy.global_batch" or "dp" in table:
            raise
        degrees = ", ".join(f"{name} {float(getattr(likeliest.strategy, name)):g}" for name in DEGREES)
        found = f"{problem.found} in the likeliest layout ({degrees})"
        raise ConfigError(file, problem.key, found, problem.expected, problem.remedy) from None
