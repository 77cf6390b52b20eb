"""What serving engines do with experts: the rows that a rank copies, and the tiles that nobody tuned."""

import dataclasses

import jax
import numpy as np
import pytest

import diffperf as dp
from diffperf.quantity import real, replace
from diffperf.relax import Exact, Smooth
from diffperf.workload.configuration import Configuration
from diffperf.workload.expert_kernels import served_expert_copies, untuned_tiles
from diffperf.workload.expert_tokens import expert_load

TOKENS, EXPERTS, VISITED = 12, 128, 8  # of Qwen3-30B-A3B, as below
HIDDEN, INNER = 2048, 768


@pytest.fixture(scope="module")
def model():
    return dp.load_model("qwen3-30b-a3b")


@pytest.fixture(scope="module")
def vllm():
    return dp.load_system("dgx-h100", 8, stack="vllm-0.8")


def layout(tp, ep, **table):
    """Attention on `tp` ranks, whose experts are spread over `ep` of them and split over the others."""
    table = {"tp": tp, "ep": ep, "expert_tp": tp // ep, "global_batch": TOKENS, **table}
    return dp.load_strategy(table, n_devices=8)


def moved(model, stack, strategy):
    """Elements that both kernels read and write."""
    copies = served_expert_copies(model.layers[-1], model, strategy, real(TOKENS), stack)
    assert copies.names == ("copy to experts", "copy from experts")
    return np.array(copies.bytes) / float(strategy.activation_width)


@pytest.mark.parametrize(("tp", "ep"), [(1, 1), (8, 1), (8, 8), (8, 2)])
@pytest.mark.parametrize("all_rows", [False, True])
def test_rows_that_a_rank_copies_are_counted(model, vllm, tp, ep, all_rows):
    """Counted for every rank and token of a random choice of experts, in the mean over ranks. Every rank has
    all tokens, and its part of an expert needs whole rows.
    """
    choice = {"off": 1.0 - all_rows, "on": float(all_rows)}
    stack = replace(vllm, {"stack.rows_of_all_experts": choice}).stack
    generator = np.random.default_rng(0)
    visited = [generator.permutation(EXPERTS)[:VISITED] for _ in range(TOKENS)]
    to = back = 0
    for rank in range(tp):
        first = rank % ep * (EXPERTS // ep)
        own = range(first, first + EXPERTS // ep)
        for chosen in visited:
            to += HIDDEN  # the token is read
            back += HIDDEN  # and the sum of its experts' outputs written
            inner = INNER * ep / tp
            for expert in chosen:
                if expert in own:
                    to += HIDDEN
                    back += HIDDEN
                elif all_rows:
                    to += 2 * inner + HIDDEN  # zeros that the products write
                    to += 2 * inner + inner  # that the activation function reads and writes
                    back += HIDDEN  # that the sum reads
    assert moved(model, stack, layout(tp, ep)) == pytest.approx(np.array([to, back]) / tp, rel=1e-12)


def test_dispatched_tokens_have_no_rows_of_other_experts(model, vllm):
    """Attention on one rank each, experts on eight: what a rank copies goes to experts that it dispatches
    to, as on a rank that has all experts.
    """
    dispatched = dp.load_strategy({"dp": 8, "ep": 8, "global_batch": 8 * TOKENS}, n_devices=8)
    alone = moved(model, vllm.stack, layout(1, 1))
    assert moved(model, vllm.stack, dispatched) == pytest.approx(alone, rel=1e-12)


def test_ranks_that_split_experts_copy_whole_rows(model, vllm):
    """A token's rows are as wide on each of eight ranks as on one alone."""
    alone, of_eight = (moved(model, vllm.stack, layout(tp, 1)) for tp in (1, 8))
    assert of_eight == pytest.approx(alone, rel=1e-12)


def share(model, tokens, strategy, relax=None):
    c = Configuration(model, dp.load_system("dgx-h100", 8, stack="vllm-0.8"), strategy, relax or Exact())
    return untuned_tiles(model.layers[-1].mixture, c, tokens)


@pytest.mark.parametrize(
    ("table", "tokens", "expected"),
    [
        ({}, 16, 0),  # as many tokens as a device has experts: tiles of 16 rows
        ({}, 17, 1),
        ({"precision": "fp8"}, 1, 1),
        ({"expert_precision": "fp8"}, 1, 1),
        ({"expert_weight_precision": "mxfp4"}, 17, 0),  # kernels of their own
        ({"weight_precision": "int4"}, 17, 0),
        ({"ep": 1, "expert_tp": 8}, 1000, 0),
        ({"ep": 1, "expert_tp": 8, "precision": "fp8"}, 1000, 0),
        ({"ep": 2, "expert_tp": 4}, 64, 0),
        ({"ep": 2, "expert_tp": 4}, 65, 1),
        # Each of eight devices has its own tokens, and dispatches them: 8 times as many share the experts.
        ({"tp": 1, "dp": 8, "expert_tp": 1}, 2, 0),
        ({"tp": 1, "dp": 8, "expert_tp": 1}, 2.125, 1),
    ],
)
def test_parts_of_experts_are_multiplied_in_untuned_tiles(model, table, tokens, expected):
    strategy = dp.load_strategy({"tp": 8, "ep": 8, "expert_tp": 1, "global_batch": 8, **table}, n_devices=8)
    assert float(share(model, real(tokens), strategy)) == expected


@pytest.mark.parametrize("tokens", [15.5, 16.0, 16.5])
def test_slopes_by_tokens_are_differences(model, tokens):
    """The exact share is flat but for its jump; the smooth share rises by as much as its differences."""
    strategy, step = layout(8, 8), 1e-6
    assert float(jax.grad(lambda t: share(model, t, strategy))(real(tokens))) == 0
    smooth = Smooth(20.0)
    slope = float(jax.grad(lambda t: share(model, t, strategy, smooth))(real(tokens)))
    sides = [float(share(model, real(tokens + s), strategy, smooth)) for s in (-step, step)]
    assert slope == pytest.approx((sides[1] - sides[0]) / (2 * step), rel=1e-5)
    assert slope > 0


def test_the_step_of_tiles_shows_in_the_time_of_a_token(model, vllm):
    """On two H100, each with 64 experts, a layer of Qwen3-30B takes 69 us longer for 64 sequences than for
    32, 122 us longer for 96 than for 64, and 59 us longer for 128 than for 96 (The ML.ENERGY Benchmark,
    arXiv 2505.06371, chat).
    """
    table = {"tp": 2, "ep": 2, "expert_tp": 1, "sequence_length": 1024, "output_length": 256}
    system = replace(vllm, {"n_devices": 2})

    def microseconds(batch):
        strategy = dp.load_strategy(table | {"global_batch": batch}, n_devices=2)
        return 1e6 * float(dp.decode(model, system, strategy).time) / 48

    steps = [microseconds(batch + 32) - microseconds(batch) for batch in (32, 64, 96)]
    assert steps == pytest.approx([69, 122, 59], rel=0.25)


@pytest.mark.parametrize("ep", [1, 2, 8, 16])
@pytest.mark.parametrize("spread", [0.0, 0.7])
def test_the_busiest_device_of_popular_experts_by_drawing(ep, spread):
    """Popularities with a gamma distribution: the tokens of the busiest device over those of the mean."""
    mixture = dp.load_model("deepseek-v3").layers[-1].mixture
    experts = int(mixture.experts)
    strategy = dp.load_strategy({"dp": 16, "ep": ep, "expert_popularity_spread": spread}, n_devices=16)
    if spread:
        generator = np.random.default_rng(0)
        drawn = generator.gamma(1 / spread**2, spread**2, (20_000, ep, experts // ep)).sum(axis=-1)
        expected = (drawn.max(axis=-1) / drawn.mean(axis=-1)).mean()
    else:
        expected = 1.0
    assert float(expert_load(strategy, mixture)) == pytest.approx(expected, rel=0.02)
    assert float(expert_load(strategy)) == 1  # training balances them
    capped = dataclasses.replace(strategy, capacity_factor=real(1.25))
    assert float(expert_load(capped, mixture)) == 1.25


def test_the_busiest_device_has_a_slope(model):
    """By the degree of expert parallelism, also where there is one device, and by the spread."""
    mixture = model.layers[-1].mixture

    def load(ep, spread):
        strategy = dp.load_strategy({"dp": 16, "ep": 8}, n_devices=16)
        return expert_load(replace(strategy, {"ep": ep, "expert_popularity_spread": spread}), mixture)

    for ep in (2.0, 8.0):
        slopes = jax.grad(load, (0, 1))(real(ep), real(0.7))
        step = 1e-3
        by_ep = (load(real(ep + step), real(0.7)) - load(real(ep - step), real(0.7))) / (2 * step)
        by_spread = (load(real(ep), real(0.701)) - load(real(ep), real(0.699))) / 0.002
        np.testing.assert_allclose(slopes, (by_ep, by_spread), rtol=1e-4)
    one = jax.grad(load)(real(1.0), real(0.7))
    beyond = (load(real(1 + 1e-6), real(0.7)) - load(real(1.0), real(0.7))) / 1e-6
    assert float(one) == pytest.approx(float(beyond), rel=1e-3)
