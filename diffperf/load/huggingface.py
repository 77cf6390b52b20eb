"""Hugging Face `config.json` of decoder transformers, read as the keys of a model config.

Families differ in what their files leave to their code: what a `model_type` implies is listed here. What a file says goes first.
"""

import json
from typing import Any

# Families with an MLP of two matrices; all others are read as gated.
_PLAIN = {
    "gpt2",
    "gpt_neox",
    "gpt_neo",
    "gptj",
    "codegen",
    "opt",
    "bloom",
    "falcon",
    "mpt",
    "phi",
    "gpt_bigcode",
    "starcoder2",
}
_PLAIN |= {"nemotron", "arcee"}
_BIASED = _PLAIN - {"falcon", "mpt", "nemotron", "arcee"} | {"gpt_oss"}
_QKV_BIASED = ("qwen2",)  # and qwen2_moe, qwen2_vl …
_PARALLEL = {"gptj", "codegen", "phi", "gpt_neox", "falcon", "cohere", "cohere2"}
_TIED = {"gpt2", "gpt_neo", "opt", "bloom", "falcon", "mpt", "gpt_bigcode", "starcoder2", "cohere", "cohere2"}
_TIED |= {"gemma", "gemma2", "gemma3_text"}
_LEARNED_POSITIONS = {"gpt2": 0, "gpt_neo": 0, "gpt_bigcode": 0, "opt": 2}  # rows beyond the longest sequence
_FULL_EVERY = {
    "gemma2": 2,
    "gemma3_text": 6,
    "cohere2": 4,
    "llama4_text": 4,
}  # layers between those without a window
_OTHER_FAMILIES = {
    "bert",
    "t5",
    "mamba",
    "mamba2",
    "falcon_mamba",
    "rwkv",
    "recurrent_gemma",
    "jamba",
    "zamba",
    "zamba2",
}
_OTHER_FAMILIES |= {"bamba", "falcon_h1", "minimax_text_01"}

# What the model config has no words for, by the key that gives it away.
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
_MOST_LAYERS = 2000  # more of them are left for the loader to refuse


def model_table(config: dict[str, Any]) -> dict[str, Any]:
    """The table of a `Model` from a Hugging Face config; of one that sees or hears as well, from the part for text.

    **Raises:** `KeyError((key, found, expected, remedy))` where a dimension is missing or the architecture is not a decoder
    transformer that a model config describes.
    """
    if isinstance(config.get("text_config"), dict):
        config = config | config["text_config"]
    family = str(config.get("model_type", ""))
    _refuse(config, family)
    return {
        "hidden": _get(config, "hidden"),
        "vocabulary": _get(config, "vocabulary"),
        "tied_embeddings": bool(config.get("tie_word_embeddings", family in _TIED)),
        "learned_positions": _positions(config, family),
        "mtp_layers": config.get("num_nextn_predict_layers") or 0,
        "layers": _layers(config, family),
    }


def _refuse(config: dict[str, Any], family: str) -> None:
    """Raises `KeyError` for what cannot be told as a decoder transformer."""
    if config.get("is_encoder_decoder") or family in _OTHER_FAMILIES:
        raise KeyError(("model_type", f'"{family}"', "a decoder-only transformer", "use another model"))
    told = config | _part(config, "ffn_config")
    for key, what in _UNREPRESENTED.items():
        if told.get(key):
            raise KeyError(
                (key, what, "attention and an MLP, or experts, in every layer", "not represented yet")
            )
    width = config.get("word_embed_proj_dim")
    if width is not None and width != _get(config, "hidden"):
        raise KeyError(
            (
                "word_embed_proj_dim",
                _json(width),
                "embeddings as wide as the residual stream",
                "not represented yet",
            )
        )


def _layers(config: dict[str, Any], family: str) -> list[dict[str, Any]]:
    """A table for each kind of layers, in the order in which they first appear."""
    count = _get(config, "layers")
    if not _is_whole(count) or not 1 <= count <= _MOST_LAYERS:
        return [_layer(config, family, sparse=False, window=None) | {"count": count}]
    experts = _first(config, _EXPERTS) not in (None, 1)
    sparse = [experts and _is_sparse(config, index) for index in range(count)]
    kinds = list(zip(sparse, _windows(config, family, count), strict=True))
    return [_layer(config, family, *kind) | {"count": kinds.count(kind)} for kind in dict.fromkeys(kinds)]


def _layer(config: dict[str, Any], family: str, sparse: bool, window: Any) -> dict[str, Any]:
    """The table of one kind of layers, without their count."""
    plain, biases = family in _PLAIN, _biases(config, family)
    table = {
        "heads": _get(config, "heads"),
        "gated": not plain,
        "biases": biases,
        "dropout": any(config.get(name) for name in _DROPOUT),
        "qkv_biases": not biases and bool(config.get("attention_bias") or family.startswith(_QKV_BIASED)),
        "parallel": _parallel(config, family),
    }
    if window is not None:
        table["window"] = window
    return table | _attention(config, family) | _mlp(config, family, sparse)


def _attention(config: dict[str, Any], family: str) -> dict[str, Any]:
    """Heads of keys and values, and the dimensions of one; with a latent where they are projections of one."""
    heads = _get(config, "heads")
    if config.get("kv_lora_rank") is None:
        head_dim = config.get("head_dim") or _number(_get(config, "hidden")) / max(_number(heads), 1)
        return {"kv_heads": _kv_heads(config, family, heads), "head_dim": head_dim}
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


def _kv_heads(config: dict[str, Any], family: str, heads: Any) -> Any:
    """Heads of keys and values. Falcon-7B gives a number that only holds in the newer of its family's architectures."""
    grouped = (
        config.get("num_key_value_heads")
        or config.get("num_kv_heads")
        or _part(config, "attn_config").get("kv_n_heads")
    )
    if family == "falcon" and not config.get("new_decoder_architecture"):
        grouped = None
    return grouped or (1 if config.get("multi_query") else heads)


def _mlp(config: dict[str, Any], family: str, sparse: bool) -> dict[str, Any]:
    """The inner dimension of an MLP or an expert, and the mixture of these."""
    ffn = _first(config, _FFN) or _whole(config, "expansion_ratio", 4) * _number(_get(config, "hidden"))
    if not sparse:  # Llama 4 keeps `intermediate_size` for the experts
        return {"ffn": config.get("intermediate_size_mlp") or ffn}
    expert = config.get("moe_intermediate_size") or ffn
    shared = max(_whole(config, name, 0) for name in _SHARED_EXPERTS) or int(family == "llama4_text")
    mixture = {
        "experts": _first(config, _EXPERTS),
        "experts_per_token": _get(config, "experts per token"),
        "shared_ffn": _first(config, _SHARED_FFN) or shared * _number(expert),
    }
    return {"ffn": expert, "mixture": mixture}


def _is_sparse(config: dict[str, Any], index: int) -> bool:
    """Whether a layer of a model with experts has them: not the leading dense ones, and of the others every n-th."""
    if isinstance(config.get("moe_layers"), list):
        return index in config["moe_layers"]
    if isinstance(config.get("moe_layer_freq"), list):
        return any(config["moe_layer_freq"][index : index + 1])
    dense = config.get("mlp_only_layers")
    leading, period = _whole(config, "first_k_dense_replace", 0), _whole(config, "moe_layer_freq", 1)
    step = _whole(config, "decoder_sparse_step", 1) * _whole(config, "interleave_moe_layer_step", 1)
    regular = index >= leading and index % max(period, 1) == 0 and (index + 1) % max(step, 1) == 0
    return regular and not (isinstance(dense, list) and index in dense)


def _windows(config: dict[str, Any], family: str, count: int) -> list[Any]:
    """The window of each layer, None where it sees all tokens.

    Llama 4's attention within chunks is told as a window of a chunk: exact up to that length, and at most twice as many tokens
    beyond it.
    """
    types = config.get("layer_types") or config.get("attention_layers")
    if types is not None:
        _check_types(types, count)
    window = max(
        _whole(config, name, 0) for name in ("sliding_window", "attention_chunk_size", "window_size")
    )
    if not window or not config.get("use_sliding_window", not family.startswith("qwen")):
        return [None] * count
    if types is not None:
        return [window if kind in _WINDOWED else None for kind in types]
    rotary = config.get(
        "no_rope_layers"
    )  # of Llama 4: 0 for those without rotary positions, which see all tokens
    if isinstance(rotary, list) and rotary:
        return [window if any(rotary[index : index + 1]) else None for index in range(count)]
    first = _whole(config, "max_window_layers", 0) if family.startswith("qwen") else 0
    period = _whole(
        config, "sliding_window_pattern", _whole(config, "no_rope_layer_interval", _FULL_EVERY.get(family, 0))
    )
    return [
        None if index < first or (period and (index + 1) % period == 0) else window for index in range(count)
    ]


def _check_types(types: Any, count: int) -> None:
    """Raises `KeyError` unless there is one known type of attention for each layer."""
    if not isinstance(types, list) or len(types) != count:
        raise KeyError(
            ("layer_types", _json(types), f"the type of each of the {count} layers", "correct the list")
        )
    for kind in types:
        if not isinstance(kind, str) or kind not in _FULL | _WINDOWED:
            raise KeyError(
                (
                    "layer_types",
                    _json(kind),
                    "one of " + ", ".join(sorted(_FULL | _WINDOWED)),
                    "not represented yet",
                )
            )


def _biases(config: dict[str, Any], family: str) -> bool:
    """Whether linear layers and norms have biases."""
    for name in ("bias", "use_bias"):
        if name in config:
            return bool(config[name])
    return not config["no_bias"] if "no_bias" in config else family in _BIASED


def _parallel(config: dict[str, Any], family: str) -> bool:
    """Whether attention and MLP are side by side."""
    told = config.get("use_parallel_residual", config.get("parallel_attn", family in _PARALLEL))
    return bool(told or config.get("new_decoder_architecture"))


def _positions(config: dict[str, Any], family: str) -> Any:
    """Rows of a learned position embedding."""
    if family == "mpt":  # with neither of the other two
        attention = _part(config, "attn_config")
        return (
            (config.get("max_seq_len") or 0)
            if attention.get("alibi") is False and not attention.get("rope")
            else 0
        )
    if family not in _LEARNED_POSITIONS:
        return 0
    longest = _first(config, ("max_position_embeddings", "n_positions")) or 0
    return longest + _LEARNED_POSITIONS[family] if _is_whole(longest) and longest else longest


def _get(config: dict[str, Any], what: str) -> Any:
    """A dimension that every config has, under whichever name."""
    for name in _NAMES[what]:
        if name in config:
            return config[name]
    expected = " or ".join(_NAMES[what])
    raise KeyError((_NAMES[what][0], "no such key", f"the number of {what}", f"add {expected}"))


def _whole(config: dict[str, Any], name: str, default: int | None = None) -> int:
    """A whole number to count or compute with, needed where there is no default."""
    value = default if config.get(name) is None else config[name]
    if value is None:
        raise KeyError((name, "no such key", "a whole number", f"add {name}"))
    if not _is_whole(value) or not 0 <= value < 1e18:
        raise KeyError((name, _json(value), "a whole number", "correct it"))
    return value


def _first(config: dict[str, Any], names: tuple[str, ...]) -> Any:
    """The value under the first of these names that has one, or None."""
    return next((config[name] for name in names if config.get(name)), None)


def _part(config: dict[str, Any], name: str) -> dict[str, Any]:
    """A nested object, empty where there is none."""
    return config[name] if isinstance(config.get(name), dict) else {}


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> float:
    """A dimension to compute with; what is not a number is left for the loader to name."""
    return (
        value if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18 else 1
    )


def _json(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)[:80]
