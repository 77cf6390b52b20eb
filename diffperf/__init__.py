"""A differentiable performance, memory, energy and cost model of LLM training and inference.

    import diffperf as dp

    model, system = dp.load_model("gpt3-175b"), dp.load_system("dgx-a100", n_devices=64)
    strategy = dp.load_strategy({"tp": 8, "pp": 8, "global_batch": 64}, n_devices=64)
    print(dp.training_step(model, system, strategy))

and every sensitivity of the step time, in the shape of the system itself:

    jax.grad(lambda system: dp.training_step(model, system, strategy).time)(system)
"""

from diffperf.compiler import compile_quickly
from diffperf.errors import ConfigError
from diffperf.estimate.inference import decode, generate, prefill
from diffperf.estimate.phases import PHASES
from diffperf.estimate.training import training_step
from diffperf.load import check, load_model, load_strategy, load_system, override
from diffperf.relax import Exact, Smooth

__all__ = [
    "PHASES",
    "ConfigError",
    "Exact",
    "Smooth",
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
