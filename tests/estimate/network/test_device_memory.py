"""Bytes of device memory that collectives read and write, by counting them step by step."""

import jax.numpy as jnp
import numpy as np
import pytest

from diffperf.estimate.network import transfers
from diffperf.estimate.network.placement import place
from diffperf.quantity import real, replace
from diffperf.relax import Exact


class CountedMemory:
    """The device memories of a ring of ranks, with every share that is read or written counted.

    The steps are those of NCCL's rings (src/device/reduce_scatter.h, all_gather.h, all_reduce.h): what is
    received lies in the device memory of the receiver, and sums are sent on from registers.
    """

    def __init__(self, ranks: int):
        self.ranks = ranks
        self.own = np.random.default_rng(1).normal(size=(ranks, ranks))  # by rank and share
        self.received = np.zeros_like(self.own)
        self.accesses = np.zeros(ranks)

    def read(self, where, rank, share):
        self.accesses[rank] += 1
        return where[rank, share]

    def write(self, where, rank, share, value):
        self.accesses[rank] += 1
        where[rank, share] = value

    def reduce_scatter(self) -> dict[int, float]:
        """Adds up share r on rank r, and writes it there; returns the sums that ranks hold in registers."""
        ranks = range(self.ranks)
        sums = {}
        for step in range(self.ranks):
            sent = {}
            for rank in ranks:
                share = (rank - 1 - step) % self.ranks
                value = self.read(self.own, rank, share)
                if step > 0:
                    value = value + self.read(self.received, rank, share)
                if step == self.ranks - 1:
                    self.write(self.own, rank, share, value)
                    sums[rank] = value
                else:
                    sent[(rank + 1) % self.ranks] = (share, value)
            for rank, (share, value) in sent.items():
                self.write(self.received, rank, share, value)
        return sums

    def all_gather(self, in_registers: dict[int, float] | None = None) -> None:
        """Hands on the share that each rank owns; the first from registers, where it is there."""
        for step in range(self.ranks - 1):
            sent = {}
            for rank in range(self.ranks):
                share = (rank - step) % self.ranks
                known = step == 0 and in_registers is not None
                value = in_registers[rank] if known else self.read(self.own, rank, share)
                sent[(rank + 1) % self.ranks] = (share, value)
            for rank, (share, value) in sent.items():
                self.write(self.own, rank, share, value)


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("kind", ["reduce_scatter", "all_gather", "all_reduce"])
def test_device_memory_of_rings_by_counting(system, kind, ranks):
    memory = CountedMemory(ranks)
    total = memory.own.sum(axis=0)
    if kind == "all_gather":
        owned = np.diag(memory.own).copy()
        memory.all_gather()
        np.testing.assert_allclose(memory.own, np.tile(owned, (ranks, 1)))
    else:
        sums = memory.reduce_scatter()
        np.testing.assert_allclose([sums[rank] for rank in range(ranks)], total)
        if kind == "all_reduce":
            memory.all_gather(sums)
            np.testing.assert_allclose(memory.own, np.tile(total, (ranks, 1)))
    [accesses] = set(memory.accesses)
    volume = 1e9
    transfer = transfers.COLLECTIVES[kind](group_of(system, ranks), real(volume))
    assert float(transfer.memory) == pytest.approx(accesses * volume / ranks, rel=1e-12)


def group_of(system, ranks):
    """Ranks side by side on the innermost tier of a system whose switches do not reduce."""
    plain = replace(system, {"network.nvlink.in_network_reduction": 0.0})
    return place(plain, jnp.asarray(float(ranks)), jnp.asarray(1.0), Exact())


def test_device_memory_of_switches_that_reduce(system):
    """They read a buffer once and write the result once, and are slower than rings for groups of two."""
    reducing = replace(system, {"network.nvlink.in_network_reduction": 1.0})
    group = place(reducing, jnp.asarray(8.0), jnp.asarray(1.0), Exact())
    assert float(transfers.all_reduce(group, real(1e9)).memory) == pytest.approx(2e9, rel=1e-12)
    alone = place(reducing, jnp.asarray(1.0), jnp.asarray(1.0), Exact())
    assert float(transfers.all_reduce(alone, real(1e9)).memory) == 0


@pytest.mark.parametrize("kind", ["all_to_all", "send_recv", "ring_shift"])
def test_device_memory_of_messages(system, kind):
    """What is sent is read, and as much is received and written."""
    transfer = transfers.COLLECTIVES[kind](group_of(system, 4), real(1e9))
    assert float(transfer.memory) == pytest.approx(2 * float(jnp.sum(transfer.sent)), rel=1e-12)
