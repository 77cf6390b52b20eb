"""Collectives by brute force: real numbers moved over the links of explicit graphs, step by step, links
shared by all on them.

A step lasts as long as its longest route takes (hops × latency) and its fullest link (bytes / bandwidth).
Nothing here knows a formula of the estimator.
"""

import itertools
import math

import numpy as np

ELEMENT = 8.0  # bytes of the numbers that are moved


class Grid:
    """A torus (`wraps`) or mesh of equal sides; a hypercube is a mesh of sides of two. Messages go dimension
    by dimension.
    """

    def __init__(
        self, side: int, dimensions: int, *, wraps: bool, bandwidth: float, links: int | None = None
    ):
        self.side, self.dimensions, self.wraps = side, dimensions, wraps
        self.size = side**dimensions
        self.link = bandwidth / (2 * dimensions if links is None else links)

    def coordinates(self, rank: int) -> tuple[int, ...]:
        return tuple(rank // self.side**d % self.side for d in range(self.dimensions))

    def rank(self, coordinates) -> int:
        return sum(c * self.side**d for d, c in enumerate(coordinates))

    def line(self, rank: int, dimension: int) -> list[int]:
        """The ranks of the line along a dimension that a rank lies on."""
        at = list(self.coordinates(rank))
        return [self.rank((*at[:dimension], i, *at[dimension + 1 :])) for i in range(self.side)]

    def _ways(self, start: int, end: int) -> list[tuple[list[int], float]]:
        """Coordinates passed along one dimension, and the share of a message on that way: halves if both are
        as short.
        """
        forward = (end - start) % self.side
        if not self.wraps:
            return [(list(range(start, end + 1)) if end >= start else list(range(start, end - 1, -1)), 1.0)]
        ways = []
        if 2 * forward <= self.side:
            ways.append([(start + i) % self.side for i in range(forward + 1)])
        if 2 * forward >= self.side:
            ways.append([(start - i) % self.side for i in range(self.side - forward + 1)])
        return [(way, 1 / len(ways)) for way in ways]

    def routes(self, source: int, target: int):
        """(directed links, share of the message) of every route: a link is (rank, rank)."""
        here, there = self.coordinates(source), self.coordinates(target)
        for choice in itertools.product(*(self._ways(h, t) for h, t in zip(here, there, strict=True))):
            links, at = [], list(here)
            for dimension, (way, _) in enumerate(choice):
                for before, after in itertools.pairwise(way):
                    source_at, target_at = [*at], [*at]
                    source_at[dimension], target_at[dimension] = before, after
                    links.append((self.rank(source_at), self.rank(target_at)))
                at[dimension] = there[dimension]
            yield links, math.prod(share for _, share in choice)

    def capacity(self, link) -> float:
        return self.link * (
            2 if self.wraps and self.side == 2 else 1
        )  # both links of a side of two lead to the same neighbour

    def hops(self, links) -> int:
        return len(links)


class FullyConnected:
    def __init__(self, size: int, *, bandwidth: float, links: int | None = None):
        self.size, self.link = size, bandwidth / (size - 1 if links is None else links)

    def routes(self, source, target):
        yield [(source, target)], 1.0

    def capacity(self, link):
        return self.link

    def hops(self, links):
        return 1


class Switch:
    """Devices on one switch; or on leaf switches of `leaf` devices whose uplinks carry 1/`oversubscription`
    of what they send.
    """

    def __init__(
        self,
        size: int,
        *,
        bandwidth: float,
        leaf: int | None = None,
        oversubscription: float = 1.0,
        far: int = 2,
    ):
        self.size, self.bandwidth, self.leaf, self.far = size, bandwidth, size if leaf is None else leaf, far
        self.uplink = self.leaf * bandwidth / oversubscription

    def routes(self, source, target):
        links = [("up", source), ("down", target)]
        if source // self.leaf != target // self.leaf:
            links += [("leaf up", source // self.leaf), ("leaf down", target // self.leaf)]
        yield links, 1.0

    def capacity(self, link):
        return self.uplink if link[0].startswith("leaf") else self.bandwidth

    def hops(self, links):
        return 1 if len(links) == 2 else self.far


class Simulation:
    """Ranks of a graph with a buffer each."""

    def __init__(self, graph, elements: int, latency: float):
        self.graph, self.latency, self.time = graph, latency, 0.0
        self.buffers = np.random.default_rng(0).normal(size=(graph.size, elements))
        self.before = self.buffers.copy()

    @property
    def volume(self) -> float:
        return self.buffers.shape[1] * ELEMENT

    def step(self, messages) -> None:
        """All messages (from, to, indices, add?) at once."""
        load, hops = {}, 0
        for source, target, at, _ in messages:
            for links, share in self.graph.routes(source, target):
                hops = max(hops, self.graph.hops(links))
                for link in links:
                    load[link] = load.get(link, 0.0) + share * len(at) * ELEMENT
        self.time += hops * self.latency + max(
            (used / self.graph.capacity(link) for link, used in load.items()), default=0.0
        )
        payloads = [
            (target, at, add, self.buffers[source][at].copy()) for source, target, at, add in messages
        ]
        for target, at, add, payload in payloads:
            self.buffers[target][at] = self.buffers[target][at] + payload if add else payload

    def run(self, schedule) -> float:
        for messages in schedule:
            self.step(messages)
        return self.time


def merged(schedules) -> list:
    """Schedules that run side by side."""
    return [list(itertools.chain(*step)) for step in itertools.zip_longest(*schedules, fillvalue=[])]


def ring(order, shares, *, add: bool) -> list:
    """Reduce-scatter (`add`) that leaves share i with member i of a ring, or the all-gather of those
    shares.
    """
    n = len(order)
    first = 1 if add else 0
    return [
        [(rank, order[(i + 1) % n], shares[(i - step - first) % n], add) for i, rank in enumerate(order)]
        for step in range(n - 1)
    ]


def both_ways(order, shares, *, add: bool) -> list:
    """Half of every share around the ring in each direction."""
    halves = [np.array_split(share, 2) for share in shares]
    onward = ring(order, [half[0] for half in halves], add=add)
    return merged([onward, ring(order[::-1], [half[1] for half in halves][::-1], add=add)])


def line(order, shares, *, add: bool) -> list:
    """The same on a line without a way around: partial sums flow to their owner from both ends, or shares
    away from it.
    """
    n = len(order)
    steps = [[] for _ in range(n - 1)]
    for ranks, parts in ((order, shares), (order[::-1], shares[::-1])):
        for i in range(n - 1):
            for owner in range(i + 1, n):
                # Reduction: the farthest owner's sum leaves first. The gather is the same, played backwards.
                step = n - 1 - owner + i
                message = (
                    (ranks[i], ranks[i + 1], parts[owner], True)
                    if add
                    else (ranks[i + 1], ranks[i], parts[owner], False)
                )
                steps[step if add else n - 2 - step].append(message)
    return steps


def dimension_wise(graph: Grid, elements: int, *, add: bool) -> list:
    """Reduce-scatter or all-gather on a grid: as many parts of the buffer as dimensions, each starting in
    another one.
    """
    d, n = graph.dimensions, graph.side
    along = both_ways if graph.wraps and n > 2 else line
    schedules = []
    for part, indices in enumerate(np.split(np.arange(elements), d)):
        order = [(part + i) % d for i in range(d)]
        phases = []
        for position, dimension in enumerate(order):
            lines = {tuple(graph.line(rank, dimension)) for rank in range(graph.size)}
            phase = []
            for ranks in lines:
                held = indices  # what the dimensions before have left: the share of these coordinates
                for earlier in order[:position]:
                    held = np.split(held, n)[graph.coordinates(ranks[0])[earlier]]
                phase.append(along(list(ranks), np.split(held, n), add=add))
            phases.append(merged(phase))
        schedules.append(list(itertools.chain(*(phases if add else phases[::-1]))))
    return merged(schedules)


def halving(size: int, elements: int) -> list:
    """Recursive halving: at distance m/2, m/4 … 1 half of what is held goes to the partner."""
    held, steps = {rank: np.arange(elements) for rank in range(size)}, []
    distance = size // 2
    while distance:
        messages = []
        for rank in range(size):
            low, high = np.split(held[rank], 2)
            kept, given = (high, low) if rank & distance else (low, high)
            messages.append((rank, rank ^ distance, given, True))
            held[rank] = kept
        steps.append(messages)
        distance //= 2
    return steps


def doubling(size: int, elements: int) -> list:
    """Recursive doubling: the all-gather that undoes `halving`."""
    return [[(to, rank, at, False) for rank, to, at, _ in step] for step in halving(size, elements)[::-1]]


def to_owners(size: int, elements: int) -> list:
    shares = np.split(np.arange(elements), size)
    return [
        [(rank, owner, shares[owner], True) for rank in range(size) for owner in range(size) if rank != owner]
    ]


def from_owners(size: int, elements: int) -> list:
    shares = np.split(np.arange(elements), size)
    return [
        [
            (owner, rank, shares[owner], False)
            for rank in range(size)
            for owner in range(size)
            if rank != owner
        ]
    ]


def everyone_to_everyone(size: int, elements: int) -> list:
    """All-reduce in one step."""
    whole = np.arange(elements)
    return [[(rank, other, whole, True) for rank in range(size) for other in range(size) if rank != other]]


def binomial(size: int, elements: int) -> list:
    """Broadcast from rank 0 by a binomial tree."""
    whole = np.arange(elements)
    return [
        [(rank, rank + 2**step, whole, False) for rank in range(2**step)]
        for step in range(int(math.log2(size)))
    ]
