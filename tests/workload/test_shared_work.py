"""What the devices of an expert-parallel group and of a context-parallel group have to do, by counting."""

import jax
import numpy as np
import pytest

import diffperf as dp
from diffperf.estimate.kernels.evaluation import evaluate
from diffperf.estimate.kernels.machine import Machine
from diffperf.quantity import real
from diffperf.relax import Exact
from diffperf.workload.assembly import layer_operators
from diffperf.workload.attention_operators import attention_core
from diffperf.workload.configuration import Configuration
from diffperf.workload.expert_tokens import busiest_experts, expert_load, visited_share
from diffperf.workload.linear_layers import linear_layers
from diffperf.workload.passes import TokenPass


def _mixture(name):
    """The mixture of experts of a model's last kind of layers."""
    return dp.load_model(name).layers[-1].mixture


def _spread(tokens, ep):
    """A strategy of `ep` devices with a part of the experts each, which share `tokens` tokens, and the tokens
    of one of them.
    """
    strategy = dp.load_strategy({"dp": ep, "ep": ep, "expert_tp": 1, "global_batch": max(tokens, ep)})
    return strategy, real(tokens / ep)


@pytest.mark.parametrize(
    ("model", "ep", "tokens", "within"),
    [
        ("mixtral-8x7b", 8, 1, 0.001),
        ("mixtral-8x7b", 8, 4, 0.07),
        ("deepseek-v3", 8, 1, 0.07),
        ("deepseek-v3", 16, 4, 0.06),
        ("deepseek-v3", 8, 8, 0.03),
        ("qwen3-235b-a22b", 8, 8, 0.03),
        ("deepseek-v3", 256, 16, 0.12),
        ("deepseek-v3", 8, 4096, 1e-6),
    ],
)
def test_the_busiest_device_by_drawing_experts(model, ep, tokens, within):
    """The mean of the most distinct experts on one of `ep` devices, where every token draws its experts at
    random, over the mean of all devices.
    """
    mixture, random = _mixture(model), np.random.default_rng(0)
    experts, visits = int(mixture.experts), int(mixture.experts_per_token)
    most = []
    for _ in range(400 if tokens < 1000 else 3):
        drawn = {int(e) for _ in range(tokens) for e in random.choice(experts, visits, replace=False)}
        most.append(np.bincount([e * ep // experts for e in drawn], minlength=ep).max())
    strategy, on_rank = _spread(tokens, ep)
    visited = visited_share(mixture, strategy, on_rank)
    expected = np.mean(most) / (float(visited) * experts / ep)
    assert float(busiest_experts(mixture, strategy, on_rank, visited)) == pytest.approx(expected, rel=within)


def test_one_device_with_all_experts_is_the_mean_device():
    strategy, on_rank = _spread(4, 1)
    mixture = _mixture("deepseek-v3")
    visited = visited_share(mixture, strategy, on_rank, serving=True)
    assert float(busiest_experts(mixture, strategy, on_rank, visited)) == pytest.approx(1, rel=1e-12)
    everything = busiest_experts(mixture, *_spread(8, 8), visited, idle_experts=1.0)
    assert float(everything) == pytest.approx(1, rel=1e-12)


def test_slopes_of_the_busiest_device_are_those_of_differences():
    mixture = _mixture("deepseek-v3")

    def ratio(tokens):
        strategy = _spread(8, 8)[0]
        visited = visited_share(mixture, strategy, tokens, serving=True)
        return busiest_experts(mixture, strategy, tokens, visited)

    for tokens in (0.2, 1.0, 7.0):
        step = 1e-5 * tokens
        difference = (ratio(real(tokens + step)) - ratio(real(tokens - step))) / (2 * step)
        assert float(jax.grad(ratio)(real(tokens))) == pytest.approx(float(difference), rel=1e-5, abs=1e-9)
    assert np.isfinite(float(jax.grad(ratio)(real(1e6))))


def test_all_wait_for_the_busiest_device_whose_work_is_not_that_of_all():
    """A decode pass of one token on Mixtral's eight experts on eight devices: each reads a quarter of an
    expert in the mean, but two devices a whole one, so that products of experts take four times as long as
    the mean device's bytes; their energy is that of these bytes.
    """
    model, strategy = dp.load_model("mixtral-8x7b"), _spread(1, 8)[0]
    c = Configuration(model, dp.load_system("dgx-h100", n_devices=8), strategy)
    one = TokenPass(
        sequences=real(1 / 8), queries=real(1.0), context=real(100.0), generating=True, serving=True
    )
    operators = layer_operators(c, one, trained=False)
    [expert] = [group for group in operators if "experts up" in group.names]
    place = expert.names.index("experts up")
    assert float(expert.busiest[0, place]) == pytest.approx(4, rel=1e-6)
    assert float(expert.busiest[0, expert.names.index("qkv")]) == 1
    machine = Machine.of(c.system, strategy, Exact(), serving=True)
    timed = evaluate(operators, machine).total(name="experts up")
    busy, starts = float(timed.time), float(timed.starts)
    bytes_ = float(timed.traffic[-1])
    device = c.system.accelerator.device_memory
    streamed = bytes_ / float(device.bandwidth * device.efficiency)
    assert busy - starts == pytest.approx(4 * streamed, rel=0.35)


def test_imbalance_needs_devices_with_different_experts():
    """With the whole of every expert on every device none of them is busier than others."""
    for ep, expected in ((1, 1.0), (2, 1.5), (8, 1.5)):
        table = {"tp": 8, "dp": ep, "ep": ep, "expert_imbalance": 1.5, "global_batch": ep}
        assert float(expert_load(dp.load_strategy(table))) == expected


def test_ranks_of_a_context_share_the_latent_cache():
    """Generating at 128k tokens, each of eight ranks reads an eighth of the latents of 512 + 64 numbers."""
    layers = dp.load_model("deepseek-v3").layers[-1]
    tokens = TokenPass(sequences=real(4.0), queries=real(1.0), context=real(131072.0), generating=True)
    read = [
        float(attention_core(layers, dp.load_strategy({"tp": 8, "cp": cp}), tokens).kv_elements)
        for cp in (1, 8)
    ]
    assert read[1] == pytest.approx(read[0] / 8, rel=1e-9)
    assert read[0] == pytest.approx(4 * 131072 * (512 + 64), rel=0.12)


def test_latents_of_a_cached_prefix_are_projected_up_as_well():
    """DeepSeek-V3: the last 4,096 of 65,536 tokens need keys and values of all of them, 128 heads of 128 and
    128 numbers from 512; all other products have the rows of the new tokens.
    """
    model, strategy = dp.load_model("deepseek-v3"), dp.load_strategy({"tp": 8})
    layers = model.layers[-1]
    new = TokenPass(sequences=real(1.0), queries=real(4096.0), context=real(65536.0))
    products = linear_layers(
        layers, model.hidden, strategy, real(4096.0), context_tokens=new.up_projected_tokens(strategy)
    )
    flops = dict(zip(products.names, map(float, products.flops), strict=True))
    alone = linear_layers(layers, model.hidden, strategy, real(4096.0))
    before = dict(zip(alone.names, map(float, alone.flops), strict=True))
    name = "keys and values"
    assert flops[name] == pytest.approx(2 * 65536 * 128 / 8 * (128 + 128) * 512, rel=1e-9)
    assert {key: flop for key, flop in flops.items() if key != name} == {
        key: flop for key, flop in before.items() if key != name
    }
    generated = TokenPass(
        sequences=real(3.0), queries=real(1.0), context=real(65536.0), generating=True, serving=True
    )
    assert float(generated.up_projected_tokens(strategy)) == 3
