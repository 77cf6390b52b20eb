"""Silicon nodes: what a node gives per mm² and per volt, the nodes between, and how a node matures."""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.hardware.process import Process
from diffperf.quantity import Declared, Label, Scalar, Weights, label, quantity
from diffperf.relax import positive
from diffperf.units import YEAR

# Fall of the price of a wafer in each year of volume production, 2 %: the example of Google's chiplet cost
# model (github.com/google/chiplets-cost-model, N5 and 16 nm).
WAFER_PRICE_FALL = 0.02


class Node(Declared):
    """A silicon node. Relative figures are over those of N7 with each node at its own nominal voltage."""

    name: Label = label("identifier of the silicon node, such as n7")
    feature: Scalar = quantity("nm", "name of the silicon node as a length", bounds=(1, 28))
    process: Process
    logic_density: Scalar = quantity(
        "1/mm^2", "transistors per area of high-density logic cells", bounds=(1e6, 1e10)
    )
    sram_density: Scalar = quantity(
        "byte/mm^2", "capacity of cache per area, tags and routing included", bounds=(1e4, 1e8)
    )
    phy_density: Scalar = quantity(
        "", "bandwidth of analog circuits and PHYs per area over that of N7", bounds=(0.1, 10)
    )
    gate_speed: Scalar = quantity("", "speed of logic at nominal voltage over that of N7", bounds=(0.01, 100))
    switching_energy: Scalar = quantity(
        "", "energy of a logic operation at nominal voltage over that of N7", bounds=(0.01, 100)
    )
    sram_energy: Scalar = quantity(
        "J/byte", "energy of one byte from the cache at nominal voltage", bounds=(1e-14, 1e-9)
    )
    static_density: Scalar = quantity(
        "W/mm^2", "static power per die area at nominal voltage", bounds=(1e-4, 5)
    )
    nominal_voltage: Scalar = quantity("V", "nominal supply voltage", bounds=(0.3, 1.5))
    threshold_voltage: Scalar = quantity("V", "threshold voltage of the transistors", bounds=(0.05, 0.29))
    alpha: Scalar = quantity("", "velocity-saturation exponent of the alpha-power law", bounds=(1, 2))
    early_defects: Scalar = quantity(
        "1/mm^2",
        "killer defects per area at the start of volume production",
        bounds=(1e-7, 1e-1),
        kind="price",
    )
    mature_defects: Scalar = quantity(
        "1/mm^2", "killer defects per area after many years of production", bounds=(1e-7, 1e-1), kind="price"
    )
    learning_time: Scalar = quantity(
        "s",
        "time in which the excess of defects over those of a mature node falls by a factor of e",
        bounds=(1e6, 1e9),
        kind="price",
    )


AnyNode = TypeVar("AnyNode", bound=Node)


def node_at(nodes: Sequence[Node], feature: Scalar) -> Node:
    """The node of a `feature` in nm between those of `nodes`, whose features increase.

    Every number is interpolated in the logarithms of feature and number by `monotone_cubic`: a node of the
    table comes out as it is, slopes are continuous, and between two neighbours no number leaves their range.
    Features beyond the ends of the table give the nodes at the ends. Weights of a choice are linear between
    neighbours. `feature` may be traced.
    """
    knots = jnp.log(jnp.stack([node.feature for node in nodes]))
    x = jnp.clip(jnp.log(feature), knots[0], knots[-1])

    def between(*values: Any) -> Any:
        """The interpolated value of one field, from its values on all nodes."""
        if isinstance(values[0], Weights):
            arrays = jnp.stack([value.array for value in values])
            mean = jax.vmap(lambda column: jnp.interp(x, knots, column), in_axes=-1)(arrays)
            return dataclasses.replace(values[0], array=mean)
        return jnp.exp(monotone_cubic(x, knots, jnp.log(positive(jnp.stack(values)))))

    made = jax.tree.map(between, *nodes, is_leaf=lambda part: isinstance(part, Weights))
    return dataclasses.replace(made, name=Label("between"), feature=jnp.exp(x))


def monotone_cubic(x: Scalar, knots: Float[Array, " n"], values: Float[Array, " n"]) -> Scalar:
    """The piecewise cubic through `values` at increasing `knots`, monotone wherever the values are.

    Source: Fritsch and Butland, SIAM J. Sci. Stat. Comput. 5 (1984), 300: the slope at a knot is the weighted
    harmonic mean of the slopes of both sides, 0 at an extremum.
    """
    widths = jnp.diff(knots)
    secants = jnp.diff(values) / widths
    slopes = _knot_slopes(widths, secants)
    piece = jnp.clip(jnp.searchsorted(knots, x, side="right") - 1, 0, knots.size - 2)
    width, secant = widths[piece], secants[piece]
    t = (x - knots[piece]) / width
    start, end = slopes[piece], slopes[piece + 1]
    # Hermite form: the secant's straight line and what the slopes at both ends add to it.
    bend = (1 - t) * (start - secant) - t * (end - secant)
    return values[piece] + width * t * (secant + (1 - t) * bend)


def _knot_slopes(widths: Float[Array, " pieces"], secants: Float[Array, " pieces"]) -> Float[Array, " knots"]:
    """The slope at every knot: inside, the harmonic mean; at the ends, that of the parabola through three
    knots, limited so that the cubic stays monotone.
    """
    before, after = secants[:-1], secants[1:]
    w_before, w_after = 2 * widths[1:] + widths[:-1], widths[1:] + 2 * widths[:-1]
    monotone = before * after > 0
    # Double-where: the harmonic mean is not differentiated where a side is flat or the sign changes.
    safe_before, safe_after = jnp.where(monotone, before, 1.0), jnp.where(monotone, after, 1.0)
    harmonic = (w_before + w_after) / (w_before / safe_before + w_after / safe_after)
    inner = jnp.where(monotone, harmonic, 0.0)
    first = _end_slope(widths[0], widths[1], secants[0], secants[1])
    last = _end_slope(widths[-1], widths[-2], secants[-1], secants[-2])
    return jnp.concatenate([first[None], inner, last[None]])


def _end_slope(width: Scalar, next_width: Scalar, secant: Scalar, next_secant: Scalar) -> Scalar:
    """The slope at an end knot from the two pieces next to it, of the sign of the outer piece, at most three
    times its secant where the slope changes its sign inwards.
    """
    slope = ((2 * width + next_width) * secant - width * next_secant) / (width + next_width)
    limited = jnp.where(
        (secant * next_secant < 0) & (jnp.abs(slope) > 3 * jnp.abs(secant)), 3 * secant, slope
    )
    return jnp.where(slope * secant > 0, limited, 0.0)


def matured(node: AnyNode, age: Scalar) -> AnyNode:
    """The node, or the technology, `age` seconds after the start of volume production.

    Defects decay exponentially from early to mature ones; the price of wafers, which the process gives at
    the start, falls by 2 % a year. Every other number stays.
    """
    defects = node.mature_defects + (node.early_defects - node.mature_defects) * jnp.exp(
        -age / node.learning_time
    )
    price = node.process.wafer_price * (1 - WAFER_PRICE_FALL) ** (age / YEAR)
    process = dataclasses.replace(node.process, defect_density=defects, wafer_price=price)
    return dataclasses.replace(node, process=process)
