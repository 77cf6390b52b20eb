"""Scores of designs of one problem: exact ones of many at once, and smooth ones with their derivatives."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from diffperf.batch_last import vmap_last
from diffperf.compiler import stored_closure
from diffperf.explore.codesign.cube import Cube
from diffperf.explore.codesign.problem import DesignProblem, Outcome
from diffperf.flat_program import flattened_calls
from diffperf.relax import Exact, Smooth
from diffperf.shared_values import compute_once

# Derivatives by at most so many variables take about as long without optimized code: 0.7 in place of 0.6 ms
# by 6 variables, but 5 ms more by 39.
_FEW_VARIABLES = 16


@dataclasses.dataclass(frozen=True)
class Ranking:
    """Exact scores of some designs.

    - `violation`: the length of the excesses above 0, and one more for every broken rule of layouts; 0 is
      feasible.
    - `objective`: `sense` · log of the objective over the baseline's.
    - `order`: the least violating design first, and of equals the best objective first.
    """

    violation: Float[np.ndarray, " designs"]
    objective: Float[np.ndarray, " designs"]

    @property
    def order(self) -> Int[np.ndarray, " designs"]:
        """Indices of the designs, the best first."""
        return np.lexsort((self.objective, self.violation))

    def better_than(self, other: "Ranking") -> Bool[np.ndarray, " designs"]:
        """Whether each design violates less than the other ranking's design of its row, or as much with a
        better objective.
        """
        less = self.violation < other.violation
        return less | ((self.violation == other.violation) & (self.objective < other.objective))

    def equals(self, other: "Ranking") -> Bool[np.ndarray, " designs"]:
        """Whether each design has the same violation and objective as the other ranking's of its row."""
        return (self.violation == other.violation) & (self.objective == other.objective)

    def merit(self, rows: Bool[np.ndarray, " designs"]) -> Float[np.ndarray, " rows"]:
        """The number that evolution lowers: the violation of designs that have one, else the objective."""
        violation, objective = self.violation[rows], self.objective[rows]
        return np.where(violation > 0, violation, objective)

    def replaced(self, rows: Bool[np.ndarray, " designs"], by: "Ranking") -> "Ranking":
        """These scores, but those of another ranking in some rows."""
        return Ranking(
            np.where(rows, by.violation, self.violation), np.where(rows, by.objective, self.objective)
        )

    def take(self, rows: Int[np.ndarray, " rows"]) -> "Ranking":
        """The scores of some designs."""
        return Ranking(self.violation[rows], self.objective[rows])


@dataclasses.dataclass(frozen=True)
class Goal:
    """The score that a search minimizes, and the constraints that it keeps: all of the problem's, or some.

    - `rows`: 0 to minimize the objective, 1 + i to minimize the excess of constraint i; of several, the sum.
    - `constraints`: the indices of the constraints that have to hold.
    """

    rows: tuple[int, ...]
    constraints: tuple[int, ...]

    @classmethod
    def of(cls, problem: DesignProblem) -> "Goal":
        """The objective under all constraints."""
        return cls((0,), tuple(range(len(problem.constraints))))

    def of_rows(self, values: Float[np.ndarray, "*rest outputs"]) -> Float[np.ndarray, "*rest"] | np.floating:
        """What is minimized, of scores whose last axis is that of the objective and the excesses."""
        return values[..., list(self.rows)].sum(axis=-1)


class ExactScores(NamedTuple):
    """Exact scores of some designs.

    - `values`: `sense` · log of the objective over the baseline's, then the excess of every constraint.
    - `broken`: how many rules of layouts they break.
    """

    values: Float[np.ndarray, "designs outputs"]
    broken: Float[np.ndarray, " designs"]

    def ranking(self, goal: Goal) -> Ranking:
        """Violation and objective of each design for a goal, infinite for a design without a finite score."""
        excess = self.values[:, 1:][:, list(goal.constraints)]
        violation = np.linalg.norm(np.maximum(excess, 0), axis=1) + self.broken
        objective = np.asarray(goal.of_rows(self.values))
        return Ranking(
            np.where(np.isfinite(violation), violation, np.inf),
            np.where(np.isfinite(objective), objective, np.inf),
        )


class Smoothed(NamedTuple):
    """One design's smooth scores and their derivatives by the shares of its real variables' ranges.

    - `values`: `sense` · log of the objective over the baseline's, then the excess of every constraint.
    - `slopes`: the derivatives, (1 + constraints, relaxed): by the real variables, then by whole numbers that
      can be taken for real ones.
    """

    values: Float[np.ndarray, " outputs"]
    slopes: Float[np.ndarray, "outputs relaxed"]


class Scorer:
    """Scores designs of a problem under limits that need not be the problem's own; exact ones in blocks of
    one size, so that one program serves any number of designs.
    """

    def __init__(self, problem: DesignProblem, cube: Cube, block: int):
        self.problem, self.cube, self.block = problem, cube, block
        self.outcome = stored_closure(self._outcome, problem.digest)
        # Both take arrays of NumPy as well, which are faster to pass than to convert.
        self._exact_block: Callable[..., tuple[Array, Array]] = stored_closure(
            self._exact, problem.digest, often=True
        )
        # A search takes some hundreds of derivatives, and waits for their program longer than for them, but
        # for those by many variables.
        self._with_slopes: Callable[..., tuple[Array, Array]] = stored_closure(
            self._sloped, problem.digest, often=True, least_effort=len(cube.relaxed) <= _FEW_VARIABLES
        )
        self.evaluations = 0  # estimates so far, smooth and exact

    # The functions of the compiled programs.

    def _outcome(self, x: Array) -> Outcome:
        return self.problem.outcome(x, Exact())

    def _exact(self, designs: Array, limits: Array) -> tuple[Array, Array]:
        """Scores, and numbers of broken rules."""

        def of_one(x: Array) -> tuple[Array, Array]:
            return self.problem.scores(x, limits, Exact()), self.problem.broken_rules(x)

        scores, rules = vmap_last(of_one)(designs.T)
        return scores.T, rules

    def _sloped(self, relaxed: Array, x: Array, limits: Array, sharpness: Array) -> tuple[Array, Array]:
        """Smooth scores of a design whose real and relaxed variables are given, and their derivatives."""

        def twice(relaxed: Array) -> tuple[Array, Array]:
            design = x.at[self.cube.relaxed.entries].set(relaxed)
            values = self.problem.scores(design, limits, Smooth(sharpness))
            return values, values

        forwards = len(self.cube.relaxed) <= len(self.problem.constraints)
        differentiate = jax.jacfwd if forwards else jax.jacrev
        slopes, values = compute_once(differentiate(flattened_calls(twice), has_aux=True))(relaxed)
        return values, slopes

    def compile_slopes(self) -> None:
        """Compiles the derivatives, which only descents need: beside the first stages."""
        with jax.enable_x64(True):
            if len(self.cube.relaxed):
                self._smooth(self.problem.vector.start, self.problem.limits, 100.0)

    def slopes_are_stored(self) -> bool:
        """Whether the derivatives need no compilation."""
        with jax.enable_x64(True):
            start = self.problem.vector.start
            return self._with_slopes.is_stored(*self._arguments(start, self.problem.limits, 100.0))

    def trace_outcome(self) -> None:
        """Traces the report of one design, which only the answer needs."""
        with jax.enable_x64(True):
            self.outcome(jnp.asarray(self.problem.vector.start))

    def smooth(
        self, x: Float[np.ndarray, " n"], limits: Float[np.ndarray, " constraints"], sharpness: float
    ) -> Smoothed:
        """Smooth scores of one design and their slopes."""
        self.evaluations += 1
        return self._smooth(x, limits, sharpness)

    def _smooth(self, x: np.ndarray, limits: np.ndarray, sharpness: float) -> Smoothed:
        """Smooth scores of one design and their slopes, without a count of the evaluation."""
        values, slopes = jax.device_get(self._with_slopes(*self._arguments(x, limits, sharpness)))
        return Smoothed(values, slopes * self.cube.relaxed.slope(x))

    def _arguments(self, x: np.ndarray, limits: np.ndarray, sharpness: float) -> tuple[np.ndarray, ...]:
        """The arguments of the program of smooth scores."""
        return x[self.cube.relaxed.entries], x, limits, np.asarray(sharpness, dtype=float)

    def exact(
        self, x: Float[np.ndarray, "designs n"], limits: Float[np.ndarray, " constraints"]
    ) -> ExactScores:
        """Exact scores of any number of designs, none included."""
        self.evaluations += len(x)
        count = len(x)
        if not count:
            return ExactScores(np.empty((0, 1 + len(self.problem.constraints))), np.empty(0))
        padded = x[np.arange(-(-count // self.block) * self.block) % count]
        blocks = [
            jax.device_get(self._exact_block(block, limits))
            for block in np.split(padded, len(padded) // self.block)
        ]
        values, broken = (np.concatenate(parts)[:count] for parts in zip(*blocks, strict=True))
        return ExactScores(values, broken)
