"""MatMul-free LM (arXiv 2406.02528): weights, work and memory of a recurrence in place of attention, written
out again here.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import diffperf as dp
from diffperf.estimate.kernels.roofline import Machine
from diffperf.estimate.layer import Pass, inference_layers
from diffperf.hardware.formats import PRECISIONS, width
from diffperf.quantity import real
from diffperf.relax import Exact, Smooth
from diffperf.workload.memory import kv_cache_bytes, layer_activations
from diffperf.workload.operators import elementwise_forward, linear_layers, recurrence_kernels

D, LAYERS, FFN = 2048, 24, 5632  # of the 1.3B model


@pytest.fixture(scope="module")
def model():
    return dp.load_model("matmulfree-1.3b")


def _with_attention(model):
    return dataclasses.replace(
        model, layers=tuple(dataclasses.replace(kind, recurrence=None) for kind in model.layers)
    )


def _hybrid(model):
    """Half of the layers with attention."""
    half = dataclasses.replace(model.layers[0], count=real(LAYERS / 2))
    return dataclasses.replace(model, layers=(half, dataclasses.replace(half, recurrence=None)))


def test_token_mixer_of_4d2_and_channel_mixer_of_8d2(model):
    """W_f, W_c, W_g and W_o of d×d; three matrices of 8d²/3, whose inner dimension is rounded up to a
    multiple of 256.
    """
    layers = model.layers[0]
    assert float(layers.attention_matrices(model.hidden)) == 4 * D**2
    assert float(layers.mlp_matrices(model.hidden, layers.ffn)) == 3 * D * 256 * -(-(8 * D // 3) // 256)
    tokens = 1000
    rows = linear_layers(layers, model.hidden, dp.load_strategy({}), real(tokens))
    assert float(rows.flops.sum()) == 2 * tokens * (4 * D**2 + 3 * D * FFN)


@pytest.mark.parametrize("tp", [1, 4])
def test_bytes_of_the_recurrence_by_tensor(model, tp):
    """Forward f, c in and h out, then g, h in and o out; backward f, c, h, dh in and df, dc out, then g, h,
    do in, dg, dh out.
    """
    b, s = 3, 1000
    forward, backward = recurrence_kernels(model.layers[0], dp.load_strategy({"tp": tp}), real(b), real(s))
    one, state = b * s * D / tp, b * D / tp
    assert np.asarray(forward) == pytest.approx([(2 + 1) * one + 2 * state, (2 + 1) * one], rel=1e-12)
    assert np.asarray(backward) == pytest.approx([(4 + 2) * one + 2 * state, (3 + 2) * one], rel=1e-12)


def test_no_rotary_embedding(model):
    strategy, tokens = dp.load_strategy({}), real(1000)
    moved, attending = (
        elementwise_forward(m.layers[0], m, strategy, tokens) for m in (model, _with_attention(model))
    )
    assert float(attending.sum() - moved.sum()) == 2 * 1000 * 2 * D  # queries and keys, read and written


@pytest.mark.parametrize("attention", ["flash", "standard"])
def test_kept_activations_by_tensor(model, attention):
    """2 bytes each: inputs of two norms, of f, c, g and of the MLP; f, c, g, h, o; gate, up and their
    product. No scores.
    """
    b, s = 2, 512
    strategy = dp.load_strategy({"micro_batch": b, "sequence_length": s, "attention": attention})
    expected = 2 * b * s * (4 * D + 5 * D + 3 * FFN)
    assert float(layer_activations(model.layers[0], model, strategy).kept) == pytest.approx(
        expected, rel=1e-12
    )


def test_state_does_not_grow_with_the_context(model):
    """d elements a layer and sequence; with attention 2·d a token."""
    strategy = dp.load_strategy({"global_batch": 4})
    for context in (1, 1000, 100000):
        assert float(kv_cache_bytes(model, strategy, real(context))) == 4 * LAYERS * D * 2
        assert (
            float(kv_cache_bytes(_with_attention(model), strategy, real(context)))
            == 4 * LAYERS * 2 * D * 2 * context
        )
        half = 4 * LAYERS / 2 * (D * 2 + 2 * D * 2 * context)
        assert float(kv_cache_bytes(_hybrid(model), strategy, real(context))) == half


def test_a_generated_token_takes_as_long_after_any_context(model, system):
    strategy = dp.load_strategy({"global_batch": 8})
    machine = Machine.of(system, strategy, Exact())
    passes = {
        str(context): Pass(real(8), real(1), real(context), generating=True) for context in (1000, 100000)
    }
    for chosen, grows in ((model, False), (_with_attention(model), True), (_hybrid(model), True)):
        works, _ = inference_layers(chosen, strategy, machine, passes, {})
        short, long = (float(works[name].total.time) for name in passes)
        assert (long > 1.5 * short) if grows else (long == short)


@pytest.mark.parametrize("attention", ["flash", "standard", {"standard": 0.5, "flash": 0.5}])
def test_time_of_the_token_mixer(model, attention):
    """Whatever the attention kernel: eight kernels' bytes (two kernels of each pass) over the reached
    bandwidth, and overheads.
    """
    system = dp.load_system("dgx-a100", 1, stack="megatron-lm")
    b, s = 8, 1024
    strategy = dp.load_strategy(
        {"global_batch": b, "micro_batch": b, "sequence_length": s, "attention": attention}
    )
    found = dp.training_step(model, system, strategy)
    memory = system.accelerator.device_memory
    one = b * s * D
    seconds = 2 * (3 + 3 + 6 + 5) * one / float(memory.bandwidth * memory.efficiency)
    assert float(found.breakdown.attention) == pytest.approx(LAYERS * seconds, rel=0.1)


def test_hybrid_lies_between(model):
    system, strategy = (
        dp.load_system("dgx-a100", 1),
        dp.load_strategy({"global_batch": 4, "sequence_length": 8192}),
    )
    times = [
        float(dp.training_step(m, system, strategy).breakdown.attention)
        for m in (model, _hybrid(model), _with_attention(model))
    ]
    assert times[1] == pytest.approx((times[0] + times[2]) / 2, rel=1e-9)


@pytest.mark.parametrize("relax", [Exact(), Smooth(real(16.0))])
def test_finite_and_differentiable_in_the_width(model, relax):
    """Against a central difference, in training and in serving."""
    system, strategy = (
        dp.load_system("dgx-a100", 1),
        dp.load_strategy({"global_batch": 4, "sequence_length": 1024}),
    )

    def time(head_dim, phase):
        kinds = tuple(dataclasses.replace(kind, head_dim=head_dim) for kind in model.layers)
        return getattr(dp, phase)(dataclasses.replace(model, layers=kinds), system, strategy, relax).time

    for phase in ("training_step", "generate"):
        of = jax.jit(lambda x, phase=phase: time(x, phase))
        here, step = 129.3, 1e-4
        slope = (of(real(here + step)) - of(real(here - step))) / (2 * step)
        found = jax.grad(of)(real(here))
        assert jnp.isfinite(found)
        assert float(found) == pytest.approx(float(slope), rel=1e-4)


def test_packed_ternary_weights(model, system):
    """Two bits a weight in serving; products on the units of int8."""
    ternary = jnp.eye(len(PRECISIONS))[PRECISIONS.index("ternary")]
    assert float(width(ternary)) == 2 / 8
    assert eqx.tree_equal(system.accelerator.matrix.ternary, system.accelerator.matrix.int8)
    served = dp.generate(
        model, dp.load_system("dgx-a100", 1), dp.load_strategy({"weight_precision": "ternary"})
    )
    assert float(served.memory.weights) == pytest.approx(
        float(model.parameters) / 4, rel=1e-5
    )  # without the last norm


def test_published_times_of_training(model):
    """1.52 and 1.21 s per iteration (arXiv 2406.02528 §4): stacks counted from the published code, not
    fitted.
    """
    strategy = dp.load_strategy({"global_batch": 28, "micro_batch": 28, "sequence_length": 1024})
    for stack, published in (("unfused", 1.52), ("fused", 1.21)):
        system = dp.load_system("dgx-a100", 1, stack=f"matmulfree-{stack}")
        assert float(dp.training_step(model, system, strategy).time) == pytest.approx(published, rel=0.1)
