"""Failures of the devices of a large system, and the time that it takes to go on after one."""

from diffperf.quantity import Declared, Scalar, quantity
from diffperf.units import DAY


class Reliability(Declared):
    """Interruptions of a job on many devices, and the storage of its checkpoints."""

    device_mtbf: Scalar = quantity(
        "s",
        "mean time between unexpected interruptions of a job, times the number of its devices",
        bounds=(1e4, 1e12),
        # Llama 3 (arXiv 2407.21783 §3.3.4): 419 unexpected interruptions in 54 days on 16,384 H100, of
        # whatever cause: devices, hosts, network, software.
        default=54 * DAY * 16_384 / 419,
    )
    restart_time: Scalar = quantity(
        "s",
        "time from an interruption until training goes on, without the reading of the checkpoint: detection, "
        "diagnosis, replacement of devices, initialization",
        bounds=(1, 1e6),
        # MegaScale (arXiv 2402.15627 §6.3) detects and recovers within 15 minutes in nine of ten cases; the
        # mean is an estimate.
        default=600.0,
    )
    repair_time: Scalar = quantity(
        "s",
        "time for which a spare stands in for a node that has failed",
        bounds=(1, 1e8),
        default=3 * DAY,  # an estimate: diagnosis and replacement by hand
    )
    storage_bandwidth: Scalar = quantity(
        "byte/s",
        "bandwidth of the storage of checkpoints per device, sustained",
        bounds=(1e3, 1e12),
        # Llama 3 (arXiv 2407.21783 §3.3.1): 2 TB/s sustained for 16,384 devices.
        default=2e12 / 16_384,
    )
