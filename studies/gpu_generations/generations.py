"""The steps from clusters of A100 to clusters of B200, and the estimate of each with its fastest layout.

A step takes the numbers of one part of the system (compute, InfiniBand, NVLink, device memory) from a
shipped system of the next generation, or changes the size of the NVLink domain, the number format or the
global batch. Everything else is that of the step before.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

import diffperf as dp
from diffperf.estimate.training import TrainingReport
from diffperf.explore.plan.plan import Search
from diffperf.explore.plan.ranking import rank, report_of
from diffperf.explore.points import outputs_at
from diffperf.hardware.system import System
from diffperf.quantity import locate, numeric, replace
from diffperf.workload.configuration import Configuration
from diffperf.workload.model import Model

# One software stack for all steps: calibrated on dense models on GB200, its matrix efficiency of 0.855 is
# close to the 0.83 of Megatron-LM on A100.
STACK = "megatron-bridge"
DEVICES, SEQUENCES, SEQUENCE_LENGTH = 1024, 1536, 2048  # as Megatron-LM's runs of 2021 (arXiv 2104.04473)
LARGE_BATCH = 4 * SEQUENCES
# NVIDIA's NVLink Switch System joins 256 H100 (H100 whitepaper); their full bandwidth there is an estimate.
SWITCH_DOMAIN = 256
A100, H100, B200 = "dgx-a100", "dgx-h100", "hgx-b200"

# Strategies that are compared: all that these fields leave open, with ZeRO 1 as Megatron's recipes have it.
GIVEN = {
    "sequence_length": SEQUENCE_LENGTH,
    "zero": "1",
    "embedding_in_split": False,
    "loss_in_split": False,
}

# The numbers of datasheets by part of a system. With A100's efficiencies, only these change.
DATASHEET = {
    "compute": (
        "accelerator.vector", "accelerator.compute_units", "accelerator.cluster",
        "accelerator.memory.smem.bandwidth", "accelerator.memory.smem.capacity",
        "accelerator.memory.l2.bandwidth", "accelerator.memory.l2.capacity",
    ),
    "infiniband": ("network.infiniband.bandwidth",),
    "nvlink": ("network.nvlink.bandwidth",),
    "hbm": ("accelerator.memory.hbm.bandwidth", "accelerator.memory.hbm.capacity"),
}  # fmt: skip
NO_LIMIT = 1e5  # W: a power limit that no clock falls under

# Resources whose growth makes a step faster, with the numbers that stand for each.
RESOURCES = {
    "matrix units": ("accelerator.matrix.",),
    "vector units": ("accelerator.vector",),
    "caches": ("accelerator.memory.smem.bandwidth", "accelerator.memory.l2.bandwidth"),
    "HBM": ("accelerator.memory.hbm.bandwidth",),
    "NVLink": ("network.nvlink.bandwidth",),
    "InfiniBand": ("network.infiniband.bandwidth",),
    "power": ("accelerator.power_limit", "accelerator.static_power", "accelerator.active_power"),
}
GROWTH = 0.01  # of a resource, up and down, for the elasticity of the time to it


@dataclasses.dataclass(frozen=True)
class Step:
    """A step from A100 to B200.

    - `part`: the part of the system that changes, or "format" or "batch".
    - `source`: the shipped system that gives the part's numbers.
    - `quantity`: the path of the datasheet number that stands for the part, where there is one.
    """

    name: str
    part: str
    source: str
    precision: str
    quantity: str = ""
    sequences: int = SEQUENCES


MATRIX = "accelerator.matrix"
STEPS = (
    Step("A100, HDR, bf16", "", A100, "bf16"),
    Step("compute of H100", "compute", H100, "bf16", f"{MATRIX}.bf16.rate"),
    Step("InfiniBand NDR", "infiniband", H100, "bf16", "network.infiniband.bandwidth"),
    Step("NVLink 4", "nvlink", H100, "bf16", "network.nvlink.bandwidth"),
    Step("NVLink switch", "switch", "", "bf16"),
    Step("fp8", "format", "", "fp8", f"{MATRIX}.fp8.rate"),
    Step("HBM3 of H100", "hbm", H100, "fp8", "accelerator.memory.hbm.bandwidth"),
    Step("compute of B200", "compute", B200, "fp8", f"{MATRIX}.fp8.rate"),
    Step("NVLink 5", "nvlink", B200, "fp8", "network.nvlink.bandwidth"),
    Step("fp4", "format", "", "nvfp4", f"{MATRIX}.nvfp4.rate"),
    Step("HBM3e of B200", "hbm", B200, "nvfp4", "accelerator.memory.hbm.bandwidth"),
    Step("4 × batch", "batch", "", "nvfp4", sequences=LARGE_BATCH),
)
# Steps whose gain would be the ratio of peak rates if nothing but matrix products took time.
PEAK_STEPS = ("compute of H100", "fp8", "compute of B200", "fp4")


def part_paths(system: System, part: str) -> list[str]:
    """Returns the paths of all numbers of a part of the system that time depends on."""
    inputs = numeric(system, "input")
    if part == "compute":
        others = ("accelerator.memory.hbm.", "accelerator.package.")
        return [path for path in inputs if path.startswith("accelerator.") and not path.startswith(others)]
    prefix = {"hbm": "accelerator.memory.hbm."}.get(part, f"network.{part}.")
    return [path for path in inputs if path.startswith(prefix) and not path.endswith(".size")]


def datasheet_paths(system: System, part: str) -> list[str]:
    """Returns the paths of the numbers of a part of the system that datasheets give."""
    rates = [path for path in numeric(system) if path.startswith(MATRIX) and path.endswith(".rate")]
    return [*DATASHEET[part], *(rates if part == "compute" else [])]


def with_a100_efficiencies(system: System) -> System:
    """Returns the system whose matrix units reach A100's share of their peak rate in every number format,
    without a power limit.
    """
    efficiency = locate(system, f"{MATRIX}.bf16.efficiency")[0]
    paths = [path for path in numeric(system) if path.startswith(MATRIX) and path.endswith(".efficiency")]
    return replace(system, dict.fromkeys(paths, efficiency) | {"accelerator.power_limit": NO_LIMIT})


def systems(devices: int = DEVICES, calibrated: bool = True) -> Iterator[System]:
    """Yields the system of every step: with all numbers of the shipped systems, which are calibrated, or with
    the numbers of datasheets and the efficiencies of A100.
    """
    shipped = {name: dp.load_system(name, devices, stack=STACK) for name in (A100, H100, B200)}
    system = shipped[A100] if calibrated else with_a100_efficiencies(shipped[A100])
    for step in STEPS:
        if step.part == "switch":
            system = replace(system, {"network.nvlink.size": SWITCH_DOMAIN})
        elif step.part in DATASHEET:
            paths = (part_paths if calibrated else datasheet_paths)(system, step.part)
            system = replace(system, {path: locate(shipped[step.source], path)[0] for path in paths})
        yield system


@dataclasses.dataclass(frozen=True)
class Result:
    """A step with its fastest layout.

    - `kept`: s a sequence with the layout of the step before, None where that does not fit memory or batch.
    - `peak`: ratio of the datasheet number that the step changes.
    - `fitting`: strategies that fit memory, of which the layout is the fastest.
    """

    step: Step
    system: System
    configuration: Configuration
    report: TrainingReport
    kept: float | None
    peak: float | None
    fitting: int

    @property
    def seconds(self) -> float:
        """Seconds of the training step over its sequences."""
        return float(self.report.time) / self.step.sequences

    @property
    def layout(self) -> str:
        """The degrees of parallelism and the micro-batch as text."""
        strategy = self.configuration.strategy
        fields = {"tp": "tp", "pp": "pp", "dp": "dp", "virtual_stages": "v", "micro_batch": "mb"}
        degrees = " ".join(f"{name}{float(getattr(strategy, field)):.0f}" for field, name in fields.items())
        return degrees + (" recomputed" if float(strategy.recompute["full"]) else "")


def fastest(model: Model, system: System, precision: str, sequences: int) -> tuple[Configuration, Any, int]:
    """Returns the fastest layout that fits memory of those that `diffperf plan` compares, its report, and how
    many fit.
    """
    given = {"precision": precision, "global_batch": sequences, **GIVEN}
    search = Search.of(model, system, given)
    ranking = rank(search.inputs, search.candidates)
    assert ranking.fitting, f"no layout fits {precision} on {float(system.n_devices):.0f} devices"
    strategy = ranking.strategy(search.inputs, 0)
    return dataclasses.replace(search.inputs, strategy=strategy), ranking.report(0), ranking.fitting


def _time_with_layout_of(
    before: Configuration, configuration: Configuration, capacity: float
) -> float | None:
    """Returns the s of a step with the layout before; None for another batch, or less memory than before."""
    if float(configuration.strategy.global_batch) != float(before.strategy.global_batch):
        return None
    strategy = replace(before.strategy, {"precision": configuration.strategy.precision.array})
    kept = dataclasses.replace(configuration, strategy=strategy)
    if capacity < float(before.system.accelerator.device_memory.capacity):
        return None
    report: Any = report_of(kept, "training")
    return float(report.time)


def results(model: Model, devices: int = DEVICES, calibrated: bool = True) -> list[Result]:
    """Estimates all steps, each with its fastest layout; every step changes numbers only, so that one program
    compares all layouts of all steps.
    """
    chain: list[Result] = []
    for step, system in zip(STEPS, systems(devices, calibrated), strict=True):
        configuration, report, fitting = fastest(model, system, step.precision, step.sequences)
        before = chain[-1] if chain else None
        kept = peak = None
        if before is not None:
            capacity = float(system.accelerator.device_memory.capacity)
            kept = _time_with_layout_of(before.configuration, configuration, capacity)
            peak = _peak_ratio(before, step, system)
        chain.append(
            Result(
                step=step,
                system=system,
                configuration=configuration,
                report=report,
                kept=None if kept is None else kept / step.sequences,
                peak=peak,
                fitting=fitting,
            )
        )
    return chain


def _peak_ratio(before: Result, step: Step, system: System) -> float | None:
    """Returns the datasheet number of a step over that of the step before; of a number format, its peak rate
    over that of the format before.
    """
    if not step.quantity:
        return None
    old = f"{MATRIX}.{before.step.precision}.rate" if step.part == "format" else step.quantity
    return float(locate(system, step.quantity)[0] / locate(before.system, old)[0])


def elasticities(result: Result) -> dict[str, float]:
    """Returns the relative fall of a step's time by the relative growth of every resource, by central
    differences; what is left to 1 are latencies and the host.

    Faster arithmetic takes more power: "power" is the limit, with what a device draws beside work on data.
    """

    inputs = numeric(result.system, "input")
    changes: dict[str, np.ndarray] = {}
    for row, names in enumerate(RESOURCES.values()):
        paths = [
            path
            for path in inputs
            if path in names or (path.startswith(f"{MATRIX}.") and f"{MATRIX}." in names)
        ]
        for path in paths:
            if not path.startswith(MATRIX) or path.endswith(".rate"):
                own = float(inputs[path][1])
                column = changes.setdefault(f"system.{path}", np.full(2 * len(RESOURCES), own))
                column[2 * row : 2 * row + 2] = own * np.exp([GROWTH, -GROWTH])
    times = np.log(outputs_at(result.configuration, changes, "training")["time"]).reshape(-1, 2)
    shares = (times[:, 1] - times[:, 0]) / (2 * GROWTH)
    return dict(zip(RESOURCES, map(float, shares), strict=True))


def whole_system(model: Model, name: str, precision: str, devices: int = DEVICES) -> float:
    """Returns the s of a step of the shipped system with its fastest layout."""
    _, report, _ = fastest(model, dp.load_system(name, devices, stack=STACK), precision, SEQUENCES)
    return float(report.time)
