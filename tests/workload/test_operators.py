"""FLOPs and bytes of operators against the closed forms of Korthikanti et al. (arXiv 2205.05198, Appendix
A).
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import diffperf as dp
from diffperf.quantity import real, replace
from diffperf.workload.attention_operators import attention_core, fused_softmax
from diffperf.workload.elementwise_operators import elementwise_kernels
from diffperf.workload.expert_tokens import visited_share
from diffperf.workload.linear_layers import linear_layers, vocabulary_projection
from diffperf.workload.model import Layers, Mixture
from diffperf.workload.model_flops import model_flops
from diffperf.workload.operators import AttentionCore, Gemms
from diffperf.workload.passes import TokenPass


def _prompt(sequences, tokens):
    """A pass of whole sequences of some tokens."""
    return TokenPass(sequences=real(sequences), queries=real(tokens), context=real(tokens))


def _flops(table):
    """FLOP of each operator of a table, by its name."""
    return dict(zip(table.names, map(float, table.flops), strict=True))


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_layer_forward_flops(gpt, tp):
    """24·b·s·h² + 4·b·s²·h over the tensor-parallel group."""
    b, s, h = 4, 2048, 12288
    layers = gpt.layers[0]
    strategy = dp.load_strategy({"tp": tp})
    linear = linear_layers(layers, gpt.hidden, strategy, real(b * s)).flops.sum()
    attention = attention_core(layers, strategy, _prompt(b, s)).products.flops.sum()
    assert float(linear) * tp == pytest.approx(24 * b * s * h**2, rel=1e-12)
    assert float(attention) * tp == pytest.approx(4 * b * s**2 * h, rel=1e-12)


def test_backward_is_twice_forward(gpt):
    gemms = linear_layers(gpt.layers[0], gpt.hidden, dp.load_strategy({"tp": 8}), real(2048))
    for gradient in (gemms.input_gradient, gemms.weight_gradient):
        np.testing.assert_array_equal(gradient.flops, gemms.flops)
        assert gradient.m.shape == (4,)
        assert len(set(gradient.names) | set(gemms.names)) == 8


def test_only_experts_have_kernels_of_their_own():
    sizes = (real(512), real(1024), real(2048), real(8))
    table = Gemms.table({"experts up": sizes, "qkv": sizes}, {"experts up": "expert"})
    for weight, kernels in ((0.0, [1, 1]), (0.5, [4.5, 1]), (1.0, [8, 1])):
        separate = table.with_separate_experts(real(weight))
        for each in (separate, separate.input_gradient, separate.weight_gradient.added_to(4.0)):
            np.testing.assert_array_equal(each.kernels, kernels)


def test_gradients_of_a_gemm_have_the_shapes_of_autodiff():
    """The gradient GEMMs are those that jax itself writes for C = A·B."""
    m, n, k = 3, 5, 7
    _, pull = jax.vjp(jnp.matmul, jnp.ones((m, k)), jnp.ones((k, n)))
    written = sorted(
        (*eqn.outvars[0].aval.shape, next(iter({*a.shape, *b.shape} - {*eqn.outvars[0].aval.shape})))
        for eqn in jax.make_jaxpr(pull)(jnp.ones((m, n))).eqns
        if eqn.primitive.name == "dot_general"
        for a, b in [[v.aval for v in eqn.invars]]
    )
    gemm = Gemms.table({"product": tuple(map(real, (m, n, k, 1)))})
    ours = [gemm.input_gradient, gemm.weight_gradient]
    sides = [{int(gradient.m[0]), int(gradient.n[0])} for gradient in ours]
    assert sorted(sides) == sorted({*shape[:2]} for shape in written)
    assert {int(gradient.k[0]) for gradient in ours} == {shape[2] for shape in written}


@pytest.mark.parametrize(("h", "layers", "name"), [(12288, 96, "gpt3-175b"), (6144, 48, "gpt3-22b")])
def test_model_flops(h, layers, name):
    """72·b·s·l·h²·(1 + s/(6h) + V/(12·h·l)) (arXiv 2205.05198, Equation 7 without recomputation)."""
    model, b, s = dp.load_model(name), 16, 2048
    expected = 72 * b * s * layers * h**2 * (1 + s / (6 * h) + float(model.vocabulary) / (12 * h * layers))
    assert float(model_flops(model, real(b * s), real(s))) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("window", "length"), [(1e12, 64.0), (16.0, 64.0), (1.0, 64.0)])
def test_causal_flops_of_attention_count_the_scores_below_the_diagonal(llama, window, length):
    """Scores counted one by one, up to the half of those on the diagonal, which the convention leaves out."""
    model = replace(llama, {"layers.0.window": window})
    layers = model.layers[0]
    full, causal = (float(model_flops(model, real(length), real(length), share)) for share in (0.0, 1.0))
    seen = sum(min(token, window) for token in range(1, int(length) + 1))
    every = length * min(length, window)
    edge = min(length, window) / 2  # the tokens of the first window see half a score more
    of_score = 3 * 2 * float(layers.count * layers.heads * 2 * layers.head_dim)
    assert full - causal == pytest.approx((every - seen + edge) * of_score, rel=1e-9)


def test_a_causal_mask_leaves_layers_without_scores_as_they_are():
    """Of a hybrid, attention layers alone compute scores: half of theirs are masked."""
    model, length = dp.load_model("nemotron-nano-9b-v2"), 4096.0
    assert any(kind.state_space is not None for kind in model.layers)
    full, causal = (float(model_flops(model, real(1), real(length), share)) for share in (0.0, 1.0))
    attention = [kind for kind in model.layers if kind.attends]
    scores = sum(2 * float(kind.count * kind.heads * 2 * kind.head_dim) * length for kind in attention)
    assert full - causal == pytest.approx(3 * scores / 2, rel=1e-9)


def test_model_flops_are_six_per_parameter_and_token(llama):
    """6·N·D (Kaplan et al. 2020), N without the input embedding, where the context is short."""
    weights = float(llama.parameters - llama.embedding_parameters)
    assert float(model_flops(llama, real(1), real(1))) == pytest.approx(6 * weights, rel=1e-3)


def test_experts_compute_what_tokens_visit():
    model, strategy = dp.load_model("llama-2-7b"), dp.load_strategy({})
    sparse = Layers(
        count=32,
        heads=32,
        kv_heads=32,
        head_dim=128,
        ffn=11008,
        gated=True,
        mixture=Mixture(experts=8, experts_per_token=2),
    )
    dense, routed = (
        _flops(linear_layers(kind, model.hidden, strategy, real(64))) for kind in (model.layers[0], sparse)
    )
    for name in ("qkv", "attention output"):
        assert routed[name] == pytest.approx(dense[name], rel=1e-12)
    for name in ("up", "down"):
        assert routed[f"experts {name}"] == pytest.approx(2 * dense[f"mlp {name}"], rel=1e-12)
        assert routed[f"shared experts {name}"] == 0  # there are none
    assert routed["router"] == 2 * 64 * 8 * 4096


@pytest.mark.parametrize(
    ("tp", "ep", "expert_tp", "load"),
    [
        (1, 1, 0, {}),
        (2, 8, 1, {}),
        (4, 4, 2, {"capacity_factor": 1.25}),
        (2, 2, 0, {"expert_imbalance": 3.0}),
    ],
)
def test_experts_by_counting_tokens(tp, ep, expert_tp, load):
    """Mixtral's tokens sent to experts one by one, evenly: the rows of each expert's GEMM on each of a
    stage's devices.
    """
    model, devices, tokens = dp.load_model("mixtral-8x7b"), 16, 64  # tokens of a tensor-parallel group
    layers = model.layers[0]
    strategy = dp.load_strategy(
        {"tp": tp, "dp": devices / tp, "ep": ep, "expert_tp": expert_tp, "global_batch": devices} | load
    )
    ways = expert_tp or tp
    group = np.arange(devices) // (ways * ep)  # expert-parallel groups with their tensor-parallel ranks
    rows = np.zeros((group[-1] + 1, 8))
    visits = itertools.cycle(range(8))
    for device in range(devices):
        for _ in range(2 * tokens // tp):
            rows[group[device], next(visits)] += 1
    assert np.ptp(rows) == 0
    rows *= load.get("capacity_factor", load.get("expert_imbalance", 1.0))

    gemms = linear_layers(layers, model.hidden, strategy, real(tokens))
    up, down = (
        tuple(float(getattr(gemms, size)[gemms.names.index(name)]) for size in ("m", "n", "k", "batch"))
        for name in ("experts up", "experts down")
    )
    # An expert of eight is missed by every token of its set with a probability of (6/8)^tokens.
    visited = 8 / ep * (1 - 0.75 ** (tokens * ways * ep / tp))
    rows_of_visited = rows[0, 0] * 8 / ep / visited
    assert up == pytest.approx((rows_of_visited, 2 * 14336 / ways, 4096, visited), rel=1e-12)
    assert down == pytest.approx((rows_of_visited, 4096, 14336 / ways, visited), rel=1e-12)
    # All devices together compute what all tokens visit, and what is padded or waits for the busiest.
    flops = _flops(gemms)
    total = devices * (flops["experts up"] + flops["experts down"])
    assert total == pytest.approx(2 * rows.sum() * 3 * 4096 * 14336, rel=1e-12)


@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_visited_experts_by_drawing_them(tokens):
    """The mean number of distinct experts over draws of 8 of 256 for each token, without replacement."""
    mixture = dp.load_model("deepseek-v3").layers[-1].mixture
    generator = np.random.default_rng(0)
    draws = [
        len({expert for _ in range(tokens) for expert in generator.permutation(256)[:8]}) for _ in range(400)
    ]
    share = float(visited_share(mixture, dp.load_strategy({}), real(tokens)))
    assert 256 * share == pytest.approx(np.mean(draws), rel=0.01)


@pytest.mark.parametrize("spread", [0.0, 0.5, 1.0, 1.5])
@pytest.mark.parametrize("tokens", [1, 4, 16, 64, 256])
def test_visited_experts_of_unequal_popularity_by_drawing_them(spread, tokens):
    """The mean number of distinct experts where every token visits each of 256 experts by itself, 8 in the
    mean, with probabilities of that spread.
    """
    mixture, generator = dp.load_model("deepseek-v3").layers[-1].mixture, np.random.default_rng(0)
    strategy = dp.load_strategy({"expert_popularity_spread": spread})
    shape = 1 / spread**2 if spread else 1.0
    popularity = generator.gamma(shape, 1 / shape, (4000, 256)) if spread else np.ones((1, 256))
    # A token visits an expert at random times of a rate, so that any popularity is possible.
    rate = -np.log(1 - 8 / 256) * popularity
    visited = np.mean(1 - (1 - 8 / 256) * np.exp(-rate * (tokens - 1)))
    share = float(visited_share(mixture, strategy, real(tokens), serving=True))
    assert share == pytest.approx(visited, rel=0.02)


@pytest.mark.parametrize("tokens", [4, 16, 64, 256])
def test_few_visits_of_popular_experts_by_drawing_without_replacement(tokens):
    """Tokens that choose 8 different experts of 256, with exponentially distributed weights."""
    mixture, generator = dp.load_model("deepseek-v3").layers[-1].mixture, np.random.default_rng(0)
    distinct = []
    for _ in range(60):
        weights = np.log(generator.exponential(size=256))
        # The largest of keys log w − log E with exponential E are a draw without replacement by weight.
        keys = weights - np.log(generator.exponential(size=(tokens, 256)))
        distinct.append(len(np.unique(np.argsort(keys, axis=1)[:, -8:])))
    strategy = dp.load_strategy({"expert_popularity_spread": 1.0})
    share = float(visited_share(mixture, strategy, real(tokens), serving=True))
    assert 256 * share == pytest.approx(np.mean(distinct), rel=0.06)


@pytest.mark.parametrize("idle", [0.0, 0.25, 1.0])
def test_experts_without_tokens_are_read_where_asked(idle):
    """Counted over draws of the experts of 3 tokens a device: those with tokens, and a share of the others.
    The products multiply the same rows in all. All experts are as popular.
    """
    model, layout = dp.load_model("deepseek-v3"), {"ep": 4, "dp": 4, "global_batch": 4}
    strategy = dp.load_strategy(layout | {"expert_popularity_spread": 0})
    generator = np.random.default_rng(1)
    # The tokens of all four devices of the group.
    draws = [len({one for _ in range(12) for one in generator.permutation(256)[:8]}) for _ in range(400)]
    read = (np.mean(draws) + idle * (256 - np.mean(draws))) / 4
    visited = visited_share(model.layers[-1].mixture, strategy, real(3))
    share = visited + idle * (1 - visited)
    gemms = linear_layers(model.layers[-1], model.hidden, strategy, real(3), share)
    at = gemms.names.index("experts up")
    assert float(gemms.batch[at]) == pytest.approx(read, rel=0.01)
    assert float(gemms.m[at] * gemms.batch[at]) == pytest.approx(3 * 8, rel=1e-12)


@pytest.mark.parametrize(("precision", "reads"), [("bf16", False), ("fp8", True)])
def test_a_stack_reads_idle_experts_in_fp8(precision, reads):
    """With one sequence, 8 of 128 experts of a layer have tokens: products in fp8 read all 128."""
    model = dp.load_model("qwen3-235b-a22b")
    strategy = {"tp": 8, "global_batch": 1, "sequence_length": 64, "output_length": 8, "precision": precision}
    strategy = dp.load_strategy(strategy, n_devices=8)
    energies = []
    for switch in ({"off": 1.0, "on": 0.0}, {"off": 0.0, "on": 1.0}):
        system = replace(
            dp.load_system("dgx-h100", 8, stack="vllm-0.8"), {"inference_stack.reads_idle_experts": switch}
        )
        energies.append(dp.decode(model, system, strategy).energy.memory)
    few, all_experts = map(float, energies)
    assert (all_experts > 5 * few) is reads
    assert reads or all_experts == few


def test_a_token_activates_what_is_published():
    """37 of DeepSeek-V3's 671 billion parameters (arXiv 2412.19437 §1), 13 of Mixtral's 47 (arXiv 2401.04088
    §1).
    """
    for name, billions in (("deepseek-v3", 37), ("mixtral-8x7b", 13)):
        model = dp.load_model(name)
        layers = sum(float(kind.count * kind.active_matrices(model.hidden)) for kind in model.layers)
        embeddings = 2 * float(model.embedding_parameters)
        assert (layers + embeddings) / 1e9 == pytest.approx(billions, rel=0.02)


@pytest.mark.parametrize("tp", [1, 8])
def test_latent_attention_by_hand(tp):
    """DeepSeek-V3: 128 heads of 128 + 64, values of 128, latents of 1536 and 512 + 64; down projections whole
    on every rank.
    """
    model, h, tokens = dp.load_model("deepseek-v3"), 7168, 100
    dense, sparse = (
        linear_layers(kind, model.hidden, dp.load_strategy({"tp": tp}), real(tokens)) for kind in model.layers
    )
    down = h * (1536 + 512 + 64)
    up = 1536 * 128 * (128 + 64) + 512 * 128 * (128 + 128)
    attention = down + (up + 128 * 128 * h) / tp
    assert (
        dense.names[:4] == sparse.names[:4] == ("latents", "queries", "keys and values", "attention output")
    )
    for gemms in (dense, sparse):
        assert float(gemms.flops[:4].sum()) == pytest.approx(2 * tokens * attention, rel=1e-12)
    assert float(dense.flops[4:].sum()) == pytest.approx(2 * tokens * 3 * h * 18432 / tp, rel=1e-12)
    experts, shared, router = 8 * 3 * h * 2048 / tp, 3 * h * 2048 / tp, h * 256 / tp
    assert float(sparse.flops[4:].sum()) == pytest.approx(2 * tokens * (experts + shared + router), rel=1e-12)


def test_latent_attention_cores_by_hand():
    """In training keys and values of every head, 192 and 128 wide; generating, one latent of 512 + 64 for all
    heads.
    """
    layers, strategy = dp.load_model("deepseek-v3").layers[0], dp.load_strategy({"tp": 4})
    prompt = attention_core(layers, strategy, _prompt(1, 100))
    assert float(prompt.products.flops.sum()) == 2 * 32 * 100 * 100 * (192 + 128)
    generated = TokenPass(sequences=real(1), queries=real(1), context=real(100), generating=True)
    token = attention_core(layers, strategy, generated)
    assert float(token.products.flops.sum()) == 2 * 32 * 100 * (576 + 512)
    assert float(token.kv_elements) == 100 * 576


@pytest.mark.parametrize("kind", ["ring", "all_to_all"])
def test_context_parallel_ranks_share_the_work(gpt, kind):
    """Of tokens and of scores every rank has its part."""
    strategies = [dp.load_strategy({"tp": 8, "cp": cp, "context_parallel": kind}) for cp in (1, 4)]
    assert float(strategies[1].tokens) == 2048 / 4
    cores = [attention_core(gpt.layers[0], strategy, _prompt(1, 2048)) for strategy in strategies]
    assert float(cores[0].visible_scores) == 4 * float(cores[1].visible_scores)
    layers = [
        linear_layers(gpt.layers[0], gpt.hidden, strategy, strategy.tokens).flops.sum()
        for strategy in strategies
    ]
    assert float(layers[0]) == 4 * float(layers[1])


def test_vocabulary_projection(gpt):
    assert float(vocabulary_projection(gpt, real(8), real(2048)).flops[0]) * 8 == 2 * 2048 * 12288 * 51200


@pytest.mark.parametrize(("queries", "context"), [(1, 1), (5, 5), (1, 9), (4, 7)])
def test_attention_counts_by_enumeration(queries, context):
    sequences, heads, kv_heads, dim = 3, 8, 2, 16
    core = AttentionCore(
        sequences=real(sequences),
        queries=real(queries),
        context=real(context),
        heads=real(heads),
        kv_heads=real(kv_heads),
        head_dim=real(dim),
    )
    # Query i is token context − queries + i of the sequence, and sees every token up to itself.
    pairs = list(itertools.product(range(queries), range(context)))
    seen = sum(j <= context - queries + i for i, j in pairs)
    assert float(core.scores) == sequences * heads * len(pairs)
    assert float(core.visible_scores) == sequences * heads * seen
    assert float(core.query_elements) == sequences * queries * heads * dim
    assert float(core.kv_elements) == 2 * sequences * context * kv_heads * dim
    assert float(core.products.flops.sum()) == 4 * sequences * heads * queries * context * dim


def test_softmax_kernels_by_hand():
    """Bytes of a score of 2 bytes: fused, 2 + 2 forward and 3 · 2 backward.

    Else in fp32: 2 + 4 to convert it, 4 + 4 to scale, to mask and for the softmax (4 + 4 + 4 backward, which
    reads its output), 4 + 2 to convert it back. Dropout: 2 + 2 and a mask of 1.
    """
    core = AttentionCore(
        sequences=real(2),
        queries=real(8),
        context=real(8),
        heads=real(3),
        kv_heads=real(3),
        head_dim=real(4),
    )
    scores = 2 * 3 * 8 * 8
    for backward, one, softmax in ((False, 4, 8), (True, 6, 12)):
        fused = core.softmax(real(2), real(1), backward=backward, fused=real(1))
        separate = core.softmax(real(2), real(1), backward=backward, fused=real(0))
        assert [name.removesuffix(", backward") for name in separate.names] == [
            "softmax",
            "scores to fp32",
            "scale of scores",
            "mask of scores",
            "scores from fp32",
            "dropout of scores",
        ]
        np.testing.assert_allclose(fused.bytes, scores * np.array([one, 0, 0, 0, 0, 5]))
        np.testing.assert_allclose(separate.bytes, scores * np.array([softmax, 6, 8, 8, 6, 5]))
        always = core.softmax(real(2), real(1), backward=backward)
        np.testing.assert_allclose(always.bytes, scores * np.array([one, 5]))


def fused_kernel_is_available(batches: int, queries: int, context: int) -> bool:
    """The rule of Megatron-LM's fused_softmax.py for causal masks: `is_kernel_available`, and the batches of
    a block of 128 threads as scaled_masked_softmax.h counts them.
    """
    if not (context > 16 and queries % 4 == 0 and context % 4 == 0 and batches % 4 == 0):
        return False
    elements = 1 << (context - 1).bit_length()
    batches_of_warp = 2 if elements <= 128 else 1
    return batches % (128 // min(elements, 32) * batches_of_warp) == 0


@pytest.mark.parametrize("stack", ["megatron-lm", "megatron-deepspeed", "megatron-core"])
def test_softmax_is_fused_where_megatrons_kernel_is_available(gpt, stack):
    """GPT-3 has 96 heads; what fuses softmax follows numbers, and has no slope."""
    system = dp.load_system("dgx-a100", n_devices=8, stack=stack)
    for tp, micro_batch in itertools.product((1, 2, 8, 16, 32, 48), (1, 2, 3, 4)):
        strategy = replace(dp.load_strategy({"micro_batch": micro_batch}), {"tp": float(tp)})
        found = fused_softmax(gpt.layers[0], strategy, system.stack)
        assert bool(found) == fused_kernel_is_available(micro_batch * 96 // tp, 2048, 2048)
    other = dp.load_system("dgx-a100", n_devices=8, stack="llm-foundry-fsdp")
    assert fused_softmax(gpt.layers[0], dp.load_strategy({}), other.stack) is None


@pytest.mark.parametrize("parallel", [True, False])
def test_sequence_parallelism_shards_what_tensor_parallelism_does_not(gpt, parallel):
    whole, split = (dp.load_strategy({"tp": tp, "sequence_parallel": parallel}) for tp in (1, 8))
    assert float(split.sequence_shards) == (8 if parallel else 1)
    for backward in (False, True):
        alone, eight = (
            elementwise_kernels(gpt.layers[0], gpt, strategy, real(2048), backward=backward).bytes
            for strategy in (whole, split)
        )
        np.testing.assert_allclose(alone[:4] / eight[:4], 8 if parallel else 1)
        np.testing.assert_allclose(alone[4] / eight[4], 8)


def test_elementwise_kernels_by_hand(llama, gpt):
    """Elements of 2 bytes that the fused kernels of one layer read and write; a dropout mask takes one byte
    for each.
    """
    tokens, strategy = 10, dp.load_strategy({})
    h, ffn = 4096, 11008
    kernels = elementwise_kernels(llama.layers[0], llama, strategy, real(tokens))
    expected = {
        "norm 1": 2 * h,
        "norm 2": 2 * h,
        "residual 1": 3 * h,
        "residual 2": 3 * h,
        "activation": 3 * ffn,
        "rotary embedding": 2 * (32 + 32) * 128,
    }
    assert kernels.names == tuple(expected)
    np.testing.assert_allclose(kernels.bytes, [2 * tokens * elements for elements in expected.values()])
    h, ffn = 12288, 49152
    kernels = elementwise_kernels(gpt.layers[0], gpt, strategy, real(tokens))
    expected = [2 * h, 2 * h, 3.5 * h, 3.5 * h, 2 * ffn, 0]
    np.testing.assert_allclose(kernels.bytes, [2 * tokens * elements for elements in expected])


def test_key_value_heads_are_replicated_where_ranks_outnumber_them():
    """Grouped-query attention with 8 KV heads on 16 ranks: each holds one (as TensorRT-LLM and vLLM replicate
    them).
    """
    model = dp.load_model("llama-2-70b")
    kind = model.layers[0]
    assert [float(kind.kv_heads_on_rank(real(tp))) for tp in (1.0, 4.0, 8.0, 16.0, 64.0)] == [8, 2, 1, 1, 1]
    narrow = linear_layers(kind, model.hidden, dp.load_strategy({"tp": 16}), real(100))
    assert float(narrow.n[0]) == (64 / 16 + 2 * 1) * 128
