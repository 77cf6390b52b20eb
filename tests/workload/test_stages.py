"""What the first, a middle and the last pipeline stage hold, counted by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import diffperf as dp
from diffperf.quantity import replace
from diffperf.relax import Exact, Smooth
from diffperf.workload.stages import device_stages, layers_of_model, stage_layers


def _rows(model: str, relax=None, **table) -> tuple[float, ...]:
    stages = stage_layers(dp.load_model(model), dp.load_strategy(table), Exact() if relax is None else relax)
    return tuple(float(layers) for layers in (stages.first, stages.middle, stages.last))


def _held(model: str, **table):
    return device_stages(dp.load_model(model), dp.load_strategy(table), Exact())


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"pp": 8}, (12, 12, 12)),
        ({"pp": 5}, (20, 20, 20)),  # the fullest holds 20 of 96
        ({"pp": 2, "virtual_stages": 5}, (50, 46, 46)),
        ({"pp": 8, "first_stage_layers": 6, "last_stage_layers": 6}, (6, 14, 6)),
        ({"pp": 8, "first_stage_layers": 5}, (5, 13, 13)),
        ({"pp": 8, "last_stage_layers": 12}, (12, 12, 12)),
        ({"pp": 7, "embedding_in_split": True, "loss_in_split": True}, (13, 14, 13)),  # 98 in 7 times 14
        ({"pp": 97, "loss_in_split": True}, (1, 1, 0)),
        ({"pp": 7, "virtual_stages": 2, "embedding_in_split": True, "loss_in_split": True}, (13, 14, 13)),
        ({"pp": 7, "first_stage_layers": 16, "embedding_in_split": True}, (16, 14, 14)),
        ({"pp": 2, "first_stage_layers": 40, "last_stage_layers": 56}, (40, 40, 56)),  # no middle stage
        ({"pp": 1, "embedding_in_split": True, "loss_in_split": True}, (96, 96, 96)),
    ],
)
def test_layers_by_hand(table, expected):
    """GPT-3's 96 layers as Megatron-LM splits them."""
    assert _rows("gpt3-175b", **table) == expected
    assert _rows("gpt3-175b", Smooth(1e4), **table) == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_middle_stages_hold_what_is_left():
    """Ceil(28/20) = 2 layers at either end, the other 24 on eighteen middle stages, of which twelve hold one
    layer; 76 of GPT-3's 96 on three, of which one holds 19 and two 20 … of five stages of at most 20.
    """
    np.testing.assert_allclose(_held("qwen2.5-7b", pp=20).middles, [24])
    np.testing.assert_allclose(_held("gpt3-175b", pp=5).middles, [56])
    np.testing.assert_allclose(_held("gpt3-175b", pp=8).middles, [72])
    np.testing.assert_allclose(_held("gpt3-175b", pp=2).middles, [0])
    np.testing.assert_allclose(_held("gpt3-175b").middles, [0])
    np.testing.assert_allclose(_held("deepseek-v3", pp=16, last_stage_layers=1).middles, [0, 56], atol=1e-9)


def test_llama_405b_has_126_layers_in_128_chunks():
    """Both embeddings stand in for a layer: one layer in every chunk, none in the first and the last."""
    table = {"pp": 16, "virtual_stages": 8, "embedding_in_split": True, "loss_in_split": True}
    assert _rows("llama-3.1-405b", **table) == (7, 8, 7)


def test_leading_layers_are_on_the_first_stage():
    """DeepSeek-V3 in 16 stages: three dense layers lead, and the last stage predicts a second token."""
    held = _held("deepseek-v3", pp=16, dp=16, last_stage_layers=1, first_stage_layers=4)
    np.testing.assert_allclose(held.layers, [[3, 1], [0, 4], [0, 1]], atol=1e-12)
    np.testing.assert_allclose(held.all_layers, [[3, 1], [0, 4], [0, 2]], atol=1e-12)
    np.testing.assert_allclose(held.embeddings, [1, 0, 0])
    np.testing.assert_allclose(held.heads, [0, 0, 1])
    total = held.layers[0] + 14 * held.layers[1] + held.layers[2]
    np.testing.assert_allclose(total, [3, 57 + 1], atol=1e-9)
    np.testing.assert_allclose(layers_of_model(dp.load_model("deepseek-v3")), [3, 59])


def test_leading_layers_spill_over_a_short_first_stage():
    """Two of three lead on the first stage, the third is spread over the 59 layers after it."""
    held = _held("deepseek-v3", pp=16, dp=16, first_stage_layers=2)
    np.testing.assert_allclose(held.layers[0], [2, 0], atol=1e-12)
    np.testing.assert_allclose(held.layers[1], [4 / 59, 4 * 58 / 59], rtol=1e-9)


def test_alternating_layers_are_spread_evenly():
    held = _held("gpt-oss-120b", pp=4, dp=4)
    np.testing.assert_allclose(held.layers, np.full((3, 2), 4.5), rtol=1e-12)


def test_without_a_pipeline_one_stage_holds_all():
    held = _held("deepseek-v3", dp=16)
    np.testing.assert_allclose(held.layers, [[3, 58]] * 3, rtol=1e-9)


def test_a_device_of_dualpipe_holds_both_ends():
    """The mean of the first and the last stage at both ends, two of the middle ones between."""
    held = _held("deepseek-v3", pp=16, dp=16, global_batch=512, schedule="dualpipe", last_stage_layers=2)
    np.testing.assert_allclose(held.layers, [[1.5, 1.5], [0, 4], [1.5, 1.5]], atol=1e-12)
    for rows in (held.embeddings, held.heads, held.modules):
        np.testing.assert_allclose(rows, [0.5, 0, 0.5])


@pytest.mark.parametrize("relax", [Exact(), Smooth(16.0)], ids=["exact", "smooth"])
def test_slopes_in_the_degrees_and_the_layers(relax):
    """Between whole numbers, against central differences."""
    model = dp.load_model("deepseek-v3")
    strategy = dp.load_strategy({"pp": 16, "dp": 16, "first_stage_layers": 3, "last_stage_layers": 2})

    def layers(values):
        degrees = dict(zip(("pp", "first_stage_layers", "last_stage_layers"), values, strict=True))
        held = device_stages(model, replace(strategy, degrees), relax)
        return jnp.sum(held.all_layers * jnp.arange(1.0, 7.0).reshape(3, 2))

    at, step = jnp.array([15.3, 3.2, 2.4]), 1e-6
    slope = jax.grad(layers)(at)
    for index in range(3):
        change = step * jnp.eye(3)[index]
        difference = (layers(at + change) - layers(at - change)) / (2 * step)
        assert float(slope[index]) == pytest.approx(float(difference), rel=1e-4, abs=1e-6)
