"""Hugging Face `config.json` of decoder transformers, read as the keys of a model config."""

from typing import Any

# Families with LayerNorm, biases and a two-matrix MLP; all others are read as gated and bias-free, unless the config says so.
_PLAIN = {"gpt2", "gpt_neox", "gpt_neo", "gptj", "opt", "bloom", "falcon", "mpt", "phi", "gpt_bigcode", "starcoder2"}
_LEARNED_POSITIONS = {"gpt2", "gpt_neo", "opt", "gpt_bigcode"}

# The same dimension under the names of different families, the most common first.
_NAMES = {
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "vocabulary": ("vocab_size",),
}


def _get(config: dict[str, Any], what: str) -> Any:
    for name in _NAMES[what]:
        if name in config:
            return config[name]
    expected = " or ".join(_NAMES[what])
    raise KeyError((_NAMES[what][0], "no such key", f"the number of {what}", f"add {expected}"))


def model_table(config: dict[str, Any]) -> dict[str, Any]:
    """The table of a `Model` from a Hugging Face config.

    **Raises:** `KeyError((key, found, expected, remedy))` where a dimension is missing or the architecture is not a decoder
    transformer.
    """
    family = str(config.get("model_type", ""))
    if config.get("is_encoder_decoder") or family in ("bert", "t5", "mamba", "rwkv"):
        raise KeyError(("model_type", f'"{family}"', "a decoder-only transformer", "use another model"))
    if "kv_lora_rank" in config:
        raise KeyError(("kv_lora_rank", "multi-head latent attention", "MHA, GQA or MQA", "not represented yet"))
    hidden, heads = _get(config, "hidden"), _get(config, "heads")
    plain = family in _PLAIN
    experts = config.get("num_local_experts") or config.get("num_experts") or config.get("n_routed_experts") or 1
    ffn = config.get("intermediate_size") or config.get("ffn_dim") or config.get("n_inner") or 4 * _number(hidden)
    if experts != 1 and config.get("moe_intermediate_size"):
        ffn = config["moe_intermediate_size"]
    kv_heads = config.get("num_key_value_heads") or config.get("num_kv_heads") or (1 if config.get("multi_query") else heads)
    layers = {
        "count": _get(config, "layers"),
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": config.get("head_dim") or _number(hidden) / max(_number(heads), 1),
        "ffn": ffn,
        "gated": not plain,
        "biases": plain,
        "dropout": bool(config.get("attn_pdrop") or config.get("attention_dropout") or config.get("resid_pdrop")),
        "experts": experts,
        "experts_per_token": config.get("num_experts_per_tok") or 1,
    }
    return {
        "hidden": hidden,
        "vocabulary": _get(config, "vocabulary"),
        "tied_embeddings": bool(config.get("tie_word_embeddings", plain)),
        "learned_positions": config.get("max_position_embeddings") or config.get("n_positions") or 0
        if family in _LEARNED_POSITIONS
        else 0,
        "layers": [layers],
    }


def _number(value: Any) -> float:
    """A dimension to compute with; what is not a number is left for the loader to name."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18 else 1
