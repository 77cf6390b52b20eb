"""A training of weeks: interruptions and checkpoints, and what it takes in time, energy, money and carbon."""

import jax.numpy as jnp

from diffperf.cost.network_cost import network_cost
from diffperf.cost.ownership import facility_energy, run_cost
from diffperf.estimate.training import TrainingReport
from diffperf.quantity import Scalar, output
from diffperf.relax import inverse, larger, smaller
from diffperf.report.tables import Readable
from diffperf.workload.configuration import Configuration


class LongRun(Readable):
    """A whole training, in the mean over interruptions."""

    steps: Scalar = output("", "optimizer steps")
    time: Scalar = output("s", "time of the training, interruptions included")
    goodput: Scalar = output("", "share of the time that goes into steps which are kept")
    interruptions: Scalar = output("", "expected number of unexpected interruptions")
    checkpoint_interval: Scalar = output(
        "s",
        "time between checkpoints: the one that loses least, or that of writing one where that is longer",
    )
    checkpoint_pause: Scalar = output("s", "time for which devices wait while a checkpoint is copied")
    checkpoint_write: Scalar = output("s", "time to write a checkpoint to storage, beside the training")
    spare_devices: Scalar = output("", "devices that stand in for failed nodes, on average")
    energy: Scalar = output("J", "energy of devices, hosts and facility")
    cost: Scalar = output(
        "USD", "cost of owning and running the system during the training, spare devices included"
    )
    emissions: Scalar = output(
        "kg",
        "CO2e of the electricity, and of making the devices by the share of their lifetime that is used",
    )


def long_run(c: Configuration, report: TrainingReport, tokens: Scalar) -> LongRun:
    """The whole training on `tokens` tokens, from the report of one of its steps.

    Devices pause while the states of the model, each kept by one of them, are copied to their hosts, and
    train on while hosts write them to storage, which bounds the interval between checkpoints from below.

    **Sources:** the mean time M·e^(R/M)·(e^((τ + δ)/M) − 1) of an interval τ that is kept, with M the mean
    time between random interruptions, R that of a restart and δ the pause of a checkpoint; the interval
    √(2·δ·M)·(1 + √(δ/(2·M))/3 + δ/(18·M)) − δ that loses least. Both: Daly, Future Generation Computer
    Systems 22 (2006), 303, after Young, CACM 17 (1974), 530.
    """
    system, reliability = c.system, c.system.reliability
    steps = tokens / (c.strategy.global_batch * c.strategy.sequence_length)
    between = reliability.device_mtbf / system.n_devices
    bytes_ = _state_bytes(c) / system.n_devices
    pause = bytes_ * system.host_byte_time
    write = bytes_ * inverse(reliability.storage_bandwidth)
    ratio = pause / between
    best = jnp.sqrt(2 * pause * between) * (1 + jnp.sqrt(ratio / 2) / 3 + ratio / 18) - pause
    interval = larger(best, write)
    restart = reliability.restart_time + write
    taken = between * jnp.exp(restart / between) * jnp.expm1((interval + pause) / between)
    goodput = interval / taken
    time = steps * report.time / goodput
    interruptions = time / between
    idle = smaller(interruptions * restart / time, 1.0)
    devices_power = report.power * (1 - idle) + system.accelerator.static_power * idle
    spares = system.n_devices * reliability.repair_time / reliability.device_mtbf * system.network[0].size
    joules = devices_power * system.n_devices * time
    owned = 1 + spares / system.n_devices
    cost = run_cost(system, time, joules, c.relax)
    return LongRun(
        steps=steps,
        time=time,
        goodput=goodput,
        interruptions=interruptions,
        checkpoint_interval=interval,
        checkpoint_pause=pause,
        checkpoint_write=write,
        spare_devices=spares,
        energy=facility_energy(system, time, joules, network_cost(system, c.relax)),
        cost=cost.run * owned,
        emissions=cost.emissions + (owned - 1) * cost.embodied_emissions,
    )


def _state_bytes(c: Configuration) -> Scalar:
    """Bytes of a checkpoint: weights and optimizer states of the whole model."""
    return c.model.parameters * (c.strategy.kept_weight_width + c.strategy.optimizer_bytes)
