"""A grid of accelerators over silicon node, memory, network and power limit, and the training step of each.

A die of at most 814 mm², as that of H100, is filled with H100's compute units on another node, beside a cache
of the area of H100's and the PHYs of five memory stacks and of NVLink (`diffperf.hardware.floorplan`); the
power limit sets its clock. Every point has the fastest of a few layouts and of a few die areas. One compiled
program estimates all points with the exact gradient of the logarithm of the time.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from reporting import stack_cases

import diffperf as dp
from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.floorplan import (
    Blueprint,
    ComputeUnit,
    Family,
    Floorplan,
    accelerator_of_blueprint,
)
from diffperf.hardware.node import Node
from diffperf.hardware.system import System
from diffperf.hardware.technology import LinkTechnology, MemoryTechnology
from diffperf.load import load
from diffperf.quantity import Scalar, locate, numeric, real, replace
from diffperf.workload.model import Model
from diffperf.workload.strategy import Strategy

# Full nodes only: N4 is a half step, and the series begins with the last of the class of 16, 14 and 12 nm.
NODES = {
    "n12": "12", "n10": "10", "n7": "7", "n5": "5", "n3": "3", "n2": "2", "a14": "1.4", "class-1nm": "1",
}  # fmt: skip
MEMORIES = {
    "hbm2": "HBM2", "hbm2e": "HBM2E", "hbm3": "HBM3", "hbm3e": "HBM3E", "hbm4": "HBM4", "hbm4e": "HBM4E",
}  # fmt: skip
STACKS = 5  # H100 whitepaper


@dataclasses.dataclass(frozen=True)
class Network:
    """A generation of networks: NVLink in nodes of eight, one InfiniBand adapter a device between them."""

    name: str
    link: str  # config of NVLink's PHY
    nvlink: float  # byte/s a device and direction
    infiniband: float  # byte/s a device and direction


NETWORKS = (
    Network("HDR, NVLink 3", link="nvlink3", nvlink=300e9, infiniband=25e9),  # DGX A100 datasheet
    Network("NDR, NVLink 4", link="nvlink4", nvlink=450e9, infiniband=50e9),  # DGX H100 datasheet
    Network("XDR, NVLink 5", link="nvlink5", nvlink=900e9, infiniband=100e9),  # 800 Gbit/s adapters with B200
    # Estimate: twice as much again, with the PHY of NVLink 5.
    Network("GDR, NVLink 6", link="nvlink5", nvlink=1800e9, infiniband=200e9),
)
POWER_LIMITS = (1400.0, 700.0)  # W: twice that of H100, so that memory and networks may bind, and H100's
DIE = 814.0  # mm², the largest: H100 whitepaper
# Of the largest die. Under a power limit a smaller die may be faster: it leaks less, and the units that are
# left run above the least voltage.
AREA_SHARES = tuple(1 - step / 20 for step in range(13))  # 1 to 0.4

# GPT of 7.5 billion parameters; 2M tokens a step, as GPT-3 6.7B (arXiv 2005.14165, Table 2.1).
MODEL, SYSTEM, STACK = "gpt-7.5b", "dgx-h100", "megatron-bridge"
DEVICES, SEQUENCES, SEQUENCE_LENGTH = 1024, 1024, 2048
DEGREES = ("tp", "pp", "dp", "micro_batch")
LAYOUTS = ((1, 1, 1024, 1), (2, 1, 512, 2), (2, 2, 256, 1), (4, 1, 256, 4))

# A streaming multiprocessor of H100: FLOP of a cycle and private memory by the H100 whitepaper.
UNIT = ComputeUnit(
    matrix_flops=real(4096),
    vector_flops=real(256 + 2 * 256),
    private_memory=real(512 * 1024),
    working_share=real(132 / 144),
)
# 60 MiB of L2 (H100 whitepaper) on N5, whose SRAM is as dense as that of H100's node.
CACHE_AREA = 60 * 2.0**20 / 1e6  # mm²

# The program runs once: XLA would take longer to optimize it than to run it as it is.
COMPILER_OPTIONS = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}

LEAST_GAIN = 0.05  # of speed: logic saturates at the node after which no node brings as much

RESOURCES: tuple[str, ...] = ("compute", "HBM", "NVLink", "InfiniBand", "power limit", "die area")


@dataclasses.dataclass(frozen=True)
class Results:
    """The estimates of the grid, with the fastest layout and die area that fit at every point.

    - `time`: s of a step.
    - `elasticity`: relative fall of the time by the relative growth of each of `RESOURCES`: of rates and
      bandwidths of an accelerator as it is, and of the power limit and the die area that it is made with.
    - `layout`: index into `LAYOUTS`; `area`: share of the largest die; `rate`: peak bf16 FLOP/s.
    """

    time: Float[np.ndarray, "limits networks memories nodes"]
    elasticity: Float[np.ndarray, "limits networks memories nodes resources"]
    layout: Int[np.ndarray, "limits networks memories nodes"]
    area: Float[np.ndarray, "limits networks memories nodes"]
    rate: Float[np.ndarray, "limits networks memories nodes"]


class Point(eqx.Module):
    """The inputs of one point of the grid; with a leading axis of arrays, those of many points."""

    node: Node
    memory: MemoryTechnology
    link: LinkTechnology
    nvlink: Scalar | float  # byte/s
    infiniband: Scalar | float  # byte/s
    power_limit: Scalar | float  # W
    area_share: Scalar | float
    strategy: Strategy


class Cluster(eqx.Module):
    """What all points share: the model, the system around the accelerators, the accelerators' family, and
    the links that packages of several dies would have.
    """

    model: Model
    system: System
    family: Family
    die_to_die: LinkTechnology


def load_cluster() -> Cluster:
    """Returns the shipped parts that all points share."""
    return Cluster(
        model=dp.load_model(MODEL),
        system=dp.load_system(SYSTEM, DEVICES, stack=STACK),
        family=load(Family, "nvidia-datacenter"),
        die_to_die=load(LinkTechnology, "ucie-advanced"),
    )


def load_strategies() -> list[Strategy]:
    """Returns the strategies of all layouts."""
    given = {"global_batch": SEQUENCES, "sequence_length": SEQUENCE_LENGTH, "zero": "1"}
    return [
        dp.load_strategy(given | dict(zip(DEGREES, layout, strict=True)), n_devices=DEVICES)
        for layout in LAYOUTS
    ]


def resource_paths(system: System) -> dict[str, list[str]]:
    """Returns the numbers of a system that grow with each resource of its accelerators and networks."""
    rates = [path for path in numeric(system) if path.startswith("accelerator.matrix.")]
    caches = [f"accelerator.memory.{level}.bandwidth" for level in ("smem", "l2")]
    return {
        "compute": [path for path in rates if path.endswith(".rate")] + ["accelerator.vector", *caches],
        "HBM": ["accelerator.memory.hbm.bandwidth"],
        "NVLink": ["network.nvlink.bandwidth"],
        "InfiniBand": ["network.infiniband.bandwidth"],
    }


def accelerator_of(
    cluster: Cluster, point: Point, power: Scalar | float = 1.0, area: Scalar | float = 1.0
) -> Accelerator:
    """Returns the accelerator of a point; `power` and `area` multiply its power limit and its die area."""
    plan = Floorplan(
        die_area=real(DIE) * point.area_share * area,
        dies=real(1),
        cache=real(CACHE_AREA) * point.node.sram_density,
        memory_stacks=real(STACKS),
        network_bandwidth=real(point.nvlink),
        power_limit=real(point.power_limit) * power,
    )
    blueprint = Blueprint(
        plan=plan,
        unit=UNIT,
        node=point.node,
        memory=point.memory,
        link=point.link,
        die_to_die=cluster.die_to_die,
    )
    return accelerator_of_blueprint(blueprint, cluster.family, cluster.system.accelerator)


def log_time(
    cluster: Cluster, point: Point, growth: Float[Array, " resources"]
) -> tuple[Scalar, tuple[Scalar, Scalar, Scalar]]:
    """Returns the logarithm of the s of a step where every resource is exp(growth) times as large, with
    those s, by how much the memory is exceeded, and the peak bf16 rate.
    """
    factor = dict(zip(RESOURCES, jnp.exp(growth), strict=True))
    accelerator = accelerator_of(cluster, point, factor["power limit"], factor["die area"])
    system = replace(
        dataclasses.replace(cluster.system, accelerator=accelerator),
        {"network.nvlink.bandwidth": point.nvlink, "network.infiniband.bandwidth": point.infiniband},
    )
    grown = {
        path: locate(system, path)[0] * factor[name]
        for name, paths in resource_paths(cluster.system).items()
        for path in paths
    }
    report = dp.training_step(cluster.model, replace(system, grown), point.strategy)
    return jnp.log(report.time), (report.time, report.memory.excess, accelerator.matrix.bf16.rate)


def with_gradient(points: Point) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns s of a step, excess of memory, peak rate and elasticities of many points, by one program."""
    cluster = load_cluster()

    def evaluate(point: Point) -> tuple[Scalar, Scalar, Scalar, Float[Array, " resources"]]:
        slopes, outputs = jax.grad(lambda growth: log_time(cluster, point, growth), has_aux=True)(
            jnp.zeros(len(RESOURCES))
        )
        return (*outputs, -slopes)

    program = jax.jit(jax.vmap(evaluate)).lower(points)
    return jax.device_get(program.compile(COMPILER_OPTIONS)(points))


def evaluate_grid() -> Results:
    """Estimates the whole grid in one program, and chooses layout and die area at every point."""
    networks = {name: [getattr(network, name) for network in NETWORKS] for name in ("nvlink", "infiniband")}
    axes = {
        "limit": np.array(POWER_LIMITS),
        "network": (
            stack_cases([load(LinkTechnology, network.link) for network in NETWORKS]),
            *map(np.array, networks.values()),
        ),
        "memory": stack_cases([load(MemoryTechnology, name) for name in MEMORIES]),
        "node": stack_cases([load(Node, name) for name in NODES]),
        "share": np.array(AREA_SHARES),
        "strategy": stack_cases(load_strategies()),
    }
    counts = tuple(len(jax.tree.leaves(axis)[0]) for axis in axes.values())
    places = dict(zip(axes, np.indices(counts).reshape(len(counts), -1), strict=True))
    parts: dict[str, Any] = {
        name: jax.tree.map(lambda leaves, name=name: leaves[places[name]], axis)
        for name, axis in axes.items()
    }
    link, nvlink, infiniband = parts["network"]
    time, excess, rate, elasticity = with_gradient(
        Point(
            node=parts["node"],
            memory=parts["memory"],
            link=link,
            nvlink=nvlink,
            infiniband=infiniband,
            power_limit=parts["limit"],
            area_share=parts["share"],
            strategy=parts["strategy"],
        )
    )
    choices = (*counts[:4], -1)  # layouts and die areas at every point of the other axes
    time = np.where(excess <= 0, time, np.inf).reshape(choices)
    best = np.argmin(time, axis=-1)[..., None]
    assert np.all(np.isfinite(np.min(time, axis=-1))), "no layout fits the memory at some point"
    elasticity = elasticity.reshape(*time.shape, len(RESOURCES))
    return Results(
        time=np.take_along_axis(time, best, axis=-1)[..., 0],
        elasticity=np.take_along_axis(elasticity, best[..., None], axis=-2)[..., 0, :],
        layout=best[..., 0] % len(LAYOUTS),
        area=np.array(AREA_SHARES)[best[..., 0] // len(LAYOUTS)],
        rate=np.take_along_axis(rate.reshape(choices), best, axis=-1)[..., 0],
    )


def saturation(times: Float[np.ndarray, " nodes"]) -> int | None:
    """Returns the index of the first node after which none brings `LEAST_GAIN`; None where the last does."""
    gains = times[:-1] / times[1:] - 1
    worth = np.flatnonzero(gains >= LEAST_GAIN)
    last = int(worth[-1]) + 1 if len(worth) else 0
    return None if last == len(times) - 1 else last
