"""dp.compare: systems × models × phases in one table, the best layout of each."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from diffperf.api.answer import Answer
from diffperf.api.boundary import answering, asker_of
from diffperf.api.compare_table import comparison_lines
from diffperf.api.compared import FIGURES, Compared
from diffperf.api.from_python import asked, phase_of
from diffperf.api.question import Question, describe_strategy, described_overrides
from diffperf.errors import ConfigError, did_you_mean
from diffperf.explore.plan.candidates import LAYOUT
from diffperf.load import load_calibration, load_strategy, load_system

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Fields of a strategy that titles and rows have.
_IN_TABLES = (
    *(*LAYOUT, "micro_batch", "recompute", "zero"),
    *("global_batch", "sequence_length", "output_length", "precision"),
)


@answering("compare", model="models", system="systems", stack="stacks", phase="phases")
def compare(
    models: Any,
    systems: Any,
    phases: str | Sequence[str] = "training",
    *,
    stacks: Any = None,
    against: str | None = None,
    devices: float | None = None,
    calibration: Any = None,
    set: Mapping[str, Any] | None = None,
    **strategy: Any,
) -> "CompareAnswer":
    """Models on systems in phases, and under stacks: the best layout of each, and what it is worth.

        dp.compare(["llama-3-8b", "llama-2-70b"], ["dgx-a100", "dgx-h100"], "generate", devices=8)

    **Arguments:**

    - `models`, `systems`, `phases`, `stacks`: one, or a list, of what `dp.estimate` takes. Without `stacks`
      every system has its own.
    - `against`: the name of a system of the comparison, which adds the ratios to it.
    - `calibration`: other fitted values of the systems with its accelerator, or "none" for all systems.
    - `devices`, `set`, `strategy`: as of `dp.estimate`, for all.

    A configuration that does not fit memory, or of which no layout is possible, has a `problem` in place of
    figures. **Raises:** `ConfigError`, in one line, also for a mistake that leaves no system a layout.
    """
    asker = asker_of("compare")
    names = [phase_of(asker, phase) for phase in several(phases)]
    own = ("models", "systems", "phases", "stacks", "against", "devices", "calibration", "set")
    compared = several(systems)
    calibration_of_each = calibrations(compared, calibration, asker)
    fitted = {id(system): its for system, its in zip(compared, calibration_of_each, strict=True)}

    def question(model: Any, system: Any, stack: Any) -> Question:
        return asked(
            "compare",
            model,
            system,
            devices=devices,
            stack=stack,
            calibration=fitted[id(system)],
            set=set,
            strategy=strategy,
            others=own,
        )

    stacked = [None] if stacks is None else several(stacks)
    return CompareAnswer.of(
        question,
        models=several(models),
        systems=compared,
        phases=names,
        stacks=stacked,
        against=against,
        asker=asker,
    )


def calibrations(systems: Sequence[Any], calibration: Any, asker: str) -> list[Any]:
    """The calibration of every system of a comparison: the one that is given where it is of the system's
    accelerator or "none", else None for the system's own.

    **Raises:** `ConfigError` for a calibration that is of no accelerator of the comparison.
    """
    if calibration is None or calibration == "none":
        return [calibration] * len(systems)
    fitted = load_calibration(calibration, asker, "calibration")
    bare = [load_system(system, calibration="none", file=asker, key="systems") for system in systems]
    chosen = [fitted if fitted.hardware in system.accelerator.lineage else None for system in bare]
    if not any(chosen):
        expected = f"one of {', '.join(dict.fromkeys(str(system.accelerator.name) for system in bare))}"
        remedy = "name another one, or leave it out"
        raise ConfigError(asker, "calibration", f"a calibration of {fitted.hardware}", expected, remedy)
    return chosen


def _overrides(questions: Sequence[Question]) -> dict[str, str]:
    """What a user overrides in all questions, in one text for each input: which value it had in which system,
    or which model, where that differs.
    """
    result = {}
    for path in dict.fromkeys(path for question in questions for path in question.overrides):
        part = "model" if path.startswith("model.") else "system"
        names: dict[str, dict[str, None]] = {}
        for question in questions:
            if path in question.overrides:
                names.setdefault(question.overrides[path], {})[str(getattr(question, part).name)] = None
        texts = [f"{text} for {', '.join(named)}" for text, named in names.items()]
        result[path] = ", ".join(texts) if len(texts) > 1 else next(iter(names))
    return result


def several(given: Any) -> list[Any]:
    """A list of what is given one by one or in a list."""
    return list(given) if isinstance(given, list | tuple) else [given]


@dataclasses.dataclass(frozen=True, repr=False)
class CompareAnswer(Answer):
    """The cells of a comparison: model by model, phase by phase, the systems beside each other.

    - `against`: the name of the system that the others are compared with; None for none.
    - `overrides`: the inputs that the user sets by path, with their values and those before, as texts.
    - `given`: the fields of the strategy that the user gives and that no title and no row has, in one line.
    """

    cells: list[Compared]
    against: str | None = None
    overrides: dict[str, str] = dataclasses.field(default_factory=dict)
    given: str = ""

    @classmethod
    def of(
        cls,
        question: Callable[[Any, Any, Any], Question],
        models: Sequence[Any],
        systems: Sequence[Any],
        phases: Iterable[str],
        stacks: Sequence[Any],
        against: str | None,
        asker: str,
        advance: Callable[[int], None] = lambda cells: None,
    ) -> "CompareAnswer":
        """Reads all questions first, so that a mistake is found at once; then answers them one by one.

        **Raises:** `ConfigError` for a mistake that concerns every system: a value that no layout can have,
        or a rule that leaves no layout on any of them.
        """
        rows = [
            [question(model, system, stack) for system in systems for stack in stacks] for model in models
        ]
        if not rows or not rows[0]:
            found, expected = "nothing to compare", "at least one model and one system"
            raise ConfigError(asker, "--models, --systems", found, expected, "name some")
        phases = list(phases)
        if not phases:
            raise ConfigError(asker, "--phase", "no phase", "at least one", "name some, such as training")
        names = list(dict.fromkeys(str(each.system.name) for each in rows[0]))
        if against is not None and against not in names:
            hint = did_you_mean(against, names)
            raise ConfigError(asker, "--against", f'"{against}"', "a system of the comparison", hint)
        for questions in rows:
            questions[0].refuse_unused(*phases)
            for phase in phases:
                questions[0].check_values(phase)
        cells, problems = [], []
        for questions in rows:
            for phase in phases:
                for each in questions:
                    try:
                        cells.append(Compared.of(each, phase))
                    except ConfigError as problem:
                        problems.append(problem)
                        cells.append(Compared.without_layout(each, phase, problem))
                    advance(1)
        if len(problems) == len(cells) and len({problem.key for problem in problems}) == 1:
            raise problems[0]
        overrides = _overrides([question for questions in rows for question in questions])
        given = describe_strategy(load_strategy(rows[0][0].table, asker), phases[0], without=_IN_TABLES)
        return cls(cells, against, overrides, given)

    @property
    def fits(self) -> bool:
        """Whether some configuration has a layout that fits memory."""
        return any(cell.fits for cell in self.cells)

    def baseline_of(self, cell: Compared) -> Compared | None:
        """The baseline system's cell of the same model and phase, with the same stack where it has that."""
        if self.against is None:
            return None
        same = [
            each
            for each in self.cells
            if (each.system, each.model, each.phase) == (self.against, cell.model, cell.phase)
        ]
        return next((each for each in same if each.stack == cell.stack), same[0] if len(same) == 1 else None)

    def ratios(self, cell: Compared) -> dict[str, float | None]:
        """Each figure of a cell over the baseline's; None where one of them has none."""
        baseline = self.baseline_of(cell)
        result: dict[str, float | None] = {}
        for name in FIGURES:
            own, its = getattr(cell, name), getattr(baseline, name, None)
            result[name] = None if own is None or its is None else own / its
        return result

    @property
    def several_stacks(self) -> bool:
        """Whether some system is compared under several stacks in one phase."""
        places = [(cell.model, cell.system, cell.phase) for cell in self.cells]
        return len(dict.fromkeys(places)) < len(places)

    def groups(self) -> dict[tuple[str, str], list[Compared]]:
        """The cells by model and phase."""
        groups: dict[tuple[str, str], list[Compared]] = {}
        for cell in self.cells:
            groups.setdefault((cell.model, cell.phase), []).append(cell)
        return groups

    def lines(self) -> list[RenderableType]:
        ratios = None if self.against is None else self.ratios
        given = [f"In all rows: {self.given}", ""] if self.given else []
        overrides = described_overrides(self.overrides)
        return [
            *overrides,
            *given,
            *comparison_lines(self.groups(), self.against, ratios, self.several_stacks),
        ]

    def rows(self) -> list[dict[str, Any]]:
        """A row for each cell, with its ratios to the baseline."""
        return [
            dataclasses.asdict(cell)
            | ({f"{name}_ratio": ratio for name, ratio in self.ratios(cell).items()} if self.against else {})
            for cell in self.cells
        ]

    def to_dict(self) -> dict[str, Any]:
        overrides = {"overrides": self.overrides} if self.overrides else {}
        given = {"given": self.given} if self.given else {}
        return {"against": self.against, "rows": self.rows(), **overrides, **given}

    def to_csv(self) -> str:
        """The rows as a CSV table, empty where there is no figure."""
        from diffperf.api.compare_files import csv_text

        return csv_text(self.rows())

    def to_html(self) -> str:
        """The table and the figure as a page of its own, without references to other files."""
        from diffperf.report.html_page import Section, page, parts_of

        return page("Comparison", [Section("", [*parts_of(self.lines()), self.figure()])])

    def figure(self) -> "Figure":
        """Throughput per device, per dollar and per joule: a row of panels for each model and phase."""
        from diffperf.report import plots

        groups = {
            f"{model} {phase}": [
                plots.Bars(
                    name=f"{cell.system}, {cell.stack}" if self.several_stacks else cell.system,
                    values={name: getattr(cell, name) for name in FIGURES},
                    error=cell.relative,
                    remark="" if cell.fits else "does not fit" if cell.layout else "no layout",
                )
                for cell in cells
            ]
            for (model, phase), cells in self.groups().items()
        }
        titles = {name: (meaning, unit) for name, (_, unit, meaning) in FIGURES.items()}
        return plots.comparison(groups, titles)
