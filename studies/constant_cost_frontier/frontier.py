"""The best package at every budget, by the product's co-design, and what one more dollar buys there.

Counts of compute units and memory stacks are real numbers here: only then do the marginal values of an
optimum have to be equal. Numbers of dies and generations of memory are held, one combination after another; a
budget starts from the designs of the one before.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from diffperf.explore.codesign.cube import Cube
from diffperf.explore.codesign.descent import Descent
from diffperf.explore.codesign.problem import DesignProblem
from diffperf.explore.codesign.problem_file import load_problem
from diffperf.explore.codesign.scoring import Goal, Scorer
from diffperf.hardware.chip import Chip, chip
from diffperf.hardware.technology import MemoryTechnology
from diffperf.load import load
from diffperf.relax import Smooth

# What dollars are spent on, and the variable of each.
RESOURCES = {
    "compute": "design.compute_units",
    "SRAM": "design.cache",
    "stacks": "design.memory_stacks",
    "links": "design.network_bandwidth",
}
GENERATIONS = ("hbm2e", "hbm3", "hbm3e", "hbm4")
REFERENCE = "hbm3"  # the generation of the H100
DIES = (1, 2, 3, 4)
_MEMORY = "technology.memory."
# Sharpness of maximum and ceil. A smooth maximum of two equal numbers is 0.7 % above the exact one at 100,
# and 7 % at 10. Decoding is near such ties; training is not, but its whole waves of tiles make stairs of the
# number of compute units, which a lower sharpness turns into slopes.
SHARPNESS = {"decode": 100.0, "training": 10.0}
# Those stairs make local optima in the number of compute units: every budget of training starts from several
# multiples of the best number of the budget before.
_MULTIPLES = {"decode": np.ones(1), "training": np.geomspace(0.7, 1.45, 17)}
_FIRST_MULTIPLES = (0.5, 1.0, 2.0)  # of the baseline's compute units, where the first budget starts
_BLOCK = 64  # designs whose slopes are computed together
_LEAST_VALUE = 0.02  # per cent faster for 1 % more budget, below which nothing has a worth in budget
_FEASIBLE = 1e-3  # largest excess of a limit, relative to it, of a design that counts
_HOPELESS = 1e3  # scores worse than the logarithm of any time


class Slopes(NamedTuple):
    """A design's scores and their exact derivatives.

    - objective: log of the time (or of one over the rate) relative to the H100's; excess: of each constraint.
    - objective_slopes, excess_slopes: their derivatives with respect to every variable.
    - chip: floorplan and power.
    """

    objective: Float[Array, "*designs"]
    excess: Float[Array, "*designs constraints"]
    objective_slopes: Float[Array, "*designs n"]
    excess_slopes: Float[Array, "*designs constraints n"]
    chip: Chip


@dataclasses.dataclass(frozen=True)
class Design:
    """The best package of a budget with one generation of memory.

    - `x`: the vector of the problem's variables; `multipliers`: the solver's, of every constraint.
    - `whole_speed`: the exact speed over the H100's with units and stacks rounded, at about that cost.
    """

    problem: DesignProblem
    budget: float
    generation: str
    dies: int
    x: Float[np.ndarray, " n"]
    multipliers: Float[np.ndarray, " constraints"]
    slopes: Slopes
    whole_speed: float | None = None

    @property
    def speed(self) -> float:
        """How many times as fast as the H100, by the smooth estimate."""
        return float(np.exp(-self.slopes.objective))

    def amount(self, resource: str) -> float:
        """How much of a resource the package has, in the unit of its variable."""
        return float(self.x[index_of(self.problem, RESOURCES[resource])])

    @property
    def value_of_budget(self) -> float:
        """Per cent faster for 1 % more budget, by the solver's multiplier of the cost."""
        return float(self.multipliers[constraint_of(self.problem, "cost.manufacturing")])

    def cost_slope(self, path: str) -> float:
        """USD of the package for one unit more of a variable."""
        row = constraint_of(self.problem, "cost.manufacturing")
        return self.budget * float(self.slopes.excess_slopes[row, index_of(self.problem, path)])

    def worth(self, path: str) -> float | None:
        """USD of budget that one unit more of a variable, given for free, saves at the same speed.

        `None` where other limits hold the design back so much that a budget hardly buys speed.
        """
        if self.value_of_budget < _LEAST_VALUE:
            return None
        slope = float(self.slopes.objective_slopes[index_of(self.problem, path)])
        return -slope * self.budget / self.value_of_budget

    def marginal_values(self) -> dict[str, tuple[float, float]]:
        """Per cent faster for 1 % of the budget more, spent on one resource alone: (gross, net) of each.

        The net value charges what the resource takes of other limits that hold the design back (edge of the
        die, reticle, capacity) at their multipliers. At an optimum the net values of all resources within
        their bounds equal the multiplier of the cost.
        """
        cost = constraint_of(self.problem, "cost.manufacturing")
        others = np.delete(np.arange(len(self.multipliers)), cost)
        values = {}
        for name, path in RESOURCES.items():
            index = index_of(self.problem, path)
            slope = float(self.slopes.objective_slopes[index])
            charged = float(self.multipliers[others] @ self.slopes.excess_slopes[others, index])
            price = float(self.slopes.excess_slopes[cost, index])
            values[name] = (-slope / price, -(slope + charged) / price)
        return values

    def binding_limits(self, least: float = 1e-3) -> list[str]:
        """Quantities beside the cost whose limits hold the design back."""
        names = [constraint.quantity for constraint in self.problem.constraints]
        return [
            name
            for name, multiplier in zip(names, self.multipliers, strict=True)
            if multiplier > least and name != "cost.manufacturing"
        ]


def load_workload(name: str) -> DesignProblem:
    """The design problem of a workload beside this file."""
    return load_problem(Path(__file__).parent / f"{name}.toml")


def index_of(problem: DesignProblem, path: str) -> int:
    """The entry of a variable in the vector."""
    return [variable.path for variable in problem.variables].index(path)


def constraint_of(problem: DesignProblem, quantity: str) -> int:
    """The row of a constraint."""
    return [constraint.quantity for constraint in problem.constraints].index(quantity)


def fixed_numbers(problem: DesignProblem, generation: str, dies: int) -> dict[int, float]:
    """The number of dies, and every number of a generation of memory that is a variable of the problem."""
    memory = load(MemoryTechnology, generation)
    numbers = {
        index: float(getattr(memory, variable.path.removeprefix(_MEMORY)))
        for index, variable in enumerate(problem.variables)
        if variable.path.startswith(_MEMORY)
    }
    return numbers | {index_of(problem, "design.dies"): float(dies)}


class Tracer:
    """Follows the best designs of a problem along budgets, for all generations and numbers of dies."""

    def __init__(
        self,
        problem: DesignProblem,
        generations: Sequence[str] = GENERATIONS,
        dies: Sequence[int] = DIES,
    ):
        self.sharpness, self.multiples = SHARPNESS[problem.phase], _MULTIPLES[problem.phase]
        self.problem = problem
        self.kinds = [(generation, count) for generation in generations for count in dies]
        # Only what the dollars are spent on is free, and all of it is real.
        every = Cube.of(problem.vector, [])
        free = np.sort([index_of(problem, path) for path in RESOURCES.values()])
        cube = Cube(every.reals.take(free), (), every.entries)
        self.scorer = Scorer(problem, cube, block=64)
        self._slopes = jax.jit(jax.vmap(self._slopes_of, in_axes=(0, None)))

    def _slopes_of(self, x: Float[Array, " n"], limits: Float[Array, " constraints"]) -> Slopes:
        """Scores and slopes of one design."""

        def scores(x: Float[Array, " n"]) -> tuple[Array, Array]:
            outcome = self.problem.outcome(x, Smooth(jnp.asarray(self.sharpness)))
            objective, excess = self.problem.score(outcome, limits)
            both = jnp.concatenate([objective[None], excess])
            return both, both

        jacobian, both = jax.jacrev(scores, has_aux=True)(x)
        candidate = self.problem.vector.candidate(x)
        made = chip(candidate.design, candidate.technology, candidate.system.accelerator)
        return Slopes(both[0], both[1:], jacobian[0], jacobian[1:], made)

    def slopes(self, x: Float[np.ndarray, "designs n"], limits: Float[np.ndarray, " constraints"]) -> Slopes:
        """Scores and slopes of designs, in blocks of one size, so that one program serves all."""
        blocks = []
        for begin in range(0, len(x), _BLOCK):
            block = x[begin : begin + _BLOCK]
            padded = jnp.asarray(np.resize(block, (_BLOCK, x.shape[1])))
            slopes = jax.device_get(self._slopes(padded, jnp.asarray(limits)))
            blocks.append(jax.tree.map(lambda leaf, count=len(block): leaf[:count], slopes))
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *blocks)

    def trace(self, budgets: Sequence[float]) -> list[list[Design]]:
        """For each budget (USD), rising or falling, the best design of every generation that has one."""
        limits, traced = self.problem.limits, []
        starts = [self._starts(kind) for kind in self.kinds]
        for budget in budgets:
            limits[constraint_of(self.problem, "cost.manufacturing")] = budget
            designs = [
                self._best_of_kind(kind, np.stack(start), limits.copy(), budget)
                for kind, start in zip(self.kinds, starts, strict=True)
            ]
            starts = [self._spread(design.x) for design in designs]
            traced.append(_fastest_of_generations(designs))
        return traced

    def _starts(self, kind: tuple[str, int]) -> list[np.ndarray]:
        """Where the first budget starts: the baseline, and multiples of its compute units."""
        x = np.array(self.problem.vector.start)
        for index, number in fixed_numbers(self.problem, *kind).items():
            x[index] = number
        return [start for scale in _FIRST_MULTIPLES for start in self._spread(self._scaled(x, scale))]

    def _spread(self, x: np.ndarray) -> list[np.ndarray]:
        """A design at multiples of its compute units."""
        return [self._scaled(x, multiple) for multiple in self.multiples]

    def _scaled(self, x: np.ndarray, multiple: float) -> np.ndarray:
        """A design with a multiple of its compute units."""
        scaled, units = x.copy(), index_of(self.problem, RESOURCES["compute"])
        bounds = self.problem.bounds
        scaled[units] = np.clip(scaled[units] * multiple, bounds.low[units], bounds.high[units])
        return scaled

    def _best_of_kind(
        self,
        kind: tuple[str, int],
        starts: Float[np.ndarray, "starts n"],
        limits: Float[np.ndarray, " constraints"],
        budget: float,
    ) -> Design:
        """The best of descents from some starts: one that keeps all limits, or that nearest to them."""
        descent = Descent(self.scorer, limits, Goal.of(self.problem))
        exact = np.zeros(len(limits))
        x = np.stack([self._descended(descent, start, exact) for start in starts])
        slopes = self.slopes(x, limits)
        beyond = np.maximum(slopes.excess.max(axis=1) - _FEASIBLE, 0.0)
        row = int(np.argmin(np.where(beyond > 0, _HOPELESS * (1 + beyond), slopes.objective)))
        own = jax.tree.map(lambda values: values[row], slopes)
        multipliers = descent.ended(x[row], exact, self.sharpness).multipliers
        return Design(self.problem, budget, *kind, x[row], multipliers, own)

    def _descended(self, descent: Descent, x: np.ndarray, margins: np.ndarray) -> np.ndarray:
        """The optimum near a start, at a sharpness that rises to that of the study."""
        for sharpness in (self.sharpness / 4, self.sharpness):
            x = descent.solve(x, margins, sharpness)
        return x

    def with_whole_speeds(self, designs: Sequence[Design]) -> list[Design]:
        """The designs with their exact speeds at whole numbers of units and stacks."""
        x = np.stack([design.x for design in designs])
        whole = [index_of(self.problem, RESOURCES[name]) for name in ("compute", "stacks")]
        x[:, whole] = np.round(x[:, whole])
        speeds = np.exp(-self.scorer.exact(x, self.problem.limits).values[:, 0])
        pairs = zip(designs, speeds, strict=True)
        return [dataclasses.replace(design, whole_speed=float(speed)) for design, speed in pairs]


def _fastest_of_generations(designs: Sequence[Design]) -> list[Design]:
    """The fastest number of dies of each generation, among designs that keep every limit."""
    best: dict[str, Design] = {}
    for design in designs:
        feasible = float(design.slopes.excess.max()) <= _FEASIBLE
        if feasible and (design.generation not in best or design.speed > best[design.generation].speed):
            best[design.generation] = design
    return list(best.values())
