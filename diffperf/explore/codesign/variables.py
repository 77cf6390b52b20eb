"""The variables of a design problem, and the candidate that a vector of their values stands for."""

import dataclasses
from typing import cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from diffperf.hardware.chip import ChipDesign
from diffperf.hardware.node import Node, node_at
from diffperf.hardware.system import System
from diffperf.hardware.technology import Technology, moved
from diffperf.quantity import Choice, Label, Quantity, is_traced, label, locate, replace
from diffperf.report.tables import show
from diffperf.workload.configuration import Configuration
from diffperf.workload.model import Model
from diffperf.workload.strategy import Strategy

# Each of these of a strategy, where it varies, changes what is left of the devices for data parallelism, and
# so does each of these of the system.
DIVIDES_DEVICES = ("tp", "pp", "cp")
COUNTS_DEVICES = {"system", "system.n_devices"}

# The variables that move the technology to another silicon node: by interpolation between nodes, or to one of
# some nodes.
FEATURE = "technology.feature"
NODE = "technology.node"


@dataclasses.dataclass(frozen=True)
class Bounds:
    """The range of every entry of a vector of variables, and whether it is searched by its logarithm."""

    low: Float[np.ndarray, " n"]
    high: Float[np.ndarray, " n"]
    log: Bool[np.ndarray, " n"]


class Job(eqx.Module):
    """A workload that runs beside the first one on the same system."""

    model: Model
    strategy: Strategy
    name: Label = label("name of the workload, such as chat")


class Candidate(eqx.Module):
    """Everything that the path of a variable may point into."""

    design: ChipDesign
    model: Model
    system: System
    strategy: Strategy
    technology: Technology
    beside: tuple[Job, ...] = ()

    @property
    def configuration(self) -> Configuration:
        """The candidate's model, strategy, and system as configured: without the chip of its design."""
        return Configuration(self.model, self.system, self.strategy)

    def configurations(self, system: System) -> list[Configuration]:
        """Configurations on a system: of the first workload, and of those beside it."""
        jobs = [(self.model, self.strategy), *((job.model, job.strategy) for job in self.beside)]
        return [Configuration(model, system, strategy) for model, strategy in jobs]


def with_part(candidate: Candidate, path: str, part: eqx.Module) -> Candidate:
    """A candidate with another module at a path."""
    return eqx.tree_at(lambda tree: locate(tree, path)[0], candidate, part)


@dataclasses.dataclass(frozen=True)
class Variable:
    """A number between `low` and `high`, or the weights of a choice, that the search may change.

    - `values`: the only numbers to choose from, where not every one of the range is; of a choice, the places
      of the alternatives that it is among.
    - `options`: of a choice between configs, such as generations of memory: what each of them holds.
    """

    path: str
    declared: Quantity | Choice
    low: float
    high: float
    values: tuple[float, ...] | None = None
    options: tuple[eqx.Module, ...] | None = dataclasses.field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The path as a problem's file gives it: of a workload beside the first, its name comes first."""
        return self.path.removeprefix("beside.")

    @property
    def size(self) -> int:
        """Entries of the vector of variables: one for a number, one for each alternative of a choice."""
        return len(self.declared.alternatives) if isinstance(self.declared, Choice) else 1

    @property
    def whole(self) -> bool:
        """Whether the variable takes separate values alone: whole numbers, listed ones, and choices."""
        return isinstance(self.declared, Choice) or self.declared.integer or self.values is not None

    @property
    def choices(self) -> Float[np.ndarray, "choices alternatives"]:
        """The weights of every alternative that the choice is among."""
        rows = np.eye(self.size)
        return rows if self.values is None else rows[[int(place) for place in self.values]]

    def chosen(self, weights: Float[Array, " options"]) -> eqx.Module:
        """The config that the weights over `options` stand for: one of the options itself where it has
        all weight.
        """
        assert self.options is not None
        if not is_traced(weights) and np.max(weights) == 1:
            return self.options[int(np.argmax(weights))]  # with its own name
        return jax.tree.map(lambda *leaves: jnp.tensordot(weights, jnp.stack(leaves), 1), *self.options)

    def baseline(self, candidate: Candidate) -> np.ndarray:
        """The entries of the variable in a candidate, with the first option where it holds none of them."""
        if self.options is None:
            return np.atleast_1d(np.asarray(locate(candidate, self.path)[0], dtype=float))
        return np.eye(len(self.options))[self.held_option(candidate) or 0]

    def shown_in(self, candidate: Candidate) -> str:
        """The variable's value in a candidate, as text with its unit; of a config its name."""
        value = locate(candidate, self.path)[0]
        if self.options is None:
            return show(np.asarray(value, dtype=float), self.declared)
        place = self.held_option(candidate)
        if place is None:
            return str(value) if self.path == NODE else str(getattr(value, "name", ""))
        return show(np.eye(self.size)[place], self.declared)

    def held_option(self, candidate: Candidate) -> int | None:
        """The place of the option that a candidate holds; None where it holds none of them.

        Of options with the same numbers, it holds the one of the same name.
        """
        assert self.options is not None
        if self.path == NODE:
            feature = float(candidate.technology.feature)
            features = [float(locate(node, "feature")[0]) for node in self.options]
            return next((i for i, each in enumerate(features) if np.isclose(each, feature)), None)
        part, options = jax.tree.map(np.asarray, (locate(candidate, self.path)[0], self.options))
        same = [place for place, each in enumerate(options) if eqx.tree_equal(part, each)]
        name = str(getattr(part, "name", ""))
        named = [place for place in same if str(getattr(options[place], "name", "")) == name]
        return next(iter(named + same), None)

    def whole_numbers(self) -> tuple[int, int]:
        """The least and the greatest whole number within the variable's bounds."""
        return int(np.ceil(self.low)), int(np.floor(self.high))


@dataclasses.dataclass(frozen=True)
class DesignVector:
    """The variables of a design problem, in the order of the entries of a vector.

    - `baseline`: the candidate to start from, and the value of everything that is no variable.
    - `derives_dp`: the paths of the strategies whose data-parallel degree follows from the others, because
      nobody gave it: "strategy", and "beside.chat.strategy" of a workload beside the first.
    - `nodes`: the silicon nodes, their features increasing, that a variable `technology.feature` moves the
      technology between.
    - `kept`: the paths into the technology that keep the baseline's numbers where it moves to another node,
      because the problem sets them.
    """

    baseline: Candidate
    variables: tuple[Variable, ...]
    derives_dp: tuple[str, ...] = ()
    nodes: tuple[Node, ...] = ()
    kept: tuple[str, ...] = ()

    @property
    def paths(self) -> set[str]:
        """The paths of all variables."""
        return {variable.path for variable in self.variables}

    def placed(self) -> list[tuple[int, Variable]]:
        """Every variable with the index of its first entry."""
        begins = np.cumsum([0, *(variable.size for variable in self.variables)])[:-1]
        return [(int(begin), variable) for begin, variable in zip(begins, self.variables, strict=True)]

    def value(self, x: np.ndarray, begin: int, variable: Variable) -> np.ndarray | np.floating:
        """A variable's value in a vector: a number, or weights over alternatives."""
        return x[begin : begin + variable.size] if isinstance(variable.declared, Choice) else x[begin]

    @property
    def bounds(self) -> Bounds:
        """The range and the scale of every entry."""
        sizes = [variable.size for variable in self.variables]
        scales = [isinstance(v.declared, Quantity) and v.declared.log for v in self.variables]
        return Bounds(
            low=np.repeat([float(variable.low) for variable in self.variables], sizes),
            high=np.repeat([float(variable.high) for variable in self.variables], sizes),
            log=np.repeat(scales, sizes),
        )

    @property
    def start(self) -> Float[np.ndarray, " n"]:
        """The baseline as a vector, moved into the bounds."""
        parts = [variable.baseline(self.baseline) for variable in self.variables]
        return np.clip(np.concatenate(parts), self.bounds.low, self.bounds.high)

    @property
    def starts_as_sold(self) -> bool:
        """Whether the bounds of every variable contain its value in the baseline."""
        parts = [variable.baseline(self.baseline) for variable in self.variables]
        options = [variable for variable in self.variables if variable.options is not None]
        held = all(variable.held_option(self.baseline) is not None for variable in options)
        return held and np.allclose(np.concatenate(parts), self.start)

    def candidate(self, x: Float[Array, " n"]) -> Candidate:
        """The candidate that a vector stands for; pure JAX."""
        candidate, values, node = self.baseline, {}, None
        # A config goes before the parts of it, which would be lost in it.
        for begin, variable in sorted(self.placed(), key=lambda each: each[1].path.count(".")):
            value = x[begin : begin + variable.size] if isinstance(variable.declared, Choice) else x[begin]
            if variable.path == NODE:
                node = cast(Node, variable.chosen(value))
            elif variable.path == FEATURE:
                node = node_at(self.nodes, value)
            elif variable.options is None:
                values[variable.path] = value
            else:
                candidate = with_part(candidate, variable.path, variable.chosen(value))
        if node is not None:
            given = {path: locate(candidate, path)[0] for path in self.kept}
            candidate = dataclasses.replace(candidate, technology=moved(candidate.technology, node))
            candidate = replace(candidate, given) if given else candidate
        candidate = replace(candidate, values) if values else candidate
        derived = {
            f"{path}.dp": self._data_parallel(candidate, path)
            for path in self.derives_dp
            if self.paths & (COUNTS_DEVICES | {f"{path}.{degree}" for degree in DIVIDES_DEVICES})
            and f"{path}.dp" not in self.paths
        }
        return replace(candidate, derived) if derived else candidate

    @staticmethod
    def _data_parallel(candidate: Candidate, path: str) -> Array:
        """The data-parallel degree that the other degrees of a strategy leave of the devices."""
        strategy: Strategy = locate(candidate, path)[0]
        # Fewer devices than tp·pp·cp leave less than one rank, which the rules of layouts refuse.
        return jnp.maximum(candidate.system.n_devices / (strategy.tp * strategy.pp * strategy.cp), 1.0)
