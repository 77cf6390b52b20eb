"""Whole numbers among real ones: what divides what, within the rounding of float32."""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

Number = Array | np.ndarray | np.generic | float  # a scalar, traced or concrete

# Relative: quotients of products of degrees in float32 are off by less, real degrees by more.
_ROUNDING = 1e-4
_SMALLEST = 1e-3  # below this number the tolerance stays the same, so that 0 is whole
_EQUALITY = 1e-6  # relative: by how much a number may miss a bound that it meets without rounding


def is_whole(number: Number) -> Bool[Array, ""]:
    """Whether a number is whole."""
    number = jnp.asarray(number)
    return jnp.abs(number - jnp.round(number)) <= _ROUNDING * jnp.maximum(jnp.abs(number), _SMALLEST)


def divides(divisor: Number, number: Number) -> Bool[Array, ""]:
    """Whether a number is a whole multiple of a divisor."""
    return is_whole(jnp.asarray(number) / jnp.asarray(divisor))


def equals(number: Number, whole: Number) -> Bool[Array, ""]:
    """Whether a number is a given positive whole number."""
    expected = jnp.asarray(whole)
    return jnp.abs(jnp.asarray(number) - expected) <= _ROUNDING * expected


def reaches(number: Number, bound: Number) -> Bool[Array, ""]:
    """Whether a number is at least a positive bound."""
    return jnp.asarray(number) >= jnp.asarray(bound) * (1 - _EQUALITY)


def whole(number: Number) -> int:
    """The whole number nearest to a concrete number."""
    return round(float(number))


def divisors(number: float) -> list[int]:
    """The whole divisors of a whole number, in ascending order."""
    product = whole(number)
    small = [divisor for divisor in range(1, math.isqrt(product) + 1) if product % divisor == 0]
    return sorted({*small, *(product // divisor for divisor in small)})
