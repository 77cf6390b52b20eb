"""Parameter counts against the closed forms of the papers."""

import jax
import numpy as np
import pytest

import diffperf as dp
from diffperf.quantity import real
from diffperf.workload.model import NO_WINDOW, Latent, Layers, Mixture, Model
from diffperf.workload.stage_parameters import parameters_of_layers


def _gpt(hidden, layers, vocabulary, positions):
    kind = Layers(
        count=layers, heads=8, kv_heads=8, head_dim=hidden / 8, ffn=4 * hidden, gated=False, biases=True
    )
    return Model(
        name="",
        hidden=hidden,
        vocabulary=vocabulary,
        tied_embeddings=True,
        layers=(kind,),
        learned_positions=positions,
    )


@pytest.mark.parametrize(
    ("h", "n", "v", "s"), [(1024, 24, 50304, 1024), (12288, 96, 51200, 2048), (25600, 128, 51200, 2048)]
)
def test_gpt_follows_the_formula_of_megatron(h, n, v, s):
    """P = 12·l·h²·(1 + 13/(12h) + (V + s)/(12·l·h)) (arXiv 2104.04473, Equation 2), which leaves out the
    final norm's 2h.
    """
    expected = 12 * n * h**2 * (1 + 13 / (12 * h) + (v + s) / (12 * n * h))
    assert float(_gpt(h, n, v, s).parameters) == pytest.approx(expected + 2 * h, rel=1e-12)


def test_llama_by_hand(llama):
    h, n, ffn, v = 4096, 32, 11008, 32000
    assert float(llama.parameters) == 2 * v * h + n * (4 * h**2 + 3 * h * ffn + 2 * h) + h


def test_grouped_queries_by_hand():
    h, heads, kv, d, ffn, v = 8192, 64, 8, 128, 28672, 32000
    kind = Layers(count=80, heads=heads, kv_heads=kv, head_dim=d, ffn=ffn, gated=True)
    layer = h * heads * d * 2 + h * kv * d * 2 + 3 * h * ffn + 2 * h
    assert (
        float(Model(name="", hidden=h, vocabulary=v, tied_embeddings=False, layers=(kind,)).parameters)
        == 2 * v * h + 80 * layer + h
        == 68_976_648_192
    )  # Llama-2 70B


def test_experts_by_hand():
    kind = Layers(count=32, heads=32, kv_heads=8, head_dim=128, ffn=14336, gated=True, mixture=Mixture(8, 2))
    layer = 4096 * (2 * 4096 + 2 * 1024) + 8 * 3 * 4096 * 14336 + 4096 * 8 + 2 * 4096
    assert (
        float(Model(name="", hidden=4096, vocabulary=32000, tied_embeddings=False, layers=(kind,)).parameters)
        == 2 * 32000 * 4096 + 32 * layer + 4096
    )


def test_shared_experts_by_hand():
    """Of Qwen2-57B-A14B: 64 experts of 2,560, of which a token visits 8, and one of 20,480 that all visit."""
    h, heads, kv, d, ffn, shared = 3584, 28, 4, 128, 2560, 20480
    kind = Layers(
        count=28,
        heads=heads,
        kv_heads=kv,
        head_dim=d,
        ffn=ffn,
        gated=True,
        qkv_biases=True,
        mixture=Mixture(64, 8, shared),
    )
    attention, router = 2 * h * heads * d + 2 * h * kv * d, 64 * h
    assert float(kind.routed_parameters(real(h))) == 64 * 3 * h * ffn
    assert (
        float(kind.dense_parameters(real(h)))
        == attention + (heads + 2 * kv) * d + router + 3 * h * shared + 2 * h
    )
    assert float(kind.parameters(real(h))) == float(
        kind.routed_parameters(real(h)) + kind.dense_parameters(real(h))
    )
    assert float(kind.active_matrices(real(h))) == attention + router + 3 * h * (8 * ffn + shared)


def test_latent_attention_by_hand():
    """The projections of DeepSeek-V3 (arXiv 2412.19437 §2.1.1, Equations 1 to 11, with the dimensions of
    §4.2), and two norms.
    """
    h, heads, content, rotary, value, q, c = 7168, 128, 128, 64, 128, 1536, 512
    kind = Layers(
        count=61,
        heads=heads,
        kv_heads=heads,
        head_dim=content + rotary,
        ffn=18432,
        gated=True,
        latent=Latent(q, c, rotary, value),
    )
    down, up = h * c + h * q + h * rotary, heads * (content * c + value * c + content * q + rotary * q)
    output = heads * value * h
    assert float(kind.attention_matrices(real(h))) == down + up + output == 187_105_280
    assert float(kind.attention_parameters(real(h))) == down + up + output + q + c
    assert float(kind.active_matrices(real(h))) == down + up + output + 3 * h * 18432


def test_latent_attention_without_a_latent_of_queries():
    """DeepSeek-V2-Lite projects queries directly (arXiv 2405.04434 §B)."""
    h, heads, content, rotary, value, c = 2048, 16, 128, 64, 128, 512
    kind = Layers(
        count=27,
        heads=heads,
        kv_heads=heads,
        head_dim=content + rotary,
        ffn=10944,
        gated=True,
        latent=Latent(0, c, rotary, value),
    )
    expected = (
        h * heads * (content + rotary) + h * (c + rotary) + c * heads * (content + value) + heads * value * h
    )
    assert float(kind.attention_matrices(real(h))) == expected
    sizes = real(h), real(heads), real(content + rotary)
    slope = jax.grad(lambda rank: Latent(rank, c, rotary, value).parameters(*sizes))(0.0)
    assert np.isfinite(float(slope))


def test_parallel_blocks_have_one_norm():
    dense, parallel = (
        Layers(count=1, heads=8, kv_heads=8, head_dim=64, ffn=2048, gated=False, biases=True, parallel=side)
        for side in (False, True)
    )
    assert (
        float(dense.parameters(real(512)) - parallel.parameters(real(512))) == 2 * 512
    )  # a weight and a bias


def test_biases_of_queries_keys_and_values():
    """Of Qwen2-7B, without those of other layers; where all layers have biases they are not counted twice."""
    bare, biased = (
        Layers(count=28, heads=28, kv_heads=4, head_dim=128, ffn=18944, gated=True, qkv_biases=biases)
        for biases in (False, True)
    )
    assert float(biased.parameters(real(3584)) - bare.parameters(real(3584))) == (28 + 2 * 4) * 128
    once, twice = (
        Layers(
            count=1, heads=8, kv_heads=8, head_dim=64, ffn=2048, gated=False, biases=True, qkv_biases=biases
        )
        for biases in (False, True)
    )
    assert float(once.parameters(real(512))) == float(twice.parameters(real(512)))


def test_predicting_further_tokens_by_hand():
    """Each module: a projection of two streams, norms of both and of the output, and a layer (arXiv
    2412.19437 §2.2).
    """
    kinds = (
        Layers(count=1, heads=8, kv_heads=8, head_dim=64, ffn=2048, gated=True),
        Layers(count=7, heads=8, kv_heads=8, head_dim=64, ffn=1024, gated=True, mixture=Mixture(4, 2)),
    )
    model = Model(name="", hidden=512, vocabulary=1000, tied_embeddings=False, layers=kinds, mtp_layers=2)
    head = parameters_of_layers(
        model, dp.load_strategy({}), real([0.0, 0.0]), embeddings=real(0), heads=real(1), modules=real(2)
    )
    norms, vocabulary = 3 * 512, 1000 * 512  # norms are left out of what a device holds of the modules
    modules = float(head.total) - vocabulary + 2 * norms
    assert modules == 2 * (2 * 512 * 512 + norms + float(kinds[1].parameters(real(512))))
    assert float(model.parameters) == float(
        Model(name="", hidden=512, vocabulary=1000, tied_embeddings=False, layers=kinds).parameters
    )


def test_windows_take_no_parameters():
    narrow, wide = (
        Layers(count=1, heads=8, kv_heads=8, head_dim=64, ffn=2048, gated=True, window=window)
        for window in (128, NO_WINDOW)
    )
    assert float(narrow.parameters(real(512))) == float(wide.parameters(real(512)))


def test_kinds_of_layers_add_up():
    plain, gated = (
        Layers(count=3, heads=8, kv_heads=8, head_dim=64, ffn=2048, gated=False),
        Layers(count=5, heads=8, kv_heads=8, head_dim=64, ffn=1024, gated=True),
    )
    sparse = Layers(count=7, heads=8, kv_heads=8, head_dim=64, ffn=1024, gated=True, mixture=Mixture(4, 2))
    kinds = (plain, sparse, gated)
    model = Model(name="", hidden=512, vocabulary=1000, tied_embeddings=True, layers=kinds)
    assert float(model.depth) == 15
    alone = [
        Model(name="", hidden=512, vocabulary=1000, tied_embeddings=True, layers=(kind,)) for kind in kinds
    ]
    assert float(model.layer_parameters) == sum(float(model.layer_parameters) for model in alone)
    dense, mixed = model.kinds
    np.testing.assert_array_equal(dense.count, [3, 5])
    np.testing.assert_array_equal(dense.gated, [[1, 0], [0, 1]])
    np.testing.assert_array_equal(mixed.mixture.experts, [4])
