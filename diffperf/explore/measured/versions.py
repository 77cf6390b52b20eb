"""Names of software with versions, as tables of measurements write them and as stacks claim them.

A stack's file claims names: `vllm` for the software of that name in any version, `vllm >= 0.11` from that
version on. Of the stacks that claim a name, the newest that is not newer than the version counts.
"""

import dataclasses
import operator
import re
from collections.abc import Iterable

Version = tuple[int, ...]  # the numbers of a release, such as (0, 11, 1); () for no version

_CLAIM = re.compile(r"(?P<name>.*?)(?:\s*>=\s*(?P<since>\d+(?:\.\d+)*))?")
# Numbers with dots, or a whole number that no letter follows, as letters do in hashes of nightly builds.
_RELEASE = r"(?P<release>\d+(?:\.\d+)+|\d+(?![a-z\d]))"


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim of a stack: texts that begin with a name (in lower case), from a version on."""

    name: str
    since: Version = ()

    @classmethod
    def parse(cls, text: str) -> "Claim":
        """The claim that an entry of a stack's file writes, such as `vllm >= 0.11`."""
        match = _CLAIM.fullmatch(text)
        assert match is not None, "the pattern matches every text"
        return cls(match["name"], _numbers(match["since"] or ""))


def newest_claim(claims: Iterable[Claim], text: str) -> Claim | None:
    """The claim that a text in lower case means; None for a text that begins with no claimed name.

    The longest of the names counts, then the newest version that is not newer than the text's; the oldest
    version where all are newer or the text says none.
    """
    named = [claim for claim in claims if text.startswith(claim.name)]
    if not named:
        return None
    name = max((claim.name for claim in named), key=len)
    generations = sorted({claim for claim in named if claim.name == name}, key=operator.attrgetter("since"))
    version = version_in(text, name)
    reached = [claim for claim in generations if claim.since <= version]
    return reached[-1] if reached else generations[0]


def version_in(text: str, name: str) -> Version:
    """The version that a text says of a software of some name; () for none.

    Texts are names with a version (`vllm 0.19.0`) or with the image of a container, whose tag may hold the
    versions of other software too (`sglang rocm/7.0:rocm7.0_ubuntu_22.04_sgl-dev-v0.5.2-rocm7.0`). The
    version is the number after a `v`, after the name's last word, or at the beginning of the tag, in this
    order. Pre-releases and post-releases count as their release.
    """
    word = re.escape(re.split(r"[^a-z]", name.strip())[-1])
    places = (rf"(?<![a-z\d])v{_RELEASE}", rf"(?<![a-z\d]){word}[ -]?{_RELEASE}", rf":{_RELEASE}")
    for place in places:
        if (match := re.search(place, text)) is not None:
            return _numbers(match["release"])
    return ()


def _numbers(release: str) -> Version:
    """The numbers of a release without zeros at the end: 1 and 1.0.0 are the same."""
    numbers = [int(number) for number in release.split(".") if number]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
