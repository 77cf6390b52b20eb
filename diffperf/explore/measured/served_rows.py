"""Measured servers under load: layouts of their pools, and the estimator's latencies, rates and power."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from diffperf.estimate.serving.known_batch import known_batch
from diffperf.estimate.serving.pools import Pool
from diffperf.explore.measured import served_demand
from diffperf.explore.measured.model_rows import model_structure, stacked_models, unknown_architecture
from diffperf.explore.measured.platforms import Platforms
from diffperf.explore.measured.row_formats import number_formats, unknown_format
from diffperf.explore.measured.served_demand import STEP_TOKENS, Demand, mean_length, uniform_lengths
from diffperf.explore.measured.stacking import (
    Evaluator,
    Outputs,
    first_reason,
    numbers,
    stacked_strategy,
    systems_of,
)
from diffperf.explore.measured.table import Row
from diffperf.hardware.system import System
from diffperf.workload.configuration import Configuration
from diffperf.workload.model import Model
from diffperf.workload.rules import feasible
from diffperf.workload.strategy import Strategy


def expert_tensor_ranks(rows: Sequence[Row], devices: np.ndarray, ep: np.ndarray) -> np.ndarray:
    """The tensor-parallel degree of experts that `ep` groups of some devices share; 0 without experts."""
    sparse = numbers(rows, "experts") > 0
    return np.where(sparse, np.maximum(devices / ep, 1.0), 0.0)


# --- servers in a closed loop


def _serving_unrepresentable(row: Row) -> str | None:
    speculative = row["spec_method"] != "none"
    return first_reason(
        unknown_architecture(row),
        unknown_format(row),
        speculative and row["tokens_per_step"] is None and "tokens per speculative step unknown",
    )


def _pool(rows: Sequence[Row], name: str) -> Pool:
    """A pool of workers, from the columns whose names begin with `name`.

    The devices of a worker share each layer's attention by heads, or by requests where attention is
    data-parallel; its experts are split `ep` ways, and each of them over the remaining devices.
    """
    devices, ep = numbers(rows, f"{name}_tp"), numbers(rows, f"{name}_ep")
    parallel = numbers(rows, f"{name}_dp_attention") > 0
    strategy = stacked_strategy(
        rows,
        tp=np.where(parallel, 1.0, devices),
        dp=np.where(parallel, devices, 1.0),
        ep=ep,
        expert_tp=expert_tensor_ranks(rows, devices, ep),
        global_batch=numbers(rows, "concurrency"),
        sequence_length=mean_length(rows, "input_len"),
        output_length=mean_length(rows, "output_len"),
        expert_popularity_spread=numbers(rows, "expert_popularity_spread"),
        **number_formats(rows),
    )
    return Pool(strategy, workers=numbers(rows, f"{name}_workers"))


def _serving_inputs(
    rows: Sequence[Row], platforms: Platforms
) -> tuple[Model, System, Pool | None, Pool, Demand]:
    """Models, systems, pools and demands of servers.

    There is no pool for prompts where the pool for outputs runs both. The longest context decides the
    positions that a model learns.
    """
    speculative: Any = np.array([row["spec_method"] != "none" for row in rows], dtype=float)
    longest = numbers(rows, "input_len") + numbers(rows, "output_len")
    models = stacked_models(rows, positions=longest, training=False, modules=speculative)
    prefill = _pool(rows, "prefill") if rows[0]["disaggregated"] else None
    return models, systems_of(rows, platforms), prefill, _pool(rows, "decode"), uniform_lengths(rows)


def _serving_structure(row: Row) -> Hashable:
    return model_structure(row), row["disaggregated"]


def _serving_estimate(
    model: Model, system: System, prefill: Pool | None, decode: Pool, demand: Demand
) -> Outputs:
    served = served_demand.steady_state(model, system, prefill, decode, demand)
    output_rate = served.output_rate_of_run / system.n_devices
    input_rate = output_rate * demand.input_length / demand.output_length
    return {
        "tpot_median_s": served.time_per_output_token,
        "tpot_mean_s": served.time_per_output_token,
        "ttft_median_s": served.time_to_first_token,
        "ttft_mean_s": served.first_token_of_run,
        "e2e_median_s": served.latency,
        "e2e_mean_s": served.latency,
        "throughput_tokens_per_s_per_device": output_rate + input_rate,
        "output_throughput_tokens_per_s_per_device": output_rate,
        "input_throughput_tokens_per_s_per_device": input_rate,
        "power_mean_w_per_device": served.power,
    }


# --- servers whose power was measured, at a known mean batch

# Mean tokens of the prompts of The ML.ENERGY Benchmark's tasks, which it does not publish. Estimates: from
# the batches at which the KV cache of its runs fills the memory of an H100 (Llama-3.1-8B: 690 chats;
# Qwen3-Coder-30B: 89 completions), and the length of a question of GPQA with its choices.
_PROMPT_TOKENS = {"gpqa": 250.0, "lm-arena-chat": 200.0, "sourcegraph-fim": 700.0}


def _prompt_tokens(row: Row) -> float | None:
    """The mean tokens of a row's prompts; None where neither the row nor its task says it."""
    return row["input_len"] or _PROMPT_TOKENS.get(row["task"])


def _energy_unrepresentable(row: Row) -> str | None:
    return first_reason(
        unknown_architecture(row),
        unknown_format(row),
        _prompt_tokens(row) is None and "length of the prompts unknown",
    )


def _energy_inputs(rows: Sequence[Row], platforms: Platforms) -> tuple[Model, System, Strategy, Demand]:
    """Models, systems, strategies and demands of servers with as many running requests as were measured.

    Where answers of mean μ and standard deviation σ end by themselves, those that run at a moment are the
    longer ones, of mean μ + σ²/μ (length-biased sampling), and half done on average.
    """
    tp, dp, ep = (numbers(rows, name) for name in ("tp", "dp", "ep"))
    mean, deviation = numbers(rows, "output_len"), numbers(rows, "output_len_std")
    prompts = np.array([_prompt_tokens(row) for row in rows], dtype=float)
    batch, no = numbers(rows, "batch"), np.zeros(len(rows))
    strategy = stacked_strategy(
        rows,
        tp=tp,
        pp=numbers(rows, "pp"),
        dp=dp,
        ep=ep,
        expert_tp=expert_tensor_ranks(rows, tp * dp, ep),
        global_batch=batch,
        sequence_length=prompts,
        output_length=mean + deviation**2 / mean,
        expert_popularity_spread=numbers(rows, "expert_popularity_spread"),
        **number_formats(rows),
    )
    demand = Demand(
        concurrency=batch,
        batch_cap=numbers(rows, "max_num_seqs"),
        input_length=prompts,
        input_spread=no,
        output_length=mean,
        output_spread=deviation / mean,
        batch_wait=no,
        chunk=no + STEP_TOKENS,
        draft_tokens=no,
        tokens_per_step=no + 1,
        at_start=no,
    )
    models = stacked_models(rows, positions=prompts + mean, training=False)
    return models, systems_of(rows, platforms), strategy, demand


def _energy_estimate(model: Model, system: System, strategy: Strategy, demand: Demand) -> Outputs:
    """The time of decode passes alone, which is the median time between two tokens; power and energy of a
    server in its steady state, with prompts.
    """
    c = Configuration(model, system, strategy).for_inference()
    steps = known_batch(c, demand.output_length)
    time, energy = steps.mean_time, steps.mean_energy
    power = energy / time
    return {
        "tpot_s": steps.decode_time,
        "throughput_tokens_per_s": strategy.global_batch / time,
        "power_w": power,
        "power_per_device_w": power / system.n_devices,
        "energy_per_token_j": energy / strategy.global_batch,
        "possible": feasible(Configuration(model, system, strategy), "decode"),
    }


SERVING = Evaluator(_serving_unrepresentable, _serving_inputs, _serving_estimate, _serving_structure)
ENERGY = Evaluator(_energy_unrepresentable, _energy_inputs, _energy_estimate, model_structure)
