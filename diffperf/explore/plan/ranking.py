"""The best of many candidates by an output of their reports, all evaluated by one compiled program."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Int

from diffperf.compiler import stored
from diffperf.estimate.phases import estimate
from diffperf.explore.plan.blocks import BLOCK, evaluate_in_blocks, take
from diffperf.explore.plan.candidates import Candidates, single_candidate
from diffperf.quantity import locate
from diffperf.workload.configuration import Configuration
from diffperf.workload.rules import broken
from diffperf.workload.strategy import Strategy


@dataclasses.dataclass(frozen=True)
class Ranking:
    """The best candidates, the best first, and how many there were.

    - `candidates`, `reports`, `broken`: their fields, their reports, and how many rules each breaks, with a
      leading axis.
    - `searched`, `possible`, `fitting`: how many candidates there were, how many of them break no rule, and
      how many of those fit memory.
    """

    candidates: Candidates
    reports: eqx.Module
    broken: Int[np.ndarray, " best"]
    searched: int
    possible: int
    fitting: int

    def __len__(self) -> int:
        return len(self.broken)

    def strategy(self, inputs: Configuration, rank: int) -> Strategy:
        """The strategy of a rank; `inputs` has the fields that are the same for all candidates."""
        return dataclasses.replace(inputs.strategy, **take(self.candidates, rank))

    def report(self, rank: int) -> eqx.Module:
        """The report of a rank."""
        return report_at(self.reports, rank)


def rank(
    inputs: Configuration,
    candidates: Candidates,
    phase: str = "training",
    by: str = "time",
    top: int = 1,
    progress: Callable[[int], None] = lambda candidates: None,
) -> Ranking:
    """The best `top` candidates by an output of the report, the smaller the better, of those that are
    possible and fit memory.

    Where none fits memory, those come first that need the least; where none is possible, those that break
    the fewest rules. `progress` is called with a number of candidates each time so many more are evaluated.
    """
    best, possible, fitting = None, 0, 0
    for block in _evaluated_blocks(inputs, candidates, phase, by):
        possible += int(np.sum(block.broken == 0))
        fitting += int(np.sum((block.broken == 0) & (_excess(block.reports) <= 0)))
        both = block if best is None else jax.tree.map(lambda *leaves: np.concatenate(leaves), best, block)
        # lexsort orders by its last key first.
        best = take(both, np.lexsort(both.sort_keys[::-1])[:top])
        progress(len(block.broken))
    assert best is not None, "there is at least one candidate"
    return Ranking(
        candidates=best.candidates,
        reports=best.reports,
        broken=best.broken,
        searched=_count(candidates),
        possible=possible,
        fitting=fitting,
    )


def report_of(configuration: Configuration, phase: str) -> eqx.Module:
    """The report of a configuration, by the program that compares candidates."""
    reports, _ = _evaluate(configuration, single_candidate(configuration.strategy, BLOCK), phase)
    return report_at(jax.device_get(reports), 0)


@stored("phase")
def _evaluate(
    inputs: Configuration, candidates: dict[str, Any], phase: str
) -> tuple[eqx.Module, Int[Array, " candidates"]]:
    """The reports of a block of candidates, and how many rules each candidate breaks."""

    def evaluate_candidate(fields: dict[str, Any]) -> tuple[eqx.Module, Int[Array, ""]]:
        strategy = dataclasses.replace(inputs.strategy, **fields)
        configuration = dataclasses.replace(inputs, strategy=strategy)
        return estimate(configuration, phase), broken(configuration, phase)

    return jax.vmap(evaluate_candidate)(candidates)


class _Evaluated(NamedTuple):
    """Candidates with their reports, the number of rules each breaks, and the keys that order them, the
    most important first."""

    candidates: Candidates
    reports: eqx.Module
    broken: Int[np.ndarray, " candidates"]
    sort_keys: tuple[np.ndarray, ...]


def _evaluated_blocks(
    inputs: Configuration, candidates: Candidates, phase: str, by: str
) -> Iterator[_Evaluated]:
    """The candidates block by block, each block with its reports."""

    def evaluate(block: Candidates) -> tuple[eqx.Module, Int[Array, " candidates"]]:
        return _evaluate(inputs, block, phase)

    for block, (reports, rules_broken) in evaluate_in_blocks(evaluate, candidates):
        yield _Evaluated(block, reports, rules_broken, _sort_keys(block, reports, rules_broken, by))


def _sort_keys(
    candidates: Candidates, reports: eqx.Module, rules_broken: np.ndarray, by: str
) -> tuple[np.ndarray, ...]:
    """The keys that order candidates, the most important first.

    Candidates that break no rule come first, and of these the ones that fit memory, by the output; those
    that do not fit by their excess. Of candidates that break rules, those whose step takes few sequences
    are the likeliest to be meant. Ties are settled by the peak of the memory.
    """
    excess, sequences = _excess(reports), candidates["dp"] * candidates["micro_batch"]
    value = np.where(excess <= 0, _output(reports, by), excess)
    likeliest = np.where(rules_broken == 0, excess > 0, sequences)
    return rules_broken, likeliest, value, _output(reports, "memory.peak")


def _output(reports: eqx.Module, path: str) -> np.ndarray:
    """An output of every report, by its path."""
    parent, _, name = path.rpartition(".")
    part = locate(reports, parent)[0] if parent else reports
    if not isinstance(getattr(type(part), name, None), property):
        return np.asarray(getattr(part, name))
    return np.asarray(jax.vmap(lambda single: locate(single, name)[0])(part))  # a total is of one report


def _excess(reports: eqx.Module) -> np.ndarray:
    """Excess of the peak over the memory of a device, as a share of that memory; at most 0 where the peak
    fits.
    """
    return _output(reports, "memory.excess")


def _count(candidates: Candidates) -> int:
    return len(candidates["tp"])


def report_at(reports: eqx.Module, index: int) -> eqx.Module:
    """One of many reports that are NumPy arrays, as an estimate would return it."""
    return jax.device_put(jax.tree.map(np.asarray, take(reports, index)))
