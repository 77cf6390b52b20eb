"""Lines of configs/huggingface/families.toml: which of them a model_type has, and what is wrong with one."""

import dataclasses

import pytest
from helpers import check_error

from diffperf.errors import ConfigError
from diffperf.load import config_root, read_toml
from diffperf.load.huggingface_families import HuggingFaceFamily, checked_families, family_of

LLAMA = HuggingFaceFamily()


def test_a_family_has_the_lines_of_its_name_and_of_its_beginning():
    """qwen2_moe begins like qwen2; gemma2 alone of the gemmas alternates windows two by two."""
    qwen2 = dataclasses.replace(LLAMA, qkv_biases=True, optional_windows=True)
    assert family_of("qwen2") == qwen2
    assert family_of("qwen2_moe") == dataclasses.replace(qwen2, experts=True)
    assert family_of("gemma2") == dataclasses.replace(LLAMA, tied_embeddings=True, full_attention_every=2)
    assert family_of("gemma3n_text") == LLAMA
    assert family_of("") == LLAMA


def test_names_without_a_star_are_whole():
    """Phi-3 is no Phi, and nothing is known of what an `opt_next` would be."""
    assert family_of("phi3") == LLAMA
    assert family_of("phi") == dataclasses.replace(LLAMA, gated=False, biases=True, parallel=True)
    assert family_of("opt_next") is None


def test_a_name_goes_before_its_beginning():
    """MiniMax-M2 is built like Llama, and MiniMax-Text-01 has linear attention."""
    assert family_of("minimax_m2").decoder
    assert not family_of("minimax_text_01").decoder


def test_no_line_repeats_a_default():
    defaults = dataclasses.asdict(LLAMA)
    lines = read_toml(config_root() / "huggingface" / "families.toml")
    repeated = {(family, key) for family, keys in lines.items() for key in keys if keys[key] == defaults[key]}
    assert repeated == set()


@pytest.mark.parametrize(
    ("line", "key", "words"),
    [
        (True, "mine", "a table of keys"),
        ({"gate": False}, "mine.gate", 'did you mean "gated"?'),
        ({"gated": 1}, "mine.gated", "true or false"),
        ({"context_window": True}, "mine.context_window", "a whole number of at least 0"),
        ({"context_window": -1}, "mine.context_window", "a whole number of at least 0"),
        ({"dimensions": 3}, "mine.dimensions", "a table of keys"),
        ({"dimensions": {"vocab_size": 0}}, "mine.dimensions.vocab_size", "a whole number above 0"),
        ({"dimensions": {"vocab_size": "8"}}, "mine.dimensions.vocab_size", "a whole number above 0"),
        ({"extra_positions": "2"}, "mine.extra_positions", "a whole number of at least 0"),
    ],
)
def test_a_wrong_line_is_named(line, key, words):
    with pytest.raises(ConfigError) as caught:
        checked_families({"mine": line}, "families.toml")
    check_error(caught.value)
    assert caught.value.key == key
    assert words in str(caught.value)
