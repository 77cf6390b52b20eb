"""Which shipped system a measured row ran on: its hardware, how many devices share a node, and the framework that drove them."""

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Iterator, Sequence

import equinox as eqx
import jax
import numpy as np

from diffperf.hardware.system import System
from diffperf.load import load_system
from diffperf.load.calibration import Calibration


@dataclasses.dataclass(frozen=True)
class Platform:
    """A shipped system, and which of its tiers is the node of `devices_per_node` devices: None for the axes of a torus, and for
    devices alone in their machines."""

    system: str
    node_tier: int | None = 0


# By the hardware ids of the tables of measured runs.
PLATFORMS = {
    "v100-sxm2-32gb": Platform("dgx-v100"),
    "a100-sxm4-40gb": Platform("dgx-a100-40gb"),
    "a100-sxm4-80gb": Platform("dgx-a100"),
    "a100-pcie-80gb": Platform("a100-pcie-pairs", node_tier=1),
    "h100-sxm5-80gb": Platform("dgx-h100"),
    "h100-pcie-80gb": Platform("h100-pcie-pairs", node_tier=1),
    "h100-nvl": Platform("h100-nvl-pairs", node_tier=1),
    "h200-sxm-141gb": Platform("hgx-h200"),
    "b200-sxm-180gb": Platform("hgx-b200"),
    "b300-sxm": Platform("hgx-b300"),
    "gb200": Platform("gb200-nvl72"),
    "gb300": Platform("gb300-nvl72"),
    "l40s": Platform("l40s-8", node_tier=2),
    "a40": Platform("a40-8"),
    "rtx-a6000": Platform("rtx-a6000-8"),
    "rtx-4000-ada": Platform("rtx-4000-ada-8"),
    "rtx-5000-ada": Platform("rtx-5000-ada-8"),
    "rtx-6000-ada": Platform("rtx-6000-ada-8"),
    "rtx-3060-12gb": Platform("rtx-3060-8"),
    "rtx-3070": Platform("rtx-3070-8"),
    "rtx-3080-10gb": Platform("rtx-3080-8"),
    "rtx-3080ti": Platform("rtx-3080ti-8"),
    "rtx-3090": Platform("rtx-3090-8"),
    "rtx-4070ti": Platform("rtx-4070ti-8"),
    "rtx-4080": Platform("rtx-4080-8"),
    "rtx-4090": Platform("rtx-4090-8"),
    "rtx-5080": Platform("rtx-5080-8"),
    "rtx-5090": Platform("rtx-5090-8"),
    "dgx-spark-gb10": Platform("dgx-spark", node_tier=None),
    "jetson-agx-orin": Platform("jetson-agx-orin", node_tier=None),
    "mi210": Platform("mi210-4"),
    "mi250": Platform("mi250-8", node_tier=1),
    "mi250x": Platform("mi250x-8", node_tier=1),
    "mi300x": Platform("mi300x-8"),
    "mi325x": Platform("mi325x-8"),
    "mi355x": Platform("mi355x-8"),
    "gaudi2": Platform("gaudi2-8"),
    "gaudi3": Platform("gaudi3-8"),
    "intel-max-1550": Platform("intel-max-1550-4"),
    "sn40l": Platform("sn40l-16"),
    "trainium2": Platform("trn2"),
    "tpu-v3": Platform("tpu-v3-pod", node_tier=None),
    "tpu-v4": Platform("tpu-v4-pod", node_tier=None),
    "tpu-v5e": Platform("tpu-v5e-pod", node_tier=None),
    "tpu-v5p": Platform("tpu-v5p-pod", node_tier=None),
    "tpu-v6e": Platform("tpu-v6e-pod", node_tier=None),
    "tpu-v7x": Platform("tpu-v7x-pod", node_tier=None),
    **{
        name: Platform(f"mac-{name}", node_tier=None)
        for name in (
            "m1-7gpu", "m1-max-32gpu", "m1-ultra-64gpu", "m2-ultra-76gpu", "m3-max-40gpu", "m3-ultra-80gpu", "m4-pro-20gpu",
            "m4-max-40gpu", "m5-max-40gpu",
        )
    },
}  # fmt: skip

# The stack of a framework, by how its name begins; the longest beginning counts. The system's own stack drives what is not here.
STACKS = {
    "kernels": "kernels",
    "nccl": "nccl-tests",
    "nccl (torch.distributed)": "torch-distributed",
    "trt-llm custom ar": "tensorrt-llm-all-reduce",
    "megatron-lm": "megatron-lm",
    "megatron-core": "megatron-core",
    "megatron-bridge": "megatron-bridge",
    **{f"megatron-bridge {release}": "megatron-bridge-26.04" for release in ("25.", "26.02", "26.04")},
    "nemo": "nemo",
    "megatron-deepspeed": "megatron-deepspeed",
    "gpt-neox": "megatron-deepspeed",
    "nanotron": "nanotron",
    "llm-foundry": "llm-foundry-fsdp",
    "maxtext": "maxtext",
    "pathways": "maxtext",
    "palm inference": "maxtext",
    "tensorrt-llm": "tensorrt-llm",
    "trtllm": "tensorrt-llm-pytorch",
    "fastertransformer": "fastertransformer",
    "triton/fastertransformer": "fastertransformer",
    "vllm": "vllm",
    "sglang": "sglang",
    "lmdeploy": "lmdeploy",
    "llama.cpp": "llama.cpp",
    "deepspeed": "deepspeed-inference",
    "deepspeed-mii": "deepspeed-mii",
    "deepspeed-fastgen": "deepspeed-mii",
    "huggingface": "huggingface",
    "sambaflow": "sambaflow",
    # Libraries of attention kernels: the stack's own name.
    **{
        name: name
        for name in (
            "tensorrt-llm-kernels", "flash-attention-1", "flash-attention-2", "flash-attention-2-hopper", "flash-attention-3",
            "cudnn-attention", "triton-attention",
        )
    },
}  # fmt: skip


# Stacks that differ on Hopper: attention kernels that do not use what it brought, runs that later releases did not shorten.
_ON_HOPPER = {"llm-foundry-fsdp": "llm-foundry-fsdp-hopper", "megatron-bridge": "megatron-bridge-26.04"}


def stack_of(framework: str | None, hardware: str = "") -> str | None:
    """The stack config of a framework by its name in a table, versions and remarks after it ignored; None: the system's own."""
    starts = [start for start in STACKS if (framework or "").lower().startswith(start)]
    found = STACKS[max(starts, key=len)] if starts else None
    return _ON_HOPPER.get(found, found) if hardware.startswith("h") else found


@functools.cache
def _system(hardware: str, stack: str | None, calibration: Calibration | str | None, x64: bool) -> System:
    """The platform's system as NumPy leaves, in the precision of the moment."""
    return jax.tree.map(
        np.asarray, load_system(PLATFORMS[hardware].system, stack=stack, calibration=calibration)
    )


_calibrations: contextvars.ContextVar[dict[str, Calibration | str]] = contextvars.ContextVar(
    "calibrations", default={}
)


@contextlib.contextmanager
def calibrations(by_hardware: dict[str, Calibration | str]) -> Iterator[None]:
    """Within it, systems of some hardware ids have these calibrations ("none" for no calibration) in place of their own."""
    token = _calibrations.set(by_hardware)
    try:
        yield
    finally:
        _calibrations.reset(token)


def system_of(hardware: str, framework: str | None = None) -> System:
    """The shipped system of a hardware id, driven by the framework's stack."""
    calibration = _calibrations.get().get(hardware)
    return _system(hardware, stack_of(framework, hardware), calibration, bool(jax.config.jax_enable_x64))


def stacked_systems(
    hardware: Sequence[str],
    frameworks: Sequence[str | None],
    n_devices: np.ndarray,
    devices_per_node: np.ndarray,
) -> System:
    """The systems of several rows with a leading axis; all of one structure (levels of memory, tiers of network)."""
    keys = list(zip(hardware, frameworks, strict=True))
    distinct = list(dict.fromkeys(keys))
    which = np.array([distinct.index(key) for key in keys])
    systems = jax.tree.map(lambda *leaves: np.stack(leaves)[which], *(system_of(*key) for key in distinct))
    # Tiers inside a node hold no more devices than the node does.
    nodes, sizes = [PLATFORMS[name].node_tier for name in hardware], [tier.size for tier in systems.network]
    for tier, size in enumerate(sizes):
        is_node = np.array([node == tier for node in nodes])
        inside = np.array([node is not None and tier < node for node in nodes])
        sizes[tier] = np.select(
            [is_node, inside], [devices_per_node, np.minimum(size, devices_per_node)], size
        )
    values = [value.astype(systems.n_devices.dtype) for value in (n_devices, *sizes)]
    return eqx.tree_at(lambda s: [s.n_devices, *(tier.size for tier in s.network)], systems, values)
