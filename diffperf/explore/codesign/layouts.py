"""Possible layouts: values of the variables that lay a model out on devices, by `diffperf.workload.rules`.

The degrees of parallelism must multiply to the number of devices and divide heads, layers, experts and
batches. Such values lie far from each other, so that rounding each degree on its own rarely meets them. They
are few enough to list: every start of the search holds one of the list.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from diffperf.errors import ConfigError
from diffperf.explore.codesign.variables import DesignVector, Variable
from diffperf.quantity import Choice, locate
from diffperf.workload.rules import Violation, broken, first_violation

# The inputs that the rules read and that a problem may vary, in every phase and only in training.
ALWAYS_READ = (
    "system.n_devices", "strategy.tp", "strategy.pp", "strategy.dp", "strategy.cp", "strategy.ep",
    "strategy.expert_tp", "strategy.virtual_stages", "strategy.context_parallel", "strategy.sequence_length",
    "strategy.global_batch",
)  # fmt: skip
READ_IN_TRAINING = ("strategy.micro_batch", "strategy.zero_ranks", "strategy.schedule")
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
    """The possible layouts.

    - `entries`: the indices of the entries that they set in the vector of variables.
    - `values`: one row of values for each layout.
    """

    entries: Int[np.ndarray, " entries"]
    values: Float[np.ndarray, "layouts entries"]

    def __len__(self):
        return len(self.values)

    def sorted(self, order: Int[np.ndarray, " layouts"]) -> "Layouts":
        """The same layouts in another order."""
        return Layouts(self.entries, self.values[order])

    def applied(self, x: Float[np.ndarray, " n"]) -> Float[np.ndarray, "layouts n"]:
        """A vector of variables with each layout in turn."""
        rows = np.tile(x, (len(self), 1))
        rows[:, self.entries] = self.values
        return rows


def possible_layouts(vector: DesignVector, phase: str, file: str) -> Layouts | None:
    """The layouts that the variables allow; None where no variable is part of the layout.

    **Raises:** `ConfigError` where the bounds of the variables leave no layout, or too many to list.
    """
    read = ALWAYS_READ + (READ_IN_TRAINING if phase == "training" else ())
    group = [(begin, variable) for begin, variable in vector.placed() if variable.path in read]
    if not group:
        return None
    entries = np.concatenate([np.arange(begin, begin + variable.size) for begin, variable in group])
    combinations = _combinations(vector, [variable for _, variable in group], file)
    layouts = Layouts(entries, combinations)
    violations = _broken_rules(vector, phase, layouts.applied(vector.start))
    if not np.any(violations == 0):
        raise _no_layout(vector, phase, file, layouts, violations)
    return Layouts(entries, combinations[violations == 0])


def _broken_rules(vector: DesignVector, phase: str, rows: np.ndarray) -> np.ndarray:
    """How many rules of layouts each vector of variables breaks, (rows,)."""
    if not len(rows):
        return np.zeros(0)
    return np.asarray(jax.jit(jax.vmap(lambda x: broken_rules(vector, phase, x)))(jnp.asarray(rows)))


def broken_rules(vector: DesignVector, phase: str, x: jax.Array) -> jax.Array:
    """How many rules of layouts a vector of variables breaks; pure JAX."""
    return broken(vector.candidate(x).configuration, phase)


def broken_rule(vector: DesignVector, phase: str, x: np.ndarray) -> Violation | None:
    """The violation of the first rule that a vector of variables breaks, None where it breaks none."""
    return first_violation(vector.candidate(jnp.asarray(x)).configuration, phase)


def _combinations(vector: DesignVector, group: list[Variable], file: str) -> np.ndarray:
    """Every combination of values worth a look, (combinations, entries): their degrees divide the devices."""
    rows, product = np.zeros((1, 0)), np.array([_given_degrees(vector)])
    for variable in group:
        options = _options(vector, variable)
        if len(rows) * len(options) > MOST_COMBINATIONS:
            options = _thinned(options)
        if len(rows) * len(options) > MOST_COMBINATIONS:
            raise _too_many(group, file)
        rows = np.hstack([np.repeat(rows, len(options), axis=0), np.tile(options, (len(rows), 1))])
        product = np.repeat(product, len(options))
        if variable.path in DEGREES:
            product = product * rows[:, -1]
        if "system.n_devices" not in vector.paths:
            divide = float(vector.baseline.system.n_devices) % product == 0
            rows, product = rows[divide], product[divide]
    return rows


def _given_degrees(vector: DesignVector) -> float:
    """The product of the degrees that are neither variables nor follow from the others."""
    given = [path for path in DEGREES if path not in vector.paths]
    if vector.derives_dp and "strategy.dp" in given:
        given.remove("strategy.dp")
    return math.prod(float(locate(vector.baseline, path)[0]) for path in given)


def _too_many(group: list[Variable], file: str) -> ConfigError:
    """The error for a layout of more variables than can be listed."""
    names = ", ".join(variable.path for variable in group)
    expected = f"at most {MOST_COMBINATIONS:,} combinations to look at"
    remedy = "bring from and to of these variables closer together"
    return ConfigError(file, "variable", f"more combinations of {names}", expected, remedy)


def _options(vector: DesignVector, variable: Variable) -> np.ndarray:
    """The whole values of one variable worth a look, (values, entries): of divisors those that divide."""
    if isinstance(variable.declared, Choice):
        return np.eye(variable.size)
    low, high = variable.whole_numbers()
    numbers = np.arange(low, high + 1) if variable.values is None else np.array(variable.values)
    if variable.path in DIVISORS_OF_DEVICES and "system.n_devices" not in vector.paths:
        numbers = numbers[float(vector.baseline.system.n_devices) % np.maximum(numbers, 1) == 0]
    if variable.path == "strategy.micro_batch" and "strategy.global_batch" not in vector.paths:
        numbers = numbers[float(vector.baseline.strategy.global_batch) % np.maximum(numbers, 1) == 0]
    return numbers[:, None].astype(float)


def _thinned(options: np.ndarray) -> np.ndarray:
    """Of a long range of numbers, 0 and products of twos and threes, which divide most sizes of models."""
    if len(options) <= LONG_RANGE:
        return options
    numbers = options[:, 0].astype(int)
    return options[(numbers == 0) | (6**20 % np.maximum(numbers, 1) == 0)]


def _no_layout(
    vector: DesignVector, phase: str, file: str, layouts: Layouts, violations: np.ndarray
) -> ConfigError:
    """The error for variables without a possible layout: what the combination nearest to one breaks."""
    expected = "bounds that leave a layout of the devices"
    if not len(layouts):
        number = f"{float(vector.baseline.system.n_devices):g}"
        found = f"no whole numbers within the bounds that divide n_devices = {number}"
        return ConfigError(file, "variable", found, expected, "widen from and to of the degrees")
    nearest = layouts.applied(vector.start)[int(np.argmin(violations))]
    rule = broken_rule(vector, phase, nearest)
    assert rule is not None, "the combination breaks a rule"
    values = ", ".join(
        f"{variable.path} {vector.value(nearest, begin, variable):g}"
        for begin, variable in vector.placed()
        if begin in layouts.entries and not isinstance(variable.declared, Choice)
    )
    found = f"no possible layout: the nearest ({values}) has {rule.key} {rule.found}, not {rule.expected}"
    return ConfigError(file, "variable", found, expected, f"{rule.remedy}, or widen from and to")
