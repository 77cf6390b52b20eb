"""Reading one workload of a design problem: what runs, on which system, and how it is laid out."""

import dataclasses
import functools
from typing import Any

import equinox as eqx
import numpy as np

from diffperf.errors import ConfigError
from diffperf.explore.codesign.problem import Workload
from diffperf.explore.codesign.variables import FEATURE, Candidate, Job
from diffperf.explore.inputs import check_phase
from diffperf.explore.reader import TableReader
from diffperf.explore.settings import settings_of
from diffperf.hardware.designed_accelerator import design_of
from diffperf.hardware.node import node_at
from diffperf.hardware.system import System
from diffperf.hardware.technology import Technology, moved
from diffperf.load import check, literal, load_nodes, load_strategy, override, refuse_training_fields
from diffperf.quantity import Label
from diffperf.trees import as_float64
from diffperf.workload.model import Model
from diffperf.workload.strategy import Strategy

OF_A_WORKLOAD = ("model", "phase", "strategy")  # the keys that each of several workloads has for itself


@dataclasses.dataclass(frozen=True)
class JobReader(TableReader):
    """Reads one workload: what it runs, where, and how it is laid out.

    - `table`: the keys of the workload, and those of the file that it shares.
    - `prefix`: leads to the workload's own keys in errors.
    """

    prefix: str = ""

    def config(self, cls: type[eqx.Module], key: str) -> Any:
        """The module of a class that the config named under a key holds."""
        if key in OF_A_WORKLOAD and self.prefix and key not in self.table:
            raise self.error(self.prefix + key, "no such key", f"the name of a {key}", f'add {key} = "…"')
        return super().config(cls, key)

    @functools.cached_property
    def workload(self) -> Workload:
        """The workload's name, phase and share."""
        phase = check_phase(self.table.get("phase", "training"), self.file, f"{self.prefix}phase")
        share = self.table.get("share", 1.0)
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < np.inf:
            raise self.error(f"{self.prefix}share", repr(share), "a number above 0", "write share = 0.5")
        return Workload(str(self.table.get("name", phase)), phase, float(share))

    @functools.cached_property
    def as_loaded(self) -> Candidate:
        """The candidate of the configs alone: without the file's number of devices, `set` and strategy."""
        model, system, technology = (
            self.config(Model, "model"),
            self.config(System, "system"),
            self.config(Technology, "technology"),
        )
        if "n_devices" in self.table:
            system = override(system, {"n_devices": self.table["n_devices"]}, self.file)
        return Candidate(
            design=design_of(system, technology),
            model=model,
            system=system,
            strategy=Strategy(),
            technology=technology,
        )

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """What the file sets, by full path."""
        table = self.sub_table("set")
        return settings_of(self.as_loaded, table, self.file) if table else {}

    def configured(self, candidate: Candidate) -> Candidate:
        """A candidate with the file's number of devices, and with what it sets, but for the strategy.

        What is set of the technology holds on the node that it moves to.
        """
        if "n_devices" in self.table:
            system = override(candidate.system, {"n_devices": self.table["n_devices"]}, self.file)
            candidate = dataclasses.replace(candidate, system=system)
        others = {path: value for path, value in self.settings.items() if not path.startswith("strategy.")}
        if FEATURE in others:
            candidate = override(candidate, {FEATURE: others.pop(FEATURE)}, self.file)
            technology = moved(candidate.technology, node_at(load_nodes(), candidate.technology.feature))
            candidate = dataclasses.replace(candidate, technology=technology)
        return override(candidate, others, self.file)

    def baseline(self, phase: str) -> Candidate:
        """The candidate before any variable changes, in float64."""
        candidate = self.configured(self.as_loaded)
        strategy = load_strategy(self.strategy_table(), self.file, float(candidate.system.n_devices))
        refuse_training_fields(self.strategy_table(), phase, self.file)
        self.check(candidate.model, candidate.system, strategy, phase)
        return as_float64(dataclasses.replace(candidate, strategy=strategy))

    def beside(self, first: Candidate) -> Job:
        """This workload beside another one, on the same system."""
        model, devices = self.config(Model, "model"), float(first.system.n_devices)
        strategy = load_strategy(self.strategy_table(), self.file, devices)
        refuse_training_fields(self.strategy_table(), self.workload.phase, self.file)
        self.check(model, first.system, strategy, self.workload.phase)
        return as_float64(Job(model, strategy, Label(self.workload.name)))

    def check(self, model: Model, system: System, strategy: Strategy, phase: str) -> None:
        """Raises `ConfigError` where a rule refuses the strategy of the baseline.

        It names the variables of the strategy that the baseline has no value of: their ranges are those of
        the design alone.
        """
        try:
            check(model, system, strategy, phase, self.file)
        except ConfigError as problem:
            missing = self.variables_without_value()
            if not missing:
                raise
            found = f"{problem.found} in the baseline, which has the default of {' and '.join(missing)}"
            where = "[strategy]" if self.prefix == "" else f"{self.prefix}strategy"
            remedy = f"write a value for the baseline under {where}, beside the variable: {problem.remedy}"
            raise self.error(problem.key, found, problem.expected, remedy) from None

    def variables_without_value(self) -> list[str]:
        """The fields of the workload's strategy that are variables, and that its table does not give."""
        paths = [
            str(table.get("path")).removeprefix(f"{self.workload.name}.") for table in self.tables("variable")
        ]
        fields = [path.removeprefix("strategy.") for path in paths if path.startswith("strategy.")]
        return [f"strategy.{field}" for field in fields if field not in self.strategy_table()]

    @property
    def strategy_path(self) -> str:
        """The path of the workload's strategy in a candidate."""
        first = self.prefix in ("", "workload[0].")
        return "strategy" if first else f"beside.{self.workload.name}.strategy"

    @property
    def derives_dp(self) -> bool:
        """Whether the data-parallel degree follows from the others, because nobody gave it."""
        return "dp" not in self.strategy_table()

    def strategy_table(self) -> dict[str, Any]:
        """The given fields of the strategy, by name: those of its own table and those among the overrides."""
        prefix = "strategy."
        overridden = {
            path.removeprefix(prefix): literal(value)
            for path, value in self.settings.items()
            if path.startswith(prefix)
        }
        return self.sub_table("strategy") | overridden
