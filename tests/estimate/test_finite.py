"""Every estimate is finite in float32, value and gradient, wherever inputs lie in their documented ranges."""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import cast, draw, leaves, outputs
from interpreted_jit import compiled_jit
from jax.flatten_util import ravel_pytree

import diffperf as dp
from diffperf.batch_last import vmap_last
from diffperf.compiler import barrier_options
from diffperf.quantity import Choice, replace, walk
from diffperf.relax import Exact, Smooth

BLOCK = 500
SHARPEST = 500.0
PARTS = ("model", "system", "strategy")
# Share of the designs in which a number is the lowest it may be, where zeros mean something else, and as many
# in which it is the highest.
ENDS = 0.1


def _designs(module, rng, count, choices):
    """Random numbers in their documented ranges and, if asked, random definite choices: {path: (designs,
    ...)}.

    The first two designs have all numbers at the lowest end of their ranges, and at the highest, with the
    module's own choices.
    """
    paths, _ = leaves(module)
    columns = dict(zip(paths, draw(module, rng, count).T, strict=True))
    for path, declared, value in walk(module):
        if path in columns:
            low, high = declared.bounds
            where = rng.uniform(size=count)
            columns[path] = np.select([where < ENDS, where > 1 - ENDS], [low, high], columns[path])
            columns[path][:2] = low, high
        elif choices and isinstance(declared, Choice):
            columns[path] = np.eye(len(declared.alternatives))[
                rng.integers(len(declared.alternatives), size=count)
            ]
            columns[path][:2] = value
    return columns


# `HYPOTHESIS_PROFILE=thorough` draws a million designs.
COUNT = 1_000_000 if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 20_000
# Traced choices take long to compile; the exact formulas of other alternatives are the smooth ones with
# sharper corners. Models are drawn as well where they have latent attention and experts, dense layers and
# modules that predict further tokens.
CASES = [
    ("training", "gpt3-175b", Exact, COUNT),
    ("generate", "llama-2-7b", Exact, COUNT),
    ("training", "gpt3-175b", Smooth, COUNT),
    ("generate", "llama-2-7b", Smooth, COUNT),
    ("training", "deepseek-v3", Smooth, COUNT // 2),
    ("generate", "deepseek-v3", Exact, COUNT // 2),
]


@pytest.mark.parametrize(("phase", "name", "relaxation", "count"), CASES)
@pytest.mark.slow
@pytest.mark.usefixtures("float32")
def test_random_designs_are_finite(system, strategy, phase, name, relaxation, count):
    rng, smooth = np.random.default_rng(0), relaxation is Smooth
    modules = cast({"model": dp.load_model(name), "system": system, "strategy": strategy}, jnp.float32)
    drawn = PARTS if name == "deepseek-v3" else PARTS[1:]
    designs = {part: _designs(modules[part], rng, count, smooth) for part in drawn}
    designs["sharpness"] = np.exp(rng.uniform(0, np.log(SHARPEST), count))
    designs = jax.tree.map(lambda column: np.asarray(column, np.float32), designs)
    # A design is one vector: a program with hundreds of arguments and results takes twice as long to compile.
    _, by_path = ravel_pytree(jax.tree.map(lambda column: column[0], designs))
    vectors = np.concatenate([column.reshape(count, -1).T for column in jax.tree.leaves(designs)])
    paths = []

    def total(vector):
        design = by_path(vector)
        inputs = [replace(modules[part], design[part]) if part in design else modules[part] for part in PARTS]
        report = dp.PHASES[phase](*inputs, Smooth(design["sharpness"]) if smooth else Exact())
        values = outputs(report)
        paths[:] = values
        # What is not finite in any of them is not finite in their sum. A step of years has slopes beyond
        # float32, its log has not.
        score = jnp.log(report.time + report.memory.peak + report.energy.total + report.cost.run)
        return score, jnp.stack(list(values.values()))

    # Compiled, as XLA treats the smallest numbers in its own way; with the designs along the last axis, as in
    # sweeps, which takes half as long to compile.
    @functools.partial(compiled_jit, compiler_options=barrier_options())
    @vmap_last
    def not_finite(vector):
        (_, values), gradient = jax.value_and_grad(total, has_aux=True)(vector)
        return ~jnp.isfinite(values), ~jnp.isfinite(gradient)

    flags = [not_finite(block) for block in np.split(vectors, count // BLOCK, axis=1)]
    of_values, of_gradient = (
        np.sum(np.concatenate(blocks, axis=1), axis=1) for blocks in zip(*flags, strict=True)
    )
    assert len(paths) > 30
    assert {path: int(bad) for path, bad in zip(paths, of_values, strict=True) if bad} == {}
    slopes = by_path(jnp.asarray(of_gradient, jnp.float32))
    assert sum(len(slopes[part]) for part in drawn) > 75
    for part in drawn:
        assert {path: int(np.sum(bad)) for path, bad in slopes[part].items() if np.any(bad)} == {}
    assert int(slopes["sharpness"]) == 0
