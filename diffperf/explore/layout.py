"""The degrees a user leaves open: which integer layout of the devices is best."""

import dataclasses
import itertools
from functools import partial
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Bool, Float

from diffperf.explore.inputs import Inputs
from diffperf.hardware.system import System
from diffperf.load import check, load_strategy
from diffperf.quantity import Scalar, replace
from diffperf.relax import Exact, Relaxation
from diffperf.workload.model import Model
from diffperf.workload.rules import feasible
from diffperf.workload.strategy import Strategy

DEGREES = ("tp", "pp", "dp")


@dataclasses.dataclass(frozen=True)
class Layout:
    """A complete strategy, its report, and how it came about.

    - `chosen`: the values found for what the user left open.
    - `candidates`: how many possible layouts were compared.
    """

    strategy: Strategy
    report: eqx.Module
    chosen: dict[str, float]
    candidates: int

    @property
    def fits(self) -> bool:
        return float(self.report.memory.excess) <= 0


def default_global_batch(system: System, strategy: Strategy) -> Scalar:
    """Sequences per training step where nobody says: one micro-batch per device.

    It does not depend on the layout, every layout divides it, and it is how Korthikanti et al. scale their largest models
    (arXiv 2205.05198, Table 3: 280 sequences on 280 GPUs, 512 on 512).
    """
    return system.n_devices * strategy.micro_batch


def divisors(number: float) -> list[int]:
    """Whole divisors of a whole number, ascending."""
    whole = round(number)
    small = [d for d in range(1, int(whole**0.5) + 1) if whole % d == 0]
    return small + [whole // d for d in reversed(small) if d * d != whole]


def layouts(model: Model, system: System, table: dict[str, Any], strategy: Strategy) -> Float[np.ndarray, "layouts 3"]:
    """Degrees (tp, pp, dp) whose product is the number of devices, keeping those that `table` gives.

    Open degrees: tp divides the heads and stays in the innermost network tier, pp leaves every chunk a layer, dp takes the rest.
    """
    devices, depth = float(system.n_devices), float(model.depth)
    heads = [float(layers.heads) for layers in model.layers]
    ways = divisors(devices)

    def options(name: str, possible) -> list[float]:
        return [float(getattr(strategy, name))] if name in table else [d for d in ways if possible(d)]

    tensor = options("tp", lambda tp: tp <= float(system.network[0].size) and all(head % tp == 0 for head in heads))
    pipeline = options("pp", lambda pp: pp * float(strategy.virtual_stages) <= depth)
    rows = []
    for tp, pp in itertools.product(tensor, pipeline):
        dp = float(strategy.dp) if "dp" in table else devices / (tp * pp)
        if abs(tp * pp * dp - devices) <= 1e-4 * devices and dp == round(dp):
            rows.append((tp, pp, dp))
    return np.array(rows or [_as_given(devices, table, strategy)])


def _as_given(devices: float, table: dict[str, Any], strategy: Strategy) -> tuple[float, float, float]:
    """Where no layout works: what the user gave, for the rules to say what is wrong with it."""
    tp, pp = float(strategy.tp), float(strategy.pp)
    return tp, pp, float(strategy.dp) if "dp" in table else max(1.0, devices / (tp * pp))


@partial(jax.jit, static_argnames="phase")
def _evaluate(inputs: Inputs, degrees: Float[Array, "layouts 3"], phase: str, relax: Relaxation):
    """Reports and feasibility of all layouts at once."""

    def one(row):
        strategy = eqx.tree_at(lambda s: (s.tp, s.pp, s.dp), inputs.strategy, tuple(row))
        placed = Inputs(inputs.model, inputs.system, strategy)
        return placed.estimate(phase, relax), feasible(placed.model, placed.system, strategy, phase)

    return jax.vmap(one)(degrees)


def _padded(rows: np.ndarray) -> np.ndarray:
    """The rows repeated up to a power of two, so that few shapes are ever compiled."""
    size = max(16, 1 << (len(rows) - 1).bit_length())
    return rows[np.minimum(np.arange(size), len(rows) - 1)]


def _order(report: eqx.Module, possible: Bool[np.ndarray, " layouts"], even: Bool[np.ndarray, " layouts"]) -> np.ndarray:
    """Best first: possible, fits memory, stages of equal depth, then the fastest, or the least too large where none fits."""
    excess, time = np.asarray(report.memory.excess), np.asarray(report.time)
    fits = excess <= 0
    return np.lexsort((np.where(fits, time, excess), ~even, ~fits, ~possible))


def best_layout(
    model: Model,
    system: System,
    table: dict[str, Any],
    phase: str = "training",
    relax: Relaxation | None = None,
    file: str = "command line",
) -> Layout:
    """The strategy of `table` (fields of `Strategy`), with its open degrees set to the best layout of the system's devices.

    Open are those of tp, pp and dp that the table does not give, and in training the global batch (see `default_global_batch`).
    The best layout is the fastest that fits memory, or the least too large where none does. One compiled evaluation of all layouts.

    **Raises:** `ConfigError` for a bad value, or when no layout is possible: the first rule that the strategy breaks.
    """
    relax = Exact() if relax is None else relax
    strategy = load_strategy(table, file)
    if phase == "training" and "global_batch" not in table:
        strategy = replace(strategy, {"global_batch": default_global_batch(system, strategy)})
    rows = layouts(model, system, table, strategy)

    padded = np.asarray(_padded(rows), dtype=strategy.tp.dtype)
    reports, possible = jax.device_get(_evaluate(Inputs(model, system, strategy), padded, phase, relax))
    reports = jax.tree.map(lambda leaf: leaf[: len(rows)], reports)
    possible = possible[: len(rows)]
    even = np.array([float(model.depth) % (pp * float(strategy.virtual_stages)) == 0 for _, pp, _ in rows])
    best = _order(reports, possible, even)[0]

    placed = replace(strategy, dict(zip(DEGREES, rows[best], strict=True)))
    if not possible[best]:
        check(model, system, placed, phase, file)
    opened = [name for name in (*DEGREES, "global_batch") if name not in table and (name in DEGREES or phase == "training")]
    chosen = {name: float(getattr(placed, name)) for name in opened}
    return Layout(placed, jax.tree.map(lambda leaf: leaf[best], reports), chosen, int(possible.sum()))
