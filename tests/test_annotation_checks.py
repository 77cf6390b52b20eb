"""Annotations are checked, those of functions that are defined at every call of another one too."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest
from annotation_checks import checked
from jaxtyping import Array, Float

from diffperf.api.basis import Certainty
from diffperf.cost.design_cost import amortized
from diffperf.explore.calibrate.interval import Interval


def defined(unit: float) -> Callable:
    """A function that is another one at every call, with the same annotations."""

    @checked
    def scaled(x: Float[Array, " n"], factor: float = unit) -> Float[Array, " n"]:
        return x * factor if factor > 0 else jnp.concatenate([x, x])

    return scaled


def other_annotations() -> Callable:
    """A function of the same name and place in two forms."""

    def form(kind: type) -> Callable:
        @checked
        def same(x: kind) -> kind:
            return x

        return same

    return form


def test_every_definition_is_its_own_and_checked():
    """An int passes for a float; arguments, results and their shapes are checked."""
    twice, thrice = defined(2.0), defined(3)
    assert float(twice(jnp.ones(1))[0]) == 2.0
    assert float(thrice(jnp.ones(1))[0]) == 3.0
    for function in (twice, thrice):
        with pytest.raises(TypeError, match="parameter x"):
            function(jnp.ones((2, 2)))
        with pytest.raises(TypeError, match="parameter factor"):
            function(jnp.ones(1), "2")
        with pytest.raises(TypeError, match="dimension n"):
            function(jnp.ones(2), -1.0)
    assert float(twice(jnp.ones(1))[0]) == 2.0  # a refused call leaves nothing to the next one


def test_later_calls_are_checked_now_and_then():
    """Each definition stays its own; a wrong call is refused among the first ones, and among any sixteen."""
    results = [float(defined(float(k))(jnp.ones(1))[0]) for k in range(1, 600)]
    assert results == [float(k) for k in range(1, 600)]

    @checked
    def doubled(x: float) -> float:
        return 2 * x

    def refused(calls: int) -> int:
        count = 0
        for _ in range(calls):
            try:
                doubled("a")
            except TypeError:
                count += 1
        return count

    assert refused(200) == 200
    assert refused(1600) == 100


def test_other_annotations_have_checks_of_their_own():
    form = other_annotations()
    of_int, of_str = form(int), form(str)
    assert (of_int(1), of_str("1")) == (1, "1")
    for function, wrong in ((of_int, "1"), (of_str, 1)):
        with pytest.raises(TypeError, match="parameter x"):
            function(wrong)


def test_a_definition_that_calls_itself():
    """Calls under way do not take each other's place."""

    def counting(step: int) -> Callable:
        @checked
        def down(n: int) -> list:
            return [n, *down(n - step)] if n > 0 else []

        return down

    one, two = counting(1), counting(2)
    assert (one(3), two(4)) == ([3, 2, 1], [4, 2])


def test_diffperf_is_checked():
    """Its functions, with sizes of axes that agree within a call only, its methods and its classes."""
    ones = np.ones
    assert amortized(ones(2), ones((2, 3)), ones(3)).shape == (3,)
    assert amortized(ones(4), ones((4, 1)), ones(1)).shape == (1,)
    with pytest.raises(TypeError, match="parameter volume"):
        amortized(ones(2), ones((2, 3)), ones(2))
    with pytest.raises(TypeError, match="parameter time"):
        Interval("1 s", 0.1, 0.1)
    with pytest.raises(TypeError, match="parameter question"):
        Certainty.of("gpt3-175b", None, "training")
