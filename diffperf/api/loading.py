"""dp.load_model and its like: modules from names, paths, tables and Hugging Face configs.

Numbers have the precision that the caller has set for JAX. What is loaded already is returned as it is.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffperf.api.boundary import asker_of, naming
from diffperf.api.input_values import plain
from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.system import System
from diffperf.load import Source
from diffperf.load import load_accelerator as read_accelerator
from diffperf.load import load_calibration as read_calibration
from diffperf.load import load_model as read_model
from diffperf.load import load_stack as read_stack
from diffperf.load import load_strategy as read_strategy
from diffperf.load import load_system as read_system
from diffperf.load.calibration import Calibration
from diffperf.software.stack import Stack
from diffperf.workload.model import Model
from diffperf.workload.strategy import Strategy

if TYPE_CHECKING:  # the readers of questions import the estimator
    from diffperf.explore.codesign.problem import DesignProblem
    from diffperf.explore.sweep.space import Space


@naming("load_model")
def load_model(model: Source) -> Model:
    """A model by the name of a shipped config, the path of a TOML file, or its table.

    A Hugging Face config may be the path of its `config.json` or of the folder that holds it, its table, or
    the object of transformers.
    **Raises:** `ConfigError`, in one line.
    """
    return read_model(model, asker_of("load_model"), "model")


@naming("load_system")
def load_system(
    system: Source,
    n_devices: float | None = None,
    *,
    stack: Source = None,
    calibration: Source = None,
) -> System:
    """A system by the name of a shipped config, the path of a TOML file, or its table.

        dp.load_system({"extends": "dgx-h100", "accelerator": {"memory": {"hbm": {"bandwidth": "4 TB/s"}}}})

    **Arguments:**

    - `n_devices`: how many devices it has, in place of its own number.
    - `stack`: the software that drives training and inference, in place of the system's own two stacks.
    - `calibration`: fitted values, in place of those that the system names; "none" keeps the system's own.

    **Raises:** `ConfigError`, in one line.
    """
    devices = None if n_devices is None else plain(n_devices)
    asker = asker_of("load_system")
    return read_system(system, devices, stack=stack, calibration=calibration, file=asker, key="system")


@naming("load_accelerator")
def load_accelerator(accelerator: Source) -> Accelerator:
    """An accelerator by the name of a shipped config, the path of a TOML file, or its table.

        dp.load_accelerator({"extends": "h100-sxm5-80gb", "memory": {"hbm": {"capacity": "96 GiB"}}})

    **Raises:** `ConfigError`, in one line.
    """
    return read_accelerator(accelerator, asker_of("load_accelerator"), "accelerator")


@naming("load_stack")
def load_stack(stack: Source) -> Stack:
    """A software stack by the name of a shipped config, the path of a TOML file, or its table."""
    return read_stack(stack, asker_of("load_stack"), "stack")


@naming("load_calibration")
def load_calibration(calibration: Source) -> Calibration:
    """Fitted values by the name of a shipped config, the path of a TOML file, or its table."""
    return read_calibration(calibration, asker_of("load_calibration"), "calibration")


@naming("load_strategy")
def load_strategy(table: dict[str, Any], n_devices: float | None = None) -> Strategy:
    """A strategy from a table of its fields, such as `{"tp": 8, "recompute": "full"}`.

    Where the table has no `dp`, the data-parallel degree is what the other degrees leave of `n_devices`.
    **Raises:** `ConfigError`, in one line.
    """
    fields = {name: plain(value) for name, value in table.items()} if isinstance(table, dict) else table
    return read_strategy(fields, asker_of("load_strategy"), n_devices)


@naming("load_space")
def load_space(space: "Space | str | Path | dict[str, Any]") -> "Space":
    """The space of a sweep by the name of a shipped space, the path of a TOML file, or its table."""
    from diffperf.explore.sweep.space_file import load_space as read_space

    return read_space(space, asker_of("load_space"), "space")


@naming("load_problem")
def load_problem(problem: "DesignProblem | str | Path | dict[str, Any]") -> "DesignProblem":
    """A design problem by the name of a shipped problem, the path of a TOML file, or its table."""
    from diffperf.explore.codesign.problem_file import load_problem as read_problem

    return read_problem(problem, asker_of("load_problem"), "problem")
