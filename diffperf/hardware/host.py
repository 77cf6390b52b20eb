"""The host of a node: what its parts draw beside the accelerators, how it is cooled and supplied.

All figures are shares of one accelerator of the node.
"""

from diffperf.quantity import Declared, Label, Scalar, label, output, quantity
from diffperf.relax import inverse
from diffperf.report.tables import Readable


class NodePower(Readable):
    """Power that one accelerator's share of a node draws from the grid, by part."""

    accelerators: Scalar = output("W", "power of an accelerator")
    processors: Scalar = output("W", "power of the host's processors")
    memory: Scalar = output("W", "power of the host's memory")
    adapters: Scalar = output("W", "power of network adapters")
    switches: Scalar = output("W", "power of switches inside the node")
    board: Scalar = output("W", "power of drives, bridges and boards of the host")
    fans: Scalar = output("W", "power of fans")
    conversion: Scalar = output("W", "losses of power supplies")

    @property
    def total(self) -> Scalar:
        """Watts of all parts, `Host.grid_power`."""
        host = self.processors + self.memory + self.adapters + self.switches + self.board
        return self.accelerators + host + self.fans + self.conversion


class Host(Declared):
    """The host of a node, of which each accelerator has an equal share."""

    name: Label = label("identifier of the host, such as dgx-h100-node")
    processors_idle: Scalar = quantity(
        "W", "power of the host's processors without work, per device", bounds=(0.01, 1e4), kind="price"
    )
    processors_busy: Scalar = quantity(
        "W", "power of the host's processors at full load, per device", bounds=(0.01, 1e4), kind="price"
    )
    processor_load: Scalar = quantity(
        "",
        "share of the way from idle to full load that the host's processors are at in a run",
        bounds=(0, 1),
        kind="price",
    )
    memory: Scalar = quantity("W", "power of the host's memory, per device", bounds=(0, 1e4), kind="price")
    adapters: Scalar = quantity(
        "W", "power of the node's network adapters, per device", bounds=(0.01, 1e4), kind="price"
    )
    switches: Scalar = quantity(
        "W",
        "power of the switches inside the node, per device, beside the energy of the bytes",
        bounds=(0, 1e4),
        kind="price",
    )
    board: Scalar = quantity(
        "W",
        "power of drives, bridges, boards and their regulators in the host, per device",
        bounds=(0.01, 1e4),
        kind="price",
    )
    fans: Scalar = quantity(
        "", "power of the node's fans over the power of all that they cool", bounds=(0, 1), kind="price"
    )
    supply_efficiency: Scalar = quantity(
        "",
        "power that the node's power supplies deliver over the power that they draw",
        bounds=(0.5, 1),
        kind="price",
    )

    def node_power(self, device: Scalar, load: Scalar) -> NodePower:
        """Power of a node per device, each of which draws `device` watts, with the processors at a load of 0
        to 1.
        """
        cooled = device + self._beside_devices(load)
        fans = self.fans * cooled
        return NodePower(
            accelerators=device,
            processors=self._processors(load),
            memory=self.memory,
            adapters=self.adapters,
            switches=self.switches,
            board=self.board,
            fans=fans,
            conversion=self.grid_power(device, load) - cooled - fans,
        )

    def grid_power(self, device: Scalar, load: Scalar) -> Scalar:
        """Watts that a node draws from the grid per device: `node_power` without its parts.

        Fans move air in proportion to the heat; the supplies feed all of it, fans too.
        """
        return (device + self._beside_devices(load)) * ((1 + self.fans) * inverse(self.supply_efficiency))

    def _processors(self, load: Scalar) -> Scalar:
        """Watts of the processors at a load."""
        return self.processors_idle + load * (self.processors_busy - self.processors_idle)

    def _beside_devices(self, load: Scalar) -> Scalar:
        """Watts of all that fans cool beside the accelerators."""
        return self._processors(load) + self.memory + self.adapters + self.switches + self.board
