"""What a search for a design knows: its programs, the best design so far, the time left, its checkpoint."""

import contextvars
import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Float

from diffperf.compiler import digest_of
from diffperf.explore.codesign.checkpoint import Checkpoint
from diffperf.explore.codesign.conflict import Conflict
from diffperf.explore.codesign.cube import Cube
from diffperf.explore.codesign.descent import Descended, Descent
from diffperf.explore.codesign.evolution import Evolution
from diffperf.explore.codesign.layouts import Layouts
from diffperf.explore.codesign.populations import Populations
from diffperf.explore.codesign.problem import DesignProblem
from diffperf.explore.codesign.relaxation import Relaxation
from diffperf.explore.codesign.result import TracePoint
from diffperf.explore.codesign.scoring import Goal, Ranking, Scorer
from diffperf.explore.codesign.slots import slots

POPULATION = 1024  # designs that evolve together
IMPROVED = 1e-6  # of the log of the objective, that counts
LESS_VIOLATING = 0.01  # share of the violation that a better design must save to count
# Derivatives take 5 to 25 seconds to compile: with a smaller budget that is not begun.
SLOPES_SECONDS = 10.0
_LARGEST_LOG = 700.0  # of a number that float64 holds

Progress = Callable[[str, float], None]  # (what is going on, fraction done)


def _silent(stage: str, done: float) -> None:
    """Reports no progress."""


class OutOfTime(Exception):
    """The search has spent its budget of seconds."""


class SearchState:
    """The state that all stages of a search share.

    **Arguments:**

    - `population`: the number of designs that evolve together.
    - `seed`: of the samples and the evolution; the result is deterministic in it.
    - `budget_seconds`: the time after which the search stops with the best design so far. Where it is too
      short to compile derivatives, and none are stored, the best design of the population is the answer.
    - `checkpoint`: a file for the state between rounds, from which the same search goes on after it was
      stopped; deleted when the search is through.
    - `progress`: called with a word on what is going on and the fraction done.
    """

    def __init__(
        self,
        problem: DesignProblem,
        *,
        population: int = POPULATION,
        seed: int = 0,
        budget_seconds: float = math.inf,
        checkpoint: Path | None = None,
        progress: Progress = _silent,
    ):
        self.problem, self.population, self.seed = problem, population, seed
        self.budget_seconds, self.checkpoint, self.progress = budget_seconds, checkpoint, progress
        self.goal = Goal.of(problem)
        self.cube = Cube.of(problem.vector, slots(problem.vector, problem.layouts))
        self.scorer = Scorer(problem, self.cube, block=population)
        self.slopes = self.compiling()
        if problem.layouts:
            self.cube = Cube.of(problem.vector, slots(problem.vector, self.likeliest_first()))
            self.scorer.cube = self.cube
        self.reset(problem.limits)

    def likeliest_first(self) -> list[Layouts]:
        """The layouts, the best of the baseline's hardware first: they are the likeliest for others too."""
        problem, ordered = self.problem, []
        with jax.enable_x64(True):
            for layouts in problem.layouts:
                rows = layouts.applied(problem.vector.start)
                order = self.scorer.exact(rows, problem.limits).ranking(self.goal).order
                ordered.append(layouts.sorted(order))
        return ordered

    def reset(self, limits: Float[np.ndarray, " constraints"]) -> None:
        """Forgets everything but the compiled programs, to search again under other limits."""
        self.limits, self.descent = limits, Descent(self.scorer, limits, self.goal)
        self.relaxation = Relaxation(self.scorer, limits, self.goal)
        self.random = np.random.default_rng(self.seed)
        self.scorer.evaluations = 0
        self.trace: list[TracePoint] = []
        self.incumbent: Descended | None = None
        self.descended: dict[tuple[float, ...], Descended] = {}
        self.conflict: Conflict | None = None
        self.alone: set[bytes] = set()  # designs of which no neighbour was better
        self.relaxed: set[bytes] = set()  # designs whose whole numbers were relaxed
        self.known: list[np.ndarray] = []  # designs to start from beside the baseline
        self.began, self.deadline = time.monotonic(), math.inf

    @property
    def best(self) -> Descended:
        """The best design so far. Raises `RuntimeError` before there is any."""
        if self.incumbent is None:
            raise RuntimeError("the search has not come to a design yet")
        return self.incumbent

    @property
    def question(self) -> str:
        """A digest of all that the search depends on."""
        asked = (self.limits.tolist(), self.seed, self.population, version("diffperf"))
        return digest_of(self.problem.digest, repr(asked))

    def look_at_the_clock(self) -> None:
        """Raises `OutOfTime` once the budget of seconds is spent and there is a design to show for it."""
        if self.incumbent is not None and time.monotonic() > self.deadline:
            raise OutOfTime

    def score(self, points: Float[np.ndarray, "designs size"], goal: Goal | None = None) -> Ranking:
        """Exact scores of the designs at points of the cube."""
        self.look_at_the_clock()
        return self.scorer.exact(self.cube.designs(points), self.limits).ranking(goal or self.goal)

    def keep(self, design: Descended) -> bool:
        """Remembers a design if it is the best so far; whether it is so by enough to go on searching."""
        known = self.incumbent
        if known is None:
            self.incumbent = design
            return True
        if (design.violation, design.objective) < (known.violation, known.objective):
            self.incumbent = design
        if design.violation != known.violation:
            return design.violation < known.violation * (1 - LESS_VIOLATING)
        return design.objective < known.objective - IMPROVED

    def keep_best_of(self, points: np.ndarray, ranking: Ranking) -> bool:
        """Remembers the best of some scored points, as `keep` does."""
        first = ranking.order[0]
        return self.keep(
            Descended(
                x=self.cube.designs(points[first : first + 1])[0],
                violation=float(ranking.violation[first]),
                objective=float(ranking.objective[first]),
                multipliers=np.zeros(len(self.limits)),
                residual=math.inf,
            )
        )

    def record(self, stage: str, done: float) -> None:
        """Adds how good the best design is to the trace, and reports progress."""
        objective = math.exp(min(self.best.objective, _LARGEST_LOG))
        seconds = time.monotonic() - self.began
        self.trace.append(TracePoint(stage, objective, self.best.violation, seconds))
        self.progress(stage, done)

    @property
    def populations(self) -> Populations:
        """The maker of populations, with the cube and the random numbers that the search has at present."""
        return Populations(self.cube, self.score, self.population, self.random)

    @property
    def starts(self) -> Float[np.ndarray, "designs n"]:
        """The designs that every Sobol sample contains: the baseline first, then those that are known."""
        return np.stack([self.problem.vector.start, *self.known])

    def population_of_round(self, number: int) -> Evolution:
        """The population that a round begins with: in rounds 0, 2, … one over the whole cube, in rounds
        1, 3, … one around the best design."""
        if number % 2:
            return self.populations.local_population(self.goal, self.best.x)
        return self.populations.global_population(self.goal, self.starts)

    def wait_for_slopes(self, slopes: Future[None]) -> None:
        """Waits until the derivatives are compiled, and traces the report of the answer meanwhile. Raises
        `OutOfTime` where that takes too long.
        """
        if not slopes.done():
            self.scorer.trace_outcome()
        try:
            left = self.deadline - time.monotonic()
            slopes.result(None if math.isinf(left) else max(left, 0.0))
        except TimeoutError:
            if slopes.done():  # an error of the compilation itself
                raise
            raise OutOfTime from None

    def compiling(self) -> Future[None] | None:
        """Compiles the derivatives in a thread of their own; None where the budget of seconds is too small.

        The thread begins before anything else is traced: what the first stages need is traced while XLA
        compiles the derivatives, which takes longest.
        """
        if self.budget_seconds < SLOPES_SECONDS and not self.scorer.slopes_are_stored():
            return None
        # In the context of this thread, which says where programs are stored.
        context, pool = contextvars.copy_context(), ThreadPoolExecutor(1, "diffperf-compile")
        slopes = pool.submit(context.run, self.scorer.compile_slopes)
        pool.shutdown(wait=False)  # the thread ends with its program
        return slopes

    def save(self, number: int, idle: int) -> None:
        """Writes the state after a round, where the search has a checkpoint."""
        if self.checkpoint is not None:
            state = dict(self.random.bit_generator.state)
            Checkpoint(
                question=self.question,
                number=number,
                idle=idle,
                evaluations=self.scorer.evaluations,
                best=self.best,
                descended=self.descended,
                random=state,
                trace=self.trace,
            ).write(self.checkpoint)

    def resumed(self) -> tuple[int, int]:
        """The rounds done, and how many of the last were idle, from the checkpoint where there is one."""
        state = self.checkpoint and Checkpoint.read(self.checkpoint, self.question)
        if not state:
            return 0, 0
        self.incumbent, self.descended, self.trace = state.best, state.descended, state.trace
        # A round ends with a visit of the neighbours.
        self.alone, self.relaxed = {state.best.x.tobytes()}, {state.best.x.tobytes()}
        self.random.bit_generator.state = state.random
        self.scorer.evaluations = state.evaluations
        return state.number, state.idle
