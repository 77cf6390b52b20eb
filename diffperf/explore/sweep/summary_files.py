"""The files of a sweep without a table: the summary of every finished part, from which it goes on."""

import dataclasses
import hashlib
import os
import zipfile
import zlib
from pathlib import Path

import numpy as np

from diffperf.explore.sweep.chunk_files import fingerprint
from diffperf.explore.sweep.summary import COUNTS, Summary, SummaryRules


@dataclasses.dataclass(frozen=True)
class SummaryFiles:
    """The files of the summaries of a sweep's parts, one for each.

    - `folder`: where they are, which is made with the first of them.
    - `fingerprint`: the beginning of their names, which tells them from parts of any other sweep.
    """

    folder: Path
    fingerprint: str
    rules: SummaryRules

    def file(self, start: int) -> Path:
        """The file of the part whose first point has this number."""
        return self.folder / f"{self.fingerprint}-{start:018d}.npz"

    def write(self, start: int, summary: Summary) -> None:
        """Writes the summary of a part to a file that is either complete or not there."""
        self.folder.mkdir(exist_ok=True)
        best = {f"best{index}": rows for index, rows in enumerate(summary.best)}
        totals = np.array([getattr(summary, name) for name in COUNTS], np.int64)
        unfinished = self.file(start).with_suffix(".unfinished")
        with unfinished.open("wb") as stream:
            np.savez(
                stream,
                totals=totals,
                front=summary.front,
                sample=summary.sample,
                counts=summary.counts,
                **best,  # pyright: ignore[reportArgumentType]
            )
        os.replace(unfinished, self.file(start))

    def read(self, start: int) -> Summary | None:
        """The summary of a part; None where the file is missing or damaged: archives have checksums."""
        try:
            with np.load(self.file(start)) as found:
                rankings = range(len(self.rules.rankings))
                return Summary(
                    **dict(zip(COUNTS, found["totals"].tolist(), strict=True)),
                    best=tuple(found[f"best{index}"] for index in rankings),
                    front=found["front"],
                    sample=found["sample"],
                    counts=found["counts"],
                )
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
            return None


def summary_fingerprint(rules: SummaryRules, chunk: int, part: int) -> str:
    """A hash of everything that the summaries of a sweep's parts depend on."""
    space = rules.space
    kept = (
        space.rank_by,
        space.descending,
        space.objectives,
        space.histograms,
        part,
        rules.stride,
        [(ranking.path, ranking.keep) for ranking in rules.rankings],
    )
    described = fingerprint(space, chunk, rules.dtype) + repr(kept)
    return hashlib.blake2b(described.encode(), digest_size=8).hexdigest()
