"""Residuals of measured rows, log(predicted / measured), and their exact derivatives."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from diffperf.compiler import digest_of, stored_closure
from diffperf.explore.calibrate.observations import Observation
from diffperf.explore.measured.platforms import Platforms
from diffperf.explore.measured.predictions import BLOCK, EVALUATORS, structure_of
from diffperf.explore.measured.schemas import measured_columns
from diffperf.explore.measured.stacking import has_clients, system_of
from diffperf.explore.measured.table import Row
from diffperf.hardware.system import System
from diffperf.load.calibration import parts, places
from diffperf.quantity import locate, replace


@dataclasses.dataclass(frozen=True)
class Places:
    """Paths in systems of the parameters of a calibration: a stack's in training, inference or both.

    - `paths`: the paths of systems that take the value of some parameter.
    - `parameter`: the index of the parameter, for every path.
    """

    paths: tuple[str, ...]
    parameter: tuple[int, ...]


@functools.lru_cache(maxsize=32)
def _program(kind: str, where: Places, compiled: bool) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """The program of log(time) of a block of rows and its derivatives by the logarithms of the parameters:
    compiled, or evaluated by NumPy.
    """

    def with_parameters(
        inputs: Any, logs: Float[Array, " parameters"], applies: Bool[Array, " places"]
    ) -> Any:
        """The inputs of a row with the values of parameters in its system, at the places where they apply."""

        def fitted(system: System) -> System:
            own = jnp.stack([locate(system, path)[0] for path in where.paths])
            values = jnp.where(applies, jnp.exp(logs)[jnp.asarray(where.parameter)], own)
            return replace(system, dict(zip(where.paths, values, strict=True)))

        def is_system(node: Any) -> bool:
            return isinstance(node, System)

        return jax.tree.map(lambda node: fitted(node) if is_system(node) else node, inputs, is_leaf=is_system)

    def log_time(logs, applies, which, sign, inputs):
        """log(time) of a row, twice: `which` is the index of its measured column, `sign` is −1 for a rate."""
        outputs = EVALUATORS[kind].estimate(*with_parameters(inputs, logs, applies))
        # A column that the estimator does not predict for such rows is fitted for none of them.
        values = [outputs.get(column, jnp.ones_like(sign)) for column in measured_columns(kind)]
        value = sign * jnp.log(jnp.stack(values)[which])
        return value, value

    def with_slopes(*arguments):
        slopes, value = jax.jacfwd(log_time, has_aux=True)(*arguments)
        return value, slopes

    def of_block(logs, applies, which, sign, inputs):
        return jax.vmap(with_slopes, in_axes=(None, 0, 0, 0, 0))(logs, applies, which, sign, inputs)

    if compiled:
        return jax.jit(of_block)
    return stored_closure(of_block, digest_of(kind, repr(where)), by_numpy=True)


def is_worth_compiling(rows: Sequence[Row]) -> bool:
    """Whether XLA compiles the program of some rows in less time than NumPy takes for all steps of a fit.

    It does for more than a block of rows, but never for servers with clients: the slopes of their steady
    states took XLA more than twenty minutes and 16 GB.
    """
    return len(rows) > BLOCK and not has_clients(rows[0])


class Problem:
    """Observations as a function of the logarithms of some parameters of a system, or of its stack.

    - `measured`: the logarithms of the measured times, in s.
    - `kinds`, `quantities`: the kind of table and the measured quantity of every observation.
    """

    def __init__(
        self,
        observations: Sequence[Observation],
        paths: Sequence[str],
        system: System,
        platforms: Platforms | None = None,
    ):
        self.observations, self.paths, self.system = list(observations), tuple(paths), system
        self.platforms = platforms or Platforms()
        self.measured = np.array([row.sign * np.log(row.row[row.column]) for row in self.observations])
        self.kinds = np.array([observation.kind for observation in self.observations])
        self.quantities = np.array([observation.quantity for observation in self.observations])
        self._blocks = list(self._stacked())
        self._last: tuple[bytes, np.ndarray, np.ndarray] | None = None

    def at(
        self, logs: Float[np.ndarray, " parameters"]
    ) -> tuple[Float[np.ndarray, " rows"], Float[np.ndarray, "rows parameters"]]:
        """log(predicted / measured) of every row, and its derivatives by the logarithms of the parameters."""
        key = logs.tobytes()
        # The optimizer asks for residuals and derivatives at a point one after the other.
        if self._last is None or self._last[0] != key:
            value = np.empty(len(self.observations))
            slopes = np.empty((len(self.observations), len(self.paths)))
            for block, program, arguments in self._blocks:
                computed = jax.device_get(program(jnp.asarray(logs, dtype=float), *arguments))
                value[block], slopes[block] = (array[: len(block)] for array in computed)
            self._last = key, value - self.measured, slopes
        return self._last[1], self._last[2]

    def _stacked(self) -> Iterator[tuple[np.ndarray, Callable, tuple]]:
        """Blocks of rows that share a program: their positions, the program, and its arguments."""
        systems = [system_of(observation.row, self.platforms) for observation in self.observations]
        by_program: dict[tuple, list[int]] = {}
        for index, observation in enumerate(self.observations):
            structure = structure_of(observation.kind, observation.row, self.platforms)
            by_program.setdefault((observation.kind, structure), []).append(index)
        where, applies = self._places(systems)
        for (kind, _), indices in by_program.items():
            size = min(BLOCK, len(indices))
            compiled = is_worth_compiling([self.observations[index].row for index in indices])
            for start in range(0, len(indices), size):
                block = indices[start : start + size]
                filled = block + block[-1:] * (size - len(block))
                arguments = (applies[filled], *self._arguments(kind, filled))
                program = _program(kind, where, compiled)
                yield np.array(block), program, jax.tree.map(jnp.asarray, arguments)

    def _arguments(self, kind: str, positions: list[int]) -> tuple[np.ndarray, np.ndarray, tuple]:
        """The index of the measured column, the sign and the estimator's inputs of some rows."""
        rows, columns = [self.observations[position] for position in positions], measured_columns(kind)
        which = np.array([columns.index(row.column) for row in rows])
        sign = np.array([row.sign for row in rows])
        return which, sign, EVALUATORS[kind].stack([row.row for row in rows], self.platforms)

    def _places(self, systems: Sequence[System]) -> tuple[Places, Bool[np.ndarray, "rows places"]]:
        """The places of the parameters in the rows' systems, and which of them every row has.

        A value of a stack holds for rows that this stack drove; rows of other software keep their own.
        """
        fitted_parts = parts(self.system)
        distinct = {id(system): system for system in systems}
        of_system = {
            key: {
                (place, index)
                for index, path in enumerate(self.paths)
                for place in places(path, fitted_parts, system)
            }
            for key, system in distinct.items()
        }
        own = {(path, index) for index, path in enumerate(self.paths)}
        known = sorted(own.union(*of_system.values()))
        applies = [[place in of_system[id(system)] for place in known] for system in systems]
        which = np.array(applies, dtype=bool).reshape(len(systems), len(known))
        return Places(tuple(path for path, _ in known), tuple(index for _, index in known)), which
