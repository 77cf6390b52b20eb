"""One level of the memory hierarchy of a device, and what share of which tensors it holds."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.quantity import Declared, Label, Scalar, Weights, choice, label, quantity, variant

# Classes of tensors of inference, the hottest first: bytes that a pass reads for each byte stored.
# Activations are written and read in every layer, dense weights and the KV cache once in a pass, weights of
# experts as far as tokens visit them, the token embedding hardly at all.
TENSOR_CLASSES: tuple[str, ...] = (
    "activations",
    "attention_weights",
    "mlp_weights",
    "kv_cache",
    "expert_weights",
    "embeddings",
)


def _share(of_what: str) -> Any:
    """Declares the share of a class of tensors that a memory level holds."""
    return quantity(
        "", f"share of {of_what} that lives in the memory level in inference", bounds=(0, 1), default=0
    )


class Holdings(Declared):
    """The share of each class of tensors that a memory level holds in inference.

    What no level holds lives in device memory. Where levels claim more than all of a class, their shares
    are scaled down to add up to one.
    """

    activations: Scalar = _share("activations and logits")
    attention_weights: Scalar = _share("the weights of the projections around attention")
    mlp_weights: Scalar = _share("the weights of MLPs and of all other layers without experts")
    kv_cache: Scalar = _share("the KV cache")
    expert_weights: Scalar = _share("the weights of routed experts")
    embeddings: Scalar = _share("the token embedding and the vocabulary projection")
    fill: Weights = choice(
        "shares", "heat", "overflow",
        doc="tensors in the memory level: the given shares of each class (shares), the tensors that are read "
        "most often, activations aside, as many as fit (heat), or those that are read least, as many as "
        "device memory lacks room for (overflow)",
        default="shares",
    )  # fmt: skip
    room: Scalar = quantity(
        "",
        "share of the capacity of the memory level that filling by heat may take",
        bounds=(0.01, 1),
        default=1,
    )

    @property
    def shares(self) -> Float[Array, " classes"]:
        """The given shares in the order of `TENSOR_CLASSES`."""
        return jnp.stack([getattr(self, name) for name in TENSOR_CLASSES])


class Prefetch(Declared):
    """Overlap of the requests to a memory level of long latency."""

    tile: Scalar = quantity("byte", "bytes of one request to the memory level", bounds=(1, 1e9))
    depth: Scalar = quantity(
        "", "requests to the memory level that the whole device has in flight at once", bounds=(1, 1e7)
    )


class MemoryLevel(Declared):
    """One level of the memory hierarchy of a device: on-chip SRAM, a cache, HBM, high-bandwidth storage.

    A cache serves copies of what lives in it or in levels farther out. Device memory ("memory", exactly
    one) and "storage" beside it serve through channels of their own what lives in them.
    """

    name: Label = label("name of the memory level, such as smem, l2 or hbm")
    capacity: Scalar = quantity(
        "byte", "capacity of the memory level over the whole device", bounds=(1e4, 1e14)
    )
    bandwidth: Scalar = quantity(
        "byte/s", "peak sequential bandwidth of the memory level over the whole device", bounds=(1e9, 1e16)
    )
    latency: Scalar = quantity(
        "s", "time from a request to the memory level to the first byte", bounds=(1e-9, 1e-4)
    )
    energy: Scalar = quantity(
        "J/byte",
        "energy to move one byte from the memory level to the next level inside",
        bounds=(1e-14, 1e-9),
    )
    efficiency: Scalar = quantity(
        "",
        "fraction of the peak bandwidth of the memory level that kernels reach",
        bounds=(0.05, 1.0),
        default=0.85,
        calibratable=True,
    )
    kind: str = variant(
        "cache", "memory", "storage",
        doc="kind of the memory level: cache, device memory, or storage beside device memory",
        default="",
    )  # fmt: skip
    holds: Holdings | None = None
    prefetch: Prefetch | None = None

    @classmethod
    def complete(cls, table: dict[str, Any]) -> dict[str, Any]:
        """A configuration table in which storage holds tensors, none of them unless the table says more."""
        return {"holds": {}, **table} if table.get("kind") == "storage" else table


def kinds_of(levels: Sequence[MemoryLevel]) -> tuple[str, ...]:
    """The kind of each memory level: where a level gives none, the outermost is device memory if no other
    is, and the rest are caches.
    """
    kinds = [level.kind for level in levels]
    silent = [index for index, kind in enumerate(kinds) if not kind]
    if silent and "memory" not in kinds:
        kinds[silent[-1]] = "memory"
    return tuple(kind or "cache" for kind in kinds)
