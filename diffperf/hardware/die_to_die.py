"""Links between the dies of a package: what crosses them, and the bandwidth, area and power that takes.

The stacks of a package are one memory for all its dies: addresses are interleaved over all stacks, of which
each die has its part beside it. Of the traffic of a die with memory the share (dies - 1) / dies is with the
stacks of other dies, and crosses one link. Caches hold what their own die reads, as the partitions of the
A100's L2 do (NVIDIA A100 whitepaper), so that no other traffic crosses. Products have wider links than that:
two dies with the 8 TB/s of B200 need 2 TB/s in each direction, and B200 has 5 (NVIDIA Blackwell architecture
brief: 10 TB/s in both); `die_to_die_bandwidth` of a design says how wide they are.
"""

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp

from diffperf.hardware.technology import LinkTechnology, MemoryTechnology
from diffperf.quantity import Scalar
from diffperf.relax import inverse, positive, smaller


@dataclasses.dataclass(frozen=True)
class DieToDieLinks:
    """The links between the dies of a package, from its numbers of dies and stacks.

    - `stacks`: the number of stacks of every technology on the package.
    - `chosen`: byte/s per direction of the links of one die; 0 for as much as its stacks need.
    """

    link: LinkTechnology
    dies: Scalar
    stacks: Sequence[tuple[Scalar, MemoryTechnology]]
    chosen: Scalar

    @property
    def crossing(self) -> Scalar:
        """The share of the traffic with memory that crosses a link: 0 for a single die."""
        return 1 - 1 / self.dies

    @property
    def needed(self) -> Scalar:
        """byte/s per direction that cross the links of one die where all stacks deliver what they can."""
        delivered = sum(count * stack.stack_bandwidth for count, stack in self.stacks)
        return self.crossing * delivered / self.dies

    @property
    def bandwidth(self) -> Scalar:
        """byte/s per direction of the links of one die; a single die has none."""
        several = smaller(self.dies - 1, 1.0)
        return jnp.where(self.chosen > 0, several * self.chosen, self.needed)

    @property
    def delivered_share(self) -> Scalar:
        """The share of the stacks' bandwidth that the links let through.

        Requests go to all stacks alike, and wait for those that are reached over links.
        """
        return jnp.where(self.chosen > 0, smaller(self.chosen * inverse(positive(self.needed)), 1.0), 1.0)

    @property
    def area(self) -> Scalar:
        """mm² of the links of one die."""
        return self.bandwidth / self.link.area_density

    @property
    def edge(self) -> Scalar:
        """mm of the edge of one die that its links take."""
        return self.bandwidth / self.link.edge_density

    @property
    def bumps(self) -> Scalar:
        """Bumps of one die for the signals of its links."""
        return self.bandwidth / self.link.bump_bandwidth

    @property
    def power(self) -> Scalar:
        """W of the links of all dies where all stacks deliver what the links let through."""
        return self.dies * self.needed * self.delivered_share * self.link.energy
