"""dp.break_even: at which price, bandwidth or batch one system overtakes another."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import RenderableType

from diffperf import units
from diffperf.api.answer import Answer
from diffperf.api.basis import Certainty
from diffperf.api.boundary import answering, asker_of
from diffperf.api.from_python import asked, phase_of
from diffperf.api.question import Question, describe_strategy
from diffperf.api.varied_ranges import InputRange, described_cuts, read_input_range
from diffperf.errors import ConfigError, did_you_mean
from diffperf.explore.crossings import BreakEven, Crossing, Pair
from diffperf.explore.crossings import break_even as crossed
from diffperf.explore.inputs import checked_output
from diffperf.explore.ranges import Range
from diffperf.quantity import Quantity
from diffperf.report.tables import as_dict, column_table, ratio, show
from diffperf.workload.configuration import Configuration

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_EQUAL = 1e-9  # relative difference of outputs that are equal
VARY = {"both": (True, True), "first": (True, False), "second": (False, True)}


@answering("break_even")
def break_even(
    model: Any,
    system: Any,
    against: Any,
    phase: str = "training",
    *,
    x: InputRange,
    vary: str = "both",
    output: str = "cost.run",
    devices: float | None = None,
    stack: Any = None,
    calibration: Any = None,
    set: Mapping[str, Any] | None = None,
    **strategy: Any,
) -> "BreakEvenAnswer":
    """Values of an input at which an output of two systems is equal: all crossings in a range.

        dp.break_even("llama-3-8b", "dgx-h100", "mi300x-8", "decode", tp=8,
                      x=("strategy.global_batch", "1..512"), output="cost.run")

    **Arguments:** as of `dp.estimate`, and

    - `against`: the second system, as `system`; with the same devices if they are given.
    - `x`: an input by path, and its range: "1..8 TB/s", "±20%", or two values; also as a dictionary of the
      one input, or as the text "PATH=RANGE".
    - `vary`: where it varies: in "both" systems, the "first", or the "second" alone (as for a price).
    - `output`: which is compared, by its path in the report.

    Both have the best layout at their own configuration, which stays. **Raises:** `ConfigError`, in one line.
    """
    asker = asker_of("break_even")
    question = asked(
        "break_even",
        model,
        system,
        devices=devices,
        stack=stack,
        calibration=calibration,
        set=set,
        strategy=strategy,
        others=("phase", "x", "vary", "output", "against", "devices", "stack", "calibration", "set"),
    )
    return BreakEvenAnswer.of(
        question, against=against, phase=phase_of(asker, phase), x=x, vary=vary, output=output
    )


@dataclasses.dataclass(frozen=True, repr=False)
class BreakEvenAnswer(Answer):
    """The curves of two systems over the range of an input, and where they cross."""

    questions: tuple[Question, Question]
    phase: str
    output: str
    declared: Quantity
    configurations: tuple[Configuration, Configuration]
    range: Range
    vary: str
    found: BreakEven

    @classmethod
    def of(
        cls,
        question: Question,
        against: Any,
        phase: str,
        x: InputRange,
        vary: str = "both",
        output: str = "cost.run",
    ) -> "BreakEvenAnswer":
        """Looks for crossings at the layouts of a question about two systems."""
        if vary not in VARY:
            hint = did_you_mean(str(vary), list(VARY))
            raise ConfigError(question.asker, "--vary", f'"{vary}"', "one of " + ", ".join(VARY), hint)
        questions = question, question.on(against, "--against")
        configurations = question.configuration(phase), questions[1].configuration(phase)
        declared = checked_output(configurations[0], phase, output, question.asker)
        varied = [c for c, varies in zip(configurations, VARY[vary], strict=True) if varies]
        ranges = [read_input_range(c, x, question, phase, "--x") for c in varied]
        if len({each.path for each in ranges}) > 1:
            found = " and ".join(each.path for each in ranges)
            raise ConfigError(question.asker, "--x", found, "one input in both", "write its whole path")
        pair = Pair(
            configurations=configurations, varied=ranges[0], varies_in=VARY[vary], phase=phase, output=output
        )
        return cls(
            questions=questions,
            phase=phase,
            output=output,
            declared=declared,
            configurations=configurations,
            range=ranges[0],
            vary=vary,
            found=crossed(pair),
        )

    @property
    def names(self) -> tuple[str, str]:
        """Names of the systems, or first and second where the names are alike."""
        first, second = (str(question.system.name) for question in self.questions)
        return (first, second) if first != second else (f"{first} (first)", f"{second} (second)")

    @property
    def title(self) -> str:
        return self.titled(self.output)

    def titled(self, output: str) -> str:
        """A title with the output as it is called there."""
        first, second = self.names
        return f"{output} of {self.questions[0].model.name} {self.phase}: {first} and {second}"

    def lines(self) -> list[RenderableType]:
        strategies = [
            f"{name}: {describe_strategy(c.strategy, self.phase)}"
            for name, c in zip(self.names, self.configurations, strict=True)
        ]
        return [
            f"[bold]{self.title}[/bold]",
            *strategies,
            *self.questions[0].described_overrides(),
            *(f"{name}: {sure.line()}" for name, sure in zip(self.names, self._certainties(), strict=True)),
            f"{self.range.path} from {self._shown(self.range.low)} to {self._shown(self.range.high)}"
            + ("" if self.vary == "both" else f", of {self.names[self.vary == 'second']}"),
            *described_cuts([self.range]),
            *map(self._sentence, self.found.crossings),
            *self._ends(),
        ]

    def _certainties(self) -> list[Certainty]:
        """Certainty of the time of both systems, at their own configurations."""
        pairs = zip(self.questions, self.configurations, strict=True)
        return [Certainty.of(question, c, self.phase) for question, c in pairs]

    def _sentence(self, crossing: Crossing) -> str:
        above = self.names[crossing.larger_above]  # the one with less, above
        how = " (an output jumps there)" if crossing.jump else ""
        if self.range.declared.integer:
            return f"from {self._shown(crossing.above)} on, {above} has less {self.output}{how}"
        return f"above {self._shown(crossing.value)}, {above} has less {self.output}{how}"

    def _ends(self) -> list[RenderableType]:
        """A table of both outputs at the ends of the range and at the crossings."""
        table = column_table(self.range.path, *self.names, "ratio")
        curves = self.found
        for place in (0, len(curves.values) - 1):
            first, second = float(curves.first[place]), float(curves.second[place])
            shown = [show(each, self.declared) for each in (first, second)]
            table.add_row(self._shown(curves.values[place]), *shown, ratio(first, second))
        return [table] if curves.crossings else [*self._all_along(), table]

    def _all_along(self) -> list[str]:
        """Which system has less where they do not cross, and whether the input changes anything."""
        first, second = self.found.first, self.found.second
        lines = [f"{self.names[int(first[0] > second[0])]} has less all along"]
        if np.allclose(first, second, rtol=_EQUAL, atol=0):
            lines = ["equal all along"]
        if all(np.ptp(curve) <= _EQUAL * np.max(np.abs(curve)) for curve in (first, second)):
            lines.append(f"{self.range.path} changes nothing here{self._why_nothing_changes()}")
        return lines

    def _why_nothing_changes(self) -> str:
        """Why the input has no effect, where that is known: a published price is no markup."""
        varied = [c for c, varies in zip(self.configurations, VARY[self.vary], strict=True) if varies]
        priced = [
            str(c.system.accelerator.name) for c in varied if float(c.system.accelerator.purchase_price) > 0
        ]
        if not self.range.path.endswith("prices.accelerator_markup") or len(priced) < len(varied):
            return ""
        named = " and ".join(dict.fromkeys(priced))
        return f": {named} has a published price, which the markup does not move"

    def _shown(self, value: float) -> str:
        return units.show(value, self.range.declared.unit)

    def rows(self) -> list[dict[str, Any]]:
        """A row for each point of the curves."""
        columns = zip(self.found.values, self.found.first, self.found.second, strict=True)
        return [
            {self.range.path: float(value), self.names[0]: float(first), self.names[1]: float(second)}
            for value, first, second in columns
        ]

    def to_dict(self) -> dict[str, Any]:
        crossings = [
            dataclasses.asdict(each) | {"value": each.value, "less_above": self.names[each.larger_above]}
            for each in self.found.crossings
        ]
        return {
            "phase": self.phase,
            "output": self.output,
            "unit": self.declared.unit,
            "systems": list(self.names),
            "strategies": [as_dict(c.strategy) for c in self.configurations],
            "certainties": [sure.as_dict() for sure in self._certainties()],
            **({"overrides": self.questions[0].overrides} if self.questions[0].overrides else {}),
            "input": {"path": self.range.path, "unit": self.range.declared.unit, "varies_in": self.vary},
            "crossings": crossings,
            "curves": self.rows(),
        }

    def figure(self) -> "Figure":
        """Both curves over the range, with their crossings."""
        from diffperf.report import plots

        curves = plots.Curves(
            self.found.values,
            {self.names[0]: self.found.first, self.names[1]: self.found.second},
            [each.above if self.range.declared.integer else each.value for each in self.found.crossings],
        )
        axis = plots.MapAxis(self.found.values, self.range.path, self.range.declared, self.range.log)
        title = self.titled(plots.words_of(self.output))
        return plots.crossing_curves(curves, axis, self.output, self.declared, title)
