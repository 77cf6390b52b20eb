"""Verdict of a rule about a configuration: whether it holds, and what to change where it does not."""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool


class Violation(NamedTuple):
    """Why a configuration is not possible, in the words of a `ConfigError`.

    - `key`: the path of the input to change, such as `strategy.tp`.
    - `found`, `expected`: what the configuration has, and what the rule asks for.
    - `remedy`: what to change, with values that are possible.
    """

    key: str
    found: str
    expected: str
    remedy: str


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The answer of a rule.

    - `holds`: whether the configuration obeys the rule, in pure JAX.
    - `explain`: a function that describes the violation where it does not; called outside compiled programs
      only.
    """

    holds: Bool[Array, ""]
    explain: Callable[[], Violation]


def every(conditions: Iterable[Bool[Array, ""]]) -> Bool[Array, ""]:
    """Whether all of the conditions hold; true where there are none."""
    return functools.reduce(jnp.logical_and, conditions, jnp.asarray(True))
