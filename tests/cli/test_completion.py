"""What the shell is offered after a part of a command, as bash asks for it."""

import pytest
from click.shell_completion import BashComplete

from diffperf.cli import cli


def offered(words: str) -> list[tuple[str, str]]:
    """Pairs of the kind and the text of what completes the last of the words."""
    *args, incomplete = words.split(" ")
    shell = BashComplete(cli, {}, "diffperf", "_DIFFPERF_COMPLETE")
    return [(item.type, item.value) for item in shell.get_completions(args, incomplete)]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("estimate gpt3-175b dgx-a", ["dgx-a100", "dgx-a100-40gb"]),
        ("estimate gpt3-175b dgx-a100 --stack megatron-l", ["megatron-lm"]),
        ("compare --models llama-3-8b,mixtral-8x7", ["llama-3-8b,mixtral-8x7b"]),
        ("cost dgx-h100 --against mi300", ["mi300x-8"]),
        ("codesign gpt3", ["gpt3-175b-under-a100-budget"]),
        ("list mem", ["memories"]),
        ("breake", ["breakeven"]),
    ],
)
def test_names_of_shipped_configs_are_offered(words, names):
    assert offered(words) == [("plain", name) for name in names]


def test_files_are_offered_where_no_config_has_such_a_name():
    assert offered("sweep ./my") == [("file", "./my")]
