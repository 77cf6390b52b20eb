"""How fast: estimates and gradients per core-second, compile times, the first answer on the command line.

Machines differ and are shared, so the table leads with ratios: to the floors the project holds itself to, and to the peers'
published speed on one core of the same kind of machine.

    python studies/benchmarks/run.py [--quick] [--out DIR]
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# One core, one thread: before jax starts its threads.
if __name__ == "__main__" and hasattr(os, "sched_setaffinity"):
    ALL_CORES = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(ALL_CORES)})

import jax
import jax.numpy as jnp
import numpy as np

import diffperf as dp
from diffperf.quantity import Quantity, walk

CALCULON = (
    2495  # configurations per core-second: strategy search of GPT-3 175B over 4,096 A100, logging silenced
)
BLOCK = 512

STRATEGY = {
    "tp": 8, "pp": 8, "virtual_stages": 3, "global_batch": 64,
    "recompute": "selective", "attention": "standard", "precision": "fp16",
}  # fmt: skip


def spread(module, count: int, seed: int):
    """`count` copies of a module, every number within its bounds and a factor 1.3 of the original."""
    random = np.random.default_rng(seed)
    bounds = [
        declared.bounds if isinstance(declared, Quantity) else (0, 1) for _, declared, _ in walk(module)
    ]
    leaves, structure = jax.tree.flatten(module)

    def vary(leaf, limits):
        leaf = np.asarray(leaf)
        shape = (count, *leaf.shape)
        factors = random.uniform(1 / 1.3, 1.3, shape) if leaf.ndim == 0 else np.ones(shape)  # choices stay
        return jnp.asarray(np.clip(leaf * factors, *limits), dtype=jnp.float32)

    return jax.tree.unflatten(
        structure, [vary(leaf, limits) for leaf, limits in zip(leaves, bounds, strict=True)]
    )


def rate(function, batches, count: int) -> tuple[float, float]:
    """(evaluations per second, seconds to compile) of a function of one system and one strategy, mapped over blocks."""

    def blocks(leaf):
        return leaf.reshape((count // BLOCK, BLOCK, *leaf.shape[1:]))

    mapped = jax.jit(
        lambda *trees: jax.lax.map(lambda block: jax.vmap(function)(*block), jax.tree.map(blocks, trees))
    )
    began = time.perf_counter()
    compiled = mapped.lower(*batches).compile()
    compile_seconds = time.perf_counter() - began
    jax.block_until_ready(compiled(*batches))
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        jax.block_until_ready(compiled(*batches))
        seconds.append(time.perf_counter() - began)
    return count / min(seconds), compile_seconds


def speeds(count: int) -> list[tuple[str, float, float, float]]:
    """(what, per second, seconds to compile, floor) of forward and gradient, choices closed over and traced."""
    model, system = dp.load_model("gpt3-175b"), dp.load_system("dgx-a100", n_devices=64)
    strategy = dp.load_strategy(STRATEGY, n_devices=64)
    systems, strategies = spread(system, count, 0), spread(strategy, count, 1)

    def answers(report):
        return jnp.stack([report.time, report.memory.peak, report.energy.total, report.cost.run])

    def forward(system):
        return answers(dp.training_step(model, system, strategy))

    def forward_mixed(system, strategy):
        return answers(dp.training_step(model, system, strategy))

    def gradient(system):
        return jax.value_and_grad(lambda s: dp.training_step(model, s, strategy).cost.run)(system)

    def gradient_smooth(system):
        return jax.value_and_grad(lambda s: dp.training_step(model, s, strategy, dp.Smooth(50.0)).cost.run)(
            system
        )

    return [
        ("exact estimates", *rate(forward, (systems,), count), 300_000),
        (
            "exact estimates, strategies and choices varied too",
            *rate(forward_mixed, (systems, strategies), count),
            300_000,
        ),
        (
            "exact estimates with the gradient of every system input",
            *rate(gradient, (systems,), count),
            50_000,
        ),
        (
            "smooth estimates with the gradient of every system input",
            *rate(gradient_smooth, (systems,), count),
            50_000,
        ),
    ]


def single_compile(model: str, system: str, devices: int, strategy: dict, *, quickly: bool = True) -> float:
    """Seconds to trace and compile the training step, every input traced, with the gradient for all of them; all cores."""
    code = (
        "import time, jax, diffperf as dp\n"
        f"{'dp.compile_quickly()' if quickly else ''}\n"
        f"m, s = dp.load_model({model!r}), dp.load_system({system!r}, n_devices={devices})\n"
        f"t = dp.load_strategy({strategy!r}, n_devices={devices})\n"
        "b = time.perf_counter()\n"
        "step = jax.value_and_grad(lambda m, s, t: dp.training_step(m, s, t).time, argnums=(0, 1, 2))\n"
        "jax.jit(step).lower(m, s, t).compile()\n"
        "print(time.perf_counter() - b)\n"
    )
    return float(_on_all_cores([sys.executable, "-c", code], XLA_FLAGS="").stdout)


def command_line() -> tuple[float, float]:
    """Seconds of `diffperf estimate` from an empty compile cache, and the median of three with the cache filled."""
    command = [sys.executable, "-m", "diffperf", "estimate", "gpt3-175b", "dgx-a100", "--devices", "64"]
    command += ["--tp", "8", "--pp", "8", "--global-batch", "64"]
    cache = tempfile.mkdtemp()
    seconds = []
    for _ in range(4):
        began = time.perf_counter()
        _on_all_cores(command, DIFFPERF_CACHE=cache)
        seconds.append(time.perf_counter() - began)
    shutil.rmtree(cache)
    return seconds[0], sorted(seconds[1:])[1]


def _on_all_cores(command: list[str], **environment: str) -> subprocess.CompletedProcess:
    pinned = hasattr(os, "sched_setaffinity")
    if pinned:
        os.sched_setaffinity(0, ALL_CORES)  # of this thread, which the child inherits
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    if pinned:
        os.sched_setaffinity(0, {min(ALL_CORES)})
    if result.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{result.stderr}")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer configurations")
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks"))
    arguments = parser.parse_args()

    dp.compile_quickly()
    lines = [f"{'float32, one core':58} {'per second':>12} {'/ floor':>8} {'/ Calculon':>10} {'compile':>9}"]
    for name, per_second, seconds, floor in speeds(1 << (14 if arguments.quick else 17)):
        lines.append(
            f"{name:58} {per_second:12,.0f} {per_second / floor:7.1f}× {per_second / CALCULON:9.0f}× {seconds:7.1f} s"
        )
    gpt = ("gpt3-175b", "dgx-a100", 64, STRATEGY)
    deepseek = (
        "deepseek-v3",
        "gb200-nvl72",
        256,
        {"pp": 4, "dp": 64, "ep": 64, "global_batch": 1024, "precision": "fp8"},
    )
    cold, warm = command_line()
    lines.append("")
    lines.append(f"{'all cores':58} {'seconds':>12} {'/ limit':>8}")
    for name, seconds, limit in (
        ("compile of GPT-3's training step with its gradient", single_compile(*gpt), 15.0),
        ("the same as XLA compiles it by default", single_compile(*gpt, quickly=False), 15.0),
        ("compile of DeepSeek-V3's training step with its gradient", single_compile(*deepseek), 15.0),
        ("diffperf estimate, compile cache empty", cold, 5.0),
        ("diffperf estimate, compile cache filled", warm, 2.5),
    ):
        lines.append(f"{name:58} {seconds:12.2f} {seconds / limit:7.2f}×")
    print("\n".join(lines))
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "table.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
