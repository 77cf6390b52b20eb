"""Families of Hugging Face models: what their code decides where a `config.json` does not say it."""

import dataclasses
import fnmatch
import functools
from typing import Any

from diffperf.errors import ConfigError, did_you_mean
from diffperf.load.checks import shown
from diffperf.load.files import config_root, display, read_toml

_FILE = "huggingface/families.toml"


@dataclasses.dataclass(frozen=True)
class HuggingFaceFamily:
    """What the code of a family implies; the defaults are Llama's.

    - `decoder`: whether its models are decoder transformers; others are refused.
    - `gated`: an MLP of three matrices in place of two.
    - `biases`: of linear layers and norms; `qkv_biases`: of the query, key and value projections alone.
    - `parallel`: attention and MLP side by side.
    - `tied_embeddings`: one matrix for input and output embeddings.
    - `learned_positions`: position embeddings are learned; `extra_positions`: the rows that they have beyond
      the longest sequence.
    - `context_window`: tokens of the longest sequence where a config names none.
    - `scaled_window`: a config gives the longest sequence after the interpolation of rotary positions.
    - `unlimited_context`: positions are linear biases (ALiBi), which no length limits.
    - `full_attention_every`: of layers with sliding windows, one in so many has none; 0 for windows in all.
    - `optional_windows`: windows hold only where a config has `use_sliding_window`, and from the layer
      `max_window_layers` on.
    - `fourfold_ffn`: an MLP is four times as wide inside as outside where a config gives no dimension.
    - `experts`: layers, or some of them, are mixtures of experts, and a config says how many.
    - `shared_experts`: experts that every token visits where a config names none.
    - `dimensions`: values of keys that configs leave out where they are those of the family's code.
    """

    decoder: bool = True
    gated: bool = True
    biases: bool = False
    qkv_biases: bool = False
    parallel: bool = False
    tied_embeddings: bool = False
    learned_positions: bool = False
    extra_positions: int = 0
    context_window: int = 0
    scaled_window: bool = False
    unlimited_context: bool = False
    full_attention_every: int = 0
    optional_windows: bool = False
    fourfold_ffn: bool = False
    experts: bool = False
    shared_experts: int = 0
    dimensions: dict[str, int] = dataclasses.field(default_factory=dict)


def family_of(model_type: str) -> HuggingFaceFamily | None:
    """The family of a `model_type`, None where it is not known; without one, that of Llama.

    **Raises:** `ConfigError` for a fault of `configs/huggingface/families.toml`.
    """
    lines = [keys for name, keys in _families().items() if fnmatch.fnmatchcase(model_type, name)]
    if model_type and not lines:
        return None
    return HuggingFaceFamily(**{key: value for keys in lines for key, value in keys.items()})


@functools.cache
def _families() -> dict[str, dict[str, Any]]:
    """The keys of every line of the file, by the name or the beginning of names that it is for."""
    path = config_root() / _FILE
    return checked_families(read_toml(path), display(path))


def checked_families(table: dict[str, Any], file: str) -> dict[str, dict[str, Any]]:
    """The lines of a file of families. Raises `ConfigError` for a key or a value that none can have."""
    defaults = dataclasses.asdict(HuggingFaceFamily())
    for family, keys in table.items():
        if not isinstance(keys, dict):
            raise ConfigError(file, family, shown(keys), "a table of keys", f"write {family} = {{}}")
        for key, value in keys.items():
            where = f"{family}.{key}"
            if key not in defaults:
                hint = did_you_mean(key, list(defaults))
                raise ConfigError(file, where, f'unknown key "{key}"', "a key of a family", hint)
            if key == "dimensions":
                _check_dimensions(value, file, where)
            elif type(value) is not type(defaults[key]) or value < 0:
                is_switch = isinstance(defaults[key], bool)
                expected = "true or false" if is_switch else "a whole number of at least 0"
                raise ConfigError(file, where, shown(value), expected, "correct it")
    return table


def _check_dimensions(dimensions: Any, file: str, where: str) -> None:
    """Raises `ConfigError` for anything but a table of whole numbers above 0."""
    if not isinstance(dimensions, dict):
        raise ConfigError(file, where, shown(dimensions), "a table of keys", f"write {where} = {{}}")
    for key, value in dimensions.items():
        if type(value) is not int or value <= 0:
            raise ConfigError(file, f"{where}.{key}", shown(value), "a whole number above 0", "correct it")
