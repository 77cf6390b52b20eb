"""Values of a Hugging Face `config.json`: the names of keys, and what their values may be."""

from typing import Any

from diffperf.errors import spelled_alike
from diffperf.load.checks import shown

# The same dimension under the names of different families, the most common first.
NAMES = {
    "hidden": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "vocabulary": ("vocab_size",),
    "experts per token": ("num_experts_per_tok", "num_experts_per_token"),
}
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
SHARED_EXPERTS = ("n_shared_experts", "num_shared_experts")
SHARED_FFN = ("shared_expert_intermediate_size", "shared_intermediate_size")
FFN = ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner")
DROPOUT = ("attn_pdrop", "resid_pdrop", "attention_dropout", "hidden_dropout", "dropout")
# Keys of other meanings that are spelled like those of dimensions, and the least likeness of a misspelled
# one.
_OTHER_KEYS = {
    "moe_intermediate_size", "intermediate_size_mlp", "expert_intermediate_size", "num_key_value_heads",
    "num_experts_per_tok", "num_experts_per_token", *SHARED_EXPERTS, *SHARED_FFN,
}  # fmt: skip
_ALIKE = 0.8
# Larger numbers are not computed with: they go into the table as they are, for the bounds of the fields to
# refuse.
MOST_LAYERS = 2000
LARGEST = 1e18


class Unsupported(Exception):
    """A key of a `config.json` that no model config can be made from: (key, found, expected, remedy)."""


def key_of(config: dict[str, Any], meaning: str) -> str:
    """The first of the names of a dimension that the config uses; the most common one where it has none."""
    names = NAMES[meaning]
    return next((name for name in names if name in config), names[0])


def dimension(config: dict[str, Any], meaning: str) -> Any:
    """A dimension that every config has, under the first of its names that the config uses."""
    name = key_of(config, meaning)
    if name not in config:
        raise absent(config, NAMES[meaning], f"the number of {meaning}")
    return not_quoted(config, name)


def not_quoted(config: dict[str, Any], name: str) -> Any:
    """The value of a key. Raises `Unsupported` for a text."""
    if isinstance(config[name], str):
        raise Unsupported(name, f'"{config[name]}"', "a number", "write it without quotes")
    return config[name]


def absent(config: dict[str, Any], names: tuple[str, ...], expected: str) -> Unsupported:
    """The error of a key that the config lacks under all of its names, with the key that is spelled alike."""
    known = _OTHER_KEYS.union(FFN, EXPERTS, *NAMES.values())
    unknown = [key for key in config if key not in known]
    hints = (spelled_alike(name, unknown, _ALIKE) for name in names)
    hint = next(filter(None, hints), "")
    return Unsupported(names[0], "no such key", expected, hint or _addition(names))


def _addition(names: tuple[str, ...]) -> str:
    """The remedy for a key that is absent under all of its names."""
    return f"add {' or '.join(names)}"


def completed(config: dict[str, Any], dimensions: dict[str, int]) -> dict[str, Any]:
    """A config with the dimensions of its family's code where it has none of their names.

    **Raises:** `Unsupported` where the config has a key that is spelled like one that it lacks: what was
    meant is not left to a default.
    """
    result = dict(config)
    for key, value in dimensions.items():
        names = next((names for names in NAMES.values() if key in names), (key,))
        if any(name in config for name in names):
            continue
        wrong = absent(config, names, f"a value of {key}, or none for {value:,}")
        if wrong.args[3] != _addition(names):
            raise wrong
        result[key] = value
    return result


def truth(config: dict[str, Any], name: str, default: Any = False) -> bool:
    """Whether a key is true, `default` where it is absent or null. Raises `Unsupported` for a text."""
    value = default if config.get(name) is None else config[name]
    if isinstance(value, str):
        raise Unsupported(name, shown(value), "true or false", "write it without quotes")
    return bool(value)


def whole(config: dict[str, Any], name: str, default: int | None = None) -> int:
    """A whole number to count or compute with, `default` where the key is absent or null.

    **Raises:** `Unsupported` for anything else, and for an absent key without a default.
    """
    value = default if config.get(name) is None else config[name]
    if value is None:
        raise Unsupported(name, "no such key", "a whole number", f"add {name}")
    if not is_whole(value) or not 0 <= value < LARGEST:
        raise Unsupported(name, shown(value), "a whole number", "correct it")
    return value


def first_given(config: dict[str, Any], names: tuple[str, ...]) -> Any:
    """The value under the first of these names whose value is not empty, or None."""
    return next((config[name] for name in names if config.get(name)), None)


def part(config: dict[str, Any], name: str) -> dict[str, Any]:
    """A nested object, empty where there is none."""
    return config[name] if isinstance(config.get(name), dict) else {}


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number of JSON."""
    return isinstance(value, int) and not isinstance(value, bool)


def number(value: Any) -> float:
    """A dimension to compute with; 1 for what is no number, which the check of the table refuses."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and abs(value) < LARGEST else 1
