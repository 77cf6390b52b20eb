"""A differentiable performance, memory, energy and cost model of LLM training and inference.

    import diffperf as dp

    print(dp.estimate("gpt3-175b", "dgx-a100", devices=64, tp=8, pp=8, global_batch=64))

The functions of the phases are pure: every sensitivity of a step's time, in the shape of the system, is

    model, system = dp.load_model("gpt3-175b"), dp.load_system("dgx-a100", n_devices=64)
    strategy = dp.load_strategy({"tp": 8, "pp": 8, "global_batch": 64}, n_devices=64)
    jax.grad(lambda system: dp.training_step(model, system, strategy).time)(system)
"""

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diffperf.api.break_even_answer import break_even
    from diffperf.api.calibration_answer import calibrate
    from diffperf.api.codesign_answer import codesign
    from diffperf.api.compare_answer import compare
    from diffperf.api.cost_answer import cost
    from diffperf.api.die_answer import die
    from diffperf.api.estimate_answer import estimate
    from diffperf.api.front_answer import codesign_front
    from diffperf.api.loading import (
        load_accelerator,
        load_calibration,
        load_model,
        load_problem,
        load_space,
        load_stack,
        load_strategy,
        load_system,
    )
    from diffperf.api.map_answer import bottleneck_map
    from diffperf.api.override_inputs import override, replace
    from diffperf.api.plan_answer import plan
    from diffperf.api.sensitivity_question import sensitivity
    from diffperf.api.serve_answer import serve
    from diffperf.api.sweep_answer import sweep
    from diffperf.api.validation_answer import validate
    from diffperf.batch_last import vmap_last
    from diffperf.compiler import compile_quickly, throughput_options
    from diffperf.errors import ConfigError
    from diffperf.estimate.inference import decode, generate, prefill
    from diffperf.estimate.phases import PHASES
    from diffperf.estimate.training import training_step
    from diffperf.flat_program import flattened_calls
    from diffperf.load import check
    from diffperf.relax import Exact, Smooth
    from diffperf.shared_values import compute_once

    __version__: str

__all__ = [
    "PHASES",
    "ConfigError",
    "Exact",
    "Smooth",
    "__version__",
    "bottleneck_map",
    "break_even",
    "calibrate",
    "check",
    "codesign",
    "codesign_front",
    "compare",
    "compile_quickly",
    "compute_once",
    "cost",
    "decode",
    "die",
    "estimate",
    "flattened_calls",
    "generate",
    "load_accelerator",
    "load_calibration",
    "load_model",
    "load_problem",
    "load_space",
    "load_stack",
    "load_strategy",
    "load_system",
    "override",
    "plan",
    "prefill",
    "replace",
    "sensitivity",
    "serve",
    "sweep",
    "throughput_options",
    "training_step",
    "validate",
    "vmap_last",
]

# Where each name is defined. A name is imported when it is first used (PEP 562): the help of the command line
# need not wait for JAX, and Ctrl-C during the imports of a command is a matter of the command line.
_HOMES = {
    "ConfigError": "diffperf.errors",
    "Exact": "diffperf.relax",
    "PHASES": "diffperf.estimate.phases",
    "Smooth": "diffperf.relax",
    "bottleneck_map": "diffperf.api.map_answer",
    "break_even": "diffperf.api.break_even_answer",
    "calibrate": "diffperf.api.calibration_answer",
    "check": "diffperf.load",
    "codesign": "diffperf.api.codesign_answer",
    "codesign_front": "diffperf.api.front_answer",
    "compare": "diffperf.api.compare_answer",
    "compile_quickly": "diffperf.compiler",
    "compute_once": "diffperf.shared_values",
    "flattened_calls": "diffperf.flat_program",
    "decode": "diffperf.api.pure_phases",
    "die": "diffperf.api.die_answer",
    "generate": "diffperf.api.pure_phases",
    "load_accelerator": "diffperf.api.loading",
    "load_calibration": "diffperf.api.loading",
    "load_model": "diffperf.api.loading",
    "load_problem": "diffperf.api.loading",
    "load_space": "diffperf.api.loading",
    "load_stack": "diffperf.api.loading",
    "load_strategy": "diffperf.api.loading",
    "load_system": "diffperf.api.loading",
    "override": "diffperf.api.override_inputs",
    "plan": "diffperf.api.plan_answer",
    "prefill": "diffperf.api.pure_phases",
    "replace": "diffperf.api.override_inputs",
    "sensitivity": "diffperf.api.sensitivity_question",
    "serve": "diffperf.api.serve_answer",
    "sweep": "diffperf.api.sweep_answer",
    "throughput_options": "diffperf.compiler",
    "training_step": "diffperf.api.pure_phases",
    "validate": "diffperf.api.validation_answer",
    "vmap_last": "diffperf.batch_last",
}
# Questions that have the name of a room of the package, with their homes: `diffperf.estimate` holds the
# estimator, and is called to estimate something.
_CALLED_ROOMS = {"cost": "diffperf.api.cost_answer", "estimate": "diffperf.api.estimate_answer"}


def __getattr__(name: str) -> Any:
    """The public name `name`, imported from the module that defines it."""
    if name == "__version__":
        from importlib.metadata import version

        return version("diffperf")
    if name in _CALLED_ROOMS:
        return _question(name)
    if name not in _HOMES:
        raise AttributeError(f"module 'diffperf' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def _question(name: str) -> Any:
    """The question that has the name of a room; what is in the room are its attributes.

    `import diffperf.cost.yields` needs these attributes where it is followed by `as` or by a use of the path.
    """
    room = importlib.import_module(f"diffperf.{name}")
    question = getattr(importlib.import_module(_CALLED_ROOMS[name]), name)
    question.__dict__.update({key: value for key, value in vars(room).items() if not key.startswith("__")})
    return question


class _Package(types.ModuleType):
    """This package: Python sets a room as its attribute when the room is imported, but a question keeps its
    name.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _CALLED_ROOMS or not isinstance(value, types.ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
