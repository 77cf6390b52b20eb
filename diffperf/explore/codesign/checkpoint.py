"""The state of a search between two rounds, in a file from which an interrupted search goes on.

Rounds start from this state alone, so that a search which was interrupted and resumed comes to the same
design as one which was not.
"""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from diffperf.errors import ConfigError
from diffperf.explore.codesign.descent import Descended
from diffperf.explore.codesign.result import TracePoint

_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A search after a round.

    - `question`: a digest of the problem, its limits, the seed and the population.
    - `number`, `idle`: the rounds done, and how many of the last did not improve the design.
    - `best`, `descended`: the best design, and where descents have ended, by the values of their slots.
    - `random`: the state of the generator of random numbers.
    """

    question: str
    number: int
    idle: int
    evaluations: int
    best: Descended
    descended: dict[tuple[float, ...], Descended]
    random: dict[str, Any]
    trace: list[TracePoint]

    def write(self, file: Path) -> None:
        """Writes the state; the file is either as it was before, or complete."""
        content = {
            "version": _VERSION,
            "question": self.question,
            "number": self.number,
            "idle": self.idle,
            "evaluations": self.evaluations,
            "best": _plain(self.best),
            "descended": [[list(values), _plain(design)] for values, design in self.descended.items()],
            "random": self.random,
            "trace": [dataclasses.astuple(point) for point in self.trace],
        }
        unfinished = file.with_name(file.name + ".unfinished")
        unfinished.write_text(json.dumps(content), encoding="utf-8")
        os.replace(unfinished, file)

    @classmethod
    def read(cls, file: Path, question: str) -> "Checkpoint | None":
        """The state in a file, None where there is no file yet.

        **Raises:** `ConfigError` for a file that holds something else or a state of another search, or whose
        folder does not exist.
        """
        if not file.parent.is_dir():
            expected = "a file in a folder that exists"
            raise ConfigError(file, "", f"no folder {file.parent}", expected, "create the folder first")
        if not file.exists():
            return None
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            state = cls._of(content) if content["version"] == _VERSION else None
        except (OSError, ValueError, KeyError, TypeError):
            state = None
        if state is None:
            expected = "a new file, or one that an interrupted search wrote"
            raise ConfigError(file, "", "no checkpoint of a search", expected, "name another file")
        if state.question != question:
            found = "a checkpoint of another problem, seed, population or release"
            raise ConfigError(file, "", found, "one of this search", "name another file, or delete this one")
        return state

    @classmethod
    def _of(cls, content: dict[str, Any]) -> "Checkpoint":
        """The state from the content of a file. Raises `KeyError`, `TypeError` or `ValueError` for others."""
        return cls(
            question=content["question"],
            number=content["number"],
            idle=content["idle"],
            evaluations=content["evaluations"],
            best=_design(content["best"]),
            descended={tuple(values): _design(design) for values, design in content["descended"]},
            random=content["random"],
            trace=[
                TracePoint(stage=stage, objective=objective, violation=violation, seconds=seconds)
                for stage, objective, violation, seconds in content["trace"]
            ],
        )


def _plain(design: Descended) -> dict[str, Any]:
    """A design as plain values, which keep every digit."""
    return dataclasses.asdict(design) | {"x": design.x.tolist(), "multipliers": design.multipliers.tolist()}


def _design(values: dict[str, Any]) -> Descended:
    """A design from plain values."""
    return Descended(
        x=np.array(values["x"], dtype=float),
        violation=values["violation"],
        objective=values["objective"],
        multipliers=np.array(values["multipliers"], dtype=float),
        residual=values["residual"],
    )
