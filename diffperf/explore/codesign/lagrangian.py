"""Augmented Lagrangian for smooth problems with inequality constraints, many starts at once.

    minimize f(x)  subject to  g(x) ≤ 0,  x within bounds or on a simplex

The descent works on unbounded variables z, which bijections map to x. Each outer iteration descends on

    L(z) = w·f + 1/(2ρ) · Σ (max(0, λ + ρ·g)² − λ²)

with Adam (optax), then updates the multipliers, λ ← max(0, λ + ρ·g), sharpens the relaxation and raises the
penalty ρ (Nocedal and Wright, Numerical Optimization, §17.4). The caller normalizes f and g (logarithms,
ratios to limits). All starts run in one vmapped program, compiled once: what changes between calls (limits,
fixed variables, weights, sharpness) is traced.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float

# The ends of a range, where the sigmoid's logarithm is infinite, are approached to this share of the range.
EDGE = 1e-6


class Bounds(eqx.Module):
    """Bijections between z and x: each variable within [low, high], groups of variables on a simplex."""

    low: Float[Array, " n"]
    high: Float[Array, " n"]
    log: Bool[Array, " n"]  # whether a variable is searched on a logarithmic scale
    simplexes: tuple[tuple[int, int], ...] = eqx.field(static=True, default=())  # [begin, end) of each group

    def decode(self, z: Float[Array, " n"]) -> Float[Array, " n"]:
        """x of z, by the logistic function σ(z).

        low·(high/low)^σ(z) on logarithmic scales, low + (high − low)·σ(z) on others, softmax(z) in a simplex.
        """
        share = jax.nn.sigmoid(z)
        low = jnp.where(self.log, self.low, 1.0)
        ratio = jnp.where(self.log, self.high, 1.0) / low
        x = jnp.where(
            self.log, low * jnp.exp(share * jnp.log(ratio)), self.low + (self.high - self.low) * share
        )
        for begin, end in self.simplexes:
            x = x.at[begin:end].set(jax.nn.softmax(z[begin:end]))
        return x

    def encode(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        """z of x; a value at an end of its range is moved inside by `EDGE`."""
        low = jnp.where(self.log, self.low, 1.0)
        log_share = jnp.log(jnp.where(self.log, x, 1.0) / low) / jnp.where(
            self.log, jnp.log(self.high / self.low), 1.0
        )
        share = jnp.where(self.log, log_share, (x - self.low) / (self.high - self.low))
        share = jnp.clip(share, EDGE, 1 - EDGE)
        z = jnp.log(share) - jnp.log1p(-share)
        for begin, end in self.simplexes:
            z = z.at[begin:end].set(jnp.log(jnp.maximum(x[begin:end], EDGE)))
        return z


class Fixed(eqx.Module):
    """The variables that a start holds at a value, such as whole numbers being tried, and those values."""

    mask: Bool[Array, "*starts n"]
    values: Float[Array, "*starts n"]

    def apply(self, x: Array) -> Array:
        """x with the held variables at their values."""
        return jnp.where(self.mask, self.values, x)


class State(eqx.Module):
    """Where the starts are: their unbounded variables, and their multipliers, one for each constraint."""

    z: Float[Array, "*starts n"]
    multipliers: Float[Array, "*starts m"]


class Setting(NamedTuple):
    """How one outer iteration goes: sharpness of the relaxation, penalty of violations, first step."""

    sharpness: float | Array
    penalty: float | Array
    step: float | Array


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How all outer iterations go: geometric ramps of sharpness, penalty and step, (first, last) of each."""

    outer: int
    inner: int
    sharpness: tuple[float, float]
    penalty: tuple[float, float] = (5.0, 100.0)
    step: tuple[float, float] = (0.1, 1e-3)

    def at(self, iteration: int) -> Setting:
        """The setting of an outer iteration, counted from 0."""
        progress = iteration / max(self.outer - 1, 1)
        ramps = (self.sharpness, self.penalty, self.step)
        return Setting(*(first * (last / first) ** progress for first, last in ramps))


Functions = Callable[[Array, Array, Array], tuple[Array, Array]]  # (x, sharpness, limits) -> (f, g)
Watch = Callable[[State, np.ndarray, np.ndarray], None]  # (state, f of every start, g of every start)


class Solver:
    """One compiled augmented-Lagrangian iteration for f and g, reused for every start, rounding and limit."""

    def __init__(self, functions: Functions, bounds: Bounds, inner: int):
        self.functions, self.bounds, self.inner = functions, bounds, inner
        self._iterate = jax.jit(jax.vmap(self._outer_iteration, in_axes=(0, 0, None, None, None)))
        self._gradients = jax.jit(jax.vmap(self._lagrangian_gradient, in_axes=(0, 0, None, None, None)))

    def _loss(
        self, z: Array, multipliers: Array, fixed: Fixed, limits: Array, weight: Array, setting: Setting
    ) -> tuple[Array, tuple[Array, Array]]:
        """L(z), and with it (f, g)."""
        objective, constraints = self.functions(
            fixed.apply(self.bounds.decode(z)), jnp.asarray(setting.sharpness), limits
        )
        shifted = jnp.maximum(0.0, multipliers + setting.penalty * constraints)
        penalties = jnp.sum(shifted**2 - multipliers**2) / (2 * setting.penalty)
        return weight * objective + penalties, (objective, constraints)

    def _outer_iteration(
        self, state: State, fixed: Fixed, limits: Array, weight: Array, setting: Setting
    ) -> tuple[State, Array, Array]:
        """`inner` steps of Adam from a fresh state with a cosine-decayed step, then the multiplier update."""
        adam = optax.scale_by_adam(b1=0.9, b2=0.99)
        gradient = jax.value_and_grad(self._loss, has_aux=True)

        def descend(carry, index):
            z, moments = carry
            (_, scores), slope = gradient(z, state.multipliers, fixed, limits, weight, setting)
            update, moments = adam.update(slope, moments)
            size = setting.step * 0.5 * (1 + jnp.cos(jnp.pi * index / self.inner))
            return (z - size * cast(Array, update), moments), scores

        (z, _), (objectives, constraints) = jax.lax.scan(
            descend, (state.z, adam.init(state.z)), jnp.arange(self.inner)
        )
        multipliers = jnp.maximum(0.0, state.multipliers + setting.penalty * constraints[-1])
        return State(z, multipliers), objectives[-1], constraints[-1]

    def _lagrangian_gradient(
        self, state: State, fixed: Fixed, limits: Array, weight: Array, sharpness: Array
    ) -> Array:
        """∂(w·f + λ·g)/∂z of one start."""

        def lagrangian(z: Array) -> Array:
            objective, constraints = self.functions(fixed.apply(self.bounds.decode(z)), sharpness, limits)
            return weight * objective + jnp.sum(state.multipliers * constraints)

        return jax.grad(lagrangian)(state.z)

    def solve(
        self,
        state: State,
        fixed: Fixed,
        limits: Array,
        schedule: Schedule,
        *,
        weight: float = 1.0,
        watch: Watch | None = None,
    ) -> State:
        """Runs a schedule from a state; `watch` is called after every outer iteration."""
        for iteration in range(schedule.outer):
            setting = Setting(*(jnp.asarray(value, dtype=float) for value in schedule.at(iteration)))
            state, objectives, constraints = self._iterate(
                state, fixed, limits, jnp.asarray(weight, dtype=float), setting
            )
            if watch is not None:
                watch(state, np.asarray(objectives), np.asarray(constraints))
        return state

    def stationarity(
        self, state: State, fixed: Fixed, limits: Array, sharpness: float, weight: float = 1.0
    ) -> np.ndarray:
        """max |∂(w·f + λ·g)/∂z| of every start: 0 where the KKT conditions hold (z makes bounds interior)."""
        gradients = self._gradients(
            state, fixed, limits, jnp.asarray(weight, dtype=float), jnp.asarray(sharpness, dtype=float)
        )
        return np.abs(np.asarray(gradients)).max(axis=1)
