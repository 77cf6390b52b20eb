"""One measurement of how fast a checkout of diffperf is, in a process of its own. `run.py` starts it.

    PYTHONPATH=CHECKOUT python measure.py rate NAME COUNT
    PYTHONPATH=CHECKOUT python measure.py compile NAME [--defaults]
    PYTHONPATH=CHECKOUT python measure.py page

Prints one JSON object: {"per_second": …, "compile_seconds": …, "intermediate_bytes": …}, {"seconds": …}, or
{"lacks": …} where the checkout has no such part of the library.
"""

import argparse
import functools
import importlib
import json
import operator
import os
import sys
import time
from collections.abc import Callable
from typing import Any

# JAX starts as many threads as it may use cores when it is imported: rates are those of one core.
if __name__ == "__main__" and sys.argv[1:2] == ["rate"] and hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import jax
import jax.numpy as jnp
import numpy as np

import diffperf as dp
from diffperf.quantity import Quantity, walk

# Configurations evaluated at once, whose intermediate results fit into the caches of a core: half as many of
# generations and servers, which have more of them.
BLOCK = 512
HALF_A_BLOCK = ("generate", "serve")
MANY_RESULTS = 100  # of a block, which take longer to return than to compute
RANDOM_FACTOR = 1.3  # numbers are drawn within this factor of the shipped ones
REPETITIONS = 5
SHARPNESS = 50.0  # of the smooth estimates

# What is estimated, by the names of the configs: model, system, number of devices and strategy.
TRAINING = {
    "tp": 8,
    "pp": 8,
    "virtual_stages": 3,
    "global_batch": 64,
    "recompute": "selective",
    "attention": "standard",
    "precision": "fp16",
}
TRAINING_OF_EXPERTS = {"pp": 4, "dp": 64, "ep": 64, "global_batch": 1024, "precision": "fp8"}
INFERENCE = {"tp": 8, "global_batch": 32, "sequence_length": 1024, "output_length": 256}
WORKLOADS = {
    "gpt3": ("gpt3-175b", "dgx-a100", 64, TRAINING),
    "deepseek": ("deepseek-v3", "gb200-nvl72", 256, TRAINING_OF_EXPERTS),
    "llama": ("llama-2-70b", "dgx-h100", 8, INFERENCE),
}
CLIENTS = 64  # of a served model

# From a model, a system and a strategy to numbers. Several numbers are columns of their own, as in a sweep:
# in one array they would be written element by element, which takes a third of an estimate's time.
Estimate = Callable[[Any, Any, Any], Any]
# A function of some trees of numbers, and these trees.
Benchmark = tuple[Callable[..., Any], tuple[Any, ...]]
# A program, and the arguments of each of its calls.
Mapped = tuple[Callable[..., Any], list[tuple[Any, ...]]]


def load(workload: str) -> tuple[Any, Any, Any]:
    """Returns the model, the system and the strategy of a workload."""
    model, system, devices, strategy = WORKLOADS[workload]
    loaded = dp.load_model(model), dp.load_system(system, n_devices=devices)
    return *loaded, dp.load_strategy(strategy, n_devices=devices)


def outputs_of(phase: str, *relax: Any) -> Estimate:
    """Returns the function to the time, memory, energy and cost of a phase."""

    def outputs(*inputs: Any) -> tuple[jax.Array, ...]:
        report = getattr(dp, phase)(*inputs, *relax)
        return report.time, report.memory.peak, report.energy.total, report.cost.run

    return outputs


def output_of(phase: str, path: str, *relax: Any) -> Estimate:
    """Returns the function to one number of the report of a phase."""
    return lambda *inputs: operator.attrgetter(path)(getattr(dp, phase)(*inputs, *relax))


def outputs_of_serving(*names: str) -> Estimate:
    """Returns the function to numbers of the report of a server: those of the fixed point of its batch.

    One number is returned by itself, so that it can be differentiated.
    """
    from diffperf.estimate.serving.serving_report import serve
    from diffperf.workload.requests import Requests

    requests = Requests(concurrency=CLIENTS)

    def outputs(*inputs: Any) -> Any:
        report = serve(*inputs, requests)
        values = tuple(getattr(report, name) for name in names)
        return values if len(values) > 1 else values[0]

    return outputs


_LATENCIES = ("time_to_first_token", "time_per_output_token")
_DOLLARS = "cost_per_million_tokens"
# What is evaluated many times: its workload, how to make the function, and whether with its gradient for
# every number of the system.
RATES: dict[str, tuple[str, Callable[[], Estimate], bool]] = {
    "training": ("gpt3", lambda: outputs_of("training_step"), False),
    "training, strategies varied": ("gpt3", lambda: outputs_of("training_step"), False),
    "training, smooth": ("gpt3", lambda: outputs_of("training_step", dp.Smooth(SHARPNESS)), False),
    "training, gradient": ("gpt3", lambda: output_of("training_step", "cost.run"), True),
    "training, smooth gradient": (
        "gpt3",
        lambda: output_of("training_step", "cost.run", dp.Smooth(SHARPNESS)),
        True,
    ),
    "decode": ("llama", lambda: outputs_of("decode"), False),
    "generate": ("llama", lambda: outputs_of("generate"), False),
    "generate, gradient": ("llama", lambda: output_of("generate", _DOLLARS), True),
    "serve": ("llama", lambda: outputs_of_serving(*_LATENCIES, "tokens_per_second", _DOLLARS), False),
    "serve, gradient": ("llama", lambda: outputs_of_serving(_DOLLARS), True),
}
EVERY_INPUT = (0, 1, 2)  # of the model, the system and the strategy
HARDWARE = (1,)
# What is compiled with its gradient: its workload, how to make the function, and for which trees of numbers.
COMPILED: dict[str, tuple[str, Callable[[], Estimate], tuple[int, ...]]] = {
    "training": ("gpt3", lambda: output_of("training_step", "time"), EVERY_INPUT),
    "training of experts": ("deepseek", lambda: output_of("training_step", "time"), EVERY_INPUT),
    "generate": ("llama", lambda: output_of("generate", _DOLLARS), HARDWARE),
    "serve": ("llama", lambda: outputs_of_serving(_DOLLARS), HARDWARE),
    "generate, for every input": ("llama", lambda: output_of("generate", _DOLLARS), EVERY_INPUT),
    "serve, for every input": ("llama", lambda: outputs_of_serving(_DOLLARS), EVERY_INPUT),
}


def rate_benchmark(name: str, count: int) -> Benchmark:
    """Returns a function and `count` configurations to evaluate it for."""
    workload, make, with_gradient = RATES[name]
    function = make()
    model, system, strategy = load(workload)
    systems = random_variants(system, count, 0)
    if name.endswith("strategies varied"):
        inputs = systems, random_variants(strategy, count, 1)
        return lambda system, strategy: function(model, system, strategy), inputs

    # The strategy stays concrete: of its choices only those with weight are evaluated.
    def of_system(system: Any) -> Any:
        return function(model, system, strategy)

    return gradient_of(of_system) if with_gradient else of_system, (systems,)


def gradient_of(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Returns the function to a value and its gradient, of a program without calls, and which computes values
    once, where the checkout can."""
    flat = dp.flattened_calls(function) if hasattr(dp, "flattened_calls") else function
    gradient = jax.value_and_grad(flat, **options)
    return dp.compute_once(gradient) if hasattr(dp, "compute_once") else gradient


def keeping_barriers() -> dict[str, Any] | None:
    """Returns compiler options by which values are computed once; None where the checkout has none. With
    them, gradients are mapped best over the last axis, as functions are."""
    options = getattr(importlib.import_module("diffperf.compiler"), "barrier_options", None)
    return None if options is None else options()


def random_variants(module: Any, count: int, seed: int) -> Any:
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


def rate(benchmark: Benchmark, block: int = BLOCK) -> dict[str, float]:
    """Returns the evaluations a second of a function mapped over blocks of inputs, the compile time, and the
    bytes of the intermediate results of a block.

    Seconds are those of the core, which other processes do not lengthen much.
    """
    function, inputs = benchmark
    one = jax.eval_shape(function, *jax.tree.map(lambda leaf: leaf[0], inputs))
    few_results = len(jax.tree.leaves(one)) < MANY_RESULTS
    by_blocks = block_by_block if few_results or keeping_barriers() is not None else in_a_loop
    mapped, blocks = by_blocks(*benchmark, block)
    start = time.process_time()
    options = dp.throughput_options() if hasattr(dp, "throughput_options") else None
    compiled = jax.jit(mapped).lower(*blocks[0]).compile(options)
    compile_seconds = time.process_time() - start

    def seconds() -> float:
        start = time.process_time()
        jax.block_until_ready([compiled(*block) for block in blocks])
        return time.process_time() - start

    seconds()
    fastest = min(seconds() for _ in range(REPETITIONS))
    return {
        "per_second": len(jax.tree.leaves(inputs)[0]) / fastest,
        "compile_seconds": compile_seconds,
        "intermediate_bytes": compiled.memory_analysis().temp_size_in_bytes,
    }


def over_last_axis(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function mapped over the last axis of its arguments, as sweeps map it where the checkout
    can."""
    mapping = getattr(dp, "vmap_last", None) or functools.partial(jax.vmap, in_axes=-1, out_axes=-1)
    return mapping(function)


def block_by_block(function: Callable[..., Any], inputs: tuple[Any, ...], size: int) -> Mapped:
    """Returns a program for a block of inputs, and the blocks, each the arguments of a call.

    A block's numbers are the rows of one array, and those of many results likewise: to pass an array for each
    takes longer than the estimates.
    """
    leaves, structure = jax.tree.flatten(inputs)
    is_number = [leaf.ndim == 1 for leaf in leaves]

    def block_at(begin: int) -> tuple[jax.Array, list[jax.Array]]:
        parts = [leaf[begin : begin + size] for leaf in leaves]
        numbers = [part for part, number in zip(parts, is_number, strict=True) if number]
        return jnp.stack(numbers), [jnp.moveaxis(part, 0, -1) for part in parts if part.ndim > 1]

    def evaluate(numbers: jax.Array, others: list[jax.Array]) -> Any:
        rows, rest = iter(numbers), iter(others)
        block = [next(rows if number else rest) for number in is_number]
        results = jax.tree.leaves(over_last_axis(function)(*jax.tree.unflatten(structure, block)))
        if len(results) < MANY_RESULTS:
            return results
        return jnp.stack([r for r in results if r.ndim == 1]), [r for r in results if r.ndim > 1]

    return evaluate, [block_at(begin) for begin in range(0, len(leaves[0]), size)]


def in_a_loop(function: Callable[..., Any], inputs: tuple[Any, ...], size: int) -> Mapped:
    """Returns a program with a loop over blocks of inputs, and its arguments, those of a single call: for
    gradients of checkouts whose `vmap_last` recomputes values for each of their uses."""

    def in_blocks(leaf: jax.Array) -> jax.Array:
        return leaf.reshape((-1, size, *leaf.shape[1:]))

    def evaluate(*trees: Any) -> Any:
        return jax.lax.map(lambda block: jax.vmap(function)(*block), jax.tree.map(in_blocks, trees))

    return evaluate, [inputs]


def compile_time(name: str) -> dict[str, float]:
    """Returns the seconds to trace and compile a function with its gradient.

    Trees of numbers that the gradient is not for are known when the program is compiled.
    """
    workload, make, argnums = COMPILED[name]
    function, inputs = make(), load(workload)

    def of_varied(*varied: Any) -> jax.Array:
        trees = list(inputs)
        for argnum, tree in zip(argnums, varied, strict=True):
            trees[argnum] = tree
        return function(*trees)

    varied = [inputs[argnum] for argnum in argnums]
    start = time.perf_counter()
    gradient = gradient_of(of_varied, argnums=tuple(range(len(varied))))
    jax.jit(gradient).lower(*varied).compile(keeping_barriers())
    return {"seconds": time.perf_counter() - start}


def page_change() -> dict[str, float]:
    """Returns the seconds in which the live page answers a changed number, once everything is compiled.

    An answer is the report, its operators, and the exact elasticities of all its numbers.
    """
    from diffperf.page.answers import answer
    from diffperf.page.state import State

    class Compiled:
        """Stands in for the page's programs: what is not compiled is waited for."""

        def run(self, name: str, like: Any, function: Callable[[], Any]) -> Any:
            return function()

    shown = {"model": "gpt3-175b", "system": "dgx-a100", "devices": "64", "tp": "8", "pp": "8"}

    def change(step: int) -> float:
        start = time.perf_counter()
        state = State.of([*shown.items(), ("set", f"hbm.bandwidth={2 + step / 100} TB/s")])
        json.dumps(answer(state, Compiled()))
        return time.perf_counter() - start

    change(0)
    return {"seconds": sorted(change(step) for step in range(1, 12))[5]}


def measure(kind: str, name: str, count: int, *, quickly: bool = True) -> dict[str, Any]:
    """Returns the result of a measurement; `quickly` compiles with the flags of `compile_quickly`."""
    if quickly:
        dp.compile_quickly()
    try:
        if kind == "rate":
            return rate(rate_benchmark(name, count), BLOCK // 2 if name in HALF_A_BLOCK else BLOCK)
        if kind == "page":
            return page_change()
        return compile_time(name)
    except (ImportError, AttributeError) as problem:
        return {"lacks": str(problem)}


def main() -> None:
    """Measures what the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    of_rate = kinds.add_parser("rate", help="evaluations a second on one core")
    of_rate.add_argument("name", choices=RATES)
    of_rate.add_argument("count", type=int, nargs="?", default=16384, help="configurations [16384]")
    of_compile = kinds.add_parser("compile", help="seconds to compile a function with its gradient")
    of_compile.add_argument("name", choices=COMPILED)
    of_compile.add_argument("--defaults", action="store_true", help="with the flags that JAX has by default")
    kinds.add_parser("page", help="seconds in which the live page answers a changed number")
    options = vars(parser.parse_args())
    quickly = not options.get("defaults")
    result = measure(options["kind"], options.get("name", ""), options.get("count", 0), quickly=quickly)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
