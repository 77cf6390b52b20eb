"""Derivatives by stored programs: those that JAX computes, of functions that are not traced again."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffperf.stored_derivatives import StoredDerivatives, only_differentiated

INPUTS = {"x": 0.7, "y": jnp.asarray([1.5, -2.0])}
KNOWN = {"scale": 3.0}


def results(inputs, known):
    """Two results of different shapes, and one that is no floating-point number."""
    x, y, scale = inputs["x"], inputs["y"], known["scale"]
    return {"sum": jnp.sin(scale * x) * jnp.sum(y**3), "each": jnp.exp(x) * y, "count": jnp.asarray(3)}


def stored(function=results):
    return StoredDerivatives(function, function, "results")


def refusing(inputs, known):
    raise AssertionError("traced again")


def scalar(function):
    """A number that depends on both floating-point results."""

    def called(inputs):
        made = function(inputs, KNOWN)
        return made["sum"] ** 2 + jnp.sum(made["each"] * jnp.asarray([1.0, 4.0]))

    return called


@pytest.fixture(autouse=True)
def folder(tmp_path):
    """A folder of programs of the test's own."""
    before = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    yield tmp_path
    jax.config.update("jax_compilation_cache_dir", before)


def assert_same(made, expected):
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-12), made, expected)


CHANGES = {"x": 0.1, "y": jnp.asarray([1.0, 3.0])}
TRANSFORMED = {
    "gradient": lambda f: jax.grad(f)(INPUTS),
    "value and gradient": lambda f: jax.value_and_grad(f)(INPUTS),
    "change": lambda f: jax.jvp(f, (INPUTS,), (CHANGES,)),
    "linearized": lambda f: jax.linearize(f, INPUTS)[1](CHANGES),
    "compiled pullback": lambda f: jax.jit(jax.vjp(f, INPUTS)[1])(2.0),
    "pullback of several": lambda f: jax.vmap(jax.vjp(f, INPUTS)[1])(jnp.arange(3.0)),
    "changed pullback": lambda f: jax.jvp(jax.vjp(f, INPUTS)[1], (1.0,), (0.5,)),
    "transposed twice": lambda f: jax.linear_transpose(
        lambda slope: jax.vjp(f, INPUTS)[1](slope)[0], jnp.asarray(1.0)
    )(CHANGES),
    "forward": lambda f: jax.jacfwd(f)(INPUTS),
    "second": lambda f: jax.hessian(f)(INPUTS),
    "gradient of a gradient": lambda f: jax.grad(lambda i: jax.grad(f)(i)["x"])(INPUTS),
    "compiled": lambda f: jax.jit(jax.grad(f))(INPUTS),
    "mapped": lambda f: jax.vmap(jax.grad(f))(jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), INPUTS)),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_derivatives_are_those_of_the_function(name):
    transform = TRANSFORMED[name]
    assert_same(transform(scalar(stored())), transform(scalar(results)))


@pytest.mark.parametrize("name", ["gradient", "change"])
def test_a_stored_program_serves_other_numbers_and_processes(name):
    """A second object stands for another process."""
    transform = TRANSFORMED[name]
    transform(scalar(stored()))
    again = StoredDerivatives(refusing, results, "results")
    assert_same(transform(scalar(again)), transform(scalar(results)))
    assert_same(transform(lambda i: 2 * scalar(again)(i)), transform(lambda i: 2 * scalar(results)(i)))


def test_known_numbers_are_no_part_of_the_program(folder):
    derivatives = stored()
    for scale in (1.0, 2.0, 3.0):
        scaled = functools.partial(derivatives, known={"scale": scale})
        slope = jax.grad(lambda inputs, scaled=scaled: scaled(inputs)["sum"])(INPUTS)["x"]
        assert float(slope) == pytest.approx(scale * np.cos(scale * 0.7) * (1.5**3 - 2.0**3), rel=1e-12)
    assert len(list(folder.glob("*.interpreted"))) == 1


def test_results_without_a_slope_are_left_out():
    """√x has an infinite slope at 0, which times 0 would be no number."""
    derivatives = stored(lambda inputs, _: {"root": jnp.sqrt(inputs), "square": (inputs - 3) ** 2})
    assert float(jax.grad(lambda x: derivatives(x, ())["square"])(0.0)) == pytest.approx(-6)


def test_only_differentiated():
    seen = []

    def look(x):
        seen.append(only_differentiated(x))
        return jnp.sum(x * 1.0)

    look(2.0)
    jax.grad(look)(2.0)
    jax.jvp(look, (2.0,), (1.0,))
    assert seen == [False, True, True]
    seen.clear()
    jax.vmap(jax.grad(look))(jnp.arange(2.0))
    jax.jit(jax.grad(look))(2.0)
    jax.grad(jax.grad(look))(2.0)
    assert not any(seen)
