"""Hugging Face `config.json` of decoder transformers, read as the keys of a model config.

What a file does not say, the code of its family (`model_type`) decides: `huggingface_families`. What a file
says goes first.
"""

import json
from pathlib import Path
from typing import Any

from diffperf.errors import ConfigError
from diffperf.load.checks import shown
from diffperf.load.huggingface_families import HuggingFaceFamily, family_of

# Architectures that a model config cannot describe, by the key that gives them away.
_UNREPRESENTED = {
    "linear_attn_config": "layers of linear attention",
    "full_attention_interval": "layers of linear attention",
    "hybrid_override_pattern": "state-space layers",
    "attn_layer_period": "state-space layers",
    "index_topk": "attention to tokens that an indexer selects",
    "block_configs": "blocks that each have their own dimensions",
    "moe_num_experts": "experts in the notation of DBRX or ERNIE",
    "laurel_rank": "a low-rank branch beside every layer",
}
# Types of attention as `layer_types` lists them.
_FULL = {"full_attention", "global"}
_WINDOWED = {"sliding_attention", "chunked_attention", "local"}

# The same dimension under the names of different families, the most common first.
_NAMES = {
    "hidden": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "vocabulary": ("vocab_size",),
    "experts per token": ("num_experts_per_tok", "num_experts_per_token"),
}
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_SHARED_EXPERTS = ("n_shared_experts", "num_shared_experts")
_SHARED_FFN = ("shared_expert_intermediate_size", "shared_intermediate_size")
_FFN = ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner")
_DROPOUT = ("attn_pdrop", "resid_pdrop", "attention_dropout", "hidden_dropout", "dropout")
# Larger numbers are not computed with: they go into the table as they are, for the bounds of the fields to
# refuse.
_MOST_LAYERS = 2000
_LARGEST = 1e18


class _Unsupported(Exception):
    """A key of a `config.json` that no model config can be made from: (key, found, expected, remedy)."""


def read_huggingface(path: Path) -> dict[str, Any]:
    """The table of a `Model` that a Hugging Face `config.json` describes.

    **Raises:** `ConfigError` for what is not JSON, and for what is not a decoder transformer that a model
    config describes.
    """
    expected, remedy = "a Hugging Face config.json", "check the file"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as problem:
        raise ConfigError(path, "", f"invalid JSON ({problem})", expected, remedy) from None
    if not isinstance(config, dict):
        raise ConfigError(path, "", f"a {type(config).__name__}", f"{expected} (an object)", remedy)
    return huggingface_table(config, str(path))


def is_huggingface(table: dict[str, Any]) -> bool:
    """Whether a table is that of a `config.json`, rather than one with the keys of a `Model`."""
    names = ("model_type", "architectures", *_NAMES["hidden"], *_NAMES["layers"])
    return "layers" not in table and any(name in table for name in names)


def huggingface_table(config: dict[str, Any], file: str) -> dict[str, Any]:
    """The table of a `Model` from the table of a `config.json`. Raises `ConfigError` that names `file`."""
    try:
        return _model_table(config)
    except _Unsupported as problem:
        raise ConfigError(file, *problem.args) from None


def _model_table(config: dict[str, Any]) -> dict[str, Any]:
    """The table of a `Model` from a `config.json`, of multimodal models from the part for text.

    **Raises:** `_Unsupported` where a dimension is missing or the architecture is not one that a model config
    describes.
    """
    if isinstance(config.get("text_config"), dict):
        config = config | config["text_config"]
    family = _family(config)
    _refuse(config)
    return {
        "hidden": _get(config, "hidden"),
        "vocabulary": _get(config, "vocabulary"),
        "tied_embeddings": bool(config.get("tie_word_embeddings", family.tied_embeddings)),
        "learned_positions": _positions(config, family),
        "context_window": _context_window(config, family),
        "mtp_layers": config.get("num_nextn_predict_layers") or 0,
        "layers": _layers(config, family),
    }


def _family(config: dict[str, Any]) -> HuggingFaceFamily:
    """The family of a config. Raises `_Unsupported` where it is unknown, or no decoder transformer."""
    name = str(config.get("model_type", ""))
    family = family_of(name)
    if config.get("is_encoder_decoder") or (family is not None and not family.decoder):
        raise _Unsupported("model_type", f'"{name}"', "a decoder-only transformer", "use another model")
    if family is None:
        remedy = "write llama in its place if the model is built like Llama, or a model's TOML file"
        raise _Unsupported("model_type", f'"{name}"', "a family that is known here", remedy)
    return family


def _refuse(config: dict[str, Any]) -> None:
    """Raises `_Unsupported` for architectures that a model config cannot describe."""
    keys = config | _part(config, "ffn_config")
    for key, architecture in _UNREPRESENTED.items():
        if keys.get(key):
            expected = "attention and an MLP, or experts, in every layer"
            raise _Unsupported(key, architecture, expected, "not represented yet")
    width = config.get("word_embed_proj_dim")
    if width is not None and width != _get(config, "hidden"):
        expected = "embeddings as wide as the residual stream"
        raise _Unsupported("word_embed_proj_dim", shown(width), expected, "not represented yet")


def _layers(config: dict[str, Any], family: HuggingFaceFamily) -> list[dict[str, Any]]:
    """A table of each kind of layers with its count, in the order in which the kinds first appear."""
    count = _get(config, "layers")
    if not _is_whole(count) or not 1 <= count <= _MOST_LAYERS:
        return [_layer(config, family, sparse=False, window=None) | {"count": count}]
    experts = _first(config, _EXPERTS) not in (None, 1)
    sparse = [experts and _is_sparse(config, index) for index in range(count)]
    kinds = list(zip(sparse, _windows(config, family, count), strict=True))
    dense = sparse.count(False)
    leads = {"leading": True} if 0 < dense < count and not any(sparse[:dense]) else {}
    return [
        _layer(config, family, *kind) | {"count": kinds.count(kind)} | ({} if kind[0] else leads)
        for kind in dict.fromkeys(kinds)
    ]


def _layer(config: dict[str, Any], family: HuggingFaceFamily, sparse: bool, window: Any) -> dict[str, Any]:
    """The table of one kind of layers, without their count."""
    biases = _biases(config, family)
    table = {
        "heads": _get(config, "heads"),
        "gated": family.gated,
        "biases": biases,
        "dropout": any(config.get(name) for name in _DROPOUT),
        "qkv_biases": not biases and bool(config.get("attention_bias") or family.qkv_biases),
        "parallel": _parallel(config, family),
    }
    if window is not None:
        table["window"] = window
    if sparse and config.get("swiglu_limit") is not None:  # gpt-oss
        table["clamped_activation"] = True
    if _scales_rotary(config):
        table["scaled_rotary"] = True
    return table | _attention(config) | _mlp(config, family, sparse)


def _scales_rotary(config: dict[str, Any]) -> bool:
    """Whether cosines and sines of rotary embeddings are scaled: those of YaRN, by 0.1 · ln(factor) + 1, but
    for configs that say otherwise.

    DeepSeek's configs have two such factors of which they use the ratio, 1 where they are equal:
    `_compute_yarn_parameters` in modeling_rope_utils.py of github.com/huggingface/transformers.
    """
    scaling = _part(config, "rope_scaling")
    factor, of_all = scaling.get("factor"), scaling.get("mscale_all_dim")
    if scaling.get("rope_type", scaling.get("type")) != "yarn" or not isinstance(factor, int | float):
        return False
    if scaling.get("attention_factor") is not None:
        return scaling["attention_factor"] != 1
    given = scaling.get("mscale") and of_all
    return factor > 1 and not (given and scaling["mscale"] == of_all)


def _attention(config: dict[str, Any]) -> dict[str, Any]:
    """The keys of a layer's attention: heads of keys and values, dimensions of a head, latent attention."""
    heads = _get(config, "heads")
    if config.get("kv_lora_rank") is None:
        head_dim = config.get("head_dim") or _number(_get(config, "hidden")) / max(_number(heads), 1)
        return {"kv_heads": _kv_heads(config, heads), "head_dim": head_dim}
    latent = {
        "query_rank": _whole(config, "q_lora_rank", 0),
        "kv_rank": _whole(config, "kv_lora_rank"),
        "rotary_dim": _whole(config, "qk_rope_head_dim"),
        "value_dim": _whole(config, "v_head_dim"),
    }
    return {
        "kv_heads": heads,
        "head_dim": _whole(config, "qk_nope_head_dim") + latent["rotary_dim"],
        "latent": latent,
    }


def _kv_heads(config: dict[str, Any], heads: Any) -> Any:
    """The number of key and value heads: those of grouped or multi-query attention, else the query heads.

    Falcon-7B's file gives a number that only holds in the newer of its family's two architectures.
    """
    grouped = (
        config.get("num_key_value_heads")
        or config.get("num_kv_heads")
        or _part(config, "attn_config").get("kv_n_heads")
    )
    if config.get("model_type") == "falcon" and not config.get("new_decoder_architecture"):
        grouped = None
    return grouped or (1 if config.get("multi_query") else heads)


def _mlp(config: dict[str, Any], family: HuggingFaceFamily, sparse: bool) -> dict[str, Any]:
    """The keys of a layer's MLP: its inner dimension, and the mixture where the layer has experts."""
    ffn = _first(config, _FFN) or _whole(config, "expansion_ratio", 4) * _number(_get(config, "hidden"))
    if not sparse:
        # Llama 4's `intermediate_size` is that of the experts; its dense layers have a key of their own.
        return {"ffn": config.get("intermediate_size_mlp") or ffn}
    expert = config.get("moe_intermediate_size") or ffn
    shared = max(_whole(config, name, 0) for name in _SHARED_EXPERTS) or family.shared_experts
    mixture = {
        "experts": _first(config, _EXPERTS),
        "experts_per_token": _get(config, "experts per token"),
        "shared_ffn": _first(config, _SHARED_FFN) or shared * _number(expert),
    }
    if _whole(config, "n_group", 1) > 1:
        mixture |= {"groups": _whole(config, "n_group"), "groups_visited": _whole(config, "topk_group", 1)}
    return {"ffn": expert, "mixture": mixture}


def _is_sparse(config: dict[str, Any], index: int) -> bool:
    """Whether the layer at an index has experts: as lists say, else every n-th after leading dense layers."""
    if isinstance(config.get("moe_layers"), list):
        return index in config["moe_layers"]
    if isinstance(config.get("moe_layer_freq"), list):
        return any(config["moe_layer_freq"][index : index + 1])
    dense = config.get("mlp_only_layers")
    leading, period = _whole(config, "first_k_dense_replace", 0), _whole(config, "moe_layer_freq", 1)
    step = _whole(config, "decoder_sparse_step", 1) * _whole(config, "interleave_moe_layer_step", 1)
    regular = index >= leading and index % max(period, 1) == 0 and (index + 1) % max(step, 1) == 0
    return regular and not (isinstance(dense, list) and index in dense)


def _windows(config: dict[str, Any], family: HuggingFaceFamily, count: int) -> list[Any]:
    """The window of each layer in tokens, None where a query sees all tokens.

    Llama 4's attention within chunks is read as a window as long as a chunk: exact up to the length of a
    chunk, and at most twice as many tokens as chunks beyond it.
    """
    types = config.get("layer_types") or config.get("attention_layers")
    if types is not None:
        _check_types(types, count)
    window = max(
        _whole(config, name, 0) for name in ("sliding_window", "attention_chunk_size", "window_size")
    )
    if not window or not config.get("use_sliding_window", not family.optional_windows):
        return [None] * count
    if types is not None:
        return [window if kind in _WINDOWED else None for kind in types]
    # Llama 4: 0 for layers without rotary positions, which see all tokens.
    rotary = config.get("no_rope_layers")
    if isinstance(rotary, list) and rotary:
        return [window if any(rotary[index : index + 1]) else None for index in range(count)]
    first = _whole(config, "max_window_layers", 0) if family.optional_windows else 0
    period = _whole(config, "no_rope_layer_interval", family.full_attention_every)
    period = _whole(config, "sliding_window_pattern", period)
    return [
        None if index < first or (period and (index + 1) % period == 0) else window for index in range(count)
    ]


def _check_types(types: Any, count: int) -> None:
    """Raises `_Unsupported` unless there is one known type of attention for each layer."""
    if not isinstance(types, list) or len(types) != count:
        expected = f"the type of each of the {count} layers"
        raise _Unsupported("layer_types", shown(types), expected, "correct the list")
    for kind in types:
        if not isinstance(kind, str) or kind not in _FULL | _WINDOWED:
            expected = "one of " + ", ".join(sorted(_FULL | _WINDOWED))
            raise _Unsupported("layer_types", shown(kind), expected, "not represented yet")


def _biases(config: dict[str, Any], family: HuggingFaceFamily) -> bool:
    """Whether linear layers and norms have biases."""
    for name in ("bias", "use_bias"):
        if name in config:
            return bool(config[name])
    return not config["no_bias"] if "no_bias" in config else family.biases


def _parallel(config: dict[str, Any], family: HuggingFaceFamily) -> bool:
    """Whether attention and MLP are side by side, behind one norm."""
    parallel = config.get("use_parallel_residual", config.get("parallel_attn", family.parallel))
    return bool(parallel or config.get("new_decoder_architecture"))


def _positions(config: dict[str, Any], family: HuggingFaceFamily) -> Any:
    """The rows of a learned position embedding, 0 without one."""
    if config.get("model_type") == "mpt":  # learned where they are neither linear biases (ALiBi) nor rotary
        attention = _part(config, "attn_config")
        learned = attention.get("alibi") is False and not attention.get("rope")
        return (config.get("max_seq_len") or 0) if learned else 0
    if not family.learned_positions:
        return 0
    longest = _first(config, ("max_position_embeddings", "n_positions")) or 0
    return longest + family.extra_positions if _is_whole(longest) and longest else longest


def _context_window(config: dict[str, Any], family: HuggingFaceFamily) -> Any:
    """Tokens of the longest sequence that the model is made for, 0 where nothing limits it: linear position
    biases (ALiBi) go on.

    Interpolated rotary positions multiply the length, as in `_get_and_verify_max_len` of
    github.com/vllm-project/vllm: YaRN that before the interpolation, where the config names it. Llama 3's
    and LongRoPE's configs give the length after it.
    """
    if family.unlimited_context or config.get("alibi") or _part(config, "attn_config").get("alibi"):
        return 0
    longest = _first(config, ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"))
    longest = longest or family.context_window
    scaling = _part(config, "rope_scaling")
    kind, factor = scaling.get("rope_type", scaling.get("type")), scaling.get("factor")
    before = (scaling.get("original_max_position_embeddings") if kind == "yarn" else None) or longest
    if kind not in ("yarn", "linear", "dynamic") or not isinstance(factor, int | float):
        return longest
    return round(before * factor) if 1 <= factor < _LARGEST and _is_whole(before) else longest


def _get(config: dict[str, Any], dimension: str) -> Any:
    """A dimension that every config has, under the first of its names that the config uses."""
    names = _NAMES[dimension]
    for name in names:
        if name in config:
            if isinstance(config[name], str):
                raise _Unsupported(name, f'"{config[name]}"', "a number", "write it without quotes")
            return config[name]
    raise _Unsupported(names[0], "no such key", f"the number of {dimension}", f"add {' or '.join(names)}")


def _whole(config: dict[str, Any], name: str, default: int | None = None) -> int:
    """A whole number to count or compute with, `default` where the key is absent or null.

    **Raises:** `_Unsupported` for anything else, and for an absent key without a default.
    """
    value = default if config.get(name) is None else config[name]
    if value is None:
        raise _Unsupported(name, "no such key", "a whole number", f"add {name}")
    if not _is_whole(value) or not 0 <= value < _LARGEST:
        raise _Unsupported(name, shown(value), "a whole number", "correct it")
    return value


def _first(config: dict[str, Any], names: tuple[str, ...]) -> Any:
    """The value under the first of these names whose value is not empty, or None."""
    return next((config[name] for name in names if config.get(name)), None)


def _part(config: dict[str, Any], name: str) -> dict[str, Any]:
    """A nested object, empty where there is none."""
    return config[name] if isinstance(config.get(name), dict) else {}


def _is_whole(value: Any) -> bool:
    """Whether a value is a whole number of JSON."""
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> float:
    """A dimension to compute with; 1 for what is no number, which the check of the table refuses."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and abs(value) < _LARGEST else 1
