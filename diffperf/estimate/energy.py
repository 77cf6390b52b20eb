"""Energy of a run: arithmetic, data movement, network and static power (arXiv 2507.02456 §III counts the same
terms).
"""

import equinox as eqx
import jax
import jax.numpy as jnp

from diffperf.estimate.kernels.roofline import Work
from diffperf.estimate.network.transfers import Transfer
from diffperf.quantity import Scalar, output
from diffperf.workload.configuration import Configuration


class Energy(eqx.Module):
    """Joules of a phase, over all devices."""

    compute: Scalar = output("J", "matrix arithmetic")
    memory: Scalar = output("J", "memory traffic")
    network: Scalar = output("J", "network traffic")
    static: Scalar = output("J", "static power")

    @property
    def total(self) -> Scalar:
        return self.compute + self.memory + self.network + self.static

    def __add__(self, other: "Energy") -> "Energy":
        return jax.tree.map(jnp.add, self, other)

    def __mul__(self, count: Scalar) -> "Energy":
        return jax.tree.map(lambda joules: joules * count, self)


def energy(c: Configuration, work: Work, transfer: Transfer, time: Scalar) -> Energy:
    """Energy of a phase of `time` seconds in which an average device does `work` and sends `transfer`."""
    system, accelerator, devices = c.system, c.system.accelerator, c.system.n_devices
    per_byte = jnp.stack([level.energy for level in accelerator.memory[1:]])
    return Energy(
        compute=devices * work.flops * accelerator.matrix_energy(c.strategy.precision),
        memory=devices * jnp.sum(work.traffic * per_byte),
        network=devices * jnp.sum(transfer.sent * jnp.stack([tier.energy for tier in system.network])),
        static=devices * accelerator.static_power * time,
    )
