"""A sweep: every point of a space, with a table of all of them or only with what the space asks to keep."""

import contextlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from diffperf.errors import ConfigError
from diffperf.explore.sweep.designed_points import configuration_of, made
from diffperf.explore.sweep.device_sizes import usual_chunk, usual_threads
from diffperf.explore.sweep.output_file import check_output_file, only_writer
from diffperf.explore.sweep.part_cluster import Cluster, parts_by_cluster
from diffperf.explore.sweep.part_program import PartProgram
from diffperf.explore.sweep.part_threads import parts_by_threads
from diffperf.explore.sweep.results_folder import ResultsFolder, check_folder
from diffperf.explore.sweep.space import Space
from diffperf.explore.sweep.sweep_plan import SweepPlan, usual_dtype
from diffperf.explore.sweep.sweep_result import SweepResult
from diffperf.explore.sweep.sweep_run import Estimate, SweepRun
from diffperf.workload.rules import first_violation

# Points whose broken rules are looked up where a whole space has no possible layout.
_EXPLAINED_POINTS = 64


def parts_folder(path: Path) -> Path:
    """The folder where a sweep that writes a table to `path` keeps its finished parts until all are there."""
    return path.with_name(path.name + ".parts")


def sweep(
    space: Space,
    path: str | Path | None = None,
    *,
    results: str | Path | None = None,
    checkpoints: str | Path | None = None,
    dtype: DTypeLike | None = None,
    chunk: int | None = None,
    threads: int | None = None,
    cluster: Cluster | None = None,
    progress: Callable[[int], None] = lambda points: None,
) -> SweepResult:
    """Estimates every point of a space, and keeps what the space asks for.

    **Arguments:**

    - `path`: the Parquet file for a table of all points; without a table, the size of the space is limited by
      time alone.
    - `results`: the folder for a manifest, the summaries of all parts and the answer; where the space says
      `table`, also for a table of all points, a Parquet file for every part.
    - `checkpoints`: the same where neither is asked for; this folder is deleted at the end.
    - `dtype`: the precision to compute in; by default double for spaces of few points and single for others.
      What is kept beside a table is in double precision always. Points that single precision takes for
      equal to a point of the Pareto front, within 1e-7, may be missing from the front.
    - `chunk`: points per call of the compiled program, and per row group of a table, rounded up to whole
      blocks; by default what keeps the cores, or the GPU, busy.
    - `threads`: parts estimated at once, by default one a core, or a few where a GPU estimates them.
    - `cluster`: workers that estimate the parts in place of threads of this process.
    - `progress`: called with a number of points each time so many more are done.

    Interrupted by any exception, or killed, a sweep leaves its finished parts in `results`,
    `parts_folder(path)` or `checkpoints`; the same call goes on from them, to the same bytes.

    **Raises:** `ConfigError` where an output cannot be written, holds another sweep, or is being written.
    """
    file = None if path is None else Path(path)
    if file is not None:
        if results is not None and file.resolve() == Path(results).resolve():
            expected = "a file for the table, and a folder for the results"
            raise ConfigError(file, "", "both --out and --results", expected, "name two places")
        check_output_file(file)
    keep_table = file is not None or (space.table and results is not None)
    plan = SweepPlan.of(
        space, usual_dtype(space) if dtype is None else dtype, chunk or usual_chunk(), keep_table
    )
    folder = None
    if results is not None:
        folder = ResultsFolder(Path(results), plan)
    elif file is not None or checkpoints is not None:
        beside = parts_folder(file) if file else Path(str(checkpoints))
        folder = ResultsFolder(beside, plan, temporary=True)

    def prepare(plan: SweepPlan) -> Estimate:
        if cluster is not None:
            client = stack.enter_context(cluster.client())
            return lambda missing: parts_by_cluster(client, plan, missing, progress)
        program = PartProgram.compile(plan)
        return lambda missing: parts_by_threads(program, missing, threads or usual_threads(), progress)

    if folder is not None:
        check_folder(folder.folder)
    with contextlib.ExitStack() as stack:
        for output in filter(None, (file, folder and folder.folder)):
            stack.enter_context(only_writer(output))
        return SweepRun(plan=plan, folder=folder, file=file, prepare=prepare, progress=progress).result()


def excluding_constraints(space: Space) -> str:
    """Which constraints of `where` exclude the points of a space of which none is left, in one line."""
    numbers = _spread_points(space)
    compared = [made(space.point(space.digits(number), space.inputs)) for number in numbers]
    alone = [
        f'"{constraint.text}"'
        for constraint in space.where
        if not any(bool(constraint.holds(inputs)) for inputs in compared)
    ]
    if not alone:
        return "where: no constraint alone excludes every point, but all of them together do"
    verb = "excludes" if len(alone) == 1 else "exclude, each of them,"
    return f"where: {' and '.join(alone)} {verb} all of {len(numbers)} points examined"


def commonest_violation(space: Space) -> str:
    """The rule that excludes the most points of a space without possible layouts, with an example, in one
    line.

    Points evenly spread over the space are examined, and of each the first rule that it breaks.
    """
    numbers = _spread_points(space)
    counts, examples = Counter(), {}
    for number in numbers:
        inputs = configuration_of(space.point(space.digits(number), space.inputs))
        violation = first_violation(inputs, space.phase)
        if violation is not None:
            key, value, expected, remedy = violation
            counts[key, expected] += 1
            examples.setdefault((key, expected), f"{key}: found {value}; expected {expected}; {remedy}")
    if not counts:
        return "no rule is broken by the points examined"
    rule, count = counts.most_common(1)[0]
    return f"{count} of {len(numbers)} points examined break the same rule, such as {examples[rule]}"


def _spread_points(space: Space) -> list[int]:
    """Numbers of points evenly spread over a space: all of few."""
    return np.unique(np.linspace(0, space.size - 1, _EXPLAINED_POINTS).astype(np.int64)).tolist()
