"""dp.override and dp.load_*: the paths and values of the command line, texts, numbers and traced values."""

import json

import jax
import pytest

import diffperf as dp
from diffperf.quantity import Quantity, walk

# Mistral 7B, as published.
MISTRAL = {
    "model_type": "mistral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}


def bandwidth(system):
    return system.accelerator.device_memory.bandwidth


@pytest.mark.parametrize(
    "path",
    ["hbm.bandwidth", "accelerator.memory.hbm.bandwidth", "system.accelerator.memory.hbm.bandwidth"],
)
@pytest.mark.parametrize("value", ["4 TB/s", 4e12, 4_000_000_000_000])
def test_one_spelling_of_paths(system, path, value):
    assert float(bandwidth(dp.override(system, {path: value}))) == 4e12


def test_models_and_strategies_have_paths_too():
    model = dp.override(dp.load_model("gpt3-22b"), {"model.hidden": 4096, "vocabulary": "50000"})
    assert (float(model.hidden), float(model.vocabulary)) == (4096, 50000)
    strategy = dp.override(dp.load_strategy({"tp": 8}), {"strategy.pp": 2, "recompute": "full"})
    assert float(strategy.pp) == 2
    assert strategy.recompute.likeliest() == "full"


def test_every_input_takes_its_own_number(system):
    values = {path: value for path, declared, value in walk(system) if isinstance(declared, Quantity)}
    same = dp.override(system, {path: float(value) for path, value in values.items()})
    for path, _, value in walk(same):
        if path in values:
            assert float(value) == pytest.approx(float(values[path]), rel=1e-12), path


def test_traced_values_under_jit_and_grad(system):
    def doubled(value):
        return 2 * bandwidth(dp.override(system, {"hbm.bandwidth": value}))

    assert float(jax.jit(doubled)(3e12)) == 6e12
    assert float(jax.grad(doubled)(3e12)) == 2.0
    assert jax.vmap(doubled)(jax.numpy.array([1e12, 2e12])).tolist() == [2e12, 4e12]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"bandwidth": 1e12}, "write one of: accelerator.memory.smem.bandwidth"),
        ({"hbm.bandwidth": -1.0}, "hbm.bandwidth"),
        ({"hbm.bandwidth": "4 TB"}, "wrong dimension"),
        ({"hbm.bandwith": 1e12}, "did you mean"),
        ({"hbm.bandwidth": True}, "expected a quantity"),
        ({"hbm.bandwidth": [1e12, 2e12]}, "found 2 numbers; expected one number; write one of them"),
    ],
)
def test_wrong_overrides_name_the_function(system, values, words):
    with pytest.raises(dp.ConfigError) as caught:
        dp.override(system, values)
    assert str(caught.value).startswith("dp.override: ")
    assert words in str(caught.value)


def test_hugging_face_configs_as_tables_and_objects(tmp_path):
    config = MISTRAL
    file = tmp_path / "some-model" / "config.json"
    file.parent.mkdir()
    file.write_text(json.dumps(config), encoding="utf-8")

    class Object:
        def to_dict(self) -> dict:
            return config

    parameters = [float(dp.load_model(source).parameters) for source in (file, str(file), config, Object())]
    assert len(set(parameters)) == 1
    assert parameters[0] == pytest.approx(7.24e9, rel=0.005)  # as published
