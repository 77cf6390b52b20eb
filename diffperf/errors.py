"""The one error a user sees: which file and key, what was found, what was expected, what to change."""


class ConfigError(ValueError):
    """Bad input, told in one line.

    **Arguments:**

    - `file`: the file (or "command line") the input came from.
    - `key`: dotted path of the offending key, such as `accelerator.memory.hbm.bandwidth`.
    - `found`, `expected`: what stands there, and what should.
    - `remedy`: what the user changes to go on.
    """

    def __init__(self, file: object, key: str, found: object, expected: str, remedy: str):
        self.file, self.key, self.found, self.expected, self.remedy = str(file), key, found, expected, remedy
        where = f"{self.file}: {key}" if key else self.file
        super().__init__(" ".join(f"{where}: found {found}; expected {expected}; {remedy}".split()))


def did_you_mean(word: str, known: list[str] | tuple[str, ...]) -> str:
    """The nearest known word as a hint, else the list of known words."""
    import difflib

    near = difflib.get_close_matches(word.lower(), [k.lower() for k in known], n=1, cutoff=0.6)
    if near:
        match = next(k for k in known if k.lower() == near[0])
        return f'did you mean "{match}"?'
    return "known: " + ", ".join(known)
