"""Sensitivities summed by what they belong to: compute, memory, network, power, cost and so on."""

import dataclasses
from collections.abc import Sequence

from diffperf.explore.sensitivity import SLOPE, Sensitivity

_POWER = ("energy", "power", "waiting_share", "clock")
_OF_SYSTEM = {
    "network": "network",
    "stack": "software",
    "inference_stack": "software",
    "prices": "cost",
    "reliability": "reliability",
    "n_devices": "devices",
    "host_bandwidth": "host",
    "host_memory_bandwidth": "host",
}
_BOUGHT = ("package", "purchase_price", "priced_manufacturing", "rent")


@dataclasses.dataclass(frozen=True)
class Room:
    """Joint effect of the inputs of one room of a configuration, by their slopes.

    - `total`: per cent that an output changes by where all of them grow by 1 %.
    - `size`: the sum of the sizes of their elasticities.
    - `largest`: the path of the input with the largest one.
    """

    name: str
    total: float
    size: float
    largest: str


def room_of(path: str, kind: str = "input") -> str:
    """The room of the input at a full path; `kind` is that of its declaration."""
    part, *names = path.split(".")
    if part != "system":
        return part
    if kind == "price":
        return "cost"
    if names[0] != "accelerator":
        return _OF_SYSTEM.get(names[0], names[0])
    if names[1] == "memory":
        return "memory"
    if names[1] in _BOUGHT:
        return "cost"
    return "power" if any(word in names[1] for word in _POWER) else "compute"


def by_room(ranked: Sequence[Sensitivity]) -> list[Room]:
    """The rooms that any slope belongs to, those with the largest sum of sizes first.

    Whole numbers are left out: one more of them is no small change, and a compute unit brings rates that
    count by themselves.
    """
    members: dict[str, list[Sensitivity]] = {}
    for each in ranked:
        if each.derivative == SLOPE:
            members.setdefault(room_of(each.path, each.declared.kind), []).append(each)
    rooms = [
        Room(
            name=name,
            total=sum(each.elasticity for each in slopes),
            size=sum(abs(each.elasticity) for each in slopes),
            largest=max(slopes, key=lambda each: abs(each.elasticity)).path,
        )
        for name, slopes in members.items()
    ]
    return sorted(rooms, key=lambda room: -room.size)
