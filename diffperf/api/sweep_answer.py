"""dp.sweep: every point of a declared space."""

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import RenderableType

from diffperf.api.answer import Answer
from diffperf.api.boundary import answering, asker_of
from diffperf.api.from_python import file_name, whole_number
from diffperf.api.question import describe_strategy
from diffperf.api.sweep_basis import describe_space_basis, space_basis
from diffperf.api.sweep_tables import best_table, describe_speed, part_name, quantiles_table
from diffperf.errors import ConfigError, counted
from diffperf.explore.sweep.kept_reader import keeping
from diffperf.explore.sweep.part_cluster import Cluster
from diffperf.explore.sweep.space import Space
from diffperf.explore.sweep.space_file import load_space
from diffperf.explore.sweep.sweep import commonest_violation, excluding_constraints
from diffperf.explore.sweep.sweep import sweep as run_sweep
from diffperf.explore.sweep.sweep_result import SweepResult
from diffperf.explore.whole_steps import describe_kept_rates
from diffperf.report.tables import as_dict

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

_MOST_PLOTTED = 200_000  # points of a figure: more take long to draw, and hide one another
_MOST_SHOWN = 20  # rows of a front that are printed
_MOST_IN_MEMORY = 10_000_000  # points of a table that nobody asked a file for


@answering("sweep")
def sweep(
    space: Space | str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    *,
    results: str | Path | None = None,
    table: bool | None = None,
    top: int | None = None,
    pareto: Sequence[str] | None = None,
    best_by: str | Sequence[str] | None = None,
    double: bool = False,
    workers: int | None = None,
    scheduler: str | None = None,
) -> "SweepAnswer":
    """The best points of a space, its Pareto front, and how outputs are distributed over all points.

        dp.sweep({"model": "gpt3-22b", "system": "dgx-a100", "pareto": ["time", "memory.peak"],
                  "axis": [{"path": "strategy.tp", "powers_of_two": {"from": 1, "to": 8}}]})

    **Arguments:**

    - `space`: the name of a shipped space, the path of a TOML file, or its table.
    - `out`: a Parquet file for the table of all points.
    - `results`: a folder for the answer as files and for all that is needed to go on after an interruption.
      The same call on it again takes over what is finished.
    - `table`: whether `results` has a table of all points too, a Parquet file for every part of the space.
    - `top`: how many of the best points to keep and print.
    - `pareto`: two to four outputs whose front to keep.
    - `best_by`: paths of axes; the best point of each of their values is kept too.
    - `double`: estimates all points in double precision, not only those that are kept.
    - `workers`: processes of this machine that estimate the points, in place of threads of this one.
    - `scheduler`: address of a Dask scheduler whose workers do, such as "tcp://10.0.0.1:8786".

    Both need the extra `cluster`: `pip install 'diffperf[cluster]'`.

    **Raises:** `ConfigError`, in one line.
    """
    declared = load_space(space, asker_of("sweep"), "space")
    if top is not None:
        whole_number(asker_of("sweep"), "top", top, 1, 10_000)
    kept = {"top": top, "pareto": pareto, "best_by": best_by, "table": table}
    declared = asked_to_keep(declared, kept, asker_of("sweep"))
    path, results = file_name(asker_of("sweep"), "out", out), file_name(asker_of("sweep"), "results", results)
    check_table(declared, path, results, asker_of("sweep"))
    precision = np.float64 if double else None
    cluster = cluster_of(workers, scheduler, asker_of("sweep"))
    result = run_sweep(declared, path, results=results, dtype=precision, cluster=cluster)
    return SweepAnswer(declared, result)


def asked_to_keep(space: Space, asked: Mapping[str, Any], file: str) -> Space:
    """The space with what somebody asks for, by the keys of its file, in place of what the file says; None
    leaves a key as it is.

    **Raises:** `ConfigError` that names `file`.
    """
    asked = {key: value for key, value in asked.items() if value is not None}
    lists = {key: list(value) if isinstance(value, tuple) else value for key, value in asked.items()}
    return keeping(space, lists, file) if asked else space


def check_table(space: Space, out: Path | None, results: str | Path | None, file: str) -> None:
    """Refuses a table of all points without a place for it. **Raises:** `ConfigError` that names `file`."""
    if space.table and out is None and results is None:
        expected = "a place for the table of all points"
        raise ConfigError(file, "table", "no results folder", expected, "name one (--results, results=…)")


def cluster_of(workers: int | None, scheduler: str | None, file: str) -> Cluster | None:
    """The workers that somebody asks for; None for none. **Raises:** `ConfigError` that names `file`."""
    if workers is None and scheduler is None:
        return None
    if workers is not None and scheduler is not None:
        expected = "the workers of the scheduler, or of this machine"
        raise ConfigError(file, "workers", "workers beside a scheduler", expected, "leave out one of them")
    if workers is not None:
        whole_number(file, "workers", workers, 1, 1024)
    return Cluster(workers or 0, scheduler or "", file)


@dataclasses.dataclass(frozen=True, repr=False)
class SweepAnswer(Answer):
    """Results of a sweep over a space: the best points, the front, histograms, and a table where one was
    asked for.
    """

    width: ClassVar[int] = 10_000  # no row of a table is broken

    space: Space
    result: SweepResult

    def table(self) -> pa.Table:
        """All points: their inputs, outputs, and whether they are possible and fit memory.

        Where no file was asked for, the points are estimated again. **Raises:** `ConfigError` for a space
        that is too large for that.
        """
        if self.result.path is not None:
            return pq.read_table(self.result.path)
        if self.space.size > _MOST_IN_MEMORY:
            expected = f"at most {_MOST_IN_MEMORY:,} in a table without a file"
            remedy = 'sweep with out="FILE.parquet"'
            raise ConfigError(asker_of("sweep"), "table", f"{self.space.size:,} points", expected, remedy)
        with jax.enable_x64(True), tempfile.TemporaryDirectory(prefix="diffperf-sweep-") as folder:
            path = Path(folder) / "points.parquet"
            run_sweep(self.space, path, dtype=np.float64)
            return pq.read_table(path)

    def to_frame(self, of: str = "best") -> "pandas.DataFrame":
        """A table as a data frame of pandas: the "best" points, the "front", "all" points, or the best of the
        values of an input by its path.

        **Raises:** `ConfigError` for a table that the sweep has not kept.
        """
        frame = super().to_frame()
        return frame if of == "best" else frame.__class__(self._kept(of).to_pydict())

    def _kept(self, name: str) -> pa.Table:
        """A table by its name in `to_frame`."""
        tables = {"front": self.result.front, **self.result.best_by}
        kept = self.table() if name == "all" else tables.get(name)
        if kept is None:
            known = ["best", "all", *(known for known, table in tables.items() if table is not None)]
            remedy = "ask dp.sweep for it with pareto=[…] or best_by=[…]"
            raise ConfigError(asker_of("sweep"), "of", f'"{name}"', "one of " + ", ".join(known), remedy)
        return kept

    def lines(self) -> list[RenderableType]:
        """Number of points that were estimated, the speed, and the results that were kept, or why there
        are none.
        """
        space, result = self.space, self.result
        model, system = part_name(space, "model"), part_name(space, "system")
        allowed = f", {result.points:,} of them allowed by where" if space.where else ""
        counts = f"{counted(space.size, 'point')}{allowed}: {counted(result.feasible, 'possible layout')}"
        lines: list[RenderableType] = [
            f"[bold]{space.name}: {model} {space.phase} on {system}[/bold]",
            *self._described_inputs(),
            f"{counts}, {result.fitting:,} of them fit memory",
            describe_space_basis(space),
            *describe_kept_rates([axis.path for axis in space.axes], system),
            describe_speed(result),
        ]
        if result.unsound:
            lines.append(
                f"[bold red]{result.unsound:,} of these overflow single precision and are left out: compute"
                " in double precision[/bold red]"
            )
        if not result.points:
            lines += ["[bold red]No point of the space is left[/bold red]", excluding_constraints(space)]
        elif not result.feasible:
            lines += [
                "[bold red]No point of the space is a possible layout[/bold red]",
                commonest_violation(space),
            ]
        elif not result.fitting:
            lines.append("[bold red]No possible layout of the space fits memory[/bold red]")
        else:
            lines += self._kept_lines()
        return lines if result.path is None else [*lines, f"Table: {result.path}"]

    def _kept_lines(self) -> list[RenderableType]:
        """The tables of what was kept, each below its title."""
        space, result = self.space, self.result
        order = "largest" if space.descending else "smallest"
        lines = ["", f"Best by {space.rank_by}, {order} first", best_table(space, result.best)]
        for path, rows in result.best_by.items():
            lines += ["", f"Best by {space.rank_by} of every {path}", best_table(space, rows, path)]
        if result.front is not None:
            names = ", ".join(path for path, _ in space.objectives)
            step = -(-result.front.num_rows // _MOST_SHOWN)
            shown = result.front.take(np.arange(0, result.front.num_rows, step))
            some = f", {shown.num_rows} of them" if step > 1 else ""
            title = f"Pareto front of {names}: {counted(result.front.num_rows, 'point')}{some}"
            lines += ["", title, best_table(space, shown)]
        if space.histograms:
            lines += ["", "Layouts that fit memory", quantiles_table(space, result.histograms)]
        return [*lines, ""]

    def _described_inputs(self) -> list[str]:
        """A line of what is the same at every point, the devices and the strategy; none where all differs."""
        paths = {axis.path for axis in self.space.axes}
        devices = int(self.space.inputs.system.n_devices)
        shown = [] if paths & {"system", "system.n_devices"} else [counted(devices, "device")]
        shown.append(describe_strategy(self.space.inputs.strategy, self.space.phase, self._varied))
        text = " · ".join(filter(None, shown))
        return [f"At every point: {text}"] if text else []

    @property
    def _varied(self) -> list[str]:
        """The fields of the strategy that differ between points: axes, and what follows from them."""
        paths = [axis.path for axis in self.space.axes] + sorted(self.space.derived)
        return [path.removeprefix("strategy.") for path in paths]

    def rows(self) -> list[dict[str, Any]]:
        """The best points, in internal units."""
        return self.result.best.to_pylist()

    def to_dict(self) -> dict[str, Any]:
        """What is the same at every point, counts, times, and what was kept."""
        numbers = ("points", "feasible", "fitting", "resumed", "seconds", "points_per_second")
        space, result, varied = self.space, self.result, self._varied
        strategy = as_dict(space.inputs.strategy)
        return {
            "name": space.name,
            "model": part_name(space, "model"),
            "system": part_name(space, "system"),
            "phase": space.phase,
            "strategy": {name: value for name, value in strategy.items() if name not in varied},
            "table": None if result.path is None else str(result.path),
            "basis": space_basis(self.space),
            "rank_by": self.space.rank_by,
            "descending": self.space.descending,
            **{name: getattr(result, name) for name in numbers},
            "best": self.rows(),
            "best_by": {path: rows.to_pylist() for path, rows in result.best_by.items()},
            "pareto": [path for path, _ in self.space.objectives],
            "front": None if result.front is None else result.front.to_pylist(),
            "histograms": {path: histogram.rows() for path, histogram in result.histograms.items()},
        }

    def figure(self) -> "Figure":
        """The first two objectives of the front, or the ranked output against the peak of the memory, with
        a cloud of at most a few hundred thousand points."""
        from diffperf.report import plots

        space, result = self.space, self.result
        across, up = "memory.peak" if space.rank_by != "memory.peak" else "time", space.rank_by
        if space.objectives:
            (across, _), (up, _), *_ = space.objectives
        rows, fits = self._cloud(list({across, up}))
        x, y = (
            plots.Column(
                rows[path].to_numpy(),
                space.outputs[path],
                plots.output_name(path, space.outputs[path]),
            )
            for path in (across, up)
        )
        first = result.best.slice(0, 1).to_pylist()
        best = (first[0][across], first[0][up]) if first else None
        front = (
            None if result.front is None else tuple(result.front[path].to_numpy() for path in (across, up))
        )
        title = f"{space.name}: {result.feasible:,} possible layouts of {part_name(space, 'model')}"
        return plots.scatter(x, y=y, fits=fits, best=best, title=title, front=front)

    def _cloud(self, columns: list[str]) -> tuple[pa.Table, np.ndarray]:
        """Points for a figure, and which of them fit memory: possible layouts of the table, or where there is
        none, or one that is too large for memory, the sample, of layouts that fit."""
        if self.result.path is None or self.space.size > _MOST_IN_MEMORY:
            sample = self.result.sample.select(columns)
            return sample, np.ones(sample.num_rows, dtype=bool)
        rows = pq.read_table(self.result.path, columns=[*columns, "feasible", "fits"])
        rows = rows.take(np.flatnonzero(rows["feasible"].to_numpy()))
        rows = rows.take(np.arange(0, rows.num_rows, max(1, rows.num_rows // _MOST_PLOTTED)))
        return rows, rows["fits"].to_numpy()
