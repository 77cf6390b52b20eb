"""The workloads of the study, their possible layouts, and estimates of all of them on several networks."""

import dataclasses
import itertools
from collections.abc import Callable

import jax
import numpy as np
from reporting import choice_weights, stack_cases

import diffperf as dp
from diffperf.quantity import replace
from diffperf.report.plots import BLUE, GREY, ORANGE, RED
from diffperf.workload.configuration import Configuration
from diffperf.workload.rules import feasible
from diffperf.workload.strategy import Strategy

SYSTEM, STACK = "dgx-h100", "megatron-core"


@dataclasses.dataclass(frozen=True)
class Network:
    """A network between nodes, of 50 GB/s a device, and inside them; how the figure draws it."""

    topology: str
    oversubscription: float
    nvlink_devices: int
    colour: str
    dashes: str = "-"


RAIL = "rail"
NETWORKS = {
    RAIL: Network("rail", oversubscription=1, nvlink_devices=8, colour=BLUE),
    "fat tree 1:1": Network("fat_tree", oversubscription=1, nvlink_devices=8, colour="#8cc0e8", dashes="--"),
    "dragonfly": Network("dragonfly", oversubscription=1, nvlink_devices=8, colour="#3d9a8b", dashes=":"),
    "fat tree 2:1": Network("fat_tree", oversubscription=2, nvlink_devices=8, colour="#e9c46a"),
    "fat tree 4:1": Network("fat_tree", oversubscription=4, nvlink_devices=8, colour=ORANGE),
    "3D torus": Network("torus_3d", oversubscription=1, nvlink_devices=8, colour=RED),
    "NVLink of 64": Network("switch", oversubscription=1, nvlink_devices=64, colour=GREY),
}


@dataclasses.dataclass(frozen=True)
class Workload:
    """A mixture of experts to train, and the context-parallel degrees to try."""

    model: str
    devices: int
    global_batch: int
    sequence_length: int
    experts: int
    context_degrees: tuple[int, ...]

    @property
    def title(self) -> str:
        """The workload in a heading."""
        return f"{self.model}, {self.devices:,} H100, {self.sequence_length:,} tokens"


MIXTRAL = Workload(
    "mixtral-8x22b",
    devices=512,
    global_batch=256,
    sequence_length=32768,
    experts=8,
    context_degrees=(1, 2, 4, 8),
)
DEEPSEEK = Workload(
    "deepseek-v3",
    devices=2048,
    global_batch=15360,
    sequence_length=4096,
    experts=256,
    context_degrees=(1, 2),
)

# FlashAttention leaves nothing to selective recomputation.
RECOMPUTATIONS = ("none", "full")
# Whether the all-to-all of tokens to experts and back is exposed or overlaps with other micro-batches.
DISPATCHES = ("in the open", "hidden")


@dataclasses.dataclass(frozen=True)
class Layout:
    """Degrees of parallelism of a strategy, and what varies with them."""

    tp: int
    pp: int
    cp: int
    ep: int
    dp: int
    expert_tp: int  # 0 stands for the tensor-parallel degree
    micro_batch: int
    recompute: str
    dispatch: str

    @property
    def degrees(self) -> dict[str, float]:
        """The numeric fields, by the names they have in a strategy."""
        names = ("tp", "pp", "cp", "ep", "dp", "expert_tp", "micro_batch")
        return {name: float(getattr(self, name)) for name in names}

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        """The values of the strategy's fields."""
        overlap = "on" if self.dispatch == "hidden" else "off"
        return {name: np.array(value) for name, value in self.degrees.items()} | {
            "recompute": choice_weights(Strategy, "recompute", self.recompute),
            "overlap_experts": choice_weights(Strategy, "overlap_experts", overlap),
        }


def all_layouts(work: Workload) -> list[Layout]:
    """Returns all layouts whose degrees multiply to the devices, with all recomputations and dispatches."""
    layouts = []
    degrees = itertools.product(
        (1, 2, 4, 8),
        (1, 2, 4, 8, 16, 32),
        work.context_degrees,
        [2**power for power in range(9)],
        (0, 1),
        (1, 2, 4),
    )
    for tp, pp, cp, ep, expert_tp, micro_batch in degrees:
        data, remainder = divmod(work.devices, tp * pp * cp)
        if not data or remainder or work.global_batch % (data * micro_batch):
            continue
        if ep > work.experts or (expert_tp and tp == 1) or tp * cp * data % ((expert_tp or tp) * ep):
            continue
        for recompute, dispatch in itertools.product(RECOMPUTATIONS, DISPATCHES):
            layouts.append(
                Layout(
                    tp=tp,
                    pp=pp,
                    cp=cp,
                    ep=ep,
                    dp=data,
                    expert_tp=expert_tp,
                    micro_batch=micro_batch,
                    recompute=recompute,
                    dispatch=dispatch,
                )
            )
    return layouts


def network_inputs(nvlink_bandwidth: float) -> dict[str, np.ndarray]:
    """Returns the values of all networks, one a row, by path below the system's network."""
    networks, tier = NETWORKS.values(), dp.load_system(SYSTEM).network[-1]
    return {
        "infiniband.topology": np.stack(
            [choice_weights(tier, "topology", network.topology) for network in networks]
        ),
        "infiniband.oversubscription": np.array([network.oversubscription for network in networks], float),
        "nvlink.size": np.array([network.nvlink_devices for network in networks], float),
        "nvlink.bandwidth": np.full(len(NETWORKS), nvlink_bandwidth),
    }


def estimator(work: Workload) -> Callable[..., dict[str, np.ndarray]]:
    """Returns a compiled function: networks, layouts, schedule, precision -> numbers, [networks, layouts]."""
    model, system = dp.load_model(work.model), dp.load_system(SYSTEM, work.devices, stack=STACK)
    base = dp.load_strategy(
        {"global_batch": work.global_batch, "sequence_length": work.sequence_length, "zero": "1"}
    )

    def estimate(network: dict, layout: dict, pipeline: dict) -> dict[str, jax.Array]:
        strategy = replace(base, layout | pipeline)
        connected = replace(system, {f"network.{path}": value for path, value in network.items()})
        report = dp.training_step(model, connected, strategy)
        return {
            "time": report.time,
            "mfu": report.mfu,
            "peak": report.memory.peak,
            "experts": report.breakdown.expert_parallel,
            "bubble": report.breakdown.pipeline_bubble,
            "head": report.breakdown.head,
            "fits": report.memory.excess <= 0,
            "allowed": feasible(Configuration(model, connected, strategy)),
        }

    @jax.jit
    def on_all_networks(networks: dict, layouts: dict, pipeline: dict) -> dict[str, jax.Array]:
        def on_network(network: dict) -> dict[str, jax.Array]:
            return jax.vmap(lambda layout: estimate(network, layout, pipeline))(layouts)

        return jax.lax.map(on_network, networks)

    def run(
        networks: dict[str, np.ndarray], layouts: list[Layout], schedule: str, precision: str
    ) -> dict[str, np.ndarray]:
        inputs = stack_cases([layout.inputs for layout in layouts])
        pipeline = {
            "schedule": choice_weights(Strategy, "schedule", schedule),
            "precision": choice_weights(Strategy, "precision", precision),
        }
        return jax.device_get(on_all_networks(networks, inputs, pipeline))

    return run


@dataclasses.dataclass(frozen=True)
class Best:
    """The fastest layout that fits, among those that qualify, and its numbers."""

    index: int
    layout: Layout
    numbers: dict[str, float]

    @property
    def time(self) -> float:
        """The time of the step, in s."""
        return self.numbers["time"]

    @property
    def exposed(self) -> float:
        """The share of the step in which the all-to-all of tokens to experts and back is exposed."""
        return self.numbers["experts"] / self.numbers["time"]


class Results:
    """The estimates of all layouts of a workload on every network."""

    def __init__(self, work: Workload, nvlink_bandwidth: float):
        self.work, self.layouts, self.run = work, all_layouts(work), estimator(work)
        self.numbers = self.run(network_inputs(nvlink_bandwidth), self.layouts, "1f1b", "bf16")
        self.dispatch = np.array([layout.dispatch for layout in self.layouts])
        self.expert_degree = np.array([layout.ep for layout in self.layouts])

    def on(self, network: str) -> dict[str, np.ndarray]:
        """Returns the numbers of all layouts on a network."""
        position = list(NETWORKS).index(network)
        return {name: values[position] for name, values in self.numbers.items()}

    def best(self, network: str, dispatch: str, ep: int | None = None) -> Best | None:
        """Returns the best layout on a network, or None; with `ep`, of that expert-parallel degree."""
        numbers = self.on(network)
        possible = (self.dispatch == dispatch) & numbers["fits"] & numbers["allowed"]
        if ep is not None:
            possible &= self.expert_degree == ep
        indices = np.flatnonzero(possible)
        if not indices.size:
            return None
        index = indices[numbers["time"][indices].argmin()]
        return Best(
            index, self.layouts[index], {name: float(values[index]) for name, values in numbers.items()}
        )

    @property
    def degrees(self) -> list[int]:
        """The expert-parallel degrees of the layouts."""
        return sorted({layout.ep for layout in self.layouts})
