"""Hugging Face `config.json` of decoder transformers, read as the keys of a model config.

What a file does not say, the code of its family (`model_type`) decides: `huggingface_families`. What a file
says goes first.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diffperf.errors import ConfigError
from diffperf.load.checks import shown
from diffperf.load.huggingface_families import HuggingFaceFamily, family_of
from diffperf.load.huggingface_quantization import quantization
from diffperf.load.huggingface_values import (
    DROPOUT,
    EXPERTS,
    FFN,
    LARGEST,
    MOST_LAYERS,
    NAMES,
    SHARED_EXPERTS,
    SHARED_FFN,
    Unsupported,
    absent,
    completed,
    dimension,
    first_given,
    is_whole,
    key_of,
    not_quoted,
    number,
    part,
    truth,
    whole,
)

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
_HEAD_DIMS = 16, 1024  # bounds of the dimension of a head
# Keys of a file that a key of a model's table may come from, but for dimensions of several names (`NAMES`).
_SOURCES = {
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_dim": ("head_dim", "qk_nope_head_dim"),
    "ffn": ("moe_intermediate_size", "intermediate_size_mlp", *FFN),
    "experts": EXPERTS,
    "shared_ffn": (*SHARED_FFN, *SHARED_EXPERTS),
    "window": ("sliding_window", "attention_chunk_size", "window_size"),
    "context_window": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    "learned_positions": ("max_position_embeddings", "n_positions", "max_seq_len"),
    "mtp_layers": ("num_nextn_predict_layers",),
    "query_rank": ("q_lora_rank",),
    "kv_rank": ("kv_lora_rank",),
    "rotary_dim": ("qk_rope_head_dim",),
    "value_dim": ("v_head_dim",),
    "groups": ("n_group",),
    "groups_visited": ("topk_group",),
} | {
    key: NAMES[meaning]
    for key, meaning in {
        "hidden": "hidden",
        "vocabulary": "vocabulary",
        "count": "layers",
        "heads": "heads",
        "experts_per_token": "experts per token",
    }.items()
}


def read_huggingface(path: Path) -> dict[str, Any]:
    """The object that a `config.json` holds. Raises `ConfigError` for what is not JSON."""
    expected, remedy = "a Hugging Face config.json", "check the file"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as problem:
        raise ConfigError(path, "", f"invalid JSON ({problem})", expected, remedy) from None
    if not isinstance(config, dict):
        raise ConfigError(path, "", f"a {type(config).__name__}", f"{expected} (an object)", remedy)
    return config


@contextlib.contextmanager
def naming_keys_of(config: dict[str, Any]) -> Iterator[None]:
    """A block in which a model is built from the table of a config: errors name the keys of the config."""
    try:
        yield
    except ConfigError as problem:
        own = _SOURCES.get(problem.key.rpartition(".")[2], ())
        config = config | part(config, "text_config")
        key = next((name for name in own if config.get(name) is not None), problem.key)
        raise ConfigError(problem.file, key, problem.found, problem.expected, problem.remedy) from None


def is_huggingface(table: dict[str, Any]) -> bool:
    """Whether a table is that of a `config.json`, rather than one with the keys of a `Model`."""
    names = ("model_type", "architectures", *NAMES["hidden"], *NAMES["layers"])
    return "layers" not in table and any(name in table for name in names)


def huggingface_table(config: dict[str, Any], file: str) -> dict[str, Any]:
    """The table of a `Model` from the table of a `config.json`. Raises `ConfigError` that names `file`."""
    try:
        return _model_table(config)
    except Unsupported as problem:
        raise ConfigError(file, *problem.args) from None


def _model_table(config: dict[str, Any]) -> dict[str, Any]:
    """The table of a `Model` from a `config.json`, of multimodal models from the part for text.

    **Raises:** `Unsupported` where a dimension is missing or the architecture is not one that a model config
    describes.
    """
    if isinstance(config.get("text_config"), dict):
        config = config | config["text_config"]
    family = _family(config)
    config = completed(config, family.dimensions)
    _refuse(config)
    return {
        "hidden": dimension(config, "hidden"),
        "vocabulary": dimension(config, "vocabulary"),
        "tied_embeddings": truth(config, "tie_word_embeddings", family.tied_embeddings),
        "learned_positions": _positions(config, family),
        "context_window": _context_window(config, family),
        "mtp_layers": config.get("num_nextn_predict_layers") or 0,
        "quantization": quantization(config),
        "layers": _layers(config, family),
    }


def _family(config: dict[str, Any]) -> HuggingFaceFamily:
    """The family of a config. Raises `Unsupported` where it is unknown, or no decoder transformer."""
    name = str(config.get("model_type", ""))
    family = family_of(name)
    if truth(config, "is_encoder_decoder") or (family is not None and not family.decoder):
        raise Unsupported("model_type", f'"{name}"', "a decoder-only transformer", "use another model")
    if family is None:
        remedy = "write llama in its place if the model is built like Llama, or a model's TOML file"
        raise Unsupported("model_type", f'"{name}"', "a family that is known here", remedy)
    return family


def _refuse(config: dict[str, Any]) -> None:
    """Raises `Unsupported` for architectures that a model config cannot describe."""
    keys = config | part(config, "ffn_config")
    for key, architecture in _UNREPRESENTED.items():
        if keys.get(key):
            expected = "attention and an MLP, or experts, in every layer"
            raise Unsupported(key, architecture, expected, "not represented yet")
    width = config.get("word_embed_proj_dim")
    if width is not None and width != dimension(config, "hidden"):
        expected = "embeddings as wide as the residual stream"
        raise Unsupported("word_embed_proj_dim", shown(width), expected, "not represented yet")


def _layers(config: dict[str, Any], family: HuggingFaceFamily) -> list[dict[str, Any]]:
    """A table of each kind of layers with its count, in the order in which the kinds first appear."""
    count = dimension(config, "layers")
    if not is_whole(count) or not 1 <= count <= MOST_LAYERS:
        return [_layer(config, family, sparse=False, window=None) | {"count": count}]
    experts = _has_experts(config, family)
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
        "heads": dimension(config, "heads"),
        "gated": family.gated,
        "biases": biases,
        "dropout": any(config.get(name) for name in DROPOUT),
        "qkv_biases": not biases and (truth(config, "attention_bias") or family.qkv_biases),
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
    scaling = part(config, "rope_scaling")
    factor, of_all = scaling.get("factor"), scaling.get("mscale_all_dim")
    if scaling.get("rope_type", scaling.get("type")) != "yarn" or not isinstance(factor, int | float):
        return False
    if scaling.get("attention_factor") is not None:
        return scaling["attention_factor"] != 1
    given = scaling.get("mscale") and of_all
    return factor > 1 and not (given and scaling["mscale"] == of_all)


def _attention(config: dict[str, Any]) -> dict[str, Any]:
    """The keys of a layer's attention: heads of keys and values, dimensions of a head, latent attention."""
    heads = dimension(config, "heads")
    if config.get("kv_lora_rank") is None:
        return {"kv_heads": _kv_heads(config, heads), "head_dim": _head_dim(config, heads)}
    latent = {
        "query_rank": whole(config, "q_lora_rank", 0),
        "kv_rank": whole(config, "kv_lora_rank"),
        "rotary_dim": whole(config, "qk_rope_head_dim"),
        "value_dim": whole(config, "v_head_dim"),
    }
    return {
        "kv_heads": heads,
        "head_dim": whole(config, "qk_nope_head_dim") + latent["rotary_dim"],
        "latent": latent,
    }


def _head_dim(config: dict[str, Any], heads: Any) -> Any:
    """The dimension of a head: that of the config, else the hidden dimension over the heads."""
    if config.get("head_dim"):
        return config["head_dim"]
    hidden = dimension(config, "hidden")
    if not is_whole(hidden) or not is_whole(heads) or heads < 1:
        return number(hidden) / max(number(heads), 1)
    low, high = _HEAD_DIMS
    if hidden % heads or not low <= hidden // heads <= high:
        found = f"{shown(hidden)} beside {key_of(config, 'heads')} = {shown(heads)}"
        expected = f"{low} to {high:,} times the heads where there is no head_dim"
        raise Unsupported(key_of(config, "hidden"), found, expected, "correct one of them, or add head_dim")
    return hidden // heads


def _kv_heads(config: dict[str, Any], heads: Any) -> Any:
    """The number of key and value heads: those of grouped or multi-query attention, else the query heads.

    Falcon-7B's file gives a number that only holds in the newer of its family's two architectures.
    """
    grouped = (
        config.get("num_key_value_heads")
        or config.get("num_kv_heads")
        or part(config, "attn_config").get("kv_n_heads")
    )
    if config.get("model_type") == "falcon" and not truth(config, "new_decoder_architecture"):
        grouped = None
    if not grouped:
        return 1 if truth(config, "multi_query") else heads
    if is_whole(grouped) and is_whole(heads) and (grouped < 1 or heads % grouped):
        key = "num_key_value_heads" if config.get("num_key_value_heads") else "num_kv_heads"
        key = key if config.get(key) else "attn_config.kv_n_heads"
        of = f"{key_of(config, 'heads')} = {heads}"
        raise Unsupported(key, f"{grouped} beside {of}", f"a divisor of {of}", "correct one of them")
    return grouped


def _mlp(config: dict[str, Any], family: HuggingFaceFamily, sparse: bool) -> dict[str, Any]:
    """The keys of a layer's MLP: its inner dimension, and the mixture where the layer has experts."""
    if not sparse:
        # Llama 4's `intermediate_size` is that of the experts; its dense layers have a key of their own.
        return {"ffn": config.get("intermediate_size_mlp") or _ffn(config, family)}
    expert = config.get("moe_intermediate_size") or _ffn(config, family)
    experts, visited = first_given(config, EXPERTS), dimension(config, "experts per token")
    if is_whole(experts) and is_whole(visited) and not 1 <= visited <= experts:
        key = next(name for name in EXPERTS if config.get(name))
        found = f"{visited} of {key} = {experts}"
        expected = f"1 to {experts} experts"
        raise Unsupported(key_of(config, "experts per token"), found, expected, "correct one of them")
    shared = max(whole(config, name, 0) for name in SHARED_EXPERTS) or family.shared_experts
    mixture = {
        "experts": experts,
        "experts_per_token": visited,
        "shared_ffn": first_given(config, SHARED_FFN) or shared * number(expert),
    }
    if whole(config, "n_group", 1) > 1:
        mixture |= {"groups": whole(config, "n_group"), "groups_visited": whole(config, "topk_group", 1)}
    return {"ffn": expert, "mixture": mixture}


def _ffn(config: dict[str, Any], family: HuggingFaceFamily) -> Any:
    """The inner dimension of an MLP: that of the config, else four times the hidden dimension in families
    whose code says so.
    """
    for name in FFN:
        if config.get(name) is not None:
            if not_quoted(config, name) == 0:
                raise Unsupported(name, shown(config[name]), "a whole number of at least 1", "correct it")
            return config[name]
    if family.fourfold_ffn:
        return whole(config, "expansion_ratio", 4) * number(dimension(config, "hidden"))
    raise absent(config, FFN, "the inner dimension of an MLP")


def _has_experts(config: dict[str, Any], family: HuggingFaceFamily) -> bool:
    """Whether some layers are mixtures of experts. Families of such models have to say how many they are."""
    if family.experts and not any(name in config for name in EXPERTS):
        raise absent(config, EXPERTS, "the number of experts of a layer, or null for none")
    return first_given(config, EXPERTS) not in (None, 1)


def _is_sparse(config: dict[str, Any], index: int) -> bool:
    """Whether the layer at an index has experts: as lists say, else every n-th after leading dense layers."""
    if isinstance(config.get("moe_layers"), list):
        return index in config["moe_layers"]
    if isinstance(config.get("moe_layer_freq"), list):
        return any(config["moe_layer_freq"][index : index + 1])
    dense = config.get("mlp_only_layers")
    leading, period = whole(config, "first_k_dense_replace", 0), whole(config, "moe_layer_freq", 1)
    step = whole(config, "decoder_sparse_step", 1) * whole(config, "interleave_moe_layer_step", 1)
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
    window = max(whole(config, name, 0) for name in ("sliding_window", "attention_chunk_size", "window_size"))
    if not window or not truth(config, "use_sliding_window", not family.optional_windows):
        return [None] * count
    if types is not None:
        return [window if kind in _WINDOWED else None for kind in types]
    # Llama 4: 0 for layers without rotary positions, which see all tokens.
    rotary = config.get("no_rope_layers")
    if isinstance(rotary, list) and rotary:
        return [window if any(rotary[index : index + 1]) else None for index in range(count)]
    unlimited = whole(config, "max_window_layers", 0) if family.optional_windows else 0
    period = whole(config, "no_rope_layer_interval", family.full_attention_every)
    period = whole(config, "sliding_window_pattern", period)
    return [
        None if index < unlimited or (period and (index + 1) % period == 0) else window
        for index in range(count)
    ]


def _check_types(types: Any, count: int) -> None:
    """Raises `Unsupported` unless there is one known type of attention for each layer."""
    if not isinstance(types, list) or len(types) != count:
        expected = f"the type of each of the {count} layers"
        raise Unsupported("layer_types", shown(types), expected, "correct the list")
    for kind in types:
        if not isinstance(kind, str) or kind not in _FULL | _WINDOWED:
            expected = "one of " + ", ".join(sorted(_FULL | _WINDOWED))
            raise Unsupported("layer_types", shown(kind), expected, "not represented yet")


def _biases(config: dict[str, Any], family: HuggingFaceFamily) -> bool:
    """Whether linear layers and norms have biases."""
    for name in ("bias", "use_bias"):
        if name in config:
            return truth(config, name)
    return not truth(config, "no_bias") if "no_bias" in config else family.biases


def _parallel(config: dict[str, Any], family: HuggingFaceFamily) -> bool:
    """Whether attention and MLP are side by side, behind one norm."""
    parallel = truth(config, "use_parallel_residual", truth(config, "parallel_attn", family.parallel))
    return parallel or truth(config, "new_decoder_architecture")


def _positions(config: dict[str, Any], family: HuggingFaceFamily) -> Any:
    """The rows of a learned position embedding, 0 without one."""
    if config.get("model_type") == "mpt":  # learned where they are neither linear biases (ALiBi) nor rotary
        attention = part(config, "attn_config")
        learned = attention.get("alibi") is False and not attention.get("rope")
        return (config.get("max_seq_len") or 0) if learned else 0
    if not family.learned_positions:
        return 0
    longest = first_given(config, ("max_position_embeddings", "n_positions")) or 0
    return longest + family.extra_positions if is_whole(longest) and longest else longest


def _context_window(config: dict[str, Any], family: HuggingFaceFamily) -> Any:
    """Tokens of the longest sequence that the model is made for, 0 where nothing limits it: linear position
    biases (ALiBi) go on.

    Interpolated rotary positions multiply the length, as in `_get_and_verify_max_len` of
    github.com/vllm-project/vllm: YaRN that before the interpolation, where the config names it. Llama 3's,
    LongRoPE's and Gemma 3's configs give the length after it.
    """
    if family.unlimited_context or truth(config, "alibi") or truth(part(config, "attn_config"), "alibi"):
        return 0
    longest = first_given(config, ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"))
    longest = longest or family.context_window
    scaling = part(config, "rope_scaling")
    kind, factor = scaling.get("rope_type", scaling.get("type")), scaling.get("factor")
    before = (scaling.get("original_max_position_embeddings") if kind == "yarn" else None) or longest
    scaled = family.scaled_window or kind not in ("yarn", "linear", "dynamic")
    if scaled or not isinstance(factor, int | float):
        return longest
    return round(before * factor) if 1 <= factor < LARGEST and is_whole(before) else longest
