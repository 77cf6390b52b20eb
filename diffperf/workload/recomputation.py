"""Recomputation in the backward pass: classes of operators, and the share of the layers that recompute each.

Classes are those that training software offers: Megatron-Core's `--recompute-modules` (layernorm, moe_act,
mla_up_proj, core_attn, mlp, moe), DeepSeek-V3's norms, SwiGLU and up-projections (arXiv 2412.19437 §3.2.3),
and torchtitan's selective activation checkpointing.
"""

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.quantity import Scalar
from diffperf.workload.model import Layers
from diffperf.workload.strategy import Strategy

# The classes that each alternative of `Strategy.recompute` stands for; a whole layer keeps its input alone.
NAMED_SETS = {"none": (), "selective": ("attention",), "full": ("layer",)}

# The class of the operators of a layer's forward pass, by their names. The attention core, or what stands in
# its place, is the class "attention".
_CLASS_OF = {
    "norm 1": ("norms",),
    "norm 2": ("norms",),
    "queries": ("up_projections",),
    "keys and values": ("up_projections",),
    "rotary embedding": ("up_projections",),
    "activation": ("activation_functions", "mlp", "experts"),
    "mlp up": ("mlp",),
    "mlp down": ("mlp",),
    "experts up": ("experts",),
    "experts down": ("experts",),
    "shared experts up": ("experts",),
    "shared experts down": ("experts",),
    "router": ("experts",),
    "copy to experts": ("experts",),
    "copy from experts": ("experts",),
    "sort by local experts": ("experts",),
    "sort back by ranks": ("experts",),
    "biases of experts": ("experts",),
    "clamps of experts": ("activation_functions", "experts"),
}


class Recomputation(eqx.Module):
    """The shares of a stage's layers that recompute each class of operators, and those of `layer` that are
    recomputed whole. A layer that is recomputed whole counts in no other class.
    """

    layer: Scalar
    norms: Scalar
    activation_functions: Scalar
    up_projections: Scalar
    attention: Scalar
    mlp: Scalar
    experts: Scalar

    @classmethod
    def of(cls, strategy: Strategy) -> "Recomputation":
        """The shares that a strategy asks for: by a name for a set of classes, and by class."""
        names = [name for name in cls.__annotations__ if name != "layer"]
        members = [
            [float(name in NAMED_SETS[kept]) for name in ("layer", *names)]
            for kept in strategy.recompute.alternatives
        ]
        weights = strategy.recompute.array[..., None] * jnp.asarray(members, strategy.tp.dtype)
        named = strategy.recompute_share[..., None] * jnp.sum(weights, axis=-2)
        layer, classes = named[..., 0], named[..., 1:]
        asked = jnp.stack([getattr(strategy, f"recompute_{name}") for name in names], axis=-1)
        shares = classes + asked * (1 - classes - layer[..., None])
        return cls(layer=layer, **dict(zip(names, jnp.unstack(shares, axis=-1), strict=True)))

    def of_layers(self, layers: Layers) -> "Recomputation":
        """The shares that apply to layers of some structure, 0 for classes that they do not have."""
        mixture, latent = layers.mixture is not None, layers.latent is not None
        return Recomputation(
            layer=self.layer,
            norms=self.norms,
            activation_functions=self.activation_functions,
            up_projections=self.up_projections * float(latent),
            attention=self.attention,
            mlp=self.mlp * float(not mixture),
            experts=self.experts * float(mixture),
        )

    def any_of(self, classes: Sequence[str]) -> Scalar:
        """The share of the layers that recompute at least one of some classes, which layers choose
        independently, or the whole layer.
        """
        spared = jnp.ones_like(self.layer)
        for name in classes:
            spared = spared * (1 - getattr(self, name))
        return self.layer + 1 - spared

    def core(self, standard: Scalar) -> Scalar:
        """How often the backward pass repeats the attention core of layers that it does not recompute whole:
        where scores are stored, by the weight of `standard` attention.
        """
        return self.attention * standard

    def of_operators(self, names: Sequence[str], part: str, standard: Scalar) -> Float[Array, " operators"]:
        """Number of times that the backward pass repeats operators of a forward pass, by their names and the
        part of the time that they are.

        The attention core is repeated where scores are stored, by the weight of `standard` attention;
        FlashAttention's backward kernel recomputes them by itself. A recurrence counts as the core of its
        layers, and keeps what it wrote under FlashAttention.
        """
        if part == "attention":
            return jnp.broadcast_to(self.layer + self.core(standard), (len(names),))
        return jnp.stack([self.any_of(_CLASS_OF.get(name, ())) for name in names])
