"""The parts of a space: ranges of its points that are estimated apart, in any order, by any worker."""

import dataclasses
import itertools
import math
from collections.abc import Iterator

from diffperf.explore.sweep.device_sizes import BLOCK, CHUNK
from diffperf.explore.sweep.space import Space

_PARTS = 32  # of a sweep, about, as long as parts have chunks within these limits
# Chunks of a part: the first of them is slow, because no earlier points leave others out; all together are
# some ten seconds of work, which an interrupted sweep loses.
_CHUNKS = (4, 256)
_TABLE_CHUNKS = (4, 16)  # the same of a table, whose rows a part holds in memory


@dataclasses.dataclass(frozen=True)
class Parts:
    """The parts of a space.

    - `chunk`: points of a chunk, a multiple of `BLOCK`.
    - `part`: points of a part, a multiple of `chunk`; the last part has what is left of the space.
    - `borders`: the numbers of the first points of regions, which no chunk crosses, and the number of all
      points.
    """

    chunk: int
    part: int
    borders: tuple[int, ...]

    @classmethod
    def of(cls, space: Space, chunk: int = CHUNK, table: bool = False) -> "Parts":
        """The parts of a space, with a table of all points or without; they depend on nothing else, so that
        a sweep can go on on another machine."""
        chunk = BLOCK * math.ceil(min(chunk, max(region.size for region in space.regions)) / BLOCK)
        fewest, most = _TABLE_CHUNKS if table else _CHUNKS
        chunks = math.ceil(math.ceil(space.size / chunk) / _PARTS)
        borders = (*(region.start for region in space.regions), space.size)
        return cls(chunk, chunk * min(max(chunks, fewest), most), borders)

    @property
    def starts(self) -> range:
        """The number of every part's first point."""
        return range(0, self.borders[-1], self.part)

    def stop(self, start: int) -> int:
        """The number of the point after a part."""
        return min(start + self.part, self.borders[-1])

    def size(self, start: int) -> int:
        """The number of points of a part."""
        return self.stop(start) - start

    def chunks(self, start: int) -> Iterator[tuple[int, int]]:
        """The first number of every chunk of a part, and the number after it."""
        inside = [border for border in self.borders if start < border < self.stop(start)]
        for begin, end in itertools.pairwise([start, *inside, self.stop(start)]):
            for first in range(begin, end, self.chunk):
                yield first, min(first + self.chunk, end)
