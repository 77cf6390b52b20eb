"""The answer of dp.sensitivity(to=…): what each change on the way to another configuration contributes."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import RenderableType

from diffperf.api.basis import Certainty
from diffperf.api.input_values import with_paths_and_units
from diffperf.api.point_answer import PointAnswer
from diffperf.api.question import Question, describe_system
from diffperf.errors import ConfigError
from diffperf.explore.attribution import MOST_CHANGES, Attribution, Change, attributed, changes_between
from diffperf.explore.inputs import checked_output
from diffperf.explore.ranges import with_tied
from diffperf.load import override
from diffperf.quantity import Quantity, locate, replace
from diffperf.report.tables import change, column_table, ratio, show
from diffperf.workload.configuration import Configuration

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NO_EFFECT = 1e-9  # share of the output before, up to which a contribution is rounding


@dataclasses.dataclass(frozen=True, repr=False)
class AttributionAnswer(PointAnswer):
    """Contributions of each change between an output of one configuration and that of another, `target`.

    - `target_certainty`: how sure the time of the target is; None where inputs of the configuration are set.
    """

    output: str
    declared: Quantity
    target: str
    target_certainty: Certainty | None
    found: Attribution

    @classmethod
    def of(cls, question: Question, phase: str, output: str, to: Any) -> "AttributionAnswer":
        """The way to another system, or to other values of some inputs by path."""
        c = question.configuration(phase)
        declared = checked_output(c, phase, output, question.asker)
        sure = None
        if isinstance(to, Mapping):
            changes, target = _settings(c, to, question)
        else:
            changes, target, sure = _system(c, to, question, phase)
        if not changes:
            remedy = "name another system"
            raise ConfigError(question.asker, "--to", "nothing that differs", "a change", remedy)
        if len(changes) > MOST_CHANGES:
            expected = f"at most {MOST_CHANGES}: every combination of changes is estimated"
            raise ConfigError(
                question.asker, "--to-set", f"{len(changes)} changes", expected, "leave some out"
            )
        return cls(
            question,
            phase,
            c,
            output=output,
            declared=declared,
            target=target,
            target_certainty=sure,
            found=attributed(c, changes, phase, output),
        )

    @property
    def title(self) -> str:
        return f"{self.output} of {self.question.summary(self.phase)}, to {self.target}"

    @property
    def contributions(self) -> list[tuple[str, float]]:
        """The changes that matter, the largest contribution first."""
        matter = [
            (name, part)
            for name, part in self.found.contributions.items()
            if abs(part) > _NO_EFFECT * abs(self.found.before)
        ]
        return sorted(matter, key=lambda item: -abs(item[1]))

    def lines(self) -> list[RenderableType]:
        before, after = self.found.before, self.found.after
        table = column_table("change", "contribution", "of the output before")
        table.add_row("before", show(before, self.declared), "")
        for name, part in self.contributions:
            sign = "+" if part > 0 else "−"
            table.add_row(name, f"{sign}{show(abs(part), self.declared)}", ratio(part, before, "+.1%"))
        table.add_row("after", show(after, self.declared), change(after, before, "+.1%"))
        return [
            *self.heading(),
            *([f"To {self.target}: {self.target_certainty.line()}"] if self.target_certainty else []),
            table,
            "each contribution is the mean over all orders of making the changes (Shapley); they add up",
        ]

    def rows(self) -> list[dict[str, Any]]:
        """A row for each change, with its contribution."""
        return [
            {"change": name, "contribution": part, "unit": self.declared.unit}
            for name, part in self.found.contributions.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        sure = self.target_certainty
        return self.heading_values() | {
            "output": self.output,
            "to": self.target,
            **({"to_certainty": sure.as_dict()} if sure else {}),
            "before": self.found.before,
            "after": self.found.after,
            "contributions": self.found.contributions,
        }

    def figure(self) -> "Figure":
        """A waterfall from the output before to that after."""
        from diffperf.report import plots

        ends = self.found.before, self.found.after
        title = f"{plots.words_of(self.output)} of {self.question.headline(self.phase)}\nto {self.target}"
        return plots.steps_between(ends, self.contributions, self.declared.unit, title)


def _settings(
    c: Configuration, given: Mapping[str, Any], question: Question
) -> tuple[dict[str, Change], str]:
    """A change for each input that is set."""
    values = with_paths_and_units(c, given, question.asker)
    after = override(c, values, question.asker)
    changes, texts = {}, []
    for path in values:
        value, declared = locate(after, path)
        assert declared is not None  # an override of anything else is an error
        changes[path] = _set(path, value, set(values))
        texts.append(f"{path} = {show(value, declared)}")
    return changes, ", ".join(texts)


def _set(path: str, value: Any, given: set[str]) -> Change:
    """The change of one input, and of what changes in proportion to it and is not given itself."""

    def changed(c: Configuration) -> Configuration:
        declared = locate(c, path)[1]
        if not isinstance(declared, Quantity):
            return replace(c, {path: value})
        tied = with_tied(c, {path: np.array([float(value)])})
        return replace(c, {name: each[0] for name, each in tied.items() if name == path or name not in given})

    return changed


def _system(
    c: Configuration, name: Any, question: Question, phase: str
) -> tuple[dict[str, Change], str, Certainty]:
    """The changes to another system, with the best layout on it for what the user leaves open, and how sure
    the time is there.
    """
    other = question.on(name, "--to")
    target = other.configuration(phase)
    sure = Certainty.of(other, target, phase)
    return changes_between(c, target), describe_system(other.system, phase), sure
