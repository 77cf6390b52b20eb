"""A collective: what it moves between the devices of a group, and how often it runs."""

from collections.abc import Callable, Mapping

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.quantity import Scalar
from diffperf.relax import inverse, larger, positive, smaller
from diffperf.workload.model import Layers, Model

# The part of the time that collectives count as, by their purpose.
PARTS = {
    "tensor parallelism": "tensor_parallel",
    "embeddings": "tensor_parallel",
    "vocabulary projection": "tensor_parallel",
    "context parallelism": "context_parallel",
    "expert parallelism": "expert_parallel",
    "pipeline": "pipeline_transfers",
    "gradients": "data_parallel",
    "weights": "data_parallel",
    "tied embedding": "data_parallel",
}
# The purposes of collectives that layers run, and of those that a step or a pass runs.
LAYER_PURPOSES = ("tensor parallelism", "context parallelism", "expert parallelism")
STEP_PURPOSES = tuple(purpose for purpose in PARTS if purpose not in LAYER_PURPOSES)

# A single destination gets every copy: this many have a finite logarithm of the chance of a miss.
_FEWEST_DESTINATIONS = 1.001


def by_part(times: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Seconds by the part of the time that they count as, from the seconds of collectives by purpose."""
    parts: dict[str, Scalar] = {}
    for purpose, time in times.items():
        part = PARTS[purpose]
        parts[part] = parts[part] + time if part in parts else time
    return parts


def destinations_reached(
    destinations: Float[Array, "*tiers"],
    copies: Scalar | float,
    groups: Scalar | float = 1.0,
    groups_visited: Scalar | float = 1.0,
) -> Float[Array, "*tiers"]:
    """How many of equal destinations get a token that goes to `copies` experts at random: of D destinations,
    D·(1 − (1 − 1/D)^copies) in the mean (DeepSeek-V3, arXiv 2412.19437 §3.2.2).

    Copies that only go to `groups_visited` of `groups` equal groups of experts reach no more destinations
    than those groups lie in.
    """
    # The logarithm of the chance that a copy misses a destination.
    miss = jnp.log1p(-inverse(larger(destinations, _FEWEST_DESTINATIONS)))
    most = groups_visited * larger(destinations * inverse(jnp.asarray(groups, destinations.dtype)), 1.0)
    return smaller(destinations * -jnp.expm1(copies * miss), most)


class Collective(eqx.Module):
    """A collective that a group of `degree` ranks, `stride` devices apart, runs on `volume` bytes.

    - `volume`: the larger buffer of a rank: the buffer of an all-reduce, the gathered output of an
      all-gather, the input of a reduce-scatter, the send buffer of an all-to-all, the message of a
      transfer between two ranks.
    - `forward`, `backward`: how often it runs in either pass of an average layer where `per` is "layer";
      where `per` is "micro-batch" or "step", it runs `forward` times for each micro-batch or in a training
      step. An inference pass is of one micro-batch, and counts as a step of its own.
    - `by_kind`: how often it runs in a layer of each kind, over an average layer; kinds are ordered as
      `Model.grouped`.
    - `recomputed`: share of its forward runs that the backward pass of training repeats.
    - `copies`: members to which a piece of an all-to-all's buffer goes.
    - `once`: share of those pieces that a network domain gets once, however many of its members they go
      to.
    - `groups`, `groups_visited`: groups of equal size that the members form, and how many of them the copies
      of a piece go to at most (node-limited routing: DeepSeek-V3, arXiv 2412.19437 §2.1.2).
    - `kind`: a name from `diffperf.estimate.network.transfers.COLLECTIVES`.
    - `purpose`: what it is for, a key of `PARTS`, which says which part of the time it counts as.
    """

    degree: Scalar
    stride: Scalar
    volume: Scalar
    forward: Scalar | float = 1.0
    backward: Scalar | float = 0.0
    by_kind: Float[Array, " kinds"] | float = 1.0
    recomputed: Scalar | float = 0.0
    copies: Scalar | float = 1.0
    once: Scalar | float = 0.0
    groups: Scalar | float = 1.0
    groups_visited: Scalar | float = 1.0
    name: str = eqx.field(static=True, kw_only=True)
    kind: str = eqx.field(static=True, kw_only=True)
    purpose: str = eqx.field(static=True, kw_only=True)
    per: str = eqx.field(static=True, kw_only=True, default="layer")

    @property
    def in_layer(self) -> Scalar | float:
        """Number of times that the collective runs in both passes of an average layer, what the backward pass
        repeats included.
        """
        return self.forward * (1 + self.recomputed) + self.backward

    @property
    def part(self) -> str:
        """The field of a phase's breakdown that the collective counts as."""
        return PARTS[self.purpose]


def average_of_layers(model: Model, number_of: Callable[[Layers], Scalar]) -> Scalar:
    """The mean of a number over the layers of a model."""
    return sum(kind.count * number_of(kind) for kind in model.layers) / model.depth


def relative_by_kind(model: Model, number_of: Callable[[Layers], Scalar]) -> Float[Array, " kinds"] | float:
    """A number of each kind of layers over its mean over the layers of a model, 1 for layers all of one
    kind.
    """
    if len(model.layers) == 1:
        return 1.0
    mean = positive(average_of_layers(model, number_of))
    return jnp.stack([number_of(kind) for kind in model.grouped]) / mean
