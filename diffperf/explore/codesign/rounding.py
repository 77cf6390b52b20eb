"""Whole numbers and definite choices: what to try around a relaxed design."""

import itertools

import jax.numpy as jnp
import numpy as np

from diffperf.explore.codesign.lagrangian import Fixed
from diffperf.explore.codesign.problem import Variable
from diffperf.quantity import Choice

# A combination says which entries of the vector of variables are held, and at what: {first index: values}.
Combination = dict[int, np.ndarray]


def slots(variables: tuple[Variable, ...]) -> list[tuple[int, Variable]]:
    """(first index, variable) of every variable that has to become whole: integers, and choices."""
    begins = np.cumsum([0, *(variable.size for variable in variables)])
    return [
        (int(b), v)
        for b, v in zip(begins, variables, strict=False)
        if v.integer or isinstance(v.declared, Choice)
    ]


def _options(x: np.ndarray, begin: int, variable: Variable, reach: int) -> list[np.ndarray]:
    """Whole values of one variable around x, nearest first: neighbours, and for large counts also `reach` steps of 2 %.

    With a reach of 0 only the values x lies between.
    """
    if isinstance(variable.declared, Choice):
        order = np.argsort(-x[begin : begin + variable.size])
        return [np.eye(variable.size)[i] for i in order]
    centre, low, high = x[begin], np.ceil(variable.low), np.floor(variable.high)
    stride = max(1, round(0.02 * centre))
    steps = {0, *range(1, min(reach, 1) + 1), *(stride * k for k in range(1, reach + 1))}
    near = {np.floor(centre) + s for s in steps} | {np.ceil(centre) - s for s in steps}
    whole = {float(np.clip(value, low, high)) for value in near}
    return [np.array([value]) for value in sorted(whole, key=lambda value: abs(value - centre))]


def neighbours(
    centres: list[np.ndarray], variables: tuple[Variable, ...], reach: int, limit: int
) -> list[tuple[int, Combination]]:
    """At most `limit` combinations of whole values, each with the index of the centre it belongs to.

    The centres take turns, and each offers its combinations nearest first.
    """
    where = slots(variables)
    pools = []
    for centre in centres:
        options = [_options(centre, begin, variable, reach) for begin, variable in where]
        ranked = sorted(
            itertools.product(*map(enumerate, options)), key=lambda combo: sum(rank for rank, _ in combo)
        )
        pools.append(
            [{begin: value for (begin, _), (_, value) in zip(where, combo, strict=True)} for combo in ranked]
        )
    seen, chosen = set(), []
    for level in itertools.zip_longest(*pools):
        for index, combo in enumerate(level):
            if combo is None:
                continue
            key = tuple((begin, *value) for begin, value in combo.items())
            if key not in seen:
                seen.add(key)
                chosen.append((index, combo))
    return chosen[:limit]


def ladder(x: np.ndarray, variables: tuple[Variable, ...], slot: int, limit: int) -> list[Combination]:
    """The whole design x with one variable moved over its whole range, in at most `limit` steps of equal ratio (or difference).

    Whole waves of tiles make time a sawtooth in the number of compute units: its better teeth can be far from where a slope leads.
    """
    where = slots(variables)
    held = {begin: x[begin : begin + variable.size] for begin, variable in where}
    begin, variable = where[slot]
    if isinstance(variable.declared, Choice):
        return [{**held, begin: row} for row in np.eye(variable.size)]
    low, high = np.ceil(variable.low), np.floor(variable.high)
    space = np.geomspace if low > 0 else np.linspace
    rungs = np.arange(low, high + 1) if high - low < limit else np.unique(np.round(space(low, high, limit)))
    return [{**held, begin: np.array([rung])} for rung in rungs]


def hold(chosen: list[Combination], size: int, starts: int) -> Fixed:
    """One combination a start; the first again where there are fewer."""
    mask, values = np.zeros((starts, size), dtype=bool), np.ones((starts, size))
    for start in range(starts):
        for begin, value in chosen[start if start < len(chosen) else 0].items():
            mask[start, begin : begin + len(value)] = True
            values[start, begin : begin + len(value)] = value
    return Fixed(jnp.asarray(mask), jnp.asarray(values))
