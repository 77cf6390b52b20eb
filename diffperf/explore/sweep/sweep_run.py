"""The run of a sweep: finished parts are read, the others estimated and written, and all merged."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

from diffperf.explore.sweep.answer_files import write_answer
from diffperf.explore.sweep.double_precision import in_double_precision
from diffperf.explore.sweep.part_program import Part
from diffperf.explore.sweep.part_tables import merged_table
from diffperf.explore.sweep.results_folder import ResultsFolder
from diffperf.explore.sweep.summary import Summary
from diffperf.explore.sweep.sweep_plan import SweepPlan
from diffperf.explore.sweep.sweep_result import SweepResult, result_of

# From parts, by the numbers of their first points, to what is kept of each, in any order.
Estimate = Callable[[list[int]], Generator[tuple[int, Part], None, None]]


@dataclasses.dataclass(frozen=True)
class SweepRun:
    """A sweep whose outputs are locked.

    - `plan`: the sweep as it was asked for.
    - `folder`: where its parts are kept; None for nowhere.
    - `file`: the file for a table of all points; None for none.
    - `prepare`: from a plan to the function that estimates its parts; takes the time to compile.
    - `progress`: called with the number of points that an earlier run has finished.
    """

    plan: SweepPlan
    folder: ResultsFolder | None
    file: Path | None
    prepare: Callable[[SweepPlan], Estimate]
    progress: Callable[[int], None]

    def result(self) -> SweepResult:
        """The outcome of the whole sweep, in double precision where single precision overflows."""
        plan = self.folder.begin() if self.folder else self.plan
        try:
            return self._result(plan)
        except _Overflow:
            plan = self.plan.in_double_precision()
            if self.folder:
                self.folder.begin_again(plan)
            return self._result(plan)

    def _result(self, plan: SweepPlan) -> SweepResult:
        """The outcome of a plan, which is written to the folder too."""
        times = _Times()
        with self._merged(plan) as merge_rows:
            total, missing = self._finished(plan, merge_rows)
            resumed = plan.space.size - sum(map(plan.parts.size, missing))
            self.progress(resumed)
            if missing:
                total = self._estimated(plan, missing, total, merge_rows, times)
        rules = plan.rules
        if not plan.is_double:
            with times.compiling():
                rules, total = in_double_precision(rules, total)
        where = self.folder.files(plan).tables if self.folder and plan.table else None
        result = result_of(rules, total, self.file or where, resumed=resumed, **dataclasses.asdict(times))
        if self.folder:
            self.folder.end(plan, lambda place: write_answer(place, plan.space, result))
        return result

    def _finished(self, plan: SweepPlan, merge_rows: Callable[[int], None]) -> tuple[Summary, list[int]]:
        """The summary of the parts that an earlier run has finished, and the parts that are missing."""
        total, missing = plan.rules.empty(), []
        for start in plan.parts.starts:
            summary = self.folder.files(plan).read(start) if self.folder else None
            if summary is None:
                missing.append(start)
            else:
                total = plan.rules.merge([total, summary])
                merge_rows(start)
        return total, missing

    def _estimated(
        self,
        plan: SweepPlan,
        missing: list[int],
        total: Summary,
        merge_rows: Callable[[int], None],
        times: "_Times",
    ) -> Summary:
        """The summary of the finished parts and of the missing ones, which are estimated."""
        with times.compiling():
            estimate = self.prepare(plan)
        began, left = time.perf_counter(), set(missing)
        with contextlib.closing(estimate(missing)) as finished:
            for start, part in finished:
                if part.summary.unsound and not plan.is_double:
                    raise _Overflow
                if self.folder:
                    self.folder.files(plan).write(start, part)
                    merge_rows(start)
                total = plan.rules.merge([total, part.summary])
                left.remove(start)
        assert not left, f"parts that nobody has estimated: {sorted(left)}"
        times.seconds = time.perf_counter() - began
        return total

    @contextlib.contextmanager
    def _merged(self, plan: SweepPlan) -> Iterator[Callable[[int], None]]:
        """The function that takes a finished part into the file of all points, where one is asked for."""
        if self.file is None or self.folder is None:
            yield lambda start: None
            return
        table_of = self.folder.files(plan).table_file
        with merged_table(self.file, plan.space, plan.parts.starts, table_of) as table:
            yield table.add


@dataclasses.dataclass
class _Times:
    """The time that estimating and writing points takes, and compiling, in seconds."""

    seconds: float = 0.0
    compile_seconds: float = 0.0

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Counts the time inside as that of compiling."""
        began = time.perf_counter()
        yield
        self.compile_seconds += time.perf_counter() - began


class _Overflow(Exception):
    """An estimate in single precision is no number."""
