"""The relaxations against their stated bounds, and where smooth functions break: zeros, ties, corners."""

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffperf.quantity import Weights
from diffperf.relax import (
    TINY,
    Exact,
    Smooth,
    absent,
    choose,
    cumulative,
    inverse,
    is_multiple,
    larger,
    largest,
    least,
    positive,
    smaller,
)

SHARPNESS = st.floats(1.0, 500.0)
# Times, bytes, FLOPs and prices: anything from 1 fs to a zettabyte.
VALUES = st.lists(st.floats(1e-15, 1e21), min_size=1, max_size=6)
NUMBERS = st.one_of(st.just(0.0), st.floats(1e-15, 1e21))
ROUNDING = 1e-9


def _smooth(sharpness, name, values):
    return float(_jitted[name](jnp.asarray(sharpness), jnp.asarray(values)))


_jitted = {
    "maximum": jax.jit(lambda p, x: Smooth(p).reduce_maximum(x)),
    "minimum": jax.jit(lambda p, x: Smooth(p).reduce_minimum(x)),
    "ceil": jax.jit(lambda p, x: Smooth(p).ceil(x)),
    "step": jax.jit(lambda p, x: Smooth(p).step(x)),
}


def _ties(values):
    """2 to the number of ties in a row that pairs of pairs of values may meet."""
    return 2 ** np.ceil(np.log2(len(values)))


@given(VALUES, SHARPNESS)
def test_smooth_maximum_is_between_the_maximum_and_its_bound(values, p):
    exact, smooth = max(values), _smooth(p, "maximum", values)
    assert exact * (1 - ROUNDING) <= smooth <= exact * _ties(values) ** (1 / p) * (1 + ROUNDING)


@given(VALUES, SHARPNESS)
def test_smooth_minimum_is_between_its_bound_and_the_minimum(values, p):
    exact, smooth = min(values), _smooth(p, "minimum", values)
    assert exact * _ties(values) ** (-1 / p) * (1 - ROUNDING) <= smooth <= exact * (1 + ROUNDING)


@given(VALUES, SHARPNESS, st.floats(1.0, 4.0))
def test_sharper_is_closer(values, p, factor):
    assert _smooth(p * factor, "maximum", values) <= _smooth(p, "maximum", values) * (1 + ROUNDING)
    assert _smooth(p * factor, "minimum", values) >= _smooth(p, "minimum", values) * (1 - ROUNDING)


@given(VALUES, SHARPNESS, st.floats(1e-6, 1e6))
def test_maximum_and_minimum_have_no_scale(values, p, scale):
    for name in ("maximum", "minimum"):
        scaled = _smooth(p, name, [scale * value for value in values])
        assert scaled == pytest.approx(scale * _smooth(p, name, values), rel=1e-9)


def test_a_tie_reaches_the_bound():
    for count, ties in ((2, 2), (4, 4), (8, 8)):
        assert float(Smooth(8.0).maximum(*[1.0] * count)) == pytest.approx(ties ** (1 / 8))
        assert float(Smooth(8.0).minimum(*[1.0] * count)) == pytest.approx(ties ** (-1 / 8))


@given(NUMBERS, NUMBERS, SHARPNESS)
def test_two_numbers_lie_on_hyperbolas(a, b, p):
    """As the formulas say in float64: of the maximum, of the minimum, and of what a supply leaves."""
    above, below = 2 ** (1 / p) - 1, 1 - 2 ** (-1 / p)
    larger_root, smaller_root = (np.sqrt((a - b) ** 2 + 4 * corner**2 * a * b) for corner in (above, below))
    relax, scale = Smooth(p), 1e-12 * (a + b)
    assert float(relax.maximum(a, b)) == pytest.approx((a + b + larger_root) / 2, rel=1e-12)
    assert float(relax.minimum(a, b)) == pytest.approx((a + b - smaller_root) / 2, rel=1e-12, abs=scale)
    assert float(relax.excess(a, b)) == pytest.approx((a - b + larger_root) / 2, rel=1e-12, abs=scale)


@pytest.mark.parametrize("operation", ["maximum", "minimum", "excess"])
@pytest.mark.parametrize("ratio", [0.0, 1e-12, 1e-6, 0.3, 1 - 1e-6, 1.0, 1 + 1e-6, 3.0, 1e6, 1e12])
@pytest.mark.parametrize("p", [1.5, 30.0, 1000.0])
def test_little_numbers_keep_their_elasticities_in_float32(p, ratio, operation):
    """What a difference of nearly equal numbers would lose: a share of time of a resource that hardly
    counts.
    """

    def elasticities(dtype):
        numbers = [jnp.asarray(number, dtype) for number in (p, 7e9 * ratio, 7e9)]
        value, slopes = jax.value_and_grad(
            lambda p, a, b: getattr(Smooth(p), operation)(a, b), argnums=(0, 1, 2)
        )(*numbers)
        whole = float(value) or 1.0
        return [float(n) * float(s) / whole for n, s in zip(numbers, slopes, strict=True)]

    precise = elasticities(jnp.float64)
    with jax.enable_x64(False):
        np.testing.assert_allclose(elasticities(jnp.float32), precise, rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("operation", ["maximum", "minimum", "excess"])
@pytest.mark.parametrize("numbers", [(2.0, 5.0), (5.0, 2.0), (3.0, 3.0), (3.0, 3.01), (1e-3, 4.0)])
def test_slopes_of_two_numbers_and_their_sharpness(operation, numbers):
    def f(p, a, b):
        return getattr(Smooth(p), operation)(a, b)

    at = (12.0, *numbers)
    for position, slope in enumerate(jax.grad(f, argnums=(0, 1, 2))(*at)):
        step = 1e-4 * at[position]
        up, down = (f(*(x + sign * step * (i == position) for i, x in enumerate(at))) for sign in (1, -1))
        assert float(slope) == pytest.approx(float(up - down) / (2 * step), rel=1e-5)


@pytest.mark.parametrize("operation", ["maximum", "minimum", "excess"])
def test_second_derivatives_of_two_numbers(operation):
    slope = jax.grad(lambda a, b: getattr(Smooth(12.0), operation)(a, b))
    curvature = jax.grad(slope)(3.0, 3.1)
    assert float(curvature) == pytest.approx(
        float(slope(3.0 + 1e-5, 3.1) - slope(3.0 - 1e-5, 3.1)) / 2e-5, rel=1e-5
    )


def test_values_broadcast_together():
    for relax in (Exact(), Smooth(50.0)):
        result = relax.maximum(jnp.array([1.0, 5.0, 2.0]), 3.0)
        np.testing.assert_allclose(result, [3.0, 5.0, 3.0], rtol=0.02)
        np.testing.assert_allclose(relax.minimum(jnp.array([1.0, 5.0, 2.0]), 3.0), [1.0, 3.0, 2.0], rtol=0.02)


def test_excess_is_what_the_supply_leaves():
    assert float(Exact().excess(5.0, 3.0)) == 2.0
    assert float(Exact().excess(3.0, 5.0)) == 0.0
    assert float(Smooth(200.0).excess(5.0, 3.0)) == pytest.approx(2.0, rel=1e-4)
    assert 0 < float(Smooth(200.0).excess(3.0, 5.0)) < 1e-4
    assert float(Smooth(200.0).excess(0.0, 5.0)) == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exact_ceil_takes_no_unit_for_rounding_errors(dtype):
    """Of all quotients of up to 200 units of up to 200, by a product with the inverse: where they are whole,
    one more unit is wrong, which the plain function takes for some of them; where they are not, it is right.
    """
    with jax.enable_x64(dtype == np.float64):
        units = np.arange(1, 201)
        whole, part = np.meshgrid(units, units)
        inverse = (1 / units.astype(dtype))[:, None]
        quotients = (whole * part).astype(dtype) * inverse
        assert np.mean(np.ceil(quotients) != whole) > 0.02
        np.testing.assert_array_equal(Exact().ceil(jnp.asarray(quotients)), whole)
        beyond = (whole * part + 0.1).astype(dtype) * inverse
        np.testing.assert_array_equal(Exact().ceil(jnp.asarray(beyond)), whole + 1)


@given(st.integers(0, 10**6), SHARPNESS)
def test_ceil_is_exact_at_whole_numbers(whole, p):
    assert _smooth(p, "ceil", float(whole)) == pytest.approx(whole, abs=1e-9)


@given(st.floats(1e-6, 1e6), SHARPNESS)
def test_ceil_is_within_one_of_the_true_one(x, p):
    smooth = _smooth(p, "ceil", x)
    assert np.ceil(x) - 1 - 1e-9 <= smooth <= np.ceil(x) + 1e-9


@given(st.integers(0, 1000), st.floats(0.001, 0.999), SHARPNESS)
def test_ceil_keeps_a_slope(whole, fraction, p):
    x, h = whole + fraction, 1e-5
    slope = (_smooth(p, "ceil", x + h) - _smooth(p, "ceil", x - h)) / (2 * h)
    assert slope >= 1 / (1 + p) - 1e-6


@given(st.floats(0.0, 1.0, exclude_min=True), st.integers(0, 100))
def test_ceil_becomes_the_true_one(fraction, whole):
    gaps = [abs(_smooth(p, "ceil", whole + fraction) - np.ceil(whole + fraction)) for p in (1e2, 1e4, 1e8)]
    assert gaps[1] <= gaps[0] + 1e-9
    if fraction > 1e-4:
        assert gaps[2] < 1e-3


def test_step():
    assert [float(Exact().step(jnp.asarray(s))) for s in (-1.0, 0.0, 1.0)] == [0.0, 1.0, 1.0]
    assert _smooth(20.0, "step", 0.0) == 0.5
    assert (_smooth(20.0, "step", -0.151), _smooth(20.0, "step", 0.151)) == (0.0, 1.0)
    steepest = jax.grad(lambda slack: Smooth(20.0).step(slack))(0.0)
    assert float(steepest) == pytest.approx(20 / 4)  # as of a sigmoid
    slacks = np.linspace(-0.2, 0.2, 41)
    weights = np.array([_smooth(20.0, "step", slack) for slack in slacks])
    assert np.all(np.diff(weights) >= 0)
    np.testing.assert_allclose(weights + weights[::-1], 1.0, rtol=1e-12)


HARD = {
    "one zero": [0.0, 1.0, 2.0],
    "all zeros": [0.0, 0.0, 0.0],
    "a zero under thirty decades": [0.0, 1e20, 1e10],
    "tie": [3.0, 3.0, 3.0],
    "tie of zeros under one": [0.0, 0.0, 7.0],
    "thirty decades": [1e-15, 1.0, 1e20],
    "tiny": [1e-29, 2e-29, 1e-28],
    "huge": [1e36, 1e36, 2e36],
}


@pytest.mark.parametrize("values", HARD.values(), ids=HARD.keys())
@pytest.mark.parametrize("p", [1.0, 8.0, 64.0, 500.0])
@pytest.mark.parametrize("operation", ["reduce_maximum", "reduce_minimum", "ceil", "step"])
@pytest.mark.usefixtures("float32")
def test_hard_values_are_finite_in_float32(operation, p, values):
    def f(p, x):
        return jnp.sum(getattr(Smooth(p), operation)(x))

    p, x = jnp.asarray(p, jnp.float32), jnp.asarray(values, jnp.float32)
    value, gradient = jax.value_and_grad(f, argnums=(0, 1))(p, x)
    assert x.dtype == jnp.float32
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in (value, *gradient)), (value, gradient)


@pytest.mark.parametrize("p", [1.0, 20.0, 100.0])
@pytest.mark.parametrize("operation", ["reduce_maximum", "reduce_minimum", "ceil", "step"])
def test_gradients_agree_with_finite_differences(operation, p):
    x = jnp.array([0.31, 1.73, 1.81])

    def f(x):
        return jnp.sum(getattr(Smooth(p), operation)(x) * jnp.array([1.0, 2.0, 3.0]))

    h = 1e-6
    finite = [(f(x.at[i].add(h)) - f(x.at[i].add(-h))) / (2 * h) for i in range(3)]
    np.testing.assert_allclose(jax.grad(f)(x), finite, rtol=1e-6, atol=1e-8)


def test_sharpness_is_traced_once():
    traces = []

    @jax.jit
    def f(relax, x):
        traces.append(1)
        return relax.maximum(x, 1.0)

    for sharpness in (1, 5.0, np.float32(7.0), jnp.asarray(100)):
        f(Smooth(sharpness), jnp.asarray(2.0))
    assert len(traces) == 1


def _over_xyz(*array: float) -> Weights:
    return Weights(jnp.array(array), ("x", "y", "z"))


@pytest.fixture
def evaluated():
    """The names of the alternatives that were evaluated, in order."""
    return []


@pytest.fixture
def alternatives(evaluated):
    def alternative(name, value):
        return lambda: (evaluated.append(name), {"a": jnp.asarray(value), "b": (jnp.asarray(-value),)})[1]

    return {"x": alternative("x", 1.0), "y": alternative("y", 2.0), "z": alternative("z", 4.0)}


@pytest.mark.parametrize(
    ("weights", "value", "names"),
    [
        ([0.0, 1.0, 0.0], 2.0, ["y"]),
        ([0.5, 0.0, 0.5], 2.5, ["x", "z"]),
        ([0.25, 0.5, 0.25], 2.25, ["x", "y", "z"]),
        ([0.0, 0.5, 0.0], 1.0, ["y"]),  # weights need not add up to 1
    ],
)
def test_choose_evaluates_only_what_has_weight(alternatives, evaluated, weights, value, names):
    assert choose(_over_xyz(*weights), alternatives) == {"a": value, "b": (-value,)}
    assert evaluated == names


def test_choose_evaluates_all_under_a_trace(alternatives, evaluated):
    mixed = jax.jit(lambda weights: choose(weights, alternatives))
    assert mixed(_over_xyz(0.0, 1.0, 0.0)) == {"a": 2.0, "b": (-2.0,)}
    assert evaluated == ["x", "y", "z"]
    assert mixed(_over_xyz(0.25, 0.5, 0.25)) == {"a": 2.25, "b": (-2.25,)}
    assert evaluated == ["x", "y", "z"]  # other weights, the same trace


def test_choose_skips_alternatives_of_weights_that_a_trace_closes_over(alternatives, evaluated):
    weights = _over_xyz(0.0, 0.0, 1.0)
    assert jax.jit(lambda scale: scale * choose(weights, alternatives)["a"])(3.0) == 12.0
    assert evaluated == ["z"]


def test_choose_does_not_depend_on_the_order_of_the_functions(alternatives):
    backwards = dict(reversed(alternatives.items()))
    for weights in (_over_xyz(1.0, 0.0, 0.0), _over_xyz(0.25, 0.5, 0.25)):
        assert choose(weights, backwards) == choose(weights, alternatives)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(("weights", "value"), [([0.25, 0.5, 0.25], 3.25), ([0.5, 0.0, 0.5], 2.5)])
def test_choose_evaluates_a_function_under_several_names_once(traced, weights, value):
    calls = []

    def small():
        calls.append("small")
        return jnp.asarray(1.0)

    def large():
        calls.append("large")
        return jnp.asarray(4.0)

    def total(weights):
        return choose(weights, {"x": small, "y": large, "z": large})

    assert float((jax.jit(total) if traced else total)(_over_xyz(*weights))) == value
    assert calls == ["small", "large"]


def test_choose_evaluates_one_function_under_all_names_once():
    calls = []

    def only():
        calls.append(1)
        return jnp.asarray(4.0)

    assert choose(_over_xyz(0.25, 0.5, 0.25), dict.fromkeys("xyz", only)) == 4.0
    assert calls == [1]


def test_choose_differentiates_in_weights_and_alternatives():
    def f(w, x):
        return choose(w, {"square": lambda: x**2, "triple": lambda: 3 * x})

    weights, x = Weights(jnp.array([0.25, 0.75]), ("square", "triple")), jnp.asarray(2.0)
    by_weights, by_x = jax.grad(f, argnums=(0, 1))(weights, x)
    np.testing.assert_allclose(by_weights, [4.0, 6.0])
    assert float(by_x) == pytest.approx(0.25 * 4 + 0.75 * 3)


@pytest.mark.parametrize("names", ["xy", "xyzw", "xyw", ""], ids=["missing", "unknown", "both", "none"])
@pytest.mark.parametrize("traced", [False, True])
def test_choose_wants_one_function_an_alternative(traced, names):
    functions = dict.fromkeys(names, lambda: jnp.asarray(1.0))

    def use(weights):
        return choose(weights, functions)

    with pytest.raises(KeyError, match="expected one for each of x, y, z"):
        (jax.jit(use) if traced else use)(_over_xyz(1.0, 0.0, 0.0))


@pytest.mark.usefixtures("float32")
def test_positive_guards_division_and_logarithm():
    assert float(positive(jnp.asarray(2.5))) == 2.5
    assert float(positive(jnp.asarray(-2.5))) == pytest.approx(TINY)
    assert float(jax.grad(positive)(2.5)) == 1
    assert float(jax.grad(positive)(-2.5)) == 0
    for dangerous in (jnp.log, lambda x: 1 / x):
        assert all(np.isfinite(jax.value_and_grad(lambda x: dangerous(positive(x)))(0.0)))  # noqa: B023


@given(st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=6))
def test_the_largest_and_the_least(values):
    stacked = jnp.asarray(values)
    assert (float(largest(stacked)), float(least(stacked))) == (max(values), min(values))
    by_value = jax.grad(largest)(stacked), jax.grad(least)(stacked)
    assert [float(slopes.sum()) for slopes in by_value] == [1, 1]  # of one of them, ties included
    for slopes, extreme in zip(by_value, (max(values), min(values)), strict=True):
        assert values[int(jnp.argmax(slopes))] == extreme


def test_a_tie_has_the_slope_of_the_first():
    for function in (larger, smaller):
        assert [float(slope) for slope in jax.grad(function, argnums=(0, 1))(2.0, 2.0)] == [1, 0]
    assert [float(larger(x, 2.0)) for x in (1.0, 3.0)] == [2, 3]
    assert [float(smaller(x, 2.0)) for x in (1.0, 3.0)] == [1, 2]


@given(st.floats(1e-12, 1e12))
def test_an_inverse_has_the_derivatives_of_a_division(x):
    expected = (1 / x, -1 / x**2, 2 / x**3)
    found = (inverse(x), jax.grad(inverse)(x), jax.grad(jax.grad(inverse))(x))
    assert [float(value) for value in found] == pytest.approx(expected, rel=1e-12)


def test_a_count_is_absent_where_it_is_concrete_and_zero():
    assert [absent(count) for count in (0.0, jnp.asarray(0.0), 1.0, jnp.asarray([0.0, 2.0]))] == [
        True,
        True,
        False,
        False,
    ]
    results = []
    jax.jit(lambda count: results.append(absent(count)) or count)(jnp.asarray(0.0))
    assert results == [False]


def test_plain_numbers_take_part():
    for relax in (Exact(), Smooth(200.0)):
        assert float(relax.maximum(jnp.asarray(0.5), 1.0)) == pytest.approx(1.0, rel=1e-4)
        assert float(relax.maximum(1.0, jnp.asarray(0.5))) == pytest.approx(1.0, rel=1e-4)
        assert float(relax.minimum(2.0, jnp.asarray(0.5), 1.0)) == pytest.approx(0.5, rel=1e-4)
        assert float(relax.excess(jnp.asarray(3.0), 1.0)) == pytest.approx(2.0, rel=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_multiples_of_whole_numbers(dtype):
    """As the remainder says, also where a division left a rounding error; the slope is 0 at any number."""
    numbers = np.arange(1, 2000)
    for of in (0, 1, 3, 4, 8, 64):
        quotients = jnp.asarray(7 * numbers, dtype) * jnp.asarray(1 / 7, dtype)
        expected = numbers % max(of, 1) == 0
        np.testing.assert_array_equal(is_multiple(quotients, jnp.asarray(of, dtype)), expected)
    slope = jax.vmap(jax.grad(is_multiple, argnums=(0, 1)))
    found = slope(jnp.asarray([3.6, 4.0, 4.4, 8.0], dtype), jnp.full(4, 4.0, dtype))
    np.testing.assert_array_equal(found, np.zeros((2, 4)))


@pytest.mark.parametrize(
    ("combine", "of_jax"),
    [(operator.add, jnp.cumsum), (operator.mul, jnp.cumprod)],
    ids=["sum", "product"],
)
def test_cumulative_sums_and_products_and_their_derivatives(combine, of_jax):
    values = jnp.asarray([1.5, 0.25, 3.0])
    np.testing.assert_allclose(cumulative(values, combine), of_jax(values), rtol=1e-14)
    ours, theirs = (jax.jacobian(f)(values) for f in (lambda x: cumulative(x, combine), of_jax))
    np.testing.assert_allclose(ours, theirs, rtol=1e-14)
