"""How fast estimates are on a GPU, and whether it finds the same best points as the CPU.

Estimates of training steps and inference on random variants of a system, in float32: on the device that JAX
has by default, in one call, and on one CPU device as a reference. Of the variants, both devices rank the best
by cost or dollars per million tokens. Then a sweep of a space, as `diffperf sweep` does it, with all that the
space keeps: its best points are estimated again in float64 on either device.

Without a GPU the default device is the CPU too, and every ratio is about 1.

    python studies/benchmarks/gpu.py [--quick] [--points N] [--rate NAME]… [--space NAME]… [--out DIR]
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1]))
import jax
import jax.numpy as jnp
import numpy as np
from measure import RATES, over_last_axis, rate_benchmark
from reporting import Table, parse_options, publish

from diffperf.errors import ConfigError
from diffperf.explore.sweep.device_sizes import on_cpu
from diffperf.explore.sweep.space import Space
from diffperf.explore.sweep.space_file import load_space
from diffperf.explore.sweep.sweep import sweep

QUICK = ("training", "decode")
BEST = 100  # variants that both devices rank first
REPETITIONS = 5
REFERENCE = 2**16  # variants that the CPU ranks too


def measured_rate(name: str, count: int) -> dict[str, Any]:
    """Returns the row of a rate: that of the default device and of a CPU device, and how their best agree."""
    function, inputs = rate_benchmark(name, count)
    # Gradients are faster with the batch first.
    gradient = name.endswith("gradient")
    mapped = jax.vmap(function) if gradient else over_last_axis(function)
    if not gradient:
        inputs = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, -1), inputs)
    few = jax.tree.map(lambda leaf: leaf[:REFERENCE] if gradient else leaf[..., :REFERENCE], inputs)
    seconds, compiling, outputs = timed(mapped, inputs)
    with jax.default_device(jax.devices("cpu")[0]):
        on_host = jax.device_put(jax.device_get(few), jax.devices("cpu")[0])
        host_seconds, _, expected = timed(mapped, on_host)
    size = min(count, REFERENCE)
    ranked, wanted = ranks(outputs, gradient)[:size], ranks(expected, gradient)
    best, own_best = (set(np.argsort(each, kind="stable")[:BEST].tolist()) for each in (wanted, ranked))
    return {
        "what": name,
        "rate": count / seconds,
        "cpu": size / host_seconds,
        "ratio": count / seconds / (size / host_seconds),
        "compile": compiling,
        "common": len(best & own_best),
        "off": float(np.max(np.abs(ranked / wanted - 1))),
    }


def ranks(outputs: Any, gradient: bool) -> np.ndarray:
    """Returns the numbers to rank by: a value beside its gradient, or the last of several outputs."""
    leaves = jax.tree.leaves(outputs)
    return np.asarray(leaves[0] if gradient else leaves[-1], float)


def timed(function: Callable[..., Any], inputs: Any) -> tuple[float, float, Any]:
    """Returns the seconds of a call, of several that wait in line, those to compile it, and its outputs."""
    began = time.perf_counter()
    compiled = jax.jit(function).lower(*inputs).compile()
    compiling = time.perf_counter() - began
    outputs = jax.block_until_ready(compiled(*inputs))
    began = time.perf_counter()
    jax.block_until_ready([compiled(*inputs) for _ in range(REPETITIONS)])
    return (time.perf_counter() - began) / REPETITIONS, compiling, outputs


def swept(name: str, space: Space) -> dict[str, Any]:
    """Returns the row of a sweep with all that its space keeps, on the default device."""
    result = sweep(space)
    ranked = result.best.column(space.rank_by).to_pylist()
    return {
        "space": name,
        "points": space.size,
        "seconds": result.seconds,
        "compile": result.compile_seconds,
        "rate": result.points_per_second,
        "best": ranked[0],
        "last": ranked[-1],
        "front": 0 if result.front is None else result.front.num_rows,
    }


def main() -> None:
    """Runs the study."""
    options = parse_options(
        __doc__,
        "gpu",
        "two rates of few variants, and a small space",
        float64=False,
        points={"type": int, "help": "variants [2^20, and 2^14 on a CPU]"},
        rate={"action": "append", "choices": RATES, "help": "what to estimate (repeatable) [all]"},
        space={"action": "append", "help": "name of a space to sweep (repeatable)"},
    )
    count = options.points or (2**14 if on_cpu() or options.quick else 2**20)
    names = options.rate or (QUICK if options.quick else RATES)
    try:
        spaces = {name: load_space(name) for name in options.space or ["gpt3-175b-strategy-sweep"]}
    except ConfigError as problem:
        raise SystemExit(str(problem)) from None
    device = jax.devices()[0].device_kind
    rates = [measured_rate(name, count) for name in names]
    columns = {
        "what": ("", ""),
        "rate": (f"{device}, per second", ",.0f"),
        "cpu": ("CPU, per second", ",.0f"),
        "ratio": ("ratio", ",.1f"),
        "compile": ("compile, s", ".1f"),
        "common": (f"of the CPU's best {BEST}", ".0f"),
        "off": ("greatest difference", ".1e"),
    }
    sweep_columns = {
        "space": ("", ""),
        "points": ("points", ",.0f"),
        "seconds": ("s", ".2f"),
        "compile": ("compile, s", ".1f"),
        "rate": ("per second", ",.0f"),
        "best": ("best", ".12g"),
        "last": ("last of the best", ".12g"),
        "front": ("on the front", ".0f"),
    }
    sweeps = [swept(name, space) for name, space in spaces.items()]
    tables = [
        Table("rates", f"float32, {count:,} variants", columns, rates),
        Table("sweeps", f"on {device}, best points in float64", sweep_columns, sweeps),
    ]
    publish(options.out, tables)


if __name__ == "__main__":
    main()
