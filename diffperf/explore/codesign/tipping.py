"""Conditions under which a runner-up would win: the change of one input that it takes.

By the envelope theorem, the optimum of each design moves with an input by the slope of its Lagrangian, limits
held, so that prices count through the budget that they fill. To first order in the input's logarithm the gap
closes where gap + (slope of the runner-up − slope of the best) · log(factor) = 0.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from diffperf.compiler import digest_of, stored_closure
from diffperf.explore.codesign.descent import Descended
from diffperf.explore.codesign.problem import DesignProblem
from diffperf.flat_program import flattened_calls
from diffperf.quantity import Choice, Quantity, locate, replace, walk
from diffperf.relax import Smooth
from diffperf.shared_values import compute_once

MOST_FACTOR = 3.0  # beyond, a change to first order says nothing
_SHOWN = 3  # conditions of a runner-up
_SHARPNESS = 1000.0
_NO_SLOPE = 1e-6  # of the log of the objective by the log of an input
# Shares above this, such as yields and efficiencies, are compared by what they lose, 1 − share: from 0.98 to
# 0.99 the loss halves.
_MOSTLY = 0.5
# What nobody can change: the geometry of wafers and of exposures, for which fabs are built.
_GIVEN = ("wafer_diameter", "edge_loss", "scribe_lane", "reticle")
_VARIED = ("technology", "system")  # the parts of a candidate whose inputs may turn out otherwise


@dataclasses.dataclass(frozen=True)
class Condition:
    """An input that would have to have another value.

    - `path`: of the input; `owner`: the option that it belongs to where the designs hold different ones,
      such as hbm3e, else empty.
    - `value`: in the inputs now; `needed`: what would make both designs equally good, to first order.
    """

    path: str
    owner: str
    declared: Quantity
    value: float
    needed: float

    @property
    def factor(self) -> float:
        """The needed value over the present one."""
        return self.needed / self.value

    @property
    def change(self) -> float:
        """Size of the change: the absolute logarithm of the factor, or for a share close to 1 that of the
        factor of its rest.
        """
        if self.declared.unit == "" and self.declared.bounds[1] == 1 and self.value > _MOSTLY:
            return abs(float(np.log(max(1 - self.needed, _NO_SLOPE) / max(1 - self.value, _NO_SLOPE))))
        return abs(float(np.log(self.factor)))


class Tipping:
    """Slopes of the optimum of designs of one problem, by the logarithm of every input."""

    def __init__(self, problem: DesignProblem):
        self.problem = problem
        own = {variable.path for variable in problem.variables}
        self.inputs = {
            f"{part}.{path}": declared
            for part in _VARIED
            for path, declared, value in walk(getattr(problem.baseline, part))
            if path.rpartition(".")[2] not in _GIVEN
            if isinstance(declared, Quantity) and not declared.integer and f"{part}.{path}" not in own
            if np.ndim(value) == 0 and float(value) > 0
        }
        digest = digest_of(problem.digest, repr(list(self.inputs)))
        self._slopes = stored_closure(self._sloped, digest)

    def _sloped(self, x: Array, multipliers: Array) -> Array:
        """d Lagrangian / d log(input) at a design, (inputs,)."""
        candidate, paths = self.problem.vector.candidate(x), list(self.inputs)
        limits = jnp.asarray(self.problem.limits)

        def lagrangian(logs: Array) -> Array:
            """The smooth Lagrangian of the design, its inputs multiplied by e to the power of `logs`."""
            factors = zip(paths, jnp.exp(logs), strict=True)
            values = {path: locate(candidate, path)[0] * factor for path, factor in factors}
            outcome = self.problem.outcome_of(replace(candidate, values), Smooth(_SHARPNESS))
            objective, excess = self.problem.score(outcome, limits)
            return objective + multipliers @ excess

        return compute_once(jax.grad(flattened_calls(lagrangian)))(jnp.zeros(len(paths)))

    def slopes(self, design: Descended) -> Float[np.ndarray, " inputs"]:
        """d log(objective of the optimum) / d log(input), less is better."""
        return np.nan_to_num(np.asarray(self._slopes(jnp.asarray(design.x), jnp.asarray(design.multipliers))))

    def conditions(self, best: Descended, other: Descended) -> list[Condition]:
        """The smallest changes of one input that would make a runner-up as good as the best design."""
        gap, ours, theirs = other.objective - best.objective, self.slopes(best), self.slopes(other)
        conditions = []
        for (path, declared), own, its in zip(self.inputs.items(), ours, theirs, strict=True):
            chosen = self._options(path, best), self._options(path, other)
            shared = chosen[0] == chosen[1]
            # An input of one option alone moves only the design that holds it.
            moves = [(best, its - own, "")] if shared else [(best, -own, chosen[0]), (other, its, chosen[1])]
            for design, slope, owner in moves:
                value = float(locate(self.problem.vector.candidate(jnp.asarray(design.x)), path)[0])
                if abs(slope) > _NO_SLOPE and abs(log := -gap / slope) < np.log(MOST_FACTOR):
                    needed = value * float(np.exp(log))
                    if declared.bounds[0] <= needed <= declared.bounds[1]:
                        conditions.append(
                            Condition(path=path, owner=owner, declared=declared, value=value, needed=needed)
                        )
        conditions.sort(key=lambda condition: condition.change)
        return conditions[:_SHOWN]

    def _options(self, path: str, design: Descended) -> str:
        """The option that an input belongs to in a design; empty for one of the whole problem."""
        for begin, variable in self.problem.vector.placed():
            if isinstance(variable.declared, Choice) and path.startswith(f"{variable.path}."):
                weights = design.x[begin : begin + variable.size]
                return variable.declared.alternatives[int(np.argmax(weights))]
        return ""
