"""Keys of a Hugging Face `config.json` that are absent, misspelled or contradict each other."""

import json

import pytest
from helpers import check_error
from huggingface_configs import (
    BLOOM,
    DEEPSEEK_V3,
    FALCON_7B,
    GEMMA_3_27B,
    GPT_J,
    GPT_NEOX,
    HUGGINGFACE,
    MIXTRAL,
)

import diffperf as dp
from diffperf.errors import ConfigError
from diffperf.load.huggingface_quantization import quantization


def without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


WRONG = {
    "no inner dimension": (
        without(HUGGINGFACE, "intermediate_size"),
        "intermediate_size",
        "add intermediate",
    ),
    "misspelled inner dimension": (
        without(HUGGINGFACE, "intermediate_size") | {"intermediate_siz": 11008},
        "intermediate_size",
        'did you mean "intermediate_siz"?',
    ),
    "only that of experts": (without(DEEPSEEK_V3, "intermediate_size"), "intermediate_size", "add intermed"),
    "no inner dimension at all": (HUGGINGFACE | {"intermediate_size": 0}, "intermediate_size", "at least 1"),
    "quoted inner dimension": (HUGGINGFACE | {"intermediate_size": "0"}, "intermediate_size", "quotes"),
    "text for a truth value": (
        HUGGINGFACE | {"tie_word_embeddings": "false"},
        "tie_word_embeddings",
        "true or",
    ),
    "text for biases": (HUGGINGFACE | {"attention_bias": "no"}, "attention_bias", "true or false"),
    "misspelled experts": (
        without(MIXTRAL, "num_local_experts") | {"num_local_expert": 8},
        "num_local_experts",
        'did you mean "num_local_expert"?',
    ),
    "no experts": (without(DEEPSEEK_V3, "n_routed_experts"), "num_local_experts", "or n_routed_experts"),
    "key heads": (
        HUGGINGFACE | {"hidden_size": 896, "num_attention_heads": 7, "num_key_value_heads": 3},
        "num_key_value_heads",
        "a divisor of num_attention_heads = 7",
    ),
    "experts of a token": (
        MIXTRAL | {"num_local_experts": 3, "num_experts_per_tok": 5},
        "num_experts_per_tok",
        "5 of num_local_experts = 3",
    ),
    "dimension of a head": (
        HUGGINGFACE | {"hidden_size": 1000, "num_attention_heads": 7, "num_key_value_heads": 7},
        "hidden_size",
        "1000 beside num_attention_heads = 7",
    ),
    "vocabulary": (HUGGINGFACE | {"vocab_size": 10**9}, "vocab_size", "1,000,000"),
    "window": (HUGGINGFACE | {"sliding_window": 10**15}, "sliding_window", "check the value"),
}


@pytest.mark.parametrize(("config", "key", "words"), WRONG.values(), ids=WRONG.keys())
def test_errors_name_the_keys_of_the_file(tmp_path, config, key, words):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    for source in (path, config):
        with pytest.raises(ConfigError) as caught:
            dp.load_model(source)
        check_error(caught.value)
        assert caught.value.key == key
        assert words in str(caught.value)


@pytest.mark.parametrize(
    "config",
    [without(GPT_J, "n_inner"), GPT_J, BLOOM, FALCON_7B, without(GPT_NEOX, "intermediate_size")],
    ids=lambda config: config["model_type"],
)
def test_some_families_are_four_times_as_wide_inside(config):
    model = dp.load_model(config)
    assert float(model.layers[0].ffn) == 4 * float(model.hidden)


def test_a_mixture_without_experts_is_dense():
    """DeepSeek's code builds MLPs where the number of experts is null."""
    (layers,) = dp.load_model(DEEPSEEK_V3 | {"n_routed_experts": None}).layers
    assert layers.mixture is None


PUBLISHED = [
    ({"quant_method": "gptq", "bits": 4}, "gptq int4"),
    ({"quant_method": "gptq", "bits": 3}, "gptq 3-bit"),
    ({"quant_method": "AWQ", "bits": 4, "group_size": 128}, "awq int4"),
    ({"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"}, "fp8"),
    ({"quant_method": "mxfp4", "modules_to_not_convert": []}, "mxfp4"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False}, "bitsandbytes int4"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt nvfp4"),
    (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
        },
        "compressed-tensors fp8",
    ),
    ({"quant_method": "quip"}, "quip"),
    ({}, ""),
    (None, ""),
    ([4], ""),
]


@pytest.mark.parametrize(("keys", "expected"), PUBLISHED)
def test_the_format_of_published_weights(keys, expected):
    config = HUGGINGFACE | {"quantization_config": keys}
    assert quantization(config) == expected
    assert str(dp.load_model(config).quantization) == expected


@pytest.mark.parametrize(
    ("strategy", "phase", "words"),
    [
        ({}, "decode", 'config says gptq int4: weight_precision "int4" counts them so'),
        ({"weight_precision": "int4"}, "decode", ""),
        ({"precision": "fp8"}, "decode", ""),
        ({}, "training", ""),
    ],
)
def test_an_estimate_says_which_format_is_counted(strategy, phase, words):
    config = HUGGINGFACE | {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    answer = dp.estimate(config, "dgx-h100", phase, devices=1, global_batch=1, **strategy)
    lines = [str(line) for line in answer.lines() if "counted in bf16" in str(line)]
    assert [words in line for line in lines] == [True] * bool(words)


def test_a_server_without_memory_says_which_format_is_counted():
    answer = dp.serve("gpt-oss-120b", "dgx-h100", devices=1, pools="aggregated")
    assert "weights are counted in bf16: --weight-precision int4" in answer.refusal


def test_a_misspelled_key_is_not_left_to_the_default_of_the_family(tmp_path):
    """Gemma3TextConfig has 8 heads by default, which is not what the config means."""
    text = dict(GEMMA_3_27B["text_config"])
    text["num_attention_head"] = text.pop("num_attention_heads")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GEMMA_3_27B | {"text_config": text}))
    with pytest.raises(ConfigError) as caught:
        dp.load_model(path)
    check_error(caught.value)
    assert caught.value.key == "num_attention_heads"
    assert "num_attention_head" in caught.value.remedy
