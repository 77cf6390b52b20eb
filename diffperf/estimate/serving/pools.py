"""Pools of workers: devices that only prefill prompts, or only decode, or do both."""

from typing import NamedTuple

import equinox as eqx

from diffperf.quantity import Scalar
from diffperf.workload.configuration import Configuration
from diffperf.workload.strategy import Strategy


class Pool(NamedTuple):
    """Devices of a server that run the same passes: `workers` copies of the model, each laid out alike.

    Each of the strategy's dp ranks is an engine with a batch of its own.
    """

    strategy: Strategy
    workers: Scalar

    @property
    def engines(self) -> Scalar:
        """Engines of all workers."""
        return self.strategy.dp * self.workers

    @property
    def engine_devices(self) -> Scalar:
        """Devices of one engine."""
        return self.strategy.tp * self.strategy.pp * self.strategy.cp

    @property
    def devices(self) -> Scalar:
        """Devices of all workers."""
        return self.strategy.devices * self.workers

    def worker(self, c: Configuration) -> Configuration:
        """The configuration of one worker, on the devices and the network of `c`."""
        return eqx.tree_at(
            lambda c: (c.strategy, c.system.n_devices), c, (self.strategy, self.strategy.devices)
        )
