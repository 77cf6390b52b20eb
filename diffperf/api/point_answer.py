"""Common parts of answers about one configuration: the question, the layout, the certainty of its time."""

import dataclasses
import functools
from typing import Any

import jax
from rich.console import RenderableType

from diffperf.api.answer import Answer
from diffperf.api.basis import Certainty
from diffperf.api.idle_settings import describe_idle_settings
from diffperf.api.question import Question, describe_strategy
from diffperf.report.tables import as_dict
from diffperf.workload.configuration import Configuration


@dataclasses.dataclass(frozen=True, repr=False)
class PointAnswer(Answer):
    """An answer about a phase of one configuration: the question with the layout that was chosen for it."""

    question: Question
    phase: str
    configuration: Configuration

    @property
    def title(self) -> str:
        """The answer's heading in one line."""
        return self.question.summary(self.phase)

    @property
    def described_strategy(self) -> str:
        """The layout in a line."""
        return describe_strategy(self.configuration.strategy, self.phase)

    @functools.cached_property
    def certainty(self) -> Certainty:
        """Certainty of the time of the configuration."""
        with jax.enable_x64(True):
            return Certainty.of(self.question, self.configuration, self.phase)

    def heading(self) -> list[RenderableType]:
        """The title, the layout, what the user overrides, and how sure the time is."""
        return [
            f"[bold]{self.title}[/bold]",
            self.described_strategy,
            *self.question.described_overrides(),
            *describe_idle_settings(self.question, self.configuration.strategy),
            self.certainty.line(),
        ]

    def heading_values(self) -> dict[str, Any]:
        """Phase, strategy, overrides and certainty as plain values, for JSON."""
        overrides = self.question.overrides
        return {
            "phase": self.phase,
            "strategy": as_dict(self.configuration.strategy),
            **({"overrides": overrides} if overrides else {}),
            **self.certainty.as_dict(),
        }
