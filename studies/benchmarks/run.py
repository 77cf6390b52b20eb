"""How fast diffperf is: estimates and gradients per core-second, compile times, and the command line.

Machines differ and are shared, so the tables have ratios beside the times: to the limits that the project
holds itself to, and to the published speed of Calculon on one core of the same kind of machine.

    python studies/benchmarks/run.py [--quick] [--out DIR]
"""

import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# JAX starts as many threads as it may use cores when it is imported: estimates are timed on one core.
if __name__ == "__main__" and hasattr(os, "sched_setaffinity"):
    ALL_CORES = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(ALL_CORES)})

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import diffperf as dp
from diffperf.quantity import Quantity, walk

sys.path.append(str(Path(__file__).parents[1]))
from reporting import Table, parse_options, publish

# Calculon's configurations per core-second in its strategy search of GPT-3 175B on 4,096 A100, without logs.
CALCULON = 2495
BLOCK = 512  # configurations evaluated at once: their intermediate results fit into the caches of a core
RANDOM_FACTOR = 1.3  # numbers are drawn within this factor of the shipped ones
REPETITIONS = 5
SHARPNESS = 50.0  # of the smooth estimates

STRATEGY = {
    "tp": 8,
    "pp": 8,
    "virtual_stages": 3,
    "global_batch": 64,
    "recompute": "selective",
    "attention": "standard",
    "precision": "fp16",
}
DEEPSEEK_STRATEGY = {"pp": 4, "dp": 64, "ep": 64, "global_batch": 1024, "precision": "fp8"}

# Limits that the project holds itself to.
ESTIMATES_FLOOR, GRADIENTS_FLOOR = 300_000, 50_000  # a second
COMPILE_LIMIT, FIRST_ANSWER_LIMIT, NEXT_ANSWER_LIMIT = 15.0, 5.0, 2.5  # s


# --- estimates a second


def random_variants(module: eqx.Module, count: int, seed: int) -> eqx.Module:
    """Returns `count` variants of a module in one tree, in float32.

    Every number is drawn within its bounds and `RANDOM_FACTOR` of the original; choices stay.
    """
    random = np.random.default_rng(seed)
    bounds = [
        declared.bounds if isinstance(declared, Quantity) else (0, 1) for _, declared, _ in walk(module)
    ]
    leaves, structure = jax.tree.flatten(module)

    def vary(leaf: Any, limits: tuple[float, float]) -> jax.Array:
        leaf = np.asarray(leaf)
        shape = (count, *leaf.shape)
        is_number = leaf.ndim == 0
        factors = random.uniform(1 / RANDOM_FACTOR, RANDOM_FACTOR, shape) if is_number else np.ones(shape)
        return jnp.asarray(np.clip(leaf * factors, *limits), dtype=jnp.float32)

    variants = [vary(leaf, limits) for leaf, limits in zip(leaves, bounds, strict=True)]
    return jax.tree.unflatten(structure, variants)


def rate(function: Callable, inputs: tuple[Any, ...], count: int) -> tuple[float, float]:
    """Returns the evaluations a second of a function mapped over blocks of inputs, and the compile time."""

    def in_blocks(leaf: jax.Array) -> jax.Array:
        return leaf.reshape((count // BLOCK, BLOCK, *leaf.shape[1:]))

    def evaluate_block(block: tuple[Any, ...]) -> Any:
        return jax.vmap(function)(*block)

    mapped = jax.jit(lambda *trees: jax.lax.map(evaluate_block, jax.tree.map(in_blocks, trees)))
    start = time.perf_counter()
    compiled = mapped.lower(*inputs).compile()
    compile_seconds = time.perf_counter() - start
    jax.block_until_ready(compiled(*inputs))
    seconds = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*inputs))
        seconds.append(time.perf_counter() - start)
    return count / min(seconds), compile_seconds


def speed_table(count: int) -> Table:
    """Measures and tabulates exact and smooth estimates and their gradients for `count` configurations."""
    model, system = dp.load_model("gpt3-175b"), dp.load_system("dgx-a100", n_devices=64)
    strategy = dp.load_strategy(STRATEGY, n_devices=64)
    systems, strategies = random_variants(system, count, 0), random_variants(strategy, count, 1)

    def outputs(system, strategy) -> jax.Array:
        report = dp.training_step(model, system, strategy)
        return jnp.stack([report.time, report.memory.peak, report.energy.total, report.cost.run])

    def run_cost(system, *relax) -> jax.Array:
        return dp.training_step(model, system, strategy, *relax).cost.run

    benchmarks = (
        ("exact estimates", lambda system: outputs(system, strategy), (systems,), ESTIMATES_FLOOR),
        (
            "exact estimates, strategies and choices varied too",
            outputs,
            (systems, strategies),
            ESTIMATES_FLOOR,
        ),
        (
            "exact estimates with the gradient for every system input",
            jax.value_and_grad(run_cost),
            (systems,),
            GRADIENTS_FLOOR,
        ),
        (
            "smooth estimates with the gradient for every system input",
            jax.value_and_grad(lambda system: run_cost(system, dp.Smooth(SHARPNESS))),
            (systems,),
            GRADIENTS_FLOOR,
        ),
    )
    rows = []
    for name, function, inputs, floor in benchmarks:
        per_second, compile_seconds = rate(function, inputs, count)
        rows.append(
            {
                "benchmark": name,
                "per_second": per_second,
                "over_floor": per_second / floor,
                "over_calculon": per_second / CALCULON,
                "compile_s": compile_seconds,
            }
        )
    columns = {
        "benchmark": ("", ""),
        "per_second": ("per second", ",.0f"),
        "over_floor": ("/ floor", ".1f"),
        "over_calculon": ("/ Calculon", ".0f"),
        "compile_s": ("compile s", ".1f"),
    }
    return Table("speed", "float32, one core", columns, rows)


# --- compile times and the command line


@dataclasses.dataclass(frozen=True)
class TrainingStep:
    """A training step to compile, by the names of its configs."""

    model: str
    system: str
    devices: int
    strategy: dict


GPT3 = TrainingStep("gpt3-175b", "dgx-a100", devices=64, strategy=STRATEGY)
DEEPSEEK = TrainingStep("deepseek-v3", "gb200-nvl72", devices=256, strategy=DEEPSEEK_STRATEGY)

COMPILE_PROGRAM = """
import time, jax, diffperf as dp
{prepare}
model = dp.load_model({step.model!r})
system = dp.load_system({step.system!r}, n_devices={step.devices})
strategy = dp.load_strategy({step.strategy!r}, n_devices={step.devices})

def time_of(model, system, strategy):
    return dp.training_step(model, system, strategy).time

start = time.perf_counter()
jax.jit(jax.value_and_grad(time_of, argnums=(0, 1, 2))).lower(model, system, strategy).compile()
print(time.perf_counter() - start)
"""


def run_on_all_cores(command: list[str], **environment: str) -> str:
    """Runs a command on all cores and returns its output. Raises `SystemExit` if it fails."""
    pinned = hasattr(os, "sched_setaffinity")
    if pinned:
        os.sched_setaffinity(0, ALL_CORES)  # of this thread, which the command inherits
    result = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | environment, check=False
    )
    if pinned:
        os.sched_setaffinity(0, {min(ALL_CORES)})
    if result.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{result.stderr}")
    return result.stdout


def compile_seconds(step: TrainingStep, *, quickly: bool = True) -> float:
    """Returns the seconds to trace and compile a training step with its gradient for every input."""
    program = COMPILE_PROGRAM.format(prepare="dp.compile_quickly()" if quickly else "", step=step)
    return float(run_on_all_cores([sys.executable, "-c", program], XLA_FLAGS=""))


def estimate_seconds() -> tuple[float, float]:
    """Returns the seconds of `diffperf estimate` with an empty compile cache, and with a filled one."""
    command = [sys.executable, "-m", "diffperf", "estimate", GPT3.model, GPT3.system]
    command += ["--devices", "64", "--tp", "8", "--pp", "8", "--global-batch", "64"]
    cache = tempfile.mkdtemp()
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        run_on_all_cores(command, DIFFPERF_CACHE=cache)
        seconds.append(time.perf_counter() - start)
    shutil.rmtree(cache)
    return seconds[0], sorted(seconds[1:])[1]


def latency_table() -> Table:
    """Measures and tabulates compile times and the time to an answer on the command line."""
    first, following = estimate_seconds()
    times = (
        ("compile of GPT-3's training step with its gradient", compile_seconds(GPT3), COMPILE_LIMIT),
        (
            "the same compile with the defaults of XLA",
            compile_seconds(GPT3, quickly=False),
            COMPILE_LIMIT,
        ),
        (
            "compile of DeepSeek-V3's training step with its gradient",
            compile_seconds(DEEPSEEK),
            COMPILE_LIMIT,
        ),
        ("diffperf estimate, compile cache empty", first, FIRST_ANSWER_LIMIT),
        ("diffperf estimate, compile cache filled", following, NEXT_ANSWER_LIMIT),
    )
    columns = {"benchmark": ("", ""), "seconds": ("seconds", ".2f"), "over_limit": ("/ limit", ".2f")}
    rows = [
        {"benchmark": name, "seconds": seconds, "over_limit": seconds / limit}
        for name, seconds, limit in times
    ]
    return Table("latency", "All cores", columns, rows)


def main() -> None:
    """Runs the study."""
    options = parse_options(__doc__, "benchmarks", "fewer configurations", float64=False)
    count = 1 << (14 if options.quick else 17)
    publish(options.out, [speed_table(count), latency_table()])


if __name__ == "__main__":
    main()
