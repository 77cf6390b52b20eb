"""The TOML file of a space: axes over the inputs of an estimate, and the inputs that stay the same.

model = "gpt3-175b"
system = "dgx-a100"
phase = "training"
rank_by = "time"
pareto = ["time", "cost.run"]
best_by = ["strategy.tp"]
where = ["strategy.tp <= 8"]

[set]
"system.n_devices" = 64

[strategy]
global_batch = 64

[[axis]]
factorize = {of = "system.n_devices", over = ["strategy.tp", "strategy.pp", "strategy.dp"]}

[[axis]]
path = "system.accelerator.memory.hbm.bandwidth"
linear = {from = "1 TB/s", to = "4 TB/s", points = 7}

The keys `where` (constraints between inputs), `zip` (inputs that vary together) and axes over whole configs
(`path = "system"`) are explained beside their readers.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from diffperf.errors import ARGUMENTS
from diffperf.explore.codesign.replaced_inputs import refuse_replaced_input
from diffperf.explore.codesign.variables import FEATURE, NODE, Candidate
from diffperf.explore.inputs import check_phase
from diffperf.explore.settings import settings_of
from diffperf.explore.sweep.axis import Axis, ConfigAxis
from diffperf.explore.sweep.config_reader import CONFIGS
from diffperf.explore.sweep.constraint import Constraint, parse_constraint
from diffperf.explore.sweep.designed_points import Inputs, candidate_of, declared_outputs, made
from diffperf.explore.sweep.dimension_reader import DimensionReader
from diffperf.explore.sweep.kept_reader import KEPT, KeptReader
from diffperf.explore.sweep.space import Space
from diffperf.hardware.system import System
from diffperf.hardware.technology import Technology
from diffperf.load import (
    display,
    find,
    load_strategy,
    override,
    read_toml,
    refuse_other_stack,
    refuse_training_fields,
)
from diffperf.workload.configuration import Configuration
from diffperf.workload.model import Model

KEYS = ("model", "system", "technology", "phase", *KEPT, "where", "set", "strategy", "axis")  # of the file


def load_space(source: Space | str | Path | Mapping[str, Any], file: str = ARGUMENTS, key: str = "") -> Space:
    """The space that a TOML file declares, by the file's path or the name of a shipped space, or its table.

    **Raises:** `ConfigError`, in one line.
    """
    if isinstance(source, Space):
        return source
    if isinstance(source, Mapping):
        return _Reader(file, Path(), dict(source)).space("space")
    path = find(str(source), "spaces", asked_by=(file, key))
    return _Reader(display(path), path.parent, read_toml(path)).space(path.stem)


class _Reader(DimensionReader):
    """Reads a space from the tables of its file."""

    def space(self, name: str) -> Space:
        """The whole space."""
        self.known_keys(self.table, KEYS, "", "a key of a space")
        model, system = self.config(Model, "model"), self.config(System, "system")
        technology = self.config(Technology, "technology") if "technology" in self.table else None
        phase = check_phase(self.table.get("phase", "training"), self.file, "phase")
        bare = self.inputs(Configuration(model, system, load_strategy({}, self.file)), technology)
        settings, prefix = self.settings(bare), "strategy."
        of_strategy = {
            path.removeprefix(prefix): text for path, text in settings.items() if path.startswith(prefix)
        }
        strategy_table = self.sub_table("strategy") | of_strategy
        strategy = load_strategy(strategy_table, self.file)
        others = {path: text for path, text in settings.items() if not path.startswith(prefix)}
        inputs = override(dataclasses.replace(bare, strategy=strategy), others, self.file)
        if isinstance(inputs, Candidate):
            for path in others:
                refuse_replaced_input(inputs, path, self.file, f"set.{path}")
        axes = self.axes(inputs, others)
        keys = {f"{prefix}{name}": f"{prefix}{name}" for name in self.sub_table("strategy")}
        self.refuse_set_axes(axes, keys | {path: f"set.{path}" for path in settings})
        given = {*strategy_table, *(axis.path.removeprefix(prefix) for axis in axes)}
        refuse_training_fields(sorted(given), phase, self.file)
        refuse_other_stack([*others, *(axis.path for axis in axes)], [phase], self.file)
        follow = {"dp", "global_batch"} if phase == "training" else {"dp"}
        if technology is not None and "design.voltage" not in (*others, *(axis.path for axis in axes)):
            follow.add("voltage")
        outputs = declared_outputs(inputs, phase)
        kept = KeptReader(self.file, self.folder, self.table)
        return Space(
            name=name,
            inputs=inputs,
            phase=phase,
            axes=axes,
            derived=frozenset(follow - given),
            where=self.where(inputs, outputs),
            **kept.fields(outputs, phase, [axis.path for axis in axes]),
        )

    def refuse_set_axes(self, axes: Sequence[Axis | ConfigAxis], keys: Mapping[str, str]) -> None:
        """Refuses an axis over an input that is set too, which would be without effect; `keys` are those of
        the file, by the path of the input."""
        for axis in axes:
            if axis.path in keys:
                found = f"{axis.path} set beside an axis over it"
                raise self.error(keys[axis.path], found, "one of the two", "leave one out")

    @staticmethod
    def inputs(configuration: Configuration, technology: Technology | None) -> Inputs:
        """The configuration, or where the space names a technology, the design that begins with it."""
        return configuration if technology is None else candidate_of(configuration, technology)

    def settings(self, inputs: Inputs) -> dict[str, Any]:
        """The values of the [set] table by full path."""
        settings = settings_of(inputs, self.sub_table("set"), self.file)
        for path, value in settings.items():
            if path in (FEATURE, NODE):
                remedy = f'write an axis over {NODE} with one value, such as "4 nm"'
                raise self.error(f"set.{path}", repr(value), "the node, with all its figures", remedy)
            if path in CONFIGS and path.startswith("technology.") and isinstance(value, str):
                remedy = f'write an axis over {path} with one value, "{value}"'
                raise self.error(f"set.{path}", repr(value), "numbers and choices of the inputs", remedy)
        return settings

    def where(self, inputs: Inputs, outputs: Collection[str]) -> tuple[Constraint, ...]:
        """The constraints that points have to satisfy; `outputs` are those of the phase, which have none."""
        texts = self.table.get("where", [])
        if not isinstance(texts, list):
            remedy = 'write where = ["strategy.tp * strategy.pp <= 64"]'
            raise self.error("where", repr(texts), "a list of constraints", remedy)
        if not texts:
            return ()
        compared = made(inputs)
        return tuple(
            parse_constraint(text, compared, self.file, f"where[{index}]", outputs)
            for index, text in enumerate(texts)
        )
