"""Programs that NumPy evaluates have the numbers and types of those that XLA compiles."""

import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from interpreted_jit import compiled_jit

import diffperf as dp
from diffperf.estimate.phases import estimate
from diffperf.interpreter import InterpretedProgram
from diffperf.workload.configuration import Configuration

RANDOM = np.random.default_rng(0)
TABLE = RANDOM.uniform(-2.0, 2.0, (4, 5))
COLUMN = RANDOM.uniform(0.1, 0.9, 6)
PLACES = np.array([3, -7, 0, 9, 2])

CASES = {
    "powers": (lambda x: x**3 + x**-1 + x**-2 + jnp.power(jnp.abs(x), 0.3), (TABLE,)),
    "exponentials": (lambda x: jnp.expm1(x) + jnp.log1p(x) + jnp.exp2(x) + jax.nn.sigmoid(x), (COLUMN,)),
    "error functions": (
        lambda x: jax.scipy.special.erf(x) + jax.scipy.special.erfc(x) + jax.scipy.special.erfinv(x),
        (COLUMN,),
    ),
    "rounding": (lambda x: jnp.round(x) + jnp.floor(x) + jnp.ceil(x) + jnp.sign(x), (TABLE * 4,)),
    "halves": (
        lambda x: jnp.stack([jnp.round(x), jax.lax.round(x, jax.lax.RoundingMethod.AWAY_FROM_ZERO)]),
        (np.array([0.5, 1.5, -0.5, -2.5]),),
    ),
    "whole numbers": (lambda n: jax.lax.div(n, 2) + jax.lax.rem(n, 3) + n**2, (PLACES,)),
    "comparisons": (lambda x: jnp.where((x > 0) & ~(x < 1) | (x == 0), x, -x), (TABLE,)),
    "of several": (
        lambda x: jax.lax.select_n(jnp.array([2, 0, 1, 2, 0, 1]), x, 2 * x, 3 * x),
        (COLUMN,),
    ),
    "sums": (
        lambda x: (x.sum(), x.sum(0), x.prod(1), x.max(), x.min(0), jnp.any(x > 0), jnp.all(x > 0)),
        (TABLE,),
    ),
    "places of extremes": (lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 0)), (TABLE,)),
    "running sums": (
        lambda x: (jnp.cumsum(x, 1), jnp.cumprod(x, 0), jax.lax.cumsum(x, 1, True), jax.lax.cummax(x, 0)),
        (TABLE,),
    ),
    "shapes": (
        lambda x: (x.T.reshape(2, 10), x[1:, ::2], jnp.flip(x, 1), x[None, :, None], x.ravel()),
        (TABLE,),
    ),
    "repetitions, of which NumPy makes views where they are large": (
        lambda x: (jnp.broadcast_to(x[0, 0], (3, 5)), jnp.broadcast_to(x[:, None], (4, 900, 5)) * 1.5),
        (TABLE,),
    ),
    "stacks": (
        lambda x: (jnp.stack([x, x], 1), jnp.concatenate([x, x], 1), *jnp.split(x, [1, 3], 1)),
        (TABLE,),
    ),
    "padding": (
        lambda x: jax.lax.pad(x, 7.0, ((2, -1, 1), (-1, 3, 2))),
        (TABLE,),
    ),
    "products": (
        lambda x, y: (x @ x.T, jnp.einsum("ij,ikj->ik", x, y), jnp.einsum("bij,bkj->bik", y, y)),
        (TABLE, RANDOM.uniform(size=(4, 3, 5))),
    ),
    "filled gather": (lambda x, n: x.at[:, n].get(mode="fill", fill_value=5.0), (TABLE, PLACES)),
    "clipped gather": (lambda x, n: x.at[n].get(mode="clip"), (TABLE, PLACES)),
    "batched gather": (lambda x, n: jax.vmap(lambda row, i: row[i])(x, n), (TABLE, np.array([0, 4, 2, 1]))),
    "slices of computed places": (
        lambda x, n: jax.vmap(lambda i: jax.lax.dynamic_slice(x, (i, 1), (2, 3)))(n),
        (TABLE, PLACES),
    ),
    "a slice": (lambda x, n: jax.lax.dynamic_slice(x, (n, n), (2, 2)), (TABLE, np.array(9))),
    "a slice replaced": (
        lambda x, n: jax.lax.dynamic_update_slice(x, x[:2, :2], (n, n)),
        (TABLE, np.array(3)),
    ),
    "scatter": (
        lambda x, n: (x.at[n].set(1.0, mode="drop"), x.at[:, n].add(2.0, mode="drop")),
        (TABLE, PLACES),
    ),
    "products and extremes at places": (
        lambda x, n: (x.at[-1].multiply(3.0), x.at[:, n].max(0.4, mode="drop"), x.at[n].min(0.6)),
        (TABLE, PLACES),
    ),
    "a loop": (
        lambda x: jax.lax.while_loop(lambda s: s[0] < 10, lambda s: (s[0] + s[1], s[1] * 1.5), (x, 1 + x)),
        (np.array(0.3),),
    ),
    "loops of a batch": (
        jax.vmap(
            lambda x: jax.lax.while_loop(lambda s: s[0] < 10, lambda s: (s[0] + s[1], s[1]), (x, 1 + x))
        ),
        (COLUMN,),
    ),
    "a scan": (
        lambda x: jax.lax.scan(lambda c, row: (c * 0.5 + row, c.sum()), x[0], x, reverse=True),
        (TABLE,),
    ),
    "branches": (lambda x, n: jax.lax.switch(n, [jnp.sin, jnp.cos, lambda x: x], x), (COLUMN, np.array(1))),
    "sorted": (
        lambda x, n: (jnp.sort(x, 1), jnp.argsort(n), jax.lax.sort((n % 2, x[:, 0]), num_keys=2)),
        (np.resize(TABLE, (5, 3)), PLACES),
    ),
    "slopes of a sorted row": (jax.grad(lambda x: jnp.sort(x) @ jnp.arange(1.0, 1 + x.size)), (TABLE[0],)),
    "left to JAX": (lambda x: jax.lax.top_k(x, 2)[0], (TABLE,)),
    "a derivative": (jax.grad(lambda x: jnp.sum(jnp.sqrt(jnp.cumsum(x[::2]) * x[1]))), (COLUMN,)),
}


def both(function, inputs) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The flat results by NumPy, and by XLA."""
    program = InterpretedProgram(jax.make_jaxpr(function)(*inputs))
    return program(*inputs), list(map(np.asarray, jax.tree.leaves(compiled_jit(function)(*inputs))))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_operations_are_those_of_xla(name, precision):
    function, inputs = CASES[name]
    with jax.enable_x64(precision == "float64"):
        kinds = {"f": precision, "i": "int64" if precision == "float64" else "int32"}
        inputs = [np.asarray(one, kinds[np.asarray(one).dtype.kind]) for one in inputs]
        ours, theirs = both(function, inputs)
    assert [one.dtype for one in ours] == [one.dtype for one in theirs]
    assert [one.shape for one in ours] == [one.shape for one in theirs]
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12 if precision == "float64" else 2e-5, atol=1e-6)


def test_a_step_and_its_slopes(gpt, system, strategy):
    def time_and_slopes(bandwidth):
        def time(bandwidth):
            return dp.training_step(
                gpt, dp.override(system, {"hbm.bandwidth": bandwidth}), strategy, dp.Smooth(20.0)
            ).time

        return jax.value_and_grad(time)(bandwidth)

    ours, theirs = both(time_and_slopes, (np.asarray(1.6e12),))
    np.testing.assert_allclose(ours, theirs, rtol=1e-10)
    assert ours[1] < 0


def test_programs_are_stored():
    def function(x):
        return jax.lax.scan(lambda c, row: (c + row, c**2), x[0], jnp.pad(x, ((0, 1), (0, 0))))

    program = InterpretedProgram(jax.make_jaxpr(function)(TABLE))
    again = pickle.loads(pickle.dumps(program))
    for one, other in zip(program(TABLE), again(TABLE), strict=True):
        np.testing.assert_array_equal(one, other)


def test_operations_that_only_jax_knows_are_not_stored():
    program = InterpretedProgram(jax.make_jaxpr(lambda x: jax.lax.top_k(x, 2))(COLUMN))
    with pytest.raises(TypeError, match="top_k"):
        pickle.dumps(program)


@pytest.mark.parametrize("phase", dp.PHASES)
@pytest.mark.parametrize(
    "name",
    [
        "gpt-oss-20b",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("deepseek-v3", "nemotron-nano-9b-v2")),
    ],
)
def test_programs_of_all_phases_are_stored(name, phase):
    """A program with an operation that only JAX knows would be traced anew by every process."""
    model, system = dp.load_model(name), dp.load_system("dgx-h100", n_devices=8)
    strategy = dp.load_strategy({"tp": 8, "global_batch": 8}, n_devices=8)
    configuration = Configuration(model, system, strategy, dp.Smooth(50.0))
    numbers, rest = eqx.partition(configuration, eqx.is_array)

    def evaluated(numbers):
        return jax.tree.leaves(estimate(eqx.combine(numbers, rest), phase))

    program = InterpretedProgram(jax.make_jaxpr(evaluated)(numbers))
    stored = pickle.loads(pickle.dumps(program))
    leaves = jax.tree.leaves(numbers)
    for one, other in zip(program(*leaves), stored(*leaves), strict=True):
        np.testing.assert_array_equal(one, other)


def test_values_are_forgotten_after_their_last_use():
    """Of a chain of operations on a large array, no more than two are in memory at once."""

    def chain(x):
        for _ in range(50):
            x = x * 1.01 + 1
        return x

    program = InterpretedProgram(jax.make_jaxpr(chain)(TABLE))
    alive, most = {number for _, number, _ in program.used_inputs}, 0
    for step in program.steps:
        alive |= set(step.made)
        most = max(most, len(alive))
        alive -= set(step.forgotten)
    assert most == 2
    assert alive == set(program.outputs)


def test_what_no_result_depends_on_is_left_out():
    def function(x):
        _ = jnp.cumsum(jnp.exp(x))
        return x + 1, x * 2

    program = InterpretedProgram(jax.make_jaxpr(function)(TABLE))
    assert len(program.steps) == 2
    for result, expected in zip(program(TABLE), (TABLE + 1, TABLE * 2), strict=True):
        np.testing.assert_allclose(result, expected)


def test_what_is_computed_twice_is_computed_once():
    def function(x):
        return jnp.exp(x) + jax.jit(jnp.exp)(jax.lax.stop_gradient(x)), jnp.exp(x) * 2

    program = InterpretedProgram(jax.make_jaxpr(function)(TABLE))
    assert sorted(step.operation.name for step in program.steps) == ["add", "exp", "mul"]
    for result, expected in zip(program(TABLE), (2 * np.exp(TABLE), 2 * np.exp(TABLE)), strict=True):
        np.testing.assert_allclose(result, expected)


def test_what_no_input_changes_is_computed_when_a_program_is_made():
    def function(x, _):
        several = jnp.split(jnp.arange(6.0) * 2, [2])
        return x + several[0].sum(), several[1]

    program = InterpretedProgram(jax.make_jaxpr(function)(TABLE, COLUMN))
    assert [step.operation.name for step in program.steps] == ["add"]
    assert [place for place, _, _ in program.used_inputs] == [0]
    for result, expected in zip(program(TABLE, None), (TABLE + 2, [4, 6, 8, 10]), strict=True):
        np.testing.assert_allclose(result, expected)
