"""The layouts that no other beats in both time and memory, of all that a plan compares."""

import dataclasses
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float

from diffperf.errors import ARGUMENTS
from diffperf.explore.plan.candidates import starting_strategy
from diffperf.explore.plan.plan import Search
from diffperf.explore.plan.ranking import rank
from diffperf.explore.plan.serving_layouts import enumerate_layouts
from diffperf.hardware.system import System
from diffperf.load import check
from diffperf.quantity import locate
from diffperf.relax import Exact
from diffperf.workload.configuration import Configuration
from diffperf.workload.model import Model
from diffperf.workload.strategy import Strategy

_MOST = 50_000  # layouts that are held in memory, the best by time first


@dataclasses.dataclass(frozen=True)
class Front:
    """Layouts by time and memory.

    - `time`, `peak`: s, and bytes of a device, of every layout that is possible and fits memory.
    - `best`: strategy and report of those that no other beats in both, the fastest first.
    - `searched`: how many layouts there are.
    """

    time: Float[np.ndarray, " layouts"]
    peak: Float[np.ndarray, " layouts"]
    best: list[tuple[Strategy, eqx.Module]]
    searched: int


def layout_front(
    model: Model, system: System, table: dict[str, Any], phase: str = "training", file: str = ARGUMENTS
) -> Front:
    """All layouts of a system's devices that keep the fields of `table`: in training those that
    `diffperf plan` compares, in inference all of tensor, pipeline, data and expert parallelism.

    **Raises:** `ConfigError` that names `file` for a bad value, or where no layout is possible.
    """
    if phase == "training":
        search = Search.of(model, system, table, file=file)
        inputs, candidates = search.inputs, search.candidates
    else:
        inputs = Configuration(model, system, starting_strategy(system, table, phase, file), Exact())
        candidates = enumerate_layouts(inputs, table)
    ranking = rank(inputs, candidates, phase, top=_MOST)
    if not ranking.possible:
        check(model, system, ranking.strategy(inputs, 0), phase, file)
    fitting = slice(ranking.fitting)  # those that fit come first, by their time
    time = np.asarray(locate(ranking.reports, "time")[0])[fitting]
    peak = np.asarray(locate(ranking.reports, "memory.peak")[0])[fitting]
    leaner = peak < np.concatenate([[np.inf], np.minimum.accumulate(peak)[:-1]])
    best = [(ranking.strategy(inputs, int(i)), ranking.report(int(i))) for i in np.flatnonzero(leaner)]
    return Front(time, peak, best, ranking.searched)
