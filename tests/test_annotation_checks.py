"""Annotations are checked, those of functions that are defined at every call of another one too."""

from collections.abc import Callable

import jax.numpy as jnp
import pytest
from annotation_checks import checked
from jaxtyping import Array, Float, TypeCheckError, jaxtyped


def defined(unit: float) -> Callable:
    """A function that is another one at every call, with the same annotations."""

    @jaxtyped(typechecker=checked)
    def scaled(x: Float[Array, " n"], factor: float = unit) -> Float[Array, " n"]:
        return x * factor if factor > 0 else jnp.concatenate([x, x])

    return scaled


def other_annotations() -> Callable:
    """A function of the same name and place in two forms."""

    def form(kind: type) -> Callable:
        @jaxtyped(typechecker=checked)
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
        with pytest.raises(TypeCheckError, match="parameters"):
            function(jnp.ones((2, 2)))
        with pytest.raises(TypeCheckError, match="parameters"):
            function(jnp.ones(1), "2")
        with pytest.raises(TypeCheckError, match="return value"):
            function(jnp.ones(2), -1.0)


def test_other_annotations_have_checks_of_their_own():
    form = other_annotations()
    of_int, of_str = form(int), form(str)
    assert (of_int(1), of_str("1")) == (1, "1")
    for function, wrong in ((of_int, "1"), (of_str, 1)):
        with pytest.raises(TypeCheckError):
            function(wrong)
