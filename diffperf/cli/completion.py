"""Names that the shell offers when a user presses the tabulator after a part of a config's name."""

from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

from diffperf.load.files import available, config_root

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def names_of(folder: str) -> Completer:
    """Completes the shipped configs of a folder, in a list with commas the last one; else files."""

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, begun = incomplete.rpartition(",")
        names = [name for name in available(folder) if name.startswith(begun)]
        items = [CompletionItem(before + comma + name) for name in names]
        return items or [CompletionItem(incomplete, type="file")]

    return complete


def kinds(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completes the kinds of configs that there are."""
    folders = sorted(path.name for path in config_root().iterdir() if path.is_dir())
    return [CompletionItem(name) for name in folders if name.startswith(incomplete)]
