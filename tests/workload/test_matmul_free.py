"""MatMul-free LM (arXiv 2406.02528): weights, work and memory of a recurrence in place of attention, against
counts that are written out here.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from helpers import generate, training

import diffperf as dp
from diffperf.estimate.kernels.evaluation import evaluate
from diffperf.estimate.kernels.machine import Machine
from diffperf.hardware.formats import width
from diffperf.quantity import real
from diffperf.relax import Exact, Smooth
from diffperf.workload.activations import layer_activations
from diffperf.workload.assembly import layer_operators
from diffperf.workload.configuration import Configuration
from diffperf.workload.elementwise_operators import elementwise_kernels, recurrence_kernels
from diffperf.workload.linear_layers import linear_layers
from diffperf.workload.memory import kv_cache_bytes
from diffperf.workload.passes import TokenPass, training_pass

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
    products = linear_layers(layers, model.hidden, dp.load_strategy({}), real(tokens))
    assert float(products.flops.sum()) == 2 * tokens * (4 * D**2 + 3 * D * FFN)


@pytest.mark.parametrize("tp", [1, 4])
def test_bytes_of_the_recurrence_by_tensor(model, tp):
    """Forward f, c in and h out, then g, h in and o out; backward f, c, h, dh in and df, dc out, then g, h,
    do in, dg, dh out.
    """
    b, s, width_of_element = 3, 1000, 2
    tokens = TokenPass(sequences=real(b), queries=real(s), context=real(s))
    stream, state = width_of_element * b * s * D / tp, width_of_element * b * D / tp
    expected = {False: (2 + 1, 2 + 1), True: (4 + 2, 3 + 2)}
    for backward, (scan, gate) in expected.items():
        kernels = recurrence_kernels(model.layers[0], dp.load_strategy({"tp": tp}), tokens, backward=backward)
        assert kernels.bytes.tolist() == pytest.approx([scan * stream + 2 * state, gate * stream], rel=1e-12)


def test_no_rotary_embedding(model):
    strategy, tokens = dp.load_strategy({}), real(1000)
    moved, attending = (
        elementwise_kernels(chosen.layers[0], chosen, strategy, tokens).bytes
        for chosen in (model, _with_attention(model))
    )
    # Queries and keys, read and written, 2 bytes each.
    assert float(attending.sum() - moved.sum()) == 2 * 2 * 1000 * 2 * D


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


def test_state_does_not_grow_with_the_context(model, system):
    """d elements a layer and sequence; with attention 2·d a token."""
    strategy = dp.load_strategy({"global_batch": 4})

    def cache(of, context):
        return float(kv_cache_bytes(Configuration(of, system, strategy), real(context)))

    for context in (16, 1008, 100000):  # whole blocks of the cache
        assert cache(model, context) == 4 * LAYERS * D * 2
        assert cache(_with_attention(model), context) == 4 * LAYERS * 2 * D * 2 * context
        assert cache(_hybrid(model), context) == 4 * LAYERS / 2 * (D * 2 + 2 * D * 2 * context)


def test_a_generated_token_takes_as_long_after_any_context(model, system):
    strategy = dp.load_strategy({"global_batch": 8})
    machine = Machine.of(system, strategy, Exact())

    @jax.jit
    def layer_time(model, context):
        tokens = TokenPass(sequences=real(8), queries=real(1), context=context, generating=True, serving=True)
        operators = layer_operators(Configuration(model, system, strategy), tokens, trained=False)
        return evaluate(operators, machine).total().time

    for chosen, grows in ((model, False), (_with_attention(model), True), (_hybrid(model), True)):
        short, long = (float(layer_time(chosen, real(context))) for context in (1000, 100000))
        assert (long > 1.5 * short) if grows else (long == short)


@pytest.mark.slow
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
    report = training(model, system, strategy, Exact())
    memory = system.accelerator.device_memory
    seconds = 2 * (3 + 3 + 6 + 5) * b * s * D / float(memory.bandwidth * memory.efficiency)
    assert float(report.breakdown.attention) == pytest.approx(LAYERS * seconds, rel=0.1)


@jax.jit
def _attention_time(model, system, strategy):
    """Seconds of the attention cores, or of what stands in their place, in both passes of an average
    layer.
    """
    c = Configuration(model, system, strategy)
    operators = layer_operators(c, training_pass(strategy), trained=True)
    machine = Machine.of(system, strategy, c.relax)
    timed = evaluate([group for group in operators if group.part == "attention"], machine)
    counts = jnp.concatenate([kinds.count for kinds in model.kinds])
    return jnp.sum(counts / model.depth * timed.times([{"kind": kind} for kind in range(timed.kinds)]).time)


def test_hybrid_lies_between(model):
    system = dp.load_system("dgx-a100", 1)
    strategy = dp.load_strategy({"global_batch": 4, "sequence_length": 8192})
    recurrent, half, attending = (
        float(_attention_time(chosen, system, strategy))
        for chosen in (model, _hybrid(model), _with_attention(model))
    )
    assert recurrent < half < attending
    assert half == pytest.approx((recurrent + attending) / 2, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["training_step", "generate"])
@pytest.mark.parametrize("relax", [Exact(), Smooth(16.0)], ids=["exact", "smooth"])
def test_finite_and_differentiable_in_the_width(model, relax, phase):
    """Against a central difference, in training and in serving."""
    system = dp.load_system("dgx-a100", 1)
    strategy = dp.load_strategy({"global_batch": 4, "sequence_length": 1024})

    def time(head_dim):
        kinds = tuple(dataclasses.replace(kind, head_dim=head_dim) for kind in model.layers)
        chosen = dataclasses.replace(model, layers=kinds)
        return getattr(dp, phase)(chosen, system, strategy, relax).time

    time_and_slope = jax.jit(jax.value_and_grad(time))
    here, step = 129.3, 1e-4
    (below, _), (_, slope), (above, _) = (
        time_and_slope(real(width)) for width in (here - step, here, here + step)
    )
    assert jnp.isfinite(slope)
    assert float(slope) == pytest.approx(float(above - below) / (2 * step), rel=1e-4)


@pytest.mark.slow
def test_packed_ternary_weights(model, system):
    """Two bits a weight in serving; products on the units of int8."""
    assert float(width(dp.load_strategy({"precision": "ternary"}).precision)) == 2 / 8
    strategy = dp.load_strategy({"weight_precision": "ternary", "head_precision": "weights"})
    assert eqx.tree_equal(system.accelerator.matrix.ternary, system.accelerator.matrix.int8)
    served = generate(model, dp.load_system("dgx-a100", 1), strategy, Exact())
    # Without the last norm.
    assert float(served.memory.weights) == pytest.approx(float(model.parameters) / 4, rel=1e-5)


@pytest.mark.slow
def test_published_times_of_training(model):
    """1.52 and 1.21 s per iteration (arXiv 2406.02528 §4): stacks counted from the published code, not
    fitted.
    """
    strategy = dp.load_strategy({"global_batch": 28, "micro_batch": 28, "sequence_length": 1024})
    for stack, published in (("unfused", 1.52), ("fused", 1.21)):
        system = dp.load_system("dgx-a100", 1, stack=f"matmulfree-{stack}")
        assert float(training(model, system, strategy, Exact()).time) == pytest.approx(published, rel=0.1)
