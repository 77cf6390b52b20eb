"""Is the co-designed chip the best there is? Compares `codesign` with scipy's differential evolution, and its
shadow prices with re-optimization.

Differential evolution gets `--evaluations` times as many evaluations of the exact estimate (default 50, over
restarts), knows which variables are whole, and treats the constraints by Lampinen's rules (scipy's
`NonlinearConstraint`). The shadow price of each active limit is compared with the finite difference of the
optimum when the limit changes by ±0.05 %, whole numbers held: prices change quickly with the budget.

    python studies/codesign_against_global_search/run.py [--quick] [--problem NAME] [--out DIR]
"""

import argparse
import dataclasses
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import Bounds as Box
from scipy.optimize import NonlinearConstraint, differential_evolution

from diffperf.explore.codesign.problem import DesignProblem
from diffperf.explore.codesign.problem_file import load_problem
from diffperf.explore.codesign.result import ACTIVE_MULTIPLIER, Codesign
from diffperf.explore.codesign.search import Incumbent, Search, codesign
from diffperf.relax import Exact


@dataclasses.dataclass(frozen=True)
class Optimum:
    """What one search came to.

    `objective` is over the baseline's, or the inverse of that where the problem maximizes it: less is better.
    """

    search: str
    objective: float
    x: np.ndarray
    evaluations: int
    seconds: float

    def __str__(self):
        design = np.array2string(self.x, precision=4)
        return f"{self.search:32} {self.objective:21.5f} {self.evaluations:13,} {self.seconds:8.1f}  {design}"


HEADER = f"{'search':32} {'objective / baseline':>21} {'evaluations':>13} {'seconds':>8}  design"


def exact_scores(problem: DesignProblem):
    """Exact (objective, excess) of many designs at once: (n, variables) -> (n,), (n, constraints)."""
    limits = jnp.asarray(problem.limits)
    return jax.jit(jax.vmap(lambda x: problem.score(problem.outcome(x, Exact()), limits)))


def global_search(problem: DesignProblem, evaluations: int, seed: int) -> Optimum:
    """The optimum of differential evolution in log-spaced variables."""
    began = time.perf_counter()
    low, high, log = (np.asarray(v) for v in (problem.bounds.low, problem.bounds.high, problem.bounds.log))
    whole = np.array([variable.whole for variable in problem.variables])
    # scipy holds integers itself, which asks for a linear scale in those variables; the others are searched
    # in logarithms.
    scale = log & ~whole
    box = Box(np.where(scale, np.log(low), low), np.where(scale, np.log(high), high))
    scores, spent, population = exact_scores(problem), 0, 40 * len(low)
    cache: dict[bytes, tuple[np.ndarray, np.ndarray]] = {}

    def evaluate(u):
        nonlocal spent
        key = u.tobytes()
        if key not in cache:
            x = np.where(scale[:, None], np.exp(u), u).T
            padded = np.resize(
                x, (-(-len(x) // population) * population, len(low))
            )  # one shape: one compilation
            parts = [
                tuple(map(np.asarray, scores(block))) for block in np.split(padded, len(padded) // population)
            ]
            objective, excess = (np.concatenate(part) for part in zip(*parts, strict=True))
            cache.clear()
            cache[key] = objective[: len(x)], excess[: len(x)]
            spent += len(x)
        return cache[key]

    def objective(u):
        return evaluate(u)[0] if u.ndim == 2 else evaluate(u[:, None])[0][0]

    def excess(u):
        return evaluate(u)[1].T if u.ndim == 2 else evaluate(u[:, None])[1][0]

    minimum = differential_evolution(
        objective,
        box,
        constraints=NonlinearConstraint(excess, -np.inf, 0.0),
        integrality=whole,
        vectorized=True,
        updating="deferred",
        polish=False,
        popsize=40,
        maxiter=max(1, evaluations // population),
        tol=0,
        seed=seed,
        callback=lambda *_: spent >= evaluations,
    )
    x = np.where(scale, np.exp(minimum.x), minimum.x)
    feasible = bool(np.all(np.asarray(scores(jnp.asarray(np.resize(x, (population, len(x)))))[1])[0] <= 0))
    return Optimum(
        search=f"differential evolution, seed {seed}",
        objective=float(np.exp(minimum.fun)) if feasible else np.inf,
        x=x,
        evaluations=spent,
        seconds=time.perf_counter() - began,
    )


def shadow_price_check(
    problem: DesignProblem, result: Codesign, index: int, change: float = 5e-4
) -> tuple[float, float]:
    """(shadow price, finite difference of the optimum) of one limit, whole numbers held."""
    with jax.enable_x64(True):
        search, optima = Search(problem), []
        for sign in (1, -1):
            limits = problem.limits
            limits[index] *= 1 + sign * change
            search.reset(limits)
            search.incumbent = Incumbent(np.inf, np.inf, result.x, result.multipliers)
            search.refine()
            optima.append(result.baseline_objective * np.exp(problem.sense * search.best.objective))
        difference = (optima[0] - optima[1]) / (2 * change * problem.limits[index])
    return result.shadow_price(index), float(difference)


def repeated_global_search(problem: DesignProblem, evaluations: int) -> list[Optimum]:
    """Global searches, a new seed whenever a population converges, until the evaluations are spent."""
    optima: list[Optimum] = []
    with jax.enable_x64(True):
        while (left := evaluations - sum(optimum.evaluations for optimum in optima)) > 0:
            optima.append(global_search(problem, left, seed=len(optima)))
    return optima


def price_lines(problem: DesignProblem, result: Codesign) -> list[str]:
    """The shadow price of every active limit beside the finite difference, a line each."""
    lines = []
    for index, constraint in enumerate(problem.constraints):
        if result.multipliers[index] > ACTIVE_MULTIPLIER and constraint.limit:
            price, difference = shadow_price_check(problem, result, index)
            error = f"{price / difference - 1:+.2%}"
            lines.append(
                f"{constraint}: shadow price {price:.6g}, finite difference {difference:.6g} ({error})"
            )
    return lines


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--problem", default="gpt3-175b-under-a100-budget", help="name or file of a problem")
    parser.add_argument(
        "--evaluations",
        type=float,
        default=50,
        help="evaluations of the global search over those of codesign",
    )
    parser.add_argument("--quick", action="store_true", help="a global search of one hundredth the size")
    parser.add_argument("--out", type=Path, default=Path("out/codesign_against_global_search"))
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    problem = load_problem(arguments.problem)
    began = time.perf_counter()
    result = codesign(problem)
    ours = Optimum(
        search="codesign",
        objective=(result.objective / result.baseline_objective) ** problem.sense,
        x=result.x,
        evaluations=result.evaluations,
        seconds=time.perf_counter() - began,
    )
    times = arguments.evaluations / (100 if arguments.quick else 1)
    others = repeated_global_search(problem, int(ours.evaluations * times))
    ratio = sum(other.evaluations for other in others) / ours.evaluations
    gap = ours.objective / min(other.objective for other in others) - 1
    lines = [HEADER, *map(str, [ours, *others])]
    lines.append(
        f"gap to the best of {len(others)} global searches with {ratio:.1f} times the evaluations: {gap:+.3%}"
    )
    lines += price_lines(problem, result)
    print("\n".join(lines))
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "table.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
