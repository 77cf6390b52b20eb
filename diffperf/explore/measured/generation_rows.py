"""Measured generations, a batch from end to end or in a closed loop, and the estimator's values for them."""

from collections.abc import Hashable, Sequence

import jax.numpy as jnp

from diffperf.estimate.inference import generate
from diffperf.estimate.serving.pools import Pool
from diffperf.explore.measured import served_demand
from diffperf.explore.measured.model_rows import model_structure, stacked_models, unknown_architecture
from diffperf.explore.measured.platforms import Platforms
from diffperf.explore.measured.row_formats import number_formats, unknown_format
from diffperf.explore.measured.run_rows import layout_outputs
from diffperf.explore.measured.schemas import THROUGHPUT_KINDS
from diffperf.explore.measured.served_demand import Demand, plain_lengths
from diffperf.explore.measured.served_rows import expert_tensor_ranks
from diffperf.explore.measured.stacking import (
    Evaluator,
    Outputs,
    first_reason,
    has_clients,
    numbers,
    stacked_strategy,
    switch,
    systems_of,
    weights,
)
from diffperf.explore.measured.table import Row
from diffperf.hardware.system import System
from diffperf.quantity import Scalar, Weights, replace
from diffperf.relax import larger, smaller
from diffperf.workload.configuration import Configuration
from diffperf.workload.memory import inference_memory
from diffperf.workload.model import Model
from diffperf.workload.rules import feasible
from diffperf.workload.strategy import Strategy

# Two figures of a row that differ by less were computed from each other, and rounded.
_ROUNDED = 5e-3


def _inference_unrepresentable(row: Row) -> str | None:
    return first_reason(
        row["batch"] is None and not has_clients(row) and "batch unknown",
        has_clients(row)
        and row["throughput_kind"] == "decode"
        and "throughput of decode passes with clients",
        unknown_architecture(row),
        unknown_format(row),
    )


def _inference_structure(row: Row) -> Hashable:
    return model_structure(row), has_clients(row)


def _inference_inputs(
    rows: Sequence[Row], platforms: Platforms
) -> tuple[Model, System, Strategy, Weights, Demand | None]:
    """Models, systems and strategies of generations, what a throughput counts (`THROUGHPUT_KINDS`), and the
    demand of clients in a closed loop, None for one batch from end to end.
    """
    tp, ep = numbers(rows, "tp"), numbers(rows, "ep")
    demand = plain_lengths(rows) if has_clients(rows[0]) else None
    strategy = stacked_strategy(
        rows,
        tp=tp,
        pp=numbers(rows, "pp"),
        ep=ep,
        expert_tp=expert_tensor_ranks(rows, tp, ep),
        global_batch=numbers(rows, "batch") if demand is None else demand.concurrency,
        sequence_length=numbers(rows, "input_len"),
        output_length=numbers(rows, "output_len"),
        attention=switch(numbers(rows, "flash_attention")).array,
        expert_popularity_spread=numbers(rows, "expert_popularity_spread"),
        **number_formats(rows),
    )
    longest = numbers(rows, "input_len") + numbers(rows, "output_len")
    models = stacked_models(rows, positions=longest, training=False)
    throughput_kind = weights([_throughput_kind(row) for row in rows], THROUGHPUT_KINDS)
    return models, systems_of(rows, platforms), strategy, throughput_kind, demand


def _throughput_kind(row: Row) -> str:
    """The kind of tokens that the throughput of a row counts. The throughput of a batch over its time per
    token has no prefill in it, whatever the row says of its kind: benchmarks of decode passes alone
    report it.
    """
    batch, per_token, throughput = (row[name] for name in ("batch", "tpot_s", "throughput_tokens_per_s"))
    if row["throughput_kind"] == "output" and batch and per_token and throughput:
        return "decode" if abs(throughput * per_token / batch - 1) < _ROUNDED else "output"
    return row["throughput_kind"]


def _inference_estimate(
    model: Model, system: System, strategy: Strategy, throughput_kind: Weights, demand: Demand | None
) -> Outputs:
    if demand is not None:
        return _closed_loop_estimate(model, system, strategy, throughput_kind, demand)
    strategy, rounds = _in_rounds(Configuration(model, system, strategy))
    report = generate(model, system, strategy)
    kind = throughput_kind
    prompts = kind["total"] * strategy.global_batch * strategy.sequence_length / report.time
    of_whole = (kind["output"] + kind["total"]) * report.tokens_per_second + prompts
    of_decode = kind["decode"] * strategy.global_batch / report.time_per_output_token
    return {
        "latency_s": report.time * rounds,
        "ttft_s": report.time_to_first_token,
        "tpot_s": report.time_per_output_token,
        "throughput_tokens_per_s": of_whole + of_decode,
        **layout_outputs(model, system, strategy, report.memory, "generate"),
    }


def _in_rounds(c: Configuration) -> tuple[Strategy, Scalar]:
    """The strategy with the sequences that run at once, and how many rounds of them the batch takes.

    Engines with a paged cache let the sequences wait for which it has no room (PagedAttention, SOSP'23
    §4.5). All else that grows with the batch is counted as if it were of the cache.
    """
    c = c.for_inference()
    memory, batch, replicas = inference_memory(c), c.strategy.global_batch, c.strategy.dp
    cache = memory.kv_cache * c.system.stack.fragmentation
    room = larger(memory.capacity - memory.peak + cache, 0.0)
    fitting = smaller(larger(jnp.floor(batch * room / larger(cache, 1.0)), replicas), batch)
    at_once = batch + c.system.stack.queues_sequences.on * (fitting - batch)
    return replace(c.strategy, {"global_batch": at_once}), batch / at_once


def _closed_loop_estimate(
    model: Model, system: System, strategy: Strategy, throughput_kind: Weights, demand: Demand
) -> Outputs:
    pool = Pool(strategy, workers=jnp.ones_like(strategy.tp))
    served = served_demand.steady_state(model, system, None, pool, demand)
    prompts = throughput_kind["total"] * demand.input_length / demand.output_length
    return {
        "latency_s": served.latency,
        "ttft_s": served.first_token_of_run,
        "tpot_s": served.time_per_output_token,
        "throughput_tokens_per_s": served.output_rate_of_run * (1 + prompts),
        "possible": feasible(Configuration(model, system, strategy), "generate"),
    }


INFERENCE = Evaluator(
    _inference_unrepresentable, _inference_inputs, _inference_estimate, _inference_structure
)
