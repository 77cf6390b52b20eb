"""Energy of a run: arithmetic, data movement, network and static power (arXiv 2507.02456 §III counts the same terms)."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.estimate.kernels.roofline import Work
from diffperf.estimate.network.collectives import Transfer
from diffperf.hardware.system import System
from diffperf.quantity import Scalar, output


class Energy(eqx.Module):
    """Joules, over all devices."""

    compute: Scalar = output("J", "matrix arithmetic")
    memory: Scalar = output("J", "memory traffic")
    network: Scalar = output("J", "network traffic")
    static: Scalar = output("J", "static power")

    @property
    def total(self) -> Scalar:
        return self.compute + self.memory + self.network + self.static


def energy(
    system: System, precision: Float[Array, " precisions"], work: Work, transfer: Transfer, time: Scalar
) -> Energy:
    """Energy of `work` and `transfer` on every device (averages) within `time` seconds."""
    accelerator, devices = system.accelerator, system.n_devices
    per_byte = jnp.stack([level.energy for level in accelerator.memory[1:]])
    return Energy(
        compute=devices * work.flops * accelerator.matrix_energy(precision),
        memory=devices * jnp.sum(work.traffic * per_byte),
        network=devices * jnp.sum(transfer.sent * jnp.stack([tier.energy for tier in system.network])),
        static=devices * accelerator.static_power * time,
    )
