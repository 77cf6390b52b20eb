"""One function under every transform: the same numbers compiled and mapped, and one compilation for whatever changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import cast, draw, generate, leaves, outputs, training, with_leaves

import diffperf as dp
from diffperf.quantity import replace
from diffperf.relax import Exact, Smooth

CHOICES = {
    "none": {},
    "full": {"recompute": "full", "sequence_parallel": False},
    "selective": {"recompute": "selective", "attention": "standard", "zero": "1"},
    "fp8": {"precision": "fp8", "kv_precision": "int8", "overlap_gradients": False},
    "mixed": {"recompute": {"none": 0.5, "full": 0.5}, "zero": {"0": 0.1, "1": 0.9}},
}


def _strategy(**choices):
    return dp.load_strategy({"tp": 8, "pp": 4, "virtual_stages": 2, "global_batch": 64, **choices}, n_devices=64)


def _same(a, b, rtol):
    a, b = outputs(a), outputs(b)
    assert a.keys() == b.keys()
    for path in a:
        np.testing.assert_allclose(np.asarray(a[path]), np.asarray(b[path]), rtol=rtol, atol=1e-12, err_msg=path)


@pytest.mark.parametrize("name", ["none", "mixed"])
def test_compiled_is_eager(gpt, system, name):
    """Eager, choices are concrete and only those with weight are evaluated; compiled, all are, and weighed."""
    inputs = gpt, system, _strategy(**CHOICES[name])
    _same(training(*inputs, Exact()), dp.training_step(*inputs), rtol=1e-12)


@pytest.mark.parametrize("phase", [training, generate], ids=["training", "generate"])
def test_mapped_is_looped(gpt, llama, system, phase):
    models = [gpt, llama, gpt, llama, gpt]
    strategies = [_strategy(**choices) for choices in CHOICES.values()]
    paths, _ = leaves(system)
    systems = [with_leaves(system, paths, values) for values in draw(system, np.random.default_rng(0), 5, shrink=0.9)]
    stacked = [jax.tree.map(lambda *leaves: jnp.stack(leaves), *group) for group in (models, systems, strategies)]
    together = jax.vmap(phase, in_axes=(0, 0, 0, None))(*stacked, Smooth(30.0))
    for i, inputs in enumerate(zip(models, systems, strategies, strict=True)):
        alone = phase(*inputs, Smooth(30.0))
        _same(jax.tree.map(lambda leaf: leaf[i], together), alone, rtol=1e-9)  # noqa: B023


@pytest.mark.parametrize("phase", ["training", "generate"])
def test_whatever_changes_is_traced_once(gpt, llama, system, phase):
    """Numbers, names, choices, sharpness: none of them compiles again."""
    traces = []

    @jax.jit
    def time(model, system, strategy, relax):
        traces.append(1)
        return dp.PHASES[phase](model, system, strategy, relax).time

    other = dp.load_system("dgx-h100", n_devices=64)
    times = {
        float(time(model, on, _strategy(**choices), Smooth(sharpness)))
        for model, on, choices, sharpness in [
            (gpt, system, CHOICES["none"], 20.0),
            (gpt, system, CHOICES["none"], 100),
            (gpt, replace(system, {"n_devices": 128, "accelerator.memory.hbm.bandwidth": 3e12}), CHOICES["full"], 20.0),
            (gpt, other, CHOICES["selective"], np.float32(20.0)),
            (llama, other, CHOICES["fp8"], jnp.asarray(20.0)),
            (llama, system, CHOICES["mixed"], 500),
        ]
    }
    assert len(traces) == 1
    assert len(times) == 6


@pytest.mark.parametrize("relax", [Exact(), Smooth(20.0)], ids=["exact", "smooth"])
@pytest.mark.parametrize("name", ["none", "selective"])
def test_float32_is_float64_to_four_digits(gpt, system, relax, name):
    paths, here = leaves(system)
    for values in [here, *draw(system, np.random.default_rng(1), 3, shrink=0.9)]:
        inputs = gpt, with_leaves(system, paths, values), _strategy(**CHOICES[name])
        for phase in (training, generate):
            wide = phase(*inputs, relax)
            with jax.enable_x64(False):
                narrow = phase(*cast((*inputs, relax), jnp.float32))
            assert narrow.time.dtype == jnp.float32
            for path, value in outputs(wide).items():
                found, expected = float(outputs(narrow)[path]), float(value)
                # What is exposed of a communication is a difference of two times, and good to the digits of the step.
                small = 1e-4 * float(wide.time) if path == "breakdown.data_parallel" else 1e-12
                assert found == pytest.approx(expected, rel=1e-4, abs=small), path
