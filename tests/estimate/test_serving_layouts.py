"""Prompts that a server with a pipeline or with context-parallel ranks prefills: against the prefill phase,
and against a run of the pipeline chunk by chunk.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import diffperf as dp
from diffperf.estimate.serving.engine_steps import EngineSteps
from diffperf.estimate.serving.prompt_prefill import Prefill
from diffperf.estimate.serving.serving_report import serve
from diffperf.estimate.serving.traffic import Traffic
from diffperf.quantity import Scalar, replace
from diffperf.relax import Exact
from diffperf.workload.requests import Requests

served, prefilled = jax.jit(serve), jax.jit(dp.PHASES["prefill"])

# An engine that takes up requests at once.
PROMPT = {
    "inference_stack.poll_interval": 1.0,
    "inference_stack.scheduled_steps": 0.0,
    "inference_stack.request_overhead": 1e-9,
    "inference_stack.stream_interval": 1.0,
}


@pytest.mark.slow
@pytest.mark.parametrize("length", [512, 4096])
@pytest.mark.parametrize(
    "layout",
    [
        {"tp": 4},
        {"cp": 4},
        {"tp": 2, "cp": 2, "context_parallel": "all_to_all"},
        {"pp": 4},
        {"tp": 2, "pp": 2},
    ],
    ids=str,
)
def test_a_single_client_waits_for_the_prefill_of_its_prompt(layout, length):
    """Ranks that share a prompt made its first token no earlier than one rank alone; and the logits of as
    many answers as a prompt has tokens delayed it in a pipeline, whose stages all worked on it at once.
    """
    model = dp.load_model("llama-3-8b")
    system = replace(dp.load_system("dgx-h100", n_devices=4), PROMPT)
    asked = {"sequence_length": length, "output_length": 32, "global_batch": 1}
    strategy = dp.load_strategy(layout | asked, n_devices=4)
    numbers = {"concurrency": 1.0, "input_length": length, "output_length": 32, "output_spread": 0.0}
    requests = Requests(**numbers)
    first_token = served(model, system, strategy, requests).time_to_first_token
    assert float(first_token) == pytest.approx(float(prefilled(model, system, strategy).time), rel=0.18)


@pytest.mark.slow
def test_latents_of_a_cached_prefix_are_projected_for_each_prompt():
    """A turn of 131 tokens behind 65,405 cached ones took 13 % less than its prefill, without the projections
    of the prefix's latents to keys and values.
    """
    model = dp.load_model("deepseek-v3")
    system = replace(dp.load_system("hgx-h200", n_devices=8), PROMPT)
    lengths = {"output_length": 64, "cached_share": 0.998}
    asked = {"tp": 8, "precision": "fp8", "sequence_length": 65536, "global_batch": 1}
    strategy = dp.load_strategy(asked | lengths, n_devices=8)
    requests = Requests(**{"concurrency": 1.0, "input_length": 65536.0, "output_spread": 0.0}, **lengths)
    first_token = served(model, system, strategy, requests).time_to_first_token
    assert float(first_token) == pytest.approx(float(prefilled(model, system, strategy).time), rel=0.05)


STAGE, TOKEN = 2e-3, 1e-6  # s of a stage for a chunk: for its weights, and for each token


class _Pipeline(EngineSteps):
    """Steps of a pipeline: a part of the tokens goes through each stage at a time."""

    stages: float

    def time(self, running: Scalar, prompt_tokens: Scalar) -> Scalar:
        return self.stages * STAGE + TOKEN * prompt_tokens


def _last_chunk_leaves(prompt: float, chunk: float, stages: int) -> float:
    """Seconds until the last of a prompt's chunks has left a pipeline, chunk by chunk and stage by stage."""
    sizes = [min(chunk, prompt - start) for start in np.arange(0.0, prompt, chunk)]
    left = np.zeros(stages)  # times at which the chunk before has left each stage
    for size in sizes:
        arrived = 0.0
        for stage in range(stages):
            left[stage] = arrived = max(arrived, left[stage]) + STAGE + TOKEN * size
    return left[-1]


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("prompt", [100, 1000, 2000, 4000, 8000, 12000])
def test_chunks_go_through_a_pipeline_one_after_another(prompt, stages):
    requests, chunk = Requests(**{"input_length": prompt}), 1000.0
    prefill = Prefill.of(
        _Pipeline(float(stages)),
        Traffic.of(requests, jnp.asarray(1.0)),
        jnp.asarray(0.0),
        jnp.asarray(chunk * stages),
        Exact(),
        jnp.asarray(float(stages)),
    )
    service = prefill.alone_time
    seconds = service + prefill.passage(service)
    np.testing.assert_allclose(seconds, _last_chunk_leaves(prompt, chunk, stages), rtol=1e-6)
