"""The strategies to compare where a user leaves fields of a strategy open: all integer layouts that make
sense.

A set of candidates is one array per field of the strategy. Choices become weights over alternatives, so
that candidates that differ in any field are rows of one batch for one compiled program.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool

from diffperf.errors import ARGUMENTS
from diffperf.hardware.system import System
from diffperf.load import load_strategy, refuse_training_fields
from diffperf.quantity import Scalar, Weights, replace
from diffperf.workload.configuration import Configuration
from diffperf.workload.model import Model
from diffperf.workload.rules.expert_rules import common_experts
from diffperf.workload.strategy import Strategy
from diffperf.workload.whole_numbers import divisors

DEGREES = ("tp", "pp", "dp")
EXPERT_DEGREES = ("ep", "expert_tp")  # of models with experts
LAYOUT = (
    *DEGREES,
    *EXPERT_DEGREES,
)  # what `diffperf estimate` searches; `diffperf plan` searches all of FIELDS

# The limits of the search, beside what the rules of `diffperf.workload.rules` allow. They are estimates of
# what nobody would run. A field that the user gives is kept whatever its value.
_LONGEST_STAGE = 1.05  # layers of the longest pipeline stage over the mean, at most
_SHORTEST_PART = 4096  # tokens of a sequence that a context-parallel rank keeps, at least
_MICRO_BATCHES = (1.0, 2.0, 4.0, 8.0)

# Sets of operator classes that training software recomputes: DeepSeek-V3's (arXiv 2412.19437 §3.2.3), the
# up-projections alone (Megatron-Core's mla_up_proj), and all but attention and its projections
# (Megatron-Core's layernorm, mla_up_proj, mlp and moe).
_RECOMPUTED_SETS: tuple[frozenset[str], ...] = (
    frozenset(),
    frozenset({"norms", "activation_functions", "up_projections"}),
    frozenset({"up_projections"}),
    frozenset({"norms", "up_projections", "mlp", "experts"}),
)
_RECOMPUTED_CLASSES = ("norms", "activation_functions", "up_projections", "mlp", "experts")

# What is searched of each field, as `diffperf plan` tells its user.
SEARCHED = {
    "tp": "tensor-parallel degrees that divide the attention heads, within the innermost network tier",
    "embedding_in_split": "token embedding beside the layers of the first stage, or in place of one of them",
    "loss_in_split": "vocabulary projection beside the layers of the last stage, or in place of one of them",
    "pp": "numbers of pipeline stages of which the longest has at most "
    f"{100 * _LONGEST_STAGE - 100:.0f} % more layers than the mean",
    "cp": "context-parallel degrees of 1, and those that leave each rank at least "
    f"{_SHORTEST_PART:,} tokens of a sequence",
    "ep": "expert-parallel degrees that divide the experts",
    "expert_tp": "tensor-parallel degrees of the experts that divide that of all else",
    "schedule": "the pipeline schedules asked for",
    "virtual_stages": "numbers of virtual stages as even as the stages must be (schedule 1f1b only)",
    "micro_batch": f"micro-batches of {', '.join(f'{size:g}' for size in _MICRO_BATCHES)} sequences",
    "last_stage_layers": "where layers do not divide evenly, fewer of them in the last stage, and in the "
    "first if need be",
    "recompute": "recomputation: none, full, of scores where they are stored, or of norms and experts' "
    "activation functions, latent up-projections, or all but attention",
    "zero": "ZeRO stages 0 to 3, stages 2 and 3 without a pipeline",
}
# All fields that may be searched, in the order in which they are set: dp is what tp, pp and cp leave of the
# devices.
FIELDS = (
    "tp",
    "embedding_in_split",
    "loss_in_split",
    "pp",
    "cp",
    "dp",
    "ep",
    "expert_tp",
    "schedule",
    "virtual_stages",
    "first_stage_layers",
    "last_stage_layers",
    "micro_batch",
    "recompute",
    *(f"recompute_{name}" for name in _RECOMPUTED_CLASSES),
    "zero",
)

# Fields of a group are searched only where none of them is given.
_SEARCHED_TOGETHER = (
    ("first_stage_layers", "last_stage_layers"),
    ("recompute", *(f"recompute_{name}" for name in _RECOMPUTED_CLASSES)),
)

# One array per field of the strategy: numbers, (candidates,), or weights over alternatives, (candidates,
# alternatives).
Candidates = dict[str, np.ndarray]

# While candidates are enumerated, a choice is the name of its alternative: numbers or names, (candidates,),
# per field.
_Columns = dict[str, np.ndarray]


def default_global_batch(system: System, strategy: Strategy) -> Scalar:
    """Sequences per training step where nobody gives them: one micro-batch per device.

    This number does not depend on the layout, every layout divides it, and Korthikanti et al. scale their
    largest models by it (arXiv 2205.05198, Table 3: 280 sequences on 280 GPUs, 512 on 512).
    """
    return system.n_devices * strategy.micro_batch


def starting_strategy(
    system: System, table: dict[str, Any], phase: str = "training", file: str = ARGUMENTS
) -> Strategy:
    """The strategy with the fields of `table`, in training with the default global batch where the table
    gives none.

    **Raises:** `ConfigError` that names `file` for a bad value, and in a phase of inference for a field of
    training.
    """
    strategy = load_strategy(table, file)
    refuse_training_fields(table, phase, file)
    if phase == "training" and "global_batch" not in table:
        return replace(strategy, {"global_batch": default_global_batch(system, strategy)})
    return strategy


def enumerate_candidates(
    inputs: Configuration,
    given: Collection[str],
    searched: Collection[str] = LAYOUT,
    schedules: Iterable[str] = ("1f1b",),
) -> Candidates:
    """All strategies whose degrees multiply to the number of devices, keeping the fields that are `given`.

    Fields of `searched` that are not given take the values that `SEARCHED` describes; the rest is as in the
    strategy of `inputs`. Where no strategy is left, the strategy of `inputs` is the only candidate, for the
    rules to explain.
    """
    strategy, devices = inputs.strategy, float(inputs.system.n_devices)
    fixed = {*given, *(name for group in _SEARCHED_TOGETHER if {*group} & {*given} for name in group)}
    opened = [name for name in FIELDS if name in searched and name not in fixed]
    start = {name: np.array([_number_or_name(getattr(strategy, name))]) for name in FIELDS}
    columns = start
    for name in FIELDS:
        if name == "dp":
            columns = _with_data_parallel(columns, devices, opened="dp" in opened)
        elif name in opened and name == "first_stage_layers":
            columns = _with_uneven_stages(columns, float(inputs.model.depth))
        elif name in opened and name != "last_stage_layers":
            columns = _with_every(columns, name, _VALUES[name](inputs, schedules))
            if name in _SENSIBLE:
                columns = _select(columns, _SENSIBLE[name](inputs.model, columns))
    if not len(columns["dp"]):
        columns = start | ({"dp": np.maximum(_devices_left(start, devices), 1)} if "dp" in opened else {})
    return {
        name: _as_leaves(getattr(strategy, name), values if name in opened else None, len(columns["dp"]))
        for name, values in columns.items()
    }


def single_candidate(strategy: Strategy, copies: int) -> Candidates:
    """The strategy itself as a number of equal candidates."""
    return {name: _as_leaves(getattr(strategy, name), None, copies) for name in FIELDS}


def _number_or_name(value: Any) -> float | str:
    """A number as it is; of weights, the name of the alternative with the largest weight."""
    if isinstance(value, Weights):
        return value.likeliest()
    return float(value)


def _as_leaves(given: Any, values: np.ndarray | None, count: int) -> np.ndarray:
    """A field of all candidates as the estimator takes it: choices as weights.

    `values` has the numbers or names of a field that is searched; without values, all candidates have the
    given leaf.
    """
    leaf = np.asarray(given)
    if values is None:
        return np.broadcast_to(leaf, (count, *leaf.shape))
    leaves = values[:, None] == np.array(given.alternatives) if isinstance(given, Weights) else values
    return np.asarray(leaves, leaf.dtype)


def _devices_left(columns: _Columns, devices: float) -> np.ndarray:
    """The devices that tp, pp and cp leave for dp."""
    return devices / (columns["tp"] * columns["pp"] * columns["cp"])


def _with_data_parallel(columns: _Columns, devices: float, opened: bool) -> _Columns:
    """Candidates whose degrees multiply to the devices: with the dp that makes it so where dp is open, else
    those of its dp."""
    left = _devices_left(columns, devices)
    columns = columns | {"dp": left if opened else np.broadcast_to(columns["dp"], left.shape)}
    # In float32 quotients of whole numbers are off by less than 1e-4, relative; degrees that do not divide,
    # by more.
    fills = np.abs(columns["dp"] - left) <= 1e-4 * left
    return _select(columns, fills & (columns["dp"] == np.round(columns["dp"])))


def _with_uneven_stages(columns: _Columns, depth: float) -> _Columns:
    """The candidates, and those whose layers do not divide once more, with as many layers as are missing
    taken from the last stage, which has the vocabulary projection, and the first.

    One layer less in the last stage, or in both, is what `loss_in_split` and `embedding_in_split` mean.
    """
    middle = np.ceil(depth / columns["pp"])
    missing = middle * columns["pp"] - depth
    in_split = (columns["embedding_in_split"] == "on") | (columns["loss_in_split"] == "on")
    has_middle = (columns["virtual_stages"] == 1) & (columns["pp"] > 2)
    parts = [columns]
    for fewer in (0, 1, 2):  # layers of the first stage; two of the last one
        which = has_middle & ~in_split & (missing == fewer + 2) & (middle > 2)
        # 0 stands for as many as the others.
        first = middle[which] - fewer if fewer else np.zeros(np.sum(which))
        ends = {"first_stage_layers": first, "last_stage_layers": middle[which] - 2}
        parts.append(_select(columns, which) | ends)
    return {name: np.concatenate([part[name] for part in parts]) for name in columns}


def _with_every(columns: _Columns, name: str, values: Sequence[float] | Sequence[str]) -> _Columns:
    """Every candidate with every value of a field."""
    count = len(columns["tp"])
    repeated = {other: np.repeat(column, len(values)) for other, column in columns.items()}
    return repeated | {name: np.tile(np.array(values), count)}


def _select(columns: _Columns, which: Bool[np.ndarray, " candidates"]) -> _Columns:
    """The candidates for which `which` is true."""
    return {name: column[which] for name, column in columns.items()}


# --- the values that an open field may take at all


def _ways(inputs: Configuration) -> list[float]:
    """The numbers of equal groups into which all devices can be split."""
    return [float(ways) for ways in divisors(float(inputs.system.n_devices))]


def _tensor_degrees(inputs: Configuration, schedules: Iterable[str]) -> list[float]:
    heads = [float(layers.heads) for layers in inputs.model.layers]
    innermost = float(inputs.system.network[0].size)
    return [ways for ways in _ways(inputs) if ways <= innermost and all(head % ways == 0 for head in heads)]


def _context_degrees(inputs: Configuration, schedules: Iterable[str]) -> list[float]:
    length = float(inputs.strategy.sequence_length)

    def long_enough(ways: float) -> bool:
        return length % ways == 0 and length / ways >= _SHORTEST_PART

    return [ways for ways in _ways(inputs) if ways == 1 or long_enough(ways)]


def _expert_degrees(inputs: Configuration, schedules: Iterable[str]) -> list[float]:
    return [float(ways) for ways in divisors(common_experts(inputs.model))]


def _expert_tensor_degrees(inputs: Configuration, schedules: Iterable[str]) -> list[float]:
    has_experts = any(layers.mixture is not None for layers in inputs.model.layers)
    return _ways(inputs) if has_experts else [0.0]


def _recomputations(inputs: Configuration, schedules: Iterable[str]) -> list[str]:
    """FlashAttention stores no scores, so that there selective recomputation is the same as none."""
    stores_scores = float(inputs.strategy.attention.standard) > 0
    return ["none", "selective", "full"] if stores_scores else ["none", "full"]


def _recomputed_sets(model: Model) -> set[frozenset[str]]:
    """The sets of operator classes that a model has, each once."""
    dense = all(layers.mixture is None for layers in model.layers)
    absent = {
        "up_projections": all(layers.latent is None for layers in model.layers),
        "mlp": all(layers.mixture is not None for layers in model.layers),
        "experts": dense,
        "activation_functions": dense,  # those of experts alone (Megatron-Core's moe_act)
    }
    return {frozenset(name for name in chosen if not absent.get(name)) for chosen in _RECOMPUTED_SETS}


def _in_recomputed_sets(name: str) -> Callable[[Configuration, Iterable[str]], list[float]]:
    """The shares of a stage's layers that may recompute a class of operators: 1 where some set has it."""

    def shares(inputs: Configuration, schedules: Iterable[str]) -> list[float]:
        return [0.0, 1.0] if any(name in chosen for chosen in _recomputed_sets(inputs.model)) else [0.0]

    return shares


_VALUES: dict[str, Callable[[Configuration, Iterable[str]], Sequence[float] | Sequence[str]]] = {
    "tp": _tensor_degrees,
    "embedding_in_split": lambda inputs, schedules: ["off", "on"],
    "loss_in_split": lambda inputs, schedules: ["off", "on"],
    "pp": lambda inputs, schedules: _ways(inputs),
    "cp": _context_degrees,
    "ep": _expert_degrees,
    "expert_tp": _expert_tensor_degrees,
    "schedule": lambda inputs, schedules: list(schedules),
    "virtual_stages": lambda inputs, schedules: [
        float(n + 1) for n in range(round(float(inputs.model.depth)))
    ],
    "micro_batch": lambda inputs, schedules: _MICRO_BATCHES,
    "recompute": _recomputations,
    **{f"recompute_{name}": _in_recomputed_sets(name) for name in _RECOMPUTED_CLASSES},
    "zero": lambda inputs, schedules: inputs.strategy.zero.alternatives,
}


# --- the candidates to go on with once a field is set


def _even_stages(model: Model, columns: _Columns) -> Bool[np.ndarray, " candidates"]:
    """Every chunk has a layer, and the longest chunk is not much longer than the mean.

    Embeddings count as a layer only where that makes all chunks equal, which they are not without.
    """
    depth, chunks = float(model.depth), columns["pp"] * columns["virtual_stages"]
    embeddings = (columns["embedding_in_split"] == "on") * 1.0 + (columns["loss_in_split"] == "on")
    shared = depth + embeddings
    even = (chunks <= shared) & (np.ceil(shared / chunks) * chunks <= _LONGEST_STAGE * shared)
    # Two stages of which each has an embedding are as even without.
    counts = (shared % chunks == 0) & (columns["pp"] > embeddings)
    return even & ((embeddings == 0) | counts)


def _split_with_loss(model: Model, columns: _Columns) -> Bool[np.ndarray, " candidates"]:
    """The embedding takes the place of a layer only where the vocabulary projection does, which takes
    longer.
    """
    return (columns["embedding_in_split"] == "off") | (columns["loss_in_split"] == "on")


def _experts_within_tensor_ranks(model: Model, columns: _Columns) -> Bool[np.ndarray, " candidates"]:
    """The tensor-parallel degree of the experts divides that of all else; 0 stands for the same degree."""
    return columns["tp"] % np.maximum(columns["expert_tp"], 1) == 0


def _schedules_of_pipelines(model: Model, columns: _Columns) -> Bool[np.ndarray, " candidates"]:
    """Without a pipeline all schedules are the same: only the first is kept."""
    return (columns["pp"] > 1) | (columns["schedule"] == columns["schedule"][:1])


def _interleaved_pipelines(model: Model, columns: _Columns) -> Bool[np.ndarray, " candidates"]:
    """Stages are virtual in a pipeline that runs 1f1b only, and as even as stages must be."""
    interleaves = (columns["pp"] > 1) & (columns["schedule"] == "1f1b")
    return (columns["virtual_stages"] == 1) | (interleaves & _even_stages(model, columns))


def _shared_states(model: Model, columns: _Columns) -> Bool[np.ndarray, " candidates"]:
    """ZeRO needs ranks that share. Stages 2 and 3 are left out of pipelines, where they would communicate
    gradients or weights with every micro-batch."""
    zero, shared = columns["zero"], columns["dp"] * columns["cp"] > 1
    return (zero == "0") | (shared & ((zero == "1") | (columns["pp"] == 1)))


def _begins_a_recomputed_set(name: str) -> Callable[[Model, _Columns], Bool[np.ndarray, " candidates"]]:
    """Keeps candidates whose recomputed classes of operators, up to this one, are those of a set that is
    recomputed together. Sets are recomputed beside the scores of attention where these are stored, and never
    beside whole layers.
    """
    known = _RECOMPUTED_CLASSES[: _RECOMPUTED_CLASSES.index(name) + 1]

    def sensible(model: Model, columns: _Columns) -> Bool[np.ndarray, " candidates"]:
        chosen = np.stack([columns[f"recompute_{each}"] for each in known], axis=-1)
        sets = [[float(each in members) for each in known] for members in _recomputed_sets(model)]
        in_a_set = np.any(np.all(chosen[:, None] == np.array(sets), axis=-1), axis=-1)
        beside = "selective" if "selective" in columns["recompute"] else "none"
        return in_a_set & (~np.any(chosen > 0, axis=-1) | (columns["recompute"] == beside))

    return sensible


_SENSIBLE: dict[str, Callable[[Model, _Columns], Bool[np.ndarray, " candidates"]]] = {
    "loss_in_split": _split_with_loss,
    "pp": _even_stages,
    "expert_tp": _experts_within_tensor_ranks,
    "schedule": _schedules_of_pipelines,
    "virtual_stages": _interleaved_pipelines,
    **{f"recompute_{name}": _begins_a_recomputed_set(name) for name in _RECOMPUTED_CLASSES},
    "zero": _shared_states,
}
