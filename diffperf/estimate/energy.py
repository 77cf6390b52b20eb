"""Energy of a run: arithmetic, data movement, network, and what a device draws beside them (arXiv 2507.02456
§III counts the same terms).
"""

import dataclasses

import jax
import jax.numpy as jnp

from diffperf.estimate.kernels.clock import Clock, active_time, traffic_energy
from diffperf.estimate.kernels.roofline import Work
from diffperf.estimate.network.transfers import Transfer
from diffperf.hardware.system import System
from diffperf.quantity import Scalar, output
from diffperf.relax import larger
from diffperf.report.tables import Readable
from diffperf.workload.configuration import Configuration


class Energy(Readable):
    """Joules of a phase, over all devices."""

    compute: Scalar = output("J", "energy of arithmetic of matrix and vector units")
    memory: Scalar = output("J", "energy of memory traffic, that of collectives included")
    network: Scalar = output("J", "energy of network traffic")
    active: Scalar = output("J", "energy of clocks, instructions and leakage of working devices")
    static: Scalar = output("J", "energy of the idle power, which is drawn at any load")

    @property
    def total(self) -> Scalar:
        """Joules of all parts."""
        return self.compute + self.memory + self.network + self.active + self.static

    @property
    def dynamic(self) -> Scalar:
        """Joules beyond the idle power."""
        return self.total - self.static

    def __add__(self, other: "Energy") -> "Energy":
        return jax.tree.map(jnp.add, self, other)

    def __mul__(self, count: Scalar) -> "Energy":
        return jax.tree.map(lambda joules: joules * count, self)


def energy(
    c: Configuration, work: Work, transfer: Transfer, time: Scalar, clock: Clock, waiting: Scalar
) -> Energy:
    """Energy of a phase of `time` seconds in which an average device does `work` and sends `transfer`.

    The work is that at the `clock`. For `waiting` seconds of the phase the compute units wait for other
    devices, at a share of their active power, as between the kernels of the work.
    """
    system, accelerator, devices = c.system, c.system.accelerator, c.system.n_devices
    caches, memory = traffic_energy(work, accelerator)
    links, sending = transfer_energy(transfer, system)
    return dataclasses.replace(
        energy_beside_work(c, time, active_time(work, accelerator, time, waiting), clock),
        compute=devices * work.arithmetic,
        memory=devices * (caches * clock.energy_of_peak + memory + sending),
        network=devices * links,
    )


def transfer_energy(transfer: Transfer, system: System) -> tuple[Scalar, Scalar]:
    """Joules of a device's transfers: on the links, and to read and write its memory."""
    links = jnp.sum(transfer.sent * jnp.stack([tier.energy for tier in system.network]))
    return links, transfer.memory * system.accelerator.device_memory.energy


def dynamic_limit(system: System) -> Scalar:
    """Watts of all devices that the power limit leaves beyond their idle power."""
    accelerator = system.accelerator
    return system.n_devices * larger(accelerator.power_limit - accelerator.static_power, 0.0)


def energy_beside_work(c: Configuration, time: Scalar, active: Scalar, clock: Clock) -> Energy:
    """Joules of all devices in `time` seconds, of which they are active for `active`, beside arithmetic and
    traffic.
    """
    accelerator, devices, nothing = c.system.accelerator, c.system.n_devices, jnp.zeros_like(time)
    return Energy(
        compute=nothing,
        memory=nothing,
        network=nothing,
        active=devices * accelerator.active_power * clock.power_of_peak * active,
        static=devices * accelerator.static_power * time,
    )
