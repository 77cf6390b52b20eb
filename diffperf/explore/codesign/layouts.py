"""Possible layouts: values of the variables that lay a model out on devices, by `diffperf.workload.rules`.

The degrees of parallelism must multiply to the number of devices and divide heads, layers, experts and
batches. Such values lie far from each other, so that rounding each degree on its own rarely meets them. They
are few enough to list: every start of the search holds one of the list. Of several workloads each has a list
of its own, since no rule reads two of them; only where the number of devices varies, which they share, there
is one list for all.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from diffperf import units
from diffperf.errors import ConfigError
from diffperf.explore.codesign.variables import DesignVector, Variable
from diffperf.quantity import Choice, locate
from diffperf.workload.configuration import Configuration
from diffperf.workload.rules import Violation, broken, first_violation

_TWOS_AND_THREES = 6**20  # products of up to 20 twos and as many threes divide it

# The inputs that the rules read and that a problem may vary, in every phase and only in training.
ALWAYS_READ = (
    "system.n_devices", "strategy.tp", "strategy.pp", "strategy.dp", "strategy.cp", "strategy.ep",
    "strategy.expert_tp", "strategy.virtual_stages", "strategy.context_parallel", "strategy.sequence_length",
    "strategy.global_batch",
)  # fmt: skip
READ_IN_TRAINING = ("strategy.micro_batch", "strategy.zero_ranks", "strategy.schedule")
DEVICES = "system.n_devices"
# The degrees whose product is the number of devices, and all numbers that divide it.
DEGREES = ("strategy.tp", "strategy.pp", "strategy.dp", "strategy.cp")
DIVISORS_OF_DEVICES = (*DEGREES, "strategy.ep", "strategy.expert_tp", "strategy.zero_ranks")
# Combinations whose rules are looked at: about a second's work.
MOST_COMBINATIONS = 200_000
# Of a range with more whole numbers than this, where combinations are too many, only products of twos and
# threes stay.
LONG_RANGE = 32


@dataclasses.dataclass(frozen=True)
class Layouts:
    """The possible layouts of one workload, or of all.

    - `entries`: the indices of the entries that they set in the vector of variables.
    - `values`: one row of values for each layout.
    - `name`: how progress messages call them.
    """

    entries: Int[np.ndarray, " entries"]
    values: Float[np.ndarray, "layouts entries"]
    name: str = "layout"

    def __len__(self):
        return len(self.values)

    def sorted(self, order: Int[np.ndarray, " layouts"]) -> "Layouts":
        """These layouts in another order."""
        return dataclasses.replace(self, values=self.values[order])

    def applied(self, x: Float[np.ndarray, " n"]) -> Float[np.ndarray, "layouts n"]:
        """A vector of variables with each layout in turn."""
        rows = np.tile(x, (len(self), 1))
        rows[:, self.entries] = self.values
        return rows


@dataclasses.dataclass(frozen=True)
class WorkloadLayout:
    """Lists the possible layouts of one workload.

    - `number`: its place among the workloads, from 0; `phase`: its phase.
    - `file`: the file of the problem, which errors name.
    """

    vector: DesignVector
    number: int
    phase: str
    file: str

    @property
    def prefix(self) -> str:
        """Beginning of the paths of the workload's inputs; empty for the first workload."""
        return f"beside.{self.name}." if self.number else ""

    @property
    def name(self) -> str:
        """The name of a workload beside the first; empty for the first."""
        return self.vector.baseline.beside[self.number - 1].name.text if self.number else ""

    @property
    def varies_devices(self) -> bool:
        """Whether the number of devices is a variable."""
        return DEVICES in self.vector.paths

    def is_variable(self, path: str) -> bool:
        """Whether an input of the workload's own strategy is a variable."""
        return self.prefix + path in self.vector.paths

    def given(self, path: str) -> float:
        """An input of the workload in the baseline."""
        return float(locate(self.vector.baseline, self.prefix + path)[0])

    def own(self, variable: Variable) -> str:
        """A variable's path as if the workload were the only one."""
        return variable.path.removeprefix(self.prefix)

    def group(self) -> list[tuple[int, Variable]]:
        """The variables that the rules read, with the indices of their first entries."""
        read = ALWAYS_READ + (READ_IN_TRAINING if self.phase == "training" else ())
        paths = {path if path == DEVICES else self.prefix + path for path in read}
        return [(begin, variable) for begin, variable in self.vector.placed() if variable.path in paths]

    def configuration(self, x: jax.Array) -> Configuration:
        """The configuration of the workload at a vector of variables; pure JAX."""
        candidate = self.vector.candidate(x)
        return candidate.configurations(candidate.system)[self.number]

    def broken(self, rows: np.ndarray) -> np.ndarray:
        """Number of rules of layouts that each vector of variables breaks, (rows,)."""
        if not len(rows):
            return np.zeros(0)
        rules = jax.vmap(lambda x: broken(self.configuration(x), self.phase))
        return np.asarray(jax.jit(rules)(jnp.asarray(rows)))

    def layouts(self) -> Layouts | None:
        """The layouts that the variables allow; None where no variable is part of the layout."""
        group = self.group()
        if not group:
            return None
        entries = np.concatenate([np.arange(begin, begin + variable.size) for begin, variable in group])
        combinations = _combinations(self, [variable for _, variable in group])
        layouts = Layouts(entries, combinations, f"layout of {self.name}" if self.name else "layout")
        violations = self.broken(layouts.applied(self.vector.start))
        if not np.any(violations == 0):
            raise _no_layout(self, layouts, violations)
        return dataclasses.replace(layouts, values=combinations[violations == 0])


def possible_layouts(vector: DesignVector, phases: Sequence[str], file: str) -> tuple[Layouts, ...]:
    """The layouts that the variables allow to the workloads of some phases, for those workloads that have a
    variable of their layout: each sets entries of its own.

    **Raises:** `ConfigError` where the bounds of the variables leave no layout, or too many to list.
    """
    workloads = [WorkloadLayout(vector, number, phase, file) for number, phase in enumerate(phases)]
    of_workloads = [layouts for layouts in (each.layouts() for each in workloads) if layouts is not None]
    if DEVICES not in vector.paths:
        return tuple(of_workloads)
    begin = next(begin for begin, variable in vector.placed() if variable.path == DEVICES)
    return (functools.reduce(functools.partial(_joined, begin, file), of_workloads),)


def _joined(devices: int, file: str, first: Layouts, second: Layouts) -> Layouts:
    """Every layout of one workload with every one of another on as many devices, the entry `devices`."""
    ours, theirs = (np.flatnonzero(each.entries == devices)[0] for each in (first, second))
    same = first.values[:, ours][:, None] == second.values[:, theirs][None]
    if not 0 < same.sum() <= MOST_COMBINATIONS:
        found = "more layouts of all workloads together than can be listed"
        if not same.any():
            found = "no number of devices on which every workload has a layout"
        expected = f"1 to {MOST_COMBINATIONS:,} layouts of all workloads on the same devices"
        raise ConfigError(file, "variable", found, expected, f"change from and to of {DEVICES}")
    left, right = np.nonzero(same)
    others = np.delete(np.arange(len(second.entries)), theirs)
    values = np.hstack([first.values[left], second.values[right][:, others]])
    return Layouts(np.concatenate([first.entries, second.entries[others]]), values)


def broken_rule(vector: DesignVector, phases: Sequence[str], x: np.ndarray) -> tuple[int, Violation] | None:
    """The first rule that a vector of variables breaks: the workload's number from 0, and the violation.

    None where it breaks none.
    """
    candidate = vector.candidate(jnp.asarray(x))
    configurations = candidate.configurations(candidate.system)
    for number, (configuration, phase) in enumerate(zip(configurations, phases, strict=True)):
        violation = first_violation(configuration, phase)
        if violation is not None:
            return number, violation
    return None


def _combinations(of: WorkloadLayout, group: list[Variable]) -> np.ndarray:
    """Every combination of values worth a look, (combinations, entries): their degrees divide the devices."""
    rows, product = np.zeros((1, 0)), np.array([_given_degrees(of)])
    for variable in group:
        options = _options(of, variable)
        if len(rows) * len(options) > MOST_COMBINATIONS:
            options = _thinned(options)
        if len(rows) * len(options) > MOST_COMBINATIONS:
            raise _too_many(group, of.file)
        rows = np.hstack([np.repeat(rows, len(options), axis=0), np.tile(options, (len(rows), 1))])
        product = np.repeat(product, len(options))
        if of.own(variable) in DEGREES:
            product = product * rows[:, -1]
        if not of.varies_devices:
            divide = float(of.vector.baseline.system.n_devices) % product == 0
            rows, product = rows[divide], product[divide]
    return rows


def _given_degrees(of: WorkloadLayout) -> float:
    """The product of the degrees that are neither variables nor follow from the others."""
    given = [path for path in DEGREES if not of.is_variable(path)]
    if f"{of.prefix}strategy" in of.vector.derives_dp and "strategy.dp" in given:
        given.remove("strategy.dp")
    return math.prod(of.given(path) for path in given)


def _too_many(group: list[Variable], file: str) -> ConfigError:
    """The error for a layout of more variables than can be listed."""
    names = ", ".join(variable.name for variable in group)
    expected = f"at most {MOST_COMBINATIONS:,} combinations to look at"
    remedy = "bring from and to of these variables closer together"
    return ConfigError(file, "variable", f"more combinations of {names}", expected, remedy)


def _options(of: WorkloadLayout, variable: Variable) -> np.ndarray:
    """The whole values of one variable worth a look, (values, entries): of divisors those that divide."""
    if isinstance(variable.declared, Choice):
        return variable.choices
    low, high = variable.whole_numbers()
    numbers = np.arange(low, high + 1) if variable.values is None else np.array(variable.values)
    if of.own(variable) in DIVISORS_OF_DEVICES and not of.varies_devices:
        numbers = numbers[float(of.vector.baseline.system.n_devices) % np.maximum(numbers, 1) == 0]
    if of.own(variable) == "strategy.micro_batch" and not of.is_variable("strategy.global_batch"):
        numbers = numbers[of.given("strategy.global_batch") % np.maximum(numbers, 1) == 0]
    return numbers[:, None].astype(float)


def _thinned(options: np.ndarray) -> np.ndarray:
    """A long range of numbers, thinned to 0 and products of twos and threes, which divide most sizes of
    models.
    """
    if len(options) <= LONG_RANGE:
        return options
    numbers = options[:, 0].astype(int)
    return options[(numbers == 0) | (_TWOS_AND_THREES % np.maximum(numbers, 1) == 0)]


def _no_layout(of: WorkloadLayout, layouts: Layouts, violations: np.ndarray) -> ConfigError:
    """The error for variables without a possible layout: what the combination nearest to one breaks."""
    vector, expected = of.vector, "bounds that leave a layout of the devices"
    if not len(layouts):
        number = units.plain(vector.baseline.system.n_devices)
        found = f"no whole numbers within the bounds that divide n_devices = {number}"
        if of.name:
            found += f" for {of.name}"
        return ConfigError(of.file, "variable", found, expected, "widen from and to of the degrees")
    nearest = layouts.applied(vector.start)[int(np.argmin(violations))]
    rule = first_violation(of.configuration(jnp.asarray(nearest)), of.phase)
    assert rule is not None, "the combination breaks a rule"
    values = ", ".join(
        f"{variable.name} {units.plain(vector.value(nearest, begin, variable))}"
        for begin, variable in vector.placed()
        if begin in layouts.entries and not isinstance(variable.declared, Choice)
    )
    found = f"no possible layout: the nearest ({values}) has {rule.key} {rule.found}, not {rule.expected}"
    return ConfigError(of.file, "variable", found, expected, f"{rule.remedy}, or widen from and to")
