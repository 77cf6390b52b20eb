"""dp.sensitivity: by how much each input moves an output."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table

from diffperf import units
from diffperf.api.answer import Answer
from diffperf.api.boundary import answering, asker_of
from diffperf.api.from_python import asked, phase_of, relaxation, whole_number
from diffperf.api.question import Question, describe_strategy
from diffperf.errors import ConfigError, did_you_mean
from diffperf.explore.plan.best_layout import Layout
from diffperf.explore.sensitivity import GROUPS, Sensitivity, sensitivities
from diffperf.relax import Exact, Relaxation
from diffperf.report.tables import as_dict
from diffperf.workload.configuration import Configuration

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NO_EFFECT = 1e-6  # elasticities up to this are rounding: the input does not matter
_BAR = 20  # characters of the longest bar


@answering("sensitivity")
def sensitivity(
    model: Any,
    system: Any,
    phase: str = "training",
    *,
    output: str = "time",
    of: str | Sequence[str] = ("system",),
    top: int = 20,
    devices: float | None = None,
    stack: Any = None,
    calibration: Any = None,
    set: Mapping[str, Any] | None = None,
    smooth: float | None = None,
    **strategy: Any,
) -> "SensitivityAnswer":
    """The exact elasticities of an output: the percentage that 1 % more of each input adds to it.

    **Arguments:** as of `dp.estimate`, and

    - `output`: its path in the report, such as "cost.run".
    - `of`: some of "system", "strategy" and "model": whose inputs.
    - `top`: how many inputs are printed.

    **Raises:** `ConfigError`, in one line.
    """
    asker = asker_of("sensitivity")
    whole_number(asker, "top", top, 1, 100_000)
    question = asked(
        "sensitivity",
        model,
        system,
        devices=devices,
        stack=stack,
        calibration=calibration,
        set=set,
        strategy=strategy,
        others=("phase", "output", "of", "top", "devices", "stack", "calibration", "set", "smooth"),
    )
    groups = (of,) if isinstance(of, str) else tuple(of)
    phase, relax = phase_of(asker, phase), relaxation(asker, smooth)
    return SensitivityAnswer.of(question, phase, output, groups, relax, top)


@dataclasses.dataclass(frozen=True, repr=False)
class SensitivityAnswer(Answer):
    """The inputs of `ranked` by how much they move an output; the first `top` are printed."""

    question: Question
    phase: str
    output: str
    layout: Layout
    ranked: list[Sensitivity]
    top: int

    @classmethod
    def of(
        cls,
        question: Question,
        phase: str = "training",
        output: str = "time",
        groups: Sequence[str] = ("system",),
        relax: Relaxation | None = None,
        top: int = 20,
    ) -> "SensitivityAnswer":
        """Differentiates at the layout of a question."""
        for group in groups:
            if group not in GROUPS:
                expected, hint = "one of " + ", ".join(GROUPS), did_you_mean(group, GROUPS)
                raise ConfigError(question.asker, "--of", f'"{group}"', expected, hint)
        relax = Exact() if relax is None else relax
        layout = question.layout(phase, relax)
        inputs = Configuration(question.model, question.system, layout.strategy, relax)
        ranked = sensitivities(inputs, phase, output, groups=groups, file=question.asker)
        return cls(question, phase, output, layout, ranked, top)

    @property
    def title(self) -> str:
        return f"What moves {self.output} of {self.question.summary(self.phase)}"

    def lines(self) -> list[RenderableType]:
        moving = [each for each in self.ranked if abs(each.elasticity) > _NO_EFFECT]
        lines: list[RenderableType] = [
            f"[bold]{self.title}[/bold]",
            describe_strategy(self.layout.strategy, self.phase),
            *self.question.described_overrides(),
            sensitivity_table(moving[: self.top]),
            f"{len(self.ranked) - len(moving)} of {len(self.ranked)} inputs do not matter here",
        ]
        if any(each.declared.integer for each in moving[: self.top]):
            whole = "* whole in reality: the slope between two whole numbers, with all other inputs unchanged"
            lines.append(whole)
        return lines

    def rows(self) -> list[dict[str, Any]]:
        """A row for each input, with its elasticity."""
        return [
            {
                "path": each.path,
                "value": each.value,
                "unit": each.declared.unit,
                "elasticity": each.elasticity,
            }
            for each in self.ranked
        ]

    def to_dict(self) -> dict[str, Any]:
        strategy = as_dict(self.layout.strategy)
        return {"phase": self.phase, "output": self.output, "strategy": strategy, "elasticities": self.rows()}

    def figure(self) -> "Figure":
        """A tornado of the elasticities."""
        from diffperf.report import plots

        return plots.tornado(self.ranked, f"{self.title}\nchange for +1 % of each input")


def sensitivity_table(ranked: list[Sensitivity]) -> Table:
    """The inputs that matter most, a row each; a star marks those that are whole numbers."""
    table = Table(box=None, pad_edge=False)
    table.add_column("input")
    table.add_column("value", justify="right")
    table.add_column("elasticity", justify="right")
    table.add_column("")  # a bar
    largest = max((abs(sensitivity.elasticity) for sensitivity in ranked), default=1.0)
    for sensitivity in ranked:
        declared, elasticity = sensitivity.declared, sensitivity.elasticity
        bar = ("+" if elasticity > 0 else "−") * max(1, round(_BAR * abs(elasticity) / largest))
        path = sensitivity.path + " *" * declared.integer
        table.add_row(path, units.show(sensitivity.value, declared.unit), f"{elasticity:+.4f}", bar)
    return table
