"""Technologies: what a silicon node, its memory generation and its links give per mm², per volt and per
FLOP."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.hardware.process import Process
from diffperf.quantity import Declared, Label, Scalar, Weights, label, quantity
from diffperf.relax import positive


class MemoryTechnology(Declared):
    """A generation of stacked memory, and the PHY on the die that drives a stack."""

    name: Label = label("generation of stacked memory, such as hbm2e")
    stack_capacity: Scalar = quantity("byte", "capacity of one memory stack", bounds=(1e8, 1e12))
    stack_bandwidth: Scalar = quantity("byte/s", "bandwidth of one memory stack", bounds=(1e10, 1e13))
    stack_area: Scalar = quantity("mm^2", "footprint of one memory stack", bounds=(1, 400))
    phy_area: Scalar = quantity("mm^2", "die area of the PHY of one memory stack", bounds=(0.1, 100))
    phy_edge: Scalar = quantity("mm", "die edge that the PHY of one memory stack occupies", bounds=(0.1, 50))
    energy: Scalar = quantity("J/byte", "energy to move one byte from a memory stack", bounds=(1e-13, 1e-9))
    latency: Scalar = quantity(
        "s", "time from a request to a memory stack to the first byte", bounds=(1e-9, 1e-4)
    )
    price: Scalar = quantity(
        "USD/byte", "price of stacked memory per byte", bounds=(1e-11, 1e-6), kind="price"
    )


class LinkTechnology(Declared):
    """A generation of off-package links and its PHY."""

    name: Label = label("generation of off-package links, such as nvlink3")
    area_density: Scalar = quantity(
        "byte/s/mm^2", "bandwidth of off-package links per direction and PHY area", bounds=(1e8, 1e13)
    )
    edge_density: Scalar = quantity(
        "byte/s/mm", "bandwidth of off-package links per direction and die edge", bounds=(1e8, 1e14)
    )
    energy: Scalar = quantity(
        "J/byte", "energy to move one byte over an off-package link", bounds=(1e-13, 1e-8)
    )


class Technology(Declared):
    """A silicon node with the stacked memory and the links that go with it."""

    name: Label = label("identifier of the technology, such as n7-hbm2e")
    process: Process
    compute_density: Scalar = quantity(
        "FLOP/s/mm^2", "bf16 matrix rate per area of compute units at nominal voltage", bounds=(1e9, 1e14)
    )
    speed: Scalar = quantity(
        "", "clock at nominal voltage over the clock of the template accelerator", bounds=(0.1, 10)
    )
    sram_density: Scalar = quantity(
        "byte/mm^2", "capacity of cache per area, tags and routing included", bounds=(1e4, 1e8)
    )
    uncore_fraction: Scalar = quantity(
        "", "share of the die area that is neither compute, cache nor PHY", bounds=(0.01, 0.8)
    )
    die_to_die_fraction: Scalar = quantity(
        "",
        "die area that die-to-die links add in packages of several dies, over the area of the rest",
        bounds=(1e-3, 0.5),
    )
    nominal_voltage: Scalar = quantity("V", "nominal supply voltage", bounds=(0.3, 1.5))
    threshold_voltage: Scalar = quantity("V", "threshold voltage of the transistors", bounds=(0.05, 0.29))
    alpha: Scalar = quantity("", "velocity-saturation exponent of the alpha-power law", bounds=(1, 2))
    compute_energy: Scalar = quantity(
        "J/FLOP", "energy of one bf16 FLOP at nominal voltage", bounds=(1e-15, 1e-10)
    )
    sram_energy: Scalar = quantity(
        "J/byte", "energy of one byte from the cache at nominal voltage", bounds=(1e-14, 1e-9)
    )
    static_density: Scalar = quantity(
        "W/mm^2", "static power per die area at nominal voltage", bounds=(1e-4, 5)
    )
    active_density: Scalar = quantity(
        "W/mm^2",
        "power of clocks and instructions of a working die per area at nominal voltage",
        bounds=(1e-4, 5),
    )
    limit_share: Scalar = quantity(
        "",
        "power for which a package is cooled over its power with all units at their peak rates",
        bounds=(0.1, 1),
    )
    memory: MemoryTechnology
    link: LinkTechnology


def interpolate(technologies: Sequence[Technology], weights: Float[Array, " nodes"]) -> Technology:
    """The technology between nodes: the weighted geometric mean of every number; one-hot weights give a
    node itself.

    A number that is 0 in all nodes, such as a price that is not counted, stays as good as 0. Weights of a
    choice have their arithmetic mean.
    """

    def geometric_mean(*values: Array) -> Array:
        return jnp.exp(sum(weights[node] * jnp.log(positive(value)) for node, value in enumerate(values)))

    def mean(*values: Any) -> Any:
        if isinstance(values[0], Weights):
            return jax.tree.map(lambda *arrays: jnp.tensordot(weights, jnp.stack(arrays), 1), *values)
        return geometric_mean(*values)

    return jax.tree.map(mean, *technologies, is_leaf=lambda node: isinstance(node, Weights))
