"""The pure functions of the phases, dp.training_step and its like, as users call them.

Inside jit they are the functions of the estimator, nothing else. Called with numbers, they refuse what is not
possible. Outside of jit they are compiled as a whole, also under grad and vmap.
"""

import functools
import json
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np

from diffperf.api.boundary import asker_of, naming
from diffperf.compiler import stored, storing_in, user_folder
from diffperf.errors import ConfigError, type_of
from diffperf.estimate.phases import PHASES, estimate
from diffperf.hardware.system import System
from diffperf.load import check
from diffperf.quantity import is_traced
from diffperf.relax import Exact, Relaxation
from diffperf.stored_derivatives import StoredDerivatives, only_differentiated
from diffperf.tracing import is_staged
from diffperf.workload.configuration import Configuration
from diffperf.workload.model import Model
from diffperf.workload.strategy import Strategy

Phase = Callable[..., Any]


def _public(phase: str, name: str) -> Phase:
    """The function of a phase under its public name."""
    function = PHASES[phase]

    @naming(name)
    @functools.wraps(function)
    def called(model: Any, system: Any, strategy: Any, relax: Any = None) -> eqx.Module:
        _refuse_other_kinds(asker_of(name), model, system, strategy, relax)
        inputs = Configuration(model, system, strategy, Exact() if relax is None else relax)
        traced, known = eqx.partition(inputs, is_traced)
        if jax.tree.leaves(traced):
            if not is_staged() and only_differentiated(traced):
                return _derivatives(phase)(traced, known)
            return estimate(inputs, phase)
        if np.ndim(strategy.tp):
            return estimate(inputs, phase)  # a batch along an axis of all inputs
        if isinstance(inputs.relax, Exact):
            check(model, system, strategy, phase, asker_of(name))
        with storing_in(user_folder()):
            return _compiled(inputs, phase)

    called.__module__ = __name__
    return called


def _refuse_other_kinds(asker: str, model: Any, system: Any, strategy: Any, relax: Any) -> None:
    """Raises `ConfigError` for the first argument of another kind, such as the name of a config."""
    arguments = {"model": (model, Model), "system": (system, System), "strategy": (strategy, Strategy)}
    for name, (value, kind) in arguments.items():
        if not isinstance(value, kind):
            expected = f"a {kind.__name__}, as dp.load_{name} returns it"
            remedy = "the arguments are model, system and strategy, in this order"
            if isinstance(value, str | dict):
                remedy = f"write dp.load_{name}({json.dumps(value, default=str)})"
            raise ConfigError(asker, name, type_of(value), expected, remedy)
    if not isinstance(relax, Relaxation | None):
        raise ConfigError(asker, "relax", type_of(relax), "dp.Exact() or dp.Smooth(50)", "write one of these")


@functools.cache
def _derivatives(phase: str) -> StoredDerivatives:
    """The report of a phase as a function of inputs that JAX only differentiates, such as those of `jax.grad`
    outside of `jax.jit`, and of the other inputs. The report is that of a call with numbers, the derivatives
    are stored programs.
    """
    return StoredDerivatives(
        lambda inputs, known: estimate(eqx.combine(inputs, known), phase),
        value=lambda inputs, known: _compiled(eqx.combine(inputs, known), phase),
        name=phase,
    )


@stored("phase")
def _compiled(inputs: Configuration, phase: str) -> eqx.Module:
    """The report of a phase, as one program."""
    return estimate(inputs, phase)


training_step = _public("training", "training_step")
prefill = _public("prefill", "prefill")
decode = _public("decode", "decode")
generate = _public("generate", "generate")
