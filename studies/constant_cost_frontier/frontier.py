"""The best package at every budget, by the product's co-design, and what one more dollar buys there.

Counts of compute units and memory stacks are real numbers here, as in the relaxed stage of `diffperf
codesign`: only then do the marginal values of an optimum have to be equal. Numbers of dies and generations of
memory are held, one combination in each start of the solver; a budget starts from the designs of the one
before.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from diffperf.explore.codesign.lagrangian import Fixed, Schedule, Solver, State
from diffperf.explore.codesign.problem import DesignProblem
from diffperf.explore.codesign.problem_file import load_problem
from diffperf.explore.codesign.rounding import Combination, hold
from diffperf.explore.codesign.scoring import Scorer
from diffperf.hardware.chip import Chip, chip
from diffperf.hardware.technology import MemoryTechnology
from diffperf.load import load

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
_INNER = 60
# The logistic function is flat at the ends of a range: a design that ends there starts the next budget within
# 98 % of the range, σ(±4).
_WITHIN = 4.0
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


def fixed_numbers(problem: DesignProblem, generation: str, dies: int) -> Combination:
    """The number of dies, and every number of a generation of memory that is a variable of the problem."""
    memory = load(MemoryTechnology, generation)
    numbers = {
        index: float(getattr(memory, variable.path.removeprefix(_MEMORY)))
        for index, variable in enumerate(problem.variables)
        if variable.path.startswith(_MEMORY)
    }
    return numbers | {index_of(problem, "design.dies"): float(dies)}


class Tracer:
    """Follows the best designs of a problem along budgets, all generations and numbers of dies at once."""

    def __init__(
        self,
        problem: DesignProblem,
        generations: Sequence[str] = GENERATIONS,
        dies: Sequence[int] = DIES,
    ):
        self.sharpness, self.multiples = SHARPNESS[problem.phase], _MULTIPLES[problem.phase]
        self.problem, self.scorer = problem, Scorer(problem, block=1)
        self.solver = Solver(self.scorer.smooth, problem.bounds, _INNER)
        self.kinds = [(generation, count) for generation in generations for count in dies]
        combinations = [fixed_numbers(problem, *kind) for kind in self.kinds] * len(self.multiples)
        count = len(combinations)
        self.fixed = hold(combinations, len(problem.vector.start), count)
        x = np.tile(problem.vector.start, (count, 1))
        self.start = State(self._encoded(x), jnp.zeros((count, len(problem.constraints))))
        self._slopes = jax.jit(jax.vmap(self._slopes_of, in_axes=(0, None)))

    def _slopes_of(self, x: Float[Array, " n"], limits: Float[Array, " constraints"]) -> Slopes:
        """Scores and slopes of one design."""

        def scores(x: Float[Array, " n"]) -> tuple[Array, Array]:
            objective, excess = self.scorer.smooth(x, jnp.asarray(self.sharpness), limits)
            both = jnp.concatenate([objective[None], excess])
            return both, both

        jacobian, both = jax.jacrev(scores, has_aux=True)(x)
        candidate = self.problem.vector.candidate(x)
        made = chip(candidate.design, candidate.technology, candidate.system.accelerator)
        return Slopes(both[0], both[1:], jacobian[0], jacobian[1:], made)

    def _spread(self, designs: Sequence[Design]) -> State:
        """Starts at multiples of the compute units of the best design of every kind."""
        x, multipliers = (
            np.tile(np.stack([getattr(design, name) for design in designs]), (len(self.multiples), 1))
            for name in ("x", "multipliers")
        )
        x[:, index_of(self.problem, RESOURCES["compute"])] *= np.repeat(self.multiples, len(designs))
        return State(self._encoded(x), jnp.asarray(multipliers))

    def _encoded(self, x: Float[np.ndarray, "starts n"]) -> Float[Array, "starts n"]:
        """Unbounded variables of some designs, moved to where the ends of their ranges are not yet flat."""
        bounds = self.problem.bounds
        inside = np.clip(x, np.asarray(bounds.low), np.asarray(bounds.high))
        return jnp.clip(jax.vmap(bounds.encode)(jnp.asarray(inside)), -_WITHIN, _WITHIN)

    def trace(self, budgets: Sequence[float]) -> list[list[Design]]:
        """For each budget (USD), rising or falling, the best design of every generation that has one."""
        state, limits, traced = self.start, self.problem.limits, []
        anneal = Schedule(outer=25, inner=_INNER, sharpness=(5.0, self.sharpness))
        for budget in budgets:
            limits[constraint_of(self.problem, "cost.manufacturing")] = budget
            if not traced:
                state = self.solver.solve(state, self.fixed, jnp.asarray(limits), anneal)
                state = self._spread(self._best_of_kinds(state, limits, budget))
            designs = self._best_of_kinds(self._descend(state, limits), limits, budget)
            state = self._spread(designs)
            traced.append(_fastest_of_generations(designs))
        return traced

    def _descend(self, state: State, limits: Float[np.ndarray, " constraints"]) -> State:
        """The optimum near every start; where there are stairs, at first with its compute units held."""
        final, penalty = (self.sharpness, self.sharpness), (20.0, 1000.0)
        far = Schedule(outer=20, inner=_INNER, sharpness=final, penalty=penalty, step=(0.05, 1e-5))
        if len(self.multiples) == 1:
            return self.solver.solve(state, self.fixed, jnp.asarray(limits), far)
        units = index_of(self.problem, RESOURCES["compute"])
        x = jax.vmap(self.problem.bounds.decode)(state.z)
        with_units = Fixed(
            self.fixed.mask.at[:, units].set(True), self.fixed.values.at[:, units].set(x[:, units])
        )
        state = self.solver.solve(state, with_units, jnp.asarray(limits), far)
        near = dataclasses.replace(far, step=(0.01, 1e-5))
        return self.solver.solve(state, self.fixed, jnp.asarray(limits), near)

    def _best_of_kinds(
        self, state: State, limits: Float[np.ndarray, " constraints"], budget: float
    ) -> list[Design]:
        """The best start of every kind: one that keeps all limits, or else the one nearest to them."""
        x = np.asarray(self.fixed.apply(jax.vmap(self.problem.bounds.decode)(state.z)))
        slopes = jax.device_get(self._slopes(jnp.asarray(x), jnp.asarray(limits)))
        beyond = np.maximum(slopes.excess.max(axis=1) - _FEASIBLE, 0.0)
        score = np.where(beyond > 0, _HOPELESS * (1 + beyond), slopes.objective)
        designs = []
        for number, (generation, dies) in enumerate(self.kinds):
            rows = np.arange(number, len(x), len(self.kinds))
            row = int(rows[np.argmin(score[rows])])
            own = jax.tree.map(lambda values, row=row: values[row], slopes)
            multipliers = np.asarray(state.multipliers[row])
            designs.append(Design(self.problem, budget, generation, dies, x[row], multipliers, own))
        return designs

    def with_whole_speeds(self, designs: Sequence[Design]) -> list[Design]:
        """The designs with their exact speeds at whole numbers of units and stacks."""
        x = np.stack([design.x for design in designs])
        whole = [index_of(self.problem, RESOURCES[name]) for name in ("compute", "stacks")]
        x[:, whole] = np.round(x[:, whole])
        speeds = np.exp(-self.scorer.rank(x, self.problem.limits).objective)
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
