"""Every estimate is finite in float32, value and gradient, wherever inputs lie in their documented ranges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import cast, draw, leaves, outputs

import diffperf as dp
from diffperf.quantity import Choice, replace, walk
from diffperf.relax import Exact, Smooth

DESIGNS, BLOCK = 100_000, 500
SHARPEST = 500.0


def _designs(module, rng, choices):
    """Random numbers in their documented ranges and, if asked, random definite choices: {path: (designs, ...)}."""
    paths, _ = leaves(module)
    columns = dict(zip(paths, draw(module, rng, DESIGNS).T, strict=True))
    for path, declared, _ in walk(module):
        if choices and isinstance(declared, Choice):
            columns[path] = np.eye(len(declared.alternatives))[rng.integers(len(declared.alternatives), size=DESIGNS)]
    return columns


@pytest.mark.parametrize("smooth", [False, True], ids=["exact", "smooth"])
@pytest.mark.parametrize("phase", ["training", "generate"])
@pytest.mark.usefixtures("float32")
def test_random_designs_are_finite(gpt, llama, system, strategy, phase, smooth):
    # Traced choices take long to compile; the exact formulas of other alternatives are the smooth ones with sharper corners.
    rng, choices = np.random.default_rng(0), smooth
    model, system, strategy = cast(({"training": gpt, "generate": llama}[phase], system, strategy), jnp.float32)
    sharpness = np.exp(rng.uniform(0, np.log(SHARPEST), DESIGNS))
    designs = cast((_designs(system, rng, choices), _designs(strategy, rng, choices), sharpness), jnp.float32)

    def total(design):
        on_system, on_strategy, p = design
        relax = Smooth(p) if smooth else Exact()
        report = dp.PHASES[phase](model, replace(system, on_system), replace(strategy, on_strategy), relax)
        # What is not finite in any of them is not finite in their sum. A step of years has slopes beyond float32, its log has not.
        return jnp.log(report.time + report.memory.peak + report.energy.total + report.cost.run), report

    def finite(design):
        (_, report), gradient = jax.value_and_grad(total, has_aux=True)(design)
        return {"value": outputs(report), "gradient": (*gradient[:2], {"sharpness": gradient[2]})}

    @jax.jit
    def not_finite(designs):
        found = jax.lax.map(lambda d: jax.tree.map(lambda leaf: jnp.all(jnp.isfinite(leaf)), finite(d)), designs, batch_size=BLOCK)
        return jax.tree.map(lambda leaf: jnp.sum(~leaf), found)

    found = not_finite(designs)
    values = found["value"]
    gradients = {path: count for part in found["gradient"] for path, count in part.items()}
    assert len(values) > 30
    assert len(gradients) > 75
    assert {path: int(count) for path, count in values.items() if count} == {}
    assert {path: int(count) for path, count in gradients.items() if count} == {}


@pytest.mark.usefixtures("float32")
def test_the_corners_are_finite(gpt, system, strategy):
    """All inputs at the lowest end of their ranges at once, and all at the highest."""

    def ends(module):
        return {path: jnp.asarray(d.bounds, jnp.float32) for path, d, _ in walk(module) if not isinstance(d, Choice)}

    def estimate(on_system, on_strategy):
        inputs = cast((gpt, system, strategy, Smooth(20.0)), jnp.float32)
        report = dp.training_step(inputs[0], replace(inputs[1], on_system), replace(inputs[2], on_strategy), inputs[3])
        return report.time + report.memory.peak, report

    differentiated = jax.jit(jax.vmap(jax.value_and_grad(estimate, argnums=(0, 1), has_aux=True)))
    (_, report), gradient = differentiated(ends(system), ends(strategy))
    assert [path for path, value in outputs(report).items() if not jnp.all(jnp.isfinite(value))] == []
    assert [path for part in gradient for path, value in part.items() if not jnp.all(jnp.isfinite(value))] == []
