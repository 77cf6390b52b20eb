"""A sweep: every point of a space, with a table of all of them or only with what the space asks to keep."""

import contextlib
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from diffperf.explore.sweep.chunk_files import only_writer
from diffperf.explore.sweep.space import Space
from diffperf.explore.sweep.summary import SummaryRules
from diffperf.explore.sweep.summary_files import SummaryFiles, summary_fingerprint
from diffperf.explore.sweep.summary_sweep import Parts, summary_sweep, usual_dtype
from diffperf.explore.sweep.sweep_result import SweepResult
from diffperf.explore.sweep.table_sweep import CHUNK, table_sweep
from diffperf.workload.rules import first_violation

# Points whose broken rules are looked up where a whole space has no possible layout.
_EXPLAINED_POINTS = 64


def sweep(
    space: Space,
    path: str | Path | None = None,
    *,
    checkpoints: str | Path | None = None,
    dtype: DTypeLike | None = None,
    chunk: int = CHUNK,
    workers: int | None = None,
    progress: Callable[[int], None] = lambda points: None,
) -> SweepResult:
    """Estimates every point of a space, and keeps what the space asks for.

    **Arguments:**

    - `path`: the Parquet file for a table of all points; without it there is no table, and the size of the
      space is limited by time alone.
    - `checkpoints`: the folder for summaries of finished parts of a sweep without a table, which is
      deleted at its end.
    - `dtype`: the precision to compute and record in; by default single, and without a table double for
      spaces of few points. Without a table, what is kept is in double precision always.
    - `chunk`: points per row group and checkpoint of a table, and per call of the compiled program, rounded
      up to whole blocks.
    - `workers`: chunks or parts evaluated at once; by default one a core, of which one is left to write a
      table.
    - `progress`: called with a number of points each time so many more are done.

    Interrupted by any exception, or killed, a sweep leaves its finished chunks in `parts_folder(path)`, or
    its finished parts in `checkpoints`; the same call goes on from them.

    **Raises:** `ConfigError` where `path` cannot be written, or another sweep is writing it.
    """
    if path is not None:
        precision = np.float32 if dtype is None else dtype
        return table_sweep(
            space, Path(path), dtype=precision, chunk=chunk, workers=workers, progress=progress
        )
    precision = usual_dtype(space) if dtype is None else dtype
    options = {"dtype": precision, "chunk": chunk, "workers": workers, "progress": progress}
    if checkpoints is None:
        return summary_sweep(space, **options)
    folder = Path(checkpoints)

    def files(rules: SummaryRules, parts: Parts) -> SummaryFiles:
        return SummaryFiles(folder, summary_fingerprint(rules, parts.chunk, parts.part), rules)

    with only_writer(folder):
        result = summary_sweep(space, files=files, **options)
        with contextlib.suppress(FileNotFoundError):  # no part had to be finished
            shutil.rmtree(folder)
    return result


def commonest_violation(space: Space) -> str:
    """The rule that excludes the most points of a space without possible layouts, with an example, in one
    line.

    Points evenly spread over the space are examined, and of each the first rule that it breaks.
    """
    numbers = np.unique(np.linspace(0, space.size - 1, _EXPLAINED_POINTS).astype(np.int64))
    counts, examples = Counter(), {}
    for number in numbers.tolist():
        inputs = space.point(space.digits(number), space.inputs)
        violation = first_violation(inputs, space.phase)
        if violation is not None:
            key, value, expected, remedy = violation
            counts[key, expected] += 1
            examples.setdefault((key, expected), f"{key}: found {value}; expected {expected}; {remedy}")
    if not counts:
        return "no rule is broken by the points examined"
    rule, count = counts.most_common(1)[0]
    return f"{count} of {len(numbers)} points examined break the same rule, such as {examples[rule]}"
