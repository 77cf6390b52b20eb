"""A differentiable performance, memory, energy and cost model of LLM training and inference.

    import diffperf as dp

    model, system = dp.load_model("gpt3-175b"), dp.load_system("dgx-a100", n_devices=64)
    strategy = dp.load_strategy({"tp": 8, "pp": 8, "global_batch": 64}, n_devices=64)
    print(dp.training_step(model, system, strategy))

and every sensitivity of the step time, in the shape of the system itself:

    jax.grad(lambda system: dp.training_step(model, system, strategy).time)(system)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diffperf.compiler import compile_quickly
    from diffperf.errors import ConfigError
    from diffperf.estimate.inference import decode, generate, prefill
    from diffperf.estimate.phases import PHASES
    from diffperf.estimate.training import training_step
    from diffperf.load import check, load_model, load_strategy, load_system, override
    from diffperf.relax import Exact, Smooth

    __version__: str

__all__ = [
    "PHASES",
    "ConfigError",
    "Exact",
    "Smooth",
    "__version__",
    "check",
    "compile_quickly",
    "decode",
    "generate",
    "load_model",
    "load_strategy",
    "load_system",
    "override",
    "prefill",
    "training_step",
]

# Where each name is defined. A name is imported when it is first used (PEP 562): the help of the command line
# need not wait for JAX, and Ctrl-C during the imports of a command is a matter of the command line.
_HOMES = {
    "PHASES": "diffperf.estimate.phases",
    "ConfigError": "diffperf.errors",
    "Exact": "diffperf.relax",
    "Smooth": "diffperf.relax",
    "check": "diffperf.load",
    "compile_quickly": "diffperf.compiler",
    "decode": "diffperf.estimate.inference",
    "generate": "diffperf.estimate.inference",
    "load_model": "diffperf.load",
    "load_strategy": "diffperf.load",
    "load_system": "diffperf.load",
    "override": "diffperf.load",
    "prefill": "diffperf.estimate.inference",
    "training_step": "diffperf.estimate.training",
}


def __getattr__(name: str) -> Any:
    """The public name `name`, imported from the module that defines it."""
    if name == "__version__":
        from importlib.metadata import version

        return version("diffperf")
    if name not in _HOMES:
        raise AttributeError(f"module 'diffperf' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
