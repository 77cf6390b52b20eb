"""What a user leaves open of a strategy: which of all integer layouts of the devices is best.

One enumeration and one compiled program serve whoever asks: choices are weights over alternatives, so candidates that differ in
any field are rows of one batch.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from diffperf.estimate.phases import estimate
from diffperf.hardware.system import System
from diffperf.load import check, load_strategy
from diffperf.quantity import Scalar, locate, replace
from diffperf.relax import Exact, Relaxation
from diffperf.workload.configuration import Configuration
from diffperf.workload.model import Model
from diffperf.workload.rules import broken
from diffperf.workload.strategy import SCHEDULES, Strategy
from diffperf.workload.whole_numbers import divisors

DEGREES = ("tp", "pp", "dp")

BLOCK = 512  # candidates evaluated together: their intermediates stay in cache, and only one shape is ever compiled

# Where an open field is searched, beside what the rules allow; a field that is given is kept whatever it is.
UNEVEN = 1.05  # layers of the longest stage over the mean, at most
PART_OF_SEQUENCE = 4096  # tokens that a context-parallel rank keeps of a sequence, at least
MICRO_BATCHES = (1, 2, 4, 8)
SEARCHED = {
    "tp": "tp dividing the heads, within the innermost network tier",
    "pp": f"pp whose longest stage has at most {100 * UNEVEN - 100:.0f} % more layers than the mean",
    "cp": f"cp that leaves a rank {PART_OF_SEQUENCE:,} tokens of a sequence, or is 1",
    "ep": "ep dividing the experts",
    "expert_tp": "expert tp dividing tp",
    "schedule": "the schedules asked for",
    "virtual_stages": "virtual stages as even as the stages, with 1f1b",
    "micro_batch": f"micro-batches of {', '.join(map(str, MICRO_BATCHES))}",
    "recompute": "full recomputation or none, selective where attention scores are stored",
    "zero": "ZeRO 0 to 3, stages 2 and 3 without a pipeline",
}
FIELDS = ("tp", "pp", "cp", "dp", *list(SEARCHED)[3:])

# A number for every candidate, (candidates,), or weights over alternatives, (candidates, alternatives), by field of the strategy.
Columns = dict[str, np.ndarray]


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


# --- the candidates


def candidates(
    model: Model,
    system: System,
    table: dict[str, Any],
    strategy: Strategy,
    searched: Iterable[str] = DEGREES,
    schedules: Iterable[str] = ("1f1b",),
) -> Columns:
    """Every strategy whose degrees multiply to the number of devices, keeping the fields that `table` gives.

    Of the others, those of `searched` are as `SEARCHED` describes them, schedules are `schedules`, and dp is what tp, pp and cp
    leave; what is neither given nor searched is as in `strategy`. Where nothing works, it is what the user gave, for the rules to
    say what is wrong with it.
    """
    rows = start = {name: np.array([_position(getattr(strategy, name))]) for name in FIELDS}
    opened = [name for name in FIELDS if name in searched and name not in table]
    for name in FIELDS:
        if name == "dp":
            left = float(system.n_devices) / (rows["tp"] * rows["pp"] * rows["cp"])
            rows = rows | {"dp": left if "dp" in opened else np.broadcast_to(rows["dp"], left.shape)}
            rows = _kept(
                rows, (np.abs(rows["dp"] - left) <= 1e-4 * left) & (rows["dp"] == np.round(rows["dp"]))
            )
        elif name in opened:
            rows = _crossed(rows, name, _values(name, model, system, strategy, schedules))
            rows = _kept(rows, _sensible(name, model, rows))
    if not len(rows["dp"]):
        left = float(system.n_devices) / (start["tp"] * start["pp"] * start["cp"])
        rows = start | ({"dp": np.maximum(left, 1)} if "dp" in opened else {})
    return {name: _column(strategy, name, values, name in opened) for name, values in rows.items()}


def _values(
    name: str, model: Model, system: System, strategy: Strategy, schedules: Iterable[str]
) -> list[float]:
    """What an open field may be at all; of a choice, the positions of its alternatives."""
    ways, length = divisors(float(system.n_devices)), float(strategy.sequence_length)
    heads = [float(layers.heads) for layers in model.layers]
    experts = [round(float(layers.mixture.experts)) for layers in model.layers if layers.mixture is not None]
    match name:
        case "tp":
            return [
                way
                for way in ways
                if way <= float(system.network[0].size) and all(head % way == 0 for head in heads)
            ]
        case "pp":
            return ways
        case "cp":
            return [
                way for way in ways if way == 1 or (length % way == 0 and length / way >= PART_OF_SEQUENCE)
            ]
        case "ep":
            return divisors(math.gcd(*experts) or 1)
        case "expert_tp":
            return ways if experts else [0]
        case "schedule":
            return [SCHEDULES.index(schedule) for schedule in schedules]
        case "virtual_stages":
            return list(range(1, round(float(model.depth)) + 1))
        case "micro_batch":
            return list(MICRO_BATCHES)
        case "recompute":  # FlashAttention stores no scores, so selective recomputation is none
            return [0, 1, 2] if float(strategy.attention.standard) > 0 else [0, 2]
    return list(range(np.size(getattr(strategy, name))))


def _sensible(name: str, model: Model, rows: Columns) -> np.ndarray:
    """Which candidates to go on with once a field is set."""
    depth, chunks = float(model.depth), rows["pp"] * rows["virtual_stages"]
    even = (chunks <= depth) & (np.ceil(depth / chunks) * chunks <= UNEVEN * depth)
    pipeline = rows["pp"] > 1
    match name:
        case "pp":
            return even
        case "expert_tp":
            return rows["tp"] % np.maximum(rows["expert_tp"], 1) == 0
        case "schedule":
            return pipeline | (rows["schedule"] == rows["schedule"][:1])
        case "virtual_stages":
            return (rows["virtual_stages"] == 1) | (
                pipeline & even & (rows["schedule"] == SCHEDULES.index("1f1b"))
            )
        case "zero":
            return (rows["zero"] == 0) | ((rows["dp"] * rows["cp"] > 1) & ((rows["zero"] == 1) | ~pipeline))
    return np.ones(len(chunks), bool)


def _position(value: Any) -> float:
    """A number as it is; of weights, the position of the heaviest."""
    return float(np.argmax(value) if np.ndim(value) else value)


def _crossed(rows: Columns, name: str, values: list[float]) -> Columns:
    """Every row with every value of a field."""
    count = len(rows["tp"])
    return {other: np.repeat(column, len(values)) for other, column in rows.items()} | {
        name: np.tile(values, count).astype(float)
    }


def _kept(rows: Columns, which: np.ndarray) -> Columns:
    return {name: column[which] for name, column in rows.items()}


def _column(strategy: Strategy, name: str, values: np.ndarray, opened: bool) -> np.ndarray:
    """A field of every candidate as the estimator takes it: choices that were searched as weights, what is given as it is."""
    given = np.asarray(getattr(strategy, name))
    if not opened:
        return np.broadcast_to(given, (len(values), *given.shape))
    return (np.eye(len(given))[values.astype(int)] if given.ndim else values).astype(given.dtype)


# --- which of them is best


@dataclasses.dataclass(frozen=True)
class Ranking:
    """The best candidates, the best first, and how many there were.

    - `rows`, `reports`, `broken`: their fields, their reports, and how many rules they break, each with a leading axis.
    - `searched`, `possible`, `fitting`: all candidates, those that break no rule, and those of them that fit memory.
    """

    rows: Columns
    reports: eqx.Module
    broken: np.ndarray
    searched: int
    possible: int
    fitting: int

    def __len__(self) -> int:
        return len(self.broken)

    def strategy(self, inputs: Configuration, rank: int) -> Strategy:
        return placed(inputs.strategy, _take(self.rows, rank))

    def report(self, rank: int) -> eqx.Module:
        return _take(self.reports, rank)


def placed(strategy: Strategy, row: dict[str, Any]) -> Strategy:
    """The strategy with the fields of a candidate; they may be traced."""
    return dataclasses.replace(strategy, **row)


@partial(jax.jit, static_argnames="phase")
def _evaluate(inputs: Configuration, rows: Columns, phase: str):
    """Reports of a block of candidates, and how many rules each breaks."""

    def one(row):
        chosen = dataclasses.replace(inputs, strategy=placed(inputs.strategy, row))
        return estimate(chosen, phase), broken(chosen, phase)

    return jax.vmap(one)(rows)


def reports_of(inputs: Iterable[Configuration], phase: str) -> Iterator[eqx.Module]:
    """Reports of inputs alike but for their numbers, by the program that compares candidates: who has compared some waits for no
    other to compile."""
    for one in inputs:
        rows = {name: _column(one.strategy, name, np.zeros(BLOCK), False) for name in FIELDS}
        reports, _ = _evaluate(one, rows, phase)
        yield _take(jax.tree.map(np.asarray, reports), 0)


class _Evaluated(NamedTuple):
    """Candidates, and what came of them; `keys` is what they are ordered by, the most important first."""

    rows: Columns
    reports: eqx.Module
    broken: np.ndarray
    keys: tuple[np.ndarray, ...]


def _take(tree: Any, which: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[which], tree)


def _blocks(inputs: Configuration, rows: Columns, phase: str, by: str) -> Iterator[_Evaluated]:
    """Candidates block by block; the last block is filled up with its last row, which is cut off again."""
    count = len(rows["tp"])
    for start in range(0, count, BLOCK):
        block = _take(rows, np.minimum(np.arange(start, start + BLOCK), count - 1))
        reports, rules = jax.device_get(_evaluate(inputs, block, phase))
        yield _take(_Evaluated(block, reports, rules, _keys(block, reports, rules, by)), slice(count - start))


def _keys(rows: Columns, reports: eqx.Module, rules: np.ndarray, by: str) -> tuple[np.ndarray, ...]:
    """Possible ones first, of these the ones that fit memory; of the impossible ones those whose step takes few sequences."""
    excess, sequences = reports.memory.excess, rows["dp"] * rows["micro_batch"]
    value = np.where(excess <= 0, locate(reports, by)[0], excess)
    return rules, np.where(rules == 0, excess > 0, sequences), value, reports.memory.peak


def rank(
    inputs: Configuration,
    rows: Columns,
    phase: str = "training",
    by: str = "time",
    top: int = 1,
    progress: Callable[[int], None] = lambda candidates: None,
) -> Ranking:
    """The best `top` candidates by an output of the report, the smaller the better: of those that are possible and fit memory.

    Where none fits, the least too large come first; where none is possible, those that break the fewest rules. `progress` is called
    with the number of candidates each time some are done.
    """
    best, possible, fitting = None, 0, 0
    for block in _blocks(inputs, rows, phase, by):
        possible += int(np.sum(block.broken == 0))
        fitting += int(np.sum((block.broken == 0) & (block.reports.memory.excess <= 0)))
        seen = block if best is None else jax.tree.map(lambda *leaves: np.concatenate(leaves), best, block)
        best = _take(seen, np.lexsort(seen.keys[::-1])[:top])
        progress(len(block.broken))
    return Ranking(best.rows, best.reports, best.broken, len(rows["tp"]), possible, fitting)


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
    The best layout is the fastest that fits memory, or the least too large where none does.

    **Raises:** `ConfigError` for a bad value, or when no layout is possible: the first rule that the strategy breaks.
    """
    strategy = started(system, table, phase, file)
    inputs = Configuration(model, system, strategy, Exact() if relax is None else relax)
    found = rank(inputs, candidates(model, system, table, strategy), phase)
    best = found.strategy(inputs, 0)
    if not found.possible:
        check(model, system, best, phase, file)
    opened = [
        name
        for name in (*DEGREES, "global_batch")
        if name not in table and (name in DEGREES or phase == "training")
    ]
    return Layout(
        best, found.report(0), {name: float(getattr(best, name)) for name in opened}, found.possible
    )


def started(
    system: System, table: dict[str, Any], phase: str = "training", file: str = "command line"
) -> Strategy:
    """The strategy of `table`, in training with the default global batch where it gives none."""
    strategy = load_strategy(table, file)
    if phase == "training" and "global_batch" not in table:
        return replace(strategy, {"global_batch": default_global_batch(system, strategy)})
    return strategy
