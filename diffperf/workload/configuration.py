"""One configuration: everything that an estimate depends on, in one tree."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from diffperf.hardware.system import System
from diffperf.quantity import Weights, real
from diffperf.relax import Exact, Relaxation
from diffperf.workload.model import Model
from diffperf.workload.strategy import Strategy


class Configuration(eqx.Module):
    """A model, the system it runs on, the strategy that lays it out, and how decisions between cases are
    relaxed.

    Dotted paths into a configuration name its inputs: `strategy.tp`,
    `system.accelerator.memory.hbm.bandwidth`, `model.hidden`.
    """

    model: Model
    system: System
    strategy: Strategy
    relax: Relaxation = Exact()

    def for_training(self) -> "Configuration":
        """This configuration without a number format of the KV cache of its own, in which attention would
        multiply: training has no cache.
        """
        given = self.strategy.kv_precision
        wide = Weights.only("bf16", given.alternatives, given.array.dtype)
        array = np.broadcast_to(wide.array, given.array.shape)  # NumPy's, which stays concrete in programs
        return eqx.tree_at(lambda c: c.strategy.kv_precision.array, self, array)

    def for_inference(self) -> "Configuration":
        """This configuration with the system's inference stack in place of its training stack, and without
        features that serving software lacks: sequence parallelism, a schedule of training, and first or last
        stages of their own size.

        Serving software computes norms and residuals on every rank of a tensor-parallel group. Software
        without grouped-query attention runs models as if every head had keys and values of its own.
        """
        default = Strategy()
        off = Weights.only("off", default.sequence_parallel.alternatives)
        choices = {
            "schedule": default.schedule,
            "embedding_in_split": default.embedding_in_split,
            "loss_in_split": default.loss_in_split,
            "sequence_parallel": off,
        }

        def training_only(c: Configuration) -> list:
            """The numbers and weights of a strategy that only training has."""
            stages = [c.strategy.first_stage_layers, c.strategy.last_stage_layers]
            return [*stages, *(getattr(c.strategy, name).array for name in choices)]

        given = training_only(self)
        values = [real(0.0), real(0.0), *(choice.array for choice in choices.values())]
        own = [
            jnp.broadcast_to(jnp.asarray(value, old.dtype), old.shape)
            for value, old in zip(values, given, strict=True)
        ]
        repeated = self.system.inference_stack.repeats_kv_heads.on
        kv_heads = [
            layers.kv_heads + repeated * (layers.heads - layers.kv_heads) for layers in self.model.layers
        ]
        return eqx.tree_at(
            lambda c: [
                c.system.stack,
                *(layers.kv_heads for layers in c.model.layers),
                *training_only(c),
            ],
            self,
            [self.system.inference_stack, *kv_heads, *own],
        )
