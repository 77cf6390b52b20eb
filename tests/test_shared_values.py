"""Intermediate values that are computed once: the same results to the last bit, by fewer operations."""

import functools
import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import diffperf as dp
from diffperf.cost.package_cost import package_cost
from diffperf.flat_program import flattened_calls, traced_flat
from diffperf.quantity import replace
from diffperf.relax import Exact, Smooth, inverse
from diffperf.shared_values import shared_values


def chained(x):
    """Many cheap operations one after the other."""
    for factor in np.linspace(0.9, 1.1, 40):
        x = x * factor + 0.1
    return x


def used_often(x, y):
    """Sums of a value that takes many cheap operations."""
    value = chained(x) + chained(y)
    return [jnp.sum(value * factor) for factor in np.linspace(1.0, 2.0, 32)]


def of_every_kind(tree):
    """Calls of functions, loops, branches, derivatives of one's own, integers and unused results."""
    x, count = tree["x"], tree["count"]
    nested = jax.jit(lambda y: (chained(y), y + 1))(x)[0]
    looped = jax.lax.fori_loop(0, 3, lambda _, y: y * nested, x)
    scanned, _ = jax.lax.scan(lambda carry, y: (carry + y, carry), 0.0, looped)
    branched = jax.lax.cond(scanned > 0, jnp.sin, jnp.cos, looped)
    return {
        "many": used_often(branched * inverse(nested), x),
        "count": count + 1,
        "constant": jnp.arange(3.0),
    }


def flops(function, *args) -> float:
    """What XLA counts in a compiled program."""
    compiled = jax.jit(function).lower(*args).compile(dp.throughput_options())
    return compiled.cost_analysis()["flops"]


def test_results_are_the_same_to_the_last_bit():
    tree = {"x": jnp.linspace(0.1, 2.0, 7), "count": jnp.asarray(3)}
    plain, once = (jax.jit(f)(tree) for f in (of_every_kind, dp.compute_once(of_every_kind)))
    assert jax.tree.structure(plain) == jax.tree.structure(once)
    for expected, value in zip(jax.tree.leaves(plain), jax.tree.leaves(once), strict=True):
        assert value.dtype == expected.dtype
        np.testing.assert_array_equal(value, expected)


def test_functions_may_be_mapped_and_close_over_traced_numbers():
    def closed(x, y):
        return dp.compute_once(lambda z: chained(z * x))(y)

    x, y = jnp.linspace(0.5, 1.5, 6), jnp.linspace(1.0, 2.0, 6)
    np.testing.assert_allclose(jax.jit(jax.vmap(closed))(x, y), chained(y * x), rtol=1e-14)


def written(function, *args) -> list[str]:
    """The operations of the program that XLA is given, in their order."""
    program = jax.make_jaxpr(dp.compute_once(function))(*args)
    return [equation.primitive.name for equation in program.jaxpr.eqns]


def test_a_value_that_is_repeated_along_an_axis_is_computed_once():
    """XLA computes it for every member of the axis where it fuses it with what repeats it."""

    def repeated(x, times):
        return jnp.broadcast_to(x * 0.9 + 0.1, (times, 7)) * np.linspace(1.0, 2.0, times)[:, None]

    few, many = (written(lambda x, times=times: repeated(x, times), jnp.ones(7)) for times in (2, 32))
    assert (few.count("optimization_barrier"), many.count("optimization_barrier")) == (0, 1)


@pytest.mark.parametrize(("length", "barriers"), [(3, 0), (40, 1)])
def test_long_parts_that_are_put_side_by_side_are_computed_before_they_are_used(length, barriers):
    """Even for a single use: LLVM does not vectorize loops with a long branch for each part."""

    def joined(x):
        parts = x
        for factor in np.linspace(0.9, 1.1, length):
            parts = parts * factor
        return jnp.sin(jnp.stack([parts, x]))

    assert written(joined, jnp.ones(3)).count("optimization_barrier") == barriers


def test_equal_operations_are_written_once():
    """Also in functions that are called, and of equal numbers; but not along another axis."""

    def function(x):
        inner = jax.jit(lambda y: jnp.sin(y) * 2.0)
        return inner(x) + inner(x) + jnp.sin(x) * 2.0 + jnp.sin(x) * 3.0, jnp.sum(x, 0), jnp.sum(x, 1)

    operations = written(function, jnp.ones((2, 2)))
    assert (operations.count("sin"), operations.count("mul"), operations.count("reduce_sum")) == (1, 2, 2)


def test_zeros_of_either_sign_stay_two_numbers():
    x, y = dp.compute_once(lambda x: (x * 0.0, x * -0.0))(jnp.ones(()))
    assert (np.signbit(x), np.signbit(y)) == (False, True)


def test_what_no_result_depends_on_is_not_written_but_effects_are():
    printed = []

    def function(x):
        jnp.cos(x)
        jax.debug.callback(printed.append, x)
        jax.debug.callback(printed.append, x)
        return jnp.sin(x)

    operations = written(function, jnp.ones(()))
    assert "cos" not in operations
    dp.compute_once(function)(jnp.ones(()))
    jax.effects_barrier()
    assert len(printed) == 2


def test_unused_objects_are_collected_again_once_a_function_is_traced():
    """Also when tracing it fails; what was off before stays off."""

    def failing(x):
        assert not gc.isenabled()
        raise ValueError(x.shape)

    with pytest.raises(ValueError, match="3"):
        dp.compute_once(failing)(jnp.ones(3))
    assert gc.isenabled()
    gc.disable()
    try:
        dp.compute_once(chained)(jnp.ones(()))
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.slow
def test_a_gradient_takes_fewer_operations():
    """Of the cost of a package by all of its numbers: XLA computes many values for each of their uses."""

    def cost(accelerator):
        return package_cost(accelerator, Exact()).total

    gradient, accelerator = jax.grad(cost), dp.load_accelerator("h100-sxm5-80gb")
    plain, once = (jax.jit(f)(accelerator) for f in (gradient, dp.compute_once(gradient)))
    for expected, value in zip(jax.tree.leaves(plain), jax.tree.leaves(once), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-13)
    assert flops(dp.compute_once(gradient), accelerator) < 0.6 * flops(gradient, accelerator)


@pytest.mark.slow
def test_the_gradient_of_a_training_step_is_the_same(gpt, system, strategy):
    def step_time(bandwidth, efficiency):
        values = {"accelerator.memory.hbm.bandwidth": bandwidth, "network.nvlink.efficiency": efficiency}
        return dp.training_step(gpt, replace(system, values), strategy).time

    gradient = jax.value_and_grad(step_time, argnums=(0, 1))
    args = (system.accelerator.device_memory.bandwidth, system.network[0].efficiency)
    plain, once = (jax.jit(f)(*args) for f in (gradient, dp.compute_once(gradient)))
    np.testing.assert_allclose(jax.tree.leaves(once), jax.tree.leaves(plain), rtol=1e-13)
    assert flops(dp.compute_once(gradient), *args) < flops(gradient, *args)


def test_flattened_calls_keep_results_and_derivatives():
    """Derivatives of a function's own, too, and of numbers that the function closes over."""

    @jax.custom_jvp
    def own(x):
        return x**2

    own.defjvp(lambda primals, tangents: (own(*primals), 7.0 * tangents[0]))

    def function(factor, tree):
        inner = jax.jit(lambda y: own(jnp.sin(y) * factor))
        return {"sum": inner(tree["x"]) + inner(tree["x"]), "product": inner(tree["x"]) * tree["y"]}

    def jacobian(factor, flatten):
        of_tree = functools.partial(function, factor)
        mapped = jax.jacfwd(flattened_calls(of_tree) if flatten else of_tree)
        return mapped({"x": jnp.linspace(0.1, 1.0, 4), "y": jnp.asarray(2.0)})

    plain, flat = (jax.jit(jacobian, static_argnums=1)(1.5, flatten) for flatten in (False, True))
    assert jax.tree.structure(plain) == jax.tree.structure(flat)
    for expected, value in zip(jax.tree.leaves(plain), jax.tree.leaves(flat), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-14)
    slopes = 14 * 1.5 * np.cos(np.linspace(0.1, 1.0, 4))
    np.testing.assert_allclose(np.diag(flat["sum"]["x"]), slopes, rtol=1e-12)


def rounded_corner(x, y):
    return jnp.sum(Smooth(50.0).maximum(x, y))


def test_a_gradient_keeps_the_slopes_that_are_written_out():
    """A smooth maximum has a slope by each number; neither takes enough operations to be shared for them."""
    arguments = jnp.linspace(0.1, 2.0, 7), jnp.linspace(2.0, 0.1, 7)
    gradient = jax.grad(rounded_corner, argnums=(0, 1))
    program, _, _ = traced_flat(gradient, arguments)
    assert len(program.kept_slopes) == 2
    assert program.kept_slopes <= shared_values(program)
    program.kept_slopes.clear()
    assert len(shared_values(program)) == 0


@pytest.mark.parametrize("nested", [lambda f: f, dp.compute_once])
def test_slopes_are_kept_with_a_batch_whether_or_not_values_were_shared_before(nested):
    arguments = jnp.linspace(0.1, 2.0, 7), jnp.linspace(2.0, 0.1, 7)
    gradient = jax.value_and_grad(rounded_corner, argnums=(0, 1))
    mapped = dp.vmap_last(nested(gradient))
    assert str(jax.make_jaxpr(mapped)(*arguments)).count("optimization_barrier") == 2
    for value, expected in zip(
        jax.tree.leaves(jax.jit(mapped)(*arguments)),
        jax.tree.leaves(jax.vmap(gradient)(*arguments)),
        strict=True,
    ):
        np.testing.assert_allclose(value, expected, rtol=1e-6)
