"""Is the co-designed chip the best there is? Compares `codesign` with differential evolution, CMA-ES and
enumeration.

Two shipped problems and eight beside this file: 2 to 39 variables, whole numbers, choices of node, memory and
layout, several workloads, uncertain prices; training and serving. For each of them:

- the best objective over the baseline's of `codesign`, its conditions of optimality, its seconds in a process
  that has compiled the programs before, and after how many of them it was within 0.3 % of its end;
- the share of seeds that come within 0.3 % of the best that any search came to;
- scipy's differential evolution and pycma's CMA-ES with `--evaluations` times as many exact estimates, on the
  same compiled, vectorized estimate and the same coordinates, with restarts; the gap to their best, and how
  long they took until they were within 0.3 % of `codesign` (– where they never were);
- the shadow prices of active limits against re-optimization with limits that are 0.05 % larger and smaller,
  whole numbers held.

    python studies/codesign_against_global_search/run.py [--quick] [--problem NAME]… [--out DIR]

With `--evaluations 0` there are no rivals: the seeds are compared with the best of them.
"""

import argparse
import contextlib
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.optimize import NonlinearConstraint, differential_evolution

from diffperf.explore.codesign.problem_file import load_problem
from diffperf.explore.codesign.result import ACTIVE_MULTIPLIER, Codesign
from diffperf.explore.codesign.scoring import Scorer
from diffperf.explore.codesign.search import Search

HERE = Path(__file__).parent
SHIPPED = ("gpt3-175b-under-a100-budget", "llama-2-70b-serving-under-h100-budget")
DECLARED = tuple(sorted(path.stem for path in (HERE / "problems").glob("*.toml")))
QUICK = ("layout-and-chip",)
CLOSE = 0.003  # objectives whose ratio differs from 1 by less count as equally good
_PRICE_STEP = 5e-4
_BLOCK = 256  # designs that rivals score at once


class Spent(Exception):
    """A rival has spent its evaluations."""


@dataclasses.dataclass
class Meter:
    """Scores points for a rival, and notes how good it has become, when.

    - `best`: the log of the best feasible objective so far.
    - `close`: the seconds after which it was within `CLOSE` of `target`, None before; `seconds`: of all.
    """

    search: Search
    scorer: Scorer
    limit: int
    target: float
    spent: int = 0
    best: float = np.inf
    close: float | None = None
    seconds: float = 0.0
    began: float = dataclasses.field(default_factory=time.perf_counter)

    def __call__(self, points: np.ndarray) -> np.ndarray:
        """Objective and excesses, (points, 1 + constraints); broken layouts count as an excess."""
        if self.spent >= self.limit:
            raise Spent
        self.spent += len(points)
        problem, cube = self.search.problem, self.search.cube
        scores = self.scorer.exact(cube.designs(points), problem.limits)
        values = np.nan_to_num(scores.values, nan=1e9)
        ranking = scores.ranking(self.search.goal)
        feasible = ranking.objective[ranking.violation == 0]
        self.best = min(self.best, feasible.min(initial=np.inf))
        if self.close is None and self.best <= self.target + np.log1p(CLOSE):
            self.close = time.perf_counter() - self.began
        return np.concatenate([values, scores.broken[:, None]], axis=1)


def differential_evolutions(meter: Meter, seed: int) -> None:
    """scipy's differential evolution, restarted with a new seed whenever a population converges."""
    size = meter.search.cube.size
    cache: dict[bytes, np.ndarray] = {}

    def scores(u: np.ndarray) -> np.ndarray:
        points = np.atleast_2d(u.T if u.ndim == 2 else u)
        key = points.tobytes()
        if key not in cache:
            cache.clear()
            cache[key] = meter(np.ascontiguousarray(points))
        return cache[key]

    while True:
        differential_evolution(
            lambda u: scores(u)[:, 0] if u.ndim == 2 else scores(u)[0, 0],
            [(0.0, 1.0)] * size,
            constraints=NonlinearConstraint(
                lambda u: scores(u)[:, 1:].T if u.ndim == 2 else scores(u)[0, 1:], -np.inf, 0.0
            ),
            vectorized=True,
            updating="deferred",
            polish=False,
            popsize=40,
            maxiter=100_000,
            seed=seed,
        )
        seed += 1


def evolution_strategies(meter: Meter, seed: int) -> None:
    """pycma's CMA-ES with populations that double at every restart (BIPOP's large regime).

    Designs that violate constraints rank behind all that do not, by how much they violate.
    """
    import cma

    size, population = meter.search.cube.size, _BLOCK
    random = np.random.default_rng(seed)
    while True:
        settings = {
            "bounds": [0, 1],
            "popsize": population,
            "seed": int(random.integers(1, 2**31)),
            "verbose": -9,
        }
        strategy = cma.CMAEvolutionStrategy(random.random(size), 0.3, settings)
        while not strategy.stop():
            points = np.array(strategy.ask())
            scores = meter(points)
            violation = np.linalg.norm(np.maximum(scores[:, 1:], 0), axis=1)
            fitness = np.where(violation > 0, 1e3 + np.minimum(violation, 1e6), scores[:, 0])
            strategy.tell(list(points), list(fitness))
        population = min(2 * population, 4096)


RIVALS = {"DE": differential_evolutions, "CMA-ES": evolution_strategies}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What came of one problem; objectives are logs over the baseline's, less is better."""

    name: str
    variables: int
    ours: Codesign
    objective: float
    seconds: float
    seeds: list[float]
    rivals: dict[str, Meter]
    prices: list[float]

    @property
    def best(self) -> float:
        """The best objective of all searches."""
        return min([self.objective, *self.seeds, *(meter.best for meter in self.rivals.values())])

    @property
    def close(self) -> float:
        """Seconds after which the first seed had come within `CLOSE` of its end."""
        end = np.exp(self.objective) * (1 + CLOSE)
        return next(at.seconds for at in self.ours.trace if at.violation == 0 and at.objective <= end)

    @property
    def reached(self) -> float:
        """The share of seeds that came within `CLOSE` of the best."""
        return float(np.mean([seed <= self.best + np.log1p(CLOSE) for seed in self.seeds]))


def answered(search: Search, seed: int) -> tuple[Codesign, float, float]:
    """The answer of one seed, its log objective, and its seconds."""
    search.seed = seed
    search.reset(search.problem.limits)
    began = time.perf_counter()
    result = search.answer()
    seconds = time.perf_counter() - began
    return result, search.best.objective if result.feasible else np.inf, seconds


def compared(name: str, seeds: int, times: float) -> Comparison:
    """All searches of one problem."""
    file = HERE / "problems" / f"{name}.toml"
    problem = load_problem(file if file.exists() else name)
    search = Search(problem)
    answered(search, 0)  # compiles
    runs = [answered(search, seed) for seed in range(seeds)]
    ours, objective, _ = runs[0]
    prices = list(price_errors(search, ours))
    # Their populations are smaller than ours.
    rivals, scorer = {}, Scorer(problem, search.cube, block=_BLOCK)
    with jax.enable_x64(True):
        scorer.exact(problem.vector.start[None], problem.limits)  # compiles
    for rival, run in RIVALS.items() if times else ():
        meter = rivals[rival] = Meter(search, scorer, int(times * ours.evaluations), objective)
        with jax.enable_x64(True), contextlib.suppress(Spent):
            run(meter, seed=0)
        meter.seconds = time.perf_counter() - meter.began
    seconds = float(np.median([run[2] for run in runs]))
    return Comparison(
        name, len(problem.variables), ours, objective, seconds, [run[1] for run in runs], rivals, prices
    )


def price_errors(search: Search, result: Codesign) -> Iterator[float]:
    """For each active limit, the shadow price over the finite difference of the optimum, minus 1."""
    problem = search.problem
    for index, constraint in enumerate(problem.constraints):
        if result.multipliers[index] <= ACTIVE_MULTIPLIER or not constraint.limit:
            continue
        optima = []
        for sign in (1, -1):
            limits = problem.limits
            limits[index] *= 1 + sign * _PRICE_STEP
            with jax.enable_x64(True):
                search.reset(limits)
                optima.append(search.descent(result.x).objective)
        slope = -constraint.sense * (optima[0] - optima[1]) / (2 * _PRICE_STEP)
        yield float(result.multipliers[index] / slope - 1) if slope else np.inf


def table_of(comparisons: list[Comparison]) -> Table:
    """One row for each problem."""
    table = Table(title="codesign against global searches", box=None, pad_edge=False, title_justify="left")
    columns = ["problem", "variables", "objective", "KKT", "s", "s to 0.3 %", "seeds within", "prices off"]
    for rival in comparisons[0].rivals:
        columns += [f"{rival}: gap", "evaluations", "s", "s to 0.3 %"]
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for each in comparisons:
        worst = max(map(abs, each.prices), default=None)
        row = [each.name, str(each.variables), f"{np.exp(each.objective):.5f}"]
        residual = f"{each.ours.stationarity:.0e}" if np.isfinite(each.ours.stationarity) else "–"
        row += [residual, f"{each.seconds:.2f}", f"{each.close:.2f}", f"{each.reached:.0%}"]
        row += ["–" if worst is None else f"{worst:.2%}"]
        for meter in each.rivals.values():
            gap = np.exp(each.objective - meter.best) - 1
            close = "–" if meter.close is None else f"{meter.close:.2f}"
            row += [f"{gap:+.3%}", f"{meter.spent:,}", f"{meter.seconds:.1f}", close]
        table.add_row(*row)
    return table


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--problem", action="append", help="name of a problem (repeatable) [all]")
    parser.add_argument(
        "--evaluations",
        type=float,
        default=100,
        help="those of a rival over those of codesign; 0 for no rivals",
    )
    parser.add_argument("--seeds", type=int, default=20, help="seeds of codesign")
    parser.add_argument(
        "--quick", action="store_true", help="one problem, two seeds, a tenth of the evaluations"
    )
    parser.add_argument("--out", type=Path, default=Path("out/codesign_against_global_search"))
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    names = arguments.problem or (QUICK if arguments.quick else (*SHIPPED, *DECLARED))
    seeds, times = (2, 0.1) if arguments.quick else (arguments.seeds, arguments.evaluations)
    comparisons = []
    for name in names:
        comparisons.append(compared(name, seeds, times))
        print(summary(comparisons[-1]), flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    with (arguments.out / "table.txt").open("w", encoding="utf-8") as stream:
        for console in (Console(width=200), Console(width=200, file=stream)):
            console.print(table_of(comparisons))


def summary(each: Comparison) -> str:
    """One line on a problem."""
    gaps = [
        f"{np.exp(each.objective - meter.best) - 1:+.3%} to {rival}" for rival, meter in each.rivals.items()
    ]
    worst = np.exp(max(each.seeds) - each.best) - 1
    return (
        f"{each.name}: {np.exp(each.objective):.5f} in {each.seconds:.2f} s, {each.reached:.0%} of "
        f"{len(each.seeds)} seeds within {CLOSE:.1%}, the worst {worst:+.3%}"
        + (f"; gap {', '.join(gaps)}" if gaps else "")
    )


if __name__ == "__main__":
    main()
