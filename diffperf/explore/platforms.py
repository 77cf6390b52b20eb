"""Which shipped system a measured row ran on: its hardware, how many devices share a node, and the framework that drove them."""

import dataclasses
import functools
from collections.abc import Sequence

import equinox as eqx
import jax
import numpy as np

from diffperf.hardware.system import Stack, System
from diffperf.load import load, load_system


@dataclasses.dataclass(frozen=True)
class Platform:
    """A shipped system, and whether its innermost tier is a node (`devices_per_node` devices) rather than an axis of a torus."""

    system: str
    in_nodes: bool = True


# By the hardware ids of the tables of measured runs.
PLATFORMS = {
    "v100-sxm2-32gb": Platform("dgx-v100"),
    "a100-sxm4-40gb": Platform("dgx-a100-40gb"),
    "a100-sxm4-80gb": Platform("dgx-a100"),
    "h100-sxm5-80gb": Platform("dgx-h100"),
    "h200-sxm-141gb": Platform("hgx-h200"),
    "b200-sxm-180gb": Platform("hgx-b200"),
    "mi300x": Platform("mi300x-8"),
    "tpu-v4": Platform("tpu-v4-pod", in_nodes=False),
    "tpu-v5p": Platform("tpu-v5p-pod", in_nodes=False),
}

# Ids of hardware that has been measured and that no shipped system describes.
WITHOUT_SYSTEM = {
    "a100-pcie-80gb", "a40", "b300-sxm", "dgx-spark-gb10", "gaudi2", "gaudi3", "gb200", "gb300", "h100-nvl", "h100-pcie-80gb",
    "intel-max-1550", "jetson-agx-orin", "l40s", "m1-7gpu", "m1-max-32gpu", "m1-ultra-64gpu", "m2-ultra-76gpu", "m3-max-40gpu",
    "m3-ultra-80gpu", "m4-max-40gpu", "m4-pro-20gpu", "m5-max-40gpu", "mi210", "mi250", "mi250x", "mi325x", "mi355x",
    "rtx-3060-12gb", "rtx-3070", "rtx-3080-10gb", "rtx-3080ti", "rtx-3090", "rtx-4000-ada", "rtx-4070ti", "rtx-4080", "rtx-4090",
    "rtx-5000-ada", "rtx-5080", "rtx-5090", "rtx-6000-ada", "rtx-a6000", "sn40l", "tpu-v3", "tpu-v5e", "tpu-v6e", "tpu-v7x",
    "trainium2",
}  # fmt: skip
HARDWARE = (*PLATFORMS, *sorted(WITHOUT_SYSTEM))


@dataclasses.dataclass(frozen=True)
class Framework:
    """The stack config of a framework (None: the system's own), and whether it reduces gradients under the backward pass."""

    stack: str | None = None
    overlaps_gradients: bool = True


# By how the framework's name begins. Megatron-LM's --overlap-grad-reduce and DeepSpeed's overlap_comm are off unless asked for.
FRAMEWORKS = {
    "megatron-lm": Framework("megatron-lm", overlaps_gradients=False),
    "megatron-deepspeed": Framework(overlaps_gradients=False),
    "tensorrt-llm": Framework("tensorrt-llm"),
    "trtllm": Framework("tensorrt-llm"),
    "maxtext": Framework("maxtext"),
}


def framework_of(name: str | None) -> Framework:
    """What is known of a framework by its name in a table, versions and remarks after it ignored."""
    lower = (name or "").lower()
    return next((known for start, known in FRAMEWORKS.items() if lower.startswith(start)), Framework())


@functools.cache
def _system(hardware: str, stack: str | None, x64: bool) -> System:
    """The platform's system as NumPy leaves, in the precision of the moment."""
    system = load_system(PLATFORMS[hardware].system)
    if stack is not None:
        system = eqx.tree_at(lambda s: s.stack, system, load(Stack, stack))
    return jax.tree.map(np.asarray, system)


def system_of(hardware: str, framework: str | None = None) -> System:
    """The shipped system of a hardware id, driven by the framework's stack."""
    return _system(hardware, framework_of(framework).stack, bool(jax.config.jax_enable_x64))


def stacked_systems(
    hardware: Sequence[str], frameworks: Sequence[str | None], n_devices: np.ndarray, devices_per_node: np.ndarray
) -> System:
    """The systems of several rows with a leading axis; all of one structure (levels of memory, tiers of network)."""
    keys = list(zip(hardware, frameworks, strict=True))
    distinct = list(dict.fromkeys(keys))
    which = np.array([distinct.index(key) for key in keys])
    systems = jax.tree.map(lambda *leaves: np.stack(leaves)[which], *(system_of(*key) for key in distinct))
    inner = systems.network[0].size
    in_nodes = np.array([PLATFORMS[name].in_nodes for name in hardware])
    sizes = (n_devices.astype(inner.dtype), np.where(in_nodes, devices_per_node, inner).astype(inner.dtype))
    return eqx.tree_at(lambda s: (s.n_devices, s.network[0].size), systems, sizes)
