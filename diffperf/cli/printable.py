"""Output in terminals and files whose encoding lacks the characters of tables and bars."""

import codecs
import io

_HANDLER = "diffperf.plain"
# What a character becomes where the encoding lacks it; "?" if it is not listed. The eighths of a bar's last
# cell are rounded to a whole cell or none.
_PLAIN = {
    **dict.fromkeys("█▉▊▋▌━╸", "#"),
    **dict.fromkeys("▍▎▏", " "),
    **dict.fromkeys("–−─", "-"),
    "×": "x",
    "·": "|",
    "±": "+/-",
    "µ": "u",
    "²": "^2",
    "³": "^3",
    "…": "...",
    "→": "->",
    "≥": ">=",
    "≤": "<=",
}


def _plain(error: UnicodeError) -> tuple[str, int]:
    """The handler of characters that cannot be encoded: their plain form, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_PLAIN.get(character, "?") for character in lacking), error.end


def make_printable(*streams: object) -> None:
    """Makes text streams write characters that their encoding lacks in a plain form, rather than fail."""
    codecs.register_error(_HANDLER, _plain)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)
