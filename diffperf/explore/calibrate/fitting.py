"""Fitting parameters of a system to measured times: residuals with exact derivatives, a robust fit, and how sure it is.

Everything is in logarithms: of the parameters, so that they stay positive and their priors are factors, and of the times, so that
every row counts by its relative error whatever its size.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import OptimizeResult, least_squares

from diffperf.explore.measured.columns import SCHEMAS
from diffperf.explore.measured.predictions import BLOCK, EVALUATORS
from diffperf.explore.measured.table import Row
from diffperf.hardware.system import System
from diffperf.load.calibration import part_of, parts
from diffperf.quantity import locate, replace

_SOFTWARE = ("hardware", "framework", "library", "kernel")  # columns that tell which system a row ran on


@dataclasses.dataclass(frozen=True)
class Observation:
    """A measured row. `family` names the rows whose configurations are nearly its own, `part` what errors are told apart by."""

    kind: str
    row: Row
    column: str
    family: str
    part: str

    @property
    def sign(self) -> float:
        """+1 for a time, −1 for a rate: residuals have the sense of times."""
        return 1.0 if SCHEMAS[self.kind][self.column].declared.unit == "s" else -1.0


def speed_columns(kind: str) -> list[str]:
    """The measured columns of a kind that tell how fast it was, the most telling first."""
    return [
        name for name, column in SCHEMAS[kind].items() if column.measured and column.declared.unit != "byte"
    ]


@functools.lru_cache(maxsize=32)
def _program(kind: str, paths: tuple[str, ...]) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """log(time) of a block of rows and its derivatives with respect to the logarithms of the parameters."""

    def with_parameters(inputs: Any, logs: jax.Array, applies: jax.Array) -> Any:
        def fitted(system: System) -> System:
            own = [locate(system, path)[0] for path in paths]
            return replace(
                system, dict(zip(paths, jnp.where(applies, jnp.exp(logs), jnp.stack(own)), strict=True))
            )

        return jax.tree.map(
            lambda node: fitted(node) if isinstance(node, System) else node,
            inputs,
            is_leaf=lambda node: isinstance(node, System),
        )

    def log_time(logs: jax.Array, applies: jax.Array, which: jax.Array, sign: jax.Array, inputs: tuple):
        outputs = EVALUATORS[kind].estimate(*with_parameters(inputs, logs, applies))
        value = sign * jnp.log(jnp.stack([outputs[column] for column in speed_columns(kind)])[which])
        return value, value

    def with_slopes(*arguments):
        slopes, value = jax.jacfwd(log_time, has_aux=True)(*arguments)
        return value, slopes

    return jax.jit(jax.vmap(with_slopes, in_axes=(None, 0, 0, 0, 0)))


class Problem:
    """Observations of one accelerator as a function of the logarithms of some parameters of its system."""

    def __init__(self, observations: Sequence[Observation], paths: Sequence[str], system: System):
        self.observations, self.paths = list(observations), tuple(paths)
        self.measured = np.array([one.sign * np.log(one.row[one.column]) for one in observations])
        self.kinds = np.array([one.kind for one in observations])
        self._blocks = list(self._stacked(system))
        self._last: tuple[bytes, np.ndarray, np.ndarray] | None = None

    def _stacked(self, system: System) -> Iterator[tuple[np.ndarray, Callable, tuple]]:
        """(positions, program, its arguments) of blocks of rows that share a program."""
        theirs, alike = _systems(self.observations), {}
        for index, (one, row_system) in enumerate(zip(self.observations, theirs, strict=True)):
            structure = jax.tree.structure(row_system), EVALUATORS[one.kind].structure(one.row)
            alike.setdefault((one.kind, structure), []).append(index)
        moved = {
            id(one): _applies(self.paths, one, system) for one in {id(one): one for one in theirs}.values()
        }
        for (kind, _), indices in alike.items():
            size = min(BLOCK, len(indices))
            for start in range(0, len(indices), size):
                block = indices[start : start + size]
                positions = block + block[-1:] * (size - len(block))
                filled = [self.observations[i] for i in positions]
                columns = speed_columns(kind)
                which, sign = (
                    np.array([columns.index(one.column) for one in filled]),
                    np.array([one.sign for one in filled]),
                )
                applies = np.array([moved[id(theirs[i])] for i in positions])
                arguments = (applies, which, sign, EVALUATORS[kind].stack([one.row for one in filled]))
                yield np.array(block), _program(kind, self.paths), jax.tree.map(jnp.asarray, arguments)

    def at(self, logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """log(predicted / measured), (rows,), and its derivatives, (rows, parameters)."""
        key = logs.tobytes()
        if self._last is None or self._last[0] != key:
            value, slopes = (
                np.empty(len(self.observations)),
                np.empty((len(self.observations), len(self.paths))),
            )
            for block, program, arguments in self._blocks:
                found = jax.device_get(program(jnp.asarray(logs, dtype=float), *arguments))
                value[block], slopes[block] = (array[: len(block)] for array in found)
            self._last = key, value - self.measured, slopes
        return self._last[1:]


def _systems(observations: Sequence[Observation]) -> list[System]:
    """The system of every row, driven by the software that the row names."""
    found: dict[tuple, System] = {}
    result = []
    for one in observations:
        key = (one.kind, *(one.row.values.get(column) for column in _SOFTWARE))
        if key not in found:
            inputs = EVALUATORS[one.kind].stack([one.row])
            found[key] = next(part for part in inputs if isinstance(part, System))
        result.append(found[key])
    return result


def _applies(paths: tuple[str, ...], row_system: System, fitted: System) -> list[bool]:
    """Whether the row's system has the parts that the parameters belong to: another framework's stack keeps its own values."""
    ours, theirs = parts(fitted), parts(row_system)
    owners = [part_of(path, ours) for path in paths]
    return [owner is None or ours[owner] == theirs.get(owner) for owner in owners]


@dataclasses.dataclass(frozen=True)
class Prior:
    """What is known of the logarithms of the parameters before any measurement: their means, standard deviations and bounds."""

    mean: np.ndarray
    spread: np.ndarray
    lower: np.ndarray
    upper: np.ndarray

    def inside(self, logs: np.ndarray) -> np.ndarray:
        """The nearest point a little within the bounds."""
        margin = 1e-6 * (self.upper - self.lower)
        return np.clip(logs, self.lower + margin, self.upper - margin)


@dataclasses.dataclass(frozen=True)
class Fit:
    """The most probable logarithms of the parameters, and what led there."""

    logs: np.ndarray
    scale: dict[str, float]  # by kind, the robust standard deviation of its residuals
    result: OptimizeResult


class NotConverged(Exception):
    """Why a fit is none, in a few words."""


def _soft_l1_of_data(rows: int) -> Callable[[np.ndarray], np.ndarray]:
    """soft_l1, 2·(√(1 + z²) − 1), for the first `rows` residuals, and least squares for those of the prior."""

    def loss(squares: np.ndarray) -> np.ndarray:
        result = np.stack([squares, np.ones_like(squares), np.zeros_like(squares)])
        root = np.sqrt(1 + squares[:rows])
        result[:, :rows] = 2 * (root - 1), 1 / root, -0.5 / root**3
        return result

    return loss


def solve(
    problem: Problem, prior: Prior, scale: dict[str, float], start: np.ndarray, rows: np.ndarray | None = None
) -> Fit:
    """The fit to some rows (all by default) from a starting point. Raises `NotConverged`."""
    rows = np.arange(len(problem.measured)) if rows is None else rows
    width = np.array([scale[kind] for kind in problem.kinds[rows]])

    def residuals(logs):
        found = np.concatenate([problem.at(logs)[0][rows] / width, (logs - prior.mean) / prior.spread])
        if not np.isfinite(found).all():
            raise NotConverged("an estimate that is not finite")
        return found

    def slopes(logs):
        found = np.concatenate([problem.at(logs)[1][rows] / width[:, None], np.diag(1 / prior.spread)])
        if not np.isfinite(found).all():
            raise NotConverged("a derivative that is not finite")
        return found

    result = least_squares(
        residuals,
        prior.inside(start),
        slopes,
        bounds=(prior.lower, prior.upper),
        loss=_soft_l1_of_data(len(rows)),
        max_nfev=MAX_STEPS,
    )
    if result.status <= 0:
        raise NotConverged(f"no convergence in {MAX_STEPS} steps")
    return Fit(result.x, scale, result)


MAX_STEPS = 200
FIRST_SCALE = 0.1  # residuals are of the order of 10 % before their scale is known
LEAST_SCALE = 1e-3  # measurements repeat no better
STARTS = 3  # besides the prior's mean


def robust_scale(residuals: np.ndarray) -> float:
    """The standard deviation of normal residuals around zero whose median size is theirs."""
    return max(LEAST_SCALE, float(np.median(np.abs(residuals)) / 0.6745))


def fit(problem: Problem, prior: Prior, seed: int = 0) -> Fit:
    """The best fit from several starts. Raises `NotConverged`.

    The exact estimate is smooth but for kinks, so a single start may end in a valley of its own. The scale of each kind's
    residuals is that of the fit itself, found by fitting again.
    """
    kinds = sorted(map(str, set(problem.kinds)))
    drawn = prior.mean + prior.spread * np.random.default_rng(seed).standard_normal((STARTS, len(prior.mean)))
    first = dict.fromkeys(kinds, FIRST_SCALE)
    best, failure = None, None
    for start in (prior.mean, *drawn):
        try:
            found = solve(problem, prior, first, start)
        except NotConverged as problem_of_start:
            failure = problem_of_start
            continue
        best = found if best is None or found.result.cost < best.result.cost else best
    if best is None:
        raise failure
    for _ in range(3):
        residuals = problem.at(best.logs)[0]
        scale = {kind: robust_scale(residuals[problem.kinds == kind]) for kind in kinds}
        settled = all(abs(np.log(scale[kind] / best.scale[kind])) < 0.02 for kind in kinds)
        best = solve(problem, prior, scale, best.logs)
        if settled:
            break
    return best


def covariance(problem: Problem, prior: Prior, found: Fit) -> np.ndarray:
    """The covariance of the logarithms of the parameters at the fit: Laplace's approximation. Raises `NotConverged`.

    The precision is the prior's plus, for each kind, Σ JᵀJ/σ² times the information that a row has under the robust loss ψ,
    (E ψ′)²/E ψ² (Huber, Robust Statistics, §7.6), over the design effect of its families: their rows err together, so they count
    as fewer, Σ_families (Σ ψ)² / Σ ψ² (Kish, Survey Sampling, §5.4).
    """
    residuals, slopes = problem.at(found.logs)
    precision = np.diag(prior.spread**-2)
    for kind, scale in found.scale.items():
        rows = np.flatnonzero(problem.kinds == kind)
        z, jacobian = residuals[rows] / scale, slopes[rows] / scale
        influence, curvature = z / np.sqrt(1 + z * z), (1 + z * z) ** -1.5
        total = {}
        for row, pull in zip(rows, influence, strict=True):
            family = problem.observations[row].family
            total[family] = total.get(family, 0.0) + pull
        squares = max(float(np.sum(influence**2)), 1e-12)
        together = max(1.0, sum(pull**2 for pull in total.values()) / squares)
        precision += jacobian.T @ jacobian * (np.mean(curvature) ** 2 / (squares / len(rows)) / together)
    size = np.sqrt(precision.diagonal())
    values = np.linalg.eigvalsh(precision / np.outer(size, size))
    if not np.isfinite(values).all() or values[0] < 1e-9:
        raise NotConverged("a singular Hessian: the rows cannot tell some of the parameters apart")
    return np.linalg.inv(precision / np.outer(size, size)) / np.outer(size, size)
