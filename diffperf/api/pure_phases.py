"""The pure functions of the phases, dp.training_step and its like, as users call them.

Inside jit, grad and vmap they are the functions of the estimator, nothing else. Called with numbers, they
refuse what is not possible, and are compiled as a whole.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np

from diffperf.api.boundary import asker_of, naming
from diffperf.compiler import stored, storing_in, user_folder
from diffperf.estimate.phases import PHASES, estimate
from diffperf.hardware.system import System
from diffperf.load import check
from diffperf.quantity import is_traced
from diffperf.relax import Exact, Relaxation
from diffperf.workload.configuration import Configuration
from diffperf.workload.model import Model
from diffperf.workload.strategy import Strategy

Phase = Callable[..., Any]


def _public(phase: str, name: str) -> Phase:
    """The function of a phase under its public name."""
    function = PHASES[phase]

    @naming(name)
    @functools.wraps(function)
    def called(
        model: Model, system: System, strategy: Strategy, relax: Relaxation | None = None
    ) -> eqx.Module:
        inputs = Configuration(model, system, strategy, Exact() if relax is None else relax)
        if not _of_numbers(inputs):
            return estimate(inputs, phase)
        if isinstance(inputs.relax, Exact):
            check(model, system, strategy, phase, asker_of(name))
        with storing_in(user_folder()):
            return _compiled(inputs, phase)

    called.__module__ = __name__
    return called


def _of_numbers(inputs: Configuration) -> bool:
    """Whether all inputs of a configuration are numbers: none is traced, and none has an axis of a batch."""
    leaves = jax.tree.leaves(inputs)
    return not any(map(is_traced, leaves)) and np.ndim(inputs.strategy.tp) == 0


@stored("phase")
def _compiled(inputs: Configuration, phase: str) -> eqx.Module:
    """The report of a phase, as one program."""
    return estimate(inputs, phase)


training_step = _public("training", "training_step")
prefill = _public("prefill", "prefill")
decode = _public("decode", "decode")
generate = _public("generate", "generate")
