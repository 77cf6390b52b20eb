"""State-space layers: operators against a recurrence written out, their state, their place in a model."""

import jax
import numpy as np
import pytest
from helpers import generate

import diffperf as dp
from diffperf.quantity import real
from diffperf.relax import Exact
from diffperf.workload.configuration import Configuration
from diffperf.workload.memory import kv_cache_bytes
from diffperf.workload.passes import TokenPass
from diffperf.workload.state_space_operators import CHUNK, state_space_operators

HEADS, HEAD_DIM, STATE, GROUPS = 128, 80, 128, 8


@pytest.fixture(scope="module")
def hybrid():
    return dp.load_model("nemotron-nano-9b-v2")


def _pass(queries, sequences=1, **kind):
    return TokenPass(
        sequences=real(sequences), queries=real(queries), context=real(queries), serving=True, **kind
    )


def test_chunked_products_compute_the_recurrence():
    """h ← a·h + B·xᵀ, y = C·h token by token, against the four products of a chunk (arXiv 2405.21060 §6)."""
    generator = np.random.default_rng(0)
    tokens, state, dim = 12, 5, 3
    x, keys, queries = (generator.normal(size=(tokens, size)) for size in (dim, state, state))
    decay = generator.uniform(0.5, 1.0, tokens)
    before = generator.normal(size=(state, dim))
    h, outputs = before.copy(), []
    for token in range(tokens):
        h = decay[token] * h + np.outer(keys[token], x[token])
        outputs.append(queries[token] @ h)
    since = np.cumprod(decay)
    mask = np.tril(since[:, None] / since[None, :])
    scores = queries @ keys.T  # tokens × tokens × state
    inside = (scores * mask) @ x  # tokens × dim × tokens
    left = (keys * (since[-1] / since)[:, None]).T @ x  # state × dim × tokens
    carried = (queries * since[:, None]) @ before  # tokens × dim × state
    np.testing.assert_allclose(inside + carried, outputs)
    np.testing.assert_allclose(left + since[-1] * before, h)


def test_products_of_a_chunk(hybrid):
    """The shapes of those four products for every chunk, group and head of 1,024 tokens of two sequences."""
    products, _ = state_space_operators(hybrid.layers[0], dp.load_strategy({}), _pass(1024, 2))
    chunks = 2 * 1024 / CHUNK
    flops = dict(zip(products.names, np.asarray(products.flops), strict=True))
    assert flops == pytest.approx(
        {
            "chunk scores": 2 * CHUNK * CHUNK * STATE * chunks * GROUPS,
            "chunk outputs": 2 * CHUNK * CHUNK * HEAD_DIM * chunks * HEADS,
            "chunk states": 2 * CHUNK * STATE * HEAD_DIM * chunks * HEADS,
            "state outputs": 2 * CHUNK * STATE * HEAD_DIM * chunks * HEADS,
        }
    )


def test_generated_tokens_read_and_write_the_state(hybrid):
    """128 heads of 80 · 128 numbers in fp32, twice for each of 7 sequences, halved by tensor parallelism."""
    (kernels,) = state_space_operators(
        hybrid.layers[0], dp.load_strategy({"tp": 2}), _pass(1, 7, generating=True)
    )
    moved = dict(zip(kernels.names, np.asarray(kernels.bytes), strict=True))
    assert moved["update of the state"] == 7 * 2 * HEADS * HEAD_DIM * STATE * 4 / 2


def test_linear_attention_keeps_a_matrix_for_each_head(system):
    """MiniMax-Text-01 (arXiv 2501.08313): ten of eighty layers cache 2 · 8 · 128 numbers of 2 bytes a token,
    seventy keep 64 matrices of 128 · 128 numbers in fp32 and no inputs of a convolution.
    """
    c = Configuration(dp.load_model("minimax-text-01"), system, dp.load_strategy({}))
    context = 2.0**20
    states = 70 * 64 * 128 * 128 * 4
    assert float(kv_cache_bytes(c, real(context))) == 10 * 2 * 8 * 128 * 2 * context + states


def test_only_attention_layers_cache_the_context(hybrid, system):
    """Four of 31 layers keep 2 · 8 · 128 numbers of 2 bytes a token; 27 keep their states and three inputs of
    the convolution.
    """
    c = Configuration(hybrid, system, dp.load_strategy({}))
    short, long = (float(kv_cache_bytes(c, real(context))) for context in (1600, 16000))
    token = 4 * 2 * 8 * 128 * 2
    assert long - short == pytest.approx(token * (16000 - 1600))
    convolved = HEADS * HEAD_DIM + 2 * GROUPS * STATE
    states = 27 * (HEADS * HEAD_DIM * STATE * 4 + 3 * convolved * 2)
    assert short - 1600 * token == pytest.approx(states)


@pytest.mark.slow
def test_a_token_after_a_long_context_costs_little_more(hybrid, system):
    """The time of a generated token grows with the context in 4 layers of 31 only."""
    strategies = [
        dp.load_strategy({"global_batch": 8, "sequence_length": n, "tp": 8}) for n in (1000, 100_000)
    ]
    short, long = (generate(hybrid, system, strategy, Exact()) for strategy in strategies)
    assert float(long.time_per_output_token) < 1.5 * float(short.time_per_output_token)
    assert float(long.time_to_first_token) > 50 * float(short.time_to_first_token)


@pytest.mark.slow
def test_training_is_finite_and_differentiable(hybrid, system):
    strategy = dp.load_strategy({"tp": 8, "global_batch": 8})
    step = jax.jit(
        jax.value_and_grad(lambda s: dp.training_step(hybrid, s, strategy, Exact()).time, allow_int=True)
    )
    time, slopes = step(system)
    assert float(time) > 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))
