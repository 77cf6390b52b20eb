"""Augmented Lagrangian for smooth problems with inequality constraints, many starts at once.

    minimize f(x)  subject to  g(x) ≤ 0,  x within bounds or on a simplex

Variables live in z, unbounded, through bijections; each outer iteration descends on

    L(z) = w·f + 1/(2ρ) · Σ (max(0, λ + ρ·g)² − λ²)

with Adam (optax), then updates λ ← max(0, λ + ρ·g), sharpens the relaxation and raises ρ (Nocedal and Wright, Numerical
Optimization, §17.4). f and g are normalized by the caller (logarithms, ratios to limits). All starts run in one vmapped
program, compiled once: what changes between calls (limits, fixed variables, weights, sharpness) is traced.
"""

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float


class Bounds(eqx.Module):
    """Bijections between z and x, all variables at once: each entry within [low, high], log-spaced or not; groups on a simplex."""

    low: Float[Array, " n"]
    high: Float[Array, " n"]
    log: Bool[Array, " n"]
    simplexes: tuple[tuple[int, int], ...] = eqx.field(static=True, default=())  # [begin, end) of each group

    def decode(self, z: Float[Array, " n"]) -> Float[Array, " n"]:
        """x of z: low·(high/low)^σ(z) on logarithmic scales, low + (high − low)·σ(z) on others, softmax(z) in a simplex."""
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
        """z of x; the ends of the range are approached to 1e-6."""
        low = jnp.where(self.log, self.low, 1.0)
        log_share = jnp.log(jnp.where(self.log, x, 1.0) / low) / jnp.where(
            self.log, jnp.log(self.high / self.low), 1.0
        )
        share = jnp.where(self.log, log_share, (x - self.low) / (self.high - self.low))
        share = jnp.clip(share, 1e-6, 1 - 1e-6)
        z = jnp.log(share) - jnp.log1p(-share)
        for begin, end in self.simplexes:
            z = z.at[begin:end].set(jnp.log(jnp.maximum(x[begin:end], 1e-6)))
        return z


class Fixed(eqx.Module):
    """Variables held at a value: integers being tried, choices made."""

    mask: Bool[Array, "*starts n"]
    values: Float[Array, "*starts n"]

    def apply(self, x: Array) -> Array:
        return jnp.where(self.mask, self.values, x)


class State(eqx.Module):
    """Where the starts are: variables and multipliers."""

    z: Float[Array, "starts n"]
    multipliers: Float[Array, "starts m"]


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How the outer iterations go: geometric ramps of sharpness, penalty and step size."""

    outer: int
    inner: int
    sharpness: tuple[float, float]
    penalty: tuple[float, float] = (5.0, 100.0)
    step: tuple[float, float] = (0.1, 1e-3)

    def at(self, iteration: int) -> tuple[float, float, float]:
        """(sharpness, penalty, step size) of an outer iteration."""
        progress = iteration / max(self.outer - 1, 1)
        return tuple(
            low * (high / low) ** progress for low, high in (self.sharpness, self.penalty, self.step)
        )


Problem = Callable[[Array, Array, Array], tuple[Array, Array]]  # (x, sharpness, limits) -> (f, g)


class Solver:
    """One compiled augmented-Lagrangian iteration for a problem, reused for every start, rounding and limit."""

    def __init__(self, problem: Problem, bounds: Bounds, inner: int):
        self.problem, self.bounds, self.inner = problem, bounds, inner
        self._iterate = jax.jit(jax.vmap(self._one_iteration, in_axes=(0, 0, None, None, None, None, None)))
        self._gradients = jax.jit(jax.vmap(self._lagrangian_gradient, in_axes=(0, 0, None, None, None)))

    def _loss(self, z, multipliers, fixed, limits, weight, sharpness, penalty):
        objective, constraints = self.problem(fixed.apply(self.bounds.decode(z)), sharpness, limits)
        shifted = jnp.maximum(0.0, multipliers + penalty * constraints)
        return weight * objective + jnp.sum(shifted**2 - multipliers**2) / (2 * penalty), (
            objective,
            constraints,
        )

    def _one_iteration(self, state: State, fixed: Fixed, limits, weight, sharpness, penalty, step):
        """`inner` steps of Adam from a fresh state with a cosine-decayed step size, then the multiplier update."""
        adam = optax.scale_by_adam(b1=0.9, b2=0.99)
        gradient = jax.value_and_grad(self._loss, has_aux=True)

        def descend(carry, i):
            z, moments = carry
            (_, aux), slope = gradient(z, state.multipliers, fixed, limits, weight, sharpness, penalty)
            update, moments = adam.update(slope, moments)
            size = step * 0.5 * (1 + jnp.cos(jnp.pi * i / self.inner))
            return (z - size * update, moments), aux

        (z, _), (objectives, constraints) = jax.lax.scan(
            descend, (state.z, adam.init(state.z)), jnp.arange(self.inner)
        )
        multipliers = jnp.maximum(0.0, state.multipliers + penalty * constraints[-1])
        return State(z, multipliers), objectives[-1], constraints[-1]

    def _lagrangian_gradient(self, state: State, fixed: Fixed, limits, weight, sharpness):
        def lagrangian(z):
            objective, constraints = self.problem(fixed.apply(self.bounds.decode(z)), sharpness, limits)
            return weight * objective + jnp.sum(state.multipliers * constraints)

        return jax.grad(lagrangian)(state.z)

    def solve(
        self,
        state: State,
        fixed: Fixed,
        limits: Array,
        schedule: Schedule,
        weight: float = 1.0,
        watch: Callable[[State, np.ndarray, np.ndarray], None] = lambda *_: None,
    ) -> State:
        """Runs a schedule from a state; `watch(state, objectives, constraints)` is called after every outer iteration."""
        for iteration in range(schedule.outer):
            sharpness, penalty, step = (jnp.asarray(v, dtype=float) for v in schedule.at(iteration))
            state, objectives, constraints = self._iterate(
                state, fixed, limits, jnp.asarray(weight, dtype=float), sharpness, penalty, step
            )
            watch(state, np.asarray(objectives), np.asarray(constraints))
        return state

    def stationarity(
        self, state: State, fixed: Fixed, limits: Array, sharpness: float, weight: float = 1.0
    ) -> np.ndarray:
        """max |∂(w·f + λ·g)/∂z| of every start: zero where the KKT conditions hold (z makes bounds interior)."""
        gradients = self._gradients(
            state, fixed, limits, jnp.asarray(weight, dtype=float), jnp.asarray(sharpness, dtype=float)
        )
        return np.abs(np.asarray(gradients)).max(axis=1)
