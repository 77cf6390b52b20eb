"""Functions with the batch on the last axis give what `jax.vmap` gives."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import diffperf as dp
from diffperf.quantity import numeric, replace

BATCH = 5
TABLE = np.arange(12.0).reshape(3, 4)


def by_vmap(function):
    return jax.vmap(function, in_axes=-1, out_axes=-1)


CASES = {
    "elements": lambda x, y: jnp.where(x > 0.5, jnp.sqrt(x) / y, x**3 - jnp.expm1(y)),
    "a number with an array": lambda x, y: jnp.clip(y, 0.1, x[0]) * 2 + TABLE[:, 0],
    "one size with another": lambda x, y: x[:, None] * y[None, :] + TABLE[:, :1, None],
    "choices by a number": lambda x, y: lax.select_n(x[0] > y[0], jnp.stack([x, y]), jnp.ones((2, 3))),
    "sums": lambda x, y: (jnp.sum(jnp.outer(x, y), 0), jnp.max(x), jnp.prod(y), jnp.any(x > y)),
    "sums of many and of whole numbers": lambda x, y: (jnp.sum(jnp.outer(x, y)), jnp.sum(x > y), jnp.min(x)),
    "places": lambda x, y: (jnp.argmax(y), jnp.argmin(jnp.outer(x, y), axis=1)),
    "running sums": lambda x, y: (jnp.cumsum(x), jnp.cumsum(jnp.outer(x, y)[::-1], axis=1)),
    "shapes": lambda x, y: jnp.outer(x, y).reshape(9).reshape(3, 3).T[1:, ::2].squeeze(),
    "parts": lambda x, y: jnp.concatenate([x, TABLE[0], jnp.stack([y, x], 1).ravel(), jnp.pad(y, (1, 2))]),
    "split": lambda x, y: jnp.split(jnp.outer(x, y), [1], axis=1),
    "known rows": lambda x, y: jnp.outer(x, y)[:, np.array([2, 0, 0])] + x[np.array([1])],
    "rows outside": lambda x, y: jnp.outer(x, y).at[np.array([2, 7])].get(mode="fill", fill_value=-1.0),
    "computed rows": lambda x, y: (jnp.asarray(TABLE)[jnp.argmax(x)], x[jnp.argmin(y)]),
    "writing": lambda x, y: jnp.zeros((3, 2)).at[:, 1].add(x).at[0].set(y[0]),
    "products": lambda x, y: jnp.outer(x, y) @ TABLE,
    "a loop": lambda x, y: lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + x[0], s[1] * 2), (0.0, y)),
    "a scan": lambda x, y: lax.scan(lambda s, each: (s + each, s * y), y[0], x),
    "a branch": lambda x, y: lax.cond(x[0] > 0.5, lambda: x + 1, lambda: y),
    "nothing of the batch": lambda x, y: (jnp.asarray(TABLE).sum(1), jnp.arange(3) * 2.0, 1.0),
    "a map inside": lambda x, y: jax.vmap(lambda a, b: jnp.stack([a, b, a * b]), out_axes=1)(x, y),
    "a gradient": jax.value_and_grad(lambda x, y: jnp.sum(jnp.log(x)[:, None] * jnp.sin(y)) ** 2),
}


@pytest.mark.parametrize("name", CASES)
def test_operations(name):
    """Values, shapes and types, traced and not."""
    x, y = np.random.default_rng(0).uniform(0.1, 1.0, (2, 3, BATCH))
    expected = by_vmap(CASES[name])(x, y)
    for function in (dp.vmap_last(CASES[name]), jax.jit(dp.vmap_last(CASES[name]))):
        results = function(x, y)
        assert jax.tree.structure(results) == jax.tree.structure(expected)
        for ours, theirs in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
            np.testing.assert_allclose(ours, theirs, rtol=1e-14)


def test_what_the_caller_traces_is_closed_over():
    def scaled(factor):
        return dp.vmap_last(lambda x: jnp.sum(x * factor) + factor)(TABLE)

    np.testing.assert_allclose(jax.jit(scaled)(2.0), TABLE.sum(0) * 2 + 2)
    np.testing.assert_allclose(jax.jacobian(scaled)(2.0), TABLE.sum(0) + 1)


def test_values_of_gradients_are_computed_once():
    """For all of their uses, and each in a shape of its own, so that no result is written over an operand."""

    def function(x):
        for _ in range(3):
            x = jnp.sum(jnp.outer(x, x) * TABLE[:, :3] + x, axis=1) / 9
        return x[0] * x[1]

    gradient, points = jax.value_and_grad(function), np.random.default_rng(0).uniform(0.5, 1.0, (3, 64))
    once = jax.jit(dp.vmap_last(gradient)).lower(points).compile(dp.throughput_options())
    for ours, theirs in zip(once(points), by_vmap(gradient)(points), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-13)
    barriers = re.findall(r"= (f64\[[\d,]+\])\S* opt-barrier", once.as_text())
    assert len(barriers) == len(set(barriers)) > 3
    nested = jax.make_jaxpr(dp.vmap_last(dp.compute_once(gradient)))(points)
    assert str(nested).count("optimization_barrier") == len(barriers)
    recomputing = jax.jit(dp.vmap_last(gradient)).lower(points).compile()
    assert once.cost_analysis()["flops"] < 0.7 * recomputing.cost_analysis()["flops"]


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["training_step", "generate"])
def test_reports_and_their_gradients(phase):
    """Every number of a system varied, with a mixture of experts."""
    model, system = dp.load_model("mixtral-8x7b"), dp.load_system("dgx-h100", n_devices=16)
    strategy = dp.load_strategy({"tp": 4, "pp": 2, "ep": 2, "global_batch": 64}, n_devices=16)
    inputs = numeric(system)
    factors = np.random.default_rng(1).uniform(0.9, 1.1, (len(inputs), BATCH))

    def cost(factors):
        pairs = zip(inputs.items(), factors, strict=True)
        values = {path: value * factor for (path, (_, value)), factor in pairs}
        report = getattr(dp, phase)(model, replace(system, values), strategy)
        return report.cost.run, (report.time, report.memory.peak, report.energy.total)

    gradient, options = jax.value_and_grad(cost, has_aux=True), dp.throughput_options()
    ours = jax.jit(dp.vmap_last(gradient), compiler_options=options)(factors)
    theirs = jax.jit(by_vmap(dp.compute_once(gradient)))(factors)
    scales = [np.max(np.abs(each)) for each in jax.tree.leaves(theirs)]
    for one, other, scale in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), scales, strict=True):
        assert scale > 0
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-13 * scale)
