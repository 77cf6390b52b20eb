"""One configuration: everything that an estimate depends on, in one tree."""

import equinox as eqx
import jax.numpy as jnp

from diffperf.hardware.system import System
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

    def for_inference(self) -> "Configuration":
        """The same configuration with the system's inference stack as the stack that drives it, and without
        sequence parallelism.

        Serving software computes norms and residuals on every rank of a tensor-parallel group.
        """
        split = self.strategy.sequence_parallel.array
        whole = jnp.zeros_like(split).at[..., 0].set(1.0)  # all weight on "off"
        return eqx.tree_at(
            lambda c: (c.system.stack, c.strategy.sequence_parallel.array),
            self,
            (self.system.inference_stack, whole),
        )
