"""Parameter counts against the closed forms of the papers."""

import numpy as np
import pytest

from diffperf.workload.model import Layers, Model


def _gpt(hidden, layers, vocabulary, positions):
    kind = Layers(layers, 8, 8, hidden / 8, 4 * hidden, gated=False, biases=True)
    return Model("", hidden, vocabulary, True, (kind,), learned_positions=positions)


@pytest.mark.parametrize(("h", "n", "v", "s"), [(1024, 24, 50304, 1024), (12288, 96, 51200, 2048), (25600, 128, 51200, 2048)])
def test_gpt_follows_the_formula_of_megatron(h, n, v, s):
    """P = 12·l·h²·(1 + 13/(12h) + (V + s)/(12·l·h)) (arXiv 2104.04473, Equation 2), which leaves out the final norm's 2h."""
    expected = 12 * n * h**2 * (1 + 13 / (12 * h) + (v + s) / (12 * n * h))
    assert float(_gpt(h, n, v, s).parameters) == pytest.approx(expected + 2 * h, rel=1e-12)


def test_llama_by_hand(llama):
    h, n, ffn, v = 4096, 32, 11008, 32000
    assert float(llama.parameters) == 2 * v * h + n * (4 * h**2 + 3 * h * ffn + 2 * h) + h


def test_grouped_queries_by_hand():
    h, heads, kv, d, ffn, v = 8192, 64, 8, 128, 28672, 32000
    kind = Layers(80, heads, kv, d, ffn, gated=True)
    layer = h * heads * d * 2 + h * kv * d * 2 + 3 * h * ffn + 2 * h
    assert float(Model("", h, v, False, (kind,)).parameters) == 2 * v * h + 80 * layer + h == 68_976_648_192  # Llama-2 70B


def test_experts_by_hand():
    kind = Layers(32, 32, 8, 128, 14336, gated=True, experts=8, experts_per_token=2)
    layer = 4096 * (2 * 4096 + 2 * 1024) + 8 * 3 * 4096 * 14336 + 4096 * 8 + 2 * 4096
    assert float(Model("", 4096, 32000, False, (kind,)).parameters) == 2 * 32000 * 4096 + 32 * layer + 4096


def test_kinds_of_layers_add_up():
    plain, gated = Layers(3, 8, 8, 64, 2048, gated=False), Layers(5, 8, 8, 64, 1024, gated=True)
    both = Model("", 512, 1000, True, (plain, gated))
    assert float(both.depth) == 8
    alone = [Model("", 512, 1000, True, (kind,)) for kind in (plain, gated)]
    assert float(both.layer_parameters) == sum(float(model.layer_parameters) for model in alone)
    np.testing.assert_array_equal(both.stacked_layers.count, [3, 5])
    np.testing.assert_array_equal(both.stacked_layers.gated, [[1, 0], [0, 1]])
