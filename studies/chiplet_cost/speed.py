"""How many systems of chiplets a second one core prices, in float32, with and without the gradient."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from diffperf.cost.package_cost import assembled_cost
from diffperf.hardware.package import Package
from diffperf.quantity import Scalar
from diffperf.relax import Exact

BLOCK = 256  # systems whose intermediate results stay in the cache of a core
REPEATS = 10


def price_of(package: Package) -> Callable[..., Scalar]:
    """The USD of a package as a function of numbers of its only die and of the weights of its carrier.

    The numbers are area, count, share of interfaces, wafer price and defect density.
    """

    def price(
        area: Scalar,
        count: Scalar,
        d2d: Scalar,
        wafer: Scalar,
        defects: Scalar,
        carrier: Float[Array, " carriers"],
    ) -> Scalar:
        def varied(package: Package) -> Sequence[Any]:
            die = package.dies[0]
            numbers = (die.area, die.count, die.d2d_share)
            return *numbers, die.process.wafer_price, die.process.defect_density, package.carrier.array

        made = eqx.tree_at(varied, package, (area, count, d2d, wafer, defects, carrier))
        return assembled_cost(made, jnp.zeros(()), jnp.zeros(()), Exact()).total

    return price


def systems_per_second(package: Package, systems: int) -> dict[str, float]:
    """Systems a second of a core, by "cost" and "cost and gradient": random chiplets on random carriers."""
    rng, shape = np.random.default_rng(0), (systems // BLOCK, BLOCK)
    ranges = ((20.0, 400.0), (1.0, 8.0), (0.0, 0.2), (3e3, 2e4), (5e-4, 2e-3))
    with jax.enable_x64(False):
        inputs = [jnp.asarray(rng.uniform(*ends, shape), jnp.float32) for ends in ranges]
        carriers = np.eye(len(package.carrier.alternatives), dtype=np.float32)
        inputs.append(jnp.asarray(carriers[rng.integers(0, len(carriers), shape)]))
        single = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), package)
        price = price_of(single)
        functions = {
            "cost": price,
            "cost and gradient": jax.value_and_grad(price, argnums=tuple(range(len(inputs)))),
        }
        return {name: systems / _core_seconds(function, inputs) for name, function in functions.items()}


def _core_seconds(function: Callable, inputs: Sequence[Array]) -> float:
    """CPU seconds of all threads for all systems, the mean of some repetitions.

    Clocks of processes may tick in hundredths of a second, which one repetition would not last.
    """
    blocks = jax.jit(lambda *inputs: jax.lax.map(lambda block: jax.vmap(function)(*block), inputs))
    jax.block_until_ready(blocks(*inputs))
    results: Any = None
    start = time.process_time()
    for _ in range(REPEATS):
        results = jax.block_until_ready(blocks(*inputs))
    seconds = (time.process_time() - start) / REPEATS
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(results))
    return seconds
