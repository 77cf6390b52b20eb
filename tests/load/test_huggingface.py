"""Hugging Face `config.json`: files of shipped models give these models, other architectures are refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from config_tables import MODEL, VALUES, edited, load_error, toml
from helpers import check_error
from huggingface_configs import (
    DEEPSEEK_V3,
    FALCON_7B,
    FALCON_40B,
    GPT_NEOX,
    GPT_OSS,
    HUGGINGFACE,
    MAVERICK,
    MISTRAL,
    MIXTRAL,
    OPT,
    QWEN2,
    QWEN2_MOE,
    SHIPPED,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import diffperf as dp
from diffperf.errors import ConfigError
from diffperf.load import load
from diffperf.quantity import walk
from diffperf.workload.model import Model


def write_json(folder: Path, config) -> Path:
    path = folder / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return path


def test_huggingface_config_is_the_shipped_model(tmp_path, llama):
    model = dp.load_model(write_json(tmp_path, HUGGINGFACE))
    assert float(model.parameters) == float(llama.parameters) == 6_738_415_616  # published with the weights


def test_huggingface_gpt2(tmp_path):
    config = {
        "model_type": "gpt2",
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_positions": 1024,
        "vocab_size": 50257,
    }
    assert float(dp.load_model(write_json(tmp_path, config)).parameters) == 124_439_808


def test_huggingface_grouped_queries_and_experts(tmp_path):
    config = HUGGINGFACE | {
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }
    model = dp.load_model(write_json(tmp_path, config | {"model_type": "mixtral"}))
    assert float(model.parameters) == pytest.approx(46_702_792_704, rel=1e-9)  # mistralai/Mixtral-8x7B


def _numbers(model: Model) -> dict[str, list[float]]:
    """Every input of a model by path."""
    return {path: np.asarray(value).tolist() for path, _, value in walk(model)}


@pytest.mark.parametrize("name", SHIPPED)
def test_huggingface_configs_are_the_shipped_models(tmp_path, name):
    """Kinds of layers, experts, latents, windows and biases: written by hand in configs/, found by the
    reader here.
    """
    assert _numbers(dp.load_model(write_json(tmp_path, SHIPPED[name]))) == _numbers(dp.load_model(name))


@pytest.mark.parametrize(
    ("keys", "tokens"),
    [
        ({}, 4096),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, 16384),
        (
            {"rope_scaling": {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32768}},
            65536,
        ),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 4096),
        ({"rope_scaling": None}, 4096),
        ({"model_type": "falcon", "alibi": True}, 0),
    ],
)
def test_huggingface_context_window(tmp_path, keys, tokens):
    """The lengths that vLLM serves with these keys."""
    config = HUGGINGFACE | {"max_position_embeddings": 4096} | keys
    assert float(dp.load_model(write_json(tmp_path, config)).context_window) == tokens


def _kinds(folder: Path, config) -> list[tuple[int, bool, int | None]]:
    """Of each kind of layers: how many, whether of experts, and the window."""
    kinds = dp.load_model(write_json(folder, config)).layers
    return [
        (int(kind.count), kind.mixture is not None, int(kind.window) if kind.window < 1e9 else None)
        for kind in kinds
    ]


@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        (QWEN2_MOE | {"decoder_sparse_step": 2}, [(14, False, None), (14, True, None)]),
        (QWEN2_MOE | {"mlp_only_layers": [0, 27]}, [(2, False, None), (26, True, None)]),
        (
            QWEN2_MOE | {"use_sliding_window": True, "max_window_layers": 21},
            [(21, True, None), (7, True, 65536)],
        ),
        (DEEPSEEK_V3 | {"moe_layer_freq": 2}, [(32, False, None), (29, True, None)]),  # of layers 4, 6, … 60
        (DEEPSEEK_V3 | {"moe_layer_freq": [0] * 6 + [1] * 55}, [(6, False, None), (55, True, None)]),
        (
            MAVERICK["text_config"] | {"interleave_moe_layer_step": 1},
            [(36, True, 8192), (12, True, None)],
        ),  # Scout
        (MAVERICK["text_config"] | {"moe_layers": []}, [(36, False, 8192), (12, False, None)]),
        (MAVERICK["text_config"] | {"no_rope_layers": [1, 0] * 24}, [(24, False, 8192), (24, True, None)]),
        (
            GPT_OSS | {"layer_types": ["sliding_attention"] * 30 + ["full_attention"] * 6},
            [(30, True, 128), (6, True, None)],
        ),
        (MISTRAL | {"sliding_window": None}, [(32, False, None)]),
        (MISTRAL | {"model_type": "gemma2"}, [(16, False, 4096), (16, False, None)]),
        (
            MISTRAL | {"model_type": "gemma3_text", "num_hidden_layers": 34},
            [(29, False, 4096), (5, False, None)],
        ),
        (MISTRAL | {"sliding_window_pattern": 4}, [(24, False, 4096), (8, False, None)]),
        (QWEN2 | {"model_type": "qwen3"}, [(28, False, None)]),
    ],
)
def test_huggingface_kinds_of_layers(tmp_path, config, kinds):
    """Which layers are of which kind: the rules of the families' own code (transformers,
    models/*/configuration_*.py).
    """
    assert _kinds(tmp_path, config) == kinds


@pytest.mark.parametrize(
    ("config", "switch", "on"),
    [
        (HUGGINGFACE, "qkv_biases", False),
        (HUGGINGFACE | {"attention_bias": True}, "qkv_biases", True),
        (QWEN2, "qkv_biases", True),
        (QWEN2 | {"model_type": "qwen3", "attention_bias": False}, "qkv_biases", False),
        (GPT_NEOX, "qkv_biases", False),  # all layers have biases
        (GPT_NEOX | {"use_parallel_residual": False}, "parallel", False),
        (FALCON_40B | {"parallel_attn": False}, "parallel", True),
        (FALCON_7B | {"parallel_attn": False}, "parallel", False),
        (FALCON_7B | {"bias": True}, "biases", True),
        (HUGGINGFACE, "parallel", False),
        (HUGGINGFACE | {"model_type": "cohere"}, "parallel", True),
        (OPT, "dropout", True),
        (OPT | {"dropout": 0.0}, "dropout", False),
    ],
)
def test_huggingface_switches(tmp_path, config, switch, on):
    (kind,) = dp.load_model(write_json(tmp_path, config)).layers
    assert getattr(kind, switch).by_name() == {"off": not on, "on": on}


def test_huggingface_mpt(tmp_path):
    """The released MPT-30B: linear position biases, no others."""
    config = {
        "model_type": "mpt",
        "d_model": 7168,
        "n_heads": 64,
        "n_layers": 48,
        "expansion_ratio": 4,
        "max_seq_len": 8192,
    }
    config |= {"vocab_size": 50432, "no_bias": True, "learned_pos_emb": True, "attn_config": {"alibi": True}}
    model = dp.load_model(write_json(tmp_path, config))
    norms = (2 * 48 + 1) * 7168
    assert float(model.parameters) == 50432 * 7168 + 48 * 12 * 7168**2 + norms
    learned = dp.load_model(write_json(tmp_path, config | {"attn_config": {"alibi": False}}))
    assert float(learned.parameters - model.parameters) == 8192 * 7168


BAD_HUGGINGFACE = {
    "encoder-decoder": (HUGGINGFACE | {"is_encoder_decoder": True}, "decoder-only"),
    "t5": ({"model_type": "t5", "d_model": 512}, "decoder-only"),
    "bert": (HUGGINGFACE | {"model_type": "bert"}, "decoder-only"),
    "state space": ({"model_type": "mamba"}, "decoder-only"),
    "latent attention without its dimensions": (HUGGINGFACE | {"kv_lora_rank": 512}, "qk_rope_head_dim"),
    "text rank": (DEEPSEEK_V3 | {"kv_lora_rank": "512"}, '"512"'),
    "text rotary dimension": (DEEPSEEK_V3 | {"qk_rope_head_dim": [64]}, "qk_rope_head_dim"),
    "no experts per token": (
        {k: v for k, v in MIXTRAL.items() if k != "num_experts_per_tok"},
        "num_experts_per_tok",
    ),
    "text dense layers": (DEEPSEEK_V3 | {"first_k_dense_replace": "three"}, "first_k_dense_replace"),
    "real sparse step": (QWEN2_MOE | {"decoder_sparse_step": 1.5}, "decoder_sparse_step"),
    "text shared experts": (DEEPSEEK_V3 | {"n_shared_experts": "one"}, "n_shared_experts"),
    "text window": (MISTRAL | {"sliding_window": "wide"}, "sliding_window"),
    "real predicted tokens": (
        DEEPSEEK_V3 | {"num_nextn_predict_layers": 1.5},
        "num_nextn_predict_layers: found 1.5",
    ),
    "too few types of layers": (GPT_OSS | {"layer_types": ["full_attention"]}, "each of the 36 layers"),
    "linear attention": (GPT_OSS | {"layer_types": ["linear_attention"] * 36}, "linear_attention"),
    "numbers for types": (GPT_OSS | {"layer_types": [1] * 36}, "full_attention"),
    "kimi linear": (DEEPSEEK_V3 | {"linear_attn_config": {"head_dim": 128}}, "linear_attn_config"),
    "qwen3-next": (QWEN2_MOE | {"full_attention_interval": 4}, "linear attention"),
    "sparse attention": (DEEPSEEK_V3 | {"index_topk": 2048}, "index_topk"),
    "hybrid": (HUGGINGFACE | {"hybrid_override_pattern": "M-M*"}, "state-space"),
    "dbrx": (
        {"model_type": "dbrx", "d_model": 6144, "ffn_config": {"moe_num_experts": 16}},
        "moe_num_experts",
    ),
    "opt-350m": (OPT | {"word_embed_proj_dim": 512}, "word_embed_proj_dim"),
    "image classifier": ({"architectures": ["ResNet"], "num_labels": 1000}, "hidden_size"),
    "no hidden": ({k: v for k, v in HUGGINGFACE.items() if k != "hidden_size"}, "hidden_size"),
    "no layers": ({k: v for k, v in HUGGINGFACE.items() if k != "num_hidden_layers"}, "num_hidden_layers"),
    "no heads": ({k: v for k, v in HUGGINGFACE.items() if k != "num_attention_heads"}, "num_attention_heads"),
    "no vocabulary": ({k: v for k, v in HUGGINGFACE.items() if k != "vocab_size"}, "vocab_size"),
    "unknown family": (HUGGINGFACE | {"model_type": "frobnicate"}, "a family that is known here"),
    "quoted dimension": (HUGGINGFACE | {"hidden_size": "4096"}, "hidden_size"),
    "text dimension": (HUGGINGFACE | {"hidden_size": "4096 wide"}, "4096 wide"),
    "null dimension": (HUGGINGFACE | {"hidden_size": None}, "hidden"),
    "list dimension": (HUGGINGFACE | {"hidden_size": [4096]}, "[4096]"),
    "zero heads": (HUGGINGFACE | {"num_attention_heads": 0}, "heads"),
    "negative layers": (HUGGINGFACE | {"num_hidden_layers": -1}, "-1"),
    "nan vocabulary": (HUGGINGFACE | {"vocab_size": float("nan")}, "NaN"),
    "list experts": (MIXTRAL | {"num_local_experts": [8]}, "[8]"),
    "text experts": (MIXTRAL | {"num_local_experts": "8 of them"}, "8 of them"),
    "huge": (HUGGINGFACE | {"hidden_size": 10**400}, "hidden"),
    "list": ([HUGGINGFACE], "object"),
    "number": ("7", "object"),
    "null": ("null", "object"),
    "empty object": ({}, "hidden_size"),
    "empty": ("", "JSON"),
    "truncated": (json.dumps(HUGGINGFACE)[:40], "JSON"),
    "toml": (toml(MODEL), "JSON"),
    "deep": ("[" * 100_000, "JSON"),
    "endless number": ('{"hidden_size": ' + "9" * 5000 + "}", "JSON"),
}


@pytest.mark.parametrize(("config", "word"), BAD_HUGGINGFACE.values(), ids=BAD_HUGGINGFACE.keys())
def test_what_is_no_decoder_transformer(tmp_path, config, word):
    error = load_error(Model, write_json(tmp_path, config))
    assert error.file.endswith("config.json")
    assert word in str(error)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(
    st.sampled_from([HUGGINGFACE, DEEPSEEK_V3, QWEN2_MOE, MAVERICK["text_config"], GPT_OSS, FALCON_40B, OPT]),
    st.data(),
)
def test_random_huggingface_corruption(tmp_path, config, data):
    key, value = data.draw(st.sampled_from(sorted(config))), data.draw(VALUES)
    try:
        load(Model, write_json(tmp_path, edited(config, [key], value)))
    except ConfigError as error:
        check_error(error)


def test_models_in_one_folder_are_named_by_their_files(tmp_path):
    """A config.json is named by its folder, as in a repository; any other file by itself."""
    path = write_json(tmp_path, QWEN2)
    other = path.rename(tmp_path / "small.json")
    write_json(tmp_path, QWEN2)
    assert [str(dp.load_model(each).name) for each in (path, other)] == [tmp_path.name, "small"]


def test_a_folder_with_a_config_is_a_model(tmp_path, monkeypatch):
    folder = tmp_path / "my-model"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r'found "\./my-model", a folder without a config\.json; .*put its'):
        dp.load_model("./my-model")
    write_json(folder, HUGGINGFACE)
    for path in ("./my-model", "my-model/", folder):
        model = dp.load_model(path)
        assert float(model.parameters) == 6_738_415_616
        assert str(model.name) == "my-model"
    with pytest.raises(ConfigError, match=r'write "\./my-model" for the folder'):
        dp.load_model("my-model")
    monkeypatch.chdir(folder)
    assert str(dp.load_model(".").name) == "my-model"


def test_a_name_of_hugging_face_says_what_is_expected():
    with pytest.raises(ConfigError) as problem:
        dp.load_model("meta-llama/Llama-3.1-8B")
    assert str(problem.value) == (
        'dp.load_model: model: found "meta-llama/Llama-3.1-8B"; expected a name from configs/models, a TOML '
        'file, a config.json or a folder with one; did you mean "llama-3.1-8b"? Else download its '
        "config.json, and name that file"
    )
    with pytest.raises(ConfigError, match=r"or a folder with one; download its config\.json, and name"):
        dp.load_model("nobody/zzzz")
