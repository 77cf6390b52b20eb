"""Is the co-designed chip the best there is? Compares `codesign` with scipy's differential evolution, and its shadow price
with re-optimization.

Differential evolution gets `--evaluations` times as many evaluations of the exact estimate (default 50, over restarts), knows
which variables are whole, and treats the constraints by Lampinen's rules (scipy's `NonlinearConstraint`). The shadow price of
the budget is compared with the finite difference of the optimum when the budget changes by ±0.05 %, whole numbers held:
prices change quickly with the budget.

    python studies/codesign_against_global_search/run.py [--quick] [--study NAME] [--out DIR]
"""

import argparse
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import Bounds as Box
from scipy.optimize import NonlinearConstraint, differential_evolution

from diffperf.explore.codesign.problem import Study, load_study
from diffperf.explore.codesign.search import Codesign, Search, codesign
from diffperf.relax import Exact


def exact_scores(study: Study):
    """Exact (objective, excess) of many designs at once: (n, variables) -> (n,), (n, constraints)."""
    limits = jnp.asarray(study.limits)
    return jax.jit(jax.vmap(lambda x: study.score(study.outcome(x, Exact()), limits)))


def global_search(study: Study, evaluations: int, seed: int) -> tuple[float, np.ndarray, int]:
    """(objective over the baseline's, x, evaluations) of differential evolution in log-spaced variables."""
    low, high, log = (np.asarray(v) for v in (study.bounds.low, study.bounds.high, study.bounds.log))
    whole = np.array([variable.integer for variable in study.variables])
    # scipy holds integers itself, which asks for a linear scale in those variables; the others are searched in logarithms.
    scale = log & ~whole
    box = Box(np.where(scale, np.log(low), low), np.where(scale, np.log(high), high))
    scores, spent, population = exact_scores(study), 0, 40 * len(low)
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

    result = differential_evolution(
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
    x = np.where(scale, np.exp(result.x), result.x)
    feasible = bool(np.all(np.asarray(scores(jnp.asarray(np.resize(x, (population, len(x)))))[1])[0] <= 0))
    return float(np.exp(result.fun)) if feasible else np.inf, x, spent


def shadow_price_check(
    study: Study, found: Codesign, index: int, change: float = 5e-4
) -> tuple[float, float]:
    """(shadow price, finite difference of the optimum) of one limit, whole numbers held."""
    with jax.enable_x64(True):
        optima = []
        for sign in (1, -1):
            search = Search(study)
            search.limits = search.limits.copy()
            search.limits[index] *= 1 + sign * change
            search.best = (np.inf, np.inf), found.x, found.multipliers
            search.refine()
            objective = search.best[0][1]
            optima.append(found.baseline_objective * np.exp(study.sense * objective))
        difference = (optima[0] - optima[1]) / (2 * change * study.limits[index])
    return found.shadow_price(index), float(difference)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--study", default="gpt3-175b-under-a100-budget")
    parser.add_argument(
        "--evaluations", type=float, default=50, help="of the global search, over those of codesign"
    )
    parser.add_argument("--quick", action="store_true", help="a global search of one hundredth the size")
    parser.add_argument("--out", type=Path, default=Path("out/codesign_against_global_search"))
    arguments = parser.parse_args()

    study = load_study(arguments.study)
    began = time.perf_counter()
    found = codesign(study)
    seconds = time.perf_counter() - began
    rows = [("codesign", found.objective / found.baseline_objective, found.evaluations, seconds, found.x)]
    budget, seed, total = (
        int(found.evaluations * arguments.evaluations / (100 if arguments.quick else 1)),
        0,
        0,
    )
    while total < budget:  # a population that has converged starts again from another seed
        began = time.perf_counter()
        with jax.enable_x64(True):
            objective, x, spent = global_search(study, budget - total, seed)
        rows.append(
            (f"differential evolution, seed {seed}", objective, spent, time.perf_counter() - began, x)
        )
        seed, total = seed + 1, total + spent

    lines = [f"{'search':32} {'objective / baseline':>21} {'evaluations':>13} {'seconds':>8}  design"]
    for name, objective, spent, took, x in rows:
        lines.append(
            f"{name:32} {objective:21.5f} {spent:13,} {took:8.1f}  {np.array2string(np.asarray(x), precision=4)}"
        )
    gap = rows[0][1] / min(row[1] for row in rows[1:]) - 1
    lines.append(
        f"gap to the best of {seed} global searches with {total / found.evaluations:.1f} times the evaluations: {gap:+.3%}"
    )
    for index, constraint in enumerate(study.constraints):
        if found.multipliers[index] > 1e-3 and constraint.limit:
            price, difference = shadow_price_check(study, found, index)
            lines.append(
                f"{constraint}: shadow price {price:.6g}, finite difference {difference:.6g} ({price / difference - 1:+.2%})"
            )
    print("\n".join(lines))
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "table.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
