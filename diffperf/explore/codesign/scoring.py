"""Scores of many designs of one problem at once: smooth for the descent, exact for what is kept."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from diffperf.explore.codesign.problem import DesignProblem
from diffperf.relax import Exact, Smooth

# Constraints are solved for with this much room, so that what the solver leaves over still satisfies them
# exactly.
MARGIN = 2e-5


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
        return np.lexsort((self.objective, self.violation))


class Scorer:
    """Scores designs of a problem under limits that need not be the problem's own; exact ones in blocks of
    designs.
    """

    def __init__(self, problem: DesignProblem, block: int):
        self.problem, self.block = problem, block
        # Programs that contain the estimate, and derivatives of it, share one trace of it.
        self.exact_outcome = jax.jit(lambda x: problem.outcome(x, Exact()))
        self.smooth = jax.jit(self._smooth)
        self._exact_block = jax.jit(jax.vmap(self._exact, in_axes=(0, None)))

    def _smooth(self, x: Array, sharpness: Array, limits: Array) -> tuple[Array, Array]:
        """(f, g) of one design for the solver: relaxed, with a margin."""
        objective, excess = self.problem.score(self.problem.outcome(x, Smooth(sharpness)), limits)
        return objective, excess + MARGIN

    def _exact(self, x: Array, limits: Array) -> tuple[Array, Array, Array]:
        """(f, g, broken rules) of one design."""
        objective, excess = self.problem.score(self.exact_outcome(x), limits)
        return objective, excess, self.problem.broken_rules(x)

    def rank(self, x: Float[np.ndarray, "designs n"], limits: Float[np.ndarray, " constraints"]) -> Ranking:
        """Exact scores. Blocks have one shape, so that one program serves any number of designs."""
        count = len(x)
        padded = jnp.asarray(x[np.arange(-(-count // self.block) * self.block) % count])
        blocks = [
            self._exact_block(rows, jnp.asarray(limits))
            for rows in jnp.split(padded, len(padded) // self.block)
        ]
        objective, excess, broken = (np.concatenate(parts)[:count] for parts in zip(*blocks, strict=True))
        return Ranking(np.linalg.norm(np.maximum(excess, 0), axis=1) + broken, objective)
