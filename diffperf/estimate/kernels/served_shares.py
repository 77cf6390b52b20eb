"""Shares of an operator's traffic that each memory level serves, where tensors live in several levels."""

import dataclasses
from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.memory_level import TENSOR_CLASSES
from diffperf.workload.residency import Residency

PerLevel = Float[Array, " levels"]  # a number for each memory level outside the innermost

# The class of tensors that the right operand of a product (B of A·B) is, by its role.
_CLASS_OF = {
    "attention": "attention_weights",
    "linear": "mlp_weights",
    "expert": "expert_weights",
    "head": "embeddings",
    "unaligned head": "embeddings",
    "cache": "kv_cache",
    "activations": "activations",
}


class ServedShares(eqx.Module):
    """Share of the bytes that leave the levels where tensors live that each memory level serves.

    A cache serves what lives in it or farther out, device memory and storage serve what lives in them.
    """

    served: Float[Array, "levels classes"]  # by the levels outside the innermost, of each class of tensors
    lives: PerLevel  # of activations, in each level outside the innermost
    # Of the right operand (B of A·B) of each product, by the levels outside the innermost.
    weights: Float[Array, "levels *products"]
    addressed: tuple[bool, ...] = eqx.field(static=True)  # whether each of these levels is no cache

    @classmethod
    def of(cls, accelerator: Accelerator, residency: Residency) -> "ServedShares":
        """Shares that each memory level serves, if the right operand of every product is an MLP's weights."""
        kinds, levels = accelerator.memory_kinds, range(len(accelerator.memory))
        passes = np.array(
            [
                [home == level or (kinds[level] == "cache" and home > level) for home in levels]
                for level in levels
            ]
        )
        shares = residency.shares
        served = jnp.sum(passes[1:, :, None].astype(shares.dtype) * shares[None], axis=1)
        return cls(
            served=served,
            lives=shares[1:, TENSOR_CLASSES.index("activations")],
            weights=served[:, TENSOR_CLASSES.index("mlp_weights")],
            addressed=tuple(kind != "cache" for kind in kinds[1:]),
        )

    @property
    def activations(self) -> PerLevel:
        """The share of the traffic of activations that each level serves."""
        return self.served[:, TENSOR_CLASSES.index("activations")]

    @property
    def kv_cache(self) -> PerLevel:
        """The share of the traffic of the KV cache that each level serves."""
        return self.served[:, TENSOR_CLASSES.index("kv_cache")]

    def for_roles(self, roles: Sequence[str]) -> "ServedShares":
        """These shares for products whose right operands have these roles, one for each product."""
        classes = np.array([TENSOR_CLASSES.index(_CLASS_OF[role]) for role in roles])
        return dataclasses.replace(self, weights=self.served[:, classes])
