"""The one error that users see: which file and key, what was found and expected there, and what to change."""

import difflib
from collections.abc import Iterable, Sequence
from typing import SupportsFloat

ARGUMENTS = "arguments"  # named in place of a file where input comes from the arguments of a Python function
_MOST_LISTED = 12  # known words that an error lists where a command lists them, too


class ConfigError(ValueError):
    """Input that cannot be used, described in one line.

    **Arguments:**

    - `file`: where the input came from: a file, "command line", or "arguments" of a Python function.
    - `key`: the dotted path of the offending key, such as `accelerator.memory.hbm.bandwidth`; empty for the
      file itself.
    - `found`, `expected`: what stands there, and what should stand there.
    - `remedy`: what the user changes to go on.
    """

    def __init__(self, file: object, key: str, found: object, expected: str, remedy: str):
        self.file, self.key, self.found, self.expected, self.remedy = str(file), key, found, expected, remedy
        where = f"{self.file}: {key}" if key else self.file
        super().__init__(" ".join(f"{where}: found {found}; expected {expected}; {remedy}".split()))


class MissingKeys(ConfigError):
    """Keys that a file lacks, all of them in one line.

    `expected_at` says by key, in the order of the file's declarations, what belongs there.
    """

    def __init__(self, file: object, expected_at: dict[str, str]):
        self.expected_at = expected_at
        (key, expected), *others = expected_at.items()
        remedy = f"add {key.rpartition('.')[2]} = …"
        if others:
            listed = "; ".join(f"{other} ({text})" for other, text in others)
            extends = 'or extends = "NAME" to take all from another config'
            missing = f"{counted(len(others), 'more key')} {'is' if len(others) == 1 else 'are'} missing"
            remedy += f", {extends}; {missing}: {listed}"
        super().__init__(file, key, "no such key", expected, remedy)

    @classmethod
    def all_of(cls, problems: "Sequence[MissingKeys]") -> "MissingKeys":
        """Several as one; they are of one file."""
        expected_at = {key: text for problem in problems for key, text in problem.expected_at.items()}
        return cls(problems[0].file, expected_at)


def type_of(value: object) -> str:
    """What a value of a wrong type is: a text as it stands, anything else by its type."""
    if isinstance(value, str):
        return f'"{value}"'
    return (
        f"the class {value.__name__}"
        if isinstance(value, type)
        else f"a value of type {type(value).__name__}"
    )


def counted(number: SupportsFloat, noun: str, shown: str = "", plural: str = "") -> str:
    """A number of things, of one of them in the singular: "1 column", "2 columns", "1e+03 tokens".

    - `shown`: the number as a text; by default a whole number with its digits in groups.
    - `plural`: that of the noun; by default the noun with an s.
    """
    shown = shown or f"{float(number):,.0f}"
    return f"{shown} {noun if shown == '1' else plural or noun + 's'}"


def did_you_mean(word: object, known: Sequence[str], listing: str = "") -> str:
    """A hint: the known word that is spelled most like `word`, which may be no text; all known words where
    none is similar.

    Where `listing` names a command that lists them, it stands in place of more than a dozen known words.
    """
    if near := spelled_alike(str(word), known):
        return near
    return f"see {listing}" if listing and len(known) > _MOST_LISTED else "known: " + ", ".join(known)


def spelled_alike(word: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """A hint at the known word that is spelled most like `word`; empty where none is similar.

    `likeness` is the least share of letters that both have in the same order.
    """
    by_lower_case = {name.lower(): name for name in reversed(list(known))}
    near = difflib.get_close_matches(word.lower(), by_lower_case, n=1, cutoff=likeness)
    return f'did you mean "{by_lower_case[near[0]]}"?' if near else ""
